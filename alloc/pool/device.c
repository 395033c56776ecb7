#include "alloc/pool/device.h"

#include <pthread.h>
#include <stdlib.h>

#include "alloc/base/log.h"
#include "alloc/pool/check.h"

struct pc_device {
    const struct pc_cuda *cu;
    pc_cu_device handle;
    pc_cu_context context;
    struct pc_device_info info;
};

struct pc_devices {
    const struct pc_cuda *cu;
    int count;
    pthread_mutex_t lock; /* guards made[]; never held over a driver call */
    struct pc_device *made[];
};

static enum pc_status start_driver(const struct pc_cuda *cu, int *count, struct pc_error *err)
{
    int version = 0;
    pc_cu_result r = cu->cuInit(0);
    if (r != PC_CU_SUCCESS)
        return pc_cuda_error_as(cu, r, PC_ERR_NOT_INITIALISED, "cuInit failed: no usable GPU in this process", err);
    r = cu->cuDriverGetVersion(&version);
    if (r != PC_CU_SUCCESS)
        return pc_cuda_error_as(cu, r, PC_ERR_NOT_INITIALISED, "cuDriverGetVersion", err);
    if (version < PC_CUDA_VERSION_MIN)
        return pc_error_set(err, PC_ERR_NOT_INITIALISED, 0,
                            "the driver supports CUDA %d.%d, capped pools need 12.2; update the NVIDIA driver",
                            version / 1000, version % 1000 / 10);
    r = cu->cuDeviceGetCount(count);
    return pc_cuda_error_as(cu, r, PC_ERR_NOT_INITIALISED, "cuDeviceGetCount", err);
}

