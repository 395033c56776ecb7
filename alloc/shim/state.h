/*
 * The one process state of libpoolcap, and how a call begins.
 *
 * Lazy: nothing happens before the program's first call. No constructor, no destructor, no atexit: the driver may be
 * gone by then, and poolcapd learns of a process's end from the kernel.
 *
 * Locks, outermost first: shim.slow, then one GPU's heap lock. shim.slow guards the connection, contexts becoming
 * known, growth and giving back; it is held across round trips. Heap locks are held for tens of nanoseconds in the
 * steady state, and across event records and queries otherwise; never across a wait.
 *
 * Fork: a CUDA process's child can use neither CUDA nor this library. A page that the kernel wipes in the child
 * (MADV_WIPEONFORK, Linux 4.14) tells, for one load a call. The child keeps the socket open: it keeps the device files
 * open as well, and poolcapd must not take this process for ended before both are gone (facts, trap 10).
 */
#ifndef PC_SHIM_STATE_H
#define PC_SHIM_STATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "alloc/base/error.h"
#include "alloc/driver/driver.h"
#include "alloc/shim/lock.h"
#include "alloc/shim/poolcap.h"

struct shim_state {
    struct shim_lock slow;
    const _Atomic uint32_t *_Atomic alive; /* NULL: not started. Else its word: 1 here, 0 in a forked child */
    struct pc_cuda cu;                     /* set before alive */
};
extern struct shim_state shim;

/* True where the library has started and this is no forked child. */
static inline bool shim_alive(void)
{
    const _Atomic uint32_t *word = atomic_load_explicit(&shim.alive, memory_order_acquire);
    return shim_likely(word != NULL) && shim_likely(atomic_load_explicit(word, memory_order_relaxed) == 1);
}

/*
 * How every call but the fast ones begins: starts the library if need be. Loads the driver and calls cuInit; does not
 * connect. Errors: PC_ERR_NOT_INITIALISED; *forked is set, and PC_ERR_DENIED returned, in a forked child.
 */
enum pc_status shim_start(bool *forked, struct pc_error *err);

/* For tests: the driver that shim_start takes instead of loading one. Before the first call. */
void shim_use_driver(const struct pc_cuda *cu);

/* Nanoseconds of the monotonic clock; no system call. */
uint64_t shim_now(void);

/* --- text.c: what the caller is told. These set poolcap_last_error(). --- */

poolcap_status shim_fail(poolcap_status status, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
poolcap_status shim_fail_error(const struct pc_error *err);

/* shim_start, and what to return when it fails. */
poolcap_status shim_begin(void);

#endif
