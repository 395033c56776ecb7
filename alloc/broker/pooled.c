#include "alloc/broker/pooled.h"

#include <stdlib.h>

#include "alloc/base/bytes.h"

#define GROW_STEP (256 * PC_MIB)
#define ZERO_STEP PC_GIB

/* In order. A stage that has nothing to do is passed over. */
enum stage { CREATE, FREE_PARKED, GROW, UNGROW, TAKE, ZERO, EXPORT_BLOCK, EXPORT_FD, CLEAN_UP, LOOK, DONE };

static struct pc_gpu *gpu_of(const struct pc_pooled *p)
{
    return p->generation->tenant->gpu;
}

/* The first failure is the one that counts; what is half done is cleaned up in further steps. */
static void check(struct pc_pooled *p, enum pc_status status)
{
    if (status == PC_OK || p->status != PC_OK)
        return;
    p->status = status;
    p->broken = pc_gpu_is_broken(gpu_of(p), &p->err);
    p->stage = CLEAN_UP;
}

static void create(struct pc_pooled *p)
{
    struct pc_pool_config config = {
        .ordinal = gpu_of(p)->info.ordinal, .cap = p->generation->max, .exported = true, .leaks = gpu_of(p)->leaks};
    check(p, pc_pool_create(gpu_of(p)->broker->devices, &config, &p->generation->pool, &p->err));
}

/*
 * What cannot be freed is kept in mind by name and tried again by a later job. (Only where an allocation fails after
 * the driver made it, and the free then fails too, is there no name: the look at the end finds such memory as stuck.)
 */
static void give_back(struct pc_pooled *p, pc_cu_deviceptr ptr, uint64_t bytes)
{
    struct pc_error err;
    enum pc_status status = pc_pool_free(p->generation->pool, ptr, bytes, &err);
    if (status == PC_OK)
        return;
    if (p->failures < PC_PIECES_MAX)
        p->failed[p->failures++] = (struct pc_piece){ptr, bytes};
    if (p->status == PC_OK)
        p->err = err;
    check(p, status);
}

static void free_parked(struct pc_pooled *p)
{
    struct pc_block *block = pc_list_first(&p->plan.free_first, struct pc_block, link);
    pc_list_remove(&block->link);
    give_back(p, block->ptr, block->bytes);
    free(block);
}

static void grow(struct pc_pooled *p)
{
    uint64_t *left = p->plan.slack > 0 ? &p->plan.slack : &p->plan.growth;
    uint64_t bytes = left == &p->plan.growth && *left > GROW_STEP ? GROW_STEP : *left;
    enum pc_status status = pc_pool_alloc(p->generation->pool, bytes, &p->piece[p->pieces].ptr, &p->err);
    if (status == PC_OK) {
        p->piece[p->pieces++].bytes = bytes;
        *left -= bytes;
    }
    check(p, status);
}

static void ungrow(struct pc_pooled *p)
{
    p->pieces--;
    give_back(p, p->piece[p->pieces].ptr, p->piece[p->pieces].bytes);
}

static void take(struct pc_pooled *p)
{
    enum pc_status status = pc_pool_alloc(p->generation->pool, p->block->bytes, &p->block->ptr, &p->err);
    p->taken = status == PC_OK;
    check(p, status);
}

static void zero(struct pc_pooled *p)
{
    uint64_t left = p->block->bytes - p->zeroed;
    uint64_t bytes = left < ZERO_STEP ? left : ZERO_STEP;
    enum pc_status status = pc_pool_zero(p->generation->pool, p->block->ptr + p->zeroed, bytes, &p->err);
    p->zeroed += bytes;
    check(p, status);
}

/* One thing of what a failed job has in its hands. */
static void clean_up(struct pc_pooled *p)
{
    if (p->pieces > 0) {
        ungrow(p);
        return;
    }
    p->taken = false;
    give_back(p, p->block->ptr, p->block->bytes);
}

static bool has_work(const struct pc_pooled *p)
{
    switch ((enum stage)p->stage) {
    case CREATE:
        return p->generation->pool == NULL;
    case FREE_PARKED:
        return !pc_list_empty(&p->plan.free_first);
    case GROW:
        return p->plan.slack + p->plan.growth > 0;
    case UNGROW:
        return p->pieces > 0;
    case TAKE:
        return p->fresh && !p->taken;
    case ZERO:
        return p->plan.zero && p->zeroed < p->block->bytes;
    case EXPORT_BLOCK:
        return p->fresh;
    case EXPORT_FD:
        return p->want_fd;
    case CLEAN_UP:
        return p->status != PC_OK && (p->pieces > 0 || p->taken);
    case LOOK:
        return p->generation->pool != NULL;
    case DONE:
        break;
    }
    return true;
}

static enum pc_step step(struct pc_job *job)
{
    struct pc_pooled *p = pc_container_of(job, struct pc_pooled, job);
    while (!has_work(p))
        p->stage++;
    switch ((enum stage)p->stage) {
    case CREATE:
        create(p);
        break;
    case FREE_PARKED:
        free_parked(p);
        break;
    case GROW:
        grow(p);
        break;
    case UNGROW:
        ungrow(p);
        break;
    case TAKE:
        take(p);
        break;
    case ZERO:
        zero(p);
        break;
    case EXPORT_BLOCK:
        p->stage = EXPORT_FD;
        check(p, pc_pool_export_block(p->generation->pool, p->block->ptr, p->block->bytes, &p->block->data, &p->err));
        break;
    case EXPORT_FD:
        p->stage = CLEAN_UP;
        check(p, pc_pool_export_fd(p->generation->pool, &p->fd, &p->err));
        break;
    case CLEAN_UP:
        clean_up(p);
        break;
    case LOOK:
        p->has_stats = pc_pool_stats(p->generation->pool, &p->stats, NULL) == PC_OK;
        p->stage = DONE;
        return PC_STEP_DONE;
    case DONE:
        return PC_STEP_DONE;
    }
    return PC_STEP_MORE;
}

static void finished(struct pc_job *job)
{
    struct pc_pooled *p = pc_container_of(job, struct pc_pooled, job);
    p->done(p);
}

void pc_pooled_submit(struct pc_pooled *pooled)
{
    pooled->job.step = step;
    pooled->job.done = finished;
    pc_list_init(&pooled->job.link);
    pooled->status = PC_OK;
    pooled->fd = -1;
    pooled->fresh = pooled->block->ptr == 0;
    pooled->stage = CREATE;
    pc_worker_submit(pooled->generation->tenant->account, &pooled->job);
}
