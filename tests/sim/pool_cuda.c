/*
 * Pools. The exporter alone carves its pool up, so blocks are known to it only; the book has what others must know:
 * how much the card holds, and which parts of the window were ever exported.
 */
#include "tests/sim/sim_cuda.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_STEP 512ull
#define IMPORT_MAX (5248 * PC_MIB) /* the largest import seen to survive (trap 7) */

/* What the 64 bytes hold: plain numbers, checked by nobody (trap 14). */
struct export_data {
    uint64_t offset, size;
};

static bool is_pool(pc_cu_mempool pool)
{
    struct pc_cu_pool_st *p = sim.pools;
    while (p != NULL && p != pool)
        p = p->next;
    return p != NULL;
}

static uint64_t limit(const struct pc_cu_pool_st *pool)
{
    return pool->shared->cap > 0 ? pool->shared->cap : UINT64_MAX;
}

/* --- carving --- */

/* Calls for every gap between the pool's blocks, in order; stops when fn returns true. */
static bool each_gap(const struct pc_cu_pool_st *pool, bool (*fn)(uint64_t at, uint64_t size, void *arg), void *arg)
{
    uint64_t at = pool->shared->base, end = at + pool->shared->window;
    for (size_t i = span_first(at); i < sim.count && sim.spans[i].addr < end; i++) {
        const struct span *s = &sim.spans[i];
        if (s->kind != SPAN_BLOCK || s->owner != pool)
            continue;
        if (s->addr > at && fn(at, s->addr - at, arg))
            return true;
        at = s->addr + s->size;
    }
    return end > at && fn(at, end - at, arg);
}

struct want {
    uint64_t size, align, at;
};

static bool fits(uint64_t at, uint64_t size, void *arg)
{
    struct want *want = arg;
    want->at = sim_up(at, want->align);
    return want->at + want->size <= at + size;
}

/*
 * Grows the pool's physical memory to hold `used` bytes. In whole multiples of 32 MiB, so that RESERVED is the
 * high-water mark of USED (trap 16): addresses do not matter, since the driver maps scattered pieces side by side.
 */
static pc_cu_result grow(struct pc_cu_pool_st *pool, uint64_t used)
{
    struct sim_pool *shared = pool->shared;
    uint64_t target = sim_up(used, PC_POOL_GRANULE);
    if (target <= shared->reserved)
        return PC_CU_SUCCESS;
    SIM_BOOK_GUARD(book);
    uint64_t more = target - shared->reserved;
    if (more > sim_free(book, pool->gpu))
        return PC_CU_ERROR_OUT_OF_MEMORY;
    SIM_STORE(shared->card, shared->card + more);
    SIM_STORE(shared->reserved, target);
    if (target > pool->reserved_high)
        pool->reserved_high = target;
    return PC_CU_SUCCESS;
}

static pc_cu_result pool_alloc(struct pc_cu_pool_st *pool, uint64_t bytes, pc_cu_deviceptr *out)
{
    struct want want = {.size = sim_up(bytes, BLOCK_STEP), .align = bytes < 2 * PC_MIB ? BLOCK_STEP : 2 * PC_MIB};
    if (want.size > limit(pool) || pool->used > limit(pool) - want.size) {
        if (pool->shared->cap > 0)
            grow(pool, pool->shared->cap); /* as seen: the refused request still grows RESERVED to the cap */
        return PC_CU_ERROR_OUT_OF_MEMORY;
    }
    if (!each_gap(pool, fits, &want) || !span_room())
        return PC_CU_ERROR_OUT_OF_MEMORY;
    pc_cu_result code = grow(pool, pool->used + want.size);
    if (code != PC_CU_SUCCESS)
        return code;
    span_add(&(struct span){want.at, want.size, want.at, SPAN_BLOCK, pool->gpu, 0, pool});
    pool->live++;
    pool->used += want.size;
    if (pool->used > pool->used_high)
        pool->used_high = pool->used;
    *out = want.at;
    return PC_CU_SUCCESS;
}

