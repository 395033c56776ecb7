/* Who keeps memory on the card, and for how long. All look at the whole card, so all run alone. */
#include "tests/conformance/conformance.h"

#include <stdlib.h>
#include <unistd.h>

static void trap_01_trim_leaks_exported_memory(void)
{
    struct scene s = scene_open(2 * PC_GIB);
    uint64_t before = card_used(&s.watcher);
    struct answer block = scene_export(&s, PC_GIB);
    NEED(&s.tenant, mem_free_async, import_into(&s.tenant, s.imported, block.data));
    NEED(&s.daemon, mem_free_async, block.value[0]);
    NEED(&s.daemon, pool_trim, s.pool, 0);
    EXPECT(reserved_bytes(&s.daemon, s.pool) == 0);
    expect_card(&s.watcher, before + PC_GIB, "trimmed, yet on the card");
    NEED(&s.daemon, pool_destroy, s.pool);
    NEED(&s.tenant, pool_destroy, s.imported);
    expect_card(&s.watcher, before, "destroyed and dropped");
}

static void trap_01_private_memory_is_given_back(void)
{
    struct actor daemon = actor_start(0), watcher = actor_start(0);
    NEED(&daemon, begin);
    uint64_t pool = NEED(&daemon, pool_create, 2 * PC_GIB, false, KEEP_ALL).value[0];
    uint64_t before = card_used(&watcher);
    uint64_t ptr = NEED(&daemon, pool_alloc, pool, PC_GIB).value[0];
    NEED(&daemon, mem_free_async, ptr);
    expect_card(&watcher, before + PC_GIB, "kept");
    NEED(&daemon, pool_trim, pool, 0);
    expect_card(&watcher, before, "trimmed");
    NEED(&daemon, pool_set, pool, PC_CU_MEMPOOL_RELEASE_THRESHOLD, 0);
    ptr = NEED(&daemon, pool_alloc, pool, PC_GIB).value[0];
    NEED(&daemon, mem_free_async, ptr); /* synchronises: what is over the threshold goes */
    expect_card(&watcher, before, "threshold 0");
}

static void trap_02_an_open_fd_keeps_memory(void)
{
    struct actor daemon = actor_start(0), watcher = actor_start(0);
    NEED(&daemon, begin);
    uint64_t before = card_used(&watcher);
    uint64_t pool = NEED(&daemon, pool_create, 2 * PC_GIB, true, KEEP_ALL).value[0];
    int fd = NEED(&daemon, pool_export, pool).fd; /* the daemon's own is closed: this one is in the checking process */
    uint64_t ptr = NEED(&daemon, pool_alloc, pool, PC_GIB).value[0];
    NEED(&daemon, export_pointer, ptr);
    NEED(&daemon, mem_free_async, ptr);
    NEED(&daemon, pool_destroy, pool);
    pause_ms(300);
    expect_card(&watcher, before + PC_GIB, "pool destroyed, fd open");
    close(fd);
    expect_card(&watcher, before, "fd closed");
}

static void trap_03_an_importer_keeps_memory(void)
{
    struct scene s = scene_open(2 * PC_GIB);
    uint64_t before = card_used(&s.watcher);
    struct answer block = scene_export(&s, PC_GIB);
    uint64_t ptr = import_into(&s.tenant, s.imported, block.data);
    NEED(&s.daemon, mem_free_async, block.value[0]);
    NEED(&s.daemon, pool_destroy, s.pool);
    NEED(&s.tenant, mem_free_async, ptr);
    pause_ms(300);
    expect_card(&s.watcher, before + PC_GIB, "pool destroyed, imported pool alive");
    NEED(&s.tenant, pool_destroy, s.imported);
    expect_card(&s.watcher, before, "imported pool destroyed");
}

static void trap_05_exporters_death_leaves_imports(void)
{
    struct scene s = scene_open(2 * PC_GIB);
    uint64_t context = NEED(&s.watcher, process_used, (uint64_t)s.daemon.pid).value[1];
    uint64_t before = card_used(&s.watcher);
    struct answer block = scene_export(&s, PC_GIB);
    uint64_t ptr = import_into(&s.tenant, s.imported, block.data);
    actor_kill(&s.daemon);
    expect_card(&s.watcher, before + PC_GIB - context, "exporter killed");
    NEED(&s.tenant, write_number, ptr + PC_GIB - 8, 5);
    EXPECT(NEED(&s.tenant, read_number, ptr + PC_GIB - 8).value[0] == 5);
    actor_end(&s.tenant);
    expect_card(&s.watcher, before - 2 * context, "importer gone");
}

