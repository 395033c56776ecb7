/* Direct and managed memory, copies, and questions about pointers. */
#include "tests/sim/sim_cuda.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define DIRECT_STEP 4096ull
enum { CHUNK = 1 << 16 };

int sim_concurrent_managed(void)
{
    const char *text = getenv("POOLCAP_SIM_CONCURRENT_MANAGED");
    return text == NULL || strcmp(text, "0") != 0;
}

/* --- direct memory --- */

pc_cu_result cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    SIM_CALL(cuMemGetInfo);
    const struct pc_cu_ctx_st *ctx = sim_current();
    if (ctx == NULL)
        return PC_CU_ERROR_INVALID_CONTEXT;
    if (free_bytes == NULL || total_bytes == NULL)
        return PC_CU_ERROR_INVALID_VALUE;
    SIM_GUARD;
    SIM_BOOK_GUARD(book);
    *free_bytes = sim_free(book, ctx->gpu);
    *total_bytes = book->memory - book->reserved;
    return PC_CU_SUCCESS;
}

static pc_cu_result make_range(uint64_t size, unsigned int gpu, struct sim_range **out)
{
    SIM_BOOK_GUARD(book);
    struct sim_range *range = sim_range_new(book);
    if (range == NULL || size > sim_free(book, gpu))
        return PC_CU_ERROR_OUT_OF_MEMORY;
    range->gpu = gpu;
    range->owner = sim.self->id;
    range->size = size;
    range->addr = sim_place(book, gpu, size, size < 2 * PC_MIB ? DIRECT_STEP : 2 * PC_MIB);
    if (range->addr == 0)
        return PC_CU_ERROR_OUT_OF_MEMORY;
    range->id = sim_new_id(book);
    SIM_STORE(range->used, SIM_DIRECT);
    *out = range;
    return PC_CU_SUCCESS;
}

static pc_cu_result direct_alloc(pc_cu_deviceptr *ptr, size_t bytes, unsigned int gpu, enum span_kind kind)
{
    struct sim_range *range = NULL;
    if (bytes > SIM_SPACE || !span_room())
        return PC_CU_ERROR_OUT_OF_MEMORY;
    pc_cu_result code = make_range(sim_up(bytes, DIRECT_STEP), gpu, &range);
    if (code != PC_CU_SUCCESS)
        return code;
    span_add(&(struct span){range->addr, bytes, range->addr, kind, gpu, 0, range});
    *ptr = range->addr;
    return PC_CU_SUCCESS;
}

static void direct_free(struct span *span)
{
    struct sim_range *range = span->owner;
    span_remove(span);
    SIM_BOOK_GUARD(book);
    (void)book;
    sim_punch(range->gpu, range->addr, range->size);
    SIM_STORE(range->used, 0);
}

void direct_drop(unsigned int gpu)
{
    for (size_t i = 0; i < sim.count;) {
        struct span *span = &sim.spans[i];
        if (span->gpu == gpu && span->kind == SPAN_DIRECT)
            direct_free(span);
        else
            i++;
    }
}

pc_cu_result cuMemAlloc_v2(pc_cu_deviceptr *ptr, size_t bytes)
{
    SIM_CALL(cuMemAlloc);
    SIM_GUARD;
    const struct pc_cu_ctx_st *ctx = sim_current();
    if (ctx == NULL)
        return PC_CU_ERROR_INVALID_CONTEXT;
    if (ptr == NULL || bytes == 0)
        return PC_CU_ERROR_INVALID_VALUE;
    pc_cu_result code = capture_check();
    return code == PC_CU_SUCCESS ? direct_alloc(ptr, bytes, ctx->gpu, SPAN_DIRECT) : code;
}

pc_cu_result cuMemAllocAsync(pc_cu_deviceptr *ptr, size_t bytes, pc_cu_stream stream)
{
    SIM_CALL(cuMemAllocAsync);
    SIM_GUARD;
    const struct pc_cu_ctx_st *ctx = sim_current();
    if (ctx == NULL)
        return PC_CU_ERROR_INVALID_CONTEXT;
    if (ptr == NULL || bytes == 0)
        return PC_CU_ERROR_INVALID_VALUE;
    pc_cu_result code = stream_check(stream);
    return code == PC_CU_SUCCESS ? direct_alloc(ptr, bytes, ctx->gpu, SPAN_ASYNC) : code;
}

