#include "alloc/options/options.h"

#include <ctype.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/bytes.h"
#include "alloc/base/cleanup.h"
#include "alloc/base/log.h"
#include "alloc/options/yaml.h"

enum { FILE_MAX = 1024 * 1024, NAME = 64 };

const char *const pc_option_levels[] = {
    [PC_LOG_ERROR] = "error", [PC_LOG_WARN] = "warn", [PC_LOG_INFO] = "info", [PC_LOG_DEBUG] = "debug", NULL};

/* ---- values ---- */

static enum pc_status set_text(const struct pc_option *o, char *out, const char *what, const char *value,
                               struct pc_error *err)
{
    size_t length = strlen(value);
    if (length >= o->size)
        return pc_error_set(err, PC_ERR_INVALID, 0, "%s has %zu bytes; at most %zu are allowed", what, length,
                            o->size - 1);
    if (o->type == PC_OPTION_PATH && length > 0 && value[0] != '/')
        return pc_error_set(err, PC_ERR_INVALID, 0, "%s \"%s\" is not an absolute path; begin it with /", what, value);
    memset(out, 0, o->size);
    memcpy(out, value, length);
    return PC_OK;
}

static enum pc_status set_bool(bool *out, const char *what, const char *value, struct pc_error *err)
{
    if (strcmp(value, "true") != 0 && strcmp(value, "false") != 0)
        return pc_error_set(err, PC_ERR_INVALID, 0, "%s \"%.64s\" is neither true nor false", what, value);
    *out = value[0] == 't';
    return PC_OK;
}

