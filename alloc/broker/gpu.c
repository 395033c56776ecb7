#include "alloc/broker/gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/bytes.h"
#include "alloc/base/log.h"

enum { CLEANUP_WEIGHT = 4, STOP_MS = 1000 };

/* The simulator says so in its name; it must never be picked, or missed, by accident. */
static enum pc_status check_simulated(const struct pc_gpu *gpu, struct pc_error *err)
{
    bool simulated = strncmp(gpu->info.name, "Simulated", 9) == 0;
    if (simulated == gpu->broker->config.simulated)
        return PC_OK;
    if (simulated)
        return pc_error_set(err, PC_ERR_INVALID, 0,
                            "GPU %s is a simulated one; set simulated: true (or --simulated) to mean it",
                            gpu->info.uuid);
    return pc_error_set(err, PC_ERR_INVALID, 0,
                        "GPU %s (%s) is a real one and simulated: true is set; remove it, or unload the driver",
                        gpu->info.uuid, gpu->info.name);
}

static struct pc_books_gpu *find_record(struct pc_broker *b, const char *uuid)
{
    struct pc_books_gpu *record;
    unsigned at = 0;
    while ((record = pc_books_next(b->books, PC_BOOKS_GPUS, &at)) != NULL)
        if (strcmp(record->gpu, uuid) == 0)
            return record;
    return NULL;
}

/*
 * What an earlier poolcapd of this boot measured before there was anything on the card is better than what can be seen
 * now, among what its tenants still hold.
 */
static enum pc_status keep_measures(struct pc_gpu *gpu, struct pc_error *err)
{
    struct pc_books_gpu *record = find_record(gpu->broker, gpu->info.uuid);
    void *place;
    gpu->leftover = gpu->floor = gpu->probe.leftover;
    if (record == NULL) {
        enum pc_status status = pc_books_new(gpu->broker->books, PC_BOOKS_GPUS, &place, err);
        if (status != PC_OK)
            return status;
        record = place;
        memcpy(record->gpu, gpu->info.uuid, sizeof record->gpu);
        pc_books_set(&record->floor, (uint64_t)gpu->floor);
        pc_books_set(&record->context, gpu->probe.context_bytes);
        pc_books_commit(record, PC_BOOKS_USED);
    }
    gpu->record = record;
    gpu->floor = (int64_t)pc_books_get(&record->floor);
    uint64_t context = pc_books_get(&record->context);
    if (gpu->probe.context_guessed && context < gpu->probe.context_bytes) {
        gpu->probe.room += gpu->probe.context_bytes - context;
        gpu->probe.context_bytes = context;
    }
    return PC_OK;
}

static void set_capacity(struct pc_gpu *gpu)
{
    uint64_t reserve = gpu->broker->config.reserve;
    uint64_t room = gpu->probe.room > reserve ? gpu->probe.room - reserve : 0;
    gpu->capacity = room - room % PC_POOL_GRANULE;
}

static enum pc_status start_using(struct pc_gpu *gpu, struct pc_error *err)
{
    struct pc_broker *b = gpu->broker;
    enum pc_status status = check_simulated(gpu, err);
    if (status == PC_OK && !gpu->info.pools)
        status = pc_error_set(err, PC_ERR_NOT_SUPPORTED, 0, "GPU %s (%s) has no memory pools that can be exported",
                              gpu->info.uuid, gpu->info.name);
    if (status == PC_OK)
        status = pc_probe_gpu(b->devices, b->has_nvml ? &b->nvml : NULL, &gpu->info, &gpu->probe, &gpu->device, err);
    if (status == PC_OK)
        status = keep_measures(gpu, err);
    if (status != PC_OK)
        return status;
    set_capacity(gpu);
    status = pc_worker_create(b->loop, &gpu->worker, err);
    if (status == PC_OK)
        status = pc_account_create(gpu->worker, CLEANUP_WEIGHT, &gpu->cleanup, err);
    if (status == PC_OK)
        status = pc_leaks_create(&gpu->leaks, err);
    return status;
}

