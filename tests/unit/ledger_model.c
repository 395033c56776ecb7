#include "tests/unit/ledger_model.h"

#include <stdlib.h>
#include <string.h>

static const uint64_t granule = 32ull << 20;

/* Leaves. */

static wide leaf(const struct model *m, int list, int owner)
{
    return m->leaf[list][owner];
}

static void add(struct model *m, int list, int owner, uint64_t bytes)
{
    if (leaf(m, list, owner) + bytes > UINT64_MAX)
        abort();
    m->leaf[list][owner] += bytes;
}

static void take(struct model *m, int list, int owner, uint64_t bytes)
{
    if (bytes > m->leaf[list][owner])
        abort();
    m->leaf[list][owner] -= bytes;
}

/* Sums of whole accounts, always from the leaves. */

static int tenant_of(const struct model *m, int session)
{
    return m->grant[m->session[session].grant].tenant;
}

static wide grant_kind(const struct model *m, int grant, int kind)
{
    wide total = 0;
    for (int s = 0; s < M_SESSIONS; s++)
        if (m->session[s].open && m->session[s].grant == grant)
            total += leaf(m, M_KIND + kind, s);
    return total;
}

static wide grant_blocks(const struct model *m, int grant)
{
    wide total = 0;
    for (int s = 0; s < M_SESSIONS; s++)
        if (m->session[s].open && m->session[s].grant == grant)
            total += leaf(m, M_SESSION_BLOCK, s);
    return total;
}

static wide grant_charged(const struct model *m, int grant)
{
    wide total = grant_blocks(m, grant);
    for (int kind = 0; kind < PC_CHARGE_KINDS; kind++)
        total += grant_kind(m, grant, kind);
    return total;
}

static wide tenant_kind(const struct model *m, int tenant, int kind)
{
    wide total = kind == PC_CHARGE_PENDING ? leaf(m, M_UNSETTLED, tenant) : 0;
    for (int s = 0; s < M_SESSIONS; s++)
        if (m->session[s].open && tenant_of(m, s) == tenant)
            total += leaf(m, M_KIND + kind, s);
    return total;
}

/* which: 0 max, 1 reserved, 2 used */
static wide tenant_pool(const struct model *m, int tenant, int which)
{
    wide total = 0;
    for (int g = 0; g < M_GENERATIONS; g++)
        if (m->generation[g].open && m->generation[g].tenant == tenant)
            total += which == 0   ? m->generation[g].max
                     : which == 1 ? m->generation[g].reserved
                                  : leaf(m, M_GENERATION_BLOCK, g);
    return total;
}

static wide tenant_outside_pool(const struct model *m, int tenant)
{
    wide total = leaf(m, M_INHERITED, tenant);
    for (int kind = 0; kind < PC_CHARGE_KINDS; kind++)
        total += tenant_kind(m, tenant, kind);
    return total;
}

static wide tenant_charged(const struct model *m, int tenant)
{
    return tenant_outside_pool(m, tenant) + tenant_pool(m, tenant, 1);
}

static wide tenant_live(const struct model *m, int tenant)
{
    return tenant_outside_pool(m, tenant) + tenant_pool(m, tenant, 2);
}

static wide gpu_charged(const struct model *m, int gpu)
{
    wide total = 0;
    for (int t = 0; t < M_TENANTS; t++)
        if (m->tenant[t].open && m->tenant[t].gpu == gpu)
            total += tenant_charged(m, t);
    return total;
}

static wide gpu_granted(const struct model *m, int gpu)
{
    wide total = 0;
    for (int t = 0; t < M_TENANTS; t++)
        if (m->tenant[t].open && m->tenant[t].gpu == gpu)
            total += m->tenant[t].granted;
    return total;
}

static wide pool_limit(uint64_t granted)
{
    wide limit = ((wide)granted + granule - 1) / granule * granule;
    return limit > UINT64_MAX ? UINT64_MAX / granule * granule : limit;
}

static wide pool_taken(const struct model *m, int tenant)
{
    return tenant_pool(m, tenant, 0) + leaf(m, M_INHERITED, tenant) + leaf(m, M_UNSETTLED, tenant);
}

