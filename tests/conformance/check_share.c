/* Export and import: what an importer can do, and what the 64 bytes are. */
#include "tests/conformance/conformance.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define BLOCK (64 * PC_MIB)

static void both_see_the_bytes(void)
{
    struct scene s = scene_open(256 * PC_MIB);
    struct answer block = scene_export(&s, BLOCK);
    struct actor sibling = actor_start(0);
    NEED(&sibling, begin);
    uint64_t in_sibling = import_into(&sibling, import_pool_into(&s.daemon, s.pool, &sibling), block.data);
    uint64_t in_tenant = import_into(&s.tenant, s.imported, block.data);
    NEED(&s.daemon, write_number, block.value[0], 11);
    EXPECT(NEED(&s.tenant, read_number, in_tenant).value[0] == 11);
    NEED(&s.tenant, write_number, in_tenant + BLOCK - 8, 22);
    EXPECT(NEED(&sibling, read_number, in_sibling + BLOCK - 8).value[0] == 22);
    NEED(&sibling, write_number, in_sibling, 33);
    EXPECT(NEED(&s.daemon, read_number, block.value[0]).value[0] == 33);
}

static void importer_cannot_allocate(void)
{
    struct scene s = scene_open(256 * PC_MIB);
    EXPECT(ASK(&s.tenant, pool_alloc, s.imported, PC_MIB).code == PC_CU_ERROR_INVALID_VALUE);
    scene_export(&s, BLOCK);
    EXPECT(ASK(&s.tenant, pool_alloc, s.imported, PC_MIB).code == PC_CU_ERROR_INVALID_VALUE);
}

/* Copies by the importer work before cuMemPoolSetAccess too (H200): it is no fence between processes. */
static void copies_need_no_access(void)
{
    struct scene s = scene_open(256 * PC_MIB);
    struct answer block = scene_export(&s, BLOCK);
    struct actor stranger = actor_start(0);
    NEED(&stranger, begin);
    int fd = NEED(&s.daemon, pool_export, s.pool).fd;
    uint64_t pool = NEED_FD(&stranger, pool_import, fd).value[0];
    close(fd);
    uint64_t ptr = import_into(&stranger, pool, block.data);
    NEED(&stranger, read_number, ptr);
    NEED(&s.tenant, read_number, import_into(&s.tenant, s.imported, block.data)); /* with it */
}

/* Set once, the access holds for blocks imported before and after. */
static void access_is_the_pools(void)
{
    struct scene s = scene_open(256 * PC_MIB);
    for (uint64_t i = 0; i < 3; i++) {
        struct answer block = scene_export(&s, BLOCK);
        uint64_t ptr = import_into(&s.tenant, s.imported, block.data);
        NEED(&s.tenant, write_number, ptr, i);
        EXPECT(NEED(&s.daemon, read_number, block.value[0]).value[0] == i);
    }
}

static void both_frees_work_on_imports(void)
{
    struct scene s = scene_open(256 * PC_MIB);
    struct answer one = scene_export(&s, BLOCK), two = scene_export(&s, BLOCK);
    uint64_t a = import_into(&s.tenant, s.imported, one.data), b = import_into(&s.tenant, s.imported, two.data);
    NEED(&s.tenant, mem_free, a);
    NEED(&s.tenant, mem_free_async, b);
    EXPECT(refused(ASK(&s.tenant, read_number, a)));
}

static void importers_free_is_not_the_pools(void)
{
    struct scene s = scene_open(256 * PC_MIB);
    struct answer block = scene_export(&s, 256 * PC_MIB);
    NEED(&s.tenant, mem_free_async, import_into(&s.tenant, s.imported, block.data));
    EXPECT(used_bytes(&s.daemon, s.pool) == 256 * PC_MIB);
    EXPECT(ASK(&s.daemon, pool_alloc, s.pool, PC_MIB).code == PC_CU_ERROR_OUT_OF_MEMORY);
}

static void not_a_pools_fd(void)
{
    struct actor tenant = actor_start(0);
    int ends[2];
    NEED(&tenant, begin);
    EXPECT(pipe(ends) == 0);
    struct answer a = actor_ask(&tenant, pool_import, &(struct question){.fd = ends[0]}, 60);
    EXPECT(!a.died && a.code != PC_CU_SUCCESS);
    a = actor_ask(&tenant, large_import, &(struct question){.fd = ends[0]}, 60);
    EXPECT(!a.died && a.code != PC_CU_SUCCESS);
}

static void private_pool_has_no_fd(void)
{
    struct actor daemon = actor_start(0);
    NEED(&daemon, begin);
    uint64_t pool = NEED(&daemon, pool_create, BLOCK, false, KEEP_ALL).value[0];
    EXPECT(refused(ASK(&daemon, pool_export, pool)));
}

