#include "alloc/shim/context.h"

#include <stddef.h>

#include "alloc/pool/check.h"
#include "alloc/shim/gpu.h"
#include "alloc/shim/state.h"

static struct shim_context contexts[SHIM_CONTEXTS];

bool shim_guard_begin(struct shim_guard *guard, const struct shim_context *context)
{
    *guard = (struct shim_guard){.mode = PC_CU_CAPTURE_RELAXED};
    if (context != NULL) {
        pc_cu_context wanted = atomic_load_explicit(&context->handle, memory_order_relaxed), current = NULL;
        shim.cu.cuCtxGetCurrent(&current);
        if (current != wanted && shim.cu.cuCtxPushCurrent(wanted) != PC_CU_SUCCESS)
            return false;
        guard->pushed = current != wanted;
    }
    guard->relaxed = shim.cu.cuThreadExchangeStreamCaptureMode(&guard->mode) == PC_CU_SUCCESS;
    return true;
}

void shim_guard_end(struct shim_guard *guard)
{
    pc_cu_context popped;
    if (guard->relaxed)
        shim.cu.cuThreadExchangeStreamCaptureMode(&guard->mode);
    if (guard->pushed)
        shim.cu.cuCtxPopCurrent(&popped);
}

struct shim_context *shim_context_find(pc_cu_context handle)
{
    unsigned long long id;
    if (handle == NULL || shim.cu.cuCtxGetId(handle, &id) != PC_CU_SUCCESS)
        return NULL;
    for (unsigned i = 0; i < SHIM_CONTEXTS; i++)
        if (atomic_load_explicit(&contexts[i].handle, memory_order_acquire) == handle &&
            atomic_load_explicit(&contexts[i].id, memory_order_relaxed) == id)
            return &contexts[i];
    return NULL;
}

/* A free place; the one of a context whose handle has been given to another is taken over with what was lost in it. */
static struct shim_context *place_for(pc_cu_context handle)
{
    struct shim_context *place = NULL;
    for (unsigned i = 0; i < SHIM_CONTEXTS; i++) {
        pc_cu_context there = atomic_load_explicit(&contexts[i].handle, memory_order_relaxed);
        if (there == NULL && place == NULL)
            place = &contexts[i];
        if (there != handle)
            continue;
        shim_gpu_context_lost(&contexts[i]);
        return &contexts[i];
    }
    return place;
}

static enum pc_status remember(pc_cu_context handle, struct shim_gpu *gpu, struct shim_context **out,
                               struct pc_error *err)
{
    unsigned long long id;
    pc_cu_result r = shim.cu.cuCtxGetId(handle, &id);
    if (r != PC_CU_SUCCESS)
        return pc_cuda_error_as(&shim.cu, r, PC_ERR_DEVICE, "cuCtxGetId", err);
    struct shim_context *place = place_for(handle);
    if (place == NULL)
        return pc_error_set(
            err, PC_ERR_NOT_SUPPORTED, 0,
            "more than %d CUDA contexts in one process; say poolcap_context_gone before one is destroyed",
            SHIM_CONTEXTS);
    place->own = NULL;
    place->events_count = 0;
    atomic_store_explicit(&place->id, id, memory_order_relaxed);
    atomic_store_explicit(&place->gpu, gpu, memory_order_relaxed);
    atomic_store_explicit(&place->handle, handle, memory_order_release);
    *out = place;
    return PC_OK;
}

/* A context of ours, where the program has none. It is booked before it is made, and kept for the process's life. */
static enum pc_status make_current(struct pc_error *err)
{
    struct shim_gpu *gpu;
    pc_cu_context ctx;
    enum pc_status status = shim_gpu_first(&gpu, err);
    if (status == PC_OK)
        status = shim_gpu_attach(gpu, err);
    if (status != PC_OK)
        return status;
    pc_cu_result r = shim.cu.cuDevicePrimaryCtxRetain(&ctx, gpu->device);
    if (r == PC_CU_SUCCESS)
        r = shim.cu.cuCtxSetCurrent(ctx);
    return pc_cuda_error_as(&shim.cu, r, PC_ERR_DEVICE, "making the primary context", err);
}

enum pc_status shim_context_open(struct shim_context **out, struct pc_error *err)
{
    pc_cu_context handle = NULL;
    pc_cu_device device;
    struct shim_gpu *gpu;
    enum pc_status status;
    shim.cu.cuCtxGetCurrent(&handle);
    if (handle == NULL) {
        if ((status = make_current(err)) != PC_OK)
            return status;
        shim.cu.cuCtxGetCurrent(&handle);
    }
    *out = shim_context_find(handle);
    if (*out != NULL)
        return PC_OK;
    pc_cu_result r = shim.cu.cuCtxGetDevice(&device);
    if (r != PC_CU_SUCCESS)
        return pc_cuda_error_as(&shim.cu, r, PC_ERR_DEVICE, "cuCtxGetDevice", err);
    if ((status = shim_gpu_of_device(device, &gpu, err)) != PC_OK)
        return status;
    if ((status = shim_gpu_attach(gpu, err)) != PC_OK)
        return status;
    return remember(handle, gpu, out, err);
}

struct shim_context *shim_context_for(const struct shim_gpu *gpu)
{
    pc_cu_context current = NULL;
    struct shim_context *other = NULL;
    shim.cu.cuCtxGetCurrent(&current);
    for (unsigned i = 0; i < SHIM_CONTEXTS; i++) {
        pc_cu_context handle = atomic_load_explicit(&contexts[i].handle, memory_order_relaxed);
        if (handle == NULL || atomic_load_explicit(&contexts[i].gpu, memory_order_relaxed) != gpu)
            continue;
        if (handle == current)
            return &contexts[i];
        other = &contexts[i];
    }
    return other;
}

void shim_context_forget(struct shim_context *context)
{
    for (unsigned i = 0; i < context->events_count; i++)
        shim.cu.cuEventDestroy(context->events[i]);
    context->events_count = 0;
    if (context->own != NULL)
        shim.cu.cuStreamDestroy(context->own);
    context->own = NULL;
    atomic_store_explicit(&context->handle, NULL, memory_order_release);
}

enum pc_status shim_context_own_stream(struct shim_context *context, pc_cu_stream *out, struct pc_error *err)
{
    if (context->own == NULL) {
        pc_cu_result r = shim.cu.cuStreamCreate(&context->own, PC_CU_STREAM_NON_BLOCKING);
        if (r != PC_CU_SUCCESS) {
            context->own = NULL;
            return pc_cuda_error_as(&shim.cu, r, PC_ERR_DRIVER, "cuStreamCreate", err);
        }
    }
    *out = context->own;
    return PC_OK;
}

pc_cu_event shim_event_get(struct shim_context *context)
{
    pc_cu_event event = NULL;
    if (context->events_count > 0)
        return context->events[--context->events_count];
    return shim.cu.cuEventCreate(&event, PC_CU_EVENT_DISABLE_TIMING) == PC_CU_SUCCESS ? event : NULL;
}

void shim_event_put(struct shim_context *context, pc_cu_event event)
{
    if (context->events_count < SHIM_EVENTS_KEPT)
        context->events[context->events_count++] = event;
    else
        shim.cu.cuEventDestroy(event);
}
