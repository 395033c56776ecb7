#include "alloc/pool/pool.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "alloc/base/bytes.h"
#include "alloc/base/log.h"
#include "alloc/pool/check.h"

struct pc_pool {
    struct pc_device *device;
    const struct pc_cuda *cu;
    pc_cu_mempool handle;
    pc_cu_stream stream;
    uint64_t cap;
    uint64_t effective_cap;
    bool exported;
    bool exported_once; /* the exports do not run beside each other (pool.h), so this needs no lock */
    struct pc_leaks *leaks;
    _Atomic uint64_t live;
};

static int ordinal_of(const struct pc_pool *pool)
{
    return pc_device_get_info(pool->device)->ordinal;
}

/* --- making and unmaking --- */

static enum pc_status check_config(const struct pc_pool_config *config, uint64_t *effective, struct pc_error *err)
{
    if (config->cap == 0)
        return pc_error_set(err, PC_ERR_INVALID, 0, "the pool's cap is 0 bytes; it has to be at least 1");
    if (!pc_round_up(config->cap, PC_POOL_GRANULE, effective))
        return pc_error_set(err, PC_ERR_INVALID, 0, "the pool's cap of %llu bytes is too large to round up to 32Mi",
                            (unsigned long long)config->cap);
    return PC_OK;
}

static enum pc_status make_handle(struct pc_pool *pool, struct pc_error *err)
{
    struct pc_cu_pool_props props = {
        .alloc_type = PC_CU_MEM_ALLOCATION_TYPE_PINNED,
        .handle_types = pool->exported ? PC_CU_MEM_HANDLE_TYPE_POSIX_FD : PC_CU_MEM_HANDLE_TYPE_NONE,
        .location = {.type = PC_CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal_of(pool)},
        .max_size = pool->effective_cap,
    };
    pc_cu_result r = pool->cu->cuMemPoolCreate(&pool->handle, &props);
    return pc_cuda_error_as(pool->cu, r, PC_ERR_POOL_CREATE, "cuMemPoolCreate", err);
}

static enum pc_status set_access(struct pc_pool *pool, struct pc_error *err)
{
    struct pc_cu_access access = {
        .location = {.type = PC_CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal_of(pool)},
        .flags = PC_CU_MEM_ACCESS_READWRITE,
    };
    pc_cu_result r = pool->cu->cuMemPoolSetAccess(pool->handle, &access, 1);
    return pc_cuda_error_as(pool->cu, r, PC_ERR_SET_ATTRIBUTE, "cuMemPoolSetAccess", err);
}

static enum pc_status set_threshold(struct pc_pool *pool, uint64_t bytes, struct pc_error *err)
{
    pc_cu_result r = pool->cu->cuMemPoolSetAttribute(pool->handle, PC_CU_MEMPOOL_RELEASE_THRESHOLD, &bytes);
    return pc_cuda_error_as(pool->cu, r, PC_ERR_SET_ATTRIBUTE, "cuMemPoolSetAttribute(RELEASE_THRESHOLD)", err);
}

static enum pc_status make_stream(struct pc_pool *pool, struct pc_error *err)
{
    pc_cu_result r = pool->cu->cuStreamCreate(&pool->stream, PC_CU_STREAM_NON_BLOCKING);
    return pc_cuda_error_as(pool->cu, r, PC_ERR_POOL_CREATE, "cuStreamCreate", err);
}

static void destroy_handle(struct pc_pool *pool)
{
    pc_cu_result r = pool->cu->cuMemPoolDestroy(pool->handle);
    if (r != PC_CU_SUCCESS)
        pc_log_error("pool", "GPU %d: cuMemPoolDestroy failed: CUDA error %u", ordinal_of(pool), r);
}

/* Fills in what the driver holds; on failure nothing of it is left. */
static enum pc_status make_parts(struct pc_pool *pool, uint64_t release_threshold, struct pc_error *err)
{
    enum pc_status status = pc_device_bind(pool->device, err);
    if (status != PC_OK)
        return status;
    if ((status = make_handle(pool, err)) != PC_OK)
        return status;
    if ((status = set_access(pool, err)) != PC_OK)
        goto undo_handle;
    if ((status = set_threshold(pool, release_threshold, err)) != PC_OK)
        goto undo_handle;
    if ((status = make_stream(pool, err)) != PC_OK)
        goto undo_handle;
    return PC_OK;

undo_handle:
    destroy_handle(pool);
    return status;
}