static pc_cu_result free_span(pc_cu_deviceptr ptr, bool stream_ordered)
{
    struct span *span = span_base(ptr);
    if (span == NULL || span->kind == SPAN_MAP)
        return PC_CU_ERROR_INVALID_VALUE;
    if (span->kind == SPAN_BLOCK || span->kind == SPAN_IMPORT)
        return pool_free_span(span);
    if (span->kind == SPAN_ASYNC || (span->kind == SPAN_DIRECT && !stream_ordered)) {
        direct_free(span);
        return PC_CU_SUCCESS;
    }
    if (stream_ordered)
        return PC_CU_ERROR_INVALID_VALUE;
    munmap((void *)(uintptr_t)span->addr, span->size);
    span_remove(span);
    return PC_CU_SUCCESS;
}

pc_cu_result cuMemFree_v2(pc_cu_deviceptr ptr)
{
    SIM_CALL(cuMemFree);
    SIM_GUARD;
    if (sim_current() == NULL)
        return PC_CU_ERROR_INVALID_CONTEXT;
    pc_cu_result code = capture_check();
    return code == PC_CU_SUCCESS ? free_span(ptr, false) : code;
}

pc_cu_result cuMemFreeAsync(pc_cu_deviceptr ptr, pc_cu_stream stream)
{
    SIM_CALL(cuMemFreeAsync);
    SIM_GUARD;
    pc_cu_result code = stream_check(stream);
    return code == PC_CU_SUCCESS ? free_span(ptr, true) : code;
}

/* --- managed memory --- */

pc_cu_result cuMemAllocManaged(pc_cu_deviceptr *ptr, size_t bytes, unsigned int flags)
{
    SIM_CALL(cuMemAllocManaged);
    SIM_GUARD;
    const struct pc_cu_ctx_st *ctx = sim_current();
    if (ctx == NULL)
        return PC_CU_ERROR_INVALID_CONTEXT;
    if (ptr == NULL || bytes == 0 || (flags != PC_CU_MEM_ATTACH_GLOBAL && flags != 2))
        return PC_CU_ERROR_INVALID_VALUE;
    pc_cu_result code = capture_check();
    if (code != PC_CU_SUCCESS)
        return code;
    void *map = span_room()
                    ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                    : MAP_FAILED;
    if (map == MAP_FAILED)
        return PC_CU_ERROR_OUT_OF_MEMORY;
    span_add(&(struct span){(uintptr_t)map, bytes, 0, SPAN_MANAGED, ctx->gpu, 0, NULL});
    *ptr = (uintptr_t)map;
    return PC_CU_SUCCESS;
}

/* A range of managed memory, and a place that it can go to. */
static pc_cu_result managed_check(uint64_t ptr, size_t bytes, const pc_cu_location_t *location)
{
    const struct span *span = span_find(ptr);
    if (span == NULL || span->kind != SPAN_MANAGED || bytes == 0 || bytes > span->size - (ptr - span->addr))
        return PC_CU_ERROR_INVALID_VALUE;
    if (location->type == PC_CU_MEM_LOCATION_TYPE_HOST)
        return PC_CU_SUCCESS;
    if (location->type != PC_CU_MEM_LOCATION_TYPE_DEVICE)
        return PC_CU_ERROR_INVALID_VALUE;
    bool there = location->id >= 0 && location->id < (int)sim_book_open()->gpus;
    return there && sim_concurrent_managed() ? PC_CU_SUCCESS : PC_CU_ERROR_INVALID_DEVICE;
}

