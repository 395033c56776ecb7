/*
 * Direct memory: the process's own cuMemAlloc, charged before it is taken. A table by address finds it again.
 *
 * cuMemAlloc takes memory from the card in pieces of 2 MiB, and that is what NVML will show for this process: so that
 * is what is charged.
 */
#include <stddef.h>

#include "alloc/pool/check.h"
#include "alloc/shim/alloc.h"
#include "alloc/shim/client.h"
#include "alloc/shim/meta.h"
#include "alloc/shim/state.h"
#include "alloc/shim/stream.h"

enum { CHAINS = 1024 };

struct direct {
    void *link;
    struct direct *next;
    uint64_t addr, bytes;
    struct shim_gpu *gpu;
};

static struct direct *chains[CHAINS]; /* all under shim.slow */
static struct shim_meta records;

static struct direct **chain_of(uint64_t addr)
{
    return &chains[(addr >> SHIM_UNIT_SHIFT_SMALL) % CHAINS];
}

static enum pc_status take(struct shim_gpu *gpu, struct direct *record, uint64_t bytes, struct pc_error *err)
{
    pc_cu_deviceptr ptr = 0;
    record->bytes = (bytes + 2 * PC_MIB - 1) / (2 * PC_MIB) * (2 * PC_MIB);
    record->gpu = gpu;
    enum pc_status status = shim_gpu_attach(gpu, err);
    if (status == PC_OK)
        status = shim_client_reserve(gpu, record->bytes, err);
    if (status != PC_OK)
        return status;
    pc_cu_result r = shim.cu.cuMemAlloc(&ptr, bytes);
    if (r != PC_CU_SUCCESS) {
        shim_client_release(gpu, record->bytes, NULL);
        return pc_cuda_error(&shim.cu, r, PC_ERR_DRIVER, "cuMemAlloc", err);
    }
    record->addr = ptr;
    struct direct **chain = chain_of(ptr);
    record->next = *chain;
    *chain = record;
    atomic_fetch_add_explicit(&gpu->direct, record->bytes, memory_order_relaxed);
    return PC_OK;
}

/* Under shim.slow. */
static enum pc_status alloc(poolcap_ptr *out, uint64_t bytes, struct pc_error *err)
{
    struct shim_context *context;
    enum pc_status status = shim_context_open(&context, err);
    if (status == PC_OK)
        status = shim_client_connect(err);
    if (status != PC_OK)
        return status;
    struct direct *record = shim_meta_get(&records, sizeof *record);
    if (record == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no host memory for the record of an allocation");
    status = take(atomic_load_explicit(&context->gpu, memory_order_relaxed), record, bytes, err);
    if (status == PC_OK)
        *out = record->addr;
    else
        shim_meta_put(&records, record);
    return status;
}

poolcap_status shim_direct_alloc(poolcap_ptr *out, size_t bytes, poolcap_stream stream)
{
    struct pc_error err;
    pc_cu_context current = NULL;
    shim.cu.cuCtxGetCurrent(&current);
    if (current != NULL && shim_stream_capturing(stream))
        return shim_fail(POOLCAP_CAPTURE, "direct memory cannot be allocated while the stream is being captured");
    if (bytes > (1ull << 48))
        return shim_fail(POOLCAP_OUT_OF_MEMORY, "%zu bytes are more than any GPU has", bytes);
    shim_lock_take(&shim.slow);
    enum pc_status status = alloc(out, bytes, &err);
    shim_lock_give(&shim.slow);
    return status == PC_OK ? POOLCAP_OK : shim_fail_error(&err);
}

/* A free that fails leaves the record: the memory is there, and charged. Under shim.slow. */
static poolcap_status drop(struct direct **link)
{
    struct direct *record = *link;
    struct pc_error err;
    pc_cu_result r = shim.cu.cuMemFree(record->addr);
    if (r != PC_CU_SUCCESS) {
        pc_cuda_error_as(&shim.cu, r, PC_ERR_DRIVER, "cuMemFree", &err);
        return shim_fail_error(&err);
    }
    *link = record->next;
    atomic_fetch_sub_explicit(&record->gpu->direct, record->bytes, memory_order_relaxed);
    /* Not delivered: it stays charged until poolcapd sees this process's bytes or its end. Nothing for the program. */
    shim_client_release(record->gpu, record->bytes, NULL);
    shim_meta_put(&records, record);
    return POOLCAP_OK;
}

poolcap_status shim_direct_free(poolcap_ptr ptr)
{
    poolcap_status status = POOLCAP_INVALID;
    shim_lock_take(&shim.slow);
    struct direct **link = chain_of(ptr);
    while (*link != NULL && (*link)->addr != ptr)
        link = &(*link)->next;
    if (*link != NULL)
        status = drop(link);
    shim_lock_give(&shim.slow);
    return status;
}
