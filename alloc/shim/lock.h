/*
 * The shim's lock: one word, a short spin, then a futex.
 *
 * Not a pthread mutex: before glibc 2.34 parts of those lived in libpthread, which a program need not have loaded, and
 * the shim needs libc alone.
 */
#ifndef PC_SHIM_LOCK_H
#define PC_SHIM_LOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define shim_likely(x) __builtin_expect(!!(x), 1)
#define shim_unlikely(x) __builtin_expect(!!(x), 0)

struct shim_lock {
    _Atomic uint32_t word; /* 0: free, 1: taken, 2: taken and somebody may sleep. All zero is a free lock */
};

void shim_lock_wait(struct shim_lock *lock);
void shim_lock_wake(struct shim_lock *lock);

static inline bool shim_lock_try(struct shim_lock *lock)
{
    uint32_t expected = 0;
    return atomic_compare_exchange_strong_explicit(&lock->word, &expected, 1, memory_order_acquire,
                                                   memory_order_relaxed);
}

static inline void shim_lock_take(struct shim_lock *lock)
{
    if (shim_unlikely(!shim_lock_try(lock)))
        shim_lock_wait(lock);
}

static inline void shim_lock_give(struct shim_lock *lock)
{
    if (shim_unlikely(atomic_exchange_explicit(&lock->word, 0, memory_order_release) == 2))
        shim_lock_wake(lock);
}

#endif
