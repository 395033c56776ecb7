#include "alloc/shim/slab.h"

#include <stdatomic.h>
#include <stddef.h>

#include "alloc/shim/heap.h"
#include "alloc/shim/map.h"

static uint64_t unit_of(const struct shim_region *region, uint64_t addr)
{
    return (addr - region->base) >> region->shift;
}

static struct shim_block *block_new(struct shim_heap *heap, struct shim_region *region, uint64_t addr, uint64_t bytes)
{
    struct shim_block *block = shim_meta_get(&heap->blocks, sizeof *block);
    if (block == NULL)
        return NULL;
    *block = (struct shim_block){.region = region, .addr = addr, .bytes = bytes, .state = SHIM_BLOCK_GONE};
    region->index[unit_of(region, addr)] = block;
    return block;
}

static void block_drop(struct shim_heap *heap, struct shim_block *block)
{
    block->region->index[unit_of(block->region, block->addr)] = NULL;
    block->state = SHIM_BLOCK_GONE;
    shim_meta_put(&heap->blocks, block);
}

struct shim_block *shim_block_split(struct shim_heap *heap, struct shim_block *block, uint64_t bytes)
{
    if (block->bytes == bytes)
        return NULL;
    struct shim_block *rest = block_new(heap, block->region, block->addr + bytes, block->bytes - bytes);
    if (rest == NULL)
        return NULL;
    rest->owner = block->owner;
    rest->stamp = block->stamp;
    rest->left = block;
    rest->right = block->right;
    if (rest->right != NULL)
        rest->right->left = rest;
    block->right = rest;
    block->bytes = bytes;
    return rest;
}

void shim_block_join(struct shim_heap *heap, struct shim_block *left, struct shim_block *right)
{
    left->bytes += right->bytes;
    if (right->stamp > left->stamp)
        left->stamp = right->stamp;
    left->right = right->right;
    if (left->right != NULL)
        left->right->left = left;
    block_drop(heap, right);
}

/* --- areas --- */

static void fill_index(struct shim_block *parent, struct shim_block *with)
{
    struct shim_region *region = parent->region;
    uint64_t first = unit_of(region, parent->addr), end = first + (parent->bytes >> region->shift);
    for (uint64_t unit = first + 1; unit < end; unit++)
        region->index[unit] = with;
}

struct shim_block *shim_area_open(struct shim_heap *heap, struct shim_block *parent)
{
    struct shim_area *area = shim_meta_get(&heap->areas, sizeof *area);
    if (area == NULL)
        return NULL;
    area->region = (struct shim_region){
        .base = parent->addr,
        .bytes = parent->bytes,
        .shift = SHIM_UNIT_SHIFT_SMALL,
        .tier = SHIM_SMALL,
        .index = area->index,
        .slab = parent->region->slab,
        .parent = parent,
    };
    struct shim_block *only = block_new(heap, &area->region, parent->addr, parent->bytes);
    if (only == NULL) {
        shim_meta_put(&heap->areas, area);
        return NULL;
    }
    area->region.first = only;
    only->owner = parent->owner;
    only->stamp = parent->stamp;
    parent->state = SHIM_BLOCK_AREA;
    parent->area = area;
    fill_index(parent, parent);
    return only;
}

struct shim_block *shim_area_close(struct shim_heap *heap, struct shim_block *only)
{
    struct shim_block *parent = only->region->parent;
    parent->owner = only->owner;
    parent->stamp = only->stamp;
    parent->state = SHIM_BLOCK_GONE;
    fill_index(parent, NULL);
    block_drop(heap, only);
    shim_meta_put(&heap->areas, parent->area);
    parent->area = NULL;
    return parent;
}

/* --- slabs --- */

static size_t index_bytes(uint64_t bytes)
{
    return (size_t)(bytes >> SHIM_UNIT_SHIFT_BIG) * sizeof(struct shim_block *);
}

/* A large slab is one block for its whole life: one entry of index will do. */
static bool region_open(struct shim_heap *heap, struct shim_slab *slab, uint64_t base, uint64_t bytes)
{
    struct shim_region *region = &slab->region;
    *region = (struct shim_region){
        .base = base, .bytes = bytes, .shift = SHIM_UNIT_SHIFT_BIG, .tier = SHIM_BIG, .slab = slab};
    region->index = shim_pages_get(slab->large ? sizeof *region->index : index_bytes(bytes));
    if (region->index == NULL)
        return false;
    region->first = block_new(heap, region, base, bytes);
    if (region->first != NULL)
        return true;
    shim_pages_put(region->index, slab->large ? sizeof *region->index : index_bytes(bytes));
    return false;
}