static void trap_06_destroy_with_live_memory(void)
{
    struct actor daemon = actor_start(0), watcher = actor_start(0);
    NEED(&daemon, begin);
    uint64_t before = card_used(&watcher);
    uint64_t pool = NEED(&daemon, pool_create, 2 * PC_GIB, true, KEEP_ALL).value[0];
    uint64_t ptr = NEED(&daemon, pool_alloc, pool, PC_GIB).value[0];
    NEED(&daemon, write_number, ptr, 6);
    NEED(&daemon, pool_destroy, pool);
    EXPECT(NEED(&daemon, read_number, ptr).value[0] == 6);
    expect_card(&watcher, before + PC_GIB, "destroyed, memory live");
    NEED(&daemon, mem_free_async, ptr);
    expect_card(&watcher, before, "memory freed");
}

static void trap_09_dead_exporters_memory_is_nobodys(void)
{
    struct scene s = scene_open(2 * PC_GIB);
    uint64_t context = NEED(&s.watcher, process_used, (uint64_t)s.daemon.pid).value[1];
    uint64_t tenant = NEED(&s.watcher, process_used, (uint64_t)s.tenant.pid).value[1];
    uint64_t before = card_used(&s.watcher);
    struct answer block = scene_export(&s, PC_GIB);
    uint64_t ptr = import_into(&s.tenant, s.imported, block.data);
    actor_kill(&s.daemon);
    expect_card(&s.watcher, before + PC_GIB - context, "exporter killed");
    struct answer listed = NEED(&s.watcher, process_used, (uint64_t)s.tenant.pid);
    EXPECT(listed.value[1] <= tenant + SLACK, "%llu", (unsigned long long)listed.value[1]);
    EXPECT(listed.value[2] <= tenant + SLACK, "all processes: %llu", (unsigned long long)listed.value[2]);
    NEED(&s.tenant, mem_free_async, ptr);
    pause_ms(300);
    expect_card(&s.watcher, before + PC_GIB - context, "import freed");
    NEED(&s.tenant, pool_destroy, s.imported);
    expect_card(&s.watcher, before - context, "imported pool destroyed");
}

static void trap_13_one_import_pins_all_that_was_exported(void)
{
    struct scene s = scene_open(2 * PC_GIB);
    const uint64_t quarter = 256 * PC_MIB;
    uint64_t context = NEED(&s.watcher, process_used, (uint64_t)s.daemon.pid).value[1];
    uint64_t before = card_used(&s.watcher);
    struct answer one = scene_export(&s, quarter);
    uint64_t ptr = import_into(&s.tenant, s.imported, one.data);
    scene_export(&s, 2 * quarter);
    struct answer freed = scene_export(&s, quarter);
    NEED(&s.daemon, pool_alloc, s.pool, quarter); /* never exported */
    NEED(&s.daemon, mem_free_async, freed.value[0]);
    expect_card(&s.watcher, before + 5 * quarter, "all five in the pool");
    actor_kill(&s.daemon);
    expect_card(&s.watcher, before + 4 * quarter - context, "exporter killed");
    uint64_t again = import_into(&s.tenant, s.imported, freed.data);
    NEED(&s.tenant, mem_free_async, again);
    NEED(&s.tenant, mem_free_async, ptr);
    pause_ms(300);
    expect_card(&s.watcher, before + 4 * quarter - context, "imports freed");
    NEED(&s.tenant, pool_destroy, s.imported);
    expect_card(&s.watcher, before - context, "imported pool destroyed");
}

/* Trap 1, second half: tenants that are killed while they hold memory leave the pool's books alone. */
static void killed_tenants_leave_the_pool_alone(void)
{
    enum { TENANTS = 6 };
    struct scene s = scene_open(PC_GIB);
    uint64_t before = card_used(&s.watcher);
    uint64_t block_size = 512 * PC_MIB;
    for (int i = 0; i < TENANTS; i++) {
        struct answer block = scene_export(&s, block_size);
        struct actor tenant = actor_start(0);
        NEED(&tenant, begin);
        uint64_t ptr = import_into(&tenant, import_pool_into(&s.daemon, s.pool, &tenant), block.data);
        NEED(&tenant, write_number, ptr, 1);
        actor_kill(&tenant);
        NEED(&s.daemon, mem_free_async, block.value[0]);
        EXPECT(reserved_bytes(&s.daemon, s.pool) == block_size);
    }
    expect_card(&s.watcher, before + block_size, "all tenants killed");
    NEED(&s.tenant, pool_destroy, s.imported);
    NEED(&s.daemon, pool_destroy, s.pool);
    expect_card(&s.watcher, before, "pool destroyed");
}

