/* Processes: what NVML says of them, and what a dead one may still do. */
#include "tests/conformance/conformance.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static bool listed(struct actor *watcher, pid_t pid)
{
    return NEED(watcher, process_used, (uint64_t)pid).value[0] != 0;
}

/* Whether the pid leaves NVML's list within so many ms. */
static bool leaves(struct actor *watcher, pid_t pid, int ms)
{
    for (int i = 0; i < ms / 10 && listed(watcher, pid); i++)
        pause_ms(10);
    return !listed(watcher, pid);
}

static void a_context_costs_memory(void)
{
    struct actor tenant = actor_start(0), watcher = actor_start(0);
    EXPECT(!listed(&watcher, tenant.pid));
    NEED(&tenant, begin);
    struct answer a = NEED(&watcher, process_used, (uint64_t)tenant.pid);
    EXPECT(a.value[0] == 1 && a.value[1] >= PC_MIB && a.value[1] < 4 * PC_GIB, "%llu", (unsigned long long)a.value[1]);
    note("a context costs %llu MiB by NVML", (unsigned long long)(a.value[1] / PC_MIB));
}

static void pool_memory_is_its_exporters(void)
{
    struct scene s = scene_open(2 * PC_GIB);
    uint64_t daemon = NEED(&s.watcher, process_used, (uint64_t)s.daemon.pid).value[1];
    uint64_t tenant = NEED(&s.watcher, process_used, (uint64_t)s.tenant.pid).value[1];
    struct answer block = scene_export(&s, PC_GIB);
    uint64_t ptr = import_into(&s.tenant, s.imported, block.data);
    NEED(&s.tenant, fill, ptr, PC_GIB, 1);
    pause_ms(200);
    uint64_t more = NEED(&s.watcher, process_used, (uint64_t)s.daemon.pid).value[1] - daemon;
    EXPECT(more + SLACK >= PC_GIB && more <= PC_GIB + SLACK, "%llu", (unsigned long long)more);
    more = NEED(&s.watcher, process_used, (uint64_t)s.tenant.pid).value[1] - tenant;
    EXPECT(more <= SLACK, "%llu", (unsigned long long)more);
}

static void direct_memory_is_its_process(void)
{
    struct actor tenant = actor_start(0), watcher = actor_start(0);
    NEED(&tenant, begin);
    uint64_t context = NEED(&watcher, process_used, (uint64_t)tenant.pid).value[1];
    NEED(&tenant, direct_alloc, PC_GIB);
    pause_ms(200);
    uint64_t more = NEED(&watcher, process_used, (uint64_t)tenant.pid).value[1] - context;
    EXPECT(more >= PC_GIB && more <= PC_GIB + SLACK, "%llu", (unsigned long long)more);
    NEED(&tenant, async_alloc, PC_GIB);
    pause_ms(200);
    more = NEED(&watcher, process_used, (uint64_t)tenant.pid).value[1] - context;
    EXPECT(more >= 2 * PC_GIB && more <= 2 * PC_GIB + SLACK, "%llu", (unsigned long long)more);
}

static void trap_10_a_dead_pid_leaves_the_list(void)
{
    struct actor tenant = actor_start(0), watcher = actor_start(0);
    NEED(&tenant, begin);
    NEED(&tenant, direct_alloc, PC_GIB);
    pid_t pid = tenant.pid;
    EXPECT(listed(&watcher, pid));
    actor_kill(&tenant);
    EXPECT(leaves(&watcher, pid, 2000));
}

static void trap_10_a_forked_child_keeps_the_pid_listed(void)
{
    struct actor tenant = actor_start(0), watcher = actor_start(0);
    NEED(&tenant, begin);
    pid_t pid = tenant.pid, child = (pid_t)NEED(&tenant, fork_sleeper).value[0];
    EXPECT(child > 0);
    actor_kill(&tenant);
    pause_ms(500);
    EXPECT(listed(&watcher, pid));
    EXPECT(!listed(&watcher, child));
    kill(child, SIGKILL);
    EXPECT(leaves(&watcher, pid, 2000));
}