enum pc_status pc_gpu_open(struct pc_broker *b, int ordinal, struct pc_error *err)
{
    struct pc_error why = {.text = ""};
    char a[PC_BYTES_TEXT], c[PC_BYTES_TEXT];
    struct pc_gpu *gpu = calloc(1, sizeof *gpu);
    if (gpu == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no memory for a GPU");
    gpu->broker = b;
    gpu->index = b->gpus;
    pc_list_init(&gpu->evictions);
    enum pc_status status = pc_devices_info(b->devices, ordinal, &gpu->info, &why);
    if (status != PC_OK)
        snprintf(gpu->info.uuid, sizeof gpu->info.uuid, "unknown-%d", ordinal);
    gpu->info.ordinal = ordinal;
    if (status == PC_OK)
        status = start_using(gpu, &why);
    if (pc_ledger_gpu_add(b->ledger, gpu->info.uuid, gpu->capacity, &gpu->ledger, err) != PC_OK) {
        pc_gpu_close(gpu);
        return err->status;
    }
    b->uuid[b->gpus] = gpu->info.uuid;
    b->gpu[b->gpus++] = gpu;
    if (status != PC_OK)
        pc_gpu_mark_faulty(gpu, why.text);
    else
        pc_log_info("gpu", "%d: %s %s: %s to grant, a context costs %s", ordinal, gpu->info.uuid, gpu->info.name,
                    pc_bytes_format(gpu->capacity, a), pc_bytes_format(gpu->probe.context_bytes, c));
    return PC_OK;
}

void pc_gpu_close(struct pc_gpu *gpu)
{
    if (!pc_worker_stop(gpu->worker, STOP_MS))
        return;
    pc_account_free(gpu->cleanup);
    pc_leaks_free(gpu->leaks);
    free(gpu);
}

static void list_gpus(const struct pc_broker *b, char *out, size_t size)
{
    size_t used = 0;
    out[0] = '\0';
    for (unsigned i = 0; i < b->gpus && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%d (%s)", i > 0 ? ", " : "", b->gpu[i]->info.ordinal,
                                 b->gpu[i]->info.uuid);
}

enum pc_status pc_gpu_find(struct pc_broker *b, const char *reference, struct pc_gpu **out, struct pc_error *err)
{
    char ordinal[16], known[400];
    for (unsigned i = 0; i < b->gpus; i++) {
        snprintf(ordinal, sizeof ordinal, "%d", b->gpu[i]->info.ordinal);
        if (strcmp(reference, ordinal) != 0 && strcmp(reference, b->gpu[i]->info.uuid) != 0)
            continue;
        *out = b->gpu[i];
        return PC_OK;
    }
    list_gpus(b, known, sizeof known);
    return pc_error_set(err, PC_ERR_INVALID, 0, "no GPU \"%.64s\" here; there are: %s", reference, known);
}

enum pc_status pc_gpu_check(const struct pc_gpu *gpu, struct pc_error *err)
{
    if (gpu->fault[0] == '\0')
        return PC_OK;
    return pc_error_set(err, PC_ERR_DEVICE, 0, "GPU %s is out of service: %s", gpu->info.uuid, gpu->fault);
}

void pc_gpu_mark_faulty(struct pc_gpu *gpu, const char *why)
{
    if (gpu->fault[0] != '\0')
        return;
    snprintf(gpu->fault, sizeof gpu->fault, "%s", why);
    pc_log_error("gpu", "%s is out of service: %s", gpu->info.uuid, why);
    pc_broker_changed(gpu->broker);
}

/* The errors after which cuda.h says that the context cannot be used any more, and the process must be started again.
 */
static bool sticks(int code)
{
    static const int sticky[] = {4, 214, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 999};
    for (size_t i = 0; i < PC_ARRAY_LEN(sticky); i++)
        if (code == sticky[i])
            return true;
    return false;
}

bool pc_gpu_is_broken(struct pc_gpu *gpu, const struct pc_error *after)
{
    if (after->status == PC_ERR_OUT_OF_MEMORY || after->code == PC_CU_ERROR_OUT_OF_MEMORY)
        return false;
    return sticks(after->code) || pc_device_bind(gpu->device, NULL) != PC_OK ||
           pc_device_cuda(gpu->device)->cuCtxSynchronize() != PC_CU_SUCCESS;
}

void pc_gpu_change_begins(struct pc_gpu *gpu)
{
    gpu->changing++;
}

void pc_gpu_change_ends(struct pc_gpu *gpu)
{
    gpu->changing--;
    gpu->changed_ns = pc_loop_now_ns();
}
