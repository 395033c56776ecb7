/*
 * The accounts behind ledger.h. Every level keeps its own sums, so booking is O(1) whatever the number of accounts;
 * check.c alone compares them with their leaves. ledger.c opens and closes accounts, charge.c books, view.c reads.
 */
#ifndef PC_LEDGER_LEDGER_INTERNAL_H
#define PC_LEDGER_LEDGER_INTERNAL_H

#include "alloc/base/cleanup.h"
#include "alloc/ledger/ledger.h"

/* A circular list: O(1) to leave, and empty when it points at itself. */
struct list {
    struct list *next, *prev;
};

#define list_each(link, head) for (struct list *link = (head)->next; link != (head); link = link->next)

struct pc_ledger {
    struct list gpus;
    uint64_t over_releases;
};

struct pc_ledger_gpu {
    struct list link; /* in ledger->gpus */
    struct pc_ledger *ledger;
    struct list tenants;
    unsigned tenants_open;
    uint64_t capacity;
    uint64_t granted; /* sum of the tenants' */
    uint64_t charged; /* sum of the tenants'; no sum below it is ever larger, so it is the one that could overflow */
    char name[];
};

struct pc_ledger_tenant {
    struct list link; /* in gpu->tenants */
    struct pc_ledger_gpu *gpu;
    struct list grants, generations;
    unsigned grants_open, sessions_open, generations_open;
    uint64_t granted, cap;
    uint64_t charged; /* pool_reserved + every kind + inherited */
    uint64_t peak;
    uint64_t pool_max, pool_reserved, pool_used; /* sums of the generations' */
    uint64_t kinds[PC_CHARGE_KINDS];             /* sums of the sessions', and unsettled in PENDING */
    uint64_t unsettled;                          /* reserved bytes of closed generations, not yet seen to be free */
    uint64_t inherited;
    uint64_t refused;
    char name[];
};

struct pc_ledger_generation {
    struct list link; /* in tenant->generations */
    struct pc_ledger_tenant *tenant;
    uint64_t max, reserved, used;
};

struct pc_ledger_grant {
    struct list link; /* in tenant->grants */
    struct pc_ledger_tenant *tenant;
    struct list sessions;
    unsigned sessions_open;
    uint64_t cap;
    uint64_t charged; /* blocks + every kind */
    uint64_t blocks;
    uint64_t kinds[PC_CHARGE_KINDS];
    char name[];
};

struct pc_ledger_session {
    struct list link; /* in grant->sessions */
    struct pc_ledger_grant *grant;
    uint64_t blocks;
    uint64_t kinds[PC_CHARGE_KINDS];
};

static inline uint64_t at_most(uint64_t n, uint64_t limit)
{
    return n < limit ? n : limit;
}

/* What is left of limit after used; 0 when used is beyond it. */
static inline uint64_t left_of(uint64_t limit, uint64_t used)
{
    return used < limit ? limit - used : 0;
}

/* Whether more fits under limit beside charged, which may be over it already. */
static inline bool fits(uint64_t limit, uint64_t charged, uint64_t more)
{
    return charged <= limit && more <= limit - charged;
}

/* Pool memory that is charged and holds no block: the next block may have it without growth. */
static inline uint64_t tenant_idle(const struct pc_ledger_tenant *tenant)
{
    return tenant->pool_reserved - tenant->pool_used;
}

/* What the maxSize of a tenant's generations may come to: the driver rounds up to the granule, so do we. */
uint64_t pc_ledger_pool_limit(uint64_t granted);

/* Refuses with the text that every refusal has. limit_name is "cap" or what else the level calls its limit. */
enum pc_status pc_ledger_refuse(const char *level, const char *name, const char *limit_name, uint64_t limit,
                                const char *taken_name, uint64_t taken, uint64_t requested, struct pc_error *err);

/* charge.c: the two that change what a tenant is charged, on its own level and the GPU's. No check. */
void pc_ledger_charge(struct pc_ledger_tenant *tenant, uint64_t bytes);
void pc_ledger_uncharge(struct pc_ledger_tenant *tenant, uint64_t bytes);

#endif