enum pc_status pc_pool_create(struct pc_devices *devices, const struct pc_pool_config *config, struct pc_pool **out,
                              struct pc_error *err)
{
    uint64_t effective = 0;
    struct pc_device *device = NULL;
    enum pc_status status = check_config(config, &effective, err);
    if (status != PC_OK)
        return status;
    if ((status = pc_devices_get(devices, config->ordinal, &device, err)) != PC_OK)
        return status;
    if (config->exported && !pc_device_get_info(device)->pools)
        return pc_error_set(err, PC_ERR_NOT_SUPPORTED, 0,
                            "GPU %d (%s) has no memory pools that can be exported by file descriptor", config->ordinal,
                            pc_device_get_info(device)->name);
    struct pc_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no host memory for a pool on GPU %d", config->ordinal);
    pool->device = device;
    pool->cu = pc_device_cuda(device);
    pool->cap = config->cap;
    pool->effective_cap = effective;
    pool->exported = config->exported;
    pool->leaks = config->leaks;
    /* An exported pool must never shrink: what it lets go leaks past the cap (trap 1). */
    status = make_parts(pool, config->exported ? UINT64_MAX : config->release_threshold, err);
    if (status != PC_OK) {
        free(pool);
        return status;
    }
    *out = pool;
    return PC_OK;
}

void pc_pool_destroy(struct pc_pool *pool)
{
    if (pool == NULL)
        return;
    struct pc_error err;
    pc_cu_result r;
    if (pc_device_bind(pool->device, &err) != PC_OK)
        pc_log_error("pool", "destroying a pool: %s", err.text);
    if ((r = pool->cu->cuStreamSynchronize(pool->stream)) != PC_CU_SUCCESS)
        pc_log_error("pool", "GPU %d: cuStreamSynchronize failed before destroy: CUDA error %u", ordinal_of(pool), r);
    destroy_handle(pool);
    if ((r = pool->cu->cuStreamDestroy(pool->stream)) != PC_CU_SUCCESS)
        pc_log_error("pool", "GPU %d: cuStreamDestroy failed: CUDA error %u", ordinal_of(pool), r);
    free(pool);
}

/* --- the cap --- */

static enum pc_status out_of_memory(const struct pc_pool *pool, uint64_t bytes, uint64_t live, const char *why,
                                    int code, struct pc_error *err)
{
    char want[PC_BYTES_TEXT], held[PC_BYTES_TEXT], cap[PC_BYTES_TEXT];
    return pc_error_set(
        err, PC_ERR_OUT_OF_MEMORY, code,
        "GPU %d: out of memory: requested %llu bytes (%s), live %llu bytes (%s), cap %llu bytes (%s): %s",
        ordinal_of(pool), (unsigned long long)bytes, pc_bytes_format(bytes, want), (unsigned long long)live,
        pc_bytes_format(live, held), (unsigned long long)pool->cap, pc_bytes_format(pool->cap, cap), why);
}

/* Books bytes before the driver is asked, so that callers who race can never pass the cap together. */
static enum pc_status reserve(struct pc_pool *pool, uint64_t bytes, struct pc_error *err)
{
    uint64_t live = atomic_load(&pool->live);
    do {
        /* live <= cap always, so the difference cannot wrap, and no sum is made that could. */
        if (bytes > pool->cap - live)
            return out_of_memory(pool, bytes, live, "over the cap", 0, err);
    } while (!atomic_compare_exchange_weak(&pool->live, &live, live + bytes));
    return PC_OK;
}

/* Saturates at 0; returns by how much more than was live the caller gave back. */
static uint64_t release(struct pc_pool *pool, uint64_t bytes)
{
    uint64_t live = atomic_load(&pool->live), left;
    do {
        left = bytes > live ? 0 : live - bytes;
    } while (!atomic_compare_exchange_weak(&pool->live, &live, left));
    return bytes > live ? bytes - live : 0;
}

/* --- memory --- */

