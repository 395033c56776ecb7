/* More memory from poolcapd: how much is asked for, and how it becomes a slab. */
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/log.h"
#include "alloc/pool/import.h"
#include "alloc/pool/large.h"
#include "alloc/shim/client.h"
#include "alloc/shim/context.h"
#include "alloc/shim/gpu.h"
#include "alloc/shim/state.h"

enum { GAVE_LATELY_MS = 100 };

static uint64_t up_to_granule(uint64_t bytes)
{
    return (bytes + PC_POOL_GRANULE - 1) / PC_POOL_GRANULE * PC_POOL_GRANULE;
}

/* --- generations --- */

static struct shim_generation *find_generation(struct shim_gpu *gpu, uint64_t id, uint32_t session)
{
    for (unsigned i = 0; i < SHIM_GENERATIONS; i++)
        if (gpu->generations[i].id == id && gpu->generations[i].session == session)
            return &gpu->generations[i];
    return NULL;
}

static enum pc_status import_generation(struct shim_gpu *gpu, struct shim_taken *taken, struct shim_generation **out,
                                        struct pc_error *err)
{
    struct shim_generation *place = NULL;
    for (unsigned i = 0; i < SHIM_GENERATIONS && place == NULL; i++)
        if (gpu->generations[i].id == 0)
            place = &gpu->generations[i];
    if (place == NULL)
        return pc_error_set(err, PC_ERR_DRIVER, 0, "more than %d generations of a pool in one process",
                            SHIM_GENERATIONS);
    enum pc_status status = pc_import_pool(&shim.cu, gpu->ordinal, taken->pool_fd, &place->pool, err);
    if (status != PC_OK)
        return status;
    place->id = taken->generation;
    place->session = shim_client_session();
    place->slabs = 0;
    *out = place;
    return PC_OK;
}

/* The pool that the memory comes from. Its descriptor is closed at once: an open one keeps memory (trap 2). */
static enum pc_status generation_for(struct shim_gpu *gpu, struct shim_taken *taken, struct shim_generation **out,
                                     struct pc_error *err)
{
    struct shim_generation *known = find_generation(gpu, taken->generation, shim_client_session());
    enum pc_status status = PC_OK;
    if (known != NULL)
        *out = known;
    else if (taken->new_generation)
        status = import_generation(gpu, taken, out, err);
    else
        status = pc_error_set(err, PC_ERR_PROTOCOL, 0, "poolcapd did not send generation %llx of the pool",
                              (unsigned long long)taken->generation);
    if (taken->pool_fd >= 0)
        close(taken->pool_fd);
    taken->pool_fd = -1;
    return status;
}

void shim_gpu_generation_dropped(struct shim_generation *generation)
{
    struct pc_error err;
    if (pc_import_pool_drop(&shim.cu, generation->pool, &err) != PC_OK)
        pc_log_error("shim", "an imported pool stays: %s", err.text); /* and poolcapd is not told that it went */
    else
        shim_client_queue_dropped(generation->id, generation->session);
    generation->id = 0;
}

/* --- one slab --- */

static enum pc_status add_slab(struct shim_gpu *gpu, const struct shim_taken *taken, struct shim_generation *generation,
                               uint64_t base, struct pc_error *err)
{
    struct shim_slab_origin origin = {
        .id = taken->block, .generation = generation, .session = shim_client_session(), .large = generation == NULL};
    shim_lock_take(&gpu->heap.lock);
    struct shim_slab *slab = shim_slab_add(&gpu->heap, base, taken->bytes, &origin);
    shim_lock_give(&gpu->heap.lock);
    if (slab == NULL)
        return pc_error_set(err, PC_ERR_DRIVER, 0, "no place in the books for %llu bytes at %llx",
                            (unsigned long long)taken->bytes, (unsigned long long)base);
    if (generation != NULL)
        generation->slabs++;
    return PC_OK;
}

/* What could not be used goes back, best effort. */
static void return_block(const struct shim_taken *taken, bool large)
{
    struct pc_error err;
    shim_client_queue_block(taken->block, shim_client_session(), large);
    if (shim_client_send_queued(&err) != PC_OK)
        pc_log_debug("shim", "unused memory is not given back yet: %s", err.text);
}

static void free_import(struct shim_gpu *gpu, uint64_t ptr)
{
    struct shim_context *context = shim_context_for(gpu);
    struct pc_error err;
    pc_cu_stream stream;
    if (context == NULL || shim_context_own_stream(context, &stream, &err) != PC_OK ||
        pc_import_block_free(&shim.cu, ptr, stream, &err) != PC_OK)
        pc_log_error("shim", "an import of %llx stays", (unsigned long long)ptr);
}