/* "error, warn, info, debug" */
static const char *list_choices(const struct pc_option *o, char *out, size_t size)
{
    size_t used = 0;
    out[0] = '\0';
    for (size_t i = 0; o->choices[i] != NULL && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%s", i > 0 ? ", " : "", o->choices[i]);
    return out;
}

static enum pc_status set_choice(const struct pc_option *o, unsigned *out, const char *what, const char *value,
                                 struct pc_error *err)
{
    char all[160];
    for (unsigned i = 0; o->choices[i] != NULL; i++) {
        if (strcmp(o->choices[i], value) == 0) {
            *out = i;
            return PC_OK;
        }
    }
    return pc_error_set(err, PC_ERR_INVALID, 0, "%s \"%.64s\" is not one of %s", what, value,
                        list_choices(o, all, sizeof all));
}

enum pc_status pc_option_set(const struct pc_option *o, void *config, const char *what, const char *value,
                             struct pc_error *err)
{
    void *at = (char *)config + o->offset;
    switch (o->type) {
    case PC_OPTION_TEXT:
    case PC_OPTION_PATH:
        return set_text(o, at, what, value, err);
    case PC_OPTION_BYTES:
        return pc_bytes_parse(what, value, at, err);
    case PC_OPTION_BOOL:
        return set_bool(at, what, value, err);
    case PC_OPTION_CHOICE:
        return set_choice(o, at, what, value, err);
    }
    return PC_OK;
}

void pc_options_defaults(const struct pc_option_table *table, void *config)
{
    for (size_t i = 0; i < table->options; i++)
        pc_option_set(&table->option[i], config, table->option[i].key, table->option[i].initial, NULL);
}

/* ---- the file ---- */

struct reading {
    const struct pc_option_table *table;
    void *config;
};

static enum pc_status read_pair(struct pc_yaml *yaml, const char *key, int key_node, int value, void *arg)
{
    const struct reading *r = arg;
    const char *text;
    bool known = false;
    for (size_t i = 0; i < r->table->options; i++) {
        if (strcmp(r->table->option[i].key, key) != 0)
            continue;
        enum pc_status status = pc_yaml_text(yaml, value, key, &text);
        if (status != PC_OK)
            return status;
        return pc_yaml_at(yaml, value, pc_option_set(&r->table->option[i], r->config, key, text, yaml->err));
    }
    if (r->table->other != NULL) {
        enum pc_status status = r->table->other(yaml, key, value, r->config, &known);
        if (status != PC_OK || known)
            return status;
    }
    return pc_yaml_refuse(yaml, key_node, "unknown key \"%.64s\"; --help lists the known ones", key);
}

enum pc_status pc_options_parse(const struct pc_option_table *table, const char *name, const char *text, size_t length,
                                void *config, struct pc_error *err)
{
    struct pc_yaml yaml;
    struct reading reading = {.table = table, .config = config};
    enum pc_status status = pc_yaml_load(&yaml, name, text, length, err);
    if (status != PC_OK)
        return status;
    if (yaml_document_get_root_node(&yaml.document) != NULL) /* an empty file is a good one */
        status = pc_yaml_each(&yaml, 1, "the file", read_pair, &reading);
    pc_yaml_free(&yaml);
    return status;
}

enum pc_status pc_options_read(const struct pc_option_table *table, const char *path, void *config,
                               struct pc_error *err)
{
    pc_auto_file FILE *f = fopen(path, "re");
    if (f == NULL)
        return pc_error_set(err, PC_ERR_INVALID, errno, "cannot read the configuration %.200s: %s", path,
                            strerror(errno));
    pc_auto_free char *text = malloc(FILE_MAX);
    if (text == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no memory to read %.200s", path);
    size_t length = fread(text, 1, FILE_MAX, f);
    if (ferror(f) != 0)
        return pc_error_errno(err, errno, "cannot read the configuration %.200s", path);
    if (length == FILE_MAX)
        return pc_error_set(err, PC_ERR_INVALID, 0, "the configuration %.200s is over %d bytes", path, FILE_MAX);
    return pc_options_parse(table, path, text, length, config, err);
}

/* ---- names, from the key ---- */

/* runDirectory: run-directory */
static const char *flag_name(const struct pc_option *o, char out[NAME])
{
    size_t n = 0;
    for (const char *c = o->key; *c != '\0' && n < NAME - 2; c++) {
        if (isupper((unsigned char)*c))
            out[n++] = '-';
        out[n++] = (char)tolower((unsigned char)*c);
    }
    out[n] = '\0';
    return out;
}

/* runDirectory: POOLCAP_RUN_DIRECTORY */
static const char *variable_name(const struct pc_option *o, char out[NAME])
{
    char flag[NAME];
    snprintf(out, NAME, "POOLCAP_%.50s", flag_name(o, flag));
    for (char *c = out; *c != '\0'; c++)
        *c = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
    return out;
}

/* ---- flags ---- */

/* The value of --name=value, "" for a bare --name, NULL where the argument is another. */
static const char *match(const char *argument, const char *name)
{
    size_t length = strlen(name);
    if (strncmp(argument, "--", 2) != 0 || strncmp(argument + 2, name, length) != 0)
        return NULL;
    argument += 2 + length;
    return *argument == '=' ? argument + 1 : *argument == '\0' ? argument : NULL;
}

/* A bare flag's value stands in the next argument; a bare switch is true. */
static enum pc_status take_value(int argc, char **argv, int *i, bool is_switch, const char **value,
                                 struct pc_error *err)
{
    if (**value != '\0' || strchr(argv[*i], '=') != NULL)
        return PC_OK;
    if (is_switch) {
        *value = "true";
        return PC_OK;
    }
    if (*i + 1 >= argc)
        return pc_error_set(err, PC_ERR_INVALID, 0, "%s needs a value", argv[*i]);
    *value = argv[++*i];
    return PC_OK;
}

static bool read_action(const char *argument, enum pc_option_action *action)
{
    static const struct {
        const char *flag;
        enum pc_option_action action;
    } actions[] = {
        {"--help", PC_OPTIONS_HELP},   {"-h", PC_OPTIONS_HELP},     {"--version", PC_OPTIONS_VERSION},
        {"--check", PC_OPTIONS_CHECK}, {"--docs", PC_OPTIONS_DOCS},
    };
    for (size_t i = 0; i < PC_ARRAY_LEN(actions); i++) {
        if (strcmp(argument, actions[i].flag) != 0)
            continue;
        *action = actions[i].action;
        return true;
    }
    return false;
}

/* values[n] is the flag's value of option n, and values[options] that of --config. */
static enum pc_status read_flag(const struct pc_option_table *table, int argc, char **argv, int *i, const char **values,
                                struct pc_error *err)
{
    char name[NAME];
    for (size_t k = 0; k <= table->options; k++) {
        bool is_file = k == table->options;
        const char *value = match(argv[*i], is_file ? "config" : flag_name(&table->option[k], name));
        if (value == NULL)
            continue;
        bool is_switch = !is_file && table->option[k].type == PC_OPTION_BOOL;
        enum pc_status status = take_value(argc, argv, i, is_switch, &value, err);
        values[k] = value;
        return status;
    }
    return pc_error_set(err, PC_ERR_INVALID, 0, "unknown argument \"%.80s\"; --help lists the known ones", argv[*i]);
}

/* One setting from its variable, then its flag. */
static enum pc_status overlay(const struct pc_option *o, const char *flag, void *config, struct pc_error *err)
{
    char name[NAME], what[NAME + 2];
    const char *variable = getenv(variable_name(o, name));
    if (flag != NULL) {
        snprintf(what, sizeof what, "--%s", flag_name(o, name));
        return pc_option_set(o, config, what, flag, err);
    }
    return variable != NULL ? pc_option_set(o, config, name, variable, err) : PC_OK;
}

enum pc_status pc_options_load(const struct pc_option_table *table, int argc, char **argv, void *config,
                               const char **file, enum pc_option_action *action, struct pc_error *err)
{
    enum pc_status status = PC_OK;
    pc_auto_free const char **values = calloc(table->options + 1, sizeof *values);
    *action = PC_OPTIONS_RUN;
    *file = NULL;
    if (values == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no memory for the flags");
    for (int i = 1; i < argc && status == PC_OK; i++)
        if (!read_action(argv[i], action))
            status = read_flag(table, argc, argv, &i, values, err);
    pc_options_defaults(table, config);
    if (status != PC_OK || (*action != PC_OPTIONS_RUN && *action != PC_OPTIONS_CHECK))
        return status;
    *file = values[table->options] != NULL ? values[table->options] : getenv("POOLCAP_CONFIG");
    if (*file != NULL && (*file)[0] != '\0')
        status = pc_options_read(table, *file, config, err);
    for (size_t i = 0; status == PC_OK && i < table->options; i++)
        status = overlay(&table->option[i], values[i], config, err);
    return status;
}

/* ---- for people ---- */

static const char *kind(const struct pc_option *o, char *out, size_t size)
{
    static const char *const names[] = {[PC_OPTION_TEXT] = "text",
                                        [PC_OPTION_PATH] = "path",
                                        [PC_OPTION_BYTES] = "bytes (4Gi)",
                                        [PC_OPTION_BOOL] = "true or false"};
    return o->type == PC_OPTION_CHOICE ? list_choices(o, out, size) : names[o->type];
}

void pc_options_usage(const struct pc_option_table *table)
{
    char flag[NAME], variable[NAME], type[160];
    printf("Usage: %s [--config FILE] [--SETTING VALUE ...]\n\n%s\n\n"
           "  --config FILE   YAML with the settings below (variable POOLCAP_CONFIG)\n"
           "  --check         read the configuration, say whether it is good, and end\n"
           "  --docs          print the settings as a Markdown table\n"
           "  --version       print the version\n"
           "  --help          print this\n\n"
           "Settings: flag, variable, key in the file (the first that is given counts):\n\n",
           table->program, table->summary);
    for (size_t i = 0; i < table->options; i++) {
        const struct pc_option *o = &table->option[i];
        printf("  --%s, %s, %s\n      %s; %s (default: %s)\n", flag_name(o, flag), variable_name(o, variable), o->key,
               o->text, kind(o, type, sizeof type), o->initial[0] != '\0' ? o->initial : "none");
    }
    if (table->more != NULL)
        printf("\n%s", table->more);
}

void pc_options_docs(const struct pc_option_table *table)
{
    char flag[NAME], variable[NAME], type[160];
    printf(
        "## %s\n\n%s\n\n| key in the file | flag | variable | type | default | meaning |\n|---|---|---|---|---|---|\n",
        table->program, table->summary);
    for (size_t i = 0; i < table->options; i++) {
        const struct pc_option *o = &table->option[i];
        printf("| `%s` | `--%s` | `%s` | %s | %s%s%s | %s |\n", o->key, flag_name(o, flag), variable_name(o, variable),
               kind(o, type, sizeof type), o->initial[0] != '\0' ? "`" : "",
               o->initial[0] != '\0' ? o->initial : "none", o->initial[0] != '\0' ? "`" : "", o->text);
    }
}
