/*
 * Amounts of memory. All sizes in poolcap are bytes in uint64_t unless a name says otherwise.
 */
#ifndef PC_BASE_BYTES_H
#define PC_BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/base/error.h"

#define PC_KIB (1024ull)
#define PC_MIB (1024ull * 1024)
#define PC_GIB (1024ull * 1024 * 1024)

/*
 * The driver keeps an exported pool in pieces of 32 MiB: maxSize is rounded up to it, and only
 * allocations in whole multiples keep RESERVED exactly at the high-water mark of USED
 * (facts, H200, driver 580: trap 16).
 */
#define PC_POOL_GRANULE (32 * PC_MIB)

/* Importing one exported allocation above this kills the importer inside the driver (trap 7). */
#define PC_POOL_ALLOC_MAX (4064 * PC_MIB)

/* Adds without wrapping; false when the sum does not fit, *out is then untouched. */
static inline bool pc_add(uint64_t a, uint64_t b, uint64_t *out)
{
    if (b > UINT64_MAX - a)
        return false;
    *out = a + b;
    return true;
}

/* Rounds up to a multiple of step (not 0); false when the result does not fit. */
static inline bool pc_round_up(uint64_t n, uint64_t step, uint64_t *out)
{
    uint64_t rest = n % step;
    if (rest == 0) {
        *out = n;
        return true;
    }
    return pc_add(n, step - rest, out);
}

/*
 * Parses a Kubernetes quantity of whole bytes: digits, an optional decimal fraction, and one of
 * the suffixes k M G T P E (powers of 1000), Ki Mi Gi Ti Pi Ei (powers of 1024), or none.
 * "1.5Gi" is allowed because it is a whole number of bytes; "1500m", "4GiB", "-1Gi" and "" are
 * refused with a text that names what to write. what names the value in the text ("cap").
 * Errors: PC_ERR_INVALID.
 */
enum pc_status pc_bytes_parse(const char *what, const char *text, uint64_t *out, struct pc_error *err);

enum { PC_BYTES_TEXT = 32 };

/* Writes bytes for people, exact ("4Gi", "1000Mi", "1023"), as pc_bytes_parse reads it back. Returns buf. */
char *pc_bytes_format(uint64_t bytes, char buf[PC_BYTES_TEXT]);

#endif
