/* Init, errors, devices and contexts. */
#include "tests/sim/sim_cuda.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { STACK = 16 };
static __thread struct pc_cu_ctx_st *stack[STACK];
static __thread int depth; /* 0: no context; stack[depth - 1] is current */

static void after_fork_child(void)
{
    if (sim.initialised)
        __atomic_store_n(&sim.forked, true, __ATOMIC_RELEASE);
}

/* Under sim_lock. */
static pc_cu_result init(void)
{
    struct sim_book *book = sim_book_open();
    if (book == NULL || book->gpus == 0)
        return PC_CU_ERROR_NO_DEVICE;
    sim.self = sim_proc_register();
    if (sim.self == NULL || pthread_atfork(NULL, NULL, after_fork_child) != 0)
        return PC_CU_ERROR_OPERATING_SYSTEM;
    for (unsigned int i = 0; i < SIM_GPUS; i++)
        sim.contexts[i].gpu = i;
    __atomic_store_n(&sim.initialised, true, __ATOMIC_RELEASE);
    return PC_CU_SUCCESS;
}

pc_cu_result cuInit(unsigned int flags)
{
    if (__atomic_load_n(&sim.forked, __ATOMIC_ACQUIRE))
        return PC_CU_ERROR_NOT_INITIALIZED;
    pc_cu_result code = sim_inject(SIM_cuInit);
    if (code != PC_CU_SUCCESS)
        return code;
    if (flags != 0)
        return PC_CU_ERROR_INVALID_VALUE;
    SIM_GUARD;
    return sim.initialised ? PC_CU_SUCCESS : init();
}

pc_cu_result cuDriverGetVersion(int *version)
{
    pc_cu_result code = sim_inject(SIM_cuDriverGetVersion);
    if (code != PC_CU_SUCCESS)
        return code;
    if (version == NULL)
        return PC_CU_ERROR_INVALID_VALUE;
    *version = 13000;
    return PC_CU_SUCCESS;
}

