/*
 * Which slab an address lies in: a table of two levels over granules of 2 MiB, the page size of the device.
 *
 * Thread rules: any thread may look up, without a lock; what it finds is only a candidate until it has been confirmed
 * under the lock of the slab's heap. Set and clear under that lock.
 */
#ifndef PC_SHIM_MAP_H
#define PC_SHIM_MAP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct shim_slab;

enum { SHIM_MAP_SHIFT = 21, SHIM_MAP_BITS = 14 }; /* 2^49: all of a GPU's unified addresses */

struct shim_map_leaf {
    struct shim_slab *_Atomic slab[1 << SHIM_MAP_BITS];
};
extern struct shim_map_leaf *_Atomic shim_map_root[1 << SHIM_MAP_BITS];

static inline struct shim_slab *shim_map_find(uint64_t addr)
{
    uint64_t granule = addr >> SHIM_MAP_SHIFT;
    if (granule >> (2 * SHIM_MAP_BITS) != 0)
        return NULL;
    struct shim_map_leaf *leaf = atomic_load_explicit(&shim_map_root[granule >> SHIM_MAP_BITS], memory_order_acquire);
    if (leaf == NULL)
        return NULL;
    return atomic_load_explicit(&leaf->slab[granule & ((1 << SHIM_MAP_BITS) - 1)], memory_order_acquire);
}

/*
 * False, and nothing set, when the range is not made of whole granules, lies too high, meets another slab, or host
 * memory is short.
 */
bool shim_map_set(uint64_t base, uint64_t bytes, struct shim_slab *slab);
void shim_map_clear(uint64_t base, uint64_t bytes);

#endif
