/*
 * Who pays for memory that is taken outside a pool. The ledger fills it in tests and poolcapd, the
 * reserve message fills it in the shim.
 */
#ifndef PC_POOL_CHARGE_H
#define PC_POOL_CHARGE_H

#include <stdint.h>

#include "alloc/base/error.h"

struct pc_charge {
    /* Books bytes or refuses with PC_ERR_OUT_OF_MEMORY; called before the driver is asked. */
    enum pc_status (*reserve)(void *ctx, int ordinal, uint64_t bytes, struct pc_error *err);
    /* Gives back exactly what reserve booked. */
    void (*release)(void *ctx, int ordinal, uint64_t bytes);
    void *ctx;
};

#endif
