#include "alloc/broker/config.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "alloc/base/bytes.h"
#include "alloc/base/cleanup.h"

/*
 * The one table of settings. Flag, environment variable, file key, --help and the messages come from it. Static grants
 * are not in it: they stand in the file only.
 */
enum setting_type { SETTING_PATH, SETTING_BYTES, SETTING_LEVEL, SETTING_BOOL };

struct setting {
    const char *key;  /* in the file */
    const char *flag; /* "--" + flag */
    const char *env;  /* variable */
    enum setting_type type;
    size_t offset; /* in struct pc_config */
    const char *initial;
    const char *text;
};

#define AT(member) offsetof(struct pc_config, member)
static const struct setting settings[] = {
    {"runDirectory", "run-directory", "POOLCAP_RUN_DIRECTORY", SETTING_PATH, AT(run_directory), "/run/poolcap",
     "directory of the sockets, the books and the grants"},
    {"reserve", "reserve", "POOLCAP_RESERVE", SETTING_BYTES, AT(reserve), "0",
     "bytes of each GPU that are never given to a grant, e.g. 1Gi"},
    {"logLevel", "log-level", "POOLCAP_LOG_LEVEL", SETTING_LEVEL, AT(log_level), "info", "error, warn, info or debug"},
    {"cudaLibrary", "cuda-library", "POOLCAP_CUDA_LIBRARY", SETTING_PATH, AT(cuda_library), "",
     "file of libcuda.so.1, where it is not in a standard place"},
    {"nvmlLibrary", "nvml-library", "POOLCAP_NVML_LIBRARY", SETTING_PATH, AT(nvml_library), "",
     "file of libnvidia-ml.so.1, where it is not in a standard place"},
    {"simulated", "simulated", "POOLCAP_SIMULATED", SETTING_BOOL, AT(simulated), "false",
     "true: run on the simulated driver, and on nothing else"},
};

static enum pc_status set_path(char *out, const char *what, const char *value, struct pc_error *err)
{
    size_t length = strlen(value);
    if (length >= PC_PATH_MAX)
        return pc_error_set(err, PC_ERR_INVALID, 0, "%s has %zu bytes; at most %d are allowed", what, length,
                            PC_PATH_MAX - 1);
    if (length > 0 && value[0] != '/')
        return pc_error_set(err, PC_ERR_INVALID, 0, "%s \"%s\" is not an absolute path; begin it with /", what, value);
    memcpy(out, value, length + 1);
    return PC_OK;
}

static enum pc_status set_bool(bool *out, const char *what, const char *value, struct pc_error *err)
{
    if (strcmp(value, "true") != 0 && strcmp(value, "false") != 0)
        return pc_error_set(err, PC_ERR_INVALID, 0, "%s \"%.64s\" is neither true nor false", what, value);
    *out = value[0] == 't';
    return PC_OK;
}

/* Sets one setting from text; `what` names it as the user wrote it. */
static enum pc_status setting_set(const struct setting *setting, struct pc_config *config, const char *what,
                                  const char *value, struct pc_error *err)
{
    void *at = (char *)config + setting->offset;
    switch (setting->type) {
    case SETTING_PATH:
        return set_path(at, what, value, err);
    case SETTING_BYTES:
        return pc_bytes_parse(what, value, at, err);
    case SETTING_BOOL:
        return set_bool(at, what, value, err);
    case SETTING_LEVEL:
        if (pc_log_parse_level(value, at) == 0)
            return PC_OK;
        return pc_error_set(err, PC_ERR_INVALID, 0, "%s \"%.64s\" is not one of error, warn, info, debug", what, value);
    }
    return PC_OK;
}

static void set_defaults(struct pc_config *config)
{
    memset(config, 0, sizeof *config);
    for (size_t i = 0; i < PC_ARRAY_LEN(settings); i++)
        setting_set(&settings[i], config, settings[i].key, settings[i].initial, NULL);
}

bool pc_config_name_ok(const char *name)
{
    size_t length = strlen(name);
    if (length == 0 || length >= PC_NAME_MAX || name[0] == '.')
        return false;
    for (; *name != '\0'; name++)
        if (!isalnum((unsigned char)*name) && strchr("._-", *name) == NULL)
            return false;
    return true;
}

