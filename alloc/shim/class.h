/*
 * Size classes: multiples of 512 bytes up to 8 KiB, then eight steps to each doubling, so a class is at most 12.5 %
 * over the one below it.
 *
 * Two tiers. Requests up to SHIM_SMALL_MAX are rounded up to their class and carved from areas of 2 MiB in units of
 * 512 bytes; the others are rounded up to 32 KiB and carved from slabs directly. So rounding wastes under 12.5 % above
 * 4 KiB (a request of 256 KiB + 1 byte takes 288 KiB), and small blocks do not break up the room for large ones.
 */
#ifndef PC_SHIM_CLASS_H
#define PC_SHIM_CLASS_H

#include <stdint.h>

#include "alloc/base/bytes.h"

enum {
    SHIM_UNIT_SHIFT_SMALL = 9,
    SHIM_UNIT_SHIFT_BIG = 15,
    SHIM_CLASSES = 168, /* the last one holds PC_POOL_ALLOC_MAX */
    SHIM_CLASS_WORDS = 3,
    SHIM_CLASS_LARGE = 255, /* a block of its own mapping, in no list by class */
};
#define SHIM_SMALL_MAX (256 * PC_KIB)
#define SHIM_AREA_BYTES (2 * PC_MIB)
#define SHIM_UNIT_BIG (1ull << SHIM_UNIT_SHIFT_BIG)

/* The smallest class that holds bytes (1 to PC_POOL_ALLOC_MAX). */
static inline unsigned shim_class(uint64_t bytes)
{
    uint64_t n = (bytes - 1) >> SHIM_UNIT_SHIFT_SMALL;
    if (n < 8)
        return (unsigned)n;
    unsigned step = 60 - (unsigned)__builtin_clzll(n); /* log2(n) - 3 */
    return 8 * step + (unsigned)(n >> step);
}

/* The most bytes that a block of this class can have. */
static inline uint64_t shim_class_bytes(unsigned class)
{
    if (class < 8)
        return (class + 1ull) << SHIM_UNIT_SHIFT_SMALL;
    unsigned step = class / 8 - 1;
    return (class % 8 + 9ull) << (step + SHIM_UNIT_SHIFT_SMALL);
}

/* What a request really takes. */
static inline uint64_t shim_rounded(uint64_t bytes, unsigned class)
{
    if (bytes <= SHIM_SMALL_MAX)
        return shim_class_bytes(class);
    return (bytes + SHIM_UNIT_BIG - 1) & ~(SHIM_UNIT_BIG - 1);
}

#endif
