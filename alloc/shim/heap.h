/*
 * The memory of one GPU in this process: which block serves a request.
 *
 * Free memory has an owner: the stream on which it was freed, whose queued work may still use it, or the heap's `clean`
 * owner, when that work is known to be done. A stream may take its own free memory and clean memory at once, never
 * another stream's.
 *
 * A freed block first goes to its owner's quick list of its class, as it is: the next request of that class on that
 * stream pops it. When a list is empty, all that the stream has in quick lists is merged with its free neighbours and
 * sorted into bins, and the smallest fitting block is cut. Each free block is merged at most once for each time that it
 * was freed, so this is constant time a free too.
 *
 * Only this: no driver call, no request to poolcapd. Thread rules: all under heap->lock, which the caller takes.
 */
#ifndef PC_SHIM_HEAP_H
#define PC_SHIM_HEAP_H

#include <stdbool.h>
#include <stdint.h>

#include "alloc/shim/class.h"
#include "alloc/shim/lock.h"
#include "alloc/shim/meta.h"
#include "alloc/shim/slab.h"

enum shim_tier { SHIM_SMALL, SHIM_BIG, SHIM_TIERS };

struct shim_bins {
    uint64_t map[SHIM_CLASS_WORDS];
    struct shim_block *head[SHIM_CLASSES];
};

struct shim_owner {
    uint64_t batch;  /* frees are stamped with it; it grows when an event covers what was freed so far */
    uint64_t done;   /* work of batches up to this one is done */
    uint64_t newest; /* the last stamp given */
    uint64_t blocks; /* free blocks that it owns */
    uint64_t quick_map[SHIM_CLASS_WORDS]; /* a bit may stay set for an empty list */
    struct shim_block *quick[SHIM_CLASSES];
    struct shim_bins bins[SHIM_TIERS];
};

struct shim_heap {
    struct shim_lock lock;
    struct shim_meta blocks, areas, slabs_free;
    struct shim_owner clean;
    struct shim_slab *slabs;
    uint64_t held;  /* bytes of all slabs */
    uint64_t live;  /* bytes of live blocks, as rounded */
    uint64_t empty; /* bytes of slabs without a live block */
    uint64_t old;   /* slabs that are old */
};

void shim_heap_init(struct shim_heap *heap);
void shim_owner_init(struct shim_owner *owner);

/* Pops the owner's quick list. bytes: the rounded request. NULL: nothing there. */
static inline struct shim_block *shim_heap_pop(struct shim_owner *owner, unsigned class, uint64_t bytes)
{
    struct shim_block *block = owner->quick[class];
    if (block == NULL || block->bytes < bytes)
        return NULL;
    owner->quick[class] = block->next;
    owner->blocks--;
    return block;
}

/* Books a block as the program's. */
static inline void shim_heap_use(struct shim_heap *heap, struct shim_block *block)
{
    struct shim_slab *slab = block->region->slab;
    block->state = SHIM_BLOCK_LIVE;
    heap->live += block->bytes;
    if (slab->live++ == 0)
        heap->empty -= slab->region.bytes;
}

/* Books a block as free and the owner's. True when its slab has no live block left. */
static inline bool shim_heap_put(struct shim_heap *heap, struct shim_owner *owner, struct shim_block *block)
{
    struct shim_slab *slab = block->region->slab;
    unsigned class = block->class;
    heap->live -= block->bytes;
    block->owner = owner;
    block->stamp = owner->newest = owner->batch;
    owner->blocks++;
    if (shim_unlikely(slab->large)) {
        block->state = SHIM_BLOCK_FREE;
    } else {
        block->state = SHIM_BLOCK_QUICK;
        block->next = owner->quick[class];
        owner->quick[class] = block;
        owner->quick_map[class / 64] |= 1ull << (class % 64);
    }
    if (--slab->live != 0)
        return false;
    heap->empty += slab->region.bytes;
    return true;
}

/* Books a block as free and clean, when the work on it is known to be done. */
void shim_heap_put_clean(struct shim_heap *heap, struct shim_block *block);

/* Finds and cuts a block of exactly `bytes` (rounded) from what the owner may use. Not booked yet. NULL: there is none.
 */
struct shim_block *shim_heap_take(struct shim_heap *heap, struct shim_owner *owner, unsigned class, uint64_t bytes);

/*
 * The last resort before more memory is asked for: joins the owner's blocks with clean neighbours where that makes room
 * for bytes, and takes it. The clean part then is the owner's until its work is done.
 */
struct shim_block *shim_heap_absorb(struct shim_heap *heap, struct shim_owner *owner, unsigned class, uint64_t bytes);

/* A free large block of at least bytes, at most an eighth more, that the owner may use. */
struct shim_block *shim_heap_take_large(struct shim_heap *heap, struct shim_owner *owner, uint64_t bytes);

/* Makes clean what was freed in batches that are done. */
void shim_heap_sweep(struct shim_heap *heap, struct shim_owner *owner);

static inline uint64_t shim_heap_idle(const struct shim_heap *heap)
{
    return heap->held - heap->live;
}

/* For a free block that is in no list: merges it with its neighbours and puts it into its owner's bins. */
void shim_heap_settle(struct shim_heap *heap, struct shim_block *block);

/* Takes a free block out of its owner's bins. */
void shim_heap_unbin(struct shim_block *block);

/*
 * Walks everything and compares; for tests. owners: all of the heap's streams. Returns NULL, or what is wrong.
 */
const char *shim_heap_audit(const struct shim_heap *heap, struct shim_owner *const *owners, unsigned count);

#endif
