/*
 * A tenant on a GPU: its account in the ledger and with the worker, its pools, and the parts of its grants.
 *
 * Grants of one tenant share it: what one container's process frees serves the next one's.
 *
 * Shared units. A pod's app containers get the units of its init containers again, so a share may say that `shared` of
 * its bytes are units that shares which joined before it hold already. Then
 *
 *     promise of the tenant  =  sum of (granted - shared) over its shares
 *     cap of the tenant      =  the smaller of its promise and the sum of its shares' caps
 *
 * and each prefix of the shares, in the order of their joining, is promised at least what its units come to. When a
 * share leaves, the ones that joined after it may be what keeps its own units alive: their `shared` shrinks, the oldest
 * first, by up to what it alone had counted. Which units a share has is not known here, only how many; so the promise
 * can stay above what the rest needs (never below) until one of those leaves too. Shares that joined before it cannot
 * have its own units, and stay as they are: a grant that is made and dropped again leaves no trace.
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
    struct pc_list shares;      /* of its grants, in the order of their joining */
    struct pc_list generations; /* its pools, also inherited ones and those that are on their way out */
    struct pc_list seats;       /* its processes */
    struct pc_list wants;       /* requests for memory that are not answered yet, oldest first */
    bool busy;                  /* a driver job of its is under way: one at a time, so that a plan stays true */
    uint32_t wanted;            /* MiB, as on the pages */
    bool outlived;              /* the ledger promises more than the shares need, since pools may hold it still */
};

/* A grant's part on one GPU. */
struct pc_share {
    struct pc_list link; /* tenant->shares */
    struct pc_tenant *tenant;
    struct pc_ledger_grant *ledger;
    struct pc_page_file *page; /* the grant's */
    unsigned index;            /* in the grant, its page and the protocol */
    uint64_t granted, cap;
    uint64_t shared;               /* of granted, counted with shares that joined before */
    struct pc_books_grant *record; /* the grant's; NULL: not in the books yet */
};

/*
 * Adds a share to the tenant's account, which is opened with its first. All of share but link, tenant and ledger is
 * filled in; shared is lowered to what the others hold. Errors: PC_ERR_OUT_OF_MEMORY (the sum over the card),
 * PC_ERR_HOST_MEMORY.
 */
enum pc_status pc_tenant_join(struct pc_gpu *gpu, const char *name, const char *grant, struct pc_share *share,
                              struct pc_error *err);
/* Takes the share out again; the account is closed with the last one: it is idle then. */
void pc_tenant_leave(struct pc_share *share);
/* What the tenant will be promised once the share has left; *others: whether the `shared` of others changes by it. */
uint64_t pc_tenant_promise_without(const struct pc_share *share, bool *others);

/* After a poolcapd was killed while a share left: the shares from `first` on shrink until the promise is this high. */
void pc_tenant_restore_promise(struct pc_tenant *tenant, struct pc_share *first, uint64_t promise);

/* Lowers a promise that outlived its share, where the pools allow it by now. */
void pc_tenant_settle(struct pc_tenant *tenant);

/* Changes what a share was granted and its cap. Errors as pc_ledger_tenant_resize; nothing has changed then. */
enum pc_status pc_share_resize(struct pc_share *share, uint64_t granted, uint64_t cap, struct pc_error *err);

/* Stores its figures in the books. */
void pc_share_record(struct pc_share *share);

/* Whether nothing is charged to it and nothing of its is under way. */
bool pc_tenant_idle(const struct pc_tenant *tenant);

/* Writes the pages of its grants. */
void pc_tenant_publish(struct pc_tenant *tenant);
void pc_tenant_set_wanted(struct pc_tenant *tenant, uint64_t bytes);

#endif
