#include "alloc/shim/heap.h"

#include <stddef.h>
#include <string.h>

/* How far a list of one class is searched for the best fit; what is behind differs by under 12.5 %. */
enum { SEARCH = 16 };

void shim_owner_init(struct shim_owner *owner)
{
    memset(owner, 0, sizeof *owner);
    owner->batch = 1;
}

void shim_heap_init(struct shim_heap *heap)
{
    shim_owner_init(&heap->clean);
}

/* --- bins --- */

static void bin(struct shim_block *block)
{
    struct shim_bins *bins = &block->owner->bins[block->region->tier];
    unsigned class = shim_class(block->bytes);
    block->state = SHIM_BLOCK_FREE;
    block->class = (uint8_t) class;
    block->prev = NULL;
    block->next = bins->head[class];
    if (block->next != NULL)
        block->next->prev = block;
    bins->head[class] = block;
    bins->map[class / 64] |= 1ull << (class % 64);
}

void shim_heap_unbin(struct shim_block *block)
{
    struct shim_bins *bins = &block->owner->bins[block->region->tier];
    unsigned class = block->class;
    if (block->prev != NULL)
        block->prev->next = block->next;
    else
        bins->head[class] = block->next;
    if (block->next != NULL)
        block->next->prev = block->prev;
    if (bins->head[class] == NULL)
        bins->map[class / 64] &= ~(1ull << (class % 64));
}

/* The first class that is not empty, from `class` on; SHIM_CLASSES: none. */
static unsigned next_class(const uint64_t *map, unsigned class)
{
    if (class >= SHIM_CLASSES)
        return SHIM_CLASSES;
    unsigned word = class / 64;
    uint64_t bits = map[word] & (~0ull << (class % 64));
    while (bits == 0) {
        if (++word == SHIM_CLASS_WORDS)
            return SHIM_CLASSES;
        bits = map[word];
    }
    return word * 64 + (unsigned)__builtin_ctzll(bits);
}

static struct shim_block *best_of_class(struct shim_block *head, uint64_t bytes)
{
    struct shim_block *best = NULL;
    for (int i = 0; head != NULL && i < SEARCH; head = head->next, i++)
        if (head->bytes >= bytes && (best == NULL || head->bytes < best->bytes))
            best = head;
    return best;
}

/* Every block of a higher class fits; in the request's own class some do. */
static struct shim_block *find_in(const struct shim_bins *bins, unsigned class, uint64_t bytes)
{
    struct shim_block *best = best_of_class(bins->head[class], bytes);
    if (best != NULL)
        return best;
    unsigned higher = next_class(bins->map, class + 1);
    return higher < SHIM_CLASSES ? best_of_class(bins->head[higher], bytes) : NULL;
}

/* --- merging --- */

static bool joins(const struct shim_block *block, const struct shim_block *neighbour)
{
    return neighbour != NULL && neighbour->state == SHIM_BLOCK_FREE && neighbour->owner == block->owner;
}

static struct shim_block *merge(struct shim_heap *heap, struct shim_block *block)
{
    struct shim_block *other = block->left;
    if (joins(block, other)) {
        shim_heap_unbin(other);
        shim_block_join(heap, other, block);
        other->owner->blocks--;
        block = other;
    }
    other = block->right;
    if (joins(block, other)) {
        shim_heap_unbin(other);
        shim_block_join(heap, block, other);
        block->owner->blocks--;
    }
    block->state = SHIM_BLOCK_GONE;
    return block;
}

void shim_heap_settle(struct shim_heap *heap, struct shim_block *block)
{
    block = merge(heap, block);
    if (block->region->parent != NULL && block->bytes == block->region->bytes)
        block = merge(heap, shim_area_close(heap, block)); /* the same owner, and one block as before */
    bin(block);
}

static void make_clean(struct shim_heap *heap, struct shim_owner *owner, struct shim_block *block)
{
    owner->blocks--;
    heap->clean.blocks++;
    block->owner = &heap->clean;
    block->stamp = 0;
}

