/*
 * The worker's job that takes a block from a pool: frees parked blocks that are in the way, grows the pool in steps,
 * allocates, zeroes what another process has used, exports. Each of its steps is one bounded driver call.
 */
#ifndef PC_BROKER_POOLED_H
#define PC_BROKER_POOLED_H

#include "alloc/broker/generation.h"
#include "alloc/broker/worker.h"

enum { PC_PIECES_MAX = 20 };

struct pc_piece {
    pc_cu_deviceptr ptr;
    uint64_t bytes;
};

struct pc_pooled {
    struct pc_job job;
    void (*done)(struct pc_pooled *pooled); /* on the loop thread */
    void *arg;

    /* what is asked for */
    struct pc_generation *generation;
    struct pc_block *block; /* without memory yet, or a parked one that only has to be zeroed or sent with the fd */
    struct pc_plan plan;
    bool want_fd;

    /* what came of it; valid in done */
    enum pc_status status;
    struct pc_error err;
    int fd; /* the pool's; the caller closes it. -1: none */
    bool has_stats;
    struct pc_pool_stats stats;
    bool broken;                           /* the GPU: err says why */
    struct pc_piece failed[PC_PIECES_MAX]; /* memory that could not be freed */
    unsigned failures;

    /* on the way; the worker's */
    unsigned stage;
    bool fresh, taken;
    struct pc_piece piece[PC_PIECES_MAX];
    unsigned pieces;
    uint64_t zeroed;
};

/* pooled is filled in as far as "what is asked for" goes; it must live until done is called. */
void pc_pooled_submit(struct pc_pooled *pooled);

#endif
