/* Figures and the line for people. */
#include <stddef.h>
#include <stdio.h>

#include "alloc/base/bytes.h"
#include "alloc/shim/client.h"
#include "alloc/shim/stream.h"

#define API __attribute__((visibility("default")))

/* Figures from memory that is known already; a round trip only where this process has never connected. */
static enum pc_status current_gpu(struct shim_gpu **out, struct pc_error *err)
{
    pc_cu_context ctx = NULL;
    struct shim_context *context;
    shim.cu.cuCtxGetCurrent(&ctx);
    context = shim_context_find(ctx);
    enum pc_status status = PC_OK;
    if (context == NULL) {
        shim_lock_take(&shim.slow);
        status = shim_context_open(&context, err);
        shim_lock_give(&shim.slow);
    }
    if (status == PC_OK)
        *out = atomic_load_explicit(&context->gpu, memory_order_relaxed);
    return status;
}

static void read_gpu(struct shim_gpu *gpu, poolcap_memory *out)
{
    struct pc_page_figures figures;
    shim_lock_take(&gpu->heap.lock);
    shim_gpu_figures(gpu, &figures);
    uint64_t idle = shim_heap_idle(&gpu->heap), held = gpu->heap.held, live = gpu->heap.live;
    shim_lock_give(&gpu->heap.lock);
    uint64_t room = figures.room < UINT64_MAX - idle ? figures.room + idle : UINT64_MAX;
    *out = (poolcap_memory){
        .total = figures.cap,
        .free = room < figures.cap ? room : figures.cap,
        .charged = figures.charged,
        .held = held,
        .live = live,
        .direct = atomic_load_explicit(&gpu->direct, memory_order_relaxed),
    };
}

API poolcap_status poolcap_info(poolcap_memory *out)
{
    struct pc_error err;
    struct shim_gpu *gpu;
    if (out == NULL)
        return shim_fail(POOLCAP_INVALID, "poolcap_info without a place for the result");
    poolcap_status begun = shim_begin();
    if (begun != POOLCAP_OK)
        return begun;
    if (current_gpu(&gpu, &err) != PC_OK)
        return shim_fail_error(&err);
    read_gpu(gpu, out);
    return POOLCAP_OK;
}

static poolcap_status not_capped(char *text, size_t size, poolcap_status status)
{
    snprintf(text, size, "capped: no, because %s", poolcap_last_error());
    return status;
}

API poolcap_status poolcap_describe(char *text, size_t size)
{
    struct pc_error err;
    struct shim_gpu *gpu;
    poolcap_memory memory;
    char cap[PC_BYTES_TEXT], charged[PC_BYTES_TEXT];
    if (text == NULL || size == 0)
        return shim_fail(POOLCAP_INVALID, "poolcap_describe without a place for the text");
    poolcap_status begun = shim_begin();
    if (begun != POOLCAP_OK)
        return not_capped(text, size, begun);
    shim_lock_take(&shim.slow);
    enum pc_status status = shim_gpu_first(&gpu, &err);
    shim_lock_give(&shim.slow);
    if (status != PC_OK)
        return not_capped(text, size, shim_fail_error(&err));
    read_gpu(gpu, &memory);
    snprintf(text, size, "capped: yes, %s on %s, %s charged", pc_bytes_format(memory.total, cap), gpu->uuid,
             pc_bytes_format(memory.charged, charged));
    return POOLCAP_OK;
}
