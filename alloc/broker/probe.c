#include "alloc/broker/probe.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "alloc/base/bytes.h"
#include "alloc/base/log.h"
#include "alloc/pool/large.h"
#include "alloc/pool/pool.h"

/* A context that nobody measured is taken for this at most: what is in use may be other programs'. */
#define CONTEXT_GUESS_MAX PC_GIB

/* ---- the context's cost ---- */

int64_t pc_probe_leftover(const struct pc_card_view *card, uint64_t overhead)
{
    int64_t left = (int64_t)card->used;
    for (unsigned i = 0; i < card->count; i++)
        if (card->process[i].used != PC_NVML_NOT_AVAILABLE)
            left -= (int64_t)(card->process[i].used + overhead);
    return left;
}

static struct pc_snapshot *look(const struct pc_nvml *nvml, const struct pc_device_info *info)
{
    const char *uuid = info->uuid;
    return nvml != NULL ? pc_snapshot_take(nvml, &uuid, 1) : NULL;
}

/* NVML's word on our own process, 0 where it has none. Its list follows within tens of ms. */
static uint64_t own_bytes(const struct pc_nvml *nvml, const struct pc_device_info *info, struct pc_snapshot **last)
{
    for (int i = 0; i < 50; i++) {
        pc_snapshot_free(*last);
        *last = look(nvml, info);
        if (*last == NULL || !(*last)->card[0].list_valid)
            return 0;
        const struct pc_nvml_process *own = pc_card_process(&(*last)->card[0], getpid());
        if (own != NULL && own->used != PC_NVML_NOT_AVAILABLE && own->used > 0)
            return own->used;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    return 0;
}

static uint64_t memory_taken(struct pc_device *device)
{
    size_t free_bytes = 0, total = 0;
    if (pc_device_cuda(device)->cuMemGetInfo(&free_bytes, &total) != PC_CU_SUCCESS || total < free_bytes)
        return 0;
    return total - free_bytes;
}

/* before: the card without our context, after: with it; either may be NULL or say nothing. */
static void measure(struct pc_device *device, const struct pc_snapshot *before, const struct pc_snapshot *after,
                    uint64_t own, struct pc_probe *out)
{
    const struct pc_device_info *info = pc_device_get_info(device);
    bool card = before != NULL && after != NULL && before->card[0].memory_valid && after->card[0].memory_valid;
    uint64_t grown =
        card && after->card[0].used > before->card[0].used ? after->card[0].used - before->card[0].used : 0;
    out->context_bytes = own != 0 ? own : grown;
    if (out->context_bytes == 0) {
        out->context_guessed = true;
        uint64_t taken = memory_taken(device);
        out->context_bytes = taken < CONTEXT_GUESS_MAX ? taken : CONTEXT_GUESS_MAX;
        pc_log_warn("gpu", "%s: NVML does not say what a context costs; taken for %llu MiB", info->uuid,
                    out->context_bytes / PC_MIB);
    }
    /* Other programs may have come or gone in between, so only a small difference is taken for the context's own. */
    if (own != 0 && grown > own && grown - own <= 32 * PC_MIB)
        out->context_overhead = grown - own;
    uint64_t total = info->total;
    if (card && after->card[0].total - after->card[0].reserved < total)
        total = after->card[0].total - after->card[0].reserved;
    uint64_t ours = out->context_bytes + out->context_overhead;
    out->room = total > ours ? total - ours : 0;
    if (card)
        out->leftover = pc_probe_leftover(&after->card[0], out->context_overhead);
}

/* ---- the proof of the driver ---- */

static enum pc_status not_kept(const struct pc_device *device, const char *what, struct pc_error *err)
{
    int version = 0;
    pc_device_cuda(device)->cuDriverGetVersion(&version);
    return pc_error_set(err, PC_ERR_NOT_SUPPORTED, 0,
                        "GPU %s: its driver (CUDA %d.%d) cannot cap pools: %s; use another driver version",
                        pc_device_get_info(device)->uuid, version / 1000, version % 1000 / 10, what);
}

/* What is over maxSize must be refused by the driver itself, so this asks beside alloc/pool, which would refuse first.
 */
static enum pc_status prove_max_size(struct pc_device *device, struct pc_error *err)
{
    const struct pc_cuda *cu = pc_device_cuda(device);
    struct pc_cu_pool_props props = {
        .alloc_type = PC_CU_MEM_ALLOCATION_TYPE_PINNED,
        .handle_types = PC_CU_MEM_HANDLE_TYPE_POSIX_FD,
        .location = {.type = PC_CU_MEM_LOCATION_TYPE_DEVICE, .id = pc_device_get_info(device)->ordinal},
        .max_size = PC_POOL_GRANULE,
    };
    pc_cu_mempool pool;
    pc_cu_stream stream = NULL;
    pc_cu_deviceptr ptr = 0;
    pc_cu_result r = cu->cuMemPoolCreate(&pool, &props);
    if (r != PC_CU_SUCCESS)
        return pc_cuda_error(cu, r, PC_ERR_DEVICE, "cuMemPoolCreate", err);
    r = cu->cuStreamCreate(&stream, PC_CU_STREAM_NON_BLOCKING);
    if (r == PC_CU_SUCCESS)
        r = cu->cuMemAllocFromPoolAsync(&ptr, PC_POOL_GRANULE + PC_MIB, pool, stream);
    bool passed = r == PC_CU_SUCCESS;
    if (passed)
        cu->cuMemFreeAsync(ptr, stream);
    if (stream != NULL) {
        cu->cuStreamSynchronize(stream);
        cu->cuStreamDestroy(stream);
    }
    cu->cuMemPoolDestroy(pool);
    if (passed)
        return not_kept(device, "33 MiB were given out of a pool of 32 MiB", err);
    if (r != PC_CU_ERROR_OUT_OF_MEMORY)
        return pc_cuda_error(cu, r, PC_ERR_DEVICE, "the first allocation from a pool", err);
    return PC_OK;
}

/* Memory that came back must be used again, and RESERVED be what was used at most: the ledger counts on both. */
static enum pc_status prove_reuse(struct pc_devices *devices, struct pc_device *device, struct pc_error *err)
{
    struct pc_pool_config config = {
        .ordinal = pc_device_get_info(device)->ordinal, .cap = PC_POOL_GRANULE, .exported = true};
    struct pc_pool *pool;
    struct pc_pool_stats stats = {.reserved = 0};
    enum pc_status status = pc_pool_create(devices, &config, &pool, err);
    if (status != PC_OK)
        return status;
    for (int i = 0; i < 2 && status == PC_OK; i++) {
        pc_cu_deviceptr ptr = 0;
        status = pc_pool_alloc(pool, PC_POOL_GRANULE, &ptr, err);
        if (status == PC_OK)
            status = pc_pool_free(pool, ptr, PC_POOL_GRANULE, err);
        if (status == PC_OK)
            status = pc_pool_stats(pool, &stats, err);
    }
    pc_pool_destroy(pool);
    if (status == PC_OK && stats.reserved != PC_POOL_GRANULE)
        status = not_kept(device, "memory that came back is not used again", err);
    return status;
}

enum pc_status pc_probe_gpu(struct pc_devices *devices, const struct pc_nvml *nvml, const struct pc_device_info *info,
                            struct pc_probe *out, struct pc_device **device, struct pc_error *err)
{
    struct pc_snapshot *before = look(nvml, info), *after = NULL;
    struct pc_probe probe = {.context_bytes = 0};
    struct pc_device *made = NULL;
    enum pc_status status = pc_devices_get(devices, info->ordinal, &made, err);
    if (status == PC_OK)
        status = pc_device_bind(made, err);
    if (status == PC_OK) {
        uint64_t own = own_bytes(nvml, info, &after);
        measure(made, before, after, own, &probe);
    }
    if (status == PC_OK)
        status = prove_max_size(made, err);
    if (status == PC_OK)
        status = prove_reuse(devices, made, err);
    if (status == PC_OK)
        status = pc_large_granularity(made, &probe.granularity, err);
    pc_snapshot_free(before);
    pc_snapshot_free(after);
    if (status != PC_OK)
        return status;
    *out = probe;
    *device = made;
    return PC_OK;
}