/* The witness that the broker waits for: nothing of a dead tenant writes any more once its pid left the list. */
static void trap_10_kernels_end_when_the_pid_leaves(void)
{
    const uint64_t size = 256 * PC_MIB;
    struct scene s = scene_open(PC_GIB);
    struct answer block = scene_export(&s, size);
    for (int round = 0; round < 4; round++) {
        struct actor tenant = actor_start(0);
        NEED(&tenant, begin);
        uint64_t ptr = import_into(&tenant, import_pool_into(&s.daemon, s.pool, &tenant), block.data);
        struct answer a = ASK(&tenant, start_writer, ptr, size);
        if (a.code == PC_CU_ERROR_NOT_SUPPORTED)
            skip("this driver runs no kernels");
        must(a, "start_writer", __FILE__, __LINE__);
        pid_t pid = tenant.pid, child = round % 2 != 0 ? (pid_t)NEED(&tenant, fork_sleeper).value[0] : 0;
        pause_ms(100);
        actor_kill(&tenant);
        if (child != 0) {
            pause_ms(200);
            kill(child, SIGKILL);
        }
        EXPECT(leaves(&s.watcher, pid, 5000));
        NEED(&s.daemon, fill, block.value[0], size, 0);
        pause_ms(200);
        EXPECT(NEED(&s.daemon, count_bytes, block.value[0], size, 0).value[0] == size, "round %d", round);
    }
}

/* An op: what a forked child of the actor is told. */
static void ask_in_a_fork(const struct question *q, struct answer *a)
{
    (void)q;
    pc_cu_result *codes = mmap(NULL, 2 * sizeof *codes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    size_t left, total;
    if (codes == MAP_FAILED)
        return;
    pid_t pid = fork();
    if (pid == 0) {
        codes[0] = cu.cuMemGetInfo(&left, &total);
        codes[1] = cu.cuInit(0);
        _exit(0);
    }
    waitpid(pid, NULL, 0);
    a->code = codes[0];
    a->value[0] = codes[1];
    munmap(codes, 2 * sizeof *codes);
}

static void a_fork_cannot_use_cuda(void)
{
    struct actor tenant = actor_start(0);
    NEED(&tenant, begin);
    struct answer a = ASK(&tenant, ask_in_a_fork);
    EXPECT(!a.died);
    EXPECT(a.code == PC_CU_ERROR_NOT_INITIALIZED, "cuMemGetInfo: %u", a.code);
    EXPECT(a.value[0] == PC_CU_ERROR_NOT_INITIALIZED, "cuInit: %llu", (unsigned long long)a.value[0]);
    NEED(&tenant, mem_info); /* the parent is as before */
}

static void card_adds_up(void)
{
    struct actor tenant = actor_start(0), watcher = actor_start(0);
    struct answer card = NEED(&watcher, card_memory), info = NEED(&tenant, mem_info);
    EXPECT(card.value[0] >= card.value[1] + card.value[2]);
    uint64_t sum = card.value[1] + card.value[2] + card.value[3];
    EXPECT(sum + SLACK >= card.value[0] && sum <= card.value[0] + SLACK);
    EXPECT(info.value[1] <= card.value[0] && info.value[1] + 4 * PC_GIB >= card.value[0]);
    EXPECT(info.value[0] <= info.value[1]);
    note("total: NVML %llu MiB (reserved %llu), cuMemGetInfo %llu MiB", (unsigned long long)(card.value[0] / PC_MIB),
         (unsigned long long)(card.value[1] / PC_MIB), (unsigned long long)(info.value[1] / PC_MIB));
}

static void uuids_are_the_same(void)
{
    struct actor tenant = actor_start(0), watcher = actor_start(0);
    struct answer a = NEED(&tenant, uuid_cuda), b = NEED(&watcher, uuid_nvml);
    EXPECT(strcmp((const char *)a.data.bytes, (const char *)b.data.bytes) == 0, "%s, %s", (const char *)a.data.bytes,
           (const char *)b.data.bytes);
}

const struct check process_checks[] = {
    {"nvml-a-context-costs-memory", a_context_costs_memory, 0},
    {"nvml-pool-memory-is-its-exporters", pool_memory_is_its_exporters, 0},
    {"nvml-direct-memory-is-its-processes", direct_memory_is_its_process, 0},
    {"nvml-card-adds-up", card_adds_up, ALONE},
    {"nvml-uuids-are-cudas", uuids_are_the_same, 0},
    {"trap-10-a-dead-pid-leaves-the-list", trap_10_a_dead_pid_leaves_the_list, 0},
    {"trap-10-a-forked-child-keeps-the-pid-listed", trap_10_a_forked_child_keeps_the_pid_listed, 0},
    {"trap-10-kernels-end-when-the-pid-leaves", trap_10_kernels_end_when_the_pid_leaves, 0},
    {"fork-cannot-use-cuda", a_fork_cannot_use_cuda, 0},
    {NULL, NULL, 0},
};
