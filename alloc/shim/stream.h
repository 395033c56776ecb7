/*
 * Streams: who owns freed memory, and when the work queued behind a free is done.
 *
 * A stream is known by its context and its cuStreamGetId, which is never reused; handles are, and NULL, 1 and 2 mean
 * other streams in other contexts and threads. So the driver is asked for the id in every call (24 ns).
 *
 * Frees on a stream make batches. An event recorded behind a batch tells when its memory may go to other streams. It is
 * recorded late: when somebody else wants the memory, or, where the GPU has several streams in use, when a batch is
 * large. The per-thread stream (handle 2) can only be named by its own thread, so there the event is recorded with each
 * free.
 *
 * Captures: on a stream that is being captured nothing is recorded, queried or waited for. What is freed on it stays
 * the stream's own until a later event can be recorded.
 */
#ifndef PC_SHIM_STREAM_H
#define PC_SHIM_STREAM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "alloc/shim/context.h"
#include "alloc/shim/gpu.h"
#include "alloc/shim/heap.h"
#include "alloc/shim/state.h"

enum { SHIM_STREAM_EVENTS = 4, SHIM_STREAM_CACHE = 1024 };

struct shim_stream {
    void *link;
    _Atomic(pc_cu_context) ctx; /* with id: the key; NULL in a record that is not in use */
    _Atomic uint64_t id;
    struct shim_gpu *_Atomic gpu; /* never changes */
    pc_cu_stream handle;
    struct shim_context *context;
    struct shim_stream *next, *prev; /* of the GPU's */
    struct shim_stream *chain;       /* of its hash */
    uint64_t pass;                   /* for walks that give the lock away in between */
    uint64_t open_bytes;             /* freed since the last event */
    unsigned events_count;
    struct {
        pc_cu_event event;
        uint64_t batch;
    } events[SHIM_STREAM_EVENTS]; /* oldest first */
    struct shim_owner own;
};

extern struct shim_stream *_Atomic shim_stream_cache[SHIM_STREAM_CACHE];

static inline unsigned shim_stream_slot(pc_cu_context ctx, uint64_t id)
{
    return (unsigned)(((id ^ ((uintptr_t)ctx >> 6)) * 0x9e3779b97f4a7c15u) >> 54);
}

static inline bool shim_stream_is(const struct shim_stream *stream, pc_cu_context ctx, uint64_t id)
{
    return atomic_load_explicit(&stream->ctx, memory_order_relaxed) == ctx &&
           atomic_load_explicit(&stream->id, memory_order_relaxed) == id;
}

static inline struct shim_heap *shim_stream_heap(const struct shim_stream *stream)
{
    return &atomic_load_explicit(&stream->gpu, memory_order_relaxed)->heap;
}

/*
 * The record of a stream of the calling thread's context, with its heap locked. NULL, nothing locked: it is not known
 * yet or the library has not started; shim_stream_open says why.
 */
static inline struct shim_stream *shim_stream_enter(pc_cu_stream handle)
{
    pc_cu_context ctx;
    unsigned long long id;
    if (!shim_alive() || shim.cu.cuCtxGetCurrent(&ctx) != PC_CU_SUCCESS || ctx == NULL ||
        shim.cu.cuStreamGetId(handle, &id) != PC_CU_SUCCESS)
        return NULL;
    struct shim_stream *stream =
        atomic_load_explicit(&shim_stream_cache[shim_stream_slot(ctx, id)], memory_order_acquire);
    if (shim_unlikely(stream == NULL) || shim_unlikely(!shim_stream_is(stream, ctx, id)))
        return NULL;
    struct shim_heap *heap = shim_stream_heap(stream);
    shim_lock_take(&heap->lock);
    if (shim_likely(shim_stream_is(stream, ctx, id))) /* records are used again, but not while the lock is held */
        return stream;
    shim_lock_give(&heap->lock);
    return NULL;
}

/* The slow way to the same, which makes the context and the stream known. Errors: see shim_context_open; PC_ERR_INVALID
 * (no such stream), PC_ERR_HOST_MEMORY. */
enum pc_status shim_stream_open(pc_cu_stream handle, struct shim_stream **out, struct pc_error *err);

/* Whether the stream is being captured, or cannot be asked without spoiling a capture. Its context is current. */
bool shim_stream_capturing(pc_cu_stream handle);

enum {
    /* With several streams in use: how much is freed before an event is recorded, so that it is done when it is needed.
     */
    SHIM_BATCH_BYTES = 32 * 1024 * 1024,
};

void shim_stream_cover(struct shim_stream *stream);

/* After a free on the stream, whose context is current. Under the heap's lock. */
static inline void shim_stream_freed(struct shim_stream *stream, uint64_t bytes)
{
    stream->open_bytes += bytes;
    bool early = stream->open_bytes >= SHIM_BATCH_BYTES &&
                 atomic_load_explicit(&stream->gpu, memory_order_relaxed)->streams_count > 1;
    if (shim_unlikely(early || (uintptr_t)stream->handle == PC_CU_STREAM_PER_THREAD_VALUE))
        shim_stream_cover(stream);
}

/* Names the stream of a call, for what may be done on that stream's own thread only. Ids are never used again. */
#define SHIM_NO_STREAM UINT64_MAX

/*
 * Looks which work is done, records events where there are none, and makes clean what is done. Waits for nothing.
 * current: the id of this call's stream, which is not being captured, or SHIM_NO_STREAM. Under the heap's lock.
 */
void shim_streams_poll(struct shim_gpu *gpu, uint64_t current);

/*
 * Waits until the work behind all that was freed so far is done, on all streams that are not being captured. Takes and
 * gives the heap's lock; called without it.
 */
void shim_streams_wait(struct shim_gpu *gpu, uint64_t current);

/* All work of the stream is done and it goes away: its memory is clean, its record free. Under the heap's lock. */
void shim_stream_forget(struct shim_stream *stream);

#endif
