/*
 * The root of poolcapd's state: one struct that is passed down, no globals. Every member belongs to the loop thread.
 *
 * The parts, each in a file of its own, lower ones first; none knows those above it:
 *   worker, watcher, page, peer, books     threads and files
 *   gpu                                    a card: context, proof of its driver, capacity
 *   tenant, generation, block, seat        a tenant's account on a GPU; its pools; memory; a process's part of it
 *   pooled, large                          the worker's jobs that take memory
 *   evict                                  destroying pools that nobody uses, and seeing that they are gone
 *   want                                   a request for memory from its arrival to its answer
 *   grant, session, death, request         sockets, connections, the witness of a death, the messages
 *   watch, inherit, admin, broker          NVML, start-up from old books, the admin socket, start and stop
 */
#ifndef PC_BROKER_STATE_H
#define PC_BROKER_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "alloc/base/loop.h"
#include "alloc/broker/books.h"
#include "alloc/broker/config.h"
#include "alloc/broker/list.h"
#include "alloc/broker/watcher.h"
#include "alloc/driver/driver.h"
#include "alloc/ledger/ledger.h"
#include "alloc/pool/device.h"
#include "proto/wire.h"

enum { PC_GPUS_MAX = 16, PC_BLOCK_BUCKETS = 4096 };

struct pc_gpu;
struct pc_block;

struct pc_broker {
    struct pc_config config;
    struct pc_loop *loop;
    struct pc_cuda cuda;
    struct pc_nvml nvml;
    bool has_nvml;
    struct pc_devices *devices;
    struct pc_ledger *ledger;
    struct pc_books *books;
    uint64_t epoch;     /* of this poolcapd's life: the high half of every id it gives */
    uint32_t ids_given; /* the low half */
    unsigned gpus;
    struct pc_gpu *gpu[PC_GPUS_MAX];
    const char *uuid[PC_GPUS_MAX]; /* theirs, for the watcher */
    struct pc_list tenants;        /* struct pc_tenant */
    struct pc_list grants;         /* struct pc_grant */
    struct pc_list admins;         /* connections of the admin socket */
    struct pc_list refusals;       /* connections that are being refused (session.c) */
    unsigned refusal_count;
    struct pc_block *blocks[PC_BLOCK_BUCKETS]; /* by id */
    struct pc_arena *arena;                    /* one for all: a message is handled before the next one is read */
    struct pc_watcher *watcher;
    uint64_t urgent_until; /* snapshots come fast until then (pc_broker_hurry) */
    unsigned dying;        /* sessions whose process is dead and not yet seen to be gone from the card */
    struct pc_timer *tick;
    bool settle_posted;
    int lock_fd, admin_fd;
    struct pc_watch *admin_watch;
    bool check; /* POOLCAP_CHECK, or a build with sanitizers: the books are verified after each batch of events */
};

/* A number that was never given before, by this poolcapd or an earlier one of this boot. */
static inline uint64_t pc_broker_new_id(struct pc_broker *b)
{
    return b->epoch << 32 | ++b->ids_given;
}

/*
 * Something changed that others may be waiting for. What follows from it (waiting requests, pages, grants that end) is
 * done once, after the events of this batch, and never inside the call that changed it.
 */
void pc_broker_changed(struct pc_broker *b);

/* Wants NVML's next word soon: something is dying or pending. Lasts two seconds. */
void pc_broker_hurry(struct pc_broker *b);

#endif
