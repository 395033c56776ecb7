/* What actors can do. Each op is a few driver calls; the names and arguments are in conformance.h. */
#include "tests/conformance/conformance.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SAMPLE = 1 << 20 };

/* Every CUDA op begins so: the context, and the answer's code when that fails. */
#define CONTEXT(a)                      \
    do {                                \
        (a)->code = cuda_ready();       \
        if ((a)->code != PC_CU_SUCCESS) \
            return;                     \
    } while (0)

#define POOL(n) ((pc_cu_mempool)(uintptr_t)(n))

static pc_cu_result synchronised(pc_cu_result code)
{
    return code == PC_CU_SUCCESS ? cu.cuStreamSynchronize(actor_stream) : code;
}

void begin(const struct question *q, struct answer *a)
{
    (void)q;
    CONTEXT(a);
    a->value[0] = (uint64_t)getpid();
}

/* --- pools --- */

void pool_create(const struct question *q, struct answer *a)
{
    CONTEXT(a);
    struct pc_cu_pool_props props = {
        .alloc_type = PC_CU_MEM_ALLOCATION_TYPE_PINNED,
        .handle_types = q->arg[1] != 0 ? PC_CU_MEM_HANDLE_TYPE_POSIX_FD : PC_CU_MEM_HANDLE_TYPE_NONE,
        .location = {PC_CU_MEM_LOCATION_TYPE_DEVICE, actor_gpu},
        .max_size = q->arg[0],
    };
    uint64_t threshold = q->arg[2];
    pc_cu_mempool pool;
    a->code = cu.cuMemPoolCreate(&pool, &props);
    if (a->code == PC_CU_SUCCESS)
        a->code = cu.cuMemPoolSetAttribute(pool, PC_CU_MEMPOOL_RELEASE_THRESHOLD, &threshold);
    a->value[0] = (uintptr_t)pool;
}

void pool_destroy(const struct question *q, struct answer *a)
{
    a->code = cu.cuMemPoolDestroy(POOL(q->arg[0]));
}

void pool_alloc(const struct question *q, struct answer *a)
{
    pc_cu_deviceptr ptr = 0;
    a->code = cu.cuMemAllocFromPoolAsync(&ptr, q->arg[1], POOL(q->arg[0]), actor_stream);
    a->code = synchronised(a->code);
    a->value[0] = ptr;
}

void mem_free(const struct question *q, struct answer *a)
{
    a->code = cu.cuMemFree(q->arg[0]);
}

void mem_free_async(const struct question *q, struct answer *a)
{
    a->code = synchronised(cu.cuMemFreeAsync(q->arg[0], actor_stream));
}

void pool_get(const struct question *q, struct answer *a)
{
    a->code = cu.cuMemPoolGetAttribute(POOL(q->arg[0]), (pc_cu_mempool_attribute)q->arg[1], &a->value[0]);
}

void pool_set(const struct question *q, struct answer *a)
{
    uint64_t value = q->arg[2];
    a->code = cu.cuMemPoolSetAttribute(POOL(q->arg[0]), (pc_cu_mempool_attribute)q->arg[1], &value);
}

void pool_trim(const struct question *q, struct answer *a)
{
    a->code = cu.cuMemPoolTrimTo(POOL(q->arg[0]), q->arg[1]);
}

void pool_export(const struct question *q, struct answer *a)
{
    a->code = cu.cuMemPoolExportToShareableHandle(&a->fd, POOL(q->arg[0]), PC_CU_MEM_HANDLE_TYPE_POSIX_FD, 0);
}

void pool_import(const struct question *q, struct answer *a)
{
    CONTEXT(a);
    pc_cu_mempool pool = NULL;
    a->code = cu.cuMemPoolImportFromShareableHandle(&pool, (void *)(uintptr_t)q->fd, PC_CU_MEM_HANDLE_TYPE_POSIX_FD, 0);
    a->value[0] = (uintptr_t)pool;
}

