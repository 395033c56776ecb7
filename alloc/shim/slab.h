/*
 * Slabs, the blocks that they are carved into, and the areas that some blocks are carved into further.
 *
 * A region is a range of device addresses that blocks cover without a gap. There are two kinds of it, with the same
 * code: a slab, in units of 32 KiB, and an area, in units of 512 bytes, which lies in one block of a slab. An index by
 * unit finds the block that begins at an address; all of it is host memory, device memory is never touched.
 *
 * Thread rules: everything here is guarded by the heap's lock, but for shim_slab.heap, which never changes.
 */
#ifndef PC_SHIM_SLAB_H
#define PC_SHIM_SLAB_H

#include <stdbool.h>
#include <stdint.h>

#include "alloc/shim/class.h"

struct shim_heap;
struct shim_owner;
struct shim_generation;

enum shim_block_state {
    SHIM_BLOCK_LIVE,  /* the program has it */
    SHIM_BLOCK_QUICK, /* free, in its owner's list by class, not merged with its neighbours yet */
    SHIM_BLOCK_FREE,  /* free, merged, in its owner's bins (or, where large, in the heap's list of slabs only) */
    SHIM_BLOCK_AREA,  /* carved further */
    SHIM_BLOCK_GONE   /* no block: a record on its pool's list, or one being moved */
};

struct shim_block {
    struct shim_block *next, *prev;  /* in the list that it is on while it is free */
    struct shim_block *left, *right; /* neighbours by address in the region; NULL at its ends */
    struct shim_region *region;
    struct shim_owner *owner; /* while free: whose queued work may still use it */
    uint64_t addr, bytes;
    uint64_t stamp;         /* while free: the owner's batch in which the last of it was freed */
    struct shim_area *area; /* SHIM_BLOCK_AREA */
    uint8_t state, class;
};

struct shim_region {
    uint64_t base, bytes;
    unsigned shift;            /* of a unit */
    unsigned tier;             /* enum shim_tier */
    struct shim_block **index; /* by unit: the block that begins there; every unit of a SHIM_BLOCK_AREA */
    struct shim_block *first;
    struct shim_slab *slab;
    struct shim_block *parent; /* of an area: the slab's block that it lies in */
};

enum { SHIM_AREA_UNITS = 4096 };

struct shim_area {
    void *link;
    struct shim_region region;
    struct shim_block *index[SHIM_AREA_UNITS];
};

struct shim_slab {
    void *link;
    struct shim_heap *_Atomic heap;
    struct shim_slab *next, *prev;
    struct shim_region region;
    uint64_t live;    /* blocks that the program has */
    bool large;       /* a mapping of its own: one block, never carved */
    bool old;         /* of a poolcapd or a session that is gone: to be given back first, never added to */
    uint64_t id;      /* poolcapd's name for it */
    uint32_t session; /* of this process with poolcapd, in which it was got */
    struct shim_generation *generation; /* NULL where large */
};

/* What poolcapd said of memory that becomes a slab. */
struct shim_slab_origin {
    uint64_t id;
    struct shim_generation *generation;
    uint32_t session;
    bool large;
};

/* A slab over [base, base + bytes), one clean free block, entered in the map. NULL: see shim_map_set; or no host
 * memory. */
struct shim_slab *shim_slab_add(struct shim_heap *heap, uint64_t base, uint64_t bytes,
                                const struct shim_slab_origin *origin);

/* True when nothing of it is used and all work on it is done. */
bool shim_slab_ready(const struct shim_heap *heap, const struct shim_slab *slab);

/* Takes a ready slab out of the heap; the record stays the caller's until shim_slab_forget. */
void shim_slab_pull(struct shim_heap *heap, struct shim_slab *slab);
void shim_slab_forget(struct shim_heap *heap, struct shim_slab *slab);

/* The live block that begins at addr, or NULL. */
struct shim_block *shim_slab_live_block(const struct shim_slab *slab, uint64_t addr);

/* The block that addr lies in, live or not. */
struct shim_block *shim_slab_block_of(const struct shim_slab *slab, uint64_t addr);

/* Cuts block to bytes (a multiple of the region's unit); the rest becomes a block that is returned, in no list. NULL:
 * there is no rest, or no host memory for its record, and the block keeps its size. */
struct shim_block *shim_block_split(struct shim_heap *heap, struct shim_block *block, uint64_t bytes);

/* Makes one block of two neighbours, which are in no list; the left one's record stays. */
void shim_block_join(struct shim_heap *heap, struct shim_block *left, struct shim_block *right);

/* Turns a block of a slab, in no list, into an area with one free block, which is returned, in no list. */
struct shim_block *shim_area_open(struct shim_heap *heap, struct shim_block *parent);

/* The other way: only is the area's one block. Returns the parent, in no list, with only's owner and stamp. */
struct shim_block *shim_area_close(struct shim_heap *heap, struct shim_block *only);

#endif