enum pc_status pc_devices_create(const struct pc_cuda *cu, struct pc_devices **out, struct pc_error *err)
{
    int count = 0;
    enum pc_status status = start_driver(cu, &count, err);
    if (status != PC_OK)
        return status;
    struct pc_devices *devices = calloc(1, sizeof *devices + (size_t)count * sizeof devices->made[0]);
    if (devices == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no host memory for the list of %d GPUs", count);
    devices->cu = cu;
    devices->count = count;
    pthread_mutex_init(&devices->lock, NULL);
    *out = devices;
    return PC_OK;
}

static void device_free(struct pc_device *device)
{
    pc_cu_result r = device->cu->cuDevicePrimaryCtxRelease(device->handle);
    if (r != PC_CU_SUCCESS)
        pc_log_warn("device", "GPU %d: releasing the primary context failed: CUDA error %u", device->info.ordinal, r);
    free(device);
}

void pc_devices_free(struct pc_devices *devices)
{
    if (devices == NULL)
        return;
    for (int i = 0; i < devices->count; i++)
        if (devices->made[i] != NULL)
            device_free(devices->made[i]);
    pthread_mutex_destroy(&devices->lock);
    free(devices);
}

int pc_devices_count(const struct pc_devices *devices)
{
    return devices->count;
}

static enum pc_status check_ordinal(const struct pc_devices *devices, int ordinal, struct pc_error *err)
{
    if (ordinal >= 0 && ordinal < devices->count)
        return PC_OK;
    return pc_error_set(err, PC_ERR_INVALID, 0, "there is no GPU %d: this process sees %d GPU%s, counted from 0",
                        ordinal, devices->count, devices->count == 1 ? "" : "s");
}

static pc_cu_result read_attribute(const struct pc_cuda *cu, pc_cu_device_attribute which, pc_cu_device handle,
                                   int *out)
{
    *out = 0;
    return cu->cuDeviceGetAttribute(out, which, handle);
}

/* Fills *out, and *handle; *what names the call that failed. Makes no context. */
static pc_cu_result read_info(const struct pc_cuda *cu, int ordinal, pc_cu_device *handle, struct pc_device_info *out,
                              const char **what)
{
    struct pc_cu_uuid uuid;
    size_t total = 0;
    int pools = 0, handle_types = 0, concurrent = 0;
    pc_cu_result r;

    *what = "cuDeviceGet";
    if ((r = cu->cuDeviceGet(handle, ordinal)) != PC_CU_SUCCESS)
        return r;
    *what = "cuDeviceGetName";
    if ((r = cu->cuDeviceGetName(out->name, (int)sizeof out->name, *handle)) != PC_CU_SUCCESS)
        return r;
    *what = "cuDeviceGetUuid";
    if ((r = cu->cuDeviceGetUuid(&uuid, *handle)) != PC_CU_SUCCESS)
        return r;
    *what = "cuDeviceTotalMem";
    if ((r = cu->cuDeviceTotalMem(&total, *handle)) != PC_CU_SUCCESS)
        return r;
    *what = "cuDeviceGetAttribute";
    if ((r = read_attribute(cu, PC_CU_DEVICE_MEMORY_POOLS_SUPPORTED, *handle, &pools)) != PC_CU_SUCCESS ||
        (r = read_attribute(cu, PC_CU_DEVICE_MEMPOOL_SUPPORTED_HANDLE_TYPES, *handle, &handle_types)) !=
            PC_CU_SUCCESS ||
        (r = read_attribute(cu, PC_CU_DEVICE_CONCURRENT_MANAGED_ACCESS, *handle, &concurrent)) != PC_CU_SUCCESS)
        return r;
    out->name[sizeof out->name - 1] = '\0';
    out->ordinal = ordinal;
    out->total = total;
    out->pools = pools != 0 && (handle_types & PC_CU_MEM_HANDLE_TYPE_POSIX_FD) != 0;
    out->concurrent_managed = concurrent != 0;
    pc_uuid_format(&uuid, out->uuid);
    return PC_CU_SUCCESS;
}

static enum pc_status device_error(const struct pc_cuda *cu, pc_cu_result code, int ordinal, const char *what,
                                   struct pc_error *err)
{
    enum pc_status status = pc_cuda_error_as(cu, code, PC_ERR_DEVICE, what, err);
    if (status != PC_OK)
        pc_error_prefix(err, "GPU %d", ordinal);
    return status;
}

enum pc_status pc_devices_info(const struct pc_devices *devices, int ordinal, struct pc_device_info *out,
                               struct pc_error *err)
{
    struct pc_device_info info = {.ordinal = ordinal};
    pc_cu_device handle;
    const char *what;
    enum pc_status status = check_ordinal(devices, ordinal, err);
    if (status != PC_OK)
        return status;
    pc_cu_result r = read_info(devices->cu, ordinal, &handle, &info, &what);
    status = device_error(devices->cu, r, ordinal, what, err);
    if (status == PC_OK)
        *out = info;
    return status;
}

static enum pc_status device_make(const struct pc_cuda *cu, int ordinal, struct pc_device **out, struct pc_error *err)
{
    const char *what;
    struct pc_device *device = calloc(1, sizeof *device);
    if (device == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "GPU %d: no host memory for its context", ordinal);
    device->cu = cu;
    pc_cu_result r = read_info(cu, ordinal, &device->handle, &device->info, &what);
    if (r == PC_CU_SUCCESS) {
        what = "cannot make a context (cuDevicePrimaryCtxRetain)";
        r = cu->cuDevicePrimaryCtxRetain(&device->context, device->handle);
    }
    if (r != PC_CU_SUCCESS) {
        free(device);
        return device_error(cu, r, ordinal, what, err);
    }
    *out = device;
    return PC_OK;
}

enum pc_status pc_devices_get(struct pc_devices *devices, int ordinal, struct pc_device **out, struct pc_error *err)
{
    struct pc_device *mine = NULL;
    enum pc_status status = check_ordinal(devices, ordinal, err);
    if (status != PC_OK)
        return status;
    pthread_mutex_lock(&devices->lock);
    struct pc_device *device = devices->made[ordinal];
    pthread_mutex_unlock(&devices->lock);
    if (device == NULL) {
        if ((status = device_make(devices->cu, ordinal, &mine, err)) != PC_OK)
            return status;
        pthread_mutex_lock(&devices->lock);
        device = devices->made[ordinal];
        if (device == NULL) {
            device = devices->made[ordinal] = mine;
            mine = NULL;
        }
        pthread_mutex_unlock(&devices->lock);
    }
    if (mine != NULL) /* lost the race: the primary context is counted, so this gives back only our own retain */
        device_free(mine);
    *out = device;
    return PC_OK;
}

enum pc_status pc_device_bind(struct pc_device *device, struct pc_error *err)
{
    pc_cu_result r = device->cu->cuCtxSetCurrent(device->context);
    return device_error(device->cu, r, device->info.ordinal, "cuCtxSetCurrent", err);
}

const struct pc_cuda *pc_device_cuda(const struct pc_device *device)
{
    return device->cu;
}

const struct pc_device_info *pc_device_get_info(const struct pc_device *device)
{
    return &device->info;
}

pc_cu_context pc_device_context(const struct pc_device *device)
{
    return device->context;
}
