#include "alloc/broker/grant.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "alloc/base/bytes.h"
#include "alloc/base/log.h"
#include "alloc/broker/evict.h"

/* ---- checks ---- */

/* Sizes that make no sense whatever else is on the card. A cap of 0 was made the granted bytes before. */
static enum pc_status check_sizes(const struct pc_gpu *gpu, uint64_t granted, uint64_t cap, struct pc_error *err)
{
    char a[PC_BYTES_TEXT], c[PC_BYTES_TEXT];
    uint64_t least = gpu->probe.context_bytes + PC_POOL_GRANULE, least_granted = 0;
    pc_round_up(least, PC_POOL_GRANULE, &least_granted);
    if (granted == 0 || granted % PC_POOL_GRANULE != 0)
        return pc_error_set(err, PC_ERR_INVALID, 0, "memory %s is not a multiple of 32Mi above 0",
                            pc_bytes_format(granted, a));
    if (cap == 0)
        return pc_error_set(err, PC_ERR_INVALID, 0, "a cap of 0 lets no process start; drop the grant instead");
    if (cap > granted)
        return pc_error_set(err, PC_ERR_INVALID, 0, "cap %s is over the granted %s; a cap only lowers",
                            pc_bytes_format(cap, a), pc_bytes_format(granted, c));
    if (cap < least)
        return pc_error_set(err, PC_ERR_INVALID, 0,
                            "%s is less than one CUDA context (%llu MiB on GPU %s) and 32Mi; the smallest that "
                            "works is %s",
                            pc_bytes_format(cap, a), gpu->probe.context_bytes / PC_MIB, gpu->info.uuid,
                            pc_bytes_format(least_granted, c));
    return PC_OK;
}

static enum pc_status check_name(struct pc_broker *b, const struct pc_config_grant *want, struct pc_error *err)
{
    if (!pc_config_name_ok(want->name) || !pc_config_name_ok(want->tenant))
        return pc_error_set(
            err, PC_ERR_INVALID, 0,
            "\"%.64s\" of tenant \"%.64s\": a name is 1 to %d of A-Z a-z 0-9 . _ -, not beginning with a dot",
            want->name, want->tenant, PC_NAME_MAX - 1);
    struct pc_grant *old = pc_grant_find(b, want->name);
    const char *differs = old != NULL && !old->dropping ? pc_grant_differs(old, want) : NULL;
    if (old != NULL && old->dropping)
        return pc_error_set(err, PC_ERR_EXISTS, 0,
                            "there is a grant %s already, which is being dropped and ends with its last process",
                            want->name);
    if (old != NULL)
        return pc_error_set(err, PC_ERR_EXISTS, 0,
                            "there is a grant %s already%s%s; drop it first, or use another name", want->name,
                            differs != NULL ? ", with " : "", differs != NULL ? differs : "");
    if (want->shares == 0 || want->shares > PC_PAGE_GPUS_MAX)
        return pc_error_set(err, PC_ERR_INVALID, 0, "grant %s names %u GPUs; it has to name 1 to %d", want->name,
                            want->shares, PC_PAGE_GPUS_MAX);
    return PC_OK;
}

const char *pc_grant_differs(struct pc_grant *grant, const struct pc_config_grant *want)
{
    if (strcmp(grant->tenant, want->tenant) != 0)
        return "another tenant";
    if (strcmp(grant->pod_uid, want->pod_uid) != 0)
        return "another pod";
    if (want->shares != grant->shares)
        return "another number of GPUs";
    for (unsigned i = 0; i < grant->shares; i++) {
        const struct pc_share *share = &grant->share[i];
        struct pc_gpu *gpu = NULL;
        uint64_t cap = want->share[i].cap != 0 ? want->share[i].cap : want->share[i].granted;
        if (pc_gpu_find(grant->broker, want->share[i].gpu, &gpu, NULL) != PC_OK || gpu != share->tenant->gpu)
            return "another GPU";
        if (share->granted != want->share[i].granted)
            return "another amount of memory";
        if (share->cap != cap)
            return "another cap";
    }
    return NULL;
}

/* ---- making ---- */

static enum pc_status set_paths(struct pc_grant *grant, struct pc_error *err)
{
    struct sockaddr_un address;
    snprintf(grant->directory, sizeof grant->directory, "%s/grants/%s", grant->broker->config.run_directory,
             grant->name);
    snprintf(grant->socket, sizeof grant->socket, "%s/poolcap.sock", grant->directory);
    return pc_wire_address(grant->socket, &address, err);
}

