/* Pointer attributes, capture, streams, managed memory, two GPUs. */
#include "tests/conformance/conformance.h"

#include <unistd.h>

#define BLOCK (64 * PC_MIB)

static uint64_t attribute(struct actor *actor, uint64_t ptr, unsigned int which)
{
    return NEED(actor, pointer_get, ptr, which).value[0];
}

static void trap_11_what_imports_are(void)
{
    struct scene s = scene_open(256 * PC_MIB);
    struct answer block = scene_export(&s, BLOCK);
    uint64_t ptr = import_into(&s.tenant, s.imported, block.data);
    struct answer range = NEED(&s.tenant, address_range, ptr + 4096);
    EXPECT(range.value[0] == ptr && range.value[1] == BLOCK);
    EXPECT(attribute(&s.tenant, ptr, PC_CU_POINTER_MEMPOOL_HANDLE) == s.imported);
    EXPECT(attribute(&s.tenant, ptr, PC_CU_POINTER_IS_LEGACY_CUDA_IPC_CAPABLE) == 0);
    EXPECT(attribute(&s.tenant, ptr, PC_CU_POINTER_ALLOWED_HANDLE_TYPES) == 0);
    EXPECT(attribute(&s.tenant, ptr, PC_CU_POINTER_IS_GPU_DIRECT_RDMA_CAPABLE) == 0);
}

/* An op: the ways in which memory is handed to others; value[0..2] are the codes. */
static void hand_out(const struct question *q, struct answer *a)
{
    pc_cu_ipc_handle_t ipc;
    pc_cu_memhandle handle;
    int fd = -1;
    a->value[0] = cu.cuIpcGetMemHandle(&ipc, q->arg[0]);
    a->value[1] = cu.cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)q->arg[0]);
    a->value[2] =
        cu.cuMemGetHandleForAddressRange(&fd, q->arg[0], 2 * PC_MIB, PC_CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    if (a->value[2] == PC_CU_SUCCESS)
        close(fd);
}

static void trap_11_imports_cannot_be_handed_on(void)
{
    struct scene s = scene_open(256 * PC_MIB);
    struct answer block = scene_export(&s, BLOCK);
    struct answer a = ASK(&s.tenant, hand_out, import_into(&s.tenant, s.imported, block.data));
    EXPECT(!a.died);
    EXPECT(a.value[0] == PC_CU_ERROR_INVALID_VALUE, "cuIpcGetMemHandle: %llu", (unsigned long long)a.value[0]);
    EXPECT(a.value[1] != PC_CU_SUCCESS);
    EXPECT(a.value[2] != PC_CU_SUCCESS);
}

static void trap_11_direct_memory_can(void)
{
    struct actor tenant = actor_start(0);
    uint64_t ptr = NEED(&tenant, direct_alloc, BLOCK).value[0];
    struct answer a = ASK(&tenant, hand_out, ptr);
    EXPECT(a.value[0] == PC_CU_SUCCESS, "cuIpcGetMemHandle: %llu", (unsigned long long)a.value[0]);
    EXPECT(attribute(&tenant, ptr, PC_CU_POINTER_IS_LEGACY_CUDA_IPC_CAPABLE) == 1);
    struct answer pool = ASK(&tenant, pointer_get, ptr, PC_CU_POINTER_MEMPOOL_HANDLE);
    EXPECT(refused(pool) || pool.value[0] == 0);
    if (a.value[2] != PC_CU_SUCCESS)
        note("no dma-buf of cuMemAlloc memory here: code %llu", (unsigned long long)a.value[2]);
}

static void trap_18_pooled_memory_has_no_context(void)
{
    struct scene s = scene_open(256 * PC_MIB);
    struct answer block = scene_export(&s, BLOCK);
    uint64_t ptr = import_into(&s.tenant, s.imported, block.data);
    EXPECT(attribute(&s.tenant, ptr, PC_CU_POINTER_CONTEXT) == 0);
    EXPECT((attribute(&s.tenant, ptr, PC_CU_POINTER_IS_MANAGED) & 0xffffffff) == 0);
    uint64_t async = NEED(&s.tenant, async_alloc, BLOCK).value[0];
    EXPECT(attribute(&s.tenant, async, PC_CU_POINTER_CONTEXT) == 0);
    uint64_t direct = NEED(&s.tenant, direct_alloc, BLOCK).value[0];
    EXPECT(attribute(&s.tenant, direct, PC_CU_POINTER_CONTEXT) != 0);
}

/* --- trap 12: capture --- */

