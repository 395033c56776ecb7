#include "alloc/broker/tenant.h"

#include <stdlib.h>
#include <string.h>

#include "alloc/base/bytes.h"
#include "alloc/base/log.h"

static struct pc_tenant *find(const struct pc_gpu *gpu, const char *name)
{
    struct pc_tenant *tenant;
    pc_list_each(tenant, &gpu->broker->tenants, link)
        if (tenant->gpu == gpu && strcmp(tenant->name, name) == 0)
            return tenant;
    return NULL;
}

struct sums {
    uint64_t promise, cap;
};

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The sums over its shares, without `skip`, which may be NULL. The cap is not limited yet: see limit. */
static struct sums add_up(const struct pc_tenant *tenant, const struct pc_share *skip)
{
    const struct pc_share *share;
    struct sums sums = {0};
    pc_list_each(share, &tenant->shares, link) {
        if (share == skip)
            continue;
        sums.promise += share->granted - share->shared;
        sums.cap += share->cap;
    }
    return sums;
}

/*
 * Of `bytes` that only this share counted, how many the shares behind it may still have: with `take` true their shared
 * shrinks by them, in the books too.
 */
static uint64_t hand_on(const struct pc_share *share, uint64_t bytes, bool take)
{
    struct pc_list *end = &share->tenant->shares;
    uint64_t left = bytes;
    for (struct pc_list *at = share->link.next; at != end && left > 0; at = at->next) {
        struct pc_share *later = pc_container_of(at, struct pc_share, link);
        uint64_t part = smaller(left, later->shared);
        left -= part;
        if (!take || part == 0)
            continue;
        later->shared -= part;
        if (later->record != NULL)
            pc_books_set(&later->record->shared[later->index], later->shared);
    }
    return bytes - left;
}

/*
 * Brings the ledger to the sums. The pools may already hold (or be allowed to hold) more than is promised from now on;
 * then, unless `strict`, the promise stays until they are gone (pc_tenant_settle), and only the cap changes.
 */
static enum pc_status resize(struct pc_tenant *tenant, struct sums sums, bool strict, struct pc_error *err)
{
    struct pc_ledger_tenant_view view;
    uint64_t cap = smaller(sums.cap, sums.promise);
    enum pc_status status = pc_ledger_tenant_resize(tenant->ledger, sums.promise, cap, err);
    bool outlives = status == PC_ERR_BUSY && !strict;
    if (outlives) {
        pc_ledger_tenant_read(tenant->ledger, &view);
        status = pc_ledger_tenant_resize(tenant->ledger, view.granted, cap, err);
    }
    if (status == PC_OK)
        tenant->outlived = outlives;
    return status;
}

