#include "alloc/options/yaml.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { KEYS_MAX = 32 };

static yaml_node_t *at(struct pc_yaml *yaml, int node)
{
    return yaml_document_get_node(&yaml->document, node);
}

enum pc_status pc_yaml_load(struct pc_yaml *yaml, const char *name, const char *text, size_t length,
                            struct pc_error *err)
{
    yaml_parser_t parser;
    enum pc_status status = PC_OK;
    yaml->name = name;
    yaml->err = err;
    if (yaml_parser_initialize(&parser) == 0)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no memory for the YAML parser");
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, length);
    if (yaml_parser_load(&parser, &yaml->document) == 0)
        status =
            pc_error_set(err, PC_ERR_INVALID, 0, "%.120s:%zu:%zu: %s", name, parser.problem_mark.line + 1,
                         parser.problem_mark.column + 1, parser.problem != NULL ? parser.problem : "this is no YAML");
    yaml_parser_delete(&parser);
    return status;
}

void pc_yaml_free(struct pc_yaml *yaml)
{
    yaml_document_delete(&yaml->document);
}

enum pc_status pc_yaml_refuse(struct pc_yaml *yaml, int node, const char *fmt, ...)
{
    char text[PC_ERROR_TEXT - 160];
    const yaml_mark_t *mark = &at(yaml, node)->start_mark;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return pc_error_set(yaml->err, PC_ERR_INVALID, 0, "%.120s:%zu:%zu: %s", yaml->name, mark->line + 1,
                        mark->column + 1, text);
}

enum pc_status pc_yaml_at(struct pc_yaml *yaml, int node, enum pc_status status)
{
    const yaml_mark_t *mark = &at(yaml, node)->start_mark;
    if (status != PC_OK)
        pc_error_prefix(yaml->err, "%.120s:%zu:%zu", yaml->name, mark->line + 1, mark->column + 1);
    return status;
}

static const char *kind_name(const yaml_node_t *node)
{
    switch (node->type) {
    case YAML_SCALAR_NODE:
        return "a single value";
    case YAML_SEQUENCE_NODE:
        return "a list";
    case YAML_MAPPING_NODE:
        return "a mapping";
    default:
        return "nothing";
    }
}

bool pc_yaml_empty(struct pc_yaml *yaml, int node)
{
    const yaml_node_t *n = at(yaml, node);
    return n->type == YAML_SCALAR_NODE && n->data.scalar.length == 0;
}

unsigned pc_yaml_line(struct pc_yaml *yaml, int node)
{
    return (unsigned)at(yaml, node)->start_mark.line + 1;
}

enum pc_status pc_yaml_text(struct pc_yaml *yaml, int node, const char *what, const char **out)
{
    const yaml_node_t *n = at(yaml, node);
    if (n->type != YAML_SCALAR_NODE)
        return pc_yaml_refuse(yaml, node, "%s is %s, and must be a single value", what, kind_name(n));
    if (memchr(n->data.scalar.value, 0, n->data.scalar.length) != NULL)
        return pc_yaml_refuse(yaml, node, "%s has a NUL byte in it", what);
    *out = (const char *)n->data.scalar.value;
    return PC_OK;
}

/* Quadratic, so the keys are few. */
static enum pc_status check_once(struct pc_yaml *yaml, const yaml_node_pair_t *first, const yaml_node_pair_t *pair,
                                 const char *key)
{
    const char *other;
    if (pair - first == KEYS_MAX)
        return pc_yaml_refuse(yaml, pair->key, "more than %d keys in one mapping", KEYS_MAX);
    for (const yaml_node_pair_t *p = first; p < pair; p++)
        if (pc_yaml_text(yaml, p->key, "a key", &other) == PC_OK && strcmp(key, other) == 0)
            return pc_yaml_refuse(yaml, pair->key, "\"%.64s\" is given twice", key);
    return PC_OK;
}

enum pc_status pc_yaml_each(struct pc_yaml *yaml, int node, const char *what, pc_yaml_pair each, void *arg)
{
    const yaml_node_t *map = at(yaml, node);
    enum pc_status status = PC_OK;
    const char *key;
    if (map->type != YAML_MAPPING_NODE)
        return pc_yaml_refuse(yaml, node, "%s is %s, and must be a mapping (key: value)", what, kind_name(map));
    for (yaml_node_pair_t *pair = map->data.mapping.pairs.start; pair < map->data.mapping.pairs.top; pair++) {
        status = pc_yaml_text(yaml, pair->key, "a key", &key);
        if (status == PC_OK)
            status = check_once(yaml, map->data.mapping.pairs.start, pair, key);
        if (status == PC_OK)
            status = each(yaml, key, pair->key, pair->value, arg);
        if (status != PC_OK)
            break;
    }
    return status;
}

enum pc_status pc_yaml_items(struct pc_yaml *yaml, int node, const char *what, pc_yaml_item each, void *arg)
{
    const yaml_node_t *list = at(yaml, node);
    enum pc_status status = PC_OK;
    if (list->type != YAML_SEQUENCE_NODE)
        return pc_yaml_refuse(yaml, node, "%s is %s, and must be a list", what, kind_name(list));
    for (yaml_node_item_t *item = list->data.sequence.items.start;
         item < list->data.sequence.items.top && status == PC_OK; item++)
        status = each(yaml, *item, arg);
    return status;
}
