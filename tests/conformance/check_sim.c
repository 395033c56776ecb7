/* What only the simulated driver has: configuration, injected failures, delays. Skipped on a real one. */
#include "tests/conformance/conformance.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* An op: value[0] = is this the simulated driver. */
static void is_simulated(const struct question *q, struct answer *a)
{
    char version[96] = "";
    (void)q;
    a->code = nvml.nvmlInit();
    if (a->code == PC_NVML_SUCCESS)
        a->code = nvml.nvmlSystemGetDriverVersion(version, sizeof version);
    a->value[0] = strncmp(version, "simulated", 9) == 0;
}

static void need_simulator(void)
{
    struct actor watcher = actor_start(0);
    struct answer a = ASK(&watcher, is_simulated);
    if (a.code != PC_NVML_SUCCESS || a.value[0] == 0 || getenv("POOLCAP_SIM_DIR") == NULL)
        skip("not the simulated driver");
    actor_end(&watcher);
}

/* An op: data is "NAME=value", or "NAME" to unset; before the first CUDA call. */
static void set_env(const struct question *q, struct answer *a)
{
    char text[sizeof q->data.bytes];
    (void)a;
    memcpy(text, q->data.bytes, sizeof text);
    char *value = strchr(text, '=');
    if (value == NULL) {
        unsetenv(text);
        return;
    }
    *value = '\0';
    setenv(text, value + 1, 1);
}

static void with_env(struct actor *actor, const char *text)
{
    struct pc_cu_ptr_export data = {{0}};
    EXPECT(strlen(text) < sizeof data.bytes);
    memcpy(data.bytes, text, strlen(text));
    NEED_DATA(actor, set_env, data, 0);
}

static void write_inject(const char *text)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/inject", getenv("POOLCAP_SIM_DIR"));
    FILE *f = fopen(path, "we");
    EXPECT(f != NULL && fputs(text, f) >= 0);
    fclose(f);
}

static pc_cu_result create_code(struct actor *daemon)
{
    return ASK(daemon, pool_create, 64 * PC_MIB, true, KEEP_ALL).code;
}

/* A file that appears, changes and goes is obeyed by a process that runs; calls are counted from the change. */
static void inject_by_file(void)
{
    need_simulator();
    struct actor daemon = actor_start(0);
    NEED(&daemon, begin);
    EXPECT(create_code(&daemon) == 0);
    write_inject("POOLCAP_SIM_FAIL=cuMemPoolCreate:2:2\n");
    EXPECT(create_code(&daemon) == 0);
    EXPECT(create_code(&daemon) == 2);
    EXPECT(create_code(&daemon) == 0);
    write_inject("POOLCAP_SIM_FAIL=cuMemPoolCreate:2+:999\n");
    EXPECT(create_code(&daemon) == 0);
    EXPECT(create_code(&daemon) == 999);
    EXPECT(create_code(&daemon) == 999);
    write_inject("POOLCAP_SIM_FAIL=cuMemAlloc:*:700,cuMemPoolCreate:*:2\n");
    EXPECT(create_code(&daemon) == 2);
    EXPECT(ASK(&daemon, direct_alloc, PC_MIB).code == 700);
    write_inject("");
    EXPECT(create_code(&daemon) == 0);
    NEED(&daemon, direct_alloc, PC_MIB);
}

static void inject_by_environment(void)
{
    need_simulator();
    struct actor daemon = actor_start(0);
    with_env(&daemon, "POOLCAP_SIM_FAIL=cuMemPoolCreate:1:2,cuMemAlloc:2:999");
    NEED(&daemon, begin);
    EXPECT(create_code(&daemon) == 2);
    EXPECT(create_code(&daemon) == 0);
    EXPECT(ASK(&daemon, direct_alloc, PC_MIB).code == 0);
    EXPECT(ASK(&daemon, direct_alloc, PC_MIB).code == 999);
}

static void inject_a_delay(void)
{
    need_simulator();
    struct actor daemon = actor_start(0);
    with_env(&daemon, "POOLCAP_SIM_DELAY=cuMemPoolCreate:50000");
    NEED(&daemon, begin);
    double begun = now_us();
    EXPECT(create_code(&daemon) == 0);
    EXPECT(now_us() - begun >= 50000);
}

static void never_by_accident(void)
{
    need_simulator();
    struct actor daemon = actor_start(0), watcher = actor_start(0);
    with_env(&daemon, "POOLCAP_SIM_DIR");
    with_env(&watcher, "POOLCAP_SIM_DIR");
    EXPECT(ASK(&daemon, begin).code == PC_CU_ERROR_NO_DEVICE);
    EXPECT(ASK(&watcher, card_memory).code != PC_NVML_SUCCESS);
}

/* A state directory of the check's own, which the first process configures. */
static void own_folder(struct actor *actor, const char *folder, const char *setting)
{
    char text[64];
    snprintf(text, sizeof text, "POOLCAP_SIM_DIR=%s", folder);
    with_env(actor, text);
    with_env(actor, setting);
}

static char *new_folder(char folder[40])
{
    strcpy(folder, "/tmp/poolcap-sim.XXXXXX");
    EXPECT(mkdtemp(folder) != NULL);
    return folder;
}

static void remove_folder(const char *folder)
{
    static const char *const files[] = {"book", "locks", "pids", "gpu0", "gpu1"};
    char path[64];
    for (size_t i = 0; i < PC_ARRAY_LEN(files); i++) {
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        unlink(path);
    }
    rmdir(folder);
}

