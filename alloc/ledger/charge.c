/*
 * Booking: every level is checked before any is changed.
 *
 * gpu->charged is at least as large as any sum below it, and what is admitted stays under some uint64_t limit; so only
 * forced charges (true-ups, inheritance) could overflow, and they are held to what gpu->charged has left to 2^64.
 */
#include <inttypes.h>

#include "alloc/ledger/ledger_internal.h"

/* What a request asks of each level. */
struct need {
    uint64_t bytes;  /* of the grant, and live in the tenant */
    uint64_t growth; /* of what the tenant and the GPU are charged */
};

void pc_ledger_charge(struct pc_ledger_tenant *tenant, uint64_t bytes)
{
    tenant->gpu->charged += bytes;
    tenant->charged += bytes;
    if (tenant->charged > tenant->peak)
        tenant->peak = tenant->charged;
}

void pc_ledger_uncharge(struct pc_ledger_tenant *tenant, uint64_t bytes)
{
    tenant->gpu->charged -= bytes;
    tenant->charged -= bytes;
}

/*
 * Growth must fit what is charged. A block without growth (it reuses reserved memory) need only keep what is live under
 * the cap: after a cap was lowered RESERVED stays above it for good, and the tenant must still be able to use its part.
 */
static bool tenant_admits(const struct pc_ledger_tenant *tenant, const struct need *need)
{
    if (need->growth > 0 && !fits(tenant->cap, tenant->charged, need->growth))
        return false;
    return fits(tenant->cap, tenant->charged - tenant_idle(tenant), need->bytes);
}

static bool gpu_admits(const struct pc_ledger_gpu *gpu, const struct need *need)
{
    return need->growth == 0 || fits(gpu->capacity, gpu->charged, need->growth);
}

/* The innermost level that refuses speaks: it is the one whose owner can do something about it. */
static enum pc_status admit(const struct pc_ledger_grant *grant, const struct need *need, struct pc_error *err)
{
    const struct pc_ledger_tenant *tenant = grant->tenant;
    const struct pc_ledger_gpu *gpu = tenant->gpu;
    if (!fits(grant->cap, grant->charged, need->bytes))
        return pc_ledger_refuse("grant", grant->name, "cap", grant->cap, "charged", grant->charged, need->bytes, err);
    if (!tenant_admits(tenant, need))
        return pc_ledger_refuse("tenant", tenant->name, "cap", tenant->cap, "charged", tenant->charged, need->bytes,
                                err);
    if (!gpu_admits(gpu, need))
        return pc_ledger_refuse("gpu", gpu->name, "cap", gpu->capacity, "charged", gpu->charged, need->bytes, err);
    return PC_OK;
}

static enum pc_status over_release(struct pc_ledger *ledger, const char *level, const char *name, uint64_t booked,
                                   uint64_t asked, struct pc_error *err)
{
    ledger->over_releases++;
    return pc_error_set(err, PC_ERR_INVALID, 0,
                        "%s %s: release of %" PRIu64 " bytes where %" PRIu64 " are booked: the books were wrong", level,
                        name, asked, booked);
}

static enum pc_status check_block(const struct pc_ledger_session *session,
                                  const struct pc_ledger_generation *generation, uint64_t bytes, struct pc_error *err)
{
    const struct pc_ledger_grant *grant = session->grant;
    if (generation->tenant != grant->tenant)
        return pc_error_set(err, PC_ERR_INVALID, 0, "grant %s: the generation is tenant %s's", grant->name,
                            generation->tenant->name);
    if (bytes == 0 || bytes % PC_POOL_GRANULE != 0)
        return pc_error_set(err, PC_ERR_INVALID, 0,
                            "grant %s: a block of %" PRIu64 " bytes; it must be a multiple of 32Mi, not 0", grant->name,
                            bytes);
    return PC_OK;
}

bool pc_ledger_generation_fits(const struct pc_ledger_generation *generation, uint64_t bytes, uint64_t *growth)
{
    if (!fits(generation->max, generation->used, bytes))
        return false;
    *growth = left_of(generation->used + bytes, generation->reserved);
    return true;
}

