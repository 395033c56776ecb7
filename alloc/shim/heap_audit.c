/* Compares every record of a heap with every other; tests call it, nothing else does. */
#include <stddef.h>

#include "alloc/shim/heap.h"
#include "alloc/shim/map.h"

struct totals {
    uint64_t live, blocks_live, free_blocks;
};

static const char *audit_region(const struct shim_region *region, struct totals *totals);

static const char *audit_block(const struct shim_region *region, const struct shim_block *block, struct totals *totals)
{
    uint64_t unit = (block->addr - region->base) >> region->shift;
    if (block->region != region || region->index[unit] != block)
        return "a block is not where the index says";
    if (block->bytes == 0 || (block->bytes & ((1ull << region->shift) - 1)) != 0)
        return "a block is not made of whole units";
    switch (block->state) {
    case SHIM_BLOCK_LIVE:
        totals->live += block->bytes;
        totals->blocks_live++;
        return NULL;
    case SHIM_BLOCK_QUICK:
    case SHIM_BLOCK_FREE:
        totals->free_blocks++;
        return block->owner != NULL ? NULL : "a free block has no owner";
    case SHIM_BLOCK_AREA:
        if (block->area->region.parent != block || block->area->region.bytes != block->bytes)
            return "an area does not fill its block";
        return audit_region(&block->area->region, totals);
    default:
        return "a block has no state";
    }
}

static const char *audit_region(const struct shim_region *region, struct totals *totals)
{
    uint64_t at = region->base;
    const struct shim_block *before = NULL;
    for (const struct shim_block *block = region->first; block != NULL; before = block, block = block->right) {
        if (block->addr != at || block->left != before)
            return "blocks overlap, leave a gap, or are linked wrongly";
        const char *wrong = audit_block(region, block, totals);
        if (wrong != NULL)
            return wrong;
        at += block->bytes;
    }
    return at == region->base + region->bytes ? NULL : "blocks do not cover their region";
}

static const char *audit_bins(const struct shim_owner *owner, uint64_t *count)
{
    for (unsigned tier = 0; tier < SHIM_TIERS; tier++) {
        for (unsigned class = 0; class < SHIM_CLASSES; class ++) {
            const struct shim_block *head = owner->bins[tier].head[class];
            if ((head != NULL) != ((owner->bins[tier].map[class / 64] >> (class % 64) & 1) != 0))
                return "a bin's bit is wrong";
            for (const struct shim_block *block = head; block != NULL; block = block->next, (*count)++)
                if (block->state != SHIM_BLOCK_FREE || block->owner != owner || block->region->tier != tier ||
                    shim_class(block->bytes) != class)
                    return "a block is in the wrong bin";
        }
    }
    return NULL;
}

static const char *audit_owner(const struct shim_heap *heap, const struct shim_owner *owner, uint64_t *free_blocks)
{
    uint64_t count = 0;
    const char *wrong = audit_bins(owner, &count);
    for (unsigned class = 0; wrong == NULL && class < SHIM_CLASSES; class ++)
        for (const struct shim_block *block = owner->quick[class]; block != NULL; block = block->next, count++)
            if (block->state != SHIM_BLOCK_QUICK || block->owner != owner || block->class != class)
                wrong = "a block is in the wrong quick list";
    for (const struct shim_slab *slab = heap->slabs; slab != NULL; slab = slab->next)
        if (slab->large && slab->region.first->state == SHIM_BLOCK_FREE && slab->region.first->owner == owner)
            count++;
    if (wrong == NULL && count != owner->blocks)
        wrong = "an owner miscounts its blocks";
    *free_blocks += count;
    return wrong;
}

static const char *audit_slabs(const struct shim_heap *heap, struct totals *totals)
{
    uint64_t held = 0, empty = 0, live_before;
    for (const struct shim_slab *slab = heap->slabs; slab != NULL; slab = slab->next) {
        live_before = totals->blocks_live;
        const char *wrong = audit_region(&slab->region, totals);
        if (wrong != NULL)
            return wrong;
        if (totals->blocks_live - live_before != slab->live)
            return "a slab miscounts its live blocks";
        if (shim_map_find(slab->region.base) != slab ||
            shim_map_find(slab->region.base + slab->region.bytes - 1) != slab)
            return "a slab is not in the map";
        held += slab->region.bytes;
        empty += slab->live == 0 ? slab->region.bytes : 0;
    }
    if (held != heap->held || empty != heap->empty || totals->live != heap->live)
        return "the heap's sums are wrong";
    return NULL;
}

const char *shim_heap_audit(const struct shim_heap *heap, struct shim_owner *const *owners, unsigned count)
{
    struct totals totals = {0};
    uint64_t listed = 0;
    const char *wrong = audit_slabs(heap, &totals);
    if (wrong == NULL)
        wrong = audit_owner(heap, &heap->clean, &listed);
    for (unsigned i = 0; wrong == NULL && i < count; i++)
        wrong = audit_owner(heap, owners[i], &listed);
    if (wrong == NULL && listed != totals.free_blocks)
        wrong = "a free block is in no list";
    return wrong;
}
