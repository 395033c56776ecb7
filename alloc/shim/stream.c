#include "alloc/shim/stream.h"

#include <stddef.h>

#include "alloc/pool/check.h"

struct shim_stream *_Atomic shim_stream_cache[SHIM_STREAM_CACHE];

enum {
    /* Programs that make a stream for each job and never say poolcap_stream_gone: records of streams that own nothing
     * are used again from this number on. */
    STREAMS_MANY = 256,
};

static bool is_per_thread(const struct shim_stream *stream)
{
    return (uintptr_t)stream->handle == PC_CU_STREAM_PER_THREAD_VALUE;
}

/*
 * On the legacy stream the driver answers an error while a blocking stream of the context is captured, and spoils
 * nothing by it (cuda.h): taken as "captured" too.
 */
bool shim_stream_capturing(pc_cu_stream handle)
{
    pc_cu_capture_status status = PC_CU_CAPTURE_STATUS_NONE;
    return shim.cu.cuStreamIsCapturing(handle, &status) != PC_CU_SUCCESS || status != PC_CU_CAPTURE_STATUS_NONE;
}

/* --- records --- */

static struct shim_stream **chain_of(struct shim_gpu *gpu, uint64_t id)
{
    return &gpu->chain[id % SHIM_STREAM_CHAINS];
}

static struct shim_stream *find(struct shim_gpu *gpu, pc_cu_context ctx, uint64_t id)
{
    struct shim_stream *stream = *chain_of(gpu, id);
    while (stream != NULL && !shim_stream_is(stream, ctx, id))
        stream = stream->chain;
    return stream;
}

static void forget_idle_streams(struct shim_gpu *gpu)
{
    for (struct shim_stream *stream = gpu->streams, *next; stream != NULL; stream = next) {
        next = stream->next;
        if (stream->own.blocks == 0)
            shim_stream_forget(stream);
    }
}

static void link_stream(struct shim_gpu *gpu, struct shim_stream *stream, uint64_t id)
{
    struct shim_stream **chain = chain_of(gpu, id);
    stream->chain = *chain;
    *chain = stream;
    stream->prev = NULL;
    stream->next = gpu->streams;
    if (stream->next != NULL)
        stream->next->prev = stream;
    gpu->streams = stream;
    gpu->streams_count++;
}

static struct shim_stream *add(struct shim_gpu *gpu, struct shim_context *context, pc_cu_stream handle, uint64_t id)
{
    if (gpu->streams_count >= STREAMS_MANY)
        forget_idle_streams(gpu);
    struct shim_stream *stream = shim_meta_get(&gpu->streams_free, sizeof *stream);
    if (stream == NULL)
        return NULL;
    stream->handle = handle;
    stream->context = context;
    stream->open_bytes = 0;
    stream->events_count = 0;
    stream->pass = gpu->pass;
    shim_owner_init(&stream->own);
    link_stream(gpu, stream, id);
    atomic_store_explicit(&stream->gpu, gpu, memory_order_relaxed);
    atomic_store_explicit(&stream->id, id, memory_order_relaxed);
    atomic_store_explicit(&stream->ctx, atomic_load_explicit(&context->handle, memory_order_relaxed),
                          memory_order_relaxed);
    return stream;
}

void shim_stream_forget(struct shim_stream *stream)
{
    struct shim_gpu *gpu = atomic_load_explicit(&stream->gpu, memory_order_relaxed);
    stream->own.done = stream->own.batch++;
    shim_heap_sweep(&gpu->heap, &stream->own);
    for (unsigned i = 0; i < stream->events_count; i++)
        shim_event_put(stream->context, stream->events[i].event);
    struct shim_stream **link = chain_of(gpu, atomic_load_explicit(&stream->id, memory_order_relaxed));
    while (*link != stream)
        link = &(*link)->chain;
    *link = stream->chain;
    if (stream->prev != NULL)
        stream->prev->next = stream->next;
    else
        gpu->streams = stream->next;
    if (stream->next != NULL)
        stream->next->prev = stream->prev;
    gpu->streams_count--;
    atomic_store_explicit(&stream->ctx, NULL, memory_order_relaxed);
    shim_meta_put(&gpu->streams_free, stream);
}

static enum pc_status open_context(struct shim_context **context, struct pc_error *err)
{
    pc_cu_context ctx = NULL;
    shim.cu.cuCtxGetCurrent(&ctx);
    *context = shim_context_find(ctx);
    if (*context != NULL)
        return PC_OK;
    shim_lock_take(&shim.slow);
    enum pc_status status = shim_context_open(context, err);
    shim_lock_give(&shim.slow);
    return status;
}

enum pc_status shim_stream_open(pc_cu_stream handle, struct shim_stream **out, struct pc_error *err)
{
    struct shim_context *context;
    unsigned long long id;
    enum pc_status status = open_context(&context, err);
    if (status != PC_OK)
        return status;
    pc_cu_result r = shim.cu.cuStreamGetId(handle, &id);
    if (r != PC_CU_SUCCESS)
        return pc_cuda_error_as(&shim.cu, r, PC_ERR_INVALID, "cuStreamGetId", err);
    pc_cu_context ctx = atomic_load_explicit(&context->handle, memory_order_relaxed);
    struct shim_gpu *gpu = atomic_load_explicit(&context->gpu, memory_order_relaxed);
    shim_lock_take(&gpu->heap.lock);
    struct shim_stream *stream = find(gpu, ctx, id);
    if (stream == NULL)
        stream = add(gpu, context, handle, id);
    if (stream == NULL) {
        shim_lock_give(&gpu->heap.lock);
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no host memory for a stream's record");
    }
    atomic_store_explicit(&shim_stream_cache[shim_stream_slot(ctx, id)], stream, memory_order_release);
    *out = stream;
    return PC_OK;
}