/* Binds, frees on the pool's stream and waits. What fails is remembered: the memory may still be held. */
static enum pc_status free_in_driver(struct pc_pool *pool, pc_cu_deviceptr ptr, uint64_t bytes, struct pc_error *err)
{
    const char *what = "cuCtxSetCurrent before a free";
    pc_cu_result r = pool->cu->cuCtxSetCurrent(pc_device_context(pool->device));
    if (r == PC_CU_SUCCESS) {
        what = "cuMemFreeAsync";
        r = pool->cu->cuMemFreeAsync(ptr, pool->stream);
    }
    if (r == PC_CU_SUCCESS) {
        what = "cuStreamSynchronize after a free";
        r = pool->cu->cuStreamSynchronize(pool->stream);
    }
    if (r != PC_CU_SUCCESS)
        pc_leaks_record(pool->leaks, ptr, bytes, (int)r);
    return pc_cuda_error_as(pool->cu, r, PC_ERR_DRIVER, what, err);
}

static enum pc_status alloc_error(struct pc_pool *pool, uint64_t bytes, pc_cu_result r, const char *what,
                                  struct pc_error *err)
{
    struct pc_error driver;
    enum pc_status status = pc_cuda_error(pool->cu, r, PC_ERR_DRIVER, what, &driver);
    if (status == PC_ERR_OUT_OF_MEMORY)
        return out_of_memory(pool, bytes, atomic_load(&pool->live), driver.text, (int)r, err);
    return pc_error_set(err, status, (int)r, "GPU %d: %s", ordinal_of(pool), driver.text);
}

/* The driver's half of an allocation. On failure nothing is held, or *stuck is set: it could not be given back. */
static enum pc_status alloc_in_driver(struct pc_pool *pool, uint64_t bytes, pc_cu_deviceptr *out, bool *stuck,
                                      struct pc_error *err)
{
    pc_cu_deviceptr ptr = 0;
    enum pc_status status = pc_device_bind(pool->device, err);
    if (status != PC_OK)
        return status;
    pc_cu_result r = pool->cu->cuMemAllocFromPoolAsync(&ptr, bytes, pool->handle, pool->stream);
    if (r != PC_CU_SUCCESS)
        return alloc_error(pool, bytes, r, "cuMemAllocFromPoolAsync", err);
    r = pool->cu->cuStreamSynchronize(pool->stream);
    if (r != PC_CU_SUCCESS) {
        *stuck = free_in_driver(pool, ptr, bytes, NULL) != PC_OK;
        return alloc_error(pool, bytes, r, "cuStreamSynchronize after an allocation", err);
    }
    *out = ptr;
    return PC_OK;
}

enum pc_status pc_pool_alloc(struct pc_pool *pool, uint64_t bytes, pc_cu_deviceptr *out, struct pc_error *err)
{
    bool stuck = false;
    if (bytes == 0)
        return pc_error_set(err, PC_ERR_INVALID, 0, "an allocation of 0 bytes; it has to be at least 1");
    enum pc_status status = reserve(pool, bytes, err);
    if (status != PC_OK)
        return status;
    status = alloc_in_driver(pool, bytes, out, &stuck, err);
    if (status != PC_OK && !stuck)
        release(pool, bytes);
    return status;
}

enum pc_status pc_pool_free(struct pc_pool *pool, pc_cu_deviceptr ptr, uint64_t bytes, struct pc_error *err)
{
    enum pc_status status = free_in_driver(pool, ptr, bytes, err);
    if (status != PC_OK)
        return status;
    uint64_t too_much = release(pool, bytes);
    if (too_much == 0)
        return PC_OK;
    return pc_error_set(err, PC_ERR_INVALID, 0,
                        "GPU %d: over-release: a free of %llu bytes gave back %llu more than were live",
                        ordinal_of(pool), (unsigned long long)bytes, (unsigned long long)too_much);
}

enum pc_status pc_pool_zero(struct pc_pool *pool, pc_cu_deviceptr ptr, uint64_t bytes, struct pc_error *err)
{
    enum pc_status status = pc_device_bind(pool->device, err);
    if (status != PC_OK)
        return status;
    pc_cu_result r = pool->cu->cuMemsetD8Async(ptr, 0, bytes, pool->stream);
    if (r != PC_CU_SUCCESS)
        return pc_cuda_error_as(pool->cu, r, PC_ERR_DRIVER, "cuMemsetD8Async", err);
    r = pool->cu->cuStreamSynchronize(pool->stream);
    return pc_cuda_error_as(pool->cu, r, PC_ERR_DRIVER, "cuStreamSynchronize after zeroing", err);
}

/* --- export --- */

