/*
 * The GPUs of this process and their contexts.
 *
 * A context is made the first time its device is asked for, once, and kept for the process's life
 * (it costs 0.76 s and 518 MiB of the card on an H200). Any thread may ask: no driver call is made
 * under the lock; of two threads that race, the loser releases its retain outside the lock and
 * takes the winner's.
 *
 * Thread rules: every function may be called by any thread. pc_device_bind binds the calling
 * thread; every driver call of alloc/pool binds first.
 */
#ifndef PC_POOL_DEVICE_H
#define PC_POOL_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "alloc/base/error.h"
#include "alloc/driver/driver.h"

struct pc_devices; /* all GPUs of this process */
struct pc_device;  /* one GPU with its primary context */

/*
 * Calls cuInit and counts the GPUs; makes no context. cu must outlive the result.
 * Errors: PC_ERR_NOT_INITIALISED (cuInit failed, or the driver is older than 12.2), PC_ERR_HOST_MEMORY.
 */
enum pc_status pc_devices_create(const struct pc_cuda *cu, struct pc_devices **out, struct pc_error *err);

/* Releases every context that was made. All pools and buffers on them must be gone. NULL is allowed. */
void pc_devices_free(struct pc_devices *devices);

int pc_devices_count(const struct pc_devices *devices);

/* What is known of a GPU without a context. */
struct pc_device_info {
    int ordinal;
    char name[96];
    char uuid[PC_UUID_TEXT]; /* "GPU-..." */
    uint64_t total;          /* bytes */
    bool pools;              /* memory pools with POSIX fd export are supported */
    bool concurrent_managed; /* CONCURRENT_MANAGED_ACCESS */
};
enum pc_status pc_devices_info(const struct pc_devices *devices, int ordinal, struct pc_device_info *out,
                               struct pc_error *err);

/*
 * The device with its context, made now if it is the first call for it. Borrowed: lives as long as devices.
 * Errors: PC_ERR_INVALID (no such ordinal; the text says how many there are), PC_ERR_DEVICE.
 */
enum pc_status pc_devices_get(struct pc_devices *devices, int ordinal, struct pc_device **out, struct pc_error *err);

/* Makes the device's context current on the calling thread. Errors: PC_ERR_DEVICE. */
enum pc_status pc_device_bind(struct pc_device *device, struct pc_error *err);

const struct pc_cuda *pc_device_cuda(const struct pc_device *device);
const struct pc_device_info *pc_device_get_info(const struct pc_device *device);
pc_cu_context pc_device_context(const struct pc_device *device);

#endif
