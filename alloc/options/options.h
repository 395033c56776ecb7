/*
 * A program's settings: one table, of which the YAML file's keys, the variables, the flags, --help and the page in
 * docs/ come. A flag counts before a variable, a variable before the file, the file before the default.
 *
 * The names are made from the key: runDirectory is --run-directory and POOLCAP_RUN_DIRECTORY.
 *
 * Thread rules: none of its own; the environment is read while loading.
 */
#ifndef PC_OPTIONS_H
#define PC_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

#include "alloc/base/error.h"

enum pc_option_type {
    PC_OPTION_TEXT,   /* char[size] */
    PC_OPTION_PATH,   /* char[size], absolute; may be empty */
    PC_OPTION_BYTES,  /* uint64_t; a Kubernetes quantity of whole bytes */
    PC_OPTION_BOOL,   /* bool */
    PC_OPTION_CHOICE, /* an enum: the index in choices */
};

struct pc_option {
    const char *key;
    enum pc_option_type type;
    size_t offset, size;        /* of the member */
    const char *initial;        /* the default, as it would be written */
    const char *text;           /* one sentence part for people: no capital, no full stop */
    const char *const *choices; /* ends with NULL; PC_OPTION_CHOICE alone */
};

/* A row: PC_OPTION(struct, member, "key", TYPE, "default", "text"). */
#define PC_OPTION(structure, member, name, kind, value, words)                          \
    {                                                                                   \
        .key = (name), .type = PC_OPTION_##kind, .offset = offsetof(structure, member), \
        .size = sizeof(((structure *)0)->member), .initial = (value), .text = (words),  \
    }
#define PC_OPTION_OF(structure, member, name, list, value, words)                                         \
    {                                                                                                     \
        .key = (name), .type = PC_OPTION_CHOICE, .offset = offsetof(structure, member),                   \
        .size = sizeof(((structure *)0)->member), .initial = (value), .text = (words), .choices = (list), \
    }

/* The words of enum pc_log_level, in its order. */
extern const char *const pc_option_levels[];

struct pc_yaml; /* yaml.h */

struct pc_option_table {
    const char *program; /* "poolcapd" */
    const char *summary; /* what it does, one line */
    const char *more;    /* printed below the settings by --help; may be NULL */
    const struct pc_option *option;
    size_t options;
    /*
     * A key of the file that is no setting; NULL: there is none. Sets *known. Node numbers are libyaml's.
     */
    enum pc_status (*other)(struct pc_yaml *yaml, const char *key, int value, void *config, bool *known);
};

/* Sets every member to its default. */
void pc_options_defaults(const struct pc_option_table *table, void *config);
/* Sets one from text; what names it as the user wrote it. Errors: PC_ERR_INVALID; the text names the fix. */
enum pc_status pc_option_set(const struct pc_option *option, void *config, const char *what, const char *value,
                             struct pc_error *err);
/*
 * A file, over what is in config. Unknown keys, wrong types and bad values are PC_ERR_INVALID, and the text begins with
 * "file:line:column:". name stands for the file in messages.
 */
enum pc_status pc_options_parse(const struct pc_option_table *table, const char *name, const char *text, size_t length,
                                void *config, struct pc_error *err);
enum pc_status pc_options_read(const struct pc_option_table *table, const char *path, void *config,
                               struct pc_error *err);

enum pc_option_action {
    PC_OPTIONS_RUN,
    PC_OPTIONS_HELP,
    PC_OPTIONS_VERSION,
    PC_OPTIONS_CHECK, /* say whether the configuration is good, and end */
    PC_OPTIONS_DOCS,
};
/*
 * Defaults, the file that --config (or POOLCAP_CONFIG) names, variables, flags. *file is where it was read from (it
 * points into argv or the environment), NULL where there is none. With HELP, VERSION and DOCS nothing is read.
 * Errors: PC_ERR_INVALID; the text names the flag, the variable, or the place in the file.
 */
enum pc_status pc_options_load(const struct pc_option_table *table, int argc, char **argv, void *config,
                               const char **file, enum pc_option_action *action, struct pc_error *err);

void pc_options_usage(const struct pc_option_table *table); /* --help, on stdout */
void pc_options_docs(const struct pc_option_table *table);  /* a Markdown table, on stdout */

#endif