/*
 * Says why a block cannot be booked in this generation. OUT_OF_MEMORY only where no generation could serve it, that is,
 * where it would not fit the caps even if all idle pool memory were in one place.
 */
static enum pc_status refuse_block(struct pc_ledger_grant *grant, uint64_t bytes, struct pc_error *err)
{
    struct pc_ledger_tenant *tenant = grant->tenant;
    struct need least = {.bytes = bytes, .growth = left_of(bytes, tenant_idle(tenant))};
    enum pc_status status = admit(grant, &least, err);
    if (status != PC_OK) {
        tenant->refused++;
        return status;
    }
    pc_ledger_refuse("tenant", tenant->name, "not in this generation: cap", tenant->cap, "charged", tenant->charged,
                     bytes, err);
    if (err != NULL)
        err->status = PC_ERR_BUSY;
    return PC_ERR_BUSY;
}

enum pc_status pc_ledger_block_book(struct pc_ledger_session *session, struct pc_ledger_generation *generation,
                                    uint64_t bytes, uint64_t *growth, struct pc_error *err)
{
    struct pc_ledger_grant *grant = session->grant;
    struct pc_ledger_tenant *tenant = grant->tenant;
    enum pc_status status = check_block(session, generation, bytes, err);
    if (status != PC_OK)
        return status;
    struct need need = {.bytes = bytes};
    if (!pc_ledger_generation_fits(generation, bytes, &need.growth) || admit(grant, &need, NULL) != PC_OK)
        return refuse_block(grant, bytes, err);
    session->blocks += bytes;
    grant->blocks += bytes;
    grant->charged += bytes;
    generation->used += bytes;
    generation->reserved += need.growth;
    tenant->pool_used += bytes;
    tenant->pool_reserved += need.growth;
    pc_ledger_charge(tenant, need.growth);
    *growth = need.growth;
    return PC_OK;
}

enum pc_status pc_ledger_block_release(struct pc_ledger_session *session, struct pc_ledger_generation *generation,
                                       uint64_t bytes, struct pc_error *err)
{
    struct pc_ledger_grant *grant = session->grant;
    enum pc_status status = check_block(session, generation, bytes, err);
    if (status != PC_OK)
        return status;
    uint64_t booked = at_most(session->blocks, generation->used);
    uint64_t taken = at_most(bytes, booked);
    session->blocks -= taken;
    grant->blocks -= taken;
    grant->charged -= taken;
    generation->used -= taken;
    generation->tenant->pool_used -= taken;
    if (taken < bytes)
        return over_release(grant->tenant->gpu->ledger, "grant", grant->name, booked, bytes, err);
    return PC_OK;
}

/* Brings *sum, which is part of what the tenant is charged, to wanted; returns what it was changed to. */
static uint64_t force(struct pc_ledger_tenant *tenant, uint64_t now, uint64_t wanted)
{
    if (wanted <= now) {
        pc_ledger_uncharge(tenant, now - wanted);
        return wanted;
    }
    uint64_t more = at_most(wanted - now, UINT64_MAX - tenant->gpu->charged);
    pc_ledger_charge(tenant, more);
    return now + more;
}

bool pc_ledger_generation_true_up(struct pc_ledger_generation *generation, uint64_t reserved)
{
    struct pc_ledger_tenant *tenant = generation->tenant;
    uint64_t before = generation->reserved;
    uint64_t wanted = reserved > generation->used ? reserved : generation->used;
    generation->reserved = force(tenant, before, wanted);
    tenant->pool_reserved = tenant->pool_reserved - before + generation->reserved;
    return reserved == before;
}

/* One kind on the session's, its grant's and its tenant's level; what the tenant is charged in all is the caller's. */
static void session_add(struct pc_ledger_session *session, enum pc_charge_kind kind, uint64_t bytes)
{
    struct pc_ledger_grant *grant = session->grant;
    session->kinds[kind] += bytes;
    grant->kinds[kind] += bytes;
    grant->charged += bytes;
    grant->tenant->kinds[kind] += bytes;
}

