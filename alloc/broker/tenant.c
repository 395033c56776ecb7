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

/* The sums over its shares, without `skip`, which may be NULL. */
static void add_up(const struct pc_tenant *tenant, const struct pc_share *skip, uint64_t *granted, uint64_t *cap)
{
    const struct pc_share *share;
    *granted = *cap = 0;
    pc_list_each(share, &tenant->shares, link) {
        if (share == skip)
            continue;
        *granted += share->granted;
        *cap += share->cap;
    }
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
    uint64_t granted, cap;
    add_up(tenant, NULL, &granted, &cap);
    return pc_ledger_tenant_resize(tenant->ledger, granted + share->granted, cap + share->cap, err);
}

/*
 * What is left without a share. The pools may already hold (or be allowed to hold) more than what the others were
 * granted; then the promise stays until they are gone, and only the cap falls.
 */
static void narrow(struct pc_tenant *tenant)
{
    uint64_t granted, cap;
    struct pc_ledger_tenant_view view;
    add_up(tenant, NULL, &granted, &cap);
    if (cap == 0 || pc_ledger_tenant_resize(tenant->ledger, granted, cap, NULL) == PC_OK)
        return;
    pc_ledger_tenant_read(tenant->ledger, &view);
    pc_ledger_tenant_resize(tenant->ledger, view.granted, cap, NULL);
}

enum pc_status pc_tenant_join(struct pc_gpu *gpu, const char *name, const char *grant, struct pc_share *share,
                              struct pc_error *err)
{
    enum pc_status status = pc_gpu_check(gpu, err);
    struct pc_tenant *tenant = find(gpu, name);
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
    pc_list_remove(&share->link);
    share->tenant = NULL;
    if (pc_list_empty(&tenant->shares))
        close_account(tenant);
    else
        narrow(tenant);
}

enum pc_status pc_share_resize(struct pc_share *share, uint64_t granted, uint64_t cap, struct pc_error *err)
{
    uint64_t others_granted, others_cap;
    struct pc_ledger_tenant_view view;
    add_up(share->tenant, share, &others_granted, &others_cap);
    pc_ledger_tenant_read(share->tenant->ledger, &view);
    uint64_t all = others_granted + granted;
    /* A promise that outlived its grant (see narrow) is not taken back by changing a cap. */
    if (granted == share->granted && all < view.granted)
        all = view.granted;
    enum pc_status status = pc_ledger_tenant_resize(share->tenant->ledger, all, others_cap + cap, err);
    if (status == PC_OK)
        status = pc_ledger_grant_set_cap(share->ledger, cap, err);
    if (status != PC_OK)
        return status;
    share->granted = granted;
    share->cap = cap;
    pc_tenant_publish(share->tenant);
    pc_broker_changed(share->tenant->gpu->broker);
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
