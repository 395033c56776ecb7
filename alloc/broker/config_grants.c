#include "alloc/broker/config_grants.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/bytes.h"

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

static enum pc_status read_bytes(struct pc_yaml *yaml, const char *key, int node, uint64_t *out)
{
    const char *text = NULL;
    enum pc_status status = pc_yaml_text(yaml, node, key, &text);
    if (status == PC_OK)
        status = pc_yaml_at(yaml, node, pc_bytes_parse(key, text, out, yaml->err));
    if (status == PC_OK && *out == 0)
        return pc_yaml_refuse(yaml, node, "%s is 0; leave the grant out, or give it at least one context and 32Mi",
                              key);
    return status;
}

static enum pc_status read_name(struct pc_yaml *yaml, const char *key, int node, char out[PC_NAME_MAX])
{
    const char *text = NULL;
    enum pc_status status = pc_yaml_text(yaml, node, key, &text);
    if (status != PC_OK)
        return status;
    if (!pc_config_name_ok(text))
        return pc_yaml_refuse(yaml, node,
                              "%s \"%.80s\" is no name: 1 to %d of A-Z a-z 0-9 . _ -, not beginning with a dot", key,
                              text, PC_NAME_MAX - 1);
    memcpy(out, text, strlen(text) + 1);
    return PC_OK;
}

static enum pc_status read_gpu(struct pc_yaml *yaml, int node, char out[PC_GPU_REF_MAX])
{
    const char *text = NULL;
    enum pc_status status = pc_yaml_text(yaml, node, "gpu", &text);
    if (status != PC_OK)
        return status;
    if (*text == '\0' || strlen(text) >= PC_GPU_REF_MAX)
        return pc_yaml_refuse(yaml, node, "gpu \"%.64s\" is neither an ordinal such as 0 nor a UUID (GPU-...)", text);
    memcpy(out, text, strlen(text) + 1);
    return PC_OK;
}

/* ---- shares ---- */

static enum pc_status share_pair(struct pc_yaml *yaml, const char *key, int key_node, int value, void *arg)
{
    struct pc_config_share *share = arg;
    if (strcmp(key, "gpu") == 0)
        return read_gpu(yaml, value, share->gpu);
    if (strcmp(key, "memory") == 0)
        return read_bytes(yaml, key, value, &share->granted);
    if (strcmp(key, "cap") == 0)
        return read_bytes(yaml, key, value, &share->cap);
    return pc_yaml_refuse(yaml, key_node, "unknown key \"%.64s\" in gpus; known are gpu, memory, cap", key);
}

static enum pc_status refuse_granule(struct pc_yaml *yaml, int node, uint64_t granted)
{
    uint64_t up;
    char buf[PC_BYTES_TEXT];
    if (!pc_round_up(granted, PC_POOL_GRANULE, &up))
        return pc_yaml_refuse(yaml, node, "memory is too large");
    return pc_yaml_refuse(yaml, node, "memory is not a multiple of 32Mi; write %s, and use cap for a finer limit",
                          pc_bytes_format(up, buf));
}

/* A share's sizes, once all its keys are read. */
static enum pc_status check_share(struct pc_yaml *yaml, int node, struct pc_config_share *share)
{
    char cap[PC_BYTES_TEXT], granted[PC_BYTES_TEXT];
    if (share->granted == 0)
        return pc_yaml_refuse(yaml, node, "memory is missing; say how much the grant may hold, e.g. memory: 4Gi");
    if (share->granted % PC_POOL_GRANULE != 0)
        return refuse_granule(yaml, node, share->granted);
    if (share->cap == 0)
        share->cap = share->granted;
    if (share->cap > share->granted)
        return pc_yaml_refuse(yaml, node, "cap %s is over memory %s; a cap only lowers",
                              pc_bytes_format(share->cap, cap), pc_bytes_format(share->granted, granted));
    return PC_OK;
}

static enum pc_status share_item(struct pc_yaml *yaml, int item, void *arg)
{
    struct pc_config_grant *grant = arg;
    if (grant->shares == PC_PAGE_GPUS_MAX)
        return pc_yaml_refuse(yaml, item, "a grant has at most %d GPUs", PC_PAGE_GPUS_MAX);
    struct pc_config_share *share = &grant->share[grant->shares];
    snprintf(share->gpu, sizeof share->gpu, "0");
    enum pc_status status = pc_yaml_each(yaml, item, "an entry of gpus", share_pair, share);
    if (status == PC_OK)
        status = check_share(yaml, item, share);
    if (status != PC_OK)
        return status;
    for (unsigned k = 0; k < grant->shares; k++)
        if (strcmp(grant->share[k].gpu, share->gpu) == 0)
            return pc_yaml_refuse(yaml, item, "GPU %s stands twice in one grant", share->gpu);
    grant->shares++;
    return PC_OK;
}

