#include "tests/unit/fake_cuda.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/bytes.h"

struct fake_cuda fake;

enum { BLOCKS = 4096, GRANULARITY = 2 * 1024 * 1024 };

struct pc_cu_pool_st {
    uint64_t max, used, reserved;
    bool imported;
};

struct block {
    pc_cu_deviceptr ptr;
    uint64_t bytes;
    struct pc_cu_pool_st *pool;
};

static struct block blocks[BLOCKS];
static pc_cu_deviceptr next_ptr;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local pc_cu_context current;
static int trace[FAKE_TRACE];
static int traced;
static struct pc_cuda table;

#define FN_NAME(need, name, symbol, args) #name,
static const char *const fn_names[] = {PC_CUDA_TABLE(FN_NAME)};

static bool is_failing(enum fake_fn fn)
{
    if (fake.fail_at == 0 || (fake.fail_fn >= 0 && fake.fail_fn != (int)fn))
        return false;
    if (fake.fail_at < 0)
        return fake.fail_all;
    if (--fake.fail_at > 0)
        return false;
    fake.fail_at = -1;
    return true;
}

/* Notes the call and leaves the lock held; on failure the lock is given back. */
static bool enter(enum fake_fn fn, bool bound, pc_cu_result *r)
{
    if (fake.hook != NULL)
        fake.hook(fn);
    pthread_mutex_lock(&lock);
    fake.calls[fn]++;
    if (traced < FAKE_TRACE)
        trace[traced++] = fn;
    *r = PC_CU_SUCCESS;
    if (is_failing(fn))
        *r = fake.fail_code;
    else if (bound && current == NULL)
        *r = PC_CU_ERROR_INVALID_CONTEXT;
    if (*r != PC_CU_SUCCESS)
        pthread_mutex_unlock(&lock);
    return *r == PC_CU_SUCCESS;
}

static pc_cu_result leave(pc_cu_result r)
{
    pthread_mutex_unlock(&lock);
    return r;
}