/* An op that does not end: takes and gives back memory of every kind, in an order of its own. */
static void churn(const struct question *q, struct answer *a)
{
    unsigned int seed = (unsigned int)q->arg[0];
    struct pc_cu_access access = {{PC_CU_MEM_LOCATION_TYPE_DEVICE, actor_gpu}, PC_CU_MEM_ACCESS_READWRITE};
    a->code = cuda_ready();
    while (a->code == PC_CU_SUCCESS) {
        struct question ask = {.arg = {256 * PC_MIB, 1, KEEP_ALL}, .fd = -1};
        struct answer pool = {.fd = -1}, fd = {.fd = -1}, block = {.fd = -1}, large = {.fd = -1}, direct = {.fd = -1};
        pc_cu_mempool imported;
        pool_create(&ask, &pool);
        ask.arg[0] = pool.value[0];
        pool_export(&ask, &fd);
        ask.arg[1] = (uint64_t)(1 + rand_r(&seed) % 8) * PC_POOL_GRANULE;
        pool_alloc(&ask, &block);
        ask.arg[0] = block.value[0];
        export_pointer(&ask, &block);
        if (fd.fd >= 0 && cu.cuMemPoolImportFromShareableHandle(&imported, (void *)(uintptr_t)fd.fd,
                                                                PC_CU_MEM_HANDLE_TYPE_POSIX_FD, 0) == PC_CU_SUCCESS) {
            cu.cuMemPoolSetAccess(imported, &access, 1);
            cu.cuMemPoolDestroy(imported);
        }
        close(fd.fd);
        ask.arg[0] = 64 * PC_MIB;
        large_create(&ask, &large);
        direct_alloc(&ask, &direct);
        ask.arg[0] = large.value[0];
        large_release(&ask, &large);
        cu.cuMemFree(direct.value[0]);
        cu.cuMemFree(block.value[0]);
        cu.cuMemPoolDestroy((pc_cu_mempool)(uintptr_t)pool.value[0]);
    }
}

static void kill_storm(void)
{
    enum { CHURNERS = 4 };
    struct actor churner[CHURNERS], watcher = actor_start(0), daemon = actor_start(0);
    unsigned int seed = 7;
    int kills = 0;
    NEED(&daemon, begin);
    uint64_t before = card_used(&watcher);
    for (double begun = now_us(); now_us() - begun < 5e6;) {
        for (int i = 0; i < CHURNERS; i++) {
            churner[i] = actor_start(0);
            NEED(&churner[i], begin);
            actor_tell(&churner[i], churn, (uint64_t)rand_r(&seed));
        }
        for (int i = 0; i < CHURNERS; i++) {
            usleep((useconds_t)rand_r(&seed) % 3000);
            actor_kill(&churner[i]);
            kills++;
        }
    }
    expect_card(&watcher, before, "all killed");
    NEED(&daemon, direct_alloc, PC_GIB);
    note("%d processes killed at work", kills);
}

const struct check pin_checks[] = {
    {"trap-01-trim-leaks-exported-memory", trap_01_trim_leaks_exported_memory, ALONE},
    {"trap-01-private-memory-is-given-back", trap_01_private_memory_is_given_back, ALONE},
    {"trap-01-killed-tenants-leave-the-pool-alone", killed_tenants_leave_the_pool_alone, ALONE},
    {"kill-storm-gives-all-back", kill_storm, ALONE},
    {"trap-02-an-open-fd-keeps-memory", trap_02_an_open_fd_keeps_memory, ALONE},
    {"trap-03-an-importer-keeps-memory", trap_03_an_importer_keeps_memory, ALONE},
    {"trap-05-exporters-death-leaves-imports", trap_05_exporters_death_leaves_imports, ALONE},
    {"trap-06-destroy-with-live-memory", trap_06_destroy_with_live_memory, ALONE},
    {"trap-09-dead-exporters-memory-is-nobodys", trap_09_dead_exporters_memory_is_nobodys, ALONE},
    {"trap-13-one-import-pins-all-that-was-exported", trap_13_one_import_pins_all_that_was_exported, ALONE},
    {NULL, NULL, 0},
};