static void session_take(struct pc_ledger_session *session, enum pc_charge_kind kind, uint64_t bytes)
{
    session_add(session, kind, 0 - bytes); /* unsigned arithmetic wraps to a subtraction */
}

enum pc_status pc_ledger_book(struct pc_ledger_session *session, enum pc_charge_kind kind, uint64_t bytes,
                              struct pc_error *err)
{
    struct pc_ledger_tenant *tenant = session->grant->tenant;
    struct need need = {.bytes = bytes, .growth = bytes};
    if (bytes == 0)
        return PC_OK;
    enum pc_status status = admit(session->grant, &need, err);
    if (status != PC_OK) {
        tenant->refused++;
        return status;
    }
    session_add(session, kind, bytes);
    pc_ledger_charge(tenant, bytes);
    return PC_OK;
}

enum pc_status pc_ledger_release(struct pc_ledger_session *session, enum pc_charge_kind kind, uint64_t bytes,
                                 struct pc_error *err)
{
    struct pc_ledger_grant *grant = session->grant;
    uint64_t booked = session->kinds[kind];
    uint64_t taken = at_most(bytes, booked);
    session_take(session, kind, taken);
    pc_ledger_uncharge(grant->tenant, taken);
    if (taken < bytes)
        return over_release(grant->tenant->gpu->ledger, "grant", grant->name, booked, bytes, err);
    return PC_OK;
}

enum pc_status pc_ledger_move(struct pc_ledger_session *session, enum pc_charge_kind from, enum pc_charge_kind to,
                              uint64_t bytes, struct pc_error *err)
{
    struct pc_ledger_grant *grant = session->grant;
    uint64_t booked = session->kinds[from];
    uint64_t taken = at_most(bytes, booked);
    session_take(session, from, taken);
    session_add(session, to, taken);
    if (taken < bytes)
        return over_release(grant->tenant->gpu->ledger, "grant", grant->name, booked, bytes, err);
    return PC_OK;
}

void pc_ledger_true_up(struct pc_ledger_session *session, enum pc_charge_kind kind, uint64_t bytes)
{
    uint64_t before = session->kinds[kind];
    uint64_t after = force(session->grant->tenant, before, bytes);
    session_take(session, kind, before);
    session_add(session, kind, after);
}

enum pc_status pc_ledger_tenant_settle(struct pc_ledger_tenant *tenant, uint64_t bytes, struct pc_error *err)
{
    uint64_t booked = tenant->unsettled;
    uint64_t taken = at_most(bytes, booked);
    tenant->unsettled -= taken;
    tenant->kinds[PC_CHARGE_PENDING] -= taken;
    pc_ledger_uncharge(tenant, taken);
    if (taken < bytes)
        return over_release(tenant->gpu->ledger, "tenant", tenant->name, booked, bytes, err);
    return PC_OK;
}

enum pc_status pc_ledger_inherit(struct pc_ledger_tenant *tenant, uint64_t bytes, struct pc_error *err)
{
    if (bytes > UINT64_MAX - tenant->gpu->charged)
        return pc_error_set(err, PC_ERR_INVALID, 0, "tenant %s: %" PRIu64 " inherited bytes are more than a card has",
                            tenant->name, bytes);
    tenant->inherited += bytes;
    pc_ledger_charge(tenant, bytes);
    return PC_OK;
}

enum pc_status pc_ledger_disinherit(struct pc_ledger_tenant *tenant, uint64_t bytes, struct pc_error *err)
{
    uint64_t booked = tenant->inherited;
    uint64_t taken = at_most(bytes, booked);
    tenant->inherited -= taken;
    pc_ledger_uncharge(tenant, taken);
    if (taken < bytes)
        return over_release(tenant->gpu->ledger, "tenant", tenant->name, booked, bytes, err);
    return PC_OK;
}
