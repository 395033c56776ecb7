/* The C API of poolcap.h: checks arguments, serves what it can at once, and hands the rest on. */
#include "alloc/shim/poolcap.h"

#include "alloc/shim/alloc.h"
#include "alloc/shim/give.h"
#include "alloc/shim/map.h"
#include "alloc/shim/state.h"
#include "alloc/shim/stream.h"

#define API __attribute__((visibility("default")))

/* Pops the stream's own list: no system call, no driver call but for the two that name the stream. */
static inline bool alloc_fast(poolcap_ptr *out, size_t bytes, pc_cu_stream handle)
{
    struct shim_stream *stream = shim_stream_enter(handle);
    if (shim_unlikely(stream == NULL))
        return false;
    struct shim_heap *heap = shim_stream_heap(stream);
    unsigned class = shim_class(bytes);
    struct shim_block *block = shim_heap_pop(&stream->own, class, shim_rounded(bytes, class));
    if (shim_likely(block != NULL)) {
        shim_heap_use(heap, block);
        *out = block->addr;
    }
    shim_lock_give(&heap->lock);
    return block != NULL;
}

API poolcap_status poolcap_alloc(poolcap_ptr *out, size_t bytes, poolcap_stream stream, unsigned int flags)
{
    if (shim_unlikely(out == NULL || bytes == 0))
        return shim_fail(POOLCAP_INVALID, out == NULL ? "poolcap_alloc without a place for the result"
                                                      : "an allocation of 0 bytes; it has to be at least 1");
    if (shim_unlikely(flags != POOLCAP_POOLED)) {
        poolcap_status begun = shim_begin();
        if (begun != POOLCAP_OK)
            return begun;
        if (flags != POOLCAP_DIRECT)
            return shim_fail(POOLCAP_INVALID, "there are no flags %#x", flags);
        return shim_direct_alloc(out, bytes, stream);
    }
    if (shim_likely(bytes <= PC_POOL_ALLOC_MAX) && shim_likely(alloc_fast(out, bytes, stream)))
        return POOLCAP_OK;
    return shim_alloc_slow(out, bytes, stream);
}

/* *due: slabs are to be given back, afterwards and without the lock. */
static inline struct shim_block *free_fast(struct shim_stream *stream, poolcap_ptr ptr, bool *due)
{
    struct shim_heap *heap = shim_stream_heap(stream);
    struct shim_slab *slab = shim_map_find(ptr);
    if (shim_unlikely(slab == NULL || atomic_load_explicit(&slab->heap, memory_order_relaxed) != heap))
        return NULL;
    struct shim_block *block = shim_slab_live_block(slab, ptr);
    if (shim_likely(block != NULL)) {
        shim_heap_put(heap, &stream->own, block);
        shim_stream_freed(stream, block->bytes);
        *due = shim_give_due(atomic_load_explicit(&stream->gpu, memory_order_relaxed));
    }
    return block;
}

API poolcap_status poolcap_free(poolcap_ptr ptr, poolcap_stream handle)
{
    if (shim_unlikely(ptr == 0))
        return POOLCAP_OK;
    struct shim_stream *stream = shim_stream_enter(handle);
    if (shim_unlikely(stream == NULL))
        return shim_free_slow(ptr, handle);
    struct shim_gpu *gpu = atomic_load_explicit(&stream->gpu, memory_order_relaxed);
    uint64_t id = atomic_load_explicit(&stream->id, memory_order_relaxed);
    bool due = false;
    struct shim_block *block = free_fast(stream, ptr, &due);
    shim_lock_give(&gpu->heap.lock);
    if (shim_unlikely(block == NULL))
        return shim_free_slow(ptr, handle);
    if (shim_unlikely(due) && !shim_stream_capturing(handle))
        shim_give_idle(gpu, id);
    return POOLCAP_OK;
}

/* --- what goes away --- */

