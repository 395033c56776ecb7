#include "alloc/shim/give.h"

#include <stddef.h>

#include "alloc/base/log.h"
#include "alloc/pool/import.h"
#include "alloc/pool/large.h"
#include "alloc/shim/client.h"
#include "alloc/shim/state.h"
#include "alloc/shim/stream.h"

#define IDLE_LEAST (64 * PC_MIB)
#define LOOK_AGAIN_NS 1000000ull /* after a look that found the streams at work, or poolcapd away */

uint64_t shim_give_keep(const struct shim_gpu *gpu)
{
    uint64_t share = gpu->heap.live / 8;
    return share > IDLE_LEAST ? share : IDLE_LEAST;
}

bool shim_give_due(const struct shim_gpu *gpu)
{
    const struct shim_heap *heap = &gpu->heap;
    if (shim_likely(heap->empty == 0)) /* only whole slabs go back */
        return false;
    /* poolcapd gone: what is idle may pin all that it left, so the new one has to be found. */
    bool asked = heap->old > 0 || shim_client_away() || shim_gpu_wanted(gpu);
    if (shim_likely(!asked && shim_heap_idle(heap) <= shim_give_keep(gpu)))
        return false;
    uint64_t now = shim_now();
    return now >= gpu->look_at && (asked || now >= gpu->hold_until);
}

/* --- which --- */

static bool better(const struct shim_slab *slab, const struct shim_slab *than)
{
    if (than == NULL || slab->old != than->old)
        return than == NULL || slab->old;
    return slab->region.bytes > than->region.bytes;
}

/* The next slab to go: old ones in any case, else the largest. */
static struct shim_slab *choose(const struct shim_heap *heap, uint64_t keep)
{
    struct shim_slab *best = NULL;
    for (struct shim_slab *slab = heap->slabs; slab != NULL; slab = slab->next)
        if (shim_slab_ready(heap, slab) && (slab->old || shim_heap_idle(heap) > keep) && better(slab, best))
            best = slab;
    return best;
}

/* Takes what is to go out of the heap: from now on it is this thread's alone. */
static struct shim_slab *pull(struct shim_gpu *gpu, uint64_t current, uint64_t keep)
{
    struct shim_heap *heap = &gpu->heap;
    struct shim_slab *pulled = NULL, *slab;
    shim_lock_take(&heap->lock);
    shim_streams_poll(gpu, current);
    while ((slab = choose(heap, keep)) != NULL) {
        shim_slab_pull(heap, slab);
        slab->next = pulled;
        pulled = slab;
    }
    shim_lock_give(&heap->lock);
    return pulled;
}

/* --- how --- */

static enum pc_status unmap(const struct shim_slab *slab, pc_cu_stream stream, struct pc_error *err)
{
    if (slab->large)
        return pc_large_unmap(&shim.cu, slab->region.base, slab->region.bytes, err);
    return pc_import_block_free(&shim.cu, slab->region.base, stream, err);
}

/*
 * Ends this process's hold on a slab. Where the driver refuses, the memory stays mapped and charged: it is neither told
 * of nor used again.
 */
static bool give_slab(struct shim_slab *slab, pc_cu_stream stream)
{
    struct pc_error err;
    if (unmap(slab, stream, &err) != PC_OK) {
        pc_log_error("shim", "memory at %llx cannot be given back: %s", (unsigned long long)slab->region.base,
                     err.text);
        return false;
    }
    shim_client_queue_block(slab->id, slab->session, slab->large);
    if (slab->generation != NULL && --slab->generation->slabs == 0)
        shim_gpu_generation_dropped(slab->generation);
    return true;
}

static uint64_t give_all(struct shim_gpu *gpu, struct shim_slab *slabs, pc_cu_stream stream)
{
    uint64_t given = 0;
    for (struct shim_slab *slab = slabs, *next; slab != NULL; slab = next) {
        next = slab->next;
        if (give_slab(slab, stream))
            given += slab->region.bytes;
        shim_lock_take(&gpu->heap.lock);
        shim_slab_forget(&gpu->heap, slab);
        shim_lock_give(&gpu->heap.lock);
    }
    return given;
}

enum pc_status shim_give(struct shim_gpu *gpu, uint64_t current, uint64_t keep, uint64_t *given, struct pc_error *err)
{
    struct shim_context *context = shim_context_for(gpu);
    struct shim_guard guard;
    pc_cu_stream stream = NULL;
    uint64_t bytes = 0;
    if (given != NULL)
        *given = 0;
    enum pc_status status = shim_client_connect(err);
    if (status != PC_OK || context == NULL)
        return status;
    if (!shim_guard_begin(&guard, context))
        return PC_OK;
    status = shim_context_own_stream(context, &stream, err);
    if (status == PC_OK)
        bytes = give_all(gpu, pull(gpu, current, keep), stream);
    shim_guard_end(&guard);
    if (given != NULL)
        *given = bytes;
    return status == PC_OK ? shim_client_send_queued(err) : status;
}

static void note_given(struct shim_gpu *gpu, uint64_t given)
{
    uint64_t now = shim_now();
    shim_lock_take(&gpu->heap.lock);
    if (given > 0)
        gpu->gave_at = now;
    else
        gpu->look_at = now + LOOK_AGAIN_NS;
    shim_lock_give(&gpu->heap.lock);
}

void shim_give_idle(struct shim_gpu *gpu, uint64_t current)
{
    struct pc_error err;
    uint64_t given = 0;
    if (!shim_lock_try(&shim.slow)) /* somebody is growing or giving: the next free looks again */
        return;
    shim_client_hurry(true);
    if (shim_client_connect(&err) == PC_OK) {
        bool wanted = shim_gpu_wanted(gpu);
        shim_lock_take(&gpu->heap.lock);
        uint64_t keep = wanted ? 0 : shim_give_keep(gpu);
        shim_lock_give(&gpu->heap.lock);
        if (shim_give(gpu, current, keep, &given, &err) != PC_OK)
            pc_log_debug("shim", "idle memory is not given back: %s", err.text);
    }
    note_given(gpu, given);
    shim_client_hurry(false);
    shim_lock_give(&shim.slow);
}