/* A promise of an earlier poolcapd is kept even where it would not be made today. */
static enum pc_status add_share(struct pc_grant *grant, const struct pc_config_share *want, bool promised,
                                struct pc_error *err)
{
    struct pc_gpu *gpu;
    struct pc_share *share = &grant->share[grant->shares];
    char a[PC_BYTES_TEXT], c[PC_BYTES_TEXT];
    enum pc_status status = pc_gpu_find(grant->broker, want->gpu, &gpu, err);
    if (status == PC_OK)
        status = pc_gpu_check(gpu, err);
    if (status != PC_OK)
        return status;
    if (pc_grant_share(grant, gpu) != NULL)
        return pc_error_set(err, PC_ERR_INVALID, 0, "GPU %s is named twice", gpu->info.uuid);
    if (want->shared > want->granted || want->shared % PC_POOL_GRANULE != 0)
        return pc_error_set(err, PC_ERR_INVALID, 0, "shared %s is not a multiple of 32Mi within the granted %s",
                            pc_bytes_format(want->shared, a), pc_bytes_format(want->granted, c));
    *share = (struct pc_share){.page = grant->page, .index = grant->shares, .granted = want->granted};
    share->cap = want->cap != 0 ? want->cap : want->granted;
    share->shared = want->shared;
    if (!promised)
        status = check_sizes(gpu, share->granted, share->cap, err);
    if (status == PC_OK)
        status = pc_tenant_join(gpu, grant->tenant, grant->name, share, err);
    if (status == PC_OK)
        grant->shares++;
    return status;
}

static struct pc_grant *new_grant(struct pc_broker *b, const struct pc_config_grant *want)
{
    struct pc_grant *grant = calloc(1, sizeof *grant);
    if (grant == NULL)
        return NULL;
    grant->broker = b;
    grant->fd = -1;
    memcpy(grant->name, want->name, sizeof grant->name);
    memcpy(grant->tenant, want->tenant, sizeof grant->tenant);
    memcpy(grant->pod_uid, want->pod_uid, sizeof grant->pod_uid);
    pc_list_init(&grant->sessions);
    pc_list_append(&b->grants, &grant->link);
    return grant;
}