void pc_config_clear(struct pc_config *config)
{
    free(config->grant);
    memset(config, 0, sizeof *config);
}

/* ---- the file ---- */

struct reader {
    const char *name; /* of the file, for messages */
    yaml_document_t document;
    struct pc_config *config;
    struct pc_error *err;
};

__attribute__((format(printf, 3, 4))) static enum pc_status refuse(struct reader *r, const yaml_mark_t *mark,
                                                                   const char *fmt, ...)
{
    char text[PC_ERROR_TEXT - 160];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return pc_error_set(r->err, PC_ERR_INVALID, 0, "%.120s:%zu:%zu: %s", r->name, mark->line + 1, mark->column + 1,
                        text);
}

/* Puts the place before an error that a value's own parser made. */
static enum pc_status at_mark(struct reader *r, const yaml_mark_t *mark, enum pc_status status)
{
    if (status != PC_OK)
        pc_error_prefix(r->err, "%.120s:%zu:%zu", r->name, mark->line + 1, mark->column + 1);
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

static enum pc_status scalar(struct reader *r, const char *key, const yaml_node_t *node, const char **out)
{
    if (node->type != YAML_SCALAR_NODE)
        return refuse(r, &node->start_mark, "%s is %s, and must be a single value", key, kind_name(node));
    const char *text = (const char *)node->data.scalar.value;
    if (strlen(text) != node->data.scalar.length)
        return refuse(r, &node->start_mark, "%s has a zero byte in it", key);
    *out = text;
    return PC_OK;
}

/* Called for each pair of a mapping. key is a scalar. */
typedef enum pc_status (*pair_fn)(struct reader *r, const char *key, const yaml_node_t *key_node,
                                  const yaml_node_t *value, void *arg);

enum { KEYS_MAX = 32 };

static enum pc_status each_pair(struct reader *r, const char *what, const yaml_node_t *node, pair_fn fn, void *arg)
{
    const char *seen[KEYS_MAX];
    unsigned count = 0;
    if (node->type != YAML_MAPPING_NODE)
        return refuse(r, &node->start_mark, "%s is %s, and must be a mapping (key: value)", what, kind_name(node));
    for (yaml_node_pair_t *p = node->data.mapping.pairs.start; p < node->data.mapping.pairs.top; p++) {
        const yaml_node_t *key_node = yaml_document_get_node(&r->document, p->key);
        const yaml_node_t *value = yaml_document_get_node(&r->document, p->value);
        const char *key = NULL;
        enum pc_status status = scalar(r, "a key", key_node, &key);
        if (status != PC_OK)
            return status;
        for (unsigned i = 0; i < count; i++)
            if (strcmp(seen[i], key) == 0)
                return refuse(r, &key_node->start_mark, "%s has the key \"%.64s\" twice; keep one", what, key);
        if (count == KEYS_MAX)
            return refuse(r, &key_node->start_mark, "%s has too many keys", what);
        seen[count++] = key;
        status = fn(r, key, key_node, value, arg);
        if (status != PC_OK)
            return status;
    }
    return PC_OK;
}

static enum pc_status read_bytes(struct reader *r, const char *key, const yaml_node_t *node, uint64_t *out)
{
    const char *text = NULL;
    enum pc_status status = scalar(r, key, node, &text);
    if (status != PC_OK)
        return status;
    status = at_mark(r, &node->start_mark, pc_bytes_parse(key, text, out, r->err));
    if (status == PC_OK && *out == 0)
        return refuse(r, &node->start_mark, "%s is 0; leave the grant out, or give it at least one context and 32Mi",
                      key);
    return status;
}

static enum pc_status read_name(struct reader *r, const char *key, const yaml_node_t *node, char out[PC_NAME_MAX])
{
    const char *text = NULL;
    enum pc_status status = scalar(r, key, node, &text);
    if (status != PC_OK)
        return status;
    if (!pc_config_name_ok(text))
        return refuse(r, &node->start_mark,
                      "%s \"%.80s\" is no name: 1 to %d of A-Z a-z 0-9 . _ -, not beginning with a dot", key, text,
                      PC_NAME_MAX - 1);
    memcpy(out, text, strlen(text) + 1);
    return PC_OK;
}

static enum pc_status read_gpu(struct reader *r, const yaml_node_t *node, char out[PC_GPU_REF_MAX])
{
    const char *text = NULL;
    enum pc_status status = scalar(r, "gpu", node, &text);
    if (status != PC_OK)
        return status;
    if (*text == '\0' || strlen(text) >= PC_GPU_REF_MAX)
        return refuse(r, &node->start_mark, "gpu \"%.64s\" is neither an ordinal such as 0 nor a UUID (GPU-...)", text);
    memcpy(out, text, strlen(text) + 1);
    return PC_OK;
}

static enum pc_status share_pair(struct reader *r, const char *key, const yaml_node_t *key_node,
                                 const yaml_node_t *value, void *arg)
{
    struct pc_config_share *share = arg;
    if (strcmp(key, "gpu") == 0)
        return read_gpu(r, value, share->gpu);
    if (strcmp(key, "memory") == 0)
        return read_bytes(r, key, value, &share->granted);
    if (strcmp(key, "cap") == 0)
        return read_bytes(r, key, value, &share->cap);
    return refuse(r, &key_node->start_mark, "unknown key \"%.64s\" in gpus; known are gpu, memory, cap", key);
}

/* A share's sizes, once all its keys are read. */
static enum pc_status check_share(struct reader *r, const yaml_mark_t *mark, struct pc_config_share *share)
{
    if (share->granted == 0)
        return refuse(r, mark, "memory is missing; say how much the grant may hold, e.g. memory: 4Gi");
    if (share->granted % PC_POOL_GRANULE != 0) {
        uint64_t up;
        char buf[PC_BYTES_TEXT];
        if (!pc_round_up(share->granted, PC_POOL_GRANULE, &up))
            return refuse(r, mark, "memory is too large");
        return refuse(r, mark, "memory is not a multiple of 32Mi; write %s, and use cap for a finer limit",
                      pc_bytes_format(up, buf));
    }
    if (share->cap == 0)
        share->cap = share->granted;
    if (share->cap > share->granted) {
        char cap[PC_BYTES_TEXT], granted[PC_BYTES_TEXT];
        return refuse(r, mark, "cap %s is over memory %s; a cap only lowers", pc_bytes_format(share->cap, cap),
                      pc_bytes_format(share->granted, granted));
    }
    return PC_OK;
}

static enum pc_status read_shares(struct reader *r, const yaml_node_t *node, struct pc_config_grant *grant)
{
    if (node->type != YAML_SEQUENCE_NODE)
        return refuse(r, &node->start_mark, "gpus is %s, and must be a list", kind_name(node));
    for (yaml_node_item_t *i = node->data.sequence.items.start; i < node->data.sequence.items.top; i++) {
        const yaml_node_t *item = yaml_document_get_node(&r->document, *i);
        if (grant->shares == PC_PAGE_GPUS_MAX)
            return refuse(r, &item->start_mark, "a grant has at most %d GPUs", PC_PAGE_GPUS_MAX);
        struct pc_config_share *share = &grant->share[grant->shares];
        snprintf(share->gpu, sizeof share->gpu, "0");
        enum pc_status status = each_pair(r, "an entry of gpus", item, share_pair, share);
        if (status == PC_OK)
            status = check_share(r, &item->start_mark, share);
        if (status != PC_OK)
            return status;
        for (unsigned k = 0; k < grant->shares; k++)
            if (strcmp(grant->share[k].gpu, share->gpu) == 0)
                return refuse(r, &item->start_mark, "GPU %s stands twice in one grant", share->gpu);
        grant->shares++;
    }
    return PC_OK;
}

/* memory, cap and gpu of the short form (one GPU) go into `single`. */
struct grant_parts {
    struct pc_config_grant *grant;
    struct pc_config_share single;
    bool short_form;
};

static enum pc_status grant_pair(struct reader *r, const char *key, const yaml_node_t *key_node,
                                 const yaml_node_t *value, void *arg)
{
    struct grant_parts *parts = arg;
    struct pc_config_grant *grant = parts->grant;
    if (strcmp(key, "name") == 0)
        return read_name(r, key, value, grant->name);
    if (strcmp(key, "tenant") == 0)
        return read_name(r, key, value, grant->tenant);
    if (strcmp(key, "podUid") == 0)
        return read_name(r, key, value, grant->pod_uid);
    if (strcmp(key, "gpus") == 0)
        return read_shares(r, value, grant);
    if (strcmp(key, "gpu") != 0 && strcmp(key, "memory") != 0 && strcmp(key, "cap") != 0)
        return refuse(r, &key_node->start_mark,
                      "unknown key \"%.64s\" in a grant; known are name, tenant, podUid, gpu, memory, cap, gpus", key);
    parts->short_form = true;
    return share_pair(r, key, key_node, value, &parts->single);
}

static enum pc_status read_grant(struct reader *r, const yaml_node_t *node)
{
    struct pc_config *config = r->config;
    struct pc_config_grant *grant = &config->grant[config->grants];
    struct grant_parts parts = {.grant = grant, .single = {.gpu = "0"}};
    memset(grant, 0, sizeof *grant);
    grant->line = (unsigned)node->start_mark.line + 1;
    enum pc_status status = each_pair(r, "a grant", node, grant_pair, &parts);
    if (status != PC_OK)
        return status;
    if (grant->name[0] == '\0')
        return refuse(r, &node->start_mark, "a grant without a name; add name: ...");
    for (unsigned i = 0; i < config->grants; i++)
        if (strcmp(config->grant[i].name, grant->name) == 0)
            return refuse(r, &node->start_mark, "two grants of the name \"%s\" (the first in line %u); rename one",
                          grant->name, config->grant[i].line);
    if (parts.short_form && grant->shares > 0)
        return refuse(r, &node->start_mark, "grant \"%s\" has both gpus and gpu, memory or cap; use one form",
                      grant->name);
    if (grant->shares == 0) {
        status = check_share(r, &node->start_mark, &parts.single);
        if (status != PC_OK)
            return status;
        grant->share[grant->shares++] = parts.single;
    }
    if (grant->tenant[0] == '\0')
        memcpy(grant->tenant, grant->name, sizeof grant->tenant);
    config->grants++;
    return PC_OK;
}

static enum pc_status read_grants(struct reader *r, const yaml_node_t *node)
{
    if (node->type == YAML_SCALAR_NODE && node->data.scalar.length == 0)
        return PC_OK; /* "grants:" with nothing behind it */
    if (node->type != YAML_SEQUENCE_NODE)
        return refuse(r, &node->start_mark, "grants is %s, and must be a list", kind_name(node));
    size_t count = (size_t)(node->data.sequence.items.top - node->data.sequence.items.start);
    r->config->grant = calloc(count + 1, sizeof *r->config->grant);
    if (r->config->grant == NULL)
        return pc_error_set(r->err, PC_ERR_HOST_MEMORY, 0, "no memory for %zu grants", count);
    for (yaml_node_item_t *i = node->data.sequence.items.start; i < node->data.sequence.items.top; i++) {
        enum pc_status status = read_grant(r, yaml_document_get_node(&r->document, *i));
        if (status != PC_OK)
            return status;
    }
    return PC_OK;
}

static enum pc_status top_pair(struct reader *r, const char *key, const yaml_node_t *key_node, const yaml_node_t *value,
                               void *arg)
{
    (void)arg;
    if (strcmp(key, "grants") == 0)
        return read_grants(r, value);
    for (size_t i = 0; i < PC_ARRAY_LEN(settings); i++) {
        if (strcmp(key, settings[i].key) != 0)
            continue;
        const char *text = NULL;
        enum pc_status status = scalar(r, key, value, &text);
        if (status != PC_OK)
            return status;
        return at_mark(r, &value->start_mark, setting_set(&settings[i], r->config, key, text, r->err));
    }
    return refuse(r, &key_node->start_mark, "unknown key \"%.64s\"; --help lists the known ones", key);
}

static enum pc_status syntax_error(struct reader *r, const yaml_parser_t *parser)
{
    return refuse(r, &parser->problem_mark, "%s%s%s", parser->problem != NULL ? parser->problem : "not valid YAML",
                  parser->context != NULL ? ", " : "", parser->context != NULL ? parser->context : "");
}

static enum pc_status read_document(struct reader *r, yaml_parser_t *parser)
{
    if (!yaml_parser_load(parser, &r->document))
        return syntax_error(r, parser);
    const yaml_node_t *root = yaml_document_get_root_node(&r->document);
    enum pc_status status = root == NULL ? PC_OK : each_pair(r, "the file", root, top_pair, NULL);
    yaml_document_delete(&r->document);
    return status;
}

enum pc_status pc_config_parse(const char *name, const char *text, size_t length, struct pc_config *out,
                               struct pc_error *err)
{
    yaml_parser_t parser;
    struct pc_error local;
    struct reader r = {.name = name, .config = out, .err = err != NULL ? err : &local};
    set_defaults(out);
    snprintf(out->file, sizeof out->file, "%s", name);
    if (!yaml_parser_initialize(&parser)) {
        pc_config_clear(out);
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no memory for the YAML parser");
    }
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, length);
    enum pc_status status = read_document(&r, &parser);
    yaml_parser_delete(&parser);
    if (status != PC_OK)
        pc_config_clear(out);
    return status;
}