pc_cu_result cuMemPrefetchAsync_v2(pc_cu_deviceptr ptr, size_t bytes, pc_cu_location_t location, unsigned int flags,
                                   pc_cu_stream stream)
{
    SIM_CALL(cuMemPrefetchAsync);
    SIM_GUARD;
    if (flags != 0)
        return PC_CU_ERROR_INVALID_VALUE;
    pc_cu_result code = stream_check(stream);
    return code == PC_CU_SUCCESS ? managed_check(ptr, bytes, &location) : code;
}

pc_cu_result cuMemAdvise_v2(pc_cu_deviceptr ptr, size_t bytes, pc_cu_advice advice, pc_cu_location_t location)
{
    SIM_CALL(cuMemAdvise);
    SIM_GUARD;
    if (advice < PC_CU_ADVISE_SET_READ_MOSTLY || advice > PC_CU_ADVISE_UNSET_ACCESSED_BY)
        return PC_CU_ERROR_INVALID_VALUE;
    bool placeless = advice <= PC_CU_ADVISE_UNSET_READ_MOSTLY || advice == PC_CU_ADVISE_UNSET_PREFERRED_LOCATION;
    if (placeless)
        location = (pc_cu_location_t){.type = PC_CU_MEM_LOCATION_TYPE_HOST};
    return managed_check(ptr, bytes, &location);
}

/* --- bytes --- */

static bool allowed(const struct span *span, bool write)
{
    unsigned int access = PC_CU_MEM_ACCESS_READWRITE;
    if (span->kind == SPAN_MAP)
        access = span->access;
    else if (span->kind == SPAN_BLOCK || span->kind == SPAN_IMPORT)
        access = ((const struct pc_cu_pool_st *)span->owner)->access[span->gpu];
    return write ? access == PC_CU_MEM_ACCESS_READWRITE : access != PC_CU_MEM_ACCESS_NONE;
}

static bool move(const struct span *span, uint64_t addr, void *buf, uint64_t size, bool write)
{
    uint64_t at = span->at + (addr - span->addr) - sim_base(span->gpu);
    int fd = sim_gpu_fd(span->gpu);
    while (size > 0) {
        ssize_t n = write ? pwrite(fd, buf, size, (off_t)at) : pread(fd, buf, size, (off_t)at);
        if (n < 0 || (write && n == 0))
            return false;
        if (n == 0) { /* behind the end of the file nothing was ever written */
            memset(buf, 0, size);
            return true;
        }
        buf = (char *)buf + n;
        at += (uint64_t)n;
        size -= (uint64_t)n;
    }
    return true;
}

/* Calls for each piece of [addr, addr + size) that lies in one span; size 0 touches nothing. */
typedef bool piece_fn(const struct span *span, uint64_t addr, uint64_t size, void *arg);

static pc_cu_result each_piece(uint64_t addr, uint64_t size, bool write, piece_fn *fn, void *arg)
{
    while (size > 0) {
        const struct span *span = span_find(addr);
        if (span == NULL || !allowed(span, write))
            return PC_CU_ERROR_INVALID_VALUE;
        uint64_t here = span->size - (addr - span->addr);
        here = here < size ? here : size;
        if (fn != NULL && !fn(span, addr, here, arg))
            return PC_CU_ERROR_UNKNOWN;
        addr += here;
        size -= here;
    }
    return PC_CU_SUCCESS;
}

struct transfer {
    char *host;
    bool write;
};

static bool transfer_piece(const struct span *span, uint64_t addr, uint64_t size, void *arg)
{
    struct transfer *t = arg;
    bool done = true;
    if (span->kind == SPAN_MANAGED && t->write)
        memcpy((void *)(uintptr_t)addr, t->host, size);
    else if (span->kind == SPAN_MANAGED)
        memcpy(t->host, (void *)(uintptr_t)addr, size);
    else
        done = move(span, addr, t->host, size, t->write);
    t->host += size;
    return done;
}

static pc_cu_result transfer(uint64_t addr, void *host, uint64_t size, bool write)
{
    struct transfer t = {host, write};
    pc_cu_result code = each_piece(addr, size, write, NULL, NULL); /* all of it, or nothing */
    return code == PC_CU_SUCCESS ? each_piece(addr, size, write, transfer_piece, &t) : code;
}

