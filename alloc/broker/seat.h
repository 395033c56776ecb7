/*
 * A seat: one process's part of a tenant on one GPU; made when the process attaches, gone when the witness has seen it
 * dead. It outlives the connection: a process that connects again finds its seat.
 *
 * An import says that a process has had, or is about to be sent, a generation's fd. It is in the books before the fd is
 * made. A process that says that it dropped its import is believed where nothing depends on it (the fd is sent again),
 * and not believed where memory does: it may lie until it is dead (trap 3).
 */
#ifndef PC_BROKER_SEAT_H
#define PC_BROKER_SEAT_H

#include "alloc/broker/peer.h"
#include "alloc/broker/tenant.h"

struct pc_generation;

struct pc_seat {
    struct pc_list link; /* tenant->seats */
    struct pc_tenant *tenant;
    struct pc_share *share;
    struct pc_ledger_session *ledger;
    struct pc_books_seat *record;
    pid_t pid;
    uint64_t starttime;
    uint64_t process;      /* id of the process, the same on all its GPUs: whose bytes a block has in it */
    bool attached;         /* it said that it has a context, and that is booked */
    uint64_t attaching_ns; /* when it last asked to attach */
    struct pc_list blocks; /* that it holds */
    struct pc_list imports;
    unsigned jobs;       /* of the worker's, under way for it: it cannot go before */
    uint64_t pending_ns; /* when bytes last became pending */
    uint64_t outside;    /* bytes that NVML shows beyond what it should have */
    uint64_t reported;   /* of them, what was said in the log */
};

struct pc_import {
    struct pc_list in_seat;       /* seat->imports */
    struct pc_list in_generation; /* generation->imports */
    struct pc_seat *seat;
    struct pc_generation *generation;
    struct pc_books_import *record;
    bool said_dropped;
    bool has_fd;      /* the fd was sent and not dropped since */
    unsigned blocks;  /* of this generation that the seat holds */
    unsigned freeing; /* of these, in the Free that is being checked */
};

/* Errors: PC_ERR_HOST_MEMORY. */
enum pc_status pc_seat_open(struct pc_share *share, const struct pc_peer *peer, uint64_t process, const char *grant,
                            struct pc_seat **out, struct pc_error *err);
/* The same from a record of an earlier poolcapd, which it goes on with; the charges are booked again, never refused. */
enum pc_status pc_seat_adopt(struct pc_share *share, struct pc_books_seat *record, uint64_t process,
                             struct pc_seat **out, struct pc_error *err);
/*
 * The process is dead and the card has its memory back: its blocks go back to the tenant, all else is no longer
 * charged. It has no job under way.
 */
void pc_seat_close(struct pc_seat *seat);

/* Books the context, once for a process on a GPU. Errors: PC_ERR_OUT_OF_MEMORY. */
enum pc_status pc_seat_book_context(struct pc_seat *seat, struct pc_error *err);
enum pc_status pc_seat_book_direct(struct pc_seat *seat, uint64_t bytes, struct pc_error *err);
/* Direct bytes that the process says it gave back: pending. Errors: PC_ERR_INVALID where that is more than it has. */
enum pc_status pc_seat_release_direct(struct pc_seat *seat, uint64_t bytes, struct pc_error *err);
/* Large memory that the process says it unmapped: pending. Stored before the large memory's own record ends. */
void pc_seat_large_freed(struct pc_seat *seat, uint64_t bytes);
void pc_seat_set_context(struct pc_seat *seat, uint64_t bytes); /* what NVML shows */
void pc_seat_set_pending(struct pc_seat *seat, uint64_t bytes); /* less than now: the card was seen to have the rest */

struct pc_import *pc_import_find(const struct pc_seat *seat, uint64_t generation);
/* The seat's import of a generation, made or no longer dropped. Errors: PC_ERR_HOST_MEMORY. */
enum pc_status pc_import_open(struct pc_seat *seat, struct pc_generation *generation, struct pc_import **out,
                              struct pc_error *err);
enum pc_status pc_import_adopt(struct pc_seat *seat, struct pc_generation *generation, struct pc_books_import *record,
                               struct pc_error *err);
void pc_import_say_dropped(struct pc_import *import);
void pc_import_close(struct pc_import *import); /* no fd was ever sent, or the process is dead */

#endif
