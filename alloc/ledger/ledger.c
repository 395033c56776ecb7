/* Accounts: opening, resizing and closing. */
#include "alloc/ledger/ledger.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/ledger/ledger_internal.h"

static void list_init(struct list *head)
{
    head->next = head->prev = head;
}

static void list_add(struct list *head, struct list *link)
{
    link->prev = head->prev;
    link->next = head;
    head->prev->next = link;
    head->prev = link;
}

static void list_remove(struct list *link)
{
    link->prev->next = link->next;
    link->next->prev = link->prev;
}

static enum pc_status no_memory(const char *what, struct pc_error *err)
{
    return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no memory for the account of a %s", what);
}

/* An account of size bytes with its name behind it, where the struct's name[] is. */
static void *account_alloc(size_t size, size_t name_at, const char *name)
{
    size_t length = strlen(name) + 1;
    size_t needed = name_at + length;
    char *account = calloc(1, needed > size ? needed : size);
    if (account != NULL)
        memcpy(account + name_at, name, length);
    return account;
}

#define ACCOUNT(type, name) account_alloc(sizeof(type), offsetof(type, name), name)

enum pc_status pc_ledger_create(struct pc_ledger **out, struct pc_error *err)
{
    struct pc_ledger *ledger = calloc(1, sizeof *ledger);
    if (ledger == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no memory for a ledger");
    list_init(&ledger->gpus);
    *out = ledger;
    return PC_OK;
}

/* Frees what hangs in a list of plain accounts (link is the first member of each). */
static void free_all(struct list *head)
{
    while (head->next != head) {
        struct list *link = head->next;
        list_remove(link);
        free(link);
    }
}

static void tenant_free(struct pc_ledger_tenant *tenant)
{
    list_each(link, &tenant->grants) free_all(&pc_container_of(link, struct pc_ledger_grant, link)->sessions);
    free_all(&tenant->grants);
    free_all(&tenant->generations);
    list_remove(&tenant->link);
    free(tenant);
}

void pc_ledger_free(struct pc_ledger *ledger)
{
    if (ledger == NULL)
        return;
    list_each(link, &ledger->gpus)
    {
        struct pc_ledger_gpu *gpu = pc_container_of(link, struct pc_ledger_gpu, link);
        while (gpu->tenants.next != &gpu->tenants)
            tenant_free(pc_container_of(gpu->tenants.next, struct pc_ledger_tenant, link));
    }
    free_all(&ledger->gpus);
    free(ledger);
}

enum pc_status pc_ledger_gpu_add(struct pc_ledger *ledger, const char *name, uint64_t capacity,
                                 struct pc_ledger_gpu **out, struct pc_error *err)
{
    struct pc_ledger_gpu *gpu = ACCOUNT(struct pc_ledger_gpu, name);
    if (gpu == NULL)
        return no_memory("GPU", err);
    gpu->ledger = ledger;
    gpu->capacity = capacity;
    list_init(&gpu->tenants);
    list_add(&ledger->gpus, &gpu->link);
    *out = gpu;
    return PC_OK;
}

enum pc_status pc_ledger_refuse(const char *level, const char *name, const char *limit_name, uint64_t limit,
                                const char *taken_name, uint64_t taken, uint64_t requested, struct pc_error *err)
{
    char limit_text[PC_BYTES_TEXT], taken_text[PC_BYTES_TEXT], requested_text[PC_BYTES_TEXT];
    return pc_error_set(err, PC_ERR_OUT_OF_MEMORY, 0, "%s %s: %s %s, %s %s, requested %s", level, name, limit_name,
                        pc_bytes_format(limit, limit_text), taken_name, pc_bytes_format(taken, taken_text),
                        pc_bytes_format(requested, requested_text));
}

static enum pc_status check_grant_and_cap(const char *name, uint64_t granted, uint64_t cap, struct pc_error *err)
{
    if (granted == 0 || cap == 0)
        return pc_error_set(err, PC_ERR_INVALID, 0, "tenant %s: granted and cap must be above 0", name);
    if (cap > granted)
        return pc_error_set(err, PC_ERR_INVALID, 0,
                            "tenant %s: cap of %" PRIu64 " bytes is over the granted %" PRIu64
                            "; a cap can only lower what is granted",
                            name, cap, granted);
    return PC_OK;
}

/* Whether the GPU can give granted beside what it has promised to others (without = what this tenant had). */
static enum pc_status check_promise(const struct pc_ledger_gpu *gpu, uint64_t without, uint64_t granted,
                                    struct pc_error *err)
{
    uint64_t others = gpu->granted - without;
    if (fits(gpu->capacity, others, granted))
        return PC_OK;
    return pc_ledger_refuse("gpu", gpu->name, "capacity", gpu->capacity, "granted to others", others, granted, err);
}

enum pc_status pc_ledger_tenant_add(struct pc_ledger_gpu *gpu, const char *name, uint64_t granted, uint64_t cap,
                                    struct pc_ledger_tenant **out, struct pc_error *err)
{
    enum pc_status status = check_grant_and_cap(name, granted, cap, err);
    if (status == PC_OK)
        status = check_promise(gpu, 0, granted, err);
    if (status != PC_OK)
        return status;
    struct pc_ledger_tenant *tenant = ACCOUNT(struct pc_ledger_tenant, name);
    if (tenant == NULL)
        return no_memory("tenant", err);
    tenant->gpu = gpu;
    tenant->granted = granted;
    tenant->cap = cap;
    list_init(&tenant->grants);
    list_init(&tenant->generations);
    list_add(&gpu->tenants, &tenant->link);
    gpu->tenants_open++;
    gpu->granted += granted;
    *out = tenant;
    return PC_OK;
}

uint64_t pc_ledger_pool_limit(uint64_t granted)
{
    uint64_t limit;
    return pc_round_up(granted, PC_POOL_GRANULE, &limit) ? limit : UINT64_MAX - UINT64_MAX % PC_POOL_GRANULE;
}

/* What counts against the pool limit. Unsettled bytes do too: a pool whose importers may still pin it is on the card.
 */
static uint64_t pool_taken(const struct pc_ledger_tenant *tenant)
{
    uint64_t taken;
    if (!pc_add(tenant->pool_max, tenant->inherited, &taken) || !pc_add(taken, tenant->unsettled, &taken))
        return UINT64_MAX;
    return taken;
}

enum pc_status pc_ledger_tenant_resize(struct pc_ledger_tenant *tenant, uint64_t granted, uint64_t cap,
                                       struct pc_error *err)
{
    enum pc_status status = check_grant_and_cap(tenant->name, granted, cap, err);
    if (status == PC_OK)
        status = check_promise(tenant->gpu, tenant->granted, granted, err);
    if (status != PC_OK)
        return status;
    /* Raising is never in the way, even where inherited memory is over the limit already. */
    if (granted < tenant->granted && pool_taken(tenant) > pc_ledger_pool_limit(granted))
        return pc_error_set(err, PC_ERR_BUSY, 0,
                            "tenant %s: cannot lower granted to %" PRIu64 " bytes: its pools may hold %" PRIu64,
                            tenant->name, granted, pool_taken(tenant));
    tenant->gpu->granted = tenant->gpu->granted - tenant->granted + granted;
    tenant->granted = granted;
    tenant->cap = cap;
    return PC_OK;
}

enum pc_status pc_ledger_tenant_remove(struct pc_ledger_tenant *tenant, struct pc_error *err)
{
    if (tenant->charged > 0 || tenant->grants_open > 0 || tenant->generations_open > 0)
        return pc_error_set(err, PC_ERR_BUSY, 0,
                            "tenant %s: still open: %" PRIu64 " bytes charged, %u grants, %u sessions, %u generations",
                            tenant->name, tenant->charged, tenant->grants_open, tenant->sessions_open,
                            tenant->generations_open);
    tenant->gpu->granted -= tenant->granted;
    tenant->gpu->tenants_open--;
    tenant_free(tenant);
    return PC_OK;
}

static enum pc_status check_grant_cap(const char *name, uint64_t cap, struct pc_error *err)
{
    if (cap == 0)
        return pc_error_set(err, PC_ERR_INVALID, 0, "grant %s: cap must be above 0", name);
    return PC_OK;
}

enum pc_status pc_ledger_grant_add(struct pc_ledger_tenant *tenant, const char *name, uint64_t cap,
                                   struct pc_ledger_grant **out, struct pc_error *err)
{
    enum pc_status status = check_grant_cap(name, cap, err);
    if (status != PC_OK)
        return status;
    struct pc_ledger_grant *grant = ACCOUNT(struct pc_ledger_grant, name);
    if (grant == NULL)
        return no_memory("grant", err);
    grant->tenant = tenant;
    grant->cap = cap;
    list_init(&grant->sessions);
    list_add(&tenant->grants, &grant->link);
    tenant->grants_open++;
    *out = grant;
    return PC_OK;
}

enum pc_status pc_ledger_grant_set_cap(struct pc_ledger_grant *grant, uint64_t cap, struct pc_error *err)
{
    enum pc_status status = check_grant_cap(grant->name, cap, err);
    if (status == PC_OK)
        grant->cap = cap;
    return status;
}

enum pc_status pc_ledger_grant_remove(struct pc_ledger_grant *grant, struct pc_error *err)
{
    if (grant->sessions_open > 0)
        return pc_error_set(err, PC_ERR_BUSY, 0, "grant %s: %u sessions are open", grant->name, grant->sessions_open);
    grant->tenant->grants_open--;
    list_remove(&grant->link);
    free(grant);
    return PC_OK;
}

enum pc_status pc_ledger_session_add(struct pc_ledger_grant *grant, struct pc_ledger_session **out,
                                     struct pc_error *err)
{
    struct pc_ledger_session *session = calloc(1, sizeof *session);
    if (session == NULL)
        return no_memory("session", err);
    session->grant = grant;
    list_add(&grant->sessions, &session->link);
    grant->sessions_open++;
    grant->tenant->sessions_open++;
    *out = session;
    return PC_OK;
}

enum pc_status pc_ledger_session_remove(struct pc_ledger_session *session, struct pc_error *err)
{
    struct pc_ledger_grant *grant = session->grant;
    uint64_t booked = session->blocks;
    for (int kind = 0; kind < PC_CHARGE_KINDS; kind++)
        booked += session->kinds[kind];
    if (booked > 0)
        return pc_error_set(err, PC_ERR_BUSY, 0, "grant %s: a session has %" PRIu64 " bytes booked", grant->name,
                            booked);
    grant->sessions_open--;
    grant->tenant->sessions_open--;
    list_remove(&session->link);
    free(session);
    return PC_OK;
}

uint64_t pc_ledger_generation_room(const struct pc_ledger_tenant *tenant)
{
    uint64_t room = left_of(pc_ledger_pool_limit(tenant->granted), pool_taken(tenant));
    return room - room % PC_POOL_GRANULE;
}

enum pc_status pc_ledger_generation_add(struct pc_ledger_tenant *tenant, uint64_t max,
                                        struct pc_ledger_generation **out, struct pc_error *err)
{
    if (max == 0 || max % PC_POOL_GRANULE != 0)
        return pc_error_set(err, PC_ERR_INVALID, 0,
                            "tenant %s: a generation of %" PRIu64 " bytes; it must be a multiple of 32Mi, not 0",
                            tenant->name, max);
    if (max > pc_ledger_generation_room(tenant))
        return pc_ledger_refuse("tenant", tenant->name, "granted", pc_ledger_pool_limit(tenant->granted),
                                "pools may hold", pool_taken(tenant), max, err);
    struct pc_ledger_generation *generation = calloc(1, sizeof *generation);
    if (generation == NULL)
        return no_memory("generation", err);
    generation->tenant = tenant;
    generation->max = max;
    list_add(&tenant->generations, &generation->link);
    tenant->generations_open++;
    tenant->pool_max += max;
    *out = generation;
    return PC_OK;
}

enum pc_status pc_ledger_generation_remove(struct pc_ledger_generation *generation, bool keep_pending,
                                           struct pc_error *err)
{
    struct pc_ledger_tenant *tenant = generation->tenant;
    if (generation->used > 0)
        return pc_error_set(err, PC_ERR_BUSY, 0, "tenant %s: a generation has blocks of %" PRIu64 " bytes",
                            tenant->name, generation->used);
    tenant->pool_max -= generation->max;
    tenant->pool_reserved -= generation->reserved;
    if (keep_pending) {
        tenant->unsettled += generation->reserved;
        tenant->kinds[PC_CHARGE_PENDING] += generation->reserved;
    } else {
        pc_ledger_uncharge(tenant, generation->reserved);
    }
    tenant->generations_open--;
    list_remove(&generation->link);
    free(generation);
    return PC_OK;
}
