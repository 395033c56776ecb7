/* A GPU of poolcapd: its context, the proof that its driver keeps maxSize, and what can be granted on it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/log.h"
#include "alloc/broker/broker.h"
#include "alloc/pool/large.h"

enum { CLEANUP_WEIGHT = 4 };

/*
 * On a pool of 32 MiB: what is over maxSize is refused, and memory that came back is used again without growth. A
 * driver that does not keep this cannot hold a cap.
 */
static enum pc_status prove_driver(struct pc_gpu *gpu, struct pc_error *err)
{
    struct pc_pool_config config = {.ordinal = gpu->info.ordinal, .cap = PC_POOL_GRANULE, .exported = true};
    struct pc_pool *pool;
    struct pc_pool_stats stats;
    pc_cu_deviceptr first = 0, second = 0, over = 0;
    enum pc_status status = pc_pool_create(gpu->broker->devices, &config, &pool, err);
    if (status != PC_OK)
        return status;
    const struct pc_cuda *cu = &gpu->broker->cuda;
    pc_cu_mempool raw = NULL;
    pc_cu_pool_props_t props = {.alloc_type = PC_CU_MEM_ALLOCATION_TYPE_PINNED,
                                .handle_types = PC_CU_MEM_HANDLE_TYPE_POSIX_FD,
                                .location = {.type = PC_CU_MEM_LOCATION_TYPE_DEVICE, .id = gpu->info.ordinal},
                                .max_size = PC_POOL_GRANULE};
    /* The pool object refuses by itself, so the driver is asked on a raw pool. */
    bool refuses = cu->cuMemPoolCreate(&raw, &props) == PC_CU_SUCCESS &&
                   cu->cuMemAllocFromPoolAsync(&over, PC_POOL_GRANULE + PC_MIB, raw, NULL) != PC_CU_SUCCESS;
    if (raw != NULL)
        cu->cuMemPoolDestroy(raw);
    bool reuses = pc_pool_alloc(pool, PC_POOL_GRANULE, &first, err) == PC_OK &&
                  pc_pool_free(pool, first, PC_POOL_GRANULE, err) == PC_OK &&
                  pc_pool_alloc(pool, PC_POOL_GRANULE, &second, err) == PC_OK &&
                  pc_pool_stats(pool, &stats, err) == PC_OK && stats.reserved == PC_POOL_GRANULE &&
                  pc_pool_free(pool, second, PC_POOL_GRANULE, err) == PC_OK;
    pc_pool_destroy(pool);
    if (refuses && reuses)
        return PC_OK;
    int version = 0;
    cu->cuDriverGetVersion(&version);
    return pc_error_set(err, PC_ERR_NOT_SUPPORTED, 0,
                        "GPU %s: the driver (CUDA %d.%d) does not keep a pool's maxSize (%s); update it",
                        gpu->info.uuid, version / 1000, version % 1000 / 10,
                        refuses ? "memory is not used again" : "more was allocated");
}

/* What one context costs: NVML's figure of our own process, else how much cuMemGetInfo lost. */
static void measure(struct pc_gpu *gpu, const struct pc_snapshot *snapshot)
{
    uint64_t total = gpu->info.total;
    size_t free_now = 0, all = 0;
    gpu->broker->cuda.cuMemGetInfo(&free_now, &all);
    gpu->context_bytes = total > free_now ? total - free_now : 0;
    uint64_t reserved = 0, used = total - free_now;
    if (snapshot != NULL) {
        const struct pc_card_view *card = &snapshot->card[0];
        const struct pc_nvml_process *me = pc_card_process(card, getpid());
        if (card->list_valid && me != NULL && me->used != PC_NVML_NOT_AVAILABLE)
            gpu->context_bytes = me->used;
        uint64_t listed = 0;
        for (unsigned i = 0; i < card->count; i++)
            if (card->process[i].used != PC_NVML_NOT_AVAILABLE)
                listed += card->process[i].used;
        if (card->memory_valid) {
            reserved = card->reserved;
            total = card->total;
            used = gpu->context_bytes;
            gpu->base_used = card->used > listed ? card->used - listed : 0;
            gpu->card_used = card->used;
        }
    }
    uint64_t taken = reserved + used + gpu->broker->config.reserve;
    gpu->capacity = total > taken ? (total - taken) / PC_POOL_GRANULE * PC_POOL_GRANULE : 0;
}