pc_cu_result cuMemAllocFromPoolAsync(pc_cu_deviceptr *ptr, size_t bytes, pc_cu_mempool pool, pc_cu_stream stream)
{
    SIM_CALL(cuMemAllocFromPoolAsync);
    SIM_GUARD;
    if (ptr == NULL || bytes == 0 || bytes > SIM_SPACE || !is_pool(pool) || pool->imported)
        return PC_CU_ERROR_INVALID_VALUE;
    pc_cu_result code = stream_check(stream);
    return code == PC_CU_SUCCESS ? pool_alloc(pool, bytes, ptr) : code;
}

/* --- giving memory back --- */

/* Bits of the granules that were ever exported and have no block in them now, into left; returns their bytes. */
static uint64_t exported_and_free(const struct pc_cu_pool_st *pool, uint64_t left[SIM_GRANULES / 64])
{
    uint64_t bytes = 0, base = pool->shared->base;
    memcpy(left, pool->shared->exported, sizeof pool->shared->exported);
    for (size_t i = span_first(base); i < sim.count && sim.spans[i].addr < base + pool->shared->window; i++) {
        const struct span *s = &sim.spans[i];
        if (s->kind != SPAN_BLOCK || s->owner != pool)
            continue;
        for (uint64_t g = (s->addr - base) / PC_POOL_GRANULE; g <= (s->addr + s->size - 1 - base) / PC_POOL_GRANULE;
             g++)
            left[g / 64] &= ~(1ull << g % 64);
    }
    for (size_t i = 0; i < SIM_GRANULES / 64; i++)
        bytes += (uint64_t)__builtin_popcountll(left[i]) * PC_POOL_GRANULE;
    return bytes;
}

static bool punch_gap(uint64_t at, uint64_t size, void *arg)
{
    const struct pc_cu_pool_st *pool = arg;
    sim_punch(pool->gpu, at, size);
    return false;
}

/* What was ever exported leaves the books, but not the card (trap 1); the rest goes back to the card. */
static void trim(struct pc_cu_pool_st *pool, uint64_t keep)
{
    static uint64_t left[SIM_GRANULES / 64];
    struct sim_pool *shared = pool->shared;
    uint64_t target = sim_up(keep > pool->used ? keep : pool->used, PC_POOL_GRANULE);
    if (target >= shared->reserved)
        return;
    SIM_BOOK_GUARD(book);
    (void)book;
    uint64_t freed = shared->reserved - target, leak = exported_and_free(pool, left);
    leak = leak < freed ? leak : freed;
    each_gap(pool, punch_gap, pool);
    SIM_STORE(shared->leaked, shared->leaked + leak);
    if (leak > 0) {
        for (size_t i = 0; i < SIM_GRANULES / 64; i++)
            shared->exported[i] &= ~left[i];
    }
    SIM_STORE(shared->reserved, target);
    SIM_STORE(shared->card, shared->card - (freed - leak));
}

void pools_synchronise(void)
{
    for (struct pc_cu_pool_st *pool = sim.pools; pool != NULL; pool = pool->next) {
        if (!pool->imported && pool->shared->reserved > pool->threshold)
            trim(pool, pool->threshold);
    }
}

pc_cu_result cuMemPoolTrimTo(pc_cu_mempool pool, size_t keep)
{
    SIM_CALL(cuMemPoolTrimTo);
    SIM_GUARD;
    if (!is_pool(pool) || pool->imported)
        return PC_CU_ERROR_INVALID_VALUE;
    trim(pool, keep);
    return PC_CU_SUCCESS;
}

/* A destroyed pool whose last block went: out of the book, where importers may still hold it. */
static void pool_end(struct pc_cu_pool_st *pool)
{
    SIM_BOOK_GUARD(book);
    if (pool->imported)
        sim_ref_drop(book, sim.self->id, pool->id);
    else
        SIM_STORE(pool->shared->exporter, 0);
    sim_settle(book);
    free(pool);
}

