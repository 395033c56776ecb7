/*
 * The books that outlive poolcapd: RUN/books, a mapped file of fixed-size records. What a killed poolcapd leaves behind
 * is exactly what it had stored, instruction by instruction, because the pages belong to the kernel; so:
 *
 *  - a record counts once its state word is stored, which is the last store that makes it, and the first that ends it;
 *  - a figure that changes is one aligned 64-bit word, stored at once; sums are never kept;
 *  - what the driver is about to be asked for is stored BEFORE it is asked;
 *  - where an amount moves between two words, the receiver is stored first: a reader finds it twice, never not at all.
 *
 * A new poolcapd takes the living records over in place, so that being killed while it does is no special case. After a
 * reboot (another boot id) nothing in the file is true any more, and it is made anew.
 *
 * The file is allocated in full at start: a full /run is an error message then, not a SIGBUS later.
 *
 * Thread rules: the loop thread.
 */
#ifndef PC_BROKER_BOOKS_H
#define PC_BROKER_BOOKS_H

#include <stdatomic.h>
#include <stdint.h>

#include "alloc/base/error.h"
#include "alloc/broker/config.h"
#include "alloc/driver/driver.h"

struct pc_books;

enum pc_books_table {
    PC_BOOKS_GPUS,        /* what was measured of a card when nobody used it */
    PC_BOOKS_GRANTS,      /* what was granted: a new poolcapd keeps every promise of the one before */
    PC_BOOKS_GENERATIONS, /* pools that were exported, or are about to be */
    PC_BOOKS_IMPORTS,     /* which process has had which generation's fd */
    PC_BOOKS_SEATS,       /* a process's own charges on a GPU */
    PC_BOOKS_LARGES,      /* large memory, one record each */
    PC_BOOKS_TABLES
};

enum {
    PC_BOOKS_FREE = 0,
    PC_BOOKS_USED = 1,
    PC_BOOKS_SAID = 2,    /* imports: the process says that it dropped it */
    PC_BOOKS_LEAVING = 3, /* grants: it has ended, and the `shared` of others may not be lowered yet */
};

typedef _Atomic uint64_t pc_books_word;

struct pc_books_gpu {
    pc_books_word state;
    pc_books_word floor;   /* an int64_t: evict.h */
    pc_books_word context; /* what a context costs, where it was measured well once */
    char gpu[PC_UUID_TEXT];
};

struct pc_books_grant {
    pc_books_word state;
    uint64_t is_static; /* it stood in the configuration */
    uint64_t shares;
    pc_books_word granted[PC_PAGE_GPUS_MAX], cap[PC_PAGE_GPUS_MAX];
    char gpu[PC_PAGE_GPUS_MAX][PC_UUID_TEXT];
    char name[PC_NAME_MAX];
    char tenant[PC_NAME_MAX];
    char pod_uid[PC_NAME_MAX];
    /* Since version 4 */
    uint64_t order;                         /* of making: a later grant has a higher one */
    pc_books_word shared[PC_PAGE_GPUS_MAX]; /* of granted: see tenant.h */
    uint64_t promise[PC_PAGE_GPUS_MAX];     /* LEAVING: what its tenant is promised without it */
};

struct pc_books_generation {
    pc_books_word state;
    uint64_t id, max;
    pc_books_word reserved; /* the most that the pool may hold on the card */
    char tenant[PC_NAME_MAX];
    char gpu[PC_UUID_TEXT];
};

struct pc_books_import {
    pc_books_word state;
    uint64_t generation, pid, starttime;
};

struct pc_books_seat {
    pc_books_word state;
    uint64_t pid, starttime;
    pc_books_word context, direct, pending;
    char grant[PC_NAME_MAX];
    char gpu[PC_UUID_TEXT];
};

struct pc_books_large {
    pc_books_word state;
    uint64_t id, bytes, pid, starttime;
    char grant[PC_NAME_MAX];
    char gpu[PC_UUID_TEXT];
};

/*
 * Opens DIRECTORY/books (one of the version before is brought to this one), or makes it, and writes this process and
 * the next epoch into it. The caller holds the lock of the run directory. Errors: PC_ERR_IO.
 */
enum pc_status pc_books_open(const char *directory, struct pc_books **out, struct pc_error *err);
void pc_books_close(struct pc_books *books); /* unmaps; the file stays. NULL is allowed */

uint64_t pc_books_epoch(const struct pc_books *books);

/*
 * A free record, zeroed, to be filled in and then stored with pc_books_commit. Records never move.
 * Errors: PC_ERR_HOST_MEMORY where the table is full.
 */
enum pc_status pc_books_new(struct pc_books *books, enum pc_books_table table, void **out, struct pc_error *err);

/* The next record in use at or after *index, which is then moved behind it; NULL at the end. Its texts are ended. */
void *pc_books_next(struct pc_books *books, enum pc_books_table table, unsigned *index);

/* Stores a word behind all that was stored before. record may be NULL in the first two. */
static inline void pc_books_commit(void *record, uint64_t state)
{
    if (record != NULL)
        atomic_store_explicit((pc_books_word *)record, state, memory_order_release);
}
static inline void pc_books_end(void *record)
{
    pc_books_commit(record, PC_BOOKS_FREE);
}
static inline void pc_books_set(pc_books_word *word, uint64_t value)
{
    atomic_store_explicit(word, value, memory_order_release);
}
static inline uint64_t pc_books_get(const pc_books_word *word)
{
    return atomic_load_explicit((pc_books_word *)word, memory_order_acquire);
}

#endif
