/*
 * A generation: one pool of a tenant, and the blocks in it.
 *
 * A block that comes back is parked: it stays allocated in the driver with its 64 bytes valid, so that the next request
 * of its size needs no driver call. In the ledger it is free. So that the driver's high-water mark never passes what
 * the ledger has booked as RESERVED, one thing must hold before each allocation in the driver:
 *
 *     used (ledger, with the new block) + parked + stuck  <=  reserved (ledger, with the new block's growth)
 *
 * pc_generation_plan sees to it by freeing parked blocks first. Both sides are exact because a tenant has at most one
 * driver job under way. After each job RESERVED and USED are read from the driver and compared.
 */
#ifndef PC_BROKER_GENERATION_H
#define PC_BROKER_GENERATION_H

#include "alloc/broker/seat.h"
#include "alloc/pool/pool.h"

enum pc_generation_state {
    PC_GENERATION_OPEN,      /* serves requests */
    PC_GENERATION_CLOSING,   /* empty, and chosen to be destroyed: serves no more */
    PC_GENERATION_CLAIMED,   /* destroyed; those who said that they dropped it live, so it stays charged for now */
    PC_GENERATION_INHERITED, /* of an earlier poolcapd: charged whole until its importers are gone */
};

enum { PC_NOBODY = 0 }; /* generation.freed_by: never-used memory alone */
#define PC_MANY_PROCESSES UINT64_MAX

struct pc_generation {
    struct pc_list link; /* tenant->generations */
    struct pc_tenant *tenant;
    enum pc_generation_state state;
    uint64_t id, max;
    struct pc_pool *pool; /* NULL until its first job, which makes it on the worker */
    struct pc_ledger_generation *ledger;
    struct pc_books_generation *record;
    struct pc_list parked;
    uint64_t parked_bytes;
    uint64_t stuck;    /* bytes that the driver has allocated and nobody can name: see pooled.c */
    uint64_t freed_by; /* the process whose bytes may lie in memory that was freed to the driver */
    unsigned live;     /* blocks that processes hold or jobs work on */
    struct pc_list imports;
    uint64_t charge; /* CLAIMED and INHERITED: the bytes it is still charged */
    /* evict.c */
    struct pc_list turn; /* gpu->evictions */
    uint64_t watched_ns; /* since when the card is watched for it */
    bool lost;           /* the driver did not take all of it back: charged for as long as poolcapd lives */
    unsigned seen_gone;  /* in how many snapshots one after the other */
};

struct pc_block {
    struct pc_list link;   /* generation->parked or seat->blocks */
    struct pc_block *next; /* in its bucket of broker->blocks */
    uint64_t id, bytes;
    struct pc_generation *generation; /* NULL: large */
    struct pc_seat *seat;             /* who holds it; NULL: parked */
    uint64_t process;                 /* who holds it, or held it last */
    pc_cu_deviceptr ptr;
    struct pc_cu_ptr_export data;
    struct pc_books_large *record; /* large */
    bool bad;                      /* parked: a free of it failed; it is only good for being freed again */
    bool marked;                   /* in the Free that is being checked */
};

/* Opens a generation of all the room that is left. Errors: PC_ERR_OUT_OF_MEMORY (none), PC_ERR_HOST_MEMORY. */
enum pc_status pc_generation_open(struct pc_tenant *tenant, struct pc_generation **out, struct pc_error *err);
/* One of an earlier poolcapd: charged from now on. Errors: PC_ERR_HOST_MEMORY. */
enum pc_status pc_generation_adopt(struct pc_tenant *tenant, struct pc_books_generation *record,
                                   struct pc_generation **out, struct pc_error *err);
void pc_generation_free(struct pc_generation *generation); /* nothing is charged for it any more */

struct pc_generation *pc_generation_find(const struct pc_tenant *tenant, uint64_t id);
/* Processes that have it imported, as far as they say. */
unsigned pc_generation_importers(const struct pc_generation *generation);
/* Stores what the ledger says that the pool may hold, for the poolcapd after this one. */
void pc_generation_record(struct pc_generation *generation);

struct pc_block *pc_block_new(struct pc_broker *b, uint64_t bytes); /* in no list; NULL without host memory */
void pc_block_forget(struct pc_broker *b, struct pc_block *block);  /* out of its list, and freed */
struct pc_block *pc_block_find(const struct pc_broker *b, uint64_t id);

/* Hands a block to a process, under a new id, so that ids of before mean nothing. */
void pc_block_give(struct pc_block *block, struct pc_seat *seat);
/* Takes it back: the ledger's release, and parked; large memory becomes pending (dead: is no longer charged). */
void pc_block_take_back(struct pc_block *block, bool dead);

/* A parked block of exactly this size, out of its list; rather one with the process's own bytes. NULL: none. */
struct pc_block *pc_generation_unpark(struct pc_generation *generation, uint64_t bytes, uint64_t process);
void pc_generation_park(struct pc_generation *generation, struct pc_block *block);
/* Memory that could not be freed: known, so that it is counted, and tried again before anything is allocated. */
void pc_generation_park_bad(struct pc_generation *generation, pc_cu_deviceptr ptr, uint64_t bytes);

/* Books a block, also in the file, before the driver is asked. Errors as pc_ledger_block_book. */
enum pc_status pc_generation_book(struct pc_generation *generation, struct pc_seat *seat, uint64_t bytes,
                                  uint64_t *growth, struct pc_error *err);
/* Undoes that where the driver was not asked, so that the pool has not grown. */
void pc_generation_unbook(struct pc_generation *generation, struct pc_seat *seat, uint64_t bytes, uint64_t growth);

/* What a driver job has to do for a block that the ledger has just booked. */
struct pc_plan {
    struct pc_list free_first; /* parked blocks, out of the generation */
    uint64_t slack;            /* reserved and free: taken in one piece before growing */
    uint64_t growth;           /* taken in pieces, so that no single call takes long; 0: the block is taken directly */
    bool zero;
};
/* bytes and booked_growth: of the block. False: the driver holds stuck memory in the way, and it cannot be done. */
bool pc_generation_plan(struct pc_generation *generation, uint64_t bytes, uint64_t booked_growth, uint64_t process,
                        struct pc_plan *out);
/* After a job: compares with what the driver says. held: bytes of the job's block where it was not handed out yet. */
void pc_generation_verify(struct pc_generation *generation, const struct pc_pool_stats *stats, bool success);

#endif
