/*
 * CUDA contexts that the program uses, and what the shim keeps for each: events for reuse and one stream of its own.
 *
 * A context is known by its handle; its id (cuCtxGetId) tells when the handle has been given to another one.
 */
#ifndef PC_SHIM_CONTEXT_H
#define PC_SHIM_CONTEXT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "alloc/base/error.h"
#include "alloc/driver/driver.h"

struct shim_gpu;

enum { SHIM_CONTEXTS = 64, SHIM_EVENTS_KEPT = 64 };

struct shim_context {
    _Atomic(pc_cu_context) handle; /* NULL: a free place */
    _Atomic uint64_t id;
    struct shim_gpu *_Atomic gpu;
    pc_cu_stream own;                     /* non-blocking, for freeing imports; under shim.slow */
    pc_cu_event events[SHIM_EVENTS_KEPT]; /* unused ones; under the heap's lock */
    unsigned events_count;
};

/* The context's record if it is known; without a lock. Asks the driver for the id. */
struct shim_context *shim_context_find(pc_cu_context handle);

/*
 * The record of the calling thread's context, made if need be: connects, and attaches the GPU. Where no context is
 * current, the primary one of the first granted GPU is made so. Under shim.slow.
 * Errors: those of connecting; PC_ERR_NOT_FOUND (GPU not granted), PC_ERR_DEVICE.
 */
enum pc_status shim_context_open(struct shim_context **out, struct pc_error *err);

/* A context that this thread may use on the GPU: its own, or one that is known. NULL: none. Under shim.slow. */
struct shim_context *shim_context_for(const struct shim_gpu *gpu);

/* Forgets a context that goes away: destroys what the shim had in it. Its streams are forgotten already. Under
 * shim.slow. */
void shim_context_forget(struct shim_context *context);

/* The context's own stream, or an error. Inside a guard for that context. Under shim.slow. */
enum pc_status shim_context_own_stream(struct shim_context *context, pc_cu_stream *out, struct pc_error *err);

/* An event of the context. NULL: the driver gave none. Inside a guard for that context, under the heap's lock. */
pc_cu_event shim_event_get(struct shim_context *context);
void shim_event_put(struct shim_context *context, pc_cu_event event);

/*
 * Around the shim's own driver calls: makes the context current, and lets the calls be made beside other threads'
 * captures, which in relaxed mode they cannot spoil. Always ended, by the same thread. context: NULL for the current
 * one.
 */
struct shim_guard {
    bool pushed, relaxed;
    pc_cu_capture_mode mode;
};
bool shim_guard_begin(struct shim_guard *guard, const struct shim_context *context);
void shim_guard_end(struct shim_guard *guard);

#endif
