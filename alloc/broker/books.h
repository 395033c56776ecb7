/*
 * The books file: what a new poolcapd must know of the one before it. Mapped, in fixed-size records, each written
 * before the driver is asked. A record counts once its kind is stored, last; a figure in it changes by one aligned
 * store. So a poolcapd that is killed at any instruction leaves a file that can be read.
 */
#ifndef PC_BROKER_BOOKS_H
#define PC_BROKER_BOOKS_H

#include <stdbool.h>
#include <stdint.h>

#include "alloc/base/error.h"
#include "proto/page.h"

enum { PC_BOOK_RECORDS = 8192, PC_BOOK_NAME = 64, PC_BOOK_UUID = 48, PC_BOOK_IMPORTS = 32 };

enum pc_book_kind {
    PC_BOOK_FREE = 0,
    PC_BOOK_GRANT = 1,
    PC_BOOK_GENERATION = 2,
    PC_BOOK_SESSION = 3,
    PC_BOOK_LARGE = 4
};

struct pc_book_grant {
    char name[PC_BOOK_NAME], tenant[PC_BOOK_NAME], pod_uid[PC_BOOK_NAME];
    uint32_t is_static, shares;
    uint64_t granted[PC_PAGE_GPUS_MAX], cap[PC_PAGE_GPUS_MAX];
    char uuid[PC_PAGE_GPUS_MAX][PC_BOOK_UUID];
};

struct pc_book_generation {
    char tenant[PC_BOOK_NAME], uuid[PC_BOOK_UUID];
    uint64_t id, reserved; /* reserved: raised before the driver is asked */
};

struct pc_book_session {
    char grant[PC_BOOK_NAME];
    int64_t pid;
    uint64_t starttime;
    uint64_t id;
    uint64_t imports[PC_BOOK_IMPORTS];
    uint64_t attached[PC_PAGE_GPUS_MAX]; /* 0 or 1 */
    uint64_t context[PC_PAGE_GPUS_MAX], large[PC_PAGE_GPUS_MAX], direct[PC_PAGE_GPUS_MAX], pending[PC_PAGE_GPUS_MAX];
};

struct pc_book_large {
    uint64_t session, block, bytes;
    uint64_t share;
};

struct pc_book_record {
    uint64_t kind; /* stored last when a record is made, first (FREE) when it ends */
    union {
        struct pc_book_grant grant;
        struct pc_book_generation generation;
        struct pc_book_session session;
        struct pc_book_large large;
    };
    uint64_t spare[4];
};

struct pc_books;

/*
 * Opens or makes the file. Where one of this boot is there, its records stay (pc_books_list has them) and the epoch is
 * one more; one of another boot is emptied: nothing on a card outlives a reboot. Errors: PC_ERR_IO.
 */
enum pc_status pc_books_open(const char *path, struct pc_books **out, uint64_t *epoch, struct pc_error *err);

/* The records that are in the file now: an array to free(), NULL without memory. */
struct pc_book_record **pc_books_list(struct pc_books *books, unsigned *count);
/* A place for a record; the caller fills it and calls pc_book_commit. NULL when the file is full. */
struct pc_book_record *pc_book_new(struct pc_books *books);
void pc_book_commit(struct pc_book_record *record, enum pc_book_kind kind);
void pc_book_end(struct pc_book_record *record); /* NULL is allowed */
static inline void pc_book_set(uint64_t *figure, uint64_t value)
{
    __atomic_store_n(figure, value, __ATOMIC_RELEASE);
}

#endif
