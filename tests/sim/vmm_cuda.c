/* cuMemCreate: memory by handle, exported as an fd, mapped into a reserved range of this process's own addresses. */
#include "tests/sim/sim_cuda.h"

#include <stdlib.h>
#include <string.h>

#define GRANULARITY (2 * PC_MIB)

struct large {
    struct large *next;
    struct sim_range *shared;
    uint64_t id;
    bool exportable;
    size_t handles, maps; /* it goes when both are 0 */
};

struct reservation {
    struct reservation *next;
    uint64_t addr, size;
};

static struct large *larges;
static struct reservation *reservations;

static struct large *find_large(uint64_t id)
{
    struct large *large = larges;
    while (large != NULL && large->id != id)
        large = large->next;
    return large;
}

static struct large *from_handle(pc_cu_memhandle handle)
{
    struct large *large = larges;
    while (large != NULL && (uintptr_t)large != handle)
        large = large->next;
    return large != NULL && large->handles > 0 ? large : NULL;
}

static struct large *add_large(struct sim_range *shared, bool exportable)
{
    struct large *large = calloc(1, sizeof *large);
    if (large == NULL)
        return NULL;
    *large = (struct large){larges, shared, shared->id, exportable, 1, 0};
    larges = large;
    return large;
}

static void drop_unused(struct large *large)
{
    if (large->handles + large->maps > 0)
        return;
    struct large **link = &larges;
    while (*link != large)
        link = &(*link)->next;
    *link = large->next;
    SIM_BOOK_GUARD(book);
    sim_ref_drop(book, sim.self->id, large->id);
    sim_settle(book);
    free(large);
}

static bool is_prop(const pc_cu_alloc_prop_t *prop, const struct sim_book *book)
{
    return prop != NULL && prop->type == PC_CU_MEM_ALLOCATION_TYPE_PINNED &&
           prop->handle_types <= PC_CU_MEM_HANDLE_TYPE_POSIX_FD &&
           prop->location.type == PC_CU_MEM_LOCATION_TYPE_DEVICE && prop->location.id >= 0 &&
           prop->location.id < (int)book->gpus;
}

static pc_cu_result make_range(uint64_t bytes, unsigned int gpu, struct sim_range **out)
{
    SIM_BOOK_GUARD(book);
    struct sim_range *range = sim_range_new(book);
    if (range == NULL || bytes > sim_free(book, gpu))
        return PC_CU_ERROR_OUT_OF_MEMORY;
    range->gpu = gpu;
    range->size = bytes;
    range->addr = sim_place(book, gpu, bytes, GRANULARITY);
    range->id = sim_new_id(book);
    if (range->addr == 0 || !sim_ref_add(book, sim.self->id, range->id))
        return PC_CU_ERROR_OUT_OF_MEMORY;
    SIM_STORE(range->used, SIM_LARGE);
    *out = range;
    return PC_CU_SUCCESS;
}

pc_cu_result cuMemCreate(pc_cu_memhandle *handle, size_t bytes, const pc_cu_alloc_prop_t *prop,
                         unsigned long long flags)
{
    SIM_CALL(cuMemCreate);
    SIM_GUARD;
    if (handle == NULL || bytes == 0 || bytes % GRANULARITY != 0 || flags != 0 || !is_prop(prop, sim_book_open()))
        return PC_CU_ERROR_INVALID_VALUE;
    struct sim_range *range = NULL;
    pc_cu_result code = make_range(bytes, (unsigned int)prop->location.id, &range);
    if (code != PC_CU_SUCCESS)
        return code;
    struct large *large = add_large(range, prop->handle_types != 0);
    if (large == NULL)
        return PC_CU_ERROR_OUT_OF_MEMORY;
    *handle = (uintptr_t)large;
    return PC_CU_SUCCESS;
}

pc_cu_result cuMemRelease(pc_cu_memhandle handle)
{
    SIM_CALL(cuMemRelease);
    SIM_GUARD;
    struct large *large = from_handle(handle);
    if (large == NULL)
        return PC_CU_ERROR_INVALID_VALUE;
    large->handles--;
    drop_unused(large);
    return PC_CU_SUCCESS;
}

