#include "alloc/pool/large.h"

#include "alloc/base/bytes.h"
#include "alloc/base/log.h"
#include "alloc/pool/check.h"

static struct pc_cu_alloc_prop large_prop(int ordinal)
{
    return (struct pc_cu_alloc_prop){
        .type = PC_CU_MEM_ALLOCATION_TYPE_PINNED,
        .handle_types = PC_CU_MEM_HANDLE_TYPE_POSIX_FD,
        .location = {.type = PC_CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal},
    };
}

enum pc_status pc_large_granularity(struct pc_device *device, uint64_t *out, struct pc_error *err)
{
    const struct pc_cuda *cu = pc_device_cuda(device);
    struct pc_cu_alloc_prop prop = large_prop(pc_device_get_info(device)->ordinal);
    size_t granularity = 0;
    enum pc_status status = pc_device_bind(device, err);
    if (status != PC_OK)
        return status;
    pc_cu_result r = cu->cuMemGetAllocationGranularity(&granularity, &prop, PC_CU_MEM_GRANULARITY_MINIMUM);
    if (r != PC_CU_SUCCESS)
        return pc_cuda_error_as(cu, r, PC_ERR_DRIVER, "cuMemGetAllocationGranularity", err);
    if (granularity == 0)
        return pc_error_set(err, PC_ERR_DRIVER, 0, "cuMemGetAllocationGranularity answered 0");
    *out = granularity;
    return PC_OK;
}

static enum pc_status check_size(struct pc_device *device, uint64_t bytes, struct pc_error *err)
{
    uint64_t granularity = 0;
    enum pc_status status = pc_large_granularity(device, &granularity, err);
    if (status != PC_OK)
        return status;
    if (bytes == 0 || bytes % granularity != 0)
        return pc_error_set(err, PC_ERR_INVALID, 0, "large memory of %llu bytes is not a multiple of %llu above 0",
                            (unsigned long long)bytes, (unsigned long long)granularity);
    return PC_OK;
}

/* Drops a handle. A handle that stays keeps its memory until the process ends. */
static enum pc_status drop_handle(const struct pc_cuda *cu, pc_cu_memhandle handle, struct pc_error *err)
{
    return pc_cuda_error_as(cu, cu->cuMemRelease(handle), PC_ERR_DRIVER, "cuMemRelease", err);
}

/* The same on a failure path, where the first error is the one to report. */
static void drop_handle_quietly(const struct pc_cuda *cu, pc_cu_memhandle handle)
{
    struct pc_error err;
    if (drop_handle(cu, handle, &err) != PC_OK)
        pc_log_error("pool", "large memory is leaked: %s", err.text);
}

static enum pc_status export_handle(const struct pc_cuda *cu, pc_cu_memhandle handle, int *out, struct pc_error *err)
{
    int fd = -1;
    pc_cu_result r = cu->cuMemExportToShareableHandle(&fd, handle, PC_CU_MEM_HANDLE_TYPE_POSIX_FD, 0);
    if (r != PC_CU_SUCCESS)
        return pc_cuda_error_as(cu, r, PC_ERR_DRIVER, "cuMemExportToShareableHandle", err);
    return pc_driver_fd(fd, out, err);
}

enum pc_status pc_large_create(struct pc_device *device, uint64_t bytes, int *fd_out, struct pc_error *err)
{
    const struct pc_cuda *cu = pc_device_cuda(device);
    struct pc_cu_alloc_prop prop = large_prop(pc_device_get_info(device)->ordinal);
    pc_cu_memhandle handle = 0;
    int fd = -1;
    enum pc_status status = check_size(device, bytes, err); /* binds */
    if (status != PC_OK)
        return status;
    pc_cu_result r = cu->cuMemCreate(&handle, bytes, &prop, 0);
    if (r != PC_CU_SUCCESS)
        return pc_cuda_error(cu, r, PC_ERR_DRIVER, "cuMemCreate", err);
    if ((status = export_handle(cu, handle, &fd, err)) != PC_OK) {
        drop_handle_quietly(cu, handle);
        return status;
    }
    if ((status = drop_handle(cu, handle, err)) != PC_OK) {
        close(fd);
        return status;
    }
    *fd_out = fd;
    return PC_OK;
}

static pc_cu_result set_access(const struct pc_cuda *cu, int ordinal, pc_cu_deviceptr ptr, uint64_t bytes)
{
    struct pc_cu_access access = {
        .location = {.type = PC_CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal},
        .flags = PC_CU_MEM_ACCESS_READWRITE,
    };
    return cu->cuMemSetAccess(ptr, bytes, &access, 1);
}

enum pc_status pc_large_map(const struct pc_cuda *cu, int ordinal, int fd, uint64_t bytes, pc_cu_deviceptr *out,
                            struct pc_error *err)
{
    pc_cu_memhandle handle = 0;
    pc_cu_deviceptr ptr = 0;
    const char *what = "cuMemImportFromShareableHandle";
    pc_cu_result r = cu->cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)fd, PC_CU_MEM_HANDLE_TYPE_POSIX_FD);
    if (r != PC_CU_SUCCESS)
        return pc_cuda_error(cu, r, PC_ERR_DRIVER, what, err);
    what = "cuMemAddressReserve";
    if ((r = cu->cuMemAddressReserve(&ptr, bytes, 0, 0, 0)) != PC_CU_SUCCESS)
        goto undo_handle;
    what = "cuMemMap";
    if ((r = cu->cuMemMap(ptr, bytes, 0, handle, 0)) != PC_CU_SUCCESS)
        goto undo_reserve;
    what = "cuMemSetAccess";
    if ((r = set_access(cu, ordinal, ptr, bytes)) != PC_CU_SUCCESS)
        goto undo_map;
    what = "cuMemRelease";
    if ((r = cu->cuMemRelease(handle)) != PC_CU_SUCCESS) {
        handle = 0; /* nothing more can be done about it */
        goto undo_map;
    }
    *out = ptr;
    return PC_OK;

undo_map:
    cu->cuMemUnmap(ptr, bytes);
undo_reserve:
    cu->cuMemAddressFree(ptr, bytes);
undo_handle:
    if (handle != 0)
        drop_handle_quietly(cu, handle);
    return pc_cuda_error(cu, r, PC_ERR_DRIVER, what, err);
}

enum pc_status pc_large_unmap(const struct pc_cuda *cu, pc_cu_deviceptr ptr, uint64_t bytes, struct pc_error *err)
{
    pc_cu_result r = cu->cuMemUnmap(ptr, bytes);
    if (r != PC_CU_SUCCESS) /* the range is still mapped and must not be given back */
        return pc_cuda_error_as(cu, r, PC_ERR_DRIVER, "cuMemUnmap", err);
    r = cu->cuMemAddressFree(ptr, bytes);
    return pc_cuda_error_as(cu, r, PC_ERR_DRIVER, "cuMemAddressFree", err);
}