static void the_dead_stay_for_a_while(void)
{
    char folder[40];
    need_simulator();
    new_folder(folder);
    struct actor tenant = actor_start(0), watcher = actor_start(0);
    own_folder(&tenant, folder, "POOLCAP_SIM_REAP_DELAY_MS=300");
    own_folder(&watcher, folder, "POOLCAP_SIM_REAP_DELAY_MS=0"); /* too late: the book is configured by the first */
    NEED(&tenant, direct_alloc, PC_GIB);
    uint64_t pid = (uint64_t)tenant.pid;
    actor_kill(&tenant);
    EXPECT(NEED(&watcher, process_used, pid).value[0] == 1);
    EXPECT(card_used(&watcher) >= PC_GIB);
    pause_ms(150);
    EXPECT(NEED(&watcher, process_used, pid).value[0] == 1);
    pause_ms(200);
    EXPECT(NEED(&watcher, process_used, pid).value[0] == 0);
    EXPECT(card_used(&watcher) == 0);
    remove_folder(folder);
}

static void two_gpus_are_apart(void)
{
    char folder[40];
    need_simulator();
    new_folder(folder);
    struct actor one = actor_start(0), two = actor_start(1), watch_one = actor_start(0), watch_two = actor_start(1);
    own_folder(&one, folder, "POOLCAP_SIM_GPUS=2");
    own_folder(&two, folder, "POOLCAP_SIM_GPUS=2");
    own_folder(&watch_one, folder, "POOLCAP_SIM_GPUS=2");
    own_folder(&watch_two, folder, "POOLCAP_SIM_GPUS=2");
    struct answer a = NEED(&one, uuid_cuda), b = NEED(&two, uuid_cuda);
    EXPECT(memcmp(a.data.bytes, b.data.bytes, sizeof a.data.bytes) != 0);
    EXPECT(memcmp(b.data.bytes, NEED(&watch_two, uuid_nvml).data.bytes, sizeof b.data.bytes) == 0);
    uint64_t before = card_used(&watch_one);
    uint64_t ptr = NEED(&two, direct_alloc, PC_GIB).value[0];
    NEED(&two, write_number, ptr, 1);
    EXPECT(card_used(&watch_one) == before);
    EXPECT(card_used(&watch_two) == before + PC_GIB);
    EXPECT(NEED(&watch_one, process_used, (uint64_t)two.pid).value[0] == 0);
    remove_folder(folder);
}

/* One thread's round: pools, blocks, copies, events, questions. */
static void *thread_rounds(void *arg)
{
    struct answer *a = arg;
    pc_cu_context ctx;
    pc_cu_stream stream;
    pc_cu_result code = cu.cuDevicePrimaryCtxRetain(&ctx, actor_gpu);
    code = code != 0 ? code : cu.cuCtxSetCurrent(ctx);
    code = code != 0 ? code : cu.cuStreamCreate(&stream, PC_CU_STREAM_NON_BLOCKING);
    for (int i = 0; i < 50 && code == 0; i++) {
        struct pc_cu_pool_props props = {
            .alloc_type = PC_CU_MEM_ALLOCATION_TYPE_PINNED,
            .handle_types = PC_CU_MEM_HANDLE_TYPE_POSIX_FD,
            .location = {PC_CU_MEM_LOCATION_TYPE_DEVICE, actor_gpu},
            .max_size = 64 * PC_MIB,
        };
        pc_cu_mempool pool;
        pc_cu_deviceptr block, direct;
        uint64_t number = (uint64_t)i, back = 0;
        size_t left, total;
        code = cu.cuMemPoolCreate(&pool, &props);
        code = code != 0 ? code : cu.cuMemAllocFromPoolAsync(&block, PC_MIB, pool, stream);
        code = code != 0 ? code : cu.cuMemAlloc(&direct, PC_MIB);
        code = code != 0 ? code : cu.cuMemcpyHtoD(block, &number, sizeof number);
        code = code != 0 ? code : cu.cuMemcpyDtoD(direct, block, sizeof number);
        code = code != 0 ? code : cu.cuMemcpyDtoH(&back, direct, sizeof back);
        code = code != 0 ? code : cu.cuMemGetInfo(&left, &total);
        code = code != 0 ? code : cu.cuMemFree(direct);
        code = code != 0 ? code : cu.cuMemFreeAsync(block, stream);
        code = code != 0 ? code : cu.cuStreamSynchronize(stream);
        code = code != 0 ? code : cu.cuMemPoolDestroy(pool);
        if (back != number)
            code = PC_CU_ERROR_UNKNOWN;
    }
    a->code = code;
    return NULL;
}

/* An op: eight threads at once. */
static void threads(const struct question *q, struct answer *a)
{
    enum { THREADS = 8 };
    pthread_t thread[THREADS];
    static struct answer each[THREADS];
    (void)q;
    a->code = cuda_ready();
    for (int i = 0; i < THREADS; i++)
        pthread_create(&thread[i], NULL, thread_rounds, &each[i]);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
        a->code = a->code != 0 ? a->code : each[i].code;
    }
}

static void many_threads(void)
{
    struct actor daemon = actor_start(0);
    NEED(&daemon, threads);
}

const struct check sim_checks[] = {
    {"threads-may-call-at-once", many_threads, 0},
    {"sim-injects-failures-by-file", inject_by_file, ALONE},
    {"sim-injects-failures-by-environment", inject_by_environment, 0},
    {"sim-injects-a-delay", inject_a_delay, 0},
    {"sim-is-never-used-by-accident", never_by_accident, 0},
    {"sim-the-dead-stay-for-a-while", the_dead_stay_for_a_while, 0},
    {"sim-two-gpus-are-apart", two_gpus_are_apart, 0},
    {NULL, NULL, 0},
};
