#include "alloc/shim/meta.h"

#include <string.h>
#include <sys/mman.h>

enum { CHUNK = 64 * 1024 };

void *shim_pages_get(size_t bytes)
{
    void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return pages != MAP_FAILED ? pages : NULL;
}

void shim_pages_put(void *pages, size_t bytes)
{
    if (pages != NULL)
        munmap(pages, bytes);
}

static void refill(struct shim_meta *pool, size_t size)
{
    size_t chunk = size > CHUNK / 8 ? 8 * size : CHUNK;
    char *pages = shim_pages_get(chunk);
    if (pages == NULL)
        return;
    for (size_t at = chunk / size; at-- > 0;)
        shim_meta_put(pool, pages + at * size);
}

void *shim_meta_get(struct shim_meta *pool, size_t size)
{
    size = (size + 63) & ~(size_t)63; /* no two objects in one cache line */
    if (pool->free == NULL)
        refill(pool, size);
    void *object = pool->free;
    if (object != NULL)
        memcpy(&pool->free, object, sizeof pool->free);
    return object;
}

void shim_meta_put(struct shim_meta *pool, void *object)
{
    memcpy(object, &pool->free, sizeof pool->free);
    pool->free = object;
}
