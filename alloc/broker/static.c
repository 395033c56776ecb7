#include "alloc/broker/static.h"

#include <stdio.h>
#include <string.h>

#include "alloc/base/log.h"
#include "alloc/broker/request.h"

static enum pc_status apply_share(struct pc_grant *grant, const struct pc_config_share *want, bool *changed,
                                  struct pc_error *err)
{
    struct pc_gpu *gpu;
    enum pc_status status = pc_gpu_find(grant->broker, want->gpu, &gpu, err);
    if (status != PC_OK)
        return status;
    struct pc_share *share = pc_grant_share(grant, gpu);
    if (share == NULL)
        return pc_error_set(
            err, PC_ERR_INVALID, 0,
            "grant %s has nothing on GPU %s, and a grant's GPUs cannot change; drop it and make it again", grant->name,
            gpu->info.uuid);
    if (want->granted == share->granted && want->cap == share->cap)
        return PC_OK;
    *changed = true;
    return pc_grant_resize(grant, share, want->granted, want->cap, err);
}

static enum pc_status apply_known(struct pc_grant *grant, const struct pc_config_grant *want, bool *changed,
                                  struct pc_error *err)
{
    enum pc_status status = PC_OK;
    if (strcmp(grant->tenant, want->tenant) != 0)
        return pc_error_set(err, PC_ERR_INVALID, 0, "grant %s is tenant %s's; drop it and make it again to change that",
                            grant->name, grant->tenant);
    if (want->shares != grant->shares)
        return pc_error_set(err, PC_ERR_INVALID, 0,
                            "grant %s has %u GPUs, and a grant's GPUs cannot change; drop it and make it again",
                            grant->name, grant->shares);
    for (unsigned i = 0; i < want->shares && status == PC_OK; i++)
        status = apply_share(grant, &want->share[i], changed, err);
    if (status == PC_OK && strcmp(grant->pod_uid, want->pod_uid) != 0) {
        *changed = true;
        pc_grant_bind(grant, want->pod_uid);
    }
    return status;
}

static enum pc_status make(struct pc_broker *b, const struct pc_config_grant *want, struct pc_error *err)
{
    struct pc_grant *grant;
    enum pc_status status = pc_grant_make(b, want, &grant, err);
    if (status != PC_OK)
        return status;
    status = pc_grant_listen(grant, pc_request_accept, err);
    if (status != PC_OK)
        pc_grant_free(grant);
    return status;
}

static const struct pc_config_grant *find_wanted(const struct pc_config *config, const char *name)
{
    for (unsigned i = 0; i < config->grants; i++)
        if (strcmp(config->grant[i].name, name) == 0)
            return &config->grant[i];
    return NULL;
}

static unsigned count_missing(struct pc_broker *b, const struct pc_config *config)
{
    const struct pc_grant *grant;
    unsigned missing = 0;
    pc_list_each(grant, &b->grants, link)
        missing += grant->record->is_static && !grant->dropping && find_wanted(config, grant->name) == NULL;
    return missing;
}

enum pc_status pc_static_apply(struct pc_broker *b, const struct pc_config *config, char text[PC_STATIC_TEXT],
                               struct pc_error *err)
{
    unsigned made = 0, changed = 0;
    for (unsigned i = 0; i < config->grants; i++) {
        const struct pc_config_grant *want = &config->grant[i];
        struct pc_grant *grant = pc_grant_find(b, want->name);
        bool this_changed = false;
        bool known = grant != NULL && !grant->dropping;
        enum pc_status status = known ? apply_known(grant, want, &this_changed, err) : make(b, want, err);
        if (status != PC_OK) {
            pc_error_prefix(err, "%.120s:%u", config->file, want->line);
            return status;
        }
        made += !known;
        changed += this_changed;
    }
    unsigned missing = count_missing(b, config);
    int n = snprintf(text, PC_STATIC_TEXT, "%u grants made, %u changed", made, changed);
    if (missing > 0 && n > 0)
        snprintf(text + n, PC_STATIC_TEXT - (size_t)n,
                 "; %u are in the file no more and stay: drop them with poolcapctl drop", missing);
    return PC_OK;
}

void pc_static_drop_missing(struct pc_broker *b, const struct pc_config *config)
{
    struct pc_grant *grant;
    pc_list_each(grant, &b->grants, link)
        if (grant->record->is_static && find_wanted(config, grant->name) == NULL)
            pc_grant_drop(grant);
}

enum pc_status pc_static_listen(struct pc_broker *b, struct pc_error *err)
{
    struct pc_grant *grant;
    pc_list_each(grant, &b->grants, link) {
        if (grant->fd >= 0 || grant->dropping)
            continue;
        enum pc_status status = pc_grant_listen(grant, pc_request_accept, err);
        if (status != PC_OK)
            return status;
    }
    return PC_OK;
}
