/*
 * Managed (unified) memory, charged in full through a pc_charge when it is allocated: it can move to
 * the card as a whole at any time.
 *
 * Works on the context that is current on the calling thread, so that it serves a program's own
 * contexts (the shim) as well as ours. Thread rules: all calls may run beside each other on
 * different or the same buffers; free must be the last on its buffer.
 */
#ifndef PC_POOL_MANAGED_H
#define PC_POOL_MANAGED_H

#include <stdint.h>

#include "alloc/base/error.h"
#include "alloc/driver/driver.h"
#include "alloc/pool/charge.h"
#include "alloc/pool/leaks.h"

struct pc_managed; /* one buffer */

/* What managed buffers need; borrowed by each buffer for its life. */
struct pc_managed_env {
    const struct pc_cuda *cu;
    const struct pc_charge *charge;
    struct pc_leaks *leaks; /* may be NULL */
};

/*
 * Charges, then allocates bytes, attached globally; ordinal is the GPU that is charged and preferred by a plain
 * prefetch. Errors: PC_ERR_INVALID (0 bytes), PC_ERR_OUT_OF_MEMORY, PC_ERR_DRIVER. The charge is given back on failure.
 */
enum pc_status pc_managed_alloc(const struct pc_managed_env *env, int ordinal, uint64_t bytes, struct pc_managed **out,
                                struct pc_error *err);

/*
 * Frees and gives the charge back. A failed free is recorded in leaks, stays charged, and is returned; the object is
 * gone either way. NULL is allowed.
 */
enum pc_status pc_managed_free(struct pc_managed *buffer, struct pc_error *err);

pc_cu_deviceptr pc_managed_ptr(const struct pc_managed *buffer);
uint64_t pc_managed_bytes(const struct pc_managed *buffer);

/* Where to move pages: a GPU's ordinal, or one of these. */
enum { PC_MANAGED_OWN_GPU = -1, PC_MANAGED_HOST = -2 };

/*
 * Queues a prefetch of the whole buffer on stream. To the host where the GPU has no CONCURRENT_MANAGED_ACCESS it is a
 * no-op with a debug line, since such a driver refuses it. Errors: PC_ERR_INVALID (no such GPU), PC_ERR_DRIVER.
 */
enum pc_status pc_managed_prefetch(struct pc_managed *buffer, int where, pc_cu_stream stream, struct pc_error *err);

enum pc_managed_advice { PC_MANAGED_READ_MOSTLY, PC_MANAGED_PREFERRED_LOCATION, PC_MANAGED_ACCESSED_BY };

/* Sets (or, with set false, unsets) one advice for the whole buffer; where as in prefetch, ignored by READ_MOSTLY. */
enum pc_status pc_managed_advise(struct pc_managed *buffer, enum pc_managed_advice advice, int set, int where,
                                 struct pc_error *err);

#endif