static poolcap_status driver_failed(pc_cu_result r, const char *what)
{
    struct pc_error err;
    pc_cuda_error(&shim.cu, r, PC_ERR_DRIVER, what, &err);
    return shim_fail(POOLCAP_DRIVER, "%s", err.text);
}

static bool is_started(void)
{
    return atomic_load_explicit(&shim.alive, memory_order_acquire) != NULL;
}

API poolcap_status poolcap_stream_gone(poolcap_stream handle)
{
    struct pc_error err;
    struct shim_stream *stream;
    poolcap_status begun = is_started() ? shim_begin() : POOLCAP_OK;
    if (begun != POOLCAP_OK || !is_started())
        return begun;
    if (shim_stream_capturing(handle))
        return shim_fail(POOLCAP_CAPTURE, "the stream is being captured: it cannot go now");
    struct shim_guard guard;
    shim_guard_begin(&guard, NULL);
    pc_cu_result r = shim.cu.cuStreamSynchronize(handle);
    shim_guard_end(&guard);
    if (r != PC_CU_SUCCESS)
        return driver_failed(r, "cuStreamSynchronize");
    if (shim_stream_open(handle, &stream, &err) != PC_OK)
        return POOLCAP_OK; /* of a context that poolcap does not serve: nothing was freed on it */
    struct shim_heap *heap = shim_stream_heap(stream);
    shim_stream_forget(stream);
    shim_lock_give(&heap->lock);
    return POOLCAP_OK;
}

static void forget_context(struct shim_context *context)
{
    struct shim_gpu *gpu = atomic_load_explicit(&context->gpu, memory_order_relaxed);
    shim_lock_take(&gpu->heap.lock);
    for (struct shim_stream *stream = gpu->streams, *next; stream != NULL; stream = next) {
        next = stream->next;
        if (stream->context == context)
            shim_stream_forget(stream);
    }
    shim_lock_give(&gpu->heap.lock);
    shim_context_forget(context);
}

API poolcap_status poolcap_context_gone(void *handle)
{
    struct shim_guard guard;
    poolcap_status begun = is_started() ? shim_begin() : POOLCAP_OK;
    if (begun != POOLCAP_OK || !is_started())
        return begun;
    shim_lock_take(&shim.slow);
    struct shim_context *context = shim_context_find(handle);
    pc_cu_result r = PC_CU_SUCCESS;
    if (context != NULL && shim_guard_begin(&guard, context)) {
        r = shim.cu.cuCtxSynchronize();
        if (r == PC_CU_SUCCESS)
            forget_context(context);
        shim_guard_end(&guard);
    }
    shim_lock_give(&shim.slow);
    return r == PC_CU_SUCCESS ? POOLCAP_OK : driver_failed(r, "cuCtxSynchronize");
}

/* --- giving back --- */

static enum pc_status trim_one(struct shim_gpu *gpu, size_t keep, uint64_t *given, struct pc_error *err)
{
    uint64_t bytes = 0;
    enum pc_status status = PC_OK;
    if (gpu->heap.held > keep)
        status = shim_give(gpu, SHIM_NO_STREAM, keep, &bytes, err);
    *given += bytes;
    return status;
}

API poolcap_status poolcap_trim(size_t keep, size_t *given)
{
    struct pc_error err;
    enum pc_status status = PC_OK;
    uint64_t total = 0;
    poolcap_status begun = is_started() ? shim_begin() : POOLCAP_OK;
    if (begun != POOLCAP_OK)
        return begun;
    shim_lock_take(&shim.slow);
    for (unsigned i = 0; is_started() && i < SHIM_GPUS && status == PC_OK; i++)
        if (shim_gpu_at(i)->uuid[0] != '\0')
            status = trim_one(shim_gpu_at(i), keep, &total, &err);
    shim_lock_give(&shim.slow);
    if (given != NULL)
        *given = (size_t)total;
    return status == PC_OK ? POOLCAP_OK : shim_fail_error(&err);
}