/* What is known to be done becomes clean before it is merged: a merged block waits for the last of its parts. */
static void flush(struct shim_heap *heap, struct shim_owner *owner)
{
    for (unsigned word = 0; word < SHIM_CLASS_WORDS; word++) {
        for (uint64_t bits = owner->quick_map[word]; bits != 0; bits &= bits - 1) {
            unsigned class = word * 64 + (unsigned)__builtin_ctzll(bits);
            struct shim_block *block = owner->quick[class];
            owner->quick[class] = NULL;
            while (block != NULL) {
                struct shim_block *next = block->next;
                if (block->stamp <= owner->done)
                    make_clean(heap, owner, block);
                shim_heap_settle(heap, block);
                block = next;
            }
        }
        owner->quick_map[word] = 0;
    }
}

/* --- taking --- */

/* Cuts a block that was found to size; the rest goes back to where it came from. It keeps owner and stamp, not a place.
 */
static struct shim_block *cut(struct shim_heap *heap, struct shim_block *block, uint64_t bytes)
{
    shim_heap_unbin(block);
    struct shim_block *rest = shim_block_split(heap, block, bytes);
    if (rest != NULL)
        bin(rest);
    else
        block->owner->blocks--;
    block->state = SHIM_BLOCK_GONE;
    return block;
}

static struct shim_block *take_tier(struct shim_heap *heap, struct shim_owner *owner, enum shim_tier tier,
                                    unsigned class, uint64_t bytes)
{
    struct shim_block *own = find_in(&owner->bins[tier], class, bytes);
    struct shim_block *clean = find_in(&heap->clean.bins[tier], class, bytes);
    if (own == NULL || (clean != NULL && clean->bytes < own->bytes))
        own = clean;
    return own != NULL ? cut(heap, own, bytes) : NULL;
}

/* Room for small blocks. Where there are no 2 MiB in one piece, a smaller one does. */
static bool add_area(struct shim_heap *heap, struct shim_owner *owner, uint64_t bytes)
{
    uint64_t least = (bytes + SHIM_UNIT_BIG - 1) & ~(SHIM_UNIT_BIG - 1);
    struct shim_block *parent = take_tier(heap, owner, SHIM_BIG, shim_class(SHIM_AREA_BYTES), SHIM_AREA_BYTES);
    if (parent == NULL)
        parent = take_tier(heap, owner, SHIM_BIG, shim_class(least), least);
    if (parent == NULL)
        return false;
    parent->owner->blocks++;
    /* cut() may leave the block longer than asked for, when there is no host memory: an area cannot be. */
    struct shim_block *only = parent->bytes <= SHIM_AREA_BYTES ? shim_area_open(heap, parent) : NULL;
    bin(only != NULL ? only : parent);
    return only != NULL;
}

static struct shim_block *pop_fitting(struct shim_owner *owner, unsigned class, uint64_t bytes)
{
    struct shim_block **link = &owner->quick[class];
    for (int i = 0; *link != NULL && i < SEARCH; link = &(*link)->next, i++) {
        struct shim_block *block = *link;
        if (block->bytes < bytes)
            continue;
        *link = block->next;
        owner->blocks--;
        return block;
    }
    return NULL;
}

/* A block's class is that of its size: a block that could not be cut is longer than its request. */
static struct shim_block *classed(struct shim_block *block)
{
    if (block != NULL)
        block->class = (uint8_t)shim_class(block->bytes);
    return block;
}

struct shim_block *shim_heap_take(struct shim_heap *heap, struct shim_owner *owner, unsigned class, uint64_t bytes)
{
    struct shim_block *block = pop_fitting(owner, class, bytes);
    if (block != NULL)
        return block;
    flush(heap, owner);
    enum shim_tier tier = bytes <= SHIM_SMALL_MAX ? SHIM_SMALL : SHIM_BIG;
    block = take_tier(heap, owner, tier, class, bytes);
    if (block == NULL && tier == SHIM_SMALL && add_area(heap, owner, bytes))
        block = take_tier(heap, owner, tier, class, bytes);
    return classed(block);
}

struct shim_block *shim_heap_take_large(struct shim_heap *heap, struct shim_owner *owner, uint64_t bytes)
{
    for (struct shim_slab *slab = heap->slabs; slab != NULL; slab = slab->next) {
        struct shim_block *block = slab->region.first;
        if (!slab->large || block->state != SHIM_BLOCK_FREE || block->bytes < bytes ||
            block->bytes - bytes > bytes / 8 || (block->owner != owner && block->owner != &heap->clean))
            continue;
        block->owner->blocks--;
        block->state = SHIM_BLOCK_GONE;
        return block;
    }
    return NULL;
}