static void expect_spoilt(struct actor *actor)
{
    EXPECT(NEED(actor, capture_status).value[0] == PC_CU_CAPTURE_STATUS_INVALIDATED);
    EXPECT(ASK(actor, capture_end).code == PC_CU_ERROR_STREAM_CAPTURE_INVALIDATED);
    EXPECT(NEED(actor, capture_status).value[0] == PC_CU_CAPTURE_STATUS_NONE);
}

static void trap_12_import_spoils_a_capture(void)
{
    struct scene s = scene_open(256 * PC_MIB);
    struct answer block = scene_export(&s, BLOCK);
    NEED(&s.tenant, capture_begin, PC_CU_CAPTURE_GLOBAL);
    EXPECT(NEED(&s.tenant, capture_status).value[0] == PC_CU_CAPTURE_STATUS_ACTIVE);
    struct answer a = ASK_DATA(&s.tenant, import_pointer, block.data, s.imported);
    EXPECT(a.code == PC_CU_ERROR_STREAM_CAPTURE_UNSUPPORTED, "%u", a.code);
    expect_spoilt(&s.tenant);
    import_into(&s.tenant, s.imported, block.data); /* afterwards it works */
}

static void trap_12_so_does_native_allocation(void)
{
    struct actor tenant = actor_start(0);
    NEED(&tenant, begin);
    NEED(&tenant, capture_begin, PC_CU_CAPTURE_GLOBAL);
    struct answer a = ASK(&tenant, direct_alloc, BLOCK);
    EXPECT(a.code == PC_CU_ERROR_STREAM_CAPTURE_UNSUPPORTED, "%u", a.code);
    expect_spoilt(&tenant);
}

static void trap_12_relaxed_capture_allows_both(void)
{
    struct scene s = scene_open(256 * PC_MIB);
    struct answer block = scene_export(&s, BLOCK);
    NEED(&s.tenant, capture_begin, PC_CU_CAPTURE_RELAXED);
    NEED(&s.tenant, direct_alloc, BLOCK);
    import_into(&s.tenant, s.imported, block.data);
    NEED(&s.tenant, capture_end);
}

static void trap_12_mem_info_is_allowed(void)
{
    struct actor tenant = actor_start(0);
    NEED(&tenant, begin);
    NEED(&tenant, capture_begin, PC_CU_CAPTURE_GLOBAL);
    NEED(&tenant, mem_info);
    EXPECT(NEED(&tenant, capture_status).value[0] == PC_CU_CAPTURE_STATUS_ACTIVE);
    NEED(&tenant, capture_end);
}

/* An op: captures a memset of [address, address + bytes) to the byte, runs the graph twice. value[0]: memset's code. */
static void replay_memset(const struct question *q, struct answer *a)
{
    pc_cu_graph graph = NULL;
    pc_cu_graphexec exec = NULL;
    a->code = cu.cuStreamBeginCapture(actor_stream, PC_CU_CAPTURE_GLOBAL);
    if (a->code == PC_CU_SUCCESS)
        a->value[0] = cu.cuMemsetD8Async(q->arg[0], (unsigned char)q->arg[2], q->arg[1], actor_stream);
    if (a->code == PC_CU_SUCCESS)
        a->code = cu.cuStreamEndCapture(actor_stream, &graph);
    if (a->code == PC_CU_SUCCESS)
        a->code = cu.cuGraphInstantiate(&exec, graph, 0);
    for (int i = 0; i < 2 && a->code == PC_CU_SUCCESS; i++)
        a->code = cu.cuGraphLaunch(exec, actor_stream);
    if (a->code == PC_CU_SUCCESS)
        a->code = cu.cuStreamSynchronize(actor_stream);
    if (exec != NULL)
        cu.cuGraphExecDestroy(exec);
    if (graph != NULL)
        cu.cuGraphDestroy(graph);
}

static void trap_12_graphs_on_imports_replay(void)
{
    struct scene s = scene_open(256 * PC_MIB);
    struct answer block = scene_export(&s, BLOCK);
    uint64_t ptr = import_into(&s.tenant, s.imported, block.data);
    NEED(&s.tenant, replay_memset, ptr, BLOCK, 0x66);
    EXPECT(NEED(&s.daemon, count_bytes, block.value[0], BLOCK, 0x66).value[0] == BLOCK);
}

/* --- streams --- */