static const struct {
    pc_cu_result code;
    const char *name, *text;
} errors[] = {
    {PC_CU_SUCCESS, "CUDA_SUCCESS", "no error"},
    {PC_CU_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {PC_CU_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {PC_CU_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {PC_CU_ERROR_DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {PC_CU_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no simulated GPU: POOLCAP_SIM_DIR is not set or not usable"},
    {PC_CU_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "no such device"},
    {PC_CU_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "no context is current, or it is gone"},
    {PC_CU_ERROR_ALREADY_MAPPED, "CUDA_ERROR_ALREADY_MAPPED", "already mapped"},
    {PC_CU_ERROR_OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM", "a system call failed"},
    {PC_CU_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid handle"},
    {PC_CU_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "not found"},
    {PC_CU_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "not ready"},
    {PC_CU_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "illegal address"},
    {PC_CU_ERROR_LAUNCH_TIMEOUT, "CUDA_ERROR_LAUNCH_TIMEOUT", "launch timed out"},
    {PC_CU_ERROR_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {PC_CU_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "launch failed"},
    {PC_CU_ERROR_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "not permitted"},
    {PC_CU_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "not supported"},
    {PC_CU_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "not permitted while capturing"},
    {PC_CU_ERROR_STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "the capture was spoilt"},
    {PC_CU_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

pc_cu_result cuGetErrorName(pc_cu_result error, const char **name)
{
    for (size_t i = 0; i < PC_ARRAY_LEN(errors); i++) {
        if (errors[i].code == error) {
            *name = errors[i].name;
            return PC_CU_SUCCESS;
        }
    }
    *name = NULL;
    return PC_CU_ERROR_INVALID_VALUE;
}

pc_cu_result cuGetErrorString(pc_cu_result error, const char **text)
{
    for (size_t i = 0; i < PC_ARRAY_LEN(errors); i++) {
        if (errors[i].code == error) {
            *text = errors[i].text;
            return PC_CU_SUCCESS;
        }
    }
    *text = NULL;
    return PC_CU_ERROR_INVALID_VALUE;
}

/* --- devices --- */

static const struct sim_book *the_book(void)
{
    SIM_GUARD;
    return sim_book_open(); /* what is read of it without its lock never changes */
}

static bool is_device(pc_cu_device device)
{
    return device >= 0 && device < (int)the_book()->gpus;
}

pc_cu_result cuDeviceGetCount(int *count)
{
    SIM_CALL(cuDeviceGetCount);
    if (count == NULL)
        return PC_CU_ERROR_INVALID_VALUE;
    *count = (int)the_book()->gpus;
    return PC_CU_SUCCESS;
}

pc_cu_result cuDeviceGet(pc_cu_device *device, int ordinal)
{
    SIM_CALL(cuDeviceGet);
    if (device == NULL)
        return PC_CU_ERROR_INVALID_VALUE;
    if (!is_device(ordinal))
        return PC_CU_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return PC_CU_SUCCESS;
}

pc_cu_result cuDeviceGetName(char *name, int len, pc_cu_device device)
{
    SIM_CALL(cuDeviceGetName);
    if (!is_device(device))
        return PC_CU_ERROR_INVALID_DEVICE;
    if (name == NULL || len <= 0)
        return PC_CU_ERROR_INVALID_VALUE;
    snprintf(name, (size_t)len, "Simulated GPU");
    return PC_CU_SUCCESS;
}

pc_cu_result cuDeviceGetUuid_v2(pc_cu_uuid_t *uuid, pc_cu_device device)
{
    SIM_CALL(cuDeviceGetUuid);
    if (!is_device(device))
        return PC_CU_ERROR_INVALID_DEVICE;
    if (uuid == NULL)
        return PC_CU_ERROR_INVALID_VALUE;
    memset(uuid, 0, sizeof *uuid);
    memcpy(uuid->bytes, the_book()->seed, sizeof the_book()->seed);
    uuid->bytes[15] = (char)device;
    return PC_CU_SUCCESS;
}

pc_cu_result cuDeviceGetAttribute(int *value, pc_cu_device_attribute attribute, pc_cu_device device)
{
    SIM_CALL(cuDeviceGetAttribute);
    if (!is_device(device))
        return PC_CU_ERROR_INVALID_DEVICE;
    if (value == NULL)
        return PC_CU_ERROR_INVALID_VALUE;
    switch (attribute) {
    case PC_CU_DEVICE_COMPUTE_CAPABILITY_MAJOR:
        *value = 9;
        return PC_CU_SUCCESS;
    case PC_CU_DEVICE_COMPUTE_CAPABILITY_MINOR:
        *value = 0;
        return PC_CU_SUCCESS;
    case PC_CU_DEVICE_CONCURRENT_MANAGED_ACCESS:
        *value = sim_concurrent_managed();
        return PC_CU_SUCCESS;
    case PC_CU_DEVICE_MEMORY_POOLS_SUPPORTED:
        *value = 1;
        return PC_CU_SUCCESS;
    case PC_CU_DEVICE_MEMPOOL_SUPPORTED_HANDLE_TYPES:
        *value = PC_CU_MEM_HANDLE_TYPE_POSIX_FD;
        return PC_CU_SUCCESS;
    default:
        return PC_CU_ERROR_INVALID_VALUE;
    }
}

pc_cu_result cuDeviceTotalMem_v2(size_t *bytes, pc_cu_device device)
{
    SIM_CALL(cuDeviceTotalMem);
    if (!is_device(device))
        return PC_CU_ERROR_INVALID_DEVICE;
    if (bytes == NULL)
        return PC_CU_ERROR_INVALID_VALUE;
    *bytes = the_book()->memory - the_book()->reserved;
    return PC_CU_SUCCESS;
}

/* --- contexts --- */

struct pc_cu_ctx_st *sim_current(void)
{
    struct pc_cu_ctx_st *ctx = depth > 0 ? stack[depth - 1] : NULL;
    return ctx != NULL && __atomic_load_n(&ctx->retained, __ATOMIC_ACQUIRE) > 0 ? ctx : NULL;
}

static bool is_context(pc_cu_context ctx)
{
    return ctx >= sim.contexts && ctx < sim.contexts + SIM_GPUS && ctx->retained > 0;
}

static pc_cu_result make_context(struct pc_cu_ctx_st *ctx)
{
    SIM_BOOK_GUARD(book);
    if (sim_free(book, ctx->gpu) < book->context)
        return PC_CU_ERROR_OUT_OF_MEMORY;
    SIM_STORE(sim.self->context[ctx->gpu], book->context);
    ctx->id = ++sim.last_id;
    ctx->legacy_id = ++sim.last_id;
    return PC_CU_SUCCESS;
}

pc_cu_result cuDevicePrimaryCtxRetain(pc_cu_context *ctx, pc_cu_device device)
{
    SIM_CALL(cuDevicePrimaryCtxRetain);
    if (!is_device(device))
        return PC_CU_ERROR_INVALID_DEVICE;
    if (ctx == NULL)
        return PC_CU_ERROR_INVALID_VALUE;
    SIM_GUARD;
    struct pc_cu_ctx_st *primary = &sim.contexts[device];
    pc_cu_result code = primary->retained == 0 ? make_context(primary) : PC_CU_SUCCESS;
    if (code != PC_CU_SUCCESS)
        return code;
    SIM_STORE(primary->retained, primary->retained + 1);
    *ctx = primary;
    return PC_CU_SUCCESS;
}

pc_cu_result cuDevicePrimaryCtxRelease_v2(pc_cu_device device)
{
    SIM_CALL(cuDevicePrimaryCtxRelease);
    if (!is_device(device))
        return PC_CU_ERROR_INVALID_DEVICE;
    SIM_GUARD;
    struct pc_cu_ctx_st *primary = &sim.contexts[device];
    if (primary->retained == 0)
        return PC_CU_ERROR_INVALID_CONTEXT;
    SIM_STORE(primary->retained, primary->retained - 1);
    if (primary->retained > 0)
        return PC_CU_SUCCESS;
    direct_drop(primary->gpu);
    SIM_BOOK_GUARD(book);
    (void)book;
    SIM_STORE(sim.self->context[primary->gpu], 0);
    return PC_CU_SUCCESS;
}

pc_cu_result cuCtxSetCurrent(pc_cu_context ctx)
{
    SIM_CALL(cuCtxSetCurrent);
    SIM_GUARD;
    if (ctx == NULL) {
        depth -= depth > 0;
        return PC_CU_SUCCESS;
    }
    if (!is_context(ctx))
        return PC_CU_ERROR_INVALID_CONTEXT;
    depth += depth == 0;
    stack[depth - 1] = ctx;
    return PC_CU_SUCCESS;
}

pc_cu_result cuCtxGetCurrent(pc_cu_context *ctx)
{
    SIM_CALL(cuCtxGetCurrent);
    if (ctx == NULL)
        return PC_CU_ERROR_INVALID_VALUE;
    *ctx = depth > 0 ? stack[depth - 1] : NULL;
    return PC_CU_SUCCESS;
}

pc_cu_result cuCtxPushCurrent_v2(pc_cu_context ctx)
{
    SIM_CALL(cuCtxPushCurrent);
    SIM_GUARD;
    if (!is_context(ctx) || depth == STACK)
        return PC_CU_ERROR_INVALID_CONTEXT;
    stack[depth++] = ctx;
    return PC_CU_SUCCESS;
}

pc_cu_result cuCtxPopCurrent_v2(pc_cu_context *ctx)
{
    SIM_CALL(cuCtxPopCurrent);
    if (depth == 0)
        return PC_CU_ERROR_INVALID_CONTEXT;
    depth--;
    if (ctx != NULL)
        *ctx = stack[depth];
    return PC_CU_SUCCESS;
}

pc_cu_result cuCtxGetDevice(pc_cu_device *device)
{
    SIM_CALL(cuCtxGetDevice);
    struct pc_cu_ctx_st *ctx = sim_current();
    if (ctx == NULL)
        return PC_CU_ERROR_INVALID_CONTEXT;
    if (device == NULL)
        return PC_CU_ERROR_INVALID_VALUE;
    *device = (int)ctx->gpu;
    return PC_CU_SUCCESS;
}

pc_cu_result cuCtxGetId(pc_cu_context ctx, unsigned long long *id)
{
    SIM_CALL(cuCtxGetId);
    SIM_GUARD;
    ctx = ctx != NULL ? ctx : sim_current();
    if (ctx == NULL || !is_context(ctx))
        return PC_CU_ERROR_INVALID_CONTEXT;
    if (id == NULL)
        return PC_CU_ERROR_INVALID_VALUE;
    *id = ctx->id;
    return PC_CU_SUCCESS;
}
