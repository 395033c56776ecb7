/*
 * The thread of a GPU: makes all its driver calls, one at a time.
 *
 * The driver's own lock lets one tenant starve all others (facts: 4 tenants looping 1 GiB kept a small one from 5,000
 * rounds for two minutes). So every tenant has an account with a queue of jobs, and the worker always serves the
 * account with the least driver time used. A job is a function that makes one bounded driver call each time it is
 * called; after each call the choice is made again, so the wait of a small tenant is bounded by one such call, however
 * many neighbours there are.
 *
 * An account that becomes active starts at the time of the least served active one: sleeping earns no credit, and what
 * was used before is not forgotten while others are active.
 *
 * Thread rules: everything here is called by the loop thread; a job's step runs on the worker, its done on the loop.
 */
#ifndef PC_BROKER_WORKER_H
#define PC_BROKER_WORKER_H

#include <stdbool.h>
#include <stdint.h>

#include "alloc/base/error.h"
#include "alloc/base/loop.h"
#include "alloc/broker/list.h"

struct pc_worker;
struct pc_account;

enum pc_step { PC_STEP_MORE, PC_STEP_DONE };

/* One piece of work, embedded in the struct that knows what it is about. */
struct pc_job {
    struct pc_list link;
    struct pc_account *account;
    enum pc_step (*step)(struct pc_job *job); /* on the worker: one bounded driver call */
    void (*done)(struct pc_job *job);         /* on the loop thread; may free the job */
};

/* Errors: PC_ERR_HOST_MEMORY, PC_ERR_IO (no thread). */
enum pc_status pc_worker_create(struct pc_loop *loop, struct pc_worker **out, struct pc_error *err);

/*
 * Ends the thread after the call it is in; jobs that are not finished never call done. A thread that hangs in the
 * driver cannot be ended: after wait_ms it is left behind, with all that it may still use, and false is returned. NULL
 * is allowed.
 */
bool pc_worker_stop(struct pc_worker *worker, unsigned wait_ms);

/* weight is how fast its time runs: 1 for tenants; an account of weight 4 gets a quarter of a tenant's share. */
enum pc_status pc_account_create(struct pc_worker *worker, unsigned weight, struct pc_account **out,
                                 struct pc_error *err);
void pc_account_free(struct pc_account *account); /* it has no jobs. NULL is allowed */

/* Jobs of one account run one after the other, in order. */
void pc_worker_submit(struct pc_account *account, struct pc_job *job);

/* Since when the running call runs (pc_loop_now_ns); 0 while idle. */
uint64_t pc_worker_running_since(struct pc_worker *worker);

#endif
