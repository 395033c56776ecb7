#include "alloc/shim/alloc.h"

#include <inttypes.h>

#include "alloc/pool/check.h"
#include "alloc/shim/give.h"
#include "alloc/shim/map.h"
#include "alloc/shim/state.h"
#include "alloc/shim/stream.h"

/* Over any card, and small enough that rounding cannot wrap. */
#define BYTES_MOST (1ull << 48)
#define LARGE_GRANULARITY (2 * PC_MIB)

struct request {
    uint64_t bytes; /* rounded */
    unsigned class;
    bool large, capturing;
    pc_cu_stream handle;
    struct shim_gpu *gpu; /* of the calling thread's context */
    uint64_t stream;      /* its id */
};

static struct request make_request(size_t bytes, poolcap_stream stream)
{
    struct request request = {.handle = stream, .large = bytes > PC_POOL_ALLOC_MAX};
    request.class = request.large ? SHIM_CLASS_LARGE : shim_class(bytes);
    request.bytes = request.large ? (bytes + LARGE_GRANULARITY - 1) / LARGE_GRANULARITY * LARGE_GRANULARITY
                                  : shim_rounded(bytes, request.class);
    return request;
}

/* --- from memory already held --- */

static struct shim_block *take(struct shim_heap *heap, struct shim_stream *stream, const struct request *request)
{
    if (request->large)
        return shim_heap_take_large(heap, &stream->own, request->bytes);
    struct shim_block *block = shim_heap_take(heap, &stream->own, request->class, request->bytes);
    if (block == NULL)
        block = shim_heap_absorb(heap, &stream->own, request->class, request->bytes);
    return block;
}

/* What needs no driver call first; then, where the stream is not being captured, what other streams are done with. */
static struct shim_block *take_or_poll(struct shim_gpu *gpu, struct shim_stream *stream, struct request *request)
{
    struct shim_block *block = take(&gpu->heap, stream, request);
    if (block != NULL)
        return block;
    request->capturing = shim_stream_capturing(request->handle);
    if (request->capturing)
        return NULL;
    shim_streams_poll(gpu, request->stream);
    return take(&gpu->heap, stream, request);
}

/* *found: whether *out was written. Errors are those of making the stream known. */
static enum pc_status attempt(struct request *request, poolcap_ptr *out, bool *found, struct pc_error *err)
{
    struct shim_stream *stream;
    *found = false;
    enum pc_status status = shim_stream_open(request->handle, &stream, err);
    if (status != PC_OK)
        return status;
    request->gpu = atomic_load_explicit(&stream->gpu, memory_order_relaxed);
    request->stream = atomic_load_explicit(&stream->id, memory_order_relaxed);
    struct shim_block *block = take_or_poll(request->gpu, stream, request);
    if (block != NULL) {
        shim_heap_use(&request->gpu->heap, block);
        *out = block->addr;
        *found = true;
    }
    shim_lock_give(&request->gpu->heap.lock);
    return PC_OK;
}

/* --- with more memory --- */

/* Another thread may take what was got before this one comes to it: then it gets more. */
static enum pc_status grow_and_take(struct request *request, poolcap_ptr *out, struct pc_error *err)
{
    bool found;
    enum pc_status status = attempt(request, out, &found, err); /* somebody may have grown while this one waited */
    while (status == PC_OK && !found) {
        status = shim_gpu_grow(request->gpu, request->bytes, request->large, err);
        if (status == PC_OK)
            status = attempt(request, out, &found, err);
    }
    return status;
}

/*
 * Over the cap, or so it seems. First what other streams are about to be done with, which is worth a wait now; then all
 * idle slabs go back, so that poolcapd can make one large block of them, or a sibling's release comes in.
 */
static enum pc_status last_resort(struct request *request, poolcap_ptr *out, struct pc_error *err)
{
    bool found;
    struct pc_error ignored;
    shim_streams_wait(request->gpu, request->stream);
    enum pc_status status = attempt(request, out, &found, err);
    if (status != PC_OK || found)
        return status;
    shim_give(request->gpu, request->stream, 0, NULL, &ignored);
    return grow_and_take(request, out, err);
}