pc_cu_result pool_free_span(struct span *span)
{
    struct pc_cu_pool_st *pool = span->owner;
    if (span->kind == SPAN_BLOCK)
        pool->used -= span->size;
    span_remove(span);
    pool->live--;
    if (pool->live == 0 && !is_pool(pool))
        pool_end(pool);
    return PC_CU_SUCCESS;
}

/* --- making and ending --- */

static pc_cu_result check_props(const pc_cu_pool_props_t *props, const struct sim_book *book)
{
    if (props->alloc_type != PC_CU_MEM_ALLOCATION_TYPE_PINNED || props->handle_types > PC_CU_MEM_HANDLE_TYPE_POSIX_FD ||
        props->location.type != PC_CU_MEM_LOCATION_TYPE_DEVICE)
        return PC_CU_ERROR_INVALID_VALUE;
    return props->location.id >= 0 && props->location.id < (int)book->gpus ? PC_CU_SUCCESS : PC_CU_ERROR_INVALID_DEVICE;
}

static struct sim_pool *share_pool(const pc_cu_pool_props_t *props)
{
    SIM_BOOK_GUARD(book);
    struct sim_pool *shared = sim_pool_new(book);
    if (shared == NULL)
        return NULL;
    uint64_t cap = props->max_size < SIM_SPACE ? sim_up(props->max_size, PC_POOL_GRANULE) : SIM_SPACE;
    uint64_t most = cap > 0 && cap < book->memory ? cap : sim_up(book->memory, PC_POOL_GRANULE);
    shared->window = 3 * most < SIM_GRANULES * PC_POOL_GRANULE ? 3 * most : SIM_GRANULES * PC_POOL_GRANULE;
    shared->gpu = (uint32_t)props->location.id;
    shared->base = sim_place(book, shared->gpu, shared->window, PC_POOL_GRANULE);
    if (shared->base == 0)
        return NULL;
    shared->cap = cap;
    shared->exporter = sim.self->id;
    shared->id = sim_new_id(book);
    SIM_STORE(shared->used, 1);
    return shared;
}

pc_cu_result cuMemPoolCreate(pc_cu_mempool *pool, const pc_cu_pool_props_t *props)
{
    SIM_CALL(cuMemPoolCreate);
    if (pool == NULL || props == NULL)
        return PC_CU_ERROR_INVALID_VALUE;
    SIM_GUARD;
    pc_cu_result code = check_props(props, sim_book_open());
    if (code != PC_CU_SUCCESS)
        return code;
    struct pc_cu_pool_st *made = calloc(1, sizeof *made);
    if (made == NULL || (made->shared = share_pool(props)) == NULL) {
        free(made);
        return PC_CU_ERROR_OUT_OF_MEMORY;
    }
    made->id = made->shared->id;
    made->gpu = made->shared->gpu;
    made->exportable = props->handle_types != 0;
    made->access[made->gpu] = PC_CU_MEM_ACCESS_READWRITE;
    made->next = sim.pools;
    sim.pools = made;
    *pool = made;
    return PC_CU_SUCCESS;
}

pc_cu_result cuMemPoolDestroy(pc_cu_mempool pool)
{
    SIM_CALL(cuMemPoolDestroy);
    SIM_GUARD;
    struct pc_cu_pool_st **link = &sim.pools;
    while (*link != NULL && *link != pool)
        link = &(*link)->next;
    if (*link == NULL)
        return PC_CU_ERROR_INVALID_VALUE;
    *link = pool->next;
    if (pool->live == 0)
        pool_end(pool);
    return PC_CU_SUCCESS;
}

pc_cu_result cuMemPoolSetAttribute(pc_cu_mempool pool, pc_cu_mempool_attribute attribute, void *value)
{
    SIM_CALL(cuMemPoolSetAttribute);
    SIM_GUARD;
    if (!is_pool(pool) || pool->imported || value == NULL)
        return PC_CU_ERROR_INVALID_VALUE;
    uint64_t number = 0;
    if (attribute >= 1 && attribute <= 3) /* the three reuse policies, each an int: they change nothing here */
        return PC_CU_SUCCESS;
    memcpy(&number, value, sizeof number);
    if (attribute == PC_CU_MEMPOOL_RELEASE_THRESHOLD)
        pool->threshold = number;
    else if (attribute == PC_CU_MEMPOOL_RESERVED_HIGH && number == 0)
        pool->reserved_high = pool->shared->reserved;
    else if (attribute == PC_CU_MEMPOOL_USED_HIGH && number == 0)
        pool->used_high = pool->used;
    else
        return PC_CU_ERROR_INVALID_VALUE;
    return PC_CU_SUCCESS;
}