void pool_access(const struct question *q, struct answer *a)
{
    int gpu = q->arg[1] != 0 ? (int)q->arg[1] - 1 : actor_gpu;
    struct pc_cu_access access = {{PC_CU_MEM_LOCATION_TYPE_DEVICE, gpu}, PC_CU_MEM_ACCESS_READWRITE};
    a->code = cu.cuMemPoolSetAccess(POOL(q->arg[0]), &access, 1);
}

void export_pointer(const struct question *q, struct answer *a)
{
    a->code = cu.cuMemPoolExportPointer(&a->data, q->arg[0]);
}

void import_pointer(const struct question *q, struct answer *a)
{
    struct pc_cu_ptr_export data = q->data;
    pc_cu_deviceptr ptr = 0;
    a->code = cu.cuMemPoolImportPointer(&ptr, POOL(q->arg[0]), &data);
    a->value[0] = ptr;
}

/* --- bytes --- */

void write_number(const struct question *q, struct answer *a)
{
    /* A small copy from pageable memory returns before it is on the card: another process would read the old bytes. */
    a->code = cu.cuMemcpyHtoD(q->arg[0], &q->arg[1], sizeof q->arg[1]);
    if (a->code == PC_CU_SUCCESS)
        a->code = cu.cuCtxSynchronize();
}

void read_number(const struct question *q, struct answer *a)
{
    a->code = cu.cuMemcpyDtoH(&a->value[0], q->arg[0], sizeof a->value[0]);
}

void fill(const struct question *q, struct answer *a)
{
    a->code = synchronised(cu.cuMemsetD8Async(q->arg[0], (unsigned char)q->arg[2], q->arg[1], actor_stream));
}

void count_bytes(const struct question *q, struct answer *a)
{
    static unsigned char buf[SAMPLE];
    for (uint64_t done = 0; a->code == PC_CU_SUCCESS && done < q->arg[1];) {
        uint64_t n = q->arg[1] - done < SAMPLE ? q->arg[1] - done : SAMPLE;
        a->code = cu.cuMemcpyDtoH(buf, q->arg[0] + done, n);
        for (uint64_t i = 0; i < n; i++)
            a->value[0] += buf[i] == (unsigned char)q->arg[2];
        done += n;
    }
}

void direct_alloc(const struct question *q, struct answer *a)
{
    CONTEXT(a);
    pc_cu_deviceptr ptr = 0;
    a->code = cu.cuMemAlloc(&ptr, q->arg[0]);
    a->value[0] = ptr;
}

void async_alloc(const struct question *q, struct answer *a)
{
    CONTEXT(a);
    pc_cu_deviceptr ptr = 0;
    a->code = synchronised(cu.cuMemAllocAsync(&ptr, q->arg[0], actor_stream));
    a->value[0] = ptr;
}

void mem_info(const struct question *q, struct answer *a)
{
    (void)q;
    CONTEXT(a);
    size_t left = 0, total = 0;
    a->code = cu.cuMemGetInfo(&left, &total);
    a->value[0] = left;
    a->value[1] = total;
}

/* --- large memory --- */

void large_create(const struct question *q, struct answer *a)
{
    CONTEXT(a);
    struct pc_cu_alloc_prop prop = {
        .type = PC_CU_MEM_ALLOCATION_TYPE_PINNED,
        .handle_types = PC_CU_MEM_HANDLE_TYPE_POSIX_FD,
        .location = {PC_CU_MEM_LOCATION_TYPE_DEVICE, actor_gpu},
    };
    pc_cu_memhandle handle = 0;
    a->code = cu.cuMemCreate(&handle, q->arg[0], &prop, 0);
    a->value[0] = handle;
}

void large_export(const struct question *q, struct answer *a)
{
    a->code = cu.cuMemExportToShareableHandle(&a->fd, q->arg[0], PC_CU_MEM_HANDLE_TYPE_POSIX_FD, 0);
}

void large_import(const struct question *q, struct answer *a)
{
    CONTEXT(a);
    pc_cu_memhandle handle = 0;
    a->code = cu.cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)q->fd, PC_CU_MEM_HANDLE_TYPE_POSIX_FD);
    a->value[0] = handle;
}

