/*
 * A want: one request for memory (a block, large memory, direct memory, a context), from its arrival to its answer.
 *
 * It is tried at once. Where a cap refuses it, pools that nobody uses are ended, siblings are asked for their idle
 * slabs (the page's `wanted`), and it waits a little: 50 ms for siblings, longer for memory that is on its way back to
 * the card. Where the driver has no memory although the books admit it, it is tried again for 200 ms, since the bytes
 * of a dead process lag; after that the promise is broken, counted and said.
 *
 * The answer comes exactly once, by done, either inside pc_want_start or later from the loop; not after pc_want_cancel.
 */
#ifndef PC_BROKER_WANT_H
#define PC_BROKER_WANT_H

#include "alloc/broker/generation.h"

enum pc_want_kind { PC_WANT_POOLED, PC_WANT_LARGE, PC_WANT_DIRECT, PC_WANT_CONTEXT };

struct pc_want_result {
    enum pc_status status;
    const struct pc_error *err;   /* where status is not PC_OK */
    const struct pc_block *block; /* pooled and large: the seat's from now on */
    struct pc_import *import;     /* pooled, where pool_fd is sent: has_fd is to be set once it is */
    int pool_fd, memory_fd;       /* -1: none. Closed after done returned */
};
typedef void (*pc_want_fn)(const struct pc_want_result *result, void *arg);

struct pc_want;

/* bytes is rounded already. Errors: PC_ERR_HOST_MEMORY; done is not called then. */
enum pc_status pc_want_start(struct pc_seat *seat, enum pc_want_kind kind, uint64_t bytes, pc_want_fn done, void *arg,
                             struct pc_error *err);
/* Nobody waits for the seat's wants any more. What a job under way brings is put back. */
void pc_want_cancel(struct pc_seat *seat);

/* Tries the tenant's waiting wants again, and refuses those whose time is over. */
void pc_want_retry(struct pc_tenant *tenant);

#endif
