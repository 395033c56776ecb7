/*
 * Host memory for the shim's own records, from mmap, so that no call of the program's allocator happens here.
 *
 * Memory of a pool is used for the same type for ever and is never unmapped: a thread that reads an object without the
 * lock may find it recycled, never gone. The first word of a free object is the link; the rest keeps its last values.
 * Thread rules: a pool is guarded by its owner's lock.
 */
#ifndef PC_SHIM_META_H
#define PC_SHIM_META_H

#include <stddef.h>

struct shim_meta {
    void *free;
};

/* An object of size bytes (always the same for one pool); zero when it is new. NULL: no host memory. */
void *shim_meta_get(struct shim_meta *pool, size_t size);
void shim_meta_put(struct shim_meta *pool, void *object);

/* Zeroed pages, and back. NULL: no host memory. */
void *shim_pages_get(size_t bytes);
void shim_pages_put(void *pages, size_t bytes);

#endif