static enum pc_status build(struct pc_broker *b, const struct pc_config_grant *want, bool promised,
                            struct pc_grant **out, struct pc_error *err)
{
    enum pc_status status = check_name(b, want, err);
    if (status != PC_OK)
        return status;
    struct pc_grant *grant = new_grant(b, want);
    if (grant == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no memory for a grant");
    status = set_paths(grant, err);
    if (status == PC_OK)
        status = pc_page_create(want->shares, b->epoch, &grant->page, err);
    for (unsigned i = 0; i < want->shares && status == PC_OK; i++)
        status = add_share(grant, &want->share[i], promised, err);
    if (status != PC_OK) {
        pc_grant_free(grant);
        pc_error_prefix(err, "grant %s", want->name);
        return status;
    }
    for (unsigned i = 0; i < grant->shares; i++)
        pc_tenant_publish(grant->share[i].tenant);
    *out = grant;
    return PC_OK;
}

static void write_record(struct pc_grant *grant, bool is_static)
{
    struct pc_books_grant *record = grant->record;
    record->is_static = is_static;
    record->shares = grant->shares;
    record->order = pc_broker_new_id(grant->broker);
    for (unsigned i = 0; i < grant->shares; i++) {
        grant->share[i].record = record;
        pc_share_record(&grant->share[i]);
        memcpy(record->gpu[i], grant->share[i].tenant->gpu->info.uuid, sizeof record->gpu[i]);
    }
    memcpy(record->name, grant->name, sizeof record->name);
    memcpy(record->tenant, grant->tenant, sizeof record->tenant);
    memcpy(record->pod_uid, grant->pod_uid, sizeof record->pod_uid);
    pc_books_commit(record, PC_BOOKS_USED);
}

enum pc_status pc_grant_make(struct pc_broker *b, const struct pc_config_grant *want, struct pc_grant **out,
                             struct pc_error *err)
{
    struct pc_grant *grant;
    void *place;
    enum pc_status status = pc_books_new(b->books, PC_BOOKS_GRANTS, &place, err);
    if (status == PC_OK)
        status = build(b, want, false, &grant, err);
    if (status != PC_OK)
        return status;
    grant->record = place;
    write_record(grant, want->line != 0);
    *out = grant;
    return PC_OK;
}

enum pc_status pc_grant_adopt(struct pc_broker *b, struct pc_books_grant *record, struct pc_grant **out,
                              struct pc_error *err)
{
    struct pc_config_grant want = {.shares = record->shares <= PC_PAGE_GPUS_MAX ? (unsigned)record->shares : 0};
    memcpy(want.name, record->name, sizeof want.name);
    memcpy(want.tenant, record->tenant, sizeof want.tenant);
    memcpy(want.pod_uid, record->pod_uid, sizeof want.pod_uid);
    for (unsigned i = 0; i < want.shares; i++) {
        want.share[i].granted = pc_books_get(&record->granted[i]);
        want.share[i].cap = pc_books_get(&record->cap[i]);
        want.share[i].shared = pc_books_get(&record->shared[i]);
        memcpy(want.share[i].gpu, record->gpu[i], sizeof record->gpu[i]);
    }
    enum pc_status status = build(b, &want, true, out, err);
    if (status != PC_OK)
        return status;
    (*out)->record = record;
    for (unsigned i = 0; i < (*out)->shares; i++)
        (*out)->share[i].record = record;
    return PC_OK;
}

enum pc_status pc_grant_listen(struct pc_grant *grant, pc_watch_fn accept, struct pc_error *err)
{
    if (mkdir(grant->directory, 0711) < 0 && errno != EEXIST)
        return pc_error_errno(err, errno, "cannot make %.300s", grant->directory);
    enum pc_status status = pc_wire_listen(grant->socket, 0666, &grant->fd, err);
    if (status == PC_OK)
        status = pc_loop_add(grant->broker->loop, grant->fd, EPOLLIN, accept, grant, &grant->watch, err);
    return status;
}

static void close_socket(struct pc_grant *grant)
{
    pc_watch_remove(grant->watch);
    grant->watch = NULL;
    if (grant->fd < 0)
        return;
    close(grant->fd);
    grant->fd = -1;
    unlink(grant->socket);
}

/*
 * Where grants that share its units stay, ending its record and lowering theirs cannot be one store: what its tenants
 * are promised then is stored first, and pc_inherit finishes what a killed poolcapd had begun.
 */
static void record_leaving(struct pc_grant *grant)
{
    bool others, any = false;
    for (unsigned i = 0; i < grant->shares && grant->record != NULL; i++) {
        grant->record->promise[i] = pc_tenant_promise_without(&grant->share[i], &others);
        any |= others;
    }
    if (any)
        pc_books_commit(grant->record, PC_BOOKS_LEAVING);
}

void pc_grant_free(struct pc_grant *grant)
{
    close_socket(grant);
    record_leaving(grant);
    if (grant->directory[0] != '\0')
        rmdir(grant->directory);
    /* From the last to the first: the books of a grant end after its accounts are empty. */
    while (grant->shares > 0)
        pc_tenant_leave(&grant->share[--grant->shares]);
    pc_books_end(grant->record);
    pc_page_free(grant->page);
    pc_list_remove(&grant->link);
    free(grant);
}

struct pc_grant *pc_grant_find(struct pc_broker *b, const char *name)
{
    struct pc_grant *grant;
    pc_list_each(grant, &b->grants, link)
        if (strcmp(grant->name, name) == 0)
            return grant;
    return NULL;
}

struct pc_share *pc_grant_share(struct pc_grant *grant, const struct pc_gpu *gpu)
{
    for (unsigned i = 0; i < grant->shares; i++)
        if (grant->share[i].tenant->gpu == gpu)
            return &grant->share[i];
    return NULL;
}

/* ---- changing ---- */

enum pc_status pc_grant_resize(struct pc_grant *grant, struct pc_share *share, uint64_t granted, uint64_t cap,
                               struct pc_error *err)
{
    enum pc_status status = check_sizes(share->tenant->gpu, granted, cap, err);
    if (status == PC_OK)
        status = pc_share_resize(share, granted, cap, err);
    if (status != PC_OK) {
        pc_error_prefix(err, "grant %s", grant->name);
        return status;
    }
    return PC_OK;
}

void pc_grant_bind(struct pc_grant *grant, const char pod_uid[PC_NAME_MAX])
{
    memcpy(grant->pod_uid, pod_uid, sizeof grant->pod_uid);
    memcpy(grant->record->pod_uid, pod_uid, sizeof grant->record->pod_uid);
}

void pc_grant_drop(struct pc_grant *grant)
{
    if (!grant->dropping)
        pc_log_info("grant", "%s is being dropped; it has %u processes", grant->name, grant->session_count);
    grant->dropping = true;
    close_socket(grant);
    pc_broker_changed(grant->broker);
    pc_broker_hurry(grant->broker);
}

bool pc_grant_ended(struct pc_grant *grant)
{
    bool ended = grant->dropping && pc_list_empty(&grant->sessions);
    for (unsigned i = 0; i < grant->shares && ended; i++) {
        struct pc_tenant *tenant = grant->share[i].tenant;
        bool last = tenant->shares.next == &grant->share[i].link && tenant->shares.prev == &grant->share[i].link;
        if (!last)
            continue;
        pc_evict_unused(tenant);
        ended = pc_tenant_idle(tenant);
    }
    return ended;
}