void large_release(const struct question *q, struct answer *a)
{
    a->code = cu.cuMemRelease(q->arg[0]);
}

void address_reserve(const struct question *q, struct answer *a)
{
    CONTEXT(a);
    pc_cu_deviceptr ptr = 0;
    a->code = cu.cuMemAddressReserve(&ptr, q->arg[0], 0, 0, 0);
    a->value[0] = ptr;
}

void address_free(const struct question *q, struct answer *a)
{
    a->code = cu.cuMemAddressFree(q->arg[0], q->arg[1]);
}

void large_map(const struct question *q, struct answer *a)
{
    struct pc_cu_access access = {{PC_CU_MEM_LOCATION_TYPE_DEVICE, actor_gpu}, PC_CU_MEM_ACCESS_READWRITE};
    a->code = cu.cuMemMap(q->arg[0], q->arg[1], 0, q->arg[2], 0);
    if (a->code == PC_CU_SUCCESS)
        a->code = cu.cuMemSetAccess(q->arg[0], q->arg[1], &access, 1);
}

void large_unmap(const struct question *q, struct answer *a)
{
    a->code = cu.cuMemUnmap(q->arg[0], q->arg[1]);
}

/* --- questions --- */

void pointer_get(const struct question *q, struct answer *a)
{
    a->code = cu.cuPointerGetAttribute(&a->value[0], (pc_cu_pointer_attribute)q->arg[1], q->arg[0]);
}

void address_range(const struct question *q, struct answer *a)
{
    pc_cu_deviceptr base = 0;
    size_t size = 0;
    a->code = cu.cuMemGetAddressRange(&base, &size, q->arg[0]);
    a->value[0] = base;
    a->value[1] = size;
}

void fork_sleeper(const struct question *q, struct answer *a)
{
    (void)q;
    pid_t pid = fork();
    if (pid == 0) {
        for (;;)
            pause();
    }
    a->value[0] = (uint64_t)pid;
}

/* --- capture --- */

void capture_begin(const struct question *q, struct answer *a)
{
    a->code = cu.cuStreamBeginCapture(actor_stream, (pc_cu_capture_mode)q->arg[0]);
}

void capture_status(const struct question *q, struct answer *a)
{
    (void)q;
    pc_cu_capture_status status = 0;
    a->code = cu.cuStreamIsCapturing(actor_stream, &status);
    a->value[0] = status;
}

void capture_end(const struct question *q, struct answer *a)
{
    (void)q;
    pc_cu_graph graph = NULL;
    a->code = cu.cuStreamEndCapture(actor_stream, &graph);
    a->value[0] = (uintptr_t)graph;
}

/* --- kernels --- */

static const char ptx[] = ".version 7.0\n"
                          ".target sm_50\n"
                          ".address_size 64\n"
                          ".visible .entry writer(.param .u64 where, .param .u64 words)\n"
                          "{\n"
                          "  .reg .pred %p;\n"
                          "  .reg .u32 %i, %n, %t;\n"
                          "  .reg .u64 %base, %words, %at, %a, %step;\n"
                          "  ld.param.u64 %base, [where];\n"
                          "  ld.param.u64 %words, [words];\n"
                          "  mov.u32 %i, %ctaid.x;\n"
                          "  mov.u32 %n, %ntid.x;\n"
                          "  mov.u32 %t, %tid.x;\n"
                          "  mad.lo.u32 %i, %i, %n, %t;\n"
                          "  mov.u32 %t, %nctaid.x;\n"
                          "  mul.lo.u32 %n, %n, %t;\n"
                          "  cvt.u64.u32 %step, %n;\n"
                          "again:\n"
                          "  cvt.u64.u32 %at, %i;\n"
                          "next:\n"
                          "  setp.ge.u64 %p, %at, %words;\n"
                          "  @%p bra again;\n"
                          "  shl.b64 %a, %at, 2;\n"
                          "  add.u64 %a, %base, %a;\n"
                          "  st.global.cg.u32 [%a], 0xa5a5a5a5;\n"
                          "  add.u64 %at, %at, %step;\n"
                          "  bra next;\n"
                          "}\n"
                          ".visible .entry touch(.param .u64 where)\n"
                          "{\n"
                          "  .reg .u64 %a;\n"
                          "  ld.param.u64 %a, [where];\n"
                          "  st.global.u32 [%a], 77;\n"
                          "  ret;\n"
                          "}\n";

