/*
 * Frees that failed: a counter that never stops, the first 4096 addresses for forensics, and a
 * counter of those that found no place. Lock-free to count, safe from any thread; nothing aborts.
 */
#ifndef PC_POOL_LEAKS_H
#define PC_POOL_LEAKS_H

#include <stdint.h>

#include "alloc/base/error.h"

enum { PC_LEAKS_MAX = 4096 };

struct pc_leaks;

struct pc_leak {
    uint64_t address;
    uint64_t bytes;
    int code; /* CUresult of the failed free */
};

enum pc_status pc_leaks_create(struct pc_leaks **out, struct pc_error *err);
void pc_leaks_free(struct pc_leaks *leaks);

/* Records one failed free. leaks may be NULL. An address already recorded is counted but takes no second place. */
void pc_leaks_record(struct pc_leaks *leaks, uint64_t address, uint64_t bytes, int code);

struct pc_leaks_snapshot {
    uint64_t total;    /* failed frees ever */
    uint64_t overflow; /* of those, not kept below */
    unsigned count;
    struct pc_leak kept[PC_LEAKS_MAX];
};
/* Copies a consistent view into *out; never holds the lock while the caller works with it. */
void pc_leaks_read(struct pc_leaks *leaks, struct pc_leaks_snapshot *out);

#endif
