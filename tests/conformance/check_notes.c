/* Measures for questions that the design asks. They print and never fail (a NEED that fails ends the note). */
#include "tests/conformance/conformance.h"

#include <stdlib.h>
#include <unistd.h>

typedef unsigned long long ull; /* for printing */

static uint64_t mib_of(struct actor *watcher, const struct actor *actor)
{
    return NEED(watcher, process_used, (uint64_t)actor->pid).value[1] / PC_MIB;
}

/* (a) */
static void whose_is_a_destroyed_pool(void)
{
    struct scene s = scene_open(2 * PC_GIB);
    uint64_t context = mib_of(&s.watcher, &s.daemon), card = card_used(&s.watcher) / PC_MIB;
    struct answer block = scene_export(&s, PC_GIB);
    uint64_t ptr = import_into(&s.tenant, s.imported, block.data);
    pause_ms(200);
    note("pool of 1 GiB, imported: exporter +%lld MiB, importer %llu MiB, card +%lld MiB",
         (long long)(mib_of(&s.watcher, &s.daemon) - context), (ull)mib_of(&s.watcher, &s.tenant),
         (long long)(card_used(&s.watcher) / PC_MIB - card));
    NEED(&s.daemon, mem_free_async, block.value[0]);
    NEED(&s.daemon, pool_destroy, s.pool);
    pause_ms(500);
    note("destroyed by the exporter, import held: exporter +%lld MiB, importer %llu MiB, card +%lld MiB",
         (long long)(mib_of(&s.watcher, &s.daemon) - context), (ull)mib_of(&s.watcher, &s.tenant),
         (long long)(card_used(&s.watcher) / PC_MIB - card));
    NEED(&s.tenant, mem_free_async, ptr);
    pause_ms(500);
    note("import freed, imported pool held: exporter +%lld MiB, importer %llu MiB, card +%lld MiB",
         (long long)(mib_of(&s.watcher, &s.daemon) - context), (ull)mib_of(&s.watcher, &s.tenant),
         (long long)(card_used(&s.watcher) / PC_MIB - card));
    NEED(&s.tenant, pool_destroy, s.imported);
    pause_ms(500);
    note("imported pool destroyed: exporter +%lld MiB, card +%lld MiB",
         (long long)(mib_of(&s.watcher, &s.daemon) - context), (long long)(card_used(&s.watcher) / PC_MIB - card));
}

/* How long until NVML's figure of a process reaches `mib` (within 64), in ms; -1: not in 3 s. */
static int reaches(struct actor *watcher, const struct actor *actor, uint64_t mib)
{
    double begun = now_us();
    for (int i = 0; i < 3000; i++) {
        uint64_t now = mib_of(watcher, actor);
        if (now + 64 >= mib && now <= mib + 64)
            return (int)((now_us() - begun) / 1000);
        pause_ms(1);
    }
    return -1;
}

/* (b) */
static void what_nvml_says_of_a_tenant(void)
{
    const uint64_t big = 8 * PC_GIB;
    struct scene s = scene_open(2 * PC_GIB);
    need_free(&s.watcher, big + 2 * PC_GIB);
    uint64_t context = mib_of(&s.watcher, &s.tenant);
    struct answer block = scene_export(&s, PC_GIB);
    import_into(&s.tenant, s.imported, block.data);
    pause_ms(300);
    note("tenant after importing 1 GiB of a pool: %llu MiB, before %llu", (ull)mib_of(&s.watcher, &s.tenant),
         (ull)context);
    uint64_t made = NEED(&s.daemon, large_create, big).value[0];
    int fd = NEED(&s.daemon, large_export, made).fd;
    NEED(&s.daemon, large_release, made);
    uint64_t at = NEED(&s.tenant, address_reserve, big).value[0];
    uint64_t handle = NEED_FD(&s.tenant, large_import, fd).value[0];
    close(fd);
    note("8 GiB imported, not mapped: %llu MiB", (ull)mib_of(&s.watcher, &s.tenant));
    NEED(&s.tenant, large_map, at, big, handle);
    int ms = reaches(&s.watcher, &s.tenant, context + big / PC_MIB);
    note("mapped: %llu MiB after %d ms", (ull)mib_of(&s.watcher, &s.tenant), ms);
    NEED(&s.tenant, large_release, handle);
    NEED(&s.tenant, large_unmap, at, big);
    ms = reaches(&s.watcher, &s.tenant, context);
    note("unmapped and released: %llu MiB after %d ms", (ull)mib_of(&s.watcher, &s.tenant), ms);
}