/* Accounts. */

enum pc_status model_tenant_add(struct model *m, int tenant, int gpu, uint64_t granted, uint64_t cap)
{
    if (granted == 0 || cap == 0 || cap > granted)
        return PC_ERR_INVALID;
    if (gpu_granted(m, gpu) + granted > m->gpu[gpu].capacity)
        return PC_ERR_OUT_OF_MEMORY;
    memset(&m->tenant[tenant], 0, sizeof m->tenant[tenant]);
    m->tenant[tenant].open = true;
    m->tenant[tenant].gpu = gpu;
    m->tenant[tenant].granted = granted;
    m->tenant[tenant].cap = cap;
    return PC_OK;
}

enum pc_status model_tenant_resize(struct model *m, int tenant, uint64_t granted, uint64_t cap)
{
    int gpu = m->tenant[tenant].gpu;
    uint64_t before = m->tenant[tenant].granted;
    if (granted == 0 || cap == 0 || cap > granted)
        return PC_ERR_INVALID;
    if (gpu_granted(m, gpu) - before + granted > m->gpu[gpu].capacity)
        return PC_ERR_OUT_OF_MEMORY;
    if (granted < before && pool_taken(m, tenant) > pool_limit(granted))
        return PC_ERR_BUSY;
    if (cap < m->tenant[tenant].cap)
        m->tenant[tenant].over_cap_explained = true;
    m->tenant[tenant].granted = granted;
    m->tenant[tenant].cap = cap;
    return PC_OK;
}

enum pc_status model_tenant_remove(struct model *m, int tenant)
{
    if (tenant_charged(m, tenant) > 0)
        return PC_ERR_BUSY;
    for (int g = 0; g < M_GRANTS; g++)
        if (m->grant[g].open && m->grant[g].tenant == tenant)
            return PC_ERR_BUSY;
    for (int g = 0; g < M_GENERATIONS; g++)
        if (m->generation[g].open && m->generation[g].tenant == tenant)
            return PC_ERR_BUSY;
    m->tenant[tenant].open = false;
    return PC_OK;
}

enum pc_status model_grant_add(struct model *m, int grant, int tenant, uint64_t cap)
{
    if (cap == 0)
        return PC_ERR_INVALID;
    m->grant[grant].open = true;
    m->grant[grant].tenant = tenant;
    m->grant[grant].cap = cap;
    return PC_OK;
}

enum pc_status model_grant_set_cap(struct model *m, int grant, uint64_t cap)
{
    if (cap == 0)
        return PC_ERR_INVALID;
    m->grant[grant].cap = cap;
    return PC_OK;
}

enum pc_status model_grant_remove(struct model *m, int grant)
{
    for (int s = 0; s < M_SESSIONS; s++)
        if (m->session[s].open && m->session[s].grant == grant)
            return PC_ERR_BUSY;
    m->grant[grant].open = false;
    return PC_OK;
}

enum pc_status model_session_add(struct model *m, int session, int grant)
{
    m->session[session].open = true;
    m->session[session].grant = grant;
    return PC_OK;
}

enum pc_status model_session_remove(struct model *m, int session)
{
    wide booked = leaf(m, M_SESSION_BLOCK, session);
    for (int kind = 0; kind < PC_CHARGE_KINDS; kind++)
        booked += leaf(m, M_KIND + kind, session);
    if (booked > 0)
        return PC_ERR_BUSY;
    m->session[session].open = false;
    return PC_OK;
}

enum pc_status model_generation_add(struct model *m, int generation, int tenant, uint64_t max)
{
    if (max == 0 || max % granule != 0)
        return PC_ERR_INVALID;
    if (pool_taken(m, tenant) + max > pool_limit(m->tenant[tenant].granted))
        return PC_ERR_OUT_OF_MEMORY;
    m->generation[generation].open = true;
    m->generation[generation].tenant = tenant;
    m->generation[generation].max = max;
    m->generation[generation].reserved = 0;
    return PC_OK;
}