enum { FILE_MAX = 4 * 1024 * 1024 };

enum pc_status pc_config_read(const char *file, struct pc_config *out, struct pc_error *err)
{
    if (file == NULL || *file == '\0') {
        set_defaults(out);
        return PC_OK;
    }
    memset(out, 0, sizeof *out);
    pc_auto_file FILE *f = fopen(file, "re");
    if (f == NULL) {
        int errnum = errno;
        return pc_error_set(err, PC_ERR_INVALID, errnum, "cannot read the configuration %.200s: %s", file,
                            strerror(errnum));
    }
    pc_auto_free char *text = malloc(FILE_MAX);
    if (text == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no memory to read %.200s", file);
    size_t length = fread(text, 1, FILE_MAX, f);
    if (ferror(f) != 0)
        return pc_error_errno(err, errno, "cannot read the configuration %.200s", file);
    if (length == FILE_MAX)
        return pc_error_set(err, PC_ERR_INVALID, 0, "the configuration %.200s is over %d bytes", file, FILE_MAX);
    return pc_config_parse(file, text, length, out, err);
}

/* ---- environment and flags ---- */

static const char *flag_value(const char *argument, const char *flag)
{
    size_t length = strlen(flag);
    if (strncmp(argument, "--", 2) != 0 || strncmp(argument + 2, flag, length) != 0)
        return NULL;
    argument += 2 + length;
    return *argument == '=' ? argument + 1 : *argument == '\0' ? argument : NULL;
}

/* Finds the value of --flag at argv[*i]; moves *i over a value that stands in the next argument. */
static enum pc_status take_value(int argc, char **argv, int *i, const char *value, bool is_bool, const char **out,
                                 struct pc_error *err)
{
    if (*value != '\0' || argv[*i][strlen(argv[*i]) - 1] == '=') {
        *out = value;
        return PC_OK;
    }
    if (is_bool) {
        *out = "true";
        return PC_OK;
    }
    if (*i + 1 >= argc)
        return pc_error_set(err, PC_ERR_INVALID, 0, "%s needs a value", argv[*i]);
    *out = argv[++*i];
    return PC_OK;
}

struct flag_values {
    const char *config_file;
    const char *value[PC_ARRAY_LEN(settings)];
};

static enum pc_status read_setting_flag(int argc, char **argv, int *i, struct flag_values *flags, bool *known,
                                        struct pc_error *err)
{
    for (size_t k = 0; k < PC_ARRAY_LEN(settings); k++) {
        const char *value = flag_value(argv[*i], settings[k].flag);
        if (value == NULL)
            continue;
        *known = true;
        return take_value(argc, argv, i, value, settings[k].type == SETTING_BOOL, &flags->value[k], err);
    }
    return PC_OK;
}

static enum pc_status read_flags(int argc, char **argv, struct flag_values *flags, enum pc_config_action *action,
                                 struct pc_error *err)
{
    for (int i = 1; i < argc; i++) {
        const char *value = flag_value(argv[i], "config");
        bool known = value != NULL;
        enum pc_status status = PC_OK;
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            *action = PC_CONFIG_HELP, known = true;
        else if (strcmp(argv[i], "--version") == 0)
            *action = PC_CONFIG_VERSION, known = true;
        else if (strcmp(argv[i], "--check") == 0)
            *action = PC_CONFIG_CHECK, known = true;
        else if (value != NULL)
            status = take_value(argc, argv, &i, value, false, &flags->config_file, err);
        else
            status = read_setting_flag(argc, argv, &i, flags, &known, err);
        if (status != PC_OK)
            return status;
        if (!known)
            return pc_error_set(err, PC_ERR_INVALID, 0, "unknown argument \"%.80s\"; --help lists the known ones",
                                argv[i]);
    }
    return PC_OK;
}

/* One setting from its variable, then its flag. */
static enum pc_status overlay(const struct setting *setting, const char *flag, struct pc_config *config,
                              struct pc_error *err)
{
    char what[64];
    const char *env = getenv(setting->env);
    if (flag != NULL) {
        snprintf(what, sizeof what, "--%s", setting->flag);
        return setting_set(setting, config, what, flag, err);
    }
    return env != NULL ? setting_set(setting, config, setting->env, env, err) : PC_OK;
}

enum pc_status pc_config_load(int argc, char **argv, struct pc_config *out, enum pc_config_action *action,
                              struct pc_error *err)
{
    struct flag_values flags = {.config_file = getenv("POOLCAP_CONFIG")};
    *action = PC_CONFIG_RUN;
    memset(out, 0, sizeof *out);
    enum pc_status status = read_flags(argc, argv, &flags, action, err);
    if (status != PC_OK || *action == PC_CONFIG_HELP || *action == PC_CONFIG_VERSION)
        return status;
    status = pc_config_read(flags.config_file, out, err);
    for (size_t i = 0; status == PC_OK && i < PC_ARRAY_LEN(settings); i++)
        status = overlay(&settings[i], flags.value[i], out, err);
    if (status == PC_OK && out->run_directory[0] == '\0')
        status = pc_error_set(err, PC_ERR_INVALID, 0, "the run directory is empty; give --run-directory");
    if (status != PC_OK)
        pc_config_clear(out);
    return status;
}

void pc_config_usage(void)
{
    printf("Usage: poolcapd [--config FILE] [--SETTING VALUE ...]\n\n"
           "Holds the node's GPU memory in capped pools, one tenant each, and hands it out on unix sockets.\n\n"
           "  --config FILE   YAML with the settings below and the static grants (variable POOLCAP_CONFIG)\n"
           "  --check         read the configuration, say whether it is good, and end\n"
           "  --version       print the version\n"
           "  --help          print this\n\n"
           "Settings: flag, variable, key in the file (the first that is given counts):\n\n");
    for (size_t i = 0; i < PC_ARRAY_LEN(settings); i++)
        printf("  --%s, %s, %s\n      %s (default: %s)\n", settings[i].flag, settings[i].env, settings[i].key,
               settings[i].text, settings[i].initial[0] != '\0' ? settings[i].initial : "none");
    printf("\nStatic grants stand in the file:\n\n"
           "  grants:\n"
           "  - name: alice        # directory RUN/grants/alice, mounted at /run/poolcap in the tenant\n"
           "    memory: 4Gi        # a multiple of 32Mi\n"
           "    cap: 3500Mi        # optional, at most memory\n"
           "    gpu: 0             # ordinal or UUID; for several GPUs: gpus: [{gpu: 0, memory: 4Gi}, ...]\n"
           "    tenant: team-a     # optional: grants of one tenant share its pool\n");
}