static enum pc_status import_slab(struct shim_gpu *gpu, struct shim_taken *taken, struct pc_error *err)
{
    struct shim_generation *generation = NULL;
    struct pc_cu_ptr_export data;
    pc_cu_deviceptr ptr = 0;
    enum pc_status status = generation_for(gpu, taken, &generation, err);
    if (status != PC_OK) {
        shim_client_queue_dropped(taken->generation, shim_client_session()); /* the next one brings the pool again */
        return status;
    }
    memcpy(data.bytes, taken->data, sizeof data.bytes);
    status = pc_import_block(&shim.cu, generation->pool, &data, &ptr, err);
    if (status == PC_OK && (status = add_slab(gpu, taken, generation, ptr, err)) != PC_OK)
        free_import(gpu, ptr);
    if (status != PC_OK && generation->slabs == 0)
        shim_gpu_generation_dropped(generation);
    return status;
}

static enum pc_status map_large(struct shim_gpu *gpu, struct shim_taken *taken, struct pc_error *err)
{
    pc_cu_deviceptr ptr = 0;
    enum pc_status status = pc_large_map(&shim.cu, gpu->ordinal, taken->memory_fd, taken->bytes, &ptr, err);
    close(taken->memory_fd);
    taken->memory_fd = -1;
    if (status == PC_OK && (status = add_slab(gpu, taken, NULL, ptr, err)) != PC_OK &&
        pc_large_unmap(&shim.cu, ptr, taken->bytes, NULL) != PC_OK)
        pc_log_error("shim", "large memory at %llx stays mapped", (unsigned long long)ptr);
    return status;
}

static enum pc_status take_slab(struct shim_gpu *gpu, uint64_t bytes, bool large, struct pc_error *err)
{
    struct shim_taken taken;
    struct shim_guard guard;
    enum pc_status status = shim_client_allocate(gpu, bytes, large, &taken, err);
    if (status != PC_OK)
        return status;
    shim_guard_begin(&guard, NULL);
    status = large ? map_large(gpu, &taken, err) : import_slab(gpu, &taken, err);
    shim_guard_end(&guard);
    if (status != PC_OK)
        return_block(&taken, large);
    return status;
}

/* --- how much --- */

/* Slabs grow with what the process holds. A request over half a slab gets one of its own size. */
static uint64_t slab_bytes(uint64_t held, uint64_t bytes)
{
    uint64_t slab = held < 128 * PC_MIB   ? 32 * PC_MIB
                    : held < 512 * PC_MIB ? 64 * PC_MIB
                    : held < 2 * PC_GIB   ? 128 * PC_MIB
                                          : 256 * PC_MIB;
    return bytes > slab / 2 ? up_to_granule(bytes) : slab;
}

/* The first size to ask for: what the page says there is room for, never less than what is needed. */
static uint64_t first_size(struct shim_gpu *gpu, uint64_t least, uint64_t bytes)
{
    struct pc_page_figures figures;
    shim_lock_take(&gpu->heap.lock);
    uint64_t size = slab_bytes(gpu->heap.held, bytes);
    shim_gpu_figures(gpu, &figures);
    /* Given back a moment ago and wanted again: let it rest a while, it is a program's rhythm. */
    if (gpu->gave_at != 0 && shim_now() - gpu->gave_at < GAVE_LATELY_MS * 1000000ull)
        gpu->hold_until = shim_now() + GAVE_LATELY_MS * 1000000ull;
    shim_lock_give(&gpu->heap.lock);
    uint64_t room = figures.room / PC_POOL_GRANULE * PC_POOL_GRANULE;
    if (size > room)
        size = room;
    return size > least ? size : least;
}

enum pc_status shim_gpu_grow(struct shim_gpu *gpu, uint64_t bytes, bool large, struct pc_error *err)
{
    enum pc_status status = shim_client_connect(err);
    if (status == PC_OK)
        status = shim_gpu_attach(gpu, err);
    if (status != PC_OK)
        return status;
    if (large)
        return take_slab(gpu, bytes, true, err);
    uint64_t least = up_to_granule(bytes);
    uint64_t size = first_size(gpu, least, bytes);
    while ((status = take_slab(gpu, size, false, err)) == PC_ERR_OUT_OF_MEMORY && size > least) {
        size = up_to_granule(size / 2);
        if (size < least)
            size = least;
    }
    return status;
}
