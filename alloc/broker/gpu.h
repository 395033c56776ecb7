/*
 * A GPU of poolcapd: its context, its worker, and what can be granted on it. A GPU that cannot be used stays in the
 * list with its fault, so that whoever asks for it hears why.
 */
#ifndef PC_BROKER_GPU_H
#define PC_BROKER_GPU_H

#include "alloc/broker/latency.h"
#include "alloc/broker/probe.h"
#include "alloc/broker/state.h"
#include "alloc/broker/worker.h"
#include "alloc/pool/leaks.h"

struct pc_generation;

struct pc_gpu {
    struct pc_broker *broker;
    unsigned index; /* in broker->gpu, and in a snapshot's cards */
    struct pc_device *device;
    struct pc_device_info info;
    struct pc_probe probe;
    struct pc_worker *worker;   /* NULL: never usable */
    struct pc_account *cleanup; /* destroys have a small share of their own */
    struct pc_ledger_gpu *ledger;
    struct pc_leaks *leaks;
    uint64_t capacity;  /* bytes that grants can be given */
    uint64_t card_used; /* of the last snapshot */
    uint64_t broken_promises;
    struct pc_latency latency; /* of requests for pool and large memory */
    char fault[PC_ERROR_TEXT]; /* empty: healthy */

    /* evict.c: seeing that a destroyed pool has left the card */
    unsigned changing;           /* jobs under way that change what pools hold */
    uint64_t changed_ns;         /* when the last of them ended */
    int64_t leftover;            /* bytes in use on the card that are in no process's entry; last clean reading */
    int64_t floor;               /* of it, what is there for no pool's sake */
    struct pc_books_gpu *record; /* keeps what was measured for the poolcapd after this one */
    struct pc_list evictions;    /* generations that wait for their turn to be destroyed and watched */
    struct pc_generation *watched;
};

/* Opens GPU `ordinal` and adds it to b->gpu; one that cannot be used is added with its fault. Errors:
 * PC_ERR_HOST_MEMORY. */
enum pc_status pc_gpu_open(struct pc_broker *b, int ordinal, struct pc_error *err);
void pc_gpu_close(struct pc_gpu *gpu); /* stops its worker; memory of a thread that hangs stays */

/* By ordinal or UUID. Errors: PC_ERR_INVALID; the text lists those that are there. */
enum pc_status pc_gpu_find(struct pc_broker *b, const char *reference, struct pc_gpu **out, struct pc_error *err);

/* PC_ERR_DEVICE with the reason where the GPU is out of service. */
enum pc_status pc_gpu_check(const struct pc_gpu *gpu, struct pc_error *err);
/* Puts it out of service until poolcapd is started again: its requests, also those under way, fail with this reason. */
void pc_gpu_mark_faulty(struct pc_gpu *gpu, const char *why);

/*
 * On the worker, after a driver call failed: whether the context is beyond repair, because the error is one that
 * sticks, or because a trivial call fails too.
 */
bool pc_gpu_is_broken(struct pc_gpu *gpu, const struct pc_error *after);

/* A job that changes what pools hold begins and ends: snapshots taken meanwhile tell nothing about leftovers. */
void pc_gpu_change_begins(struct pc_gpu *gpu);
void pc_gpu_change_ends(struct pc_gpu *gpu);

#endif