static enum pc_status open_context(struct pc_gpu *gpu, struct pc_error *err)
{
    struct pc_broker *b = gpu->broker;
    enum pc_status status = pc_devices_get(b->devices, gpu->info.ordinal, &gpu->device, err);
    if (status == PC_OK)
        status = pc_device_bind(gpu->device, err);
    struct pc_snapshot *snapshot = NULL;
    const char *uuids[1] = {gpu->info.uuid};
    if (status == PC_OK && b->has_nvml)
        snapshot = pc_snapshot_take(&b->nvml, uuids, 1);
    if (status == PC_OK)
        measure(gpu, snapshot);
    pc_snapshot_free(snapshot);
    if (status == PC_OK)
        status = prove_driver(gpu, err);
    if (status == PC_OK)
        status = pc_large_granularity(gpu->device, &gpu->large_granularity, err);
    return status;
}

enum pc_status pc_gpu_open(struct pc_broker *b, int ordinal, struct pc_error *err)
{
    struct pc_gpu *gpu = calloc(1, sizeof *gpu);
    if (gpu == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no memory for a GPU");
    gpu->broker = b;
    gpu->index = b->gpus;
    enum pc_status status = pc_devices_info(b->devices, ordinal, &gpu->info, err);
    bool simulated = status == PC_OK && strncmp(gpu->info.name, "Simulated", 9) == 0;
    if (status == PC_OK && simulated != b->config.simulated)
        status = pc_error_set(err, PC_ERR_INVALID, 0,
                              simulated ? "GPU %d is a simulated one; say simulated: true to mean it"
                                        : "GPU %d is a real one, and simulated: true was given; leave it out",
                              ordinal);
    if (status == PC_OK)
        status = open_context(gpu, err);
    if (status == PC_OK)
        status = pc_ledger_gpu_add(b->ledger, gpu->info.uuid, gpu->capacity, &gpu->ledger, err);
    if (status == PC_OK)
        status = pc_leaks_create(&gpu->leaks, err);
    if (status == PC_OK)
        status = pc_worker_create(b->loop, &gpu->worker, err);
    if (status == PC_OK)
        status = pc_account_create(gpu->worker, CLEANUP_WEIGHT, &gpu->cleanup, err);
    if (status != PC_OK) {
        pc_gpu_close(gpu);
        return status;
    }
    char a[PC_BYTES_TEXT], c[PC_BYTES_TEXT];
    pc_log_info("gpu", "%s %s: %s to grant, a context costs %s", gpu->info.uuid, gpu->info.name,
                pc_bytes_format(gpu->capacity, a), pc_bytes_format(gpu->context_bytes, c));
    b->uuids[b->gpus] = gpu->info.uuid;
    b->gpu[b->gpus++] = gpu;
    return PC_OK;
}

void pc_gpu_close(struct pc_gpu *gpu)
{
    if (gpu == NULL)
        return;
    pc_worker_stop(gpu->worker, 1000);
    pc_account_free(gpu->cleanup);
    pc_leaks_free(gpu->leaks);
    free(gpu);
}

struct pc_gpu *pc_gpu_find(struct pc_broker *b, const char *reference, struct pc_error *err)
{
    char known[256] = "";
    for (unsigned i = 0; i < b->gpus; i++) {
        char ordinal[16];
        snprintf(ordinal, sizeof ordinal, "%d", b->gpu[i]->info.ordinal);
        if (strcmp(reference, ordinal) == 0 || strcmp(reference, b->gpu[i]->info.uuid) == 0)
            return b->gpu[i];
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s (%s)", i > 0 ? ", " : "", ordinal, b->gpu[i]->info.uuid);
    }
    pc_error_set(err, PC_ERR_INVALID, 0, "no GPU %.64s here; there are: %s", reference, known);
    return NULL;
}

void pc_gpu_mark_faulty(struct pc_gpu *gpu, const char *why)
{
    if (gpu->fault[0] != '\0')
        return;
    snprintf(gpu->fault, sizeof gpu->fault, "%s", why);
    pc_log_error("gpu", "%s is out of service: %s; its requests fail until poolcapd is started again", gpu->info.uuid,
                 why);
}
