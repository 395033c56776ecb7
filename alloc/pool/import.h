/*
 * A tenant's view of a pool that poolcapd exports: import the pool once, then its allocations by
 * their 64 bytes. An imported pool cannot be allocated from.
 *
 * Rules (traps 2, 3, 8, 9): close the fd right after pc_import_pool; never import the same
 * allocation twice in one process; destroy the imported pool once its last allocation is freed, or
 * it keeps everything that was ever exported after poolcapd's death.
 *
 * Thread rules: any thread whose current context is on the pool's device.
 */
#ifndef PC_POOL_IMPORT_H
#define PC_POOL_IMPORT_H

#include <stdint.h>

#include "alloc/base/error.h"
#include "alloc/driver/driver.h"

/* Imports the pool and gives GPU `ordinal` read and write access to it. fd is not consumed. Errors:
 * PC_ERR_OUT_OF_MEMORY, PC_ERR_CAPTURE, PC_ERR_DRIVER. */
enum pc_status pc_import_pool(const struct pc_cuda *cu, int ordinal, int fd, pc_cu_mempool *out, struct pc_error *err);

/*
 * Maps one allocation. Errors: PC_ERR_OUT_OF_MEMORY, PC_ERR_DRIVER; PC_ERR_CAPTURE while a stream is captured (trap
 * 12).
 */
enum pc_status pc_import_block(const struct pc_cuda *cu, pc_cu_mempool pool, const struct pc_cu_ptr_export *data,
                               pc_cu_deviceptr *out, struct pc_error *err);

/*
 * Ends the mapping of one allocation: frees on `stream` (the caller's own non-blocking one) and synchronises it, so
 * that poolcapd may free when this returns. The caller has waited for all use of the memory.
 */
enum pc_status pc_import_block_free(const struct pc_cuda *cu, pc_cu_deviceptr ptr, pc_cu_stream stream,
                                    struct pc_error *err);

/* Drops the imported pool. */
enum pc_status pc_import_pool_drop(const struct pc_cuda *cu, pc_cu_mempool pool, struct pc_error *err);

#endif