static pc_cu_result find_kernel(const char *name, pc_cu_function *out)
{
    if (cu.cuModuleLoadData == NULL || cu.cuModuleGetFunction == NULL || cu.cuLaunchKernel == NULL)
        return PC_CU_ERROR_NOT_SUPPORTED;
    pc_cu_module module;
    pc_cu_result code = cuda_ready();
    if (code == PC_CU_SUCCESS)
        code = cu.cuModuleLoadData(&module, ptx);
    return code == PC_CU_SUCCESS ? cu.cuModuleGetFunction(out, module, name) : code;
}

void start_writer(const struct question *q, struct answer *a)
{
    pc_cu_function f;
    uint64_t where = q->arg[0], words = q->arg[1] / 4;
    void *params[] = {&where, &words};
    a->code = find_kernel("writer", &f);
    if (a->code == PC_CU_SUCCESS)
        a->code = cu.cuLaunchKernel(f, 32, 1, 1, 256, 1, 1, 0, actor_stream, params, NULL);
}

void touch_kernel(const struct question *q, struct answer *a)
{
    pc_cu_function f;
    uint64_t where = q->arg[0];
    void *params[] = {&where};
    a->code = find_kernel("touch", &f);
    if (a->code == PC_CU_SUCCESS)
        a->code = cu.cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, actor_stream, params, NULL);
    a->code = synchronised(a->code);
}

/* --- NVML: codes are NVML's; 0 is success there too --- */

/* The device with the UUID that CUDA would give the actor's GPU is asked for by index, the order of a bus id list. */
static pc_nvml_device device(struct answer *a)
{
    static bool ready;
    pc_nvml_device found = NULL;
    if (!ready)
        a->code = nvml.nvmlInit();
    ready = a->code == PC_NVML_SUCCESS;
    if (ready)
        a->code = nvml.nvmlDeviceGetHandleByIndex((unsigned int)actor_gpu, &found);
    return found;
}

void card_memory(const struct question *q, struct answer *a)
{
    (void)q;
    struct pc_nvml_memory memory = {.version = PC_NVML_MEMORY_VERSION};
    pc_nvml_device found = device(a);
    if (a->code == PC_NVML_SUCCESS)
        a->code = nvml.nvmlDeviceGetMemoryInfo(found, &memory);
    a->value[0] = memory.total;
    a->value[1] = memory.reserved;
    a->value[2] = memory.used;
    a->value[3] = memory.free;
}

void process_used(const struct question *q, struct answer *a)
{
    static struct pc_nvml_process list[256];
    unsigned int n = PC_ARRAY_LEN(list);
    pc_nvml_device found = device(a);
    if (a->code == PC_NVML_SUCCESS)
        a->code = nvml.nvmlDeviceGetComputeRunningProcesses(found, &n, list);
    for (unsigned int i = 0; a->code == PC_NVML_SUCCESS && i < n; i++) {
        if (list[i].pid == q->arg[0]) {
            a->value[0] = 1;
            a->value[1] += list[i].used;
        }
        a->value[2] += list[i].used;
    }
}

void uuid_nvml(const struct question *q, struct answer *a)
{
    (void)q;
    char text[96] = "";
    pc_nvml_device found = device(a);
    if (a->code == PC_NVML_SUCCESS)
        a->code = nvml.nvmlDeviceGetUUID(found, text, sizeof text);
    memcpy(a->data.bytes, text, sizeof a->data.bytes);
}

void uuid_cuda(const struct question *q, struct answer *a)
{
    (void)q;
    struct pc_cu_uuid uuid;
    char text[PC_UUID_TEXT] = "";
    CONTEXT(a);
    a->code = cu.cuDeviceGetUuid(&uuid, actor_gpu);
    pc_uuid_format(&uuid, text);
    memcpy(a->data.bytes, text, sizeof text);
}
