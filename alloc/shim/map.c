#include "alloc/shim/map.h"

#include "alloc/shim/meta.h"

struct shim_map_leaf *_Atomic shim_map_root[1 << SHIM_MAP_BITS];

#define GRANULE (1ull << SHIM_MAP_SHIFT)
#define LEAF_MASK ((1ull << SHIM_MAP_BITS) - 1)

/* Two heaps may want the same leaf at once: the loser gives its own back. */
static struct shim_map_leaf *leaf_of(uint64_t granule)
{
    struct shim_map_leaf *_Atomic *place = &shim_map_root[granule >> SHIM_MAP_BITS];
    struct shim_map_leaf *leaf = atomic_load_explicit(place, memory_order_acquire);
    if (leaf != NULL)
        return leaf;
    struct shim_map_leaf *made = shim_pages_get(sizeof *made);
    if (made == NULL)
        return NULL;
    if (atomic_compare_exchange_strong_explicit(place, &leaf, made, memory_order_acq_rel, memory_order_acquire))
        return made;
    shim_pages_put(made, sizeof *made);
    return leaf;
}

static void store(uint64_t first, uint64_t end, struct shim_slab *slab)
{
    for (uint64_t granule = first; granule < end; granule++) {
        struct shim_map_leaf *leaf =
            atomic_load_explicit(&shim_map_root[granule >> SHIM_MAP_BITS], memory_order_acquire);
        atomic_store_explicit(&leaf->slab[granule & LEAF_MASK], slab, memory_order_release);
    }
}

bool shim_map_set(uint64_t base, uint64_t bytes, struct shim_slab *slab)
{
    uint64_t first = base >> SHIM_MAP_SHIFT, end = (base + bytes) >> SHIM_MAP_SHIFT;
    if (base % GRANULE != 0 || bytes % GRANULE != 0 || bytes == 0 || base + bytes < base ||
        end >> (2 * SHIM_MAP_BITS) != 0)
        return false;
    for (uint64_t granule = first; granule < end; granule++)
        if (leaf_of(granule) == NULL || shim_map_find(granule << SHIM_MAP_SHIFT) != NULL)
            return false;
    store(first, end, slab);
    return true;
}

void shim_map_clear(uint64_t base, uint64_t bytes)
{
    store(base >> SHIM_MAP_SHIFT, (base + bytes) >> SHIM_MAP_SHIFT, NULL);
}