/* --- making room out of neighbours of two owners --- */

static bool usable(const struct shim_heap *heap, const struct shim_owner *owner, const struct shim_block *block)
{
    return block != NULL && block->state == SHIM_BLOCK_FREE && (block->owner == owner || block->owner == &heap->clean);
}

/* The bytes of the run of usable blocks that begins at block. */
static uint64_t run_bytes(const struct shim_heap *heap, const struct shim_owner *owner, const struct shim_block *block)
{
    uint64_t bytes = 0;
    for (; usable(heap, owner, block); block = block->right)
        bytes += block->bytes;
    return bytes;
}

/* Makes one block of the owner's out of as much of the run as bytes take. */
static void join_run(struct shim_heap *heap, struct shim_owner *owner, struct shim_block *block, uint64_t bytes)
{
    uint64_t stamp = block->owner == owner ? block->stamp : 0;
    shim_heap_unbin(block);
    block->owner->blocks--;
    while (block->bytes < bytes) {
        struct shim_block *right = block->right;
        if (right->owner == owner && right->stamp > stamp)
            stamp = right->stamp;
        shim_heap_unbin(right);
        right->owner->blocks--;
        shim_block_join(heap, block, right);
    }
    block->owner = owner;
    block->stamp = stamp;
    owner->blocks++;
    bin(block);
}

static bool absorb_in(struct shim_heap *heap, struct shim_owner *owner, struct shim_block *block, uint64_t bytes)
{
    while (block != NULL) {
        if (run_bytes(heap, owner, block) >= bytes) {
            join_run(heap, owner, block, bytes);
            return true;
        }
        do
            block = block->right;
        while (block != NULL && usable(heap, owner, block->left));
    }
    return false;
}

struct shim_block *shim_heap_absorb(struct shim_heap *heap, struct shim_owner *owner, unsigned class, uint64_t bytes)
{
    uint64_t want = (bytes + SHIM_UNIT_BIG - 1) & ~(SHIM_UNIT_BIG - 1); /* for a small one: room for an area */
    if (owner->blocks == 0)
        return NULL;
    for (struct shim_slab *slab = heap->slabs; slab != NULL; slab = slab->next)
        if (!slab->large && absorb_in(heap, owner, slab->region.first, want))
            return shim_heap_take(heap, owner, class, bytes);
    return NULL;
}

/* --- what becomes clean --- */

void shim_heap_put_clean(struct shim_heap *heap, struct shim_block *block)
{
    struct shim_slab *slab = block->region->slab;
    heap->live -= block->bytes;
    if (--slab->live == 0)
        heap->empty += slab->region.bytes;
    heap->clean.blocks++;
    block->owner = &heap->clean;
    block->stamp = 0;
    if (slab->large)
        block->state = SHIM_BLOCK_FREE;
    else
        shim_heap_settle(heap, block);
}

static void sweep_large(struct shim_heap *heap, struct shim_owner *owner)
{
    for (struct shim_slab *slab = heap->slabs; slab != NULL; slab = slab->next) {
        struct shim_block *block = slab->region.first;
        if (slab->large && block->state == SHIM_BLOCK_FREE && block->owner == owner && block->stamp <= owner->done)
            make_clean(heap, owner, block);
    }
}

static void sweep_bins(struct shim_heap *heap, struct shim_owner *owner, struct shim_bins *bins)
{
    for (unsigned class = next_class(bins->map, 0); class < SHIM_CLASSES; class = next_class(bins->map, class + 1)) {
        for (struct shim_block *block = bins->head[class], *next; block != NULL; block = next) {
            next = block->next; /* settling merges with clean neighbours only, so next stays */
            if (block->stamp > owner->done)
                continue;
            shim_heap_unbin(block);
            make_clean(heap, owner, block);
            shim_heap_settle(heap, block);
        }
    }
}

void shim_heap_sweep(struct shim_heap *heap, struct shim_owner *owner)
{
    if (owner->blocks == 0)
        return;
    flush(heap, owner);
    for (unsigned tier = 0; tier < SHIM_TIERS; tier++)
        sweep_bins(heap, owner, &owner->bins[tier]);
    sweep_large(heap, owner);
}