/* An op: value[0] = ids that were seen twice, value[1] = handles that were. */
static void count_repeats(const struct question *q, struct answer *a)
{
    enum { STREAMS = 64 };
    unsigned long long id[STREAMS];
    pc_cu_stream stream[STREAMS];
    (void)q;
    for (int i = 0; i < STREAMS && a->code == PC_CU_SUCCESS; i++) {
        a->code = cu.cuStreamCreate(&stream[i], PC_CU_STREAM_NON_BLOCKING);
        if (a->code == PC_CU_SUCCESS)
            a->code = cu.cuStreamGetId(stream[i], &id[i]);
        for (int k = 0; k < i; k++) {
            a->value[0] += id[i] == id[k];
            a->value[1] += stream[i] == stream[k];
        }
        if (i % 2 == 1)
            cu.cuStreamDestroy(stream[i]);
    }
}

static void stream_ids_are_never_reused(void)
{
    struct actor tenant = actor_start(0);
    NEED(&tenant, begin);
    struct answer a = NEED(&tenant, count_repeats);
    EXPECT(a.value[0] == 0);
    note("of 64 streams, handles were reused %llu times", (unsigned long long)a.value[1]);
}

/* An op: the ids of NULL, the legacy handle and the per-thread handle. */
static void default_ids(const struct question *q, struct answer *a)
{
    unsigned long long id[3] = {0};
    const uintptr_t handle[] = {0, PC_CU_STREAM_LEGACY_VALUE, PC_CU_STREAM_PER_THREAD_VALUE};
    (void)q;
    for (int i = 0; i < 3 && a->code == PC_CU_SUCCESS; i++) {
        a->code = cu.cuStreamGetId((pc_cu_stream)handle[i], &id[i]);
        a->value[i] = id[i];
    }
}

static void default_streams_have_ids(void)
{
    struct actor tenant = actor_start(0);
    NEED(&tenant, begin);
    struct answer a = NEED(&tenant, default_ids);
    EXPECT(a.value[0] == a.value[1]);
    EXPECT(a.value[2] != a.value[1]);
}

/* An op: an event on the stream, and one over the context, complete and can be asked. */
static void use_events(const struct question *q, struct answer *a)
{
    pc_cu_event event = NULL;
    pc_cu_context ctx = NULL;
    (void)q;
    a->code = cu.cuEventCreate(&event, PC_CU_EVENT_DISABLE_TIMING);
    if (a->code == PC_CU_SUCCESS)
        a->code = cu.cuEventRecord(event, actor_stream);
    if (a->code == PC_CU_SUCCESS)
        a->code = cu.cuEventSynchronize(event);
    if (a->code == PC_CU_SUCCESS)
        a->code = cu.cuEventQuery(event);
    if (a->code == PC_CU_SUCCESS)
        a->code = cu.cuStreamWaitEvent(NULL, event, 0);
    if (a->code == PC_CU_SUCCESS)
        a->code = cu.cuCtxGetCurrent(&ctx);
    a->value[0] = cu.cuCtxRecordEvent != NULL ? cu.cuCtxRecordEvent(ctx, event) : PC_CU_ERROR_NOT_SUPPORTED;
    if (a->value[0] == PC_CU_SUCCESS)
        a->value[1] = cu.cuEventSynchronize(event);
    if (event != NULL)
        cu.cuEventDestroy(event);
}

static void events_complete(void)
{
    struct actor tenant = actor_start(0);
    NEED(&tenant, begin);
    struct answer a = NEED(&tenant, use_events);
    EXPECT(a.value[1] == PC_CU_SUCCESS);
    if (a.value[0] != PC_CU_SUCCESS)
        note("cuCtxRecordEvent: code %llu", (unsigned long long)a.value[0]);
}

/* --- managed memory --- */

