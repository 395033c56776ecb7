/*
 * Allocations over PC_POOL_ALLOC_MAX: one cuMemCreate handle, exported by fd, mapped by the tenant.
 *
 * poolcapd keeps no handle: it creates, exports and releases, and the open fd alone carries the
 * memory to the tenant. Such memory is freed on the tenant's word only, so the ledger keeps it as
 * pending until NVML shows the drop (facts, trap 7).
 *
 * Thread rules: any thread; each call binds the device.
 */
#ifndef PC_POOL_LARGE_H
#define PC_POOL_LARGE_H

#include <stdint.h>

#include "alloc/base/error.h"
#include "alloc/pool/device.h"

/*
 * poolcapd's half. Makes bytes (a multiple of pc_large_granularity) of device memory and returns the only reference
 * as an fd (O_CLOEXEC), owned by the caller. Closing it without an importer returns the memory.
 * Errors: PC_ERR_INVALID, PC_ERR_OUT_OF_MEMORY, PC_ERR_DRIVER.
 */
enum pc_status pc_large_create(struct pc_device *device, uint64_t bytes, int *fd_out, struct pc_error *err);

/* Granularity of large memory in bytes (2 MiB on an H200). */
enum pc_status pc_large_granularity(struct pc_device *device, uint64_t *out, struct pc_error *err);

/*
 * The tenant's half. Imports the fd, maps it into a new address range with read and write access for the device that is
 * current on the calling thread, and drops the handle: only the mapping keeps the memory. Does not close fd: the caller
 * must, at once. Nothing stays reserved after an error. cu: the driver; ordinal: the device of the memory.
 * Errors: PC_ERR_DRIVER, PC_ERR_OUT_OF_MEMORY.
 */
enum pc_status pc_large_map(const struct pc_cuda *cu, int ordinal, int fd, uint64_t bytes, pc_cu_deviceptr *out,
                            struct pc_error *err);

/* Unmaps and gives the address range back. The caller has synchronised all use of it. */
enum pc_status pc_large_unmap(const struct pc_cuda *cu, pc_cu_deviceptr ptr, uint64_t bytes, struct pc_error *err);

#endif