static void region_close(struct shim_heap *heap, struct shim_slab *slab)
{
    block_drop(heap, slab->region.first);
    slab->region.first = NULL;
    shim_pages_put(slab->region.index, slab->large ? sizeof *slab->region.index : index_bytes(slab->region.bytes));
}

static void link_slab(struct shim_heap *heap, struct shim_slab *slab)
{
    slab->prev = NULL;
    slab->next = heap->slabs;
    if (slab->next != NULL)
        slab->next->prev = slab;
    heap->slabs = slab;
    heap->held += slab->region.bytes;
    heap->empty += slab->region.bytes;
}

/* The first block: clean, since nobody's work can know memory that has only just come. */
static void settle_first(struct shim_heap *heap, struct shim_slab *slab)
{
    struct shim_block *block = slab->region.first;
    block->owner = &heap->clean;
    if (!slab->large) {
        heap->clean.blocks++;
        shim_heap_settle(heap, block);
        return;
    }
    heap->clean.blocks++;
    block->class = SHIM_CLASS_LARGE;
    block->state = SHIM_BLOCK_FREE;
}

struct shim_slab *shim_slab_add(struct shim_heap *heap, uint64_t base, uint64_t bytes,
                                const struct shim_slab_origin *origin)
{
    struct shim_slab *slab = shim_meta_get(&heap->slabs_free, sizeof *slab);
    if (slab == NULL)
        return NULL;
    slab->large = origin->large;
    slab->old = false;
    slab->id = origin->id;
    slab->session = origin->session;
    slab->generation = origin->generation;
    slab->live = 0;
    atomic_store_explicit(&slab->heap, heap, memory_order_relaxed);
    if (!region_open(heap, slab, base, bytes)) {
        shim_meta_put(&heap->slabs_free, slab);
        return NULL;
    }
    if (!shim_map_set(base, bytes, slab)) {
        region_close(heap, slab);
        shim_meta_put(&heap->slabs_free, slab);
        return NULL;
    }
    link_slab(heap, slab);
    settle_first(heap, slab);
    return slab;
}

bool shim_slab_ready(const struct shim_heap *heap, const struct shim_slab *slab)
{
    const struct shim_block *first = slab->region.first;
    return slab->live == 0 && first->state == SHIM_BLOCK_FREE && first->owner == &heap->clean && first->right == NULL;
}

void shim_slab_pull(struct shim_heap *heap, struct shim_slab *slab)
{
    if (!slab->large)
        shim_heap_unbin(slab->region.first);
    heap->clean.blocks--;
    shim_map_clear(slab->region.base, slab->region.bytes);
    region_close(heap, slab);
    if (slab->prev != NULL)
        slab->prev->next = slab->next;
    else
        heap->slabs = slab->next;
    if (slab->next != NULL)
        slab->next->prev = slab->prev;
    heap->held -= slab->region.bytes;
    heap->empty -= slab->region.bytes;
    if (slab->old)
        heap->old--;
}

void shim_slab_forget(struct shim_heap *heap, struct shim_slab *slab)
{
    shim_meta_put(&heap->slabs_free, slab);
}

/* --- from an address to its block --- */

struct shim_block *shim_slab_live_block(const struct shim_slab *slab, uint64_t addr)
{
    const struct shim_region *region = &slab->region;
    uint64_t unit = slab->large ? 0 : (addr - region->base) >> SHIM_UNIT_SHIFT_BIG;
    struct shim_block *block = region->index[unit];
    if (block != NULL && block->state == SHIM_BLOCK_AREA)
        block = block->area->index[(addr - block->addr) >> SHIM_UNIT_SHIFT_SMALL];
    if (block == NULL || block->addr != addr || block->state != SHIM_BLOCK_LIVE)
        return NULL;
    return block;
}

static struct shim_block *search_left(const struct shim_region *region, uint64_t unit)
{
    while (region->index[unit] == NULL)
        unit--; /* unit 0 always begins a block */
    return region->index[unit];
}

struct shim_block *shim_slab_block_of(const struct shim_slab *slab, uint64_t addr)
{
    if (slab->large)
        return slab->region.first;
    struct shim_block *block = search_left(&slab->region, unit_of(&slab->region, addr));
    if (block->state == SHIM_BLOCK_AREA)
        block = search_left(&block->area->region, unit_of(&block->area->region, addr));
    return block;
}