/* An op: the host writes, the device copies, the host reads. value[0]: what the host read. */
static void use_managed(const struct question *q, struct answer *a)
{
    pc_cu_deviceptr ptr = 0, direct = 0;
    struct pc_cu_location here = {PC_CU_MEM_LOCATION_TYPE_DEVICE, actor_gpu};
    int concurrent = 0;
    (void)q;
    a->code = cu.cuMemAllocManaged(&ptr, 2 * PC_MIB, PC_CU_MEM_ATTACH_GLOBAL);
    if (a->code == PC_CU_SUCCESS)
        a->code = cu.cuMemAlloc(&direct, 4096);
    if (a->code != PC_CU_SUCCESS)
        return;
    volatile uint64_t *host = (volatile uint64_t *)(uintptr_t)ptr;
    host[0] = 41;
    a->code = cu.cuMemcpyDtoD(direct, ptr, 8);
    if (a->code == PC_CU_SUCCESS)
        a->code = cu.cuMemcpyDtoD(ptr + 8, direct, 8);
    if (a->code == PC_CU_SUCCESS)
        a->code = cu.cuCtxSynchronize();
    a->value[0] = host[1];
    if (a->code == PC_CU_SUCCESS)
        a->code = cu.cuDeviceGetAttribute(&concurrent, PC_CU_DEVICE_CONCURRENT_MANAGED_ACCESS, actor_gpu);
    if (a->code == PC_CU_SUCCESS && concurrent)
        a->code = cu.cuMemPrefetchAsync(ptr, 2 * PC_MIB, here, 0, actor_stream);
    if (a->code == PC_CU_SUCCESS && concurrent)
        a->code = cu.cuMemAdvise(ptr, 2 * PC_MIB, PC_CU_ADVISE_SET_PREFERRED_LOCATION, here);
    unsigned int managed = 0;
    if (a->code == PC_CU_SUCCESS)
        a->code = cu.cuPointerGetAttribute(&managed, PC_CU_POINTER_IS_MANAGED, ptr);
    a->value[1] = managed;
    if (a->code == PC_CU_SUCCESS)
        a->code = cu.cuStreamSynchronize(actor_stream);
    if (a->code == PC_CU_SUCCESS)
        a->code = cu.cuMemFree(ptr);
}

static void managed_memory_is_shared(void)
{
    struct actor tenant = actor_start(0);
    NEED(&tenant, begin);
    struct answer a = NEED(&tenant, use_managed);
    EXPECT(a.value[0] == 41);
    EXPECT(a.value[1] == 1);
}

/* --- two GPUs --- */

static void device_count(const struct question *q, struct answer *a)
{
    int n = 0;
    (void)q;
    a->code = cu.cuInit(0);
    if (a->code == PC_CU_SUCCESS)
        a->code = cu.cuDeviceGetCount(&n);
    a->value[0] = (uint64_t)n;
}

static void trap_17_access_from_another_gpu(void)
{
    struct actor counter = actor_start(0);
    uint64_t gpus = NEED(&counter, device_count).value[0];
    if (gpus < 2)
        skip("needs two GPUs, there is one");
    struct actor daemon = actor_start(0), tenant = actor_start(1);
    NEED(&daemon, begin);
    NEED(&tenant, begin);
    uint64_t pool = NEED(&daemon, pool_create, BLOCK, true, KEEP_ALL).value[0];
    uint64_t imported = import_pool_into(&daemon, pool, &tenant); /* access for GPU 1, the actor's own */
    uint64_t ptr = NEED(&daemon, pool_alloc, pool, BLOCK).value[0];
    struct answer block = NEED(&daemon, export_pointer, ptr);
    uint64_t there = import_into(&tenant, imported, block.data);
    struct answer a = ASK(&tenant, touch_kernel, there);
    if (a.code == PC_CU_ERROR_NOT_SUPPORTED)
        skip("this driver runs no kernels");
    must(a, "touch_kernel", __FILE__, __LINE__);
    EXPECT((NEED(&daemon, read_number, ptr).value[0] & 0xffffffff) == 77);
}

const struct check misc_checks[] = {
    {"trap-11-what-imports-are", trap_11_what_imports_are, 0},
    {"trap-11-imports-cannot-be-handed-on", trap_11_imports_cannot_be_handed_on, 0},
    {"trap-11-direct-memory-can", trap_11_direct_memory_can, 0},
    {"trap-12-import-spoils-a-capture", trap_12_import_spoils_a_capture, 0},
    {"trap-12-so-does-native-allocation", trap_12_so_does_native_allocation, 0},
    {"trap-12-relaxed-capture-allows-both", trap_12_relaxed_capture_allows_both, 0},
    {"trap-12-mem-info-is-allowed", trap_12_mem_info_is_allowed, 0},
    {"trap-12-graphs-on-imports-replay", trap_12_graphs_on_imports_replay, 0},
    {"trap-17-access-from-another-gpu", trap_17_access_from_another_gpu, 0},
    {"trap-18-pooled-memory-has-no-context", trap_18_pooled_memory_has_no_context, 0},
    {"stream-ids-are-never-reused", stream_ids_are_never_reused, 0},
    {"stream-default-ids", default_streams_have_ids, 0},
    {"events-complete", events_complete, 0},
    {"managed-memory-is-shared", managed_memory_is_shared, 0},
    {NULL, NULL, 0},
};