/* (c) */
static void what_a_context_costs(void)
{
    struct actor first = actor_start(0), tenant = actor_start(0), watcher = actor_start(0);
    NEED(&first, begin);
    pause_ms(300);
    uint64_t card = card_used(&watcher), left = NEED(&first, mem_info).value[0];
    double begun = now_us();
    NEED(&tenant, begin);
    double ms = (now_us() - begun) / 1000;
    pause_ms(300);
    note("a context: %.0f ms; by NVML's process list %llu MiB, by NVML's card %llu MiB, by cuMemGetInfo %llu MiB", ms,
         (ull)mib_of(&watcher, &tenant), (ull)((card_used(&watcher) - card) / PC_MIB),
         (ull)((left - NEED(&first, mem_info).value[0]) / PC_MIB));
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

enum { ROUNDS = 200 };

static void sums_up(struct answer *a, double *us)
{
    a->value[0] = (uint64_t)(us[0] * 1000);
    qsort(us, ROUNDS, sizeof *us, by_value);
    a->value[1] = (uint64_t)(us[ROUNDS / 2] * 1000);
    a->value[2] = (uint64_t)(us[ROUNDS * 99 / 100] * 1000);
}

/* Ops: ns of the first call, the median, the 99th percentile; each is followed by its free. */
static void time_import(const struct question *q, struct answer *a)
{
    static double us[ROUNDS];
    for (int i = 0; i < ROUNDS && a->code == PC_CU_SUCCESS; i++) {
        struct pc_cu_ptr_export data = q->data;
        pc_cu_deviceptr ptr = 0;
        double begun = now_us();
        a->code = cu.cuMemPoolImportPointer(&ptr, (pc_cu_mempool)(uintptr_t)q->arg[0], &data);
        us[i] = now_us() - begun;
        if (a->code == PC_CU_SUCCESS)
            a->code = cu.cuMemFreeAsync(ptr, actor_stream);
        if (a->code == PC_CU_SUCCESS)
            a->code = cu.cuStreamSynchronize(actor_stream);
    }
    sums_up(a, us);
}

static void time_direct(const struct question *q, struct answer *a)
{
    static double us[ROUNDS];
    for (int i = 0; i < ROUNDS && a->code == PC_CU_SUCCESS; i++) {
        pc_cu_deviceptr ptr = 0;
        double begun = now_us();
        a->code = cu.cuMemAlloc(&ptr, q->arg[0]);
        us[i] = now_us() - begun;
        if (a->code == PC_CU_SUCCESS)
            a->code = cu.cuMemFree(ptr);
    }
    sums_up(a, us);
}

static void print_times(const char *what, uint64_t bytes, const struct answer *a)
{
    note("%s of %llu MiB: first %.1f us, median %.1f, p99 %.1f", what, (ull)(bytes / PC_MIB),
         (double)a->value[0] / 1000, (double)a->value[1] / 1000, (double)a->value[2] / 1000);
}

/* (d) and (e) */
static void what_imports_cost(void)
{
    static const uint64_t sizes[] = {2 * PC_MIB, 32 * PC_MIB, 64 * PC_MIB, 256 * PC_MIB};
    uint64_t median[PC_ARRAY_LEN(sizes)];
    struct scene s = scene_open(PC_GIB);
    for (size_t i = 0; i < PC_ARRAY_LEN(sizes); i++) {
        struct answer block = scene_export(&s, sizes[i]);
        struct answer a = NEED_DATA(&s.tenant, time_import, block.data, s.imported);
        print_times("cuMemPoolImportPointer", sizes[i], &a);
        median[i] = a.value[1];
        a = NEED(&s.tenant, time_direct, sizes[i]);
        print_times("cuMemAlloc", sizes[i], &a);
    }
    note("two imports of 32 MiB: %.1f us, one of 64 MiB: %.1f us", (double)median[1] / 500, (double)median[2] / 1000);
}

/* An op: import the pool, set access, destroy it; value: ns of each (medians of 20). */
static void time_pool_import(const struct question *q, struct answer *a)
{
    double best[3] = {1e9, 1e9, 1e9};
    struct pc_cu_access access = {{PC_CU_MEM_LOCATION_TYPE_DEVICE, actor_gpu}, PC_CU_MEM_ACCESS_READWRITE};
    for (int i = 0; i < 20 && a->code == PC_CU_SUCCESS; i++) {
        pc_cu_mempool pool;
        double t[4] = {now_us()};
        a->code =
            cu.cuMemPoolImportFromShareableHandle(&pool, (void *)(uintptr_t)q->fd, PC_CU_MEM_HANDLE_TYPE_POSIX_FD, 0);
        t[1] = now_us();
        if (a->code == PC_CU_SUCCESS)
            a->code = cu.cuMemPoolSetAccess(pool, &access, 1);
        t[2] = now_us();
        if (a->code == PC_CU_SUCCESS)
            a->code = cu.cuMemPoolDestroy(pool);
        t[3] = now_us();
        for (int k = 0; k < 3; k++)
            best[k] = t[k + 1] - t[k] < best[k] ? t[k + 1] - t[k] : best[k];
    }
    for (int k = 0; k < 3; k++)
        a->value[k] = (uint64_t)(best[k] * 1000);
}

/* (f) */
static void what_pool_imports_cost(void)
{
    struct scene s = scene_open(PC_GIB);
    scene_export(&s, 256 * PC_MIB);
    int fd = NEED(&s.daemon, pool_export, s.pool).fd;
    struct answer a = NEED_FD(&s.tenant, time_pool_import, fd);
    close(fd);
    note("imported pool, best of 20: import %.1f us, set access %.1f us, destroy %.1f us", (double)a.value[0] / 1000,
         (double)a.value[1] / 1000, (double)a.value[2] / 1000);
}

/* (g) */
static void what_nvml_costs(void)
{
    enum { CALLS = 50 };
    struct actor tenant = actor_start(0), watcher = actor_start(0), pinger = actor_start(0);
    NEED(&tenant, begin);
    NEED(&watcher, card_memory);
    double begun = now_us();
    for (int i = 0; i < CALLS; i++)
        ASK(&pinger, fork_sleeper); /* the price of asking an actor, and a fork more */
    double asking = (now_us() - begun) / CALLS;
    begun = now_us();
    for (int i = 0; i < CALLS; i++)
        NEED(&watcher, card_memory);
    double memory = (now_us() - begun) / CALLS;
    begun = now_us();
    for (int i = 0; i < CALLS; i++)
        NEED(&watcher, process_used, (uint64_t)tenant.pid);
    note("NVML, an ask and its answer included: memory info %.0f us, process list %.0f us (an ask with a fork %.0f us)",
         memory, (now_us() - begun) / CALLS, asking);
}

/* (h) */
static void what_an_importer_sees_of_reused_memory(void)
{
    const uint64_t size = 64 * PC_MIB;
    struct scene s = scene_open(size);
    struct answer block = scene_export(&s, size);
    uint64_t ptr = import_into(&s.tenant, s.imported, block.data);
    NEED(&s.daemon, fill, block.value[0], size, 0x01);
    struct answer freed = ASK(&s.daemon, mem_free_async, block.value[0]);
    struct answer again = ASK(&s.daemon, pool_alloc, s.pool, size);
    note("the exporter frees under an import: code %u; allocates again: code %u, %s address", freed.code, again.code,
         again.value[0] == block.value[0] ? "the same" : "another");
    if (again.code != PC_CU_SUCCESS)
        return;
    NEED(&s.daemon, fill, again.value[0], size, 0x02);
    struct answer new = ASK(&s.tenant, count_bytes, ptr, size, 0x02);
    note("the importer reads: code %u, %llu %% of the new bytes", new.code, (ull)(new.value[0] * 100 / size));
}

/* (i) */
static void what_memset_costs(void)
{
    struct actor daemon = actor_start(0);
    NEED(&daemon, begin);
    uint64_t ptr = NEED(&daemon, direct_alloc, PC_GIB).value[0];
    NEED(&daemon, fill, ptr, PC_GIB, 0);
    double begun = now_us();
    for (int i = 0; i < 10; i++)
        NEED(&daemon, fill, ptr, PC_GIB, 0);
    note("cuMemsetD8Async of 1 GiB with its synchronise: %.0f us", (now_us() - begun) / 10);
}

/* What an imported pool answers about itself. */
static void what_an_imported_pool_says(void)
{
    struct scene s = scene_open(PC_GIB);
    struct answer block = scene_export(&s, 256 * PC_MIB);
    import_into(&s.tenant, s.imported, block.data);
    struct answer reserved = ASK(&s.tenant, pool_get, s.imported, PC_CU_MEMPOOL_RESERVED_CURRENT);
    struct answer used = ASK(&s.tenant, pool_get, s.imported, PC_CU_MEMPOOL_USED_CURRENT);
    note("an imported pool of 256 MiB: RESERVED code %u %llu MiB, USED code %u %llu MiB", reserved.code,
         (ull)(reserved.value[0] / PC_MIB), used.code, (ull)(used.value[0] / PC_MIB));
}

const struct check note_checks[] = {
    {"note-whose-is-a-destroyed-pool", whose_is_a_destroyed_pool, ALONE | NOTE},
    {"note-what-nvml-says-of-a-tenant", what_nvml_says_of_a_tenant, ALONE | NOTE},
    {"note-what-a-context-costs", what_a_context_costs, ALONE | NOTE},
    {"note-what-imports-cost", what_imports_cost, ALONE | NOTE},
    {"note-what-pool-imports-cost", what_pool_imports_cost, ALONE | NOTE},
    {"note-what-nvml-costs", what_nvml_costs, ALONE | NOTE},
    {"note-what-an-importer-sees-of-reused-memory", what_an_importer_sees_of_reused_memory, ALONE | NOTE},
    {"note-what-memset-costs", what_memset_costs, ALONE | NOTE},
    {"note-what-an-imported-pool-says", what_an_imported_pool_says, ALONE | NOTE},
    {NULL, NULL, 0},
};
