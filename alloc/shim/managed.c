/* Managed memory: pool/managed.h behind the C API, charged through the session. */
#include <stddef.h>

#include "alloc/pool/managed.h"
#include "alloc/shim/client.h"
#include "alloc/shim/gpu.h"
#include "alloc/shim/stream.h"

#define API __attribute__((visibility("default")))

/* The public type is pool's under another name. */
static struct pc_managed *inner(const poolcap_managed *buffer)
{
    return (struct pc_managed *)(uintptr_t)buffer;
}

static enum pc_status reserve(void *ctx, int ordinal, uint64_t bytes, struct pc_error *err)
{
    (void)ctx;
    struct shim_gpu *gpu = shim_gpu_of_ordinal(ordinal);
    shim_lock_take(&shim.slow);
    enum pc_status status = shim_gpu_attach(gpu, err);
    if (status == PC_OK)
        status = shim_client_reserve(gpu, bytes, err);
    shim_lock_give(&shim.slow);
    if (status == PC_OK)
        atomic_fetch_add_explicit(&gpu->direct, bytes, memory_order_relaxed);
    return status;
}

static void release(void *ctx, int ordinal, uint64_t bytes)
{
    (void)ctx;
    struct shim_gpu *gpu = shim_gpu_of_ordinal(ordinal);
    atomic_fetch_sub_explicit(&gpu->direct, bytes, memory_order_relaxed);
    shim_lock_take(&shim.slow);
    shim_client_release(gpu, bytes, NULL); /* not delivered: see direct.c */
    shim_lock_give(&shim.slow);
}

static const struct pc_charge charge = {.reserve = reserve, .release = release};
static const struct pc_managed_env env = {.cu = &shim.cu, .charge = &charge};

API poolcap_status poolcap_managed_alloc(poolcap_managed **out, size_t bytes)
{
    struct pc_error err;
    struct shim_context *context;
    struct pc_managed *made;
    if (out == NULL)
        return shim_fail(POOLCAP_INVALID, "poolcap_managed_alloc without a place for the result");
    poolcap_status begun = shim_begin();
    if (begun != POOLCAP_OK)
        return begun;
    shim_lock_take(&shim.slow);
    enum pc_status status = shim_context_open(&context, &err);
    shim_lock_give(&shim.slow);
    if (status == PC_OK) {
        const struct shim_gpu *gpu = atomic_load_explicit(&context->gpu, memory_order_relaxed);
        status = pc_managed_alloc(&env, gpu->ordinal, bytes, &made, &err);
    }
    if (status != PC_OK)
        return shim_fail_error(&err);
    *out = (poolcap_managed *)made;
    return POOLCAP_OK;
}

/* For the calls that need nothing but the buffer. */
static poolcap_status check(const poolcap_managed *buffer)
{
    if (buffer == NULL)
        return shim_fail(POOLCAP_INVALID, "no managed buffer was given");
    return shim_begin();
}

API poolcap_status poolcap_managed_free(poolcap_managed *buffer)
{
    struct pc_error err;
    poolcap_status begun = buffer != NULL ? check(buffer) : POOLCAP_OK;
    if (begun != POOLCAP_OK)
        return begun;
    return pc_managed_free(inner(buffer), &err) == PC_OK ? POOLCAP_OK : shim_fail_error(&err);
}

API poolcap_ptr poolcap_managed_ptr(const poolcap_managed *buffer)
{
    return buffer != NULL ? pc_managed_ptr(inner(buffer)) : 0;
}

_Static_assert((int)POOLCAP_OWN_GPU == (int)PC_MANAGED_OWN_GPU && (int)POOLCAP_HOST == (int)PC_MANAGED_HOST, "places");
_Static_assert((int)POOLCAP_READ_MOSTLY == (int)PC_MANAGED_READ_MOSTLY &&
                   (int)POOLCAP_PREFERRED_LOCATION == (int)PC_MANAGED_PREFERRED_LOCATION &&
                   (int)POOLCAP_ACCESSED_BY == (int)PC_MANAGED_ACCESSED_BY,
               "advice");

API poolcap_status poolcap_managed_prefetch(poolcap_managed *buffer, int where, poolcap_stream stream)
{
    struct pc_error err;
    poolcap_status begun = check(buffer);
    if (begun != POOLCAP_OK)
        return begun;
    return pc_managed_prefetch(inner(buffer), where, stream, &err) == PC_OK ? POOLCAP_OK : shim_fail_error(&err);
}

API poolcap_status poolcap_managed_advise(poolcap_managed *buffer, poolcap_advice advice, int set, int where)
{
    struct pc_error err;
    poolcap_status begun = check(buffer);
    if (begun != POOLCAP_OK)
        return begun;
    enum pc_managed_advice inside = (enum pc_managed_advice)advice;
    return pc_managed_advise(inner(buffer), inside, set, where, &err) == PC_OK ? POOLCAP_OK : shim_fail_error(&err);
}
