/*
 * The slow paths of poolcap_alloc and poolcap_free: whatever the stream's lists cannot serve at once. And the other
 * kinds of memory, each in a file of its name.
 */
#ifndef PC_SHIM_ALLOC_H
#define PC_SHIM_ALLOC_H

#include <stddef.h>
#include <stdint.h>

#include "alloc/shim/poolcap.h"

/* Arguments are checked; the library may not have started. */
poolcap_status shim_alloc_slow(poolcap_ptr *out, size_t bytes, poolcap_stream stream);
poolcap_status shim_free_slow(poolcap_ptr ptr, poolcap_stream stream);

/* direct.c: the process's own driver allocations, charged. The library has started. */
poolcap_status shim_direct_alloc(poolcap_ptr *out, size_t bytes, poolcap_stream stream);
poolcap_status shim_direct_free(poolcap_ptr ptr); /* POOLCAP_INVALID: no such memory */

#endif
