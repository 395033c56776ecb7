#include "alloc/pool/import.h"

#include <stdbool.h>

#include "alloc/base/log.h"
#include "alloc/pool/check.h"

/* What the driver answers while a stream of this process is captured in global mode (trap 12). */
static enum pc_status import_error(const struct pc_cuda *cu, pc_cu_result code, const char *what, struct pc_error *err)
{
    bool capture = code == PC_CU_ERROR_STREAM_CAPTURE_UNSUPPORTED || code == PC_CU_ERROR_STREAM_CAPTURE_INVALIDATED;
    return pc_cuda_error(cu, code, capture ? PC_ERR_CAPTURE : PC_ERR_DRIVER, what, err);
}

static pc_cu_result set_access(const struct pc_cuda *cu, int ordinal, pc_cu_mempool pool)
{
    struct pc_cu_access access = {
        .location = {.type = PC_CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal},
        .flags = PC_CU_MEM_ACCESS_READWRITE,
    };
    return cu->cuMemPoolSetAccess(pool, &access, 1);
}

enum pc_status pc_import_pool(const struct pc_cuda *cu, int ordinal, int fd, pc_cu_mempool *out, struct pc_error *err)
{
    pc_cu_mempool pool = NULL;
    pc_cu_result r =
        cu->cuMemPoolImportFromShareableHandle(&pool, (void *)(uintptr_t)fd, PC_CU_MEM_HANDLE_TYPE_POSIX_FD, 0);
    if (r != PC_CU_SUCCESS)
        return import_error(cu, r, "cuMemPoolImportFromShareableHandle", err);
    r = set_access(cu, ordinal, pool);
    if (r != PC_CU_SUCCESS) {
        if (cu->cuMemPoolDestroy(pool) != PC_CU_SUCCESS)
            pc_log_error("pool", "an imported pool could not be dropped after cuMemPoolSetAccess had failed");
        return import_error(cu, r, "cuMemPoolSetAccess on an imported pool", err);
    }
    *out = pool;
    return PC_OK;
}

enum pc_status pc_import_block(const struct pc_cuda *cu, pc_cu_mempool pool, const struct pc_cu_ptr_export *data,
                               pc_cu_deviceptr *out, struct pc_error *err)
{
    struct pc_cu_ptr_export copy = *data; /* the driver takes it without const */
    pc_cu_deviceptr ptr = 0;
    pc_cu_result r = cu->cuMemPoolImportPointer(&ptr, pool, &copy);
    if (r != PC_CU_SUCCESS)
        return import_error(cu, r, "cuMemPoolImportPointer", err);
    *out = ptr;
    return PC_OK;
}

enum pc_status pc_import_block_free(const struct pc_cuda *cu, pc_cu_deviceptr ptr, pc_cu_stream stream,
                                    struct pc_error *err)
{
    pc_cu_result r = cu->cuMemFreeAsync(ptr, stream);
    if (r != PC_CU_SUCCESS)
        return pc_cuda_error_as(cu, r, PC_ERR_DRIVER, "cuMemFreeAsync of imported memory", err);
    r = cu->cuStreamSynchronize(stream);
    return pc_cuda_error_as(cu, r, PC_ERR_DRIVER, "cuStreamSynchronize after a free of imported memory", err);
}

enum pc_status pc_import_pool_drop(const struct pc_cuda *cu, pc_cu_mempool pool, struct pc_error *err)
{
    return pc_cuda_error_as(cu, cu->cuMemPoolDestroy(pool), PC_ERR_DRIVER, "cuMemPoolDestroy of an imported pool", err);
}