poolcap_status shim_alloc_slow(poolcap_ptr *out, size_t bytes, poolcap_stream stream)
{
    struct pc_error err;
    bool found;
    poolcap_status begun = shim_begin();
    if (begun != POOLCAP_OK)
        return begun;
    if (bytes > BYTES_MOST)
        return shim_fail(POOLCAP_OUT_OF_MEMORY, "%zu bytes are more than any GPU has", bytes);
    struct request request = make_request(bytes, stream);
    enum pc_status status = attempt(&request, out, &found, &err);
    if (status == PC_OK && !found) {
        if (request.capturing)
            return shim_fail(
                POOLCAP_CAPTURE,
                "the stream is being captured and no free memory of %zu bytes is held; allocate before the "
                "capture begins",
                bytes);
        shim_lock_take(&shim.slow);
        status = grow_and_take(&request, out, &err);
        if (status == PC_ERR_OUT_OF_MEMORY)
            status = last_resort(&request, out, &err);
        shim_lock_give(&shim.slow);
    }
    return status == PC_OK ? POOLCAP_OK : shim_fail_error(&err);
}

/* --- free --- */

static poolcap_status unknown(poolcap_ptr ptr)
{
    return shim_fail(POOLCAP_INVALID, "%#" PRIx64 " is no memory of poolcap's, or was freed already", ptr);
}

/*
 * A free on a stream that cannot own the memory: of another GPU, or of a context that poolcap does not serve. Waits for
 * the stream, then the memory is anybody's.
 */
static poolcap_status free_synchronised(struct shim_slab *slab, poolcap_ptr ptr, pc_cu_stream handle)
{
    struct pc_error err;
    struct shim_guard guard;
    if (shim_stream_capturing(handle))
        return shim_fail(POOLCAP_CAPTURE, "memory of another GPU or context cannot be freed on a stream under capture");
    shim_guard_begin(&guard, NULL);
    pc_cu_result r = shim.cu.cuStreamSynchronize(handle);
    shim_guard_end(&guard);
    if (r != PC_CU_SUCCESS) {
        pc_cuda_error_as(&shim.cu, r, PC_ERR_DRIVER, "cuStreamSynchronize before a free", &err);
        return shim_fail_error(&err);
    }
    struct shim_heap *heap = atomic_load_explicit(&slab->heap, memory_order_relaxed);
    shim_lock_take(&heap->lock);
    struct shim_block *block = shim_map_find(ptr) == slab ? shim_slab_live_block(slab, ptr) : NULL;
    if (block != NULL)
        shim_heap_put_clean(heap, block);
    shim_lock_give(&heap->lock);
    return block != NULL ? POOLCAP_OK : unknown(ptr);
}

/* The stream is known, and the heap locked; gives the lock. */
static poolcap_status free_on(struct shim_stream *stream, const struct shim_slab *slab, poolcap_ptr ptr)
{
    struct shim_gpu *gpu = atomic_load_explicit(&stream->gpu, memory_order_relaxed);
    struct shim_heap *heap = &gpu->heap;
    struct shim_block *block = shim_map_find(ptr) == slab ? shim_slab_live_block(slab, ptr) : NULL;
    bool due = false;
    uint64_t id = atomic_load_explicit(&stream->id, memory_order_relaxed);
    if (block != NULL) {
        shim_heap_put(heap, &stream->own, block);
        shim_stream_freed(stream, block->bytes);
        due = shim_give_due(gpu);
    }
    shim_lock_give(&heap->lock);
    if (due)
        shim_give_idle(gpu, id);
    return block != NULL ? POOLCAP_OK : unknown(ptr);
}

poolcap_status shim_free_slow(poolcap_ptr ptr, poolcap_stream handle)
{
    struct pc_error err;
    poolcap_status begun = shim_begin();
    if (begun != POOLCAP_OK)
        return begun;
    struct shim_slab *slab = shim_map_find(ptr);
    if (slab == NULL) {
        poolcap_status status = shim_direct_free(ptr);
        return status == POOLCAP_INVALID ? unknown(ptr) : status;
    }
    struct shim_stream *stream;
    if (shim_stream_open(handle, &stream, &err) != PC_OK)
        return free_synchronised(slab, ptr, handle);
    if (shim_stream_heap(stream) == atomic_load_explicit(&slab->heap, memory_order_relaxed))
        return free_on(stream, slab, ptr);
    shim_lock_give(&shim_stream_heap(stream)->lock);
    return free_synchronised(slab, ptr, handle);
}