enum pc_status model_generation_remove(struct model *m, int generation, bool keep_pending)
{
    if (leaf(m, M_GENERATION_BLOCK, generation) > 0)
        return PC_ERR_BUSY;
    m->generation[generation].open = false;
    if (keep_pending)
        add(m, M_UNSETTLED, m->generation[generation].tenant, m->generation[generation].reserved);
    return PC_OK;
}

/* Booking. */

static bool levels_allow(const struct model *m, int grant, uint64_t bytes, wide growth)
{
    int tenant = m->grant[grant].tenant, gpu = m->tenant[tenant].gpu;
    if (grant_charged(m, grant) + bytes > m->grant[grant].cap)
        return false;
    if (tenant_live(m, tenant) + bytes > m->tenant[tenant].cap)
        return false;
    if (growth == 0)
        return true;
    return tenant_charged(m, tenant) + growth <= m->tenant[tenant].cap &&
           gpu_charged(m, gpu) + growth <= m->gpu[gpu].capacity;
}

static bool generation_allows(const struct model *m, int generation, uint64_t bytes, wide *growth)
{
    wide after = leaf(m, M_GENERATION_BLOCK, generation) + bytes, reserved = m->generation[generation].reserved;
    *growth = after > reserved ? after - reserved : 0;
    return after <= m->generation[generation].max;
}

/*
 * Whether some generation could serve the block within the caps: one there is, or, for what only a reshuffle of idle
 * memory could serve, one that had all the idle memory. OUT_OF_MEMORY is the answer to neither.
 */
static bool another_might(const struct model *m, int grant, uint64_t bytes)
{
    int tenant = m->grant[grant].tenant;
    wide idle = tenant_pool(m, tenant, 1) - tenant_pool(m, tenant, 2);
    bool best = levels_allow(m, grant, bytes, bytes > idle ? bytes - idle : 0);
    for (int g = 0; g < M_GENERATIONS; g++) {
        wide growth;
        if (m->generation[g].open && m->generation[g].tenant == tenant && generation_allows(m, g, bytes, &growth) &&
            levels_allow(m, grant, bytes, growth) && !best)
            abort(); /* then "no generation can serve it" would be a lie */
    }
    return best;
}

enum pc_status model_block_book(struct model *m, int session, int generation, uint64_t bytes, uint64_t *growth)
{
    int grant = m->session[session].grant, tenant = tenant_of(m, session);
    wide grows;
    if (m->generation[generation].tenant != tenant || bytes == 0 || bytes % granule != 0)
        return PC_ERR_INVALID;
    if (!generation_allows(m, generation, bytes, &grows) || !levels_allow(m, grant, bytes, grows)) {
        if (another_might(m, grant, bytes))
            return PC_ERR_BUSY;
        m->tenant[tenant].refused++;
        return PC_ERR_OUT_OF_MEMORY;
    }
    add(m, M_SESSION_BLOCK, session, bytes);
    add(m, M_GENERATION_BLOCK, generation, bytes);
    m->generation[generation].reserved += (uint64_t)grows;
    *growth = (uint64_t)grows;
    return PC_OK;
}

/* What a release of bytes may take where only booked are there; counts when that is less. */
static uint64_t taking(struct model *m, wide booked, uint64_t bytes, enum pc_status *status)
{
    *status = PC_OK;
    if (bytes <= booked)
        return bytes;
    m->over_releases++;
    *status = PC_ERR_INVALID;
    return (uint64_t)booked;
}

enum pc_status model_block_release(struct model *m, int session, int generation, uint64_t bytes)
{
    enum pc_status status;
    if (m->generation[generation].tenant != tenant_of(m, session) || bytes == 0 || bytes % granule != 0)
        return PC_ERR_INVALID;
    wide mine = leaf(m, M_SESSION_BLOCK, session), its = leaf(m, M_GENERATION_BLOCK, generation);
    uint64_t taken = taking(m, mine < its ? mine : its, bytes, &status);
    take(m, M_SESSION_BLOCK, session, taken);
    take(m, M_GENERATION_BLOCK, generation, taken);
    return status;
}

static enum pc_status release(struct model *m, int list, int owner, uint64_t bytes)
{
    enum pc_status status;
    take(m, list, owner, taking(m, leaf(m, list, owner), bytes, &status));
    return status;
}