#define ENTER(name)                     \
    pc_cu_result r;                     \
    if (!enter(FAKE_##name, false, &r)) \
        return r;
#define ENTER_BOUND(name)              \
    pc_cu_result r;                    \
    if (!enter(FAKE_##name, true, &r)) \
        return r;

/* One-line calls: what they do is the last argument. */
#define FAKE(name, args, enter_with, does) \
    static pc_cu_result fake_##name args   \
    {                                      \
        enter_with(name);                  \
        does;                              \
        return leave(PC_CU_SUCCESS);       \
    }

#define DROP(counter)                                       \
    do {                                                    \
        if (--(counter) < 0) {                              \
            fprintf(stderr, "%s: freed twice\n", __func__); \
            abort();                                        \
        }                                                   \
    } while (0)

#define DEVICE_CHECK(device)                   \
    if ((device) < 0 || (device) >= fake.gpus) \
    return leave(PC_CU_ERROR_INVALID_DEVICE)

/* --- device and context --- */

FAKE(cuInit, (unsigned flags), ENTER, (void)flags)
FAKE(cuDriverGetVersion, (int *out), ENTER, *out = fake.version)
FAKE(cuDeviceGetCount, (int *out), ENTER, *out = fake.gpus)
FAKE(cuDeviceGet, (pc_cu_device * out, int ordinal), ENTER, DEVICE_CHECK(ordinal); *out = ordinal)
FAKE(cuDeviceGetName, (char *out, int len, pc_cu_device d), ENTER, snprintf(out, (size_t)len, "Fake GPU %d", d))
FAKE(cuDeviceGetUuid, (pc_cu_uuid_t * out, pc_cu_device d), ENTER, memset(out, 0xa0 + d, sizeof *out))
FAKE(cuDeviceTotalMem, (size_t * out, pc_cu_device d), ENTER, (void)d; *out = 16 * PC_GIB)
FAKE(cuDevicePrimaryCtxRetain, (pc_cu_context * out, pc_cu_device d), ENTER, DEVICE_CHECK(d); fake.contexts[d]++;
     *out = (pc_cu_context)(uintptr_t)(0x1000 + d))
FAKE(cuDevicePrimaryCtxRelease, (pc_cu_device d), ENTER, DEVICE_CHECK(d); DROP(fake.contexts[d]))
FAKE(cuCtxSetCurrent, (pc_cu_context ctx), ENTER, current = ctx)

static pc_cu_result fake_cuGetErrorName(pc_cu_result code, const char **out)
{
    *out = code == PC_CU_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE";
    return PC_CU_SUCCESS;
}

static pc_cu_result fake_cuGetErrorString(pc_cu_result code, const char **out)
{
    *out = code == PC_CU_ERROR_OUT_OF_MEMORY ? "out of memory" : "made up";
    return PC_CU_SUCCESS;
}

static pc_cu_result fake_cuDeviceGetAttribute(int *out, pc_cu_device_attribute which, pc_cu_device device)
{
    ENTER(cuDeviceGetAttribute);
    DEVICE_CHECK(device);
    switch (which) {
    case PC_CU_DEVICE_MEMORY_POOLS_SUPPORTED:
        *out = 1;
        break;
    case PC_CU_DEVICE_MEMPOOL_SUPPORTED_HANDLE_TYPES:
        *out = fake.pools_supported ? PC_CU_MEM_HANDLE_TYPE_POSIX_FD : 0;
        break;
    case PC_CU_DEVICE_CONCURRENT_MANAGED_ACCESS:
        *out = fake.concurrent_managed;
        break;
    default:
        return leave(PC_CU_ERROR_INVALID_VALUE);
    }
    return leave(PC_CU_SUCCESS);
}

/* --- streams --- */

FAKE(cuStreamCreate, (pc_cu_stream * out, unsigned flags), ENTER_BOUND, fake.streams++; fake.stream_flags = flags;
     *out = (pc_cu_stream)(uintptr_t)0x2000)
FAKE(cuStreamDestroy, (pc_cu_stream s), ENTER_BOUND, (void)s; DROP(fake.streams))
FAKE(cuStreamSynchronize, (pc_cu_stream s), ENTER_BOUND, (void)s)
FAKE(cuMemsetD8Async, (pc_cu_deviceptr p, unsigned char v, size_t n, pc_cu_stream s), ENTER_BOUND, (void)p; (void)v;
     (void)n; (void)s; fake.zeroed++)

/* --- pools --- */

static pc_cu_result fake_cuMemPoolCreate(pc_cu_mempool *out, const pc_cu_pool_props_t *props)
{
    ENTER(cuMemPoolCreate);
    *out = calloc(1, sizeof **out);
    (*out)->max = (props->max_size + PC_POOL_GRANULE - 1) / PC_POOL_GRANULE * PC_POOL_GRANULE;
    fake.props = *props;
    fake.pools++;
    return leave(PC_CU_SUCCESS);
}

static pc_cu_result fake_cuMemPoolDestroy(pc_cu_mempool pool)
{
    ENTER(cuMemPoolDestroy);
    if (pool->imported)
        DROP(fake.imports);
    else
        DROP(fake.pools);
    fake.reserved -= pool->reserved;
    free(pool);
    return leave(PC_CU_SUCCESS);
}

static pc_cu_result fake_cuMemPoolSetAttribute(pc_cu_mempool pool, pc_cu_mempool_attribute which, void *value)
{
    (void)pool;
    ENTER(cuMemPoolSetAttribute);
    if (which != PC_CU_MEMPOOL_RELEASE_THRESHOLD)
        return leave(PC_CU_ERROR_INVALID_VALUE);
    memcpy(&fake.threshold, value, sizeof fake.threshold);
    return leave(PC_CU_SUCCESS);
}

static pc_cu_result fake_cuMemPoolGetAttribute(pc_cu_mempool pool, pc_cu_mempool_attribute which, void *value)
{
    ENTER(cuMemPoolGetAttribute);
    uint64_t figure = which == PC_CU_MEMPOOL_RESERVED_CURRENT ? pool->reserved : pool->used;
    memcpy(value, &figure, sizeof figure);
    return leave(PC_CU_SUCCESS);
}

FAKE(cuMemPoolSetAccess, (pc_cu_mempool pool, const pc_cu_access_t *map, size_t n), ENTER, (void)pool; (void)n;
     fake.access = *map)

static struct block *find_block(pc_cu_deviceptr ptr)
{
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i].ptr == ptr)
            return &blocks[i];
    return NULL;
}

static void add_block(struct pc_cu_pool_st *pool, uint64_t bytes, pc_cu_deviceptr *out)
{
    struct block *block = find_block(0);
    *block = (struct block){.ptr = next_ptr, .bytes = bytes, .pool = pool};
    *out = next_ptr;
    next_ptr += bytes + PC_GIB;
    fake.blocks++;
}

static pc_cu_result fake_cuMemAllocFromPoolAsync(pc_cu_deviceptr *out, size_t bytes, pc_cu_mempool pool, pc_cu_stream s)
{
    (void)s;
    ENTER_BOUND(cuMemAllocFromPoolAsync);
    if (pool->imported)
        return leave(PC_CU_ERROR_INVALID_VALUE);
    if (bytes > pool->max - pool->used) {
        fake.reserved += pool->max - pool->reserved; /* as the driver: a refusal grows RESERVED up to the cap */
        pool->reserved = pool->max;
        return leave(PC_CU_ERROR_OUT_OF_MEMORY);
    }
    add_block(pool, bytes, out);
    pool->used += bytes;
    fake.used += bytes;
    if (fake.used > fake.used_high)
        fake.used_high = fake.used;
    if (pool->used > pool->reserved) {
        fake.reserved += pool->used - pool->reserved;
        pool->reserved = pool->used;
    }
    return leave(PC_CU_SUCCESS);
}

static pc_cu_result drop_block(pc_cu_deviceptr ptr)
{
    struct block *block = ptr != 0 ? find_block(ptr) : NULL;
    if (block == NULL)
        return PC_CU_ERROR_INVALID_VALUE;
    if (block->pool != NULL) {
        block->pool->used -= block->bytes;
        fake.used -= block->bytes;
    }
    *block = (struct block){0};
    DROP(fake.blocks);
    return PC_CU_SUCCESS;
}

static pc_cu_result fake_cuMemFreeAsync(pc_cu_deviceptr ptr, pc_cu_stream s)
{
    (void)s;
    ENTER_BOUND(cuMemFreeAsync);
    return leave(drop_block(ptr));
}

/* --- export and import. An fd is one of /dev/null, without close-on-exec: setting that is the caller's --- */

static pc_cu_result make_fd(void *out)
{
    int fd = open("/dev/null", O_RDONLY);
    if (fd < 0)
        return PC_CU_ERROR_OPERATING_SYSTEM;
    memcpy(out, &fd, sizeof fd);
    return PC_CU_SUCCESS;
}

static bool is_fd(void *handle)
{
    return fcntl((int)(uintptr_t)handle, F_GETFD) >= 0;
}

static pc_cu_result fake_cuMemPoolExportToShareableHandle(void *out, pc_cu_mempool pool, pc_cu_handle_type type,
                                                          unsigned long long flags)
{
    (void)pool;
    ENTER(cuMemPoolExportToShareableHandle);
    if (type != PC_CU_MEM_HANDLE_TYPE_POSIX_FD || flags != 0)
        return leave(PC_CU_ERROR_INVALID_VALUE);
    fake.pool_exported = true;
    return leave(make_fd(out));
}

static pc_cu_result fake_cuMemPoolImportFromShareableHandle(pc_cu_mempool *out, void *handle, pc_cu_handle_type type,
                                                            unsigned long long flags)
{
    ENTER(cuMemPoolImportFromShareableHandle);
    if (type != PC_CU_MEM_HANDLE_TYPE_POSIX_FD || flags != 0 || !is_fd(handle))
        return leave(PC_CU_ERROR_INVALID_VALUE);
    *out = calloc(1, sizeof **out);
    (*out)->imported = true;
    fake.imports++;
    return leave(PC_CU_SUCCESS);
}

static pc_cu_result fake_cuMemPoolExportPointer(pc_cu_ptr_export_t *out, pc_cu_deviceptr ptr)
{
    ENTER(cuMemPoolExportPointer);
    if (!fake.pool_exported || find_block(ptr) == NULL)
        return leave(PC_CU_ERROR_INVALID_VALUE);
    memset(out, 0, sizeof *out);
    memcpy(out->bytes, &ptr, sizeof ptr);
    return leave(PC_CU_SUCCESS);
}

FAKE(cuMemPoolImportPointer, (pc_cu_deviceptr * out, pc_cu_mempool pool, pc_cu_ptr_export_t *data), ENTER_BOUND,
     (void)pool;
     (void)data; add_block(NULL, 1, out))

/* --- large memory --- */

FAKE(cuMemCreate, (pc_cu_memhandle * out, size_t n, const pc_cu_alloc_prop_t *prop, unsigned long long flags),
     ENTER_BOUND, (void)n;
     (void)flags; fake.props.handle_types = prop->handle_types; fake.handles++; *out = 0x77)
FAKE(cuMemRelease, (pc_cu_memhandle h), ENTER, (void)h; DROP(fake.handles))

static pc_cu_result fake_cuMemExportToShareableHandle(void *out, pc_cu_memhandle h, pc_cu_handle_type type,
                                                      unsigned long long flags)
{
    ENTER(cuMemExportToShareableHandle);
    if (h != 0x77 || type != PC_CU_MEM_HANDLE_TYPE_POSIX_FD || flags != 0)
        return leave(PC_CU_ERROR_INVALID_VALUE);
    return leave(make_fd(out));
}

static pc_cu_result fake_cuMemImportFromShareableHandle(pc_cu_memhandle *out, void *handle, pc_cu_handle_type type)
{
    ENTER(cuMemImportFromShareableHandle);
    if (type != PC_CU_MEM_HANDLE_TYPE_POSIX_FD || !is_fd(handle))
        return leave(PC_CU_ERROR_INVALID_VALUE);
    fake.handles++;
    *out = 0x77;
    return leave(PC_CU_SUCCESS);
}

FAKE(cuMemAddressReserve,
     (pc_cu_deviceptr * out, size_t n, size_t align, pc_cu_deviceptr hint, unsigned long long flags), ENTER, (void)n;
     (void)align; (void)hint; (void)flags; fake.ranges++; *out = 0x70000000)
FAKE(cuMemAddressFree, (pc_cu_deviceptr p, size_t n), ENTER, (void)p; (void)n; DROP(fake.ranges))
FAKE(cuMemMap, (pc_cu_deviceptr p, size_t n, size_t offset, pc_cu_memhandle h, unsigned long long flags), ENTER,
     (void)p;
     (void)n; (void)offset; (void)h; (void)flags; fake.mappings++)
FAKE(cuMemUnmap, (pc_cu_deviceptr p, size_t n), ENTER, (void)p; (void)n; DROP(fake.mappings))
FAKE(cuMemSetAccess, (pc_cu_deviceptr p, size_t n, const pc_cu_access_t *desc, size_t count), ENTER, (void)p; (void)n;
     (void)count; fake.access = *desc)
FAKE(cuMemGetAllocationGranularity, (size_t * out, const pc_cu_alloc_prop_t *prop, pc_cu_granularity option), ENTER,
     (void)prop;
     (void)option; *out = GRANULARITY)

/* --- managed memory --- */

FAKE(cuMemAllocManaged, (pc_cu_deviceptr * out, size_t n, unsigned flags), ENTER_BOUND,
     if (flags != PC_CU_MEM_ATTACH_GLOBAL) return leave(PC_CU_ERROR_INVALID_VALUE);
     fake.managed++; add_block(NULL, n, out))

static pc_cu_result fake_cuMemFree(pc_cu_deviceptr ptr)
{
    ENTER_BOUND(cuMemFree);
    r = drop_block(ptr);
    if (r == PC_CU_SUCCESS)
        DROP(fake.managed);
    return leave(r);
}

FAKE(cuMemPrefetchAsync, (pc_cu_deviceptr p, size_t n, pc_cu_location_t where, unsigned flags, pc_cu_stream s),
     ENTER_BOUND, (void)p;
     (void)n; (void)flags; (void)s; fake.location = where)
FAKE(cuMemAdvise, (pc_cu_deviceptr p, size_t n, pc_cu_advice advice, pc_cu_location_t where), ENTER_BOUND, (void)p;
     (void)n; fake.advice = advice; fake.location = where)

/* --- the test's side --- */

#define SET(name) table.name = fake_##name

static void fill_table(void)
{
    memset(&table, 0, sizeof table);
    SET(cuInit), SET(cuDriverGetVersion), SET(cuGetErrorName), SET(cuGetErrorString);
    SET(cuDeviceGetCount), SET(cuDeviceGet), SET(cuDeviceGetName), SET(cuDeviceGetUuid), SET(cuDeviceTotalMem);
    SET(cuDeviceGetAttribute), SET(cuDevicePrimaryCtxRetain), SET(cuDevicePrimaryCtxRelease), SET(cuCtxSetCurrent);
    SET(cuStreamCreate), SET(cuStreamDestroy), SET(cuStreamSynchronize), SET(cuMemsetD8Async);
    SET(cuMemPoolCreate), SET(cuMemPoolDestroy), SET(cuMemPoolSetAttribute), SET(cuMemPoolGetAttribute);
    SET(cuMemPoolSetAccess), SET(cuMemAllocFromPoolAsync), SET(cuMemFreeAsync);
    SET(cuMemPoolExportToShareableHandle), SET(cuMemPoolImportFromShareableHandle);
    SET(cuMemPoolExportPointer), SET(cuMemPoolImportPointer);
    SET(cuMemCreate), SET(cuMemRelease), SET(cuMemExportToShareableHandle), SET(cuMemImportFromShareableHandle);
    SET(cuMemAddressReserve), SET(cuMemAddressFree), SET(cuMemMap), SET(cuMemUnmap), SET(cuMemSetAccess);
    SET(cuMemGetAllocationGranularity);
    SET(cuMemAllocManaged), SET(cuMemFree), SET(cuMemPrefetchAsync), SET(cuMemAdvise);
}

const struct pc_cuda *fake_reset(void)
{
    memset(&fake, 0, sizeof fake);
    memset(blocks, 0, sizeof blocks);
    fake.version = 13000;
    fake.gpus = FAKE_GPUS;
    fake.pools_supported = true;
    fake.concurrent_managed = true;
    fake.fail_fn = -1;
    next_ptr = 0x7f0000000000;
    current = NULL;
    traced = 0;
    fill_table();
    return &table;
}

void fake_fail(int fn, int nth, pc_cu_result code)
{
    fake.fail_fn = fn;
    fake.fail_at = nth;
    fake.fail_code = code;
}

bool fake_failed(void)
{
    return fake.fail_at < 0;
}

void fake_trace_start(void)
{
    traced = 0;
}

const char *fake_trace(void)
{
    static char text[FAKE_TRACE * 40];
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < traced; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", i > 0 ? " " : "", fn_names[trace[i]]);
    return text;
}

int fake_alive(void)
{
    return fake.pools + fake.streams + fake.blocks + fake.handles + fake.ranges + fake.mappings + fake.imports;
}
