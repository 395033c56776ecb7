/* Reading YAML with messages that name the place: libyaml's document and what is said about it. */
#ifndef PC_OPTIONS_YAML_H
#define PC_OPTIONS_YAML_H

#include <stdbool.h>

#include <yaml.h>

#include "alloc/base/error.h"

struct pc_yaml {
    const char *name; /* of the file, for messages */
    yaml_document_t document;
    struct pc_error *err;
};

/* Errors: PC_ERR_INVALID (no YAML; the text names the place), PC_ERR_HOST_MEMORY. */
enum pc_status pc_yaml_load(struct pc_yaml *yaml, const char *name, const char *text, size_t length,
                            struct pc_error *err);
void pc_yaml_free(struct pc_yaml *yaml);

/* Refuses a node with "name:line:column: text". Returns PC_ERR_INVALID. */
enum pc_status pc_yaml_refuse(struct pc_yaml *yaml, int node, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Puts the node's place before an error that a value's own parser made; status is passed through. */
enum pc_status pc_yaml_at(struct pc_yaml *yaml, int node, enum pc_status status);

/* The text of a scalar without NUL bytes in it; refused otherwise. what names it. */
enum pc_status pc_yaml_text(struct pc_yaml *yaml, int node, const char *what, const char **out);

/* Whether nothing stands behind the key. */
bool pc_yaml_empty(struct pc_yaml *yaml, int node);

unsigned pc_yaml_line(struct pc_yaml *yaml, int node); /* from 1 */

/* Calls each for every pair of a mapping; a key named twice, and more than 32 of them, are refused. */
typedef enum pc_status (*pc_yaml_pair)(struct pc_yaml *yaml, const char *key, int key_node, int value, void *arg);
enum pc_status pc_yaml_each(struct pc_yaml *yaml, int node, const char *what, pc_yaml_pair each, void *arg);

/* Calls each for every item of a list. */
typedef enum pc_status (*pc_yaml_item)(struct pc_yaml *yaml, int item, void *arg);
enum pc_status pc_yaml_items(struct pc_yaml *yaml, int node, const char *what, pc_yaml_item each, void *arg);

#endif