pc_cu_result cuMemPoolGetAttribute(pc_cu_mempool pool, pc_cu_mempool_attribute attribute, void *value)
{
    SIM_CALL(cuMemPoolGetAttribute);
    SIM_GUARD;
    if (!is_pool(pool) || value == NULL)
        return PC_CU_ERROR_INVALID_VALUE;
    const uint64_t values[] = {
        [PC_CU_MEMPOOL_RELEASE_THRESHOLD] = pool->threshold, [PC_CU_MEMPOOL_RESERVED_CURRENT] = pool->shared->reserved,
        [PC_CU_MEMPOOL_RESERVED_HIGH] = pool->reserved_high, [PC_CU_MEMPOOL_USED_CURRENT] = pool->used,
        [PC_CU_MEMPOOL_USED_HIGH] = pool->used_high,
    };
    if (attribute < PC_CU_MEMPOOL_RELEASE_THRESHOLD || attribute >= PC_ARRAY_LEN(values))
        return PC_CU_ERROR_INVALID_VALUE;
    memcpy(value, &values[attribute], sizeof values[0]);
    return PC_CU_SUCCESS;
}

pc_cu_result cuMemPoolSetAccess(pc_cu_mempool pool, const pc_cu_access_t *map, size_t count)
{
    SIM_CALL(cuMemPoolSetAccess);
    SIM_GUARD;
    if (!is_pool(pool) || (map == NULL && count > 0))
        return PC_CU_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        if (map[i].location.type != PC_CU_MEM_LOCATION_TYPE_DEVICE || map[i].flags == 2 ||
            map[i].flags > PC_CU_MEM_ACCESS_READWRITE)
            return PC_CU_ERROR_INVALID_VALUE;
        if (map[i].location.id < 0 || map[i].location.id >= (int)sim_book_open()->gpus)
            return PC_CU_ERROR_INVALID_DEVICE;
    }
    for (size_t i = 0; i < count; i++)
        pool->access[map[i].location.id] = map[i].flags;
    return PC_CU_SUCCESS;
}

/* --- export and import --- */

pc_cu_result cuMemPoolExportToShareableHandle(void *handle_out, pc_cu_mempool pool, pc_cu_handle_type type,
                                              unsigned long long flags)
{
    SIM_CALL(cuMemPoolExportToShareableHandle);
    SIM_GUARD;
    if (handle_out == NULL || !is_pool(pool) || pool->imported || !pool->exportable || flags != 0 ||
        type != PC_CU_MEM_HANDLE_TYPE_POSIX_FD)
        return PC_CU_ERROR_INVALID_VALUE;
    int fd = sim_fd_make(pool->id);
    if (fd < 0)
        return PC_CU_ERROR_OPERATING_SYSTEM;
    SIM_STORE(pool->shared->shared, 1);
    memcpy(handle_out, &fd, sizeof fd);
    return PC_CU_SUCCESS;
}

static struct sim_pool *hold_pool(uint64_t id)
{
    SIM_BOOK_GUARD(book);
    struct sim_pool *shared = id != 0 ? sim_pool_by_id(book, id) : NULL;
    return shared != NULL && sim_ref_add(book, sim.self->id, id) ? shared : NULL;
}

