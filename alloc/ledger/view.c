/* What the books say, for pages, metrics and tests. */
#include <string.h>

#include "alloc/ledger/ledger_internal.h"

const char *pc_charge_kind_name(enum pc_charge_kind kind)
{
    static const char *const names[PC_CHARGE_KINDS] = {
        [PC_CHARGE_LARGE] = "large",
        [PC_CHARGE_DIRECT] = "direct",
        [PC_CHARGE_CONTEXT] = "context",
        [PC_CHARGE_PENDING] = "pending",
    };
    return (unsigned)kind < PC_CHARGE_KINDS ? names[kind] : "unknown";
}

void pc_ledger_tenant_read(const struct pc_ledger_tenant *tenant, struct pc_ledger_tenant_view *out)
{
    *out = (struct pc_ledger_tenant_view){
        .granted = tenant->granted,
        .cap = tenant->cap,
        .charged = tenant->charged,
        .peak = tenant->peak,
        .pool_max = tenant->pool_max,
        .pool_reserved = tenant->pool_reserved,
        .pool_used = tenant->pool_used,
        .unsettled = tenant->unsettled,
        .inherited = tenant->inherited,
        .refused = tenant->refused,
        .grants = tenant->grants_open,
        .sessions = tenant->sessions_open,
        .generations = tenant->generations_open,
    };
    memcpy(out->kinds, tenant->kinds, sizeof out->kinds);
}

void pc_ledger_grant_read(const struct pc_ledger_grant *grant, struct pc_ledger_grant_view *out)
{
    *out = (struct pc_ledger_grant_view){
        .cap = grant->cap,
        .charged = grant->charged,
        .blocks = grant->blocks,
        .sessions = grant->sessions_open,
    };
    memcpy(out->kinds, grant->kinds, sizeof out->kinds);
}

void pc_ledger_session_read(const struct pc_ledger_session *session, struct pc_ledger_session_view *out)
{
    out->blocks = session->blocks;
    memcpy(out->kinds, session->kinds, sizeof out->kinds);
}

void pc_ledger_generation_read(const struct pc_ledger_generation *generation, struct pc_ledger_generation_view *out)
{
    *out = (struct pc_ledger_generation_view){
        .max = generation->max,
        .reserved = generation->reserved,
        .used = generation->used,
    };
}

void pc_ledger_gpu_read(const struct pc_ledger_gpu *gpu, struct pc_ledger_gpu_view *out)
{
    *out = (struct pc_ledger_gpu_view){
        .capacity = gpu->capacity,
        .granted = gpu->granted,
        .charged = gpu->charged,
        .tenants = gpu->tenants_open,
    };
}

uint64_t pc_ledger_room(const struct pc_ledger_grant *grant)
{
    const struct pc_ledger_tenant *tenant = grant->tenant;
    return at_most(left_of(tenant->cap, tenant->charged - tenant_idle(tenant)), left_of(grant->cap, grant->charged));
}

uint64_t pc_ledger_room_new(const struct pc_ledger_grant *grant)
{
    const struct pc_ledger_tenant *tenant = grant->tenant;
    return at_most(left_of(tenant->cap, tenant->charged), left_of(grant->cap, grant->charged));
}

uint64_t pc_ledger_over_releases(const struct pc_ledger *ledger)
{
    return ledger->over_releases;
}
