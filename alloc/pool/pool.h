/*
 * A capped cuMemPool: what one tenant may take of one GPU.
 *
 * Every allocation is reserved against the cap by compare-and-swap BEFORE the driver is asked, and
 * rolled back when the driver fails, so concurrent callers can never pass the cap together. The
 * driver's maxSize is a second, harder line behind it (rounded up to 32 MiB: the effective cap).
 *
 * An exported pool has release threshold UINT64_MAX for its whole life and is never trimmed:
 * trimming exported memory leaks it past the cap (trap 1). poolcapd asks only for whole multiples
 * of 32 MiB; then `reserved` is exactly the high-water mark of `used` (trap 16).
 *
 * Thread rules: all calls on one pool may come from any thread, except destroy and the exports:
 * these must not run beside each other (trap 20). Work is queued on the pool's own non-blocking
 * stream, never on the null stream. Each call binds the device's context to the calling thread.
 */
#ifndef PC_POOL_POOL_H
#define PC_POOL_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "alloc/base/error.h"
#include "alloc/pool/device.h"
#include "alloc/pool/leaks.h"

struct pc_pool;

struct pc_pool_config {
    int ordinal;                /* GPU; 0 is the default of a zeroed struct */
    uint64_t cap;               /* bytes; > 0 */
    bool exported;              /* may be exported to other processes by fd */
    uint64_t release_threshold; /* bytes kept when idle; only where !exported */
    struct pc_leaks *leaks;     /* failed frees are recorded here; borrowed, may be NULL */
};

/*
 * Makes the pool and its stream, gives the pool's device read and write access, and sets the release threshold.
 * Whatever was made is destroyed again on every failure path.
 * Errors: PC_ERR_INVALID (cap 0; text names it), PC_ERR_DEVICE, PC_ERR_POOL_CREATE, PC_ERR_SET_ATTRIBUTE,
 * PC_ERR_NOT_SUPPORTED (this GPU has no exportable pools), PC_ERR_HOST_MEMORY.
 */
enum pc_status pc_pool_create(struct pc_devices *devices, const struct pc_pool_config *config, struct pc_pool **out,
                              struct pc_error *err);

/*
 * Synchronises the stream and destroys pool and stream. Live allocations keep their memory until freed (trap 6),
 * importers keep theirs (trap 3). NULL is allowed.
 */
void pc_pool_destroy(struct pc_pool *pool);

/*
 * Takes bytes (> 0) from the pool. The memory is usable when the call returns (the stream was synchronised).
 * Errors: PC_ERR_OUT_OF_MEMORY (over the cap, sum overflows, or the driver has none; the text gives cap, live and
 * requested bytes), PC_ERR_INVALID (0 bytes), PC_ERR_DEVICE, PC_ERR_DRIVER. Nothing stays reserved after an error, with
 * one exception: memory that was got, could not be used and could not be freed again is recorded in config.leaks and
 * stays charged, as after a failed free. RESERVED may have grown all the same, up to the cap (facts).
 */
enum pc_status pc_pool_alloc(struct pc_pool *pool, uint64_t bytes, pc_cu_deviceptr *out, struct pc_error *err);

/*
 * Gives back what pc_pool_alloc gave; bytes is the same number. The release saturates at 0 and then reports
 * PC_ERR_INVALID (over-release). A failed free is recorded in config.leaks, stays charged, and is returned as
 * PC_ERR_DRIVER; nothing aborts. Synchronises the stream.
 */
enum pc_status pc_pool_free(struct pc_pool *pool, pc_cu_deviceptr ptr, uint64_t bytes, struct pc_error *err);

/* Queues a memset of zero on the pool's stream and waits for it. Errors: PC_ERR_DRIVER. */
enum pc_status pc_pool_zero(struct pc_pool *pool, pc_cu_deviceptr ptr, uint64_t bytes, struct pc_error *err);

/*
 * A new fd of the pool for one importer, owned by the caller (O_CLOEXEC): close it as soon as it is sent, an open
 * one keeps the pool's memory (trap 2). Errors: PC_ERR_NOT_SUPPORTED (not an exported pool), PC_ERR_DRIVER.
 */
enum pc_status pc_pool_export_fd(struct pc_pool *pool, int *out, struct pc_error *err);

/*
 * The 64 bytes with which an importer maps one allocation. Exports the pool once as an fd first if that has not
 * happened (trap 19). Errors: PC_ERR_INVALID (the allocation is over PC_POOL_ALLOC_MAX), PC_ERR_NOT_SUPPORTED,
 * PC_ERR_DRIVER.
 */
enum pc_status pc_pool_export_block(struct pc_pool *pool, pc_cu_deviceptr ptr, uint64_t bytes,
                                    struct pc_cu_ptr_export *out, struct pc_error *err);

/*
 * Bytes the pool keeps when idle. Errors: PC_ERR_NOT_SUPPORTED on an exported pool, with the reason in the text;
 * PC_ERR_SET_ATTRIBUTE.
 */
enum pc_status pc_pool_set_release_threshold(struct pc_pool *pool, uint64_t bytes, struct pc_error *err);

struct pc_pool_stats {
    uint64_t requested_cap; /* what create was asked for */
    uint64_t effective_cap; /* what the driver enforces: rounded up to PC_POOL_GRANULE */
    uint64_t live;          /* reserved by CAS: sum of live allocations */
    uint64_t reserved;      /* RESERVED_MEM_CURRENT: what the card holds for the pool */
    uint64_t used;          /* USED_MEM_CURRENT */
};
enum pc_status pc_pool_stats(struct pc_pool *pool, struct pc_pool_stats *out, struct pc_error *err);

#endif