/* Copies that the caller waits for run on the NULL stream. */
static pc_cu_result copy_check(void)
{
    pc_cu_result code = stream_check(NULL);
    return code == PC_CU_SUCCESS ? capture_check() : code;
}

pc_cu_result cuMemcpyHtoD_v2(pc_cu_deviceptr dst, const void *src, size_t bytes)
{
    SIM_CALL(cuMemcpyHtoD);
    SIM_GUARD;
    pc_cu_result code = copy_check();
    return code == PC_CU_SUCCESS ? transfer(dst, (void *)(uintptr_t)src, bytes, true) : code;
}

pc_cu_result cuMemcpyDtoH_v2(void *dst, pc_cu_deviceptr src, size_t bytes)
{
    SIM_CALL(cuMemcpyDtoH);
    SIM_GUARD;
    pc_cu_result code = copy_check();
    return code == PC_CU_SUCCESS ? transfer(src, dst, bytes, false) : code;
}

pc_cu_result cuMemcpyDtoD_v2(pc_cu_deviceptr dst, pc_cu_deviceptr src, size_t bytes)
{
    SIM_CALL(cuMemcpyDtoD);
    static char buf[CHUNK];
    SIM_GUARD;
    pc_cu_result code = copy_check();
    for (size_t done = 0; code == PC_CU_SUCCESS && done < bytes; done += CHUNK) {
        size_t n = bytes - done < CHUNK ? bytes - done : CHUNK;
        code = transfer(src + done, buf, n, false);
        if (code == PC_CU_SUCCESS)
            code = transfer(dst + done, buf, n, true);
    }
    return code;
}

static bool zero_piece(const struct span *span, uint64_t addr, uint64_t size, void *arg)
{
    (void)arg;
    if (span->kind == SPAN_MANAGED)
        memset((void *)(uintptr_t)addr, 0, size);
    else
        sim_punch(span->gpu, span->at + (addr - span->addr), size);
    return true;
}

/* value repeated; 0 punches holes, so that 64 GiB take no time and no disk. */
pc_cu_result memory_set(uint64_t addr, uint32_t value, uint64_t size)
{
    static uint32_t buf[CHUNK / sizeof(uint32_t)];
    pc_cu_result code = each_piece(addr, size, true, NULL, NULL);
    if (code != PC_CU_SUCCESS || value == 0)
        return code == PC_CU_SUCCESS ? each_piece(addr, size, true, zero_piece, NULL) : code;
    for (size_t i = 0; i < PC_ARRAY_LEN(buf); i++)
        buf[i] = value;
    for (uint64_t done = 0; code == PC_CU_SUCCESS && done < size; done += CHUNK)
        code = transfer(addr + done, buf, size - done < CHUNK ? size - done : CHUNK, true);
    return code;
}

pc_cu_result cuMemsetD8_v2(pc_cu_deviceptr dst, unsigned char value, size_t count)
{
    SIM_CALL(cuMemsetD8);
    SIM_GUARD;
    pc_cu_result code = copy_check();
    return code == PC_CU_SUCCESS ? memory_set(dst, value * 0x01010101u, count) : code;
}

pc_cu_result cuMemsetD8Async(pc_cu_deviceptr dst, unsigned char value, size_t count, pc_cu_stream stream)
{
    SIM_CALL(cuMemsetD8Async);
    SIM_GUARD;
    return stream_set(stream, dst, value * 0x01010101u, count);
}

pc_cu_result cuMemsetD32Async(pc_cu_deviceptr dst, unsigned int value, size_t count, pc_cu_stream stream)
{
    SIM_CALL(cuMemsetD32Async);
    SIM_GUARD;
    if (dst % 4 != 0 || count > UINT64_MAX / 4)
        return PC_CU_ERROR_INVALID_VALUE;
    return stream_set(stream, dst, value, 4 * count);
}

/* --- questions about pointers --- */

static bool is_direct(const struct span *span)
{
    return span->kind == SPAN_DIRECT;
}

