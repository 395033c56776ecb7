/*
 * The audit: walks the accounts from the leaves up, adds up anew what booking keeps as running sums, and names the
 * first figure that differs. Shares no arithmetic with charge.c.
 */
#include <inttypes.h>

#include "alloc/ledger/ledger_internal.h"

struct figure {
    const char *name;
    uint64_t kept, counted;
};

static enum pc_status compare(const char *level, const char *name, const struct figure *figures, size_t count,
                              struct pc_error *err)
{
    for (size_t i = 0; i < count; i++)
        if (figures[i].kept != figures[i].counted)
            return pc_error_set(err, PC_ERR_INVALID, 0, "%s %s: %s is kept as %" PRIu64 ", its parts come to %" PRIu64,
                                level, name, figures[i].name, figures[i].kept, figures[i].counted);
    return PC_OK;
}

static enum pc_status wrong(const char *level, const char *name, const char *rule, struct pc_error *err)
{
    return pc_error_set(err, PC_ERR_INVALID, 0, "%s %s: %s", level, name, rule);
}

static enum pc_status check_grant(const struct pc_ledger_grant *grant, struct pc_error *err)
{
    uint64_t blocks = 0, kinds[PC_CHARGE_KINDS] = {0}, charged;
    unsigned sessions = 0;
    list_each(link, &grant->sessions)
    {
        const struct pc_ledger_session *session = pc_container_of(link, struct pc_ledger_session, link);
        blocks += session->blocks;
        for (int kind = 0; kind < PC_CHARGE_KINDS; kind++)
            kinds[kind] += session->kinds[kind];
        sessions++;
    }
    charged = blocks;
    for (int kind = 0; kind < PC_CHARGE_KINDS; kind++)
        charged += kinds[kind];
    const struct figure figures[] = {
        {"blocks", grant->blocks, blocks},
        {"large", grant->kinds[PC_CHARGE_LARGE], kinds[PC_CHARGE_LARGE]},
        {"direct", grant->kinds[PC_CHARGE_DIRECT], kinds[PC_CHARGE_DIRECT]},
        {"context", grant->kinds[PC_CHARGE_CONTEXT], kinds[PC_CHARGE_CONTEXT]},
        {"pending", grant->kinds[PC_CHARGE_PENDING], kinds[PC_CHARGE_PENDING]},
        {"charged", grant->charged, charged},
        {"sessions", grant->sessions_open, sessions},
    };
    return compare("grant", grant->name, figures, PC_ARRAY_LEN(figures), err);
}

static enum pc_status check_grants(const struct pc_ledger_tenant *tenant, struct pc_error *err)
{
    uint64_t blocks = 0, kinds[PC_CHARGE_KINDS] = {[PC_CHARGE_PENDING] = tenant->unsettled};
    unsigned grants = 0, sessions = 0;
    list_each(link, &tenant->grants)
    {
        const struct pc_ledger_grant *grant = pc_container_of(link, struct pc_ledger_grant, link);
        enum pc_status status = check_grant(grant, err);
        if (status != PC_OK)
            return status;
        blocks += grant->blocks;
        for (int kind = 0; kind < PC_CHARGE_KINDS; kind++)
            kinds[kind] += grant->kinds[kind];
        grants++;
        sessions += grant->sessions_open;
    }
    const struct figure figures[] = {
        {"pool_used (by sessions)", tenant->pool_used, blocks},
        {"large", tenant->kinds[PC_CHARGE_LARGE], kinds[PC_CHARGE_LARGE]},
        {"direct", tenant->kinds[PC_CHARGE_DIRECT], kinds[PC_CHARGE_DIRECT]},
        {"context", tenant->kinds[PC_CHARGE_CONTEXT], kinds[PC_CHARGE_CONTEXT]},
        {"pending", tenant->kinds[PC_CHARGE_PENDING], kinds[PC_CHARGE_PENDING]},
        {"grants", tenant->grants_open, grants},
        {"sessions", tenant->sessions_open, sessions},
    };
    return compare("tenant", tenant->name, figures, PC_ARRAY_LEN(figures), err);
}

static enum pc_status check_generations(const struct pc_ledger_tenant *tenant, struct pc_error *err)
{
    uint64_t max = 0, reserved = 0, used = 0;
    unsigned generations = 0;
    list_each(link, &tenant->generations)
    {
        const struct pc_ledger_generation *generation = pc_container_of(link, struct pc_ledger_generation, link);
        if (generation->used > generation->reserved || generation->used > generation->max)
            return wrong("tenant", tenant->name, "a generation has more blocks than it holds", err);
        if (generation->used % PC_POOL_GRANULE != 0 || generation->max % PC_POOL_GRANULE != 0)
            return wrong("tenant", tenant->name, "a generation is not in whole multiples of 32Mi", err);
        max += generation->max;
        reserved += generation->reserved;
        used += generation->used;
        generations++;
    }
    const struct figure figures[] = {
        {"pool_max", tenant->pool_max, max},
        {"pool_reserved", tenant->pool_reserved, reserved},
        {"pool_used (by generations)", tenant->pool_used, used},
        {"generations", tenant->generations_open, generations},
    };
    return compare("tenant", tenant->name, figures, PC_ARRAY_LEN(figures), err);
}

static enum pc_status check_tenant(const struct pc_ledger_tenant *tenant, struct pc_error *err)
{
    enum pc_status status = check_grants(tenant, err);
    if (status == PC_OK)
        status = check_generations(tenant, err);
    if (status != PC_OK)
        return status;
    uint64_t charged = tenant->pool_reserved + tenant->inherited;
    for (int kind = 0; kind < PC_CHARGE_KINDS; kind++)
        charged += tenant->kinds[kind];
    const struct figure figures[] = {{"charged", tenant->charged, charged}};
    if (tenant->cap == 0 || tenant->cap > tenant->granted)
        return wrong("tenant", tenant->name, "the cap is not within what is granted", err);
    if (tenant->peak < tenant->charged)
        return wrong("tenant", tenant->name, "the peak is below what is charged", err);
    if (tenant->pool_max > pc_ledger_pool_limit(tenant->granted))
        return wrong("tenant", tenant->name, "its pools may hold more than is granted", err);
    return compare("tenant", tenant->name, figures, PC_ARRAY_LEN(figures), err);
}

static enum pc_status check_gpu(const struct pc_ledger_gpu *gpu, struct pc_error *err)
{
    uint64_t granted = 0, charged = 0;
    unsigned tenants = 0;
    list_each(link, &gpu->tenants)
    {
        const struct pc_ledger_tenant *tenant = pc_container_of(link, struct pc_ledger_tenant, link);
        enum pc_status status = check_tenant(tenant, err);
        if (status != PC_OK)
            return status;
        granted += tenant->granted;
        charged += tenant->charged;
        tenants++;
    }
    const struct figure figures[] = {
        {"granted", gpu->granted, granted},
        {"charged", gpu->charged, charged},
        {"tenants", gpu->tenants_open, tenants},
    };
    if (gpu->granted > gpu->capacity)
        return wrong("gpu", gpu->name, "more is granted than it has", err);
    return compare("gpu", gpu->name, figures, PC_ARRAY_LEN(figures), err);
}

enum pc_status pc_ledger_check(const struct pc_ledger *ledger, struct pc_error *err)
{
    list_each(link, &ledger->gpus)
    {
        enum pc_status status = check_gpu(pc_container_of(link, struct pc_ledger_gpu, link), err);
        if (status != PC_OK)
            return status;
    }
    return PC_OK;
}
