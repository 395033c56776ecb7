#include "alloc/pool/managed.h"

#include <stdbool.h>
#include <stdlib.h>

#include "alloc/base/log.h"
#include "alloc/pool/check.h"

struct pc_managed {
    const struct pc_managed_env *env;
    pc_cu_deviceptr ptr;
    uint64_t bytes;
    int ordinal;
};

static void charge_back(const struct pc_managed *buffer)
{
    const struct pc_charge *charge = buffer->env->charge;
    charge->release(charge->ctx, buffer->ordinal, buffer->bytes);
}

static enum pc_status charge_and_alloc(struct pc_managed *buffer, struct pc_error *err)
{
    const struct pc_cuda *cu = buffer->env->cu;
    const struct pc_charge *charge = buffer->env->charge;
    enum pc_status status = charge->reserve(charge->ctx, buffer->ordinal, buffer->bytes, err);
    if (status != PC_OK)
        return status;
    pc_cu_result r = cu->cuMemAllocManaged(&buffer->ptr, buffer->bytes, PC_CU_MEM_ATTACH_GLOBAL);
    if (r != PC_CU_SUCCESS)
        charge_back(buffer);
    return pc_cuda_error(cu, r, PC_ERR_DRIVER, "cuMemAllocManaged", err);
}

enum pc_status pc_managed_alloc(const struct pc_managed_env *env, int ordinal, uint64_t bytes, struct pc_managed **out,
                                struct pc_error *err)
{
    if (bytes == 0)
        return pc_error_set(err, PC_ERR_INVALID, 0, "a managed buffer of 0 bytes; it has to be at least 1");
    struct pc_managed *buffer = calloc(1, sizeof *buffer);
    if (buffer == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no host memory for a managed buffer");
    buffer->env = env;
    buffer->ordinal = ordinal;
    buffer->bytes = bytes;
    enum pc_status status = charge_and_alloc(buffer, err);
    if (status != PC_OK) {
        free(buffer);
        return status;
    }
    *out = buffer;
    return PC_OK;
}

enum pc_status pc_managed_free(struct pc_managed *buffer, struct pc_error *err)
{
    if (buffer == NULL)
        return PC_OK;
    const struct pc_cuda *cu = buffer->env->cu;
    pc_cu_result r = cu->cuMemFree(buffer->ptr);
    if (r == PC_CU_SUCCESS)
        charge_back(buffer);
    else
        pc_leaks_record(buffer->env->leaks, buffer->ptr, buffer->bytes, (int)r);
    free(buffer);
    return pc_cuda_error_as(cu, r, PC_ERR_DRIVER, "cuMemFree of a managed buffer", err);
}

pc_cu_deviceptr pc_managed_ptr(const struct pc_managed *buffer)
{
    return buffer->ptr;
}

uint64_t pc_managed_bytes(const struct pc_managed *buffer)
{
    return buffer->bytes;
}

static enum pc_status check_gpu(const struct pc_cuda *cu, int ordinal, struct pc_error *err)
{
    int count = 0;
    pc_cu_result r = cu->cuDeviceGetCount(&count);
    if (r != PC_CU_SUCCESS)
        return pc_cuda_error_as(cu, r, PC_ERR_DRIVER, "cuDeviceGetCount", err);
    if (ordinal < 0 || ordinal >= count)
        return pc_error_set(err, PC_ERR_INVALID, 0, "there is no GPU %d to move managed memory to: there are %d",
                            ordinal, count);
    return PC_OK;
}

/* Turns where (an ordinal, PC_MANAGED_OWN_GPU or PC_MANAGED_HOST) into the driver's location. */
static enum pc_status locate(const struct pc_managed *buffer, int where, struct pc_cu_location *out,
                             struct pc_error *err)
{
    if (where == PC_MANAGED_HOST) {
        *out = (struct pc_cu_location){.type = PC_CU_MEM_LOCATION_TYPE_HOST, .id = 0};
        return PC_OK;
    }
    int ordinal = where == PC_MANAGED_OWN_GPU ? buffer->ordinal : where;
    enum pc_status status = check_gpu(buffer->env->cu, ordinal, err);
    if (status == PC_OK)
        *out = (struct pc_cu_location){.type = PC_CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal};
    return status;
}

static enum pc_status concurrent_access(const struct pc_managed *buffer, bool *out, struct pc_error *err)
{
    const struct pc_cuda *cu = buffer->env->cu;
    pc_cu_device device = 0;
    int value = 0;
    pc_cu_result r = cu->cuDeviceGet(&device, buffer->ordinal);
    if (r == PC_CU_SUCCESS)
        r = cu->cuDeviceGetAttribute(&value, PC_CU_DEVICE_CONCURRENT_MANAGED_ACCESS, device);
    if (r == PC_CU_SUCCESS)
        *out = value != 0;
    return pc_cuda_error_as(cu, r, PC_ERR_DRIVER, "cuDeviceGetAttribute(CONCURRENT_MANAGED_ACCESS)", err);
}

enum pc_status pc_managed_prefetch(struct pc_managed *buffer, int where, pc_cu_stream stream, struct pc_error *err)
{
    const struct pc_cuda *cu = buffer->env->cu;
    struct pc_cu_location location;
    enum pc_status status = locate(buffer, where, &location, err);
    if (status != PC_OK)
        return status;
    if (where == PC_MANAGED_HOST) {
        bool concurrent = false;
        if ((status = concurrent_access(buffer, &concurrent, err)) != PC_OK)
            return status;
        if (!concurrent) {
            pc_log_debug("managed", "GPU %d has no concurrent managed access: prefetch to the host left out",
                         buffer->ordinal);
            return PC_OK;
        }
    }
    pc_cu_result r = cu->cuMemPrefetchAsync(buffer->ptr, buffer->bytes, location, 0, stream);
    return pc_cuda_error_as(cu, r, PC_ERR_DRIVER, "cuMemPrefetchAsync", err);
}

static enum pc_status driver_advice(enum pc_managed_advice advice, int set, pc_cu_advice *out, struct pc_error *err)
{
    static const pc_cu_advice values[][2] = {
        [PC_MANAGED_READ_MOSTLY] = {PC_CU_ADVISE_UNSET_READ_MOSTLY, PC_CU_ADVISE_SET_READ_MOSTLY},
        [PC_MANAGED_PREFERRED_LOCATION] = {PC_CU_ADVISE_UNSET_PREFERRED_LOCATION, PC_CU_ADVISE_SET_PREFERRED_LOCATION},
        [PC_MANAGED_ACCESSED_BY] = {PC_CU_ADVISE_UNSET_ACCESSED_BY, PC_CU_ADVISE_SET_ACCESSED_BY},
    };
    if ((unsigned)advice >= sizeof values / sizeof values[0])
        return pc_error_set(err, PC_ERR_INVALID, 0, "there is no managed memory advice %d", (int)advice);
    *out = values[advice][set != 0];
    return PC_OK;
}

enum pc_status pc_managed_advise(struct pc_managed *buffer, enum pc_managed_advice advice, int set, int where,
                                 struct pc_error *err)
{
    const struct pc_cuda *cu = buffer->env->cu;
    struct pc_cu_location location;
    pc_cu_advice value = 0;
    enum pc_status status = driver_advice(advice, set, &value, err);
    if (status != PC_OK)
        return status;
    if (advice == PC_MANAGED_READ_MOSTLY)
        where = PC_MANAGED_OWN_GPU;
    if ((status = locate(buffer, where, &location, err)) != PC_OK)
        return status;
    pc_cu_result r = cu->cuMemAdvise(buffer->ptr, buffer->bytes, value, location);
    return pc_cuda_error_as(cu, r, PC_ERR_DRIVER, "cuMemAdvise", err);
}