enum pc_status model_settle(struct model *m, int tenant, uint64_t bytes)
{
    return release(m, M_UNSETTLED, tenant, bytes);
}

enum pc_status model_disinherit(struct model *m, int tenant, uint64_t bytes)
{
    return release(m, M_INHERITED, tenant, bytes);
}

enum pc_status model_release(struct model *m, int session, int kind, uint64_t bytes)
{
    return release(m, M_KIND + kind, session, bytes);
}

enum pc_status model_book(struct model *m, int session, int kind, uint64_t bytes)
{
    if (bytes > 0 && !levels_allow(m, m->session[session].grant, bytes, bytes)) {
        m->tenant[tenant_of(m, session)].refused++;
        return PC_ERR_OUT_OF_MEMORY;
    }
    add(m, M_KIND + kind, session, bytes);
    return PC_OK;
}

enum pc_status model_move(struct model *m, int session, int from, int to, uint64_t bytes)
{
    enum pc_status status;
    uint64_t taken = taking(m, leaf(m, M_KIND + from, session), bytes, &status);
    take(m, M_KIND + from, session, taken);
    add(m, M_KIND + to, session, taken);
    return status;
}

/* What a forced change from now to wanted may come to: the card's sum stays below 2^64. */
static uint64_t forced(struct model *m, int tenant, wide now, uint64_t wanted)
{
    wide rest = gpu_charged(m, m->tenant[tenant].gpu) - now;
    if (wanted > now)
        m->tenant[tenant].over_cap_explained = true;
    return rest + wanted > UINT64_MAX ? (uint64_t)(UINT64_MAX - rest) : wanted;
}

bool model_generation_true_up(struct model *m, int generation, uint64_t reserved)
{
    wide used = leaf(m, M_GENERATION_BLOCK, generation);
    uint64_t before = m->generation[generation].reserved;
    int tenant = m->generation[generation].tenant;
    m->generation[generation].reserved = forced(m, tenant, before, reserved > used ? reserved : (uint64_t)used);
    return reserved == before;
}

void model_true_up(struct model *m, int session, int kind, uint64_t bytes)
{
    wide before = leaf(m, M_KIND + kind, session);
    uint64_t after = forced(m, tenant_of(m, session), before, bytes);
    take(m, M_KIND + kind, session, (uint64_t)before);
    add(m, M_KIND + kind, session, after);
}

enum pc_status model_inherit(struct model *m, int tenant, uint64_t bytes)
{
    if (gpu_charged(m, m->tenant[tenant].gpu) + bytes > UINT64_MAX)
        return PC_ERR_INVALID;
    add(m, M_INHERITED, tenant, bytes);
    if (bytes > 0)
        m->tenant[tenant].over_cap_explained = m->tenant[tenant].over_limit_explained = true;
    return PC_OK;
}

/* Views. Each out is zeroed first: the test compares them with memcmp. */

void model_gpu_view(const struct model *m, int gpu, struct pc_ledger_gpu_view *out)
{
    memset(out, 0, sizeof *out);
    out->capacity = m->gpu[gpu].capacity;
    out->granted = (uint64_t)gpu_granted(m, gpu);
    out->charged = (uint64_t)gpu_charged(m, gpu);
    for (int t = 0; t < M_TENANTS; t++)
        out->tenants += m->tenant[t].open && m->tenant[t].gpu == gpu;
}

void model_tenant_view(const struct model *m, int tenant, struct pc_ledger_tenant_view *out)
{
    memset(out, 0, sizeof *out);
    out->granted = m->tenant[tenant].granted;
    out->cap = m->tenant[tenant].cap;
    out->charged = (uint64_t)tenant_charged(m, tenant);
    out->peak = m->tenant[tenant].peak;
    out->pool_max = (uint64_t)tenant_pool(m, tenant, 0);
    out->pool_reserved = (uint64_t)tenant_pool(m, tenant, 1);
    out->pool_used = (uint64_t)tenant_pool(m, tenant, 2);
    for (int kind = 0; kind < PC_CHARGE_KINDS; kind++)
        out->kinds[kind] = (uint64_t)tenant_kind(m, tenant, kind);
    out->unsettled = (uint64_t)leaf(m, M_UNSETTLED, tenant);
    out->inherited = (uint64_t)leaf(m, M_INHERITED, tenant);
    out->refused = m->tenant[tenant].refused;
    for (int g = 0; g < M_GRANTS; g++)
        out->grants += m->grant[g].open && m->grant[g].tenant == tenant;
    for (int s = 0; s < M_SESSIONS; s++)
        out->sessions += m->session[s].open && tenant_of(m, s) == tenant;
    for (int g = 0; g < M_GENERATIONS; g++)
        out->generations += m->generation[g].open && m->generation[g].tenant == tenant;
}