static void expect_marks(struct actor *actor, uint64_t ptr, uint64_t bytes, unsigned int mark, const char *what)
{
    uint64_t there = NEED(actor, count_bytes, ptr, bytes, mark).value[0];
    EXPECT(there == bytes, "%s: %llu of %llu bytes", what, (unsigned long long)there, (unsigned long long)bytes);
}

static void trap_04_reused_memory_is_not_cleared(void)
{
    struct scene s = scene_open(BLOCK);
    uint64_t ptr = NEED(&s.daemon, pool_alloc, s.pool, BLOCK).value[0];
    NEED(&s.daemon, fill, ptr, BLOCK, 0x5a);
    NEED(&s.daemon, mem_free_async, ptr);
    ptr = NEED(&s.daemon, pool_alloc, s.pool, BLOCK).value[0];
    expect_marks(&s.daemon, ptr, BLOCK, 0x5a, "old bytes");
}

static void trap_04_new_pool_is_zero(void)
{
    struct actor daemon = actor_start(0);
    NEED(&daemon, begin);
    for (int round = 0; round < 4; round++) {
        uint64_t pool = NEED(&daemon, pool_create, BLOCK, true, KEEP_ALL).value[0];
        uint64_t ptr = NEED(&daemon, pool_alloc, pool, BLOCK).value[0];
        expect_marks(&daemon, ptr, BLOCK, 0, "zeros");
        NEED(&daemon, fill, ptr, BLOCK, 0x5a);
        NEED(&daemon, mem_free_async, ptr);
        NEED(&daemon, pool_destroy, pool);
    }
}

/* poolcap stays at or below 4064 MiB; this is the reason. A driver that survives it is welcome. */
static void trap_07_import_over_4_gib(void)
{
    struct scene s = scene_open(6 * PC_GIB);
    struct answer block = scene_export(&s, 5280 * PC_MIB);
    struct answer a = ASK_DATA(&s.tenant, import_pointer, block.data, s.imported);
    if (a.died)
        EXPECT(WIFSIGNALED(a.status) && WTERMSIG(a.status) == SIGSEGV, "%#x", (unsigned int)a.status);
    else
        note("this driver imports 5280 MiB: code %u", a.code);
    EXPECT(reserved_bytes(&s.daemon, s.pool) == 5280 * PC_MIB); /* the exporter lives on */
}

static void trap_07_import_of_4064_mib_works(void)
{
    struct scene s = scene_open(4096 * PC_MIB);
    struct answer block = scene_export(&s, PC_POOL_ALLOC_MAX);
    uint64_t ptr = import_into(&s.tenant, s.imported, block.data);
    NEED(&s.tenant, write_number, ptr + PC_POOL_ALLOC_MAX - 8, 4064);
    EXPECT(NEED(&s.daemon, read_number, block.value[0] + PC_POOL_ALLOC_MAX - 8).value[0] == 4064);
}

static void trap_08_imported_twice(void)
{
    struct scene s = scene_open(256 * PC_MIB);
    struct answer block = scene_export(&s, BLOCK);
    uint64_t one = import_into(&s.tenant, s.imported, block.data);
    uint64_t two = import_into(&s.tenant, s.imported, block.data);
    EXPECT(one == two);
    NEED(&s.tenant, mem_free_async, one);
    EXPECT(refused(ASK(&s.tenant, mem_free_async, two)));
}

/* The layout of the 64 bytes is the driver's; so flip their bits and see that no bytes but the own pool's appear. */
/* A pool of 256 MiB in four exported blocks, filled with mark; returns the first block's data. */
static struct pc_cu_ptr_export marked_pool(struct actor *daemon, uint64_t *pool, unsigned int mark)
{
    struct pc_cu_ptr_export first = {{0}};
    *pool = NEED(daemon, pool_create, 4 * BLOCK, true, KEEP_ALL).value[0];
    close(NEED(daemon, pool_export, *pool).fd);
    for (int i = 0; i < 4; i++) {
        uint64_t ptr = NEED(daemon, pool_alloc, *pool, BLOCK).value[0];
        NEED(daemon, fill, ptr, BLOCK, mark);
        struct answer a = NEED(daemon, export_pointer, ptr);
        first = i == 0 ? a.data : first;
    }
    return first;
}