/* --- events --- */

/* The batch is closed: an event recorded now covers it. */
static void close_batch(struct shim_stream *stream, unsigned place)
{
    stream->events[place].batch = stream->own.batch++;
    stream->open_bytes = 0;
}

/* Records behind all that was freed so far. When all places are taken the newest event is recorded anew: it then stands
 * for more, later. */
static void record(struct shim_stream *stream)
{
    unsigned place = stream->events_count;
    if (place == SHIM_STREAM_EVENTS) {
        place--;
    } else {
        stream->events[place].event = shim_event_get(stream->context);
        if (stream->events[place].event == NULL)
            return;
    }
    if (shim.cu.cuEventRecord(stream->events[place].event, stream->handle) != PC_CU_SUCCESS) {
        if (place == stream->events_count)
            shim_event_put(stream->context, stream->events[place].event);
        return;
    }
    stream->events_count = place + 1;
    close_batch(stream, place);
}

/* Sets `done` by what the events say. */
static void query(struct shim_stream *stream)
{
    unsigned passed = 0;
    while (passed < stream->events_count && shim.cu.cuEventQuery(stream->events[passed].event) == PC_CU_SUCCESS) {
        stream->own.done = stream->events[passed].batch;
        shim_event_put(stream->context, stream->events[passed++].event);
    }
    stream->events_count -= passed;
    for (unsigned i = 0; i < stream->events_count; i++)
        stream->events[i] = stream->events[i + passed];
}

/* What was freed since the last event: nothing to wait for on a stream without work; else an event. */
static void cover_open_batch(struct shim_stream *stream)
{
    if (shim_stream_capturing(stream->handle))
        return;
    if (stream->events_count == 0 && shim.cu.cuStreamQuery(stream->handle) == PC_CU_SUCCESS) {
        stream->own.done = stream->own.batch++;
        stream->open_bytes = 0;
        return;
    }
    record(stream);
}

/* newest is the stamp of the latest free; a batch with it that is still open has no event. */
static bool has_open_batch(const struct shim_stream *stream)
{
    return stream->own.newest == stream->own.batch;
}

/* The per-thread stream's handle means that stream only on its own thread. */
static bool can_name(const struct shim_stream *stream, uint64_t current)
{
    return !is_per_thread(stream) || atomic_load_explicit(&stream->id, memory_order_relaxed) == current;
}

static void poll_one(struct shim_heap *heap, struct shim_stream *stream, uint64_t current)
{
    struct shim_guard guard;
    uint64_t before = stream->own.done;
    if (shim_guard_begin(&guard, stream->context)) {
        query(stream);
        if (has_open_batch(stream) && can_name(stream, current))
            cover_open_batch(stream);
        shim_guard_end(&guard);
    } else { /* its context is gone, and all work in it with it */
        stream->events_count = 0;
        stream->own.done = stream->own.batch++;
    }
    if (stream->own.done != before)
        shim_heap_sweep(heap, &stream->own);
}

void shim_streams_poll(struct shim_gpu *gpu, uint64_t current)
{
    for (struct shim_stream *stream = gpu->streams; stream != NULL; stream = stream->next)
        if (stream->own.blocks > 0)
            poll_one(&gpu->heap, stream, current);
}

void shim_stream_cover(struct shim_stream *stream)
{
    struct shim_guard guard;
    shim_guard_begin(&guard, NULL);
    query(stream);
    if (!shim_stream_capturing(stream->handle))
        record(stream);
    shim_guard_end(&guard);
}

/* --- waiting --- */

/* The next stream of this walk that has something to wait for, with a batch that is covered by its last event. */
static struct shim_stream *next_to_wait_for(struct shim_gpu *gpu, uint64_t current)
{
    for (struct shim_stream *stream = gpu->streams; stream != NULL; stream = stream->next) {
        if (stream->pass == gpu->pass)
            continue;
        stream->pass = gpu->pass;
        if (stream->own.blocks == 0)
            continue;
        poll_one(&gpu->heap, stream, current);
        if (stream->own.blocks > 0 && stream->events_count > 0)
            return stream;
    }
    return NULL;
}

void shim_streams_wait(struct shim_gpu *gpu, uint64_t current)
{
    struct shim_heap *heap = &gpu->heap;
    struct shim_stream *stream;
    shim_lock_take(&heap->lock);
    gpu->pass++;
    while ((stream = next_to_wait_for(gpu, current)) != NULL) {
        pc_cu_event event = stream->events[stream->events_count - 1].event;
        struct shim_context *context = stream->context;
        struct shim_guard guard;
        shim_lock_give(&heap->lock);
        /* Another thread may put the event to a new use meanwhile: then this waits longer, for nothing wrong. */
        if (shim_guard_begin(&guard, context)) {
            shim.cu.cuEventSynchronize(event);
            shim_guard_end(&guard);
        }
        shim_lock_take(&heap->lock);
    }
    shim_streams_poll(gpu, current);
    shim_lock_give(&heap->lock);
}