pc_cu_result cuMemPoolImportFromShareableHandle(pc_cu_mempool *pool, void *handle, pc_cu_handle_type type,
                                                unsigned long long flags)
{
    SIM_CALL(cuMemPoolImportFromShareableHandle);
    SIM_GUARD;
    if (pool == NULL || type != PC_CU_MEM_HANDLE_TYPE_POSIX_FD || flags != 0)
        return PC_CU_ERROR_INVALID_VALUE;
    struct pc_cu_pool_st *made = calloc(1, sizeof *made);
    if (made == NULL || (made->shared = hold_pool(sim_fd_id((int)(uintptr_t)handle))) == NULL) {
        free(made);
        return PC_CU_ERROR_INVALID_VALUE;
    }
    made->id = made->shared->id;
    made->gpu = made->shared->gpu;
    made->imported = true;
    made->access[made->gpu] = PC_CU_MEM_ACCESS_READWRITE; /* copies work without cuMemPoolSetAccess (seen, H200) */
    made->next = sim.pools;
    sim.pools = made;
    *pool = made;
    return PC_CU_SUCCESS;
}

pc_cu_result cuMemPoolExportPointer(pc_cu_ptr_export_t *out, pc_cu_deviceptr ptr)
{
    SIM_CALL(cuMemPoolExportPointer);
    SIM_GUARD;
    const struct span *span = span_base(ptr);
    if (out == NULL || span == NULL || span->kind != SPAN_BLOCK || !is_pool(span->owner))
        return PC_CU_ERROR_INVALID_VALUE;
    const struct pc_cu_pool_st *pool = span->owner;
    if (!pool->shared->shared) /* trap 19 */
        return PC_CU_ERROR_INVALID_VALUE;
    struct export_data data = {span->addr - pool->shared->base, span->size};
    for (uint64_t g = data.offset / PC_POOL_GRANULE; g <= (data.offset + data.size - 1) / PC_POOL_GRANULE; g++)
        SIM_STORE(pool->shared->exported[g / 64], pool->shared->exported[g / 64] | 1ull << g % 64);
    memset(out, 0, sizeof *out);
    memcpy(out, &data, sizeof data);
    return PC_CU_SUCCESS;
}

/* Only what was ever exported can be reached, but all of that: freed memory and other blocks too (traps 13 to 15). */
static bool was_exported(const struct sim_pool *shared, const struct export_data *data)
{
    if (data->size == 0 || data->offset >= shared->window || data->size > shared->window - data->offset)
        return false;
    for (uint64_t g = data->offset / PC_POOL_GRANULE; g <= (data->offset + data->size - 1) / PC_POOL_GRANULE; g++) {
        if ((shared->exported[g / 64] >> g % 64 & 1) == 0)
            return false;
    }
    return true;
}

pc_cu_result cuMemPoolImportPointer(pc_cu_deviceptr *ptr, pc_cu_mempool pool, pc_cu_ptr_export_t *data)
{
    SIM_CALL(cuMemPoolImportPointer);
    SIM_GUARD;
    pc_cu_result code = capture_check();
    if (code != PC_CU_SUCCESS)
        return code;
    struct export_data block;
    if (ptr == NULL || data == NULL || !is_pool(pool) || !pool->imported)
        return PC_CU_ERROR_INVALID_VALUE;
    memcpy(&block, data, sizeof block);
    if (!was_exported(pool->shared, &block))
        return PC_CU_ERROR_INVALID_VALUE;
    if (block.size > IMPORT_MAX)
        raise(SIGSEGV);
    uint64_t at = pool->shared->base + block.offset;
    bool own = pool->shared->exporter == sim.self->id; /* then the address itself is taken, by the block */
    const struct span *there = own ? NULL : span_base(at);
    if (there != NULL && there->owner == pool && there->size == block.size) {
        *ptr = at; /* trap 8 */
        return PC_CU_SUCCESS;
    }
    uint64_t addr = own ? span_free_address(block.size, 2 * PC_MIB) : at;
    if (addr == 0 || !span_room())
        return PC_CU_ERROR_OUT_OF_MEMORY;
    span_add(&(struct span){addr, block.size, at, SPAN_IMPORT, pool->gpu, 0, pool});
    pool->live++;
    *ptr = addr;
    return PC_CU_SUCCESS;
}