pc_cu_result cuMemRetainAllocationHandle(pc_cu_memhandle *handle, void *addr)
{
    SIM_CALL(cuMemRetainAllocationHandle);
    SIM_GUARD;
    const struct span *span = span_find((uintptr_t)addr);
    if (handle == NULL || span == NULL || span->kind != SPAN_MAP)
        return PC_CU_ERROR_INVALID_VALUE;
    struct large *large = span->owner;
    large->handles++;
    *handle = (uintptr_t)large;
    return PC_CU_SUCCESS;
}

pc_cu_result cuMemExportToShareableHandle(void *handle_out, pc_cu_memhandle handle, pc_cu_handle_type type,
                                          unsigned long long flags)
{
    SIM_CALL(cuMemExportToShareableHandle);
    SIM_GUARD;
    const struct large *large = from_handle(handle);
    if (handle_out == NULL || large == NULL || !large->exportable || type != PC_CU_MEM_HANDLE_TYPE_POSIX_FD ||
        flags != 0)
        return PC_CU_ERROR_INVALID_VALUE;
    int fd = sim_fd_make(large->id);
    if (fd < 0)
        return PC_CU_ERROR_OPERATING_SYSTEM;
    memcpy(handle_out, &fd, sizeof fd);
    return PC_CU_SUCCESS;
}

static struct sim_range *hold_range(uint64_t id)
{
    SIM_BOOK_GUARD(book);
    struct sim_range *range = id != 0 ? sim_range_by_id(book, id) : NULL;
    return range != NULL && range->used == SIM_LARGE && sim_ref_add(book, sim.self->id, id) ? range : NULL;
}

pc_cu_result cuMemImportFromShareableHandle(pc_cu_memhandle *handle, void *os_handle, pc_cu_handle_type type)
{
    SIM_CALL(cuMemImportFromShareableHandle);
    SIM_GUARD;
    if (handle == NULL || type != PC_CU_MEM_HANDLE_TYPE_POSIX_FD)
        return PC_CU_ERROR_INVALID_VALUE;
    uint64_t id = sim_fd_id((int)(uintptr_t)os_handle);
    struct large *large = find_large(id);
    if (large != NULL) {
        large->handles++;
        *handle = (uintptr_t)large;
        return PC_CU_SUCCESS;
    }
    struct sim_range *range = hold_range(id);
    large = range != NULL ? add_large(range, true) : NULL;
    if (large == NULL)
        return PC_CU_ERROR_INVALID_VALUE;
    *handle = (uintptr_t)large;
    return PC_CU_SUCCESS;
}

pc_cu_result cuMemGetAllocationGranularity(size_t *granularity, const pc_cu_alloc_prop_t *prop,
                                           pc_cu_granularity option)
{
    SIM_CALL(cuMemGetAllocationGranularity);
    SIM_GUARD;
    if (granularity == NULL || option > PC_CU_MEM_GRANULARITY_RECOMMENDED || !is_prop(prop, sim_book_open()))
        return PC_CU_ERROR_INVALID_VALUE;
    *granularity = GRANULARITY;
    return PC_CU_SUCCESS;
}

/* --- addresses --- */

pc_cu_result cuMemAddressReserve(pc_cu_deviceptr *ptr, size_t bytes, size_t alignment, pc_cu_deviceptr hint,
                                 unsigned long long flags)
{
    SIM_CALL(cuMemAddressReserve);
    (void)hint; /* a wish, as in the driver */
    SIM_GUARD;
    if (ptr == NULL || bytes == 0 || bytes % GRANULARITY != 0 || (alignment & (alignment - 1)) != 0 || flags != 0)
        return PC_CU_ERROR_INVALID_VALUE;
    struct reservation *made = calloc(1, sizeof *made);
    uint64_t at = span_free_address(bytes, alignment > GRANULARITY ? alignment : GRANULARITY);
    if (made == NULL || at == 0) {
        free(made);
        return PC_CU_ERROR_OUT_OF_MEMORY;
    }
    *made = (struct reservation){reservations, at, bytes};
    reservations = made;
    *ptr = at;
    return PC_CU_SUCCESS;
}