/* The layout of the 64 bytes is the driver's; so flip their bits and see that no bytes but the own pool's appear. */
static void trap_14_forged_data_stays_in_the_pool(void)
{
    enum { FLIPS = 16 };
    struct actor daemon = actor_start(0), watcher = actor_start(0), tenant = {0};
    need_free(&watcher, 3 * PC_GIB);
    NEED(&daemon, begin);
    uint64_t pool, other, imported = 0;
    int accepted = 0, hung = 0;
    struct pc_cu_ptr_export data = marked_pool(&daemon, &pool, 0x11);
    marked_pool(&daemon, &other, 0x22);
    for (int i = 0; i < FLIPS; i++) {
        struct pc_cu_ptr_export forged = data;
        forged.bytes[i / 2] ^= i % 2 == 0 ? 0x04 : 0x40;
        if (tenant.pid == 0) {
            tenant = actor_start(0);
            NEED(&tenant, begin);
            imported = import_pool_into(&daemon, pool, &tenant);
        }
        struct answer a = actor_ask(&tenant, import_pointer, &(struct question){{imported}, forged, -1}, 3);
        hung += a.died;
        if (a.died || a.code != PC_CU_SUCCESS)
            continue;
        accepted++;
        a = actor_ask(&tenant, count_bytes, &(struct question){.arg = {a.value[0], PC_MIB, 0x22}, .fd = -1}, 3);
        EXPECT(a.died || a.code != PC_CU_SUCCESS || a.value[0] == 0, "flip %d reached another pool", i);
        actor_kill(&tenant); /* the context may be spoilt */
    }
    note("of %d forged imports %d were accepted, %d killed or hung the importer", FLIPS, accepted, hung);
}

static void trap_15_imported_again(void)
{
    struct scene s = scene_open(256 * PC_MIB);
    struct answer block = scene_export(&s, BLOCK);
    NEED(&s.daemon, fill, block.value[0], BLOCK, 0x77);
    for (int i = 0; i < 3; i++) {
        uint64_t ptr = import_into(&s.tenant, s.imported, block.data);
        expect_marks(&s.tenant, ptr, BLOCK, 0x77, "the same bytes");
        NEED(&s.tenant, mem_free_async, ptr);
    }
    struct actor sibling = actor_start(0);
    NEED(&sibling, begin);
    uint64_t ptr = import_into(&sibling, import_pool_into(&s.daemon, s.pool, &sibling), block.data);
    expect_marks(&sibling, ptr, BLOCK, 0x77, "the same bytes in another process");
}

static void trap_15_imported_after_the_exporters_free(void)
{
    struct scene s = scene_open(256 * PC_MIB);
    struct answer block = scene_export(&s, BLOCK);
    NEED(&s.daemon, fill, block.value[0], BLOCK, 0x78);
    NEED(&s.daemon, mem_free_async, block.value[0]);
    struct answer a = ASK_DATA(&s.tenant, import_pointer, block.data, s.imported);
    EXPECT(!a.died);
    if (a.code == PC_CU_SUCCESS)
        expect_marks(&s.tenant, a.value[0], BLOCK, 0x78, "a freed block's old bytes");
    else
        note("this driver refuses to import a freed block: code %u", a.code);
}

static void trap_19_pool_fd_comes_first(void)
{
    struct actor daemon = actor_start(0);
    NEED(&daemon, begin);
    uint64_t pool = NEED(&daemon, pool_create, BLOCK, true, KEEP_ALL).value[0];
    uint64_t ptr = NEED(&daemon, pool_alloc, pool, PC_POOL_GRANULE).value[0];
    EXPECT(ASK(&daemon, export_pointer, ptr).code == PC_CU_ERROR_INVALID_VALUE);
    close(NEED(&daemon, pool_export, pool).fd);
    NEED(&daemon, export_pointer, ptr);
}

const struct check share_checks[] = {
    {"import-both-see-the-bytes", both_see_the_bytes, 0},
    {"import-cannot-allocate", importer_cannot_allocate, 0},
    {"import-copies-need-no-access", copies_need_no_access, 0},
    {"import-access-is-set-once-a-pool", access_is_the_pools, 0},
    {"import-both-frees-work", both_frees_work_on_imports, 0},
    {"import-free-gives-the-pool-nothing", importers_free_is_not_the_pools, 0},
    {"import-refuses-another-fd", not_a_pools_fd, 0},
    {"private-pool-has-no-fd", private_pool_has_no_fd, 0},
    {"trap-04-reused-memory-is-not-cleared", trap_04_reused_memory_is_not_cleared, 0},
    {"trap-04-new-pool-is-zero", trap_04_new_pool_is_zero, ALONE},
    {"trap-07-import-over-4gib-kills", trap_07_import_over_4_gib, 0},
    {"trap-07-import-of-4064-mib-works", trap_07_import_of_4064_mib_works, 0},
    {"trap-08-imported-twice-freed-once", trap_08_imported_twice, 0},
    {"trap-14-forged-data-stays-in-the-pool", trap_14_forged_data_stays_in_the_pool, 0},
    {"trap-15-imported-again-after-free", trap_15_imported_again, 0},
    {"trap-15-imported-after-the-exporters-free", trap_15_imported_after_the_exporters_free, 0},
    {"trap-19-pool-fd-before-pointers", trap_19_pool_fd_comes_first, 0},
    {NULL, NULL, 0},
};
