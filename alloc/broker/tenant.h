/*
 * A tenant on a GPU: its account in the ledger and with the worker, its pools, and the parts of its grants.
 *
 * Grants of one tenant share it: what one container's process frees serves the next one's.
 */
#ifndef PC_BROKER_TENANT_H
#define PC_BROKER_TENANT_H

#include "alloc/broker/gpu.h"
#include "alloc/broker/page.h"
#include "alloc/broker/state.h"

struct pc_tenant {
    struct pc_list link; /* broker->tenants */
    struct pc_gpu *gpu;
    char name[PC_NAME_MAX];
    struct pc_ledger_tenant *ledger;
    struct pc_account *account;
    struct pc_list shares;      /* of its grants */
    struct pc_list generations; /* its pools, also inherited ones and those that are on their way out */
    struct pc_list seats;       /* its processes */
    struct pc_list wants;       /* requests for memory that are not answered yet, oldest first */
    bool busy;                  /* a driver job of its is under way: one at a time, so that a plan stays true */
    uint32_t wanted;            /* MiB, as on the pages */
};

/* A grant's part on one GPU. */
struct pc_share {
    struct pc_list link; /* tenant->shares */
    struct pc_tenant *tenant;
    struct pc_ledger_grant *ledger;
    struct pc_page_file *page; /* the grant's */
    unsigned index;            /* in the grant, its page and the protocol */
    uint64_t granted, cap;
};

/*
 * Adds a share to the tenant's account, which is opened with its first. All of share but link, tenant and ledger is
 * filled in. Errors: PC_ERR_OUT_OF_MEMORY (the sum over the card), PC_ERR_HOST_MEMORY.
 */
enum pc_status pc_tenant_join(struct pc_gpu *gpu, const char *name, const char *grant, struct pc_share *share,
                              struct pc_error *err);
/* Takes the share out again; the account is closed with the last one: it is idle then. */
void pc_tenant_leave(struct pc_share *share);

/* Changes what a share was granted and its cap. Errors as pc_ledger_tenant_resize; nothing has changed then. */
enum pc_status pc_share_resize(struct pc_share *share, uint64_t granted, uint64_t cap, struct pc_error *err);

/* Whether nothing is charged to it and nothing of its is under way. */
bool pc_tenant_idle(const struct pc_tenant *tenant);

/* Writes the pages of its grants. */
void pc_tenant_publish(struct pc_tenant *tenant);
void pc_tenant_set_wanted(struct pc_tenant *tenant, uint64_t bytes);

#endif