/* Whether anything is mapped in [addr, addr + size). */
static bool anything_mapped(uint64_t addr, uint64_t size)
{
    size_t i = span_first(addr);
    return span_find(addr) != NULL || (i < sim.count && sim.spans[i].addr < addr + size);
}

pc_cu_result cuMemAddressFree(pc_cu_deviceptr ptr, size_t bytes)
{
    SIM_CALL(cuMemAddressFree);
    SIM_GUARD;
    struct reservation **link = &reservations;
    while (*link != NULL && ((*link)->addr != ptr || (*link)->size != bytes))
        link = &(*link)->next;
    struct reservation *gone = *link;
    if (gone == NULL || anything_mapped(ptr, bytes))
        return PC_CU_ERROR_INVALID_VALUE;
    *link = gone->next;
    free(gone);
    return PC_CU_SUCCESS;
}

static bool is_reserved(uint64_t addr, uint64_t size)
{
    for (struct reservation *r = reservations; r != NULL; r = r->next) {
        if (addr >= r->addr && addr - r->addr <= r->size && size <= r->size - (addr - r->addr))
            return true;
    }
    return false;
}

pc_cu_result cuMemMap(pc_cu_deviceptr ptr, size_t bytes, size_t offset, pc_cu_memhandle handle,
                      unsigned long long flags)
{
    SIM_CALL(cuMemMap);
    SIM_GUARD;
    struct large *large = from_handle(handle);
    if (large == NULL || bytes == 0 || bytes % GRANULARITY != 0 || ptr % GRANULARITY != 0 || offset != 0 ||
        flags != 0 || bytes > large->shared->size || !is_reserved(ptr, bytes) || anything_mapped(ptr, bytes))
        return PC_CU_ERROR_INVALID_VALUE;
    if (!span_room())
        return PC_CU_ERROR_OUT_OF_MEMORY;
    span_add(
        &(struct span){ptr, bytes, large->shared->addr, SPAN_MAP, large->shared->gpu, PC_CU_MEM_ACCESS_NONE, large});
    large->maps++;
    return PC_CU_SUCCESS;
}

/* Whether [addr, addr + size) is exactly a row of whole mappings. */
static bool whole_mappings(uint64_t addr, uint64_t size)
{
    uint64_t at = addr;
    while (at < addr + size) {
        const struct span *span = span_base(at);
        if (span == NULL || span->kind != SPAN_MAP)
            return false;
        at += span->size;
    }
    return size > 0 && at == addr + size;
}

pc_cu_result cuMemUnmap(pc_cu_deviceptr ptr, size_t bytes)
{
    SIM_CALL(cuMemUnmap);
    SIM_GUARD;
    if (!whole_mappings(ptr, bytes))
        return PC_CU_ERROR_INVALID_VALUE;
    for (uint64_t at = ptr; at < ptr + bytes;) {
        struct span *span = span_base(at);
        struct large *large = span->owner;
        at += span->size;
        span_remove(span);
        large->maps--;
        drop_unused(large);
    }
    return PC_CU_SUCCESS;
}

pc_cu_result cuMemSetAccess(pc_cu_deviceptr ptr, size_t bytes, const pc_cu_access_t *desc, size_t count)
{
    SIM_CALL(cuMemSetAccess);
    SIM_GUARD;
    if (desc == NULL || count == 0 || !whole_mappings(ptr, bytes))
        return PC_CU_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        if (desc[i].location.type != PC_CU_MEM_LOCATION_TYPE_DEVICE || desc[i].location.id < 0 ||
            desc[i].location.id >= (int)sim_book_open()->gpus || desc[i].flags > PC_CU_MEM_ACCESS_READWRITE)
            return PC_CU_ERROR_INVALID_VALUE;
    }
    for (size_t i = span_first(ptr); i < sim.count && sim.spans[i].addr < ptr + bytes; i++)
        sim.spans[i].access = desc[count - 1].flags;
    return PC_CU_SUCCESS;
}