/* ---- grants ---- */

/* memory, cap and gpu of the short form (one GPU) go into `single`. */
struct grant_parts {
    struct pc_config_grant *grant;
    struct pc_config_share single;
    bool short_form;
};

static enum pc_status grant_pair(struct pc_yaml *yaml, const char *key, int key_node, int value, void *arg)
{
    struct grant_parts *parts = arg;
    struct pc_config_grant *grant = parts->grant;
    if (strcmp(key, "name") == 0)
        return read_name(yaml, key, value, grant->name);
    if (strcmp(key, "tenant") == 0)
        return read_name(yaml, key, value, grant->tenant);
    if (strcmp(key, "podUid") == 0)
        return read_name(yaml, key, value, grant->pod_uid);
    if (strcmp(key, "gpus") == 0)
        return pc_yaml_items(yaml, value, key, share_item, grant);
    if (strcmp(key, "gpu") != 0 && strcmp(key, "memory") != 0 && strcmp(key, "cap") != 0)
        return pc_yaml_refuse(
            yaml, key_node, "unknown key \"%.64s\" in a grant; known are name, tenant, podUid, gpu, memory, cap, gpus",
            key);
    parts->short_form = true;
    return share_pair(yaml, key, key_node, value, &parts->single);
}

static enum pc_status check_name(struct pc_yaml *yaml, int node, const struct pc_config *config,
                                 const struct pc_config_grant *grant)
{
    if (grant->name[0] == '\0')
        return pc_yaml_refuse(yaml, node, "a grant without a name; add name: ...");
    for (unsigned i = 0; i < config->grants; i++)
        if (strcmp(config->grant[i].name, grant->name) == 0)
            return pc_yaml_refuse(yaml, node, "two grants of the name \"%s\" (the first in line %u); rename one",
                                  grant->name, config->grant[i].line);
    return PC_OK;
}

static enum pc_status grant_item(struct pc_yaml *yaml, int item, void *arg)
{
    struct pc_config *config = arg;
    struct pc_config_grant *grant = &config->grant[config->grants];
    struct grant_parts parts = {.grant = grant, .single = {.gpu = "0"}};
    grant->line = pc_yaml_line(yaml, item);
    enum pc_status status = pc_yaml_each(yaml, item, "a grant", grant_pair, &parts);
    if (status == PC_OK)
        status = check_name(yaml, item, config, grant);
    if (status != PC_OK)
        return status;
    if (parts.short_form && grant->shares > 0)
        return pc_yaml_refuse(yaml, item, "grant \"%s\" has both gpus and gpu, memory or cap; use one form",
                              grant->name);
    if (grant->shares == 0) {
        status = check_share(yaml, item, &parts.single);
        if (status != PC_OK)
            return status;
        grant->share[grant->shares++] = parts.single;
    }
    if (grant->tenant[0] == '\0')
        memcpy(grant->tenant, grant->name, sizeof grant->tenant);
    config->grants++;
    return PC_OK;
}

static enum pc_status count_item(struct pc_yaml *yaml, int item, void *arg)
{
    size_t *count = arg;
    (void)yaml;
    (void)item;
    ++*count;
    return PC_OK;
}

enum pc_status pc_config_grants_read(struct pc_yaml *yaml, const char *key, int value, void *arg, bool *known)
{
    struct pc_config *config = arg;
    size_t count = 0;
    *known = strcmp(key, "grants") == 0;
    if (!*known || pc_yaml_empty(yaml, value))
        return PC_OK;
    enum pc_status status = pc_yaml_items(yaml, value, key, count_item, &count);
    if (status != PC_OK)
        return status;
    config->grant = calloc(count + 1, sizeof *config->grant);
    if (config->grant == NULL)
        return pc_error_set(yaml->err, PC_ERR_HOST_MEMORY, 0, "no memory for %zu grants", count);
    return pc_yaml_items(yaml, value, key, grant_item, config);
}