static unsigned int handle_types(const struct span *span)
{
    bool own =
        span->kind == SPAN_MAP || (span->kind == SPAN_BLOCK && ((const struct pc_cu_pool_st *)span->owner)->exportable);
    return own ? PC_CU_MEM_HANDLE_TYPE_POSIX_FD : PC_CU_MEM_HANDLE_TYPE_NONE;
}

pc_cu_result cuPointerGetAttribute(void *value, pc_cu_pointer_attribute attribute, pc_cu_deviceptr ptr)
{
    SIM_CALL(cuPointerGetAttribute);
    SIM_GUARD;
    const struct span *span = span_find(ptr);
    if (value == NULL || span == NULL)
        return PC_CU_ERROR_INVALID_VALUE;
    bool pooled = span->kind == SPAN_BLOCK || span->kind == SPAN_IMPORT;
    switch (attribute) {
    case PC_CU_POINTER_CONTEXT:
        *(pc_cu_context *)value = is_direct(span) || span->kind == SPAN_MANAGED ? &sim.contexts[span->gpu] : NULL;
        return PC_CU_SUCCESS;
    case PC_CU_POINTER_SYNC_MEMOPS:
        *(unsigned int *)value = 0;
        return PC_CU_SUCCESS;
    case PC_CU_POINTER_IS_MANAGED:
        *(unsigned int *)value = span->kind == SPAN_MANAGED;
        return PC_CU_SUCCESS;
    case PC_CU_POINTER_IS_LEGACY_CUDA_IPC_CAPABLE:
    case PC_CU_POINTER_IS_GPU_DIRECT_RDMA_CAPABLE:
        *(unsigned int *)value = is_direct(span);
        return PC_CU_SUCCESS;
    case PC_CU_POINTER_ALLOWED_HANDLE_TYPES:
        *(unsigned long long *)value = handle_types(span);
        return PC_CU_SUCCESS;
    case PC_CU_POINTER_MEMPOOL_HANDLE:
        *(pc_cu_mempool *)value = pooled ? span->owner : NULL;
        return PC_CU_SUCCESS;
    default:
        return PC_CU_ERROR_INVALID_VALUE;
    }
}

pc_cu_result cuMemGetAddressRange_v2(pc_cu_deviceptr *base, size_t *size, pc_cu_deviceptr ptr)
{
    SIM_CALL(cuMemGetAddressRange);
    SIM_GUARD;
    const struct span *span = span_find(ptr);
    if (span == NULL)
        return PC_CU_ERROR_NOT_FOUND;
    if (base != NULL)
        *base = span->addr;
    if (size != NULL)
        *size = span->size;
    return PC_CU_SUCCESS;
}

/* The fd stands for nothing: only whether there is one is simulated. */
pc_cu_result cuMemGetHandleForAddressRange(void *handle, pc_cu_deviceptr ptr, size_t bytes,
                                           pc_cu_range_handle_type type, unsigned long long flags)
{
    SIM_CALL(cuMemGetHandleForAddressRange);
    SIM_GUARD;
    const struct span *span = span_find(ptr);
    if (handle == NULL || span == NULL || !is_direct(span) || bytes == 0 || flags != 0 ||
        type != PC_CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD)
        return PC_CU_ERROR_INVALID_VALUE;
    int fd = memfd_create("simulated dma-buf", MFD_CLOEXEC);
    if (fd < 0)
        return PC_CU_ERROR_OPERATING_SYSTEM;
    memcpy(handle, &fd, sizeof fd);
    return PC_CU_SUCCESS;
}

pc_cu_result cuIpcGetMemHandle(pc_cu_ipc_handle_t *handle, pc_cu_deviceptr ptr)
{
    SIM_CALL(cuIpcGetMemHandle);
    SIM_GUARD;
    const struct span *span = span_find(ptr);
    if (handle == NULL || span == NULL || !is_direct(span))
        return PC_CU_ERROR_INVALID_VALUE;
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &span->at, sizeof span->at);
    return PC_CU_SUCCESS;
}