static enum pc_status check_exported(const struct pc_pool *pool, struct pc_error *err)
{
    if (pool->exported)
        return PC_OK;
    return pc_error_set(err, PC_ERR_NOT_SUPPORTED, 0, "GPU %d: the pool was not made for export", ordinal_of(pool));
}

enum pc_status pc_pool_export_fd(struct pc_pool *pool, int *out, struct pc_error *err)
{
    int fd = -1;
    enum pc_status status = check_exported(pool, err);
    if (status != PC_OK)
        return status;
    if ((status = pc_device_bind(pool->device, err)) != PC_OK)
        return status;
    pc_cu_result r = pool->cu->cuMemPoolExportToShareableHandle(&fd, pool->handle, PC_CU_MEM_HANDLE_TYPE_POSIX_FD, 0);
    if (r != PC_CU_SUCCESS)
        return pc_cuda_error_as(pool->cu, r, PC_ERR_DRIVER, "cuMemPoolExportToShareableHandle", err);
    pool->exported_once = true;
    return pc_driver_fd(fd, out, err);
}

/* The driver exports pointers only of a pool that was exported as an fd before (trap 19). */
static enum pc_status export_pool_once(struct pc_pool *pool, struct pc_error *err)
{
    int fd = -1;
    if (pool->exported_once)
        return pc_device_bind(pool->device, err);
    enum pc_status status = pc_pool_export_fd(pool, &fd, err);
    if (status == PC_OK)
        close(fd);
    return status;
}

enum pc_status pc_pool_export_block(struct pc_pool *pool, pc_cu_deviceptr ptr, uint64_t bytes,
                                    struct pc_cu_ptr_export *out, struct pc_error *err)
{
    struct pc_cu_ptr_export data;
    char max[PC_BYTES_TEXT];
    enum pc_status status = check_exported(pool, err);
    if (status != PC_OK)
        return status;
    if (bytes > PC_POOL_ALLOC_MAX)
        return pc_error_set(err, PC_ERR_INVALID, 0,
                            "an allocation of %llu bytes is not exported: importing more than %s kills the importer "
                            "inside the driver; use large memory",
                            (unsigned long long)bytes, pc_bytes_format(PC_POOL_ALLOC_MAX, max));
    if ((status = export_pool_once(pool, err)) != PC_OK)
        return status;
    pc_cu_result r = pool->cu->cuMemPoolExportPointer(&data, ptr);
    if (r != PC_CU_SUCCESS)
        return pc_cuda_error_as(pool->cu, r, PC_ERR_DRIVER, "cuMemPoolExportPointer", err);
    *out = data;
    return PC_OK;
}

/* --- settings and figures --- */

enum pc_status pc_pool_set_release_threshold(struct pc_pool *pool, uint64_t bytes, struct pc_error *err)
{
    if (pool->exported)
        return pc_error_set(err, PC_ERR_NOT_SUPPORTED, 0,
                            "GPU %d: the release threshold of an exported pool is fixed: memory that was exported and "
                            "is then released leaves the pool's books but not the device",
                            ordinal_of(pool));
    enum pc_status status = pc_device_bind(pool->device, err);
    return status != PC_OK ? status : set_threshold(pool, bytes, err);
}

static enum pc_status read_figure(struct pc_pool *pool, pc_cu_mempool_attribute which, uint64_t *out,
                                  struct pc_error *err)
{
    pc_cu_result r = pool->cu->cuMemPoolGetAttribute(pool->handle, which, out);
    return pc_cuda_error_as(pool->cu, r, PC_ERR_DRIVER, "cuMemPoolGetAttribute", err);
}

enum pc_status pc_pool_stats(struct pc_pool *pool, struct pc_pool_stats *out, struct pc_error *err)
{
    struct pc_pool_stats stats = {
        .requested_cap = pool->cap,
        .effective_cap = pool->effective_cap,
        .live = atomic_load(&pool->live),
    };
    enum pc_status status = pc_device_bind(pool->device, err);
    if (status != PC_OK)
        return status;
    if ((status = read_figure(pool, PC_CU_MEMPOOL_RESERVED_CURRENT, &stats.reserved, err)) != PC_OK ||
        (status = read_figure(pool, PC_CU_MEMPOOL_USED_CURRENT, &stats.used, err)) != PC_OK)
        return status;
    *out = stats;
    return PC_OK;
}