static enum pc_status open_account(struct pc_gpu *gpu, const char *name, uint64_t granted, uint64_t cap,
                                   struct pc_tenant **out, struct pc_error *err)
{
    struct pc_tenant *tenant = calloc(1, sizeof *tenant);
    if (tenant == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no memory for a tenant");
    enum pc_status status = pc_account_create(gpu->worker, 1, &tenant->account, err);
    if (status == PC_OK)
        status = pc_ledger_tenant_add(gpu->ledger, name, granted, cap, &tenant->ledger, err);
    if (status != PC_OK) {
        pc_account_free(tenant->account);
        free(tenant);
        return status;
    }
    tenant->gpu = gpu;
    memcpy(tenant->name, name, strlen(name) + 1);
    pc_list_init(&tenant->shares);
    pc_list_init(&tenant->generations);
    pc_list_init(&tenant->seats);
    pc_list_init(&tenant->wants);
    pc_list_append(&gpu->broker->tenants, &tenant->link);
    *out = tenant;
    return PC_OK;
}

static void close_account(struct pc_tenant *tenant)
{
    struct pc_error err;
    if (pc_ledger_tenant_remove(tenant->ledger, &err) != PC_OK) {
        pc_log_error("tenant", "%s stays in the books: %s", tenant->name, err.text);
        return;
    }
    pc_list_remove(&tenant->link);
    pc_account_free(tenant->account);
    free(tenant);
}

/* Makes room for one share more in an account that is open. */
static enum pc_status widen(struct pc_tenant *tenant, const struct pc_share *share, struct pc_error *err)
{
    struct sums sums = add_up(tenant, NULL);
    if (!pc_add(sums.promise, share->granted - share->shared, &sums.promise) ||
        !pc_add(sums.cap, share->cap, &sums.cap))
        return pc_error_set(err, PC_ERR_INVALID, 0, "the tenant's grants together are over 2^64 bytes");
    return resize(tenant, sums, false, err);
}

static void narrow(struct pc_tenant *tenant)
{
    struct pc_error err;
    struct sums sums = add_up(tenant, NULL);
    if (sums.cap > 0 && resize(tenant, sums, false, &err) != PC_OK)
        pc_log_error("tenant", "%s keeps what it was promised: %s", tenant->name, err.text);
}

enum pc_status pc_tenant_join(struct pc_gpu *gpu, const char *name, const char *grant, struct pc_share *share,
                              struct pc_error *err)
{
    enum pc_status status = pc_gpu_check(gpu, err);
    struct pc_tenant *tenant = find(gpu, name);
    share->shared = tenant != NULL ? smaller(share->shared, add_up(tenant, NULL).promise) : 0;
    if (status == PC_OK)
        status = tenant == NULL ? open_account(gpu, name, share->granted, share->cap, &tenant, err)
                                : widen(tenant, share, err);
    if (status != PC_OK)
        return status;
    status = pc_ledger_grant_add(tenant->ledger, grant, share->cap, &share->ledger, err);
    if (status == PC_OK) {
        share->tenant = tenant;
        pc_list_append(&tenant->shares, &share->link);
        return PC_OK;
    }
    if (pc_list_empty(&tenant->shares))
        close_account(tenant);
    else
        narrow(tenant);
    return status;
}

void pc_tenant_leave(struct pc_share *share)
{
    struct pc_tenant *tenant = share->tenant;
    struct pc_error err;
    if (pc_ledger_grant_remove(share->ledger, &err) != PC_OK)
        pc_log_error("tenant", "%s: %s", tenant->name, err.text);
    hand_on(share, share->granted - share->shared, true);
    pc_list_remove(&share->link);
    share->tenant = NULL;
    if (pc_list_empty(&tenant->shares))
        close_account(tenant);
    else
        narrow(tenant);
}

uint64_t pc_tenant_promise_without(const struct pc_share *share, bool *others)
{
    uint64_t handed = hand_on(share, share->granted - share->shared, false);
    *others = handed > 0;
    return add_up(share->tenant, share).promise + handed;
}

void pc_tenant_restore_promise(struct pc_tenant *tenant, struct pc_share *first, uint64_t promise)
{
    uint64_t now = add_up(tenant, NULL).promise;
    struct pc_share before = {.tenant = tenant, .link.next = &first->link}; /* stands where the one that left stood */
    if (now < promise)
        hand_on(&before, promise - now, true);
    narrow(tenant);
}

void pc_tenant_settle(struct pc_tenant *tenant)
{
    if (tenant->outlived)
        narrow(tenant);
}

void pc_share_record(struct pc_share *share)
{
    if (share->record == NULL)
        return;
    pc_books_set(&share->record->shared[share->index], share->shared);
    pc_books_set(&share->record->granted[share->index], share->granted);
    pc_books_set(&share->record->cap[share->index], share->cap);
}

enum pc_status pc_share_resize(struct pc_share *share, uint64_t granted, uint64_t cap, struct pc_error *err)
{
    struct pc_tenant *tenant = share->tenant;
    struct sums sums = add_up(tenant, share);
    uint64_t shared = smaller(share->shared, granted);
    uint64_t alone = granted - shared, before = share->granted - share->shared;
    uint64_t fell = before > alone ? before - alone : 0;
    if (!pc_add(sums.promise, alone + hand_on(share, fell, false), &sums.promise) || !pc_add(sums.cap, cap, &sums.cap))
        return pc_error_set(err, PC_ERR_INVALID, 0, "the tenant's grants together are over 2^64 bytes");
    enum pc_status status = resize(tenant, sums, granted < share->granted, err);
    if (status == PC_OK)
        status = pc_ledger_grant_set_cap(share->ledger, cap, err);
    if (status != PC_OK)
        return status;
    share->granted = granted;
    share->cap = cap;
    share->shared = shared;
    pc_share_record(share);
    hand_on(share, fell, true); /* after the record: a poolcapd that finds only that lowers the others by itself */
    pc_tenant_publish(tenant);
    pc_broker_changed(tenant->gpu->broker);
    return PC_OK;
}

bool pc_tenant_idle(const struct pc_tenant *tenant)
{
    struct pc_ledger_tenant_view view;
    pc_ledger_tenant_read(tenant->ledger, &view);
    return view.charged == 0 && view.sessions == 0 && !tenant->busy && pc_list_empty(&tenant->generations);
}

void pc_tenant_publish(struct pc_tenant *tenant)
{
    struct pc_share *share;
    pc_list_each(share, &tenant->shares, link) {
        struct pc_ledger_grant_view view;
        pc_ledger_grant_read(share->ledger, &view);
        struct pc_page_figures figures = {
            .cap = view.cap, .charged = view.charged, .room = pc_ledger_room(share->ledger)};
        if (share->page != NULL)
            pc_page_publish(share->page, share->index, &figures);
    }
}

void pc_tenant_set_wanted(struct pc_tenant *tenant, uint64_t bytes)
{
    struct pc_share *share;
    uint32_t mib = (uint32_t)((bytes + PC_MIB - 1) / PC_MIB);
    if (mib == tenant->wanted)
        return;
    tenant->wanted = mib;
    pc_list_each(share, &tenant->shares, link)
        if (share->page != NULL)
            pc_page_set_wanted(share->page, share->index, mib);
}
