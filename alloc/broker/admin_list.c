#include "alloc/broker/admin_list.h"

#include <stdlib.h>
#include <string.h>

#include "alloc/broker/session.h"

/* A share takes at most some 250 bytes of the packet (64 KiB), a grant 350 beside, a GPU 1100. */
enum { GRANTS = 32, SHARES = 128 };

struct pc_admin_list {
    Poolcap__AdminListReply reply;
    char server[64];
    Poolcap__AdminGpu gpu[PC_GPUS_MAX], *gpus[PC_GPUS_MAX];
    Poolcap__AdminGrant grant[GRANTS], *grants[GRANTS];
    Poolcap__AdminGrantGpu share[SHARES], *shares[SHARES];
    unsigned shares_used;
};

static char *text(const char *s)
{
    return (char *)(uintptr_t)s;
}

static uint64_t failed_frees(struct pc_leaks *leaks)
{
    struct pc_leaks_snapshot *snapshot = leaks != NULL ? malloc(sizeof *snapshot) : NULL;
    if (snapshot == NULL)
        return 0;
    pc_leaks_read(leaks, snapshot);
    uint64_t total = snapshot->total;
    free(snapshot);
    return total;
}

static uint64_t pool_reserved(const struct pc_gpu *gpu)
{
    const struct pc_tenant *tenant;
    struct pc_ledger_tenant_view view;
    uint64_t sum = 0;
    pc_list_each(tenant, &gpu->broker->tenants, link) {
        if (tenant->gpu != gpu)
            continue;
        pc_ledger_tenant_read(tenant->ledger, &view);
        sum += view.pool_reserved;
    }
    return sum;
}

/* The messages' arrays are not const, and are only read. */
static void fill_latency(const struct pc_gpu *gpu, Poolcap__AdminGpu *out)
{
    out->latency_bounds_ns = (uint64_t *)(uintptr_t)pc_latency_bounds_ns;
    out->n_latency_bounds_ns = PC_LATENCY_BOUNDS;
    out->latency_buckets = (uint64_t *)(uintptr_t)gpu->latency.buckets;
    out->n_latency_buckets = PC_LATENCY_BOUNDS + 1;
    out->latency_sum_ns = gpu->latency.sum_ns;
}

static void fill_gpu(const struct pc_gpu *gpu, Poolcap__AdminGpu *out)
{
    struct pc_ledger_gpu_view view;
    pc_ledger_gpu_read(gpu->ledger, &view);
    poolcap__admin_gpu__init(out);
    out->uuid = text(gpu->info.uuid);
    out->name = text(gpu->info.name);
    out->total = gpu->info.total;
    out->capacity = gpu->capacity;
    out->granted = view.granted;
    out->charged = view.charged;
    out->context_bytes = gpu->probe.context_bytes;
    out->fault = text(gpu->fault);
    out->broken_promises = gpu->broken_promises;
    out->failed_frees = failed_frees(gpu->leaks);
    out->card_used = gpu->card_used;
    out->pool_reserved = pool_reserved(gpu);
    fill_latency(gpu, out);
}

static uint64_t outside(const struct pc_grant *grant, unsigned share)
{
    const struct pc_session *session;
    uint64_t sum = 0;
    pc_list_each(session, &grant->sessions, link)
        if (session->seat[share] != NULL)
            sum += session->seat[share]->outside;
    return sum;
}

static void fill_share(const struct pc_grant *grant, const struct pc_share *share, Poolcap__AdminGrantGpu *out)
{
    struct pc_ledger_tenant_view tenant;
    struct pc_ledger_grant_view view;
    pc_ledger_tenant_read(share->tenant->ledger, &tenant);
    pc_ledger_grant_read(share->ledger, &view);
    poolcap__admin_grant_gpu__init(out);
    out->uuid = text(share->tenant->gpu->info.uuid);
    out->granted = share->granted;
    out->cap = view.cap;
    out->charged = view.charged;
    out->tenant_cap = tenant.cap;
    out->tenant_charged = tenant.charged;
    out->pool_reserved = tenant.pool_reserved;
    out->pool_used = tenant.pool_used;
    out->large = tenant.kinds[PC_CHARGE_LARGE];
    out->direct = tenant.kinds[PC_CHARGE_DIRECT];
    out->context = tenant.kinds[PC_CHARGE_CONTEXT];
    out->pending = tenant.kinds[PC_CHARGE_PENDING];
    out->inherited = tenant.inherited;
    out->peak = tenant.peak;
    out->refused = tenant.refused;
    out->outside = outside(grant, share->index);
    out->shared = share->shared;
}

static void add_grant(struct pc_admin_list *list, const struct pc_grant *grant)
{
    Poolcap__AdminGrant *out = &list->grant[list->reply.n_grants];
    poolcap__admin_grant__init(out);
    out->name = text(grant->name);
    out->tenant = text(grant->tenant);
    out->pod_uid = text(grant->pod_uid);
    out->socket = text(grant->socket);
    out->sessions = grant->session_count;
    out->dropping = grant->dropping;
    out->gpus = &list->shares[list->shares_used];
    for (unsigned i = 0; i < grant->shares; i++) {
        Poolcap__AdminGrantGpu *share = &list->share[list->shares_used];
        fill_share(grant, &grant->share[i], share);
        list->shares[list->shares_used++] = share;
    }
    out->n_gpus = grant->shares;
    list->grants[list->reply.n_grants++] = out;
}

/* The first grant by name behind `after`; NULL: none. */
static const struct pc_grant *next_grant(struct pc_broker *b, const char *after)
{
    const struct pc_grant *grant, *best = NULL;
    pc_list_each(grant, &b->grants, link)
        if (strcmp(grant->name, after) > 0 && (best == NULL || strcmp(grant->name, best->name) < 0))
            best = grant;
    return best;
}

struct pc_admin_list *pc_admin_list_make(struct pc_broker *b, const char *after)
{
    static const char server[] = "poolcapd " POOLCAP_VERSION;
    struct pc_admin_list *list = calloc(1, sizeof *list);
    if (list == NULL)
        return NULL;
    poolcap__admin_list_reply__init(&list->reply);
    memcpy(list->server, server, sizeof server);
    list->reply.server = list->server;
    list->reply.epoch = b->epoch;
    list->reply.gpus = list->gpus;
    list->reply.grants = list->grants;
    for (unsigned i = 0; i < b->gpus; i++) {
        fill_gpu(b->gpu[i], &list->gpu[i]);
        list->gpus[i] = &list->gpu[i];
    }
    list->reply.n_gpus = b->gpus;
    const struct pc_grant *grant = next_grant(b, after);
    while (grant != NULL && list->reply.n_grants < GRANTS && list->shares_used + grant->shares <= SHARES) {
        add_grant(list, grant);
        grant = next_grant(b, grant->name);
    }
    list->reply.more = grant != NULL;
    return list;
}

Poolcap__AdminListReply *pc_admin_list_reply(struct pc_admin_list *list)
{
    return &list->reply;
}

void pc_admin_list_free(struct pc_admin_list *list)
{
    free(list);
}