void model_grant_view(const struct model *m, int grant, struct pc_ledger_grant_view *out)
{
    memset(out, 0, sizeof *out);
    out->cap = m->grant[grant].cap;
    out->charged = (uint64_t)grant_charged(m, grant);
    out->blocks = (uint64_t)grant_blocks(m, grant);
    for (int kind = 0; kind < PC_CHARGE_KINDS; kind++)
        out->kinds[kind] = (uint64_t)grant_kind(m, grant, kind);
    for (int s = 0; s < M_SESSIONS; s++)
        out->sessions += m->session[s].open && m->session[s].grant == grant;
}

void model_session_view(const struct model *m, int session, struct pc_ledger_session_view *out)
{
    memset(out, 0, sizeof *out);
    out->blocks = (uint64_t)leaf(m, M_SESSION_BLOCK, session);
    for (int kind = 0; kind < PC_CHARGE_KINDS; kind++)
        out->kinds[kind] = (uint64_t)leaf(m, M_KIND + kind, session);
}

void model_generation_view(const struct model *m, int generation, struct pc_ledger_generation_view *out)
{
    memset(out, 0, sizeof *out);
    out->max = m->generation[generation].max;
    out->reserved = m->generation[generation].reserved;
    out->used = (uint64_t)leaf(m, M_GENERATION_BLOCK, generation);
}

uint64_t model_generation_room(const struct model *m, int tenant)
{
    wide limit = pool_limit(m->tenant[tenant].granted), taken = pool_taken(m, tenant);
    return taken >= limit ? 0 : (uint64_t)((limit - taken) / granule * granule);
}

static uint64_t smaller_room(const struct model *m, int grant, wide tenant_holds)
{
    wide cap = m->tenant[m->grant[grant].tenant].cap, grant_cap = m->grant[grant].cap, held = grant_charged(m, grant);
    wide room = cap > tenant_holds ? cap - tenant_holds : 0, own = grant_cap > held ? grant_cap - held : 0;
    return (uint64_t)(room < own ? room : own);
}

uint64_t model_room(const struct model *m, int grant)
{
    return smaller_room(m, grant, tenant_live(m, m->grant[grant].tenant));
}

uint64_t model_room_new(const struct model *m, int grant)
{
    return smaller_room(m, grant, tenant_charged(m, m->grant[grant].tenant));
}

const char *model_settle_step(struct model *m)
{
    for (int t = 0; t < M_TENANTS; t++) {
        if (!m->tenant[t].open)
            continue;
        wide charged = tenant_charged(m, t);
        if (charged > m->tenant[t].peak)
            m->tenant[t].peak = (uint64_t)charged;
        if (charged <= m->tenant[t].cap)
            m->tenant[t].over_cap_explained = false;
        else if (!m->tenant[t].over_cap_explained)
            return "charged over the cap, and nothing forced it";
        for (int g = 0; g < M_GENERATIONS; g++) /* a true-up over max, which a removal turns into unsettled bytes */
            if (m->generation[g].tenant == t && m->generation[g].reserved > m->generation[g].max)
                m->tenant[t].over_limit_explained = true;
        if (tenant_pool(m, t, 0) > pool_limit(m->tenant[t].granted))
            return "the generations' max are over what is granted";
        if (pool_taken(m, t) <= pool_limit(m->tenant[t].granted))
            m->tenant[t].over_limit_explained = false;
        else if (!m->tenant[t].over_limit_explained)
            return "pools and inherited memory over what is granted, and nothing forced it";
    }
    return NULL;
}
