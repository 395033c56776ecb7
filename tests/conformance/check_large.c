/* Memory over 4064 MiB: cuMemCreate handles, sent as fds and mapped. */
#include "tests/conformance/conformance.h"

#include <unistd.h>

#define BIG (8 * PC_GIB)

/* Creates bytes in the daemon and returns the only hold on them: an fd. */
static int make_fd(struct actor *daemon, uint64_t bytes)
{
    uint64_t handle = NEED(daemon, large_create, bytes).value[0];
    int fd = NEED(daemon, large_export, handle).fd;
    NEED(daemon, large_release, handle);
    return fd;
}

/* Maps an fd at address, keeps no handle, and closes the fd. */
static void map_fd(struct actor *tenant, int fd, uint64_t address, uint64_t bytes)
{
    uint64_t handle = NEED_FD(tenant, large_import, fd).value[0];
    close(fd);
    NEED(tenant, large_map, address, bytes, handle);
    NEED(tenant, large_release, handle);
}

static void expect_process(struct actor *watcher, const struct actor *actor, uint64_t bytes, const char *when)
{
    uint64_t used = 0;
    for (int i = 0; i < 200; i++) {
        used = NEED(watcher, process_used, (uint64_t)actor->pid).value[1];
        if (used + SLACK >= bytes && used <= bytes + SLACK)
            return;
        pause_ms(10);
    }
    fail("%s: the process has %llu MiB, expected %llu MiB", when, (unsigned long long)(used / PC_MIB),
         (unsigned long long)(bytes / PC_MIB));
}

static void eight_gib_in_one_piece(void)
{
    struct actor daemon = actor_start(0), tenant = actor_start(0), watcher = actor_start(0);
    need_free(&watcher, BIG + 2 * PC_GIB);
    NEED(&daemon, begin);
    NEED(&tenant, begin);
    uint64_t at = NEED(&tenant, address_reserve, BIG).value[0];
    map_fd(&tenant, make_fd(&daemon, BIG), at, BIG);
    EXPECT(NEED(&tenant, read_number, at + BIG - 8).value[0] == 0); /* new memory is zero */
    NEED(&tenant, write_number, at, 1);
    NEED(&tenant, write_number, at + BIG - 8, 2);
    NEED(&tenant, write_number, at + BIG / 2 - 4, 3);
    EXPECT(NEED(&tenant, read_number, at).value[0] == 1);
    EXPECT(NEED(&tenant, read_number, at + BIG - 8).value[0] == 2);
    EXPECT(NEED(&tenant, read_number, at + BIG / 2 - 4).value[0] == 3);
    NEED(&tenant, large_unmap, at, BIG);
    NEED(&tenant, address_free, at, BIG);
    EXPECT(refused(ASK(&tenant, read_number, at)));
}

static void side_by_side(void)
{
    enum { PIECES = 8 };
    const uint64_t piece = 256 * PC_MIB;
    struct actor daemon = actor_start(0), tenant = actor_start(0);
    NEED(&daemon, begin);
    NEED(&tenant, begin);
    uint64_t at = NEED(&tenant, address_reserve, PIECES * piece).value[0];
    for (uint64_t i = 0; i < PIECES; i++)
        map_fd(&tenant, make_fd(&daemon, piece), at + i * piece, piece);
    NEED(&tenant, fill, at + piece - PC_MIB, 2 * PC_MIB, 0x33);
    EXPECT(NEED(&tenant, count_bytes, at + piece - PC_MIB, 2 * PC_MIB, 0x33).value[0] == 2 * PC_MIB);
    EXPECT(NEED(&tenant, count_bytes, at + piece + PC_MIB, PC_MIB, 0).value[0] == PC_MIB);
    for (uint64_t i = 0; i < PIECES; i++)
        NEED(&tenant, large_unmap, at + i * piece, piece);
}

static void reserved_is_not_mapped(void)
{
    struct actor daemon = actor_start(0);
    NEED(&daemon, begin);
    uint64_t at = NEED(&daemon, address_reserve, 2 * PC_MIB).value[0];
    EXPECT(refused(ASK(&daemon, read_number, at)));
}

static void survives_its_exporter(void)
{
    struct actor daemon = actor_start(0), tenant = actor_start(0), sibling = actor_start(0);
    NEED(&daemon, begin);
    NEED(&tenant, begin);
    NEED(&sibling, begin);
    int fd = make_fd(&daemon, PC_GIB), fd2 = dup(fd);
    uint64_t at = NEED(&tenant, address_reserve, PC_GIB).value[0];
    map_fd(&tenant, fd, at, PC_GIB);
    NEED(&tenant, write_number, at + PC_GIB - 8, 9);
    actor_kill(&daemon);
    EXPECT(NEED(&tenant, read_number, at + PC_GIB - 8).value[0] == 9);
    uint64_t there = NEED(&sibling, address_reserve, PC_GIB).value[0];
    map_fd(&sibling, fd2, there, PC_GIB);
    EXPECT(NEED(&sibling, read_number, there + PC_GIB - 8).value[0] == 9);
}

static void nvml_names_the_importer(void)
{
    struct actor daemon = actor_start(0), tenant = actor_start(0), watcher = actor_start(0);
    NEED(&daemon, begin);
    NEED(&tenant, begin);
    uint64_t context = NEED(&watcher, process_used, (uint64_t)tenant.pid).value[1];
    uint64_t daemons = NEED(&watcher, process_used, (uint64_t)daemon.pid).value[1];
    uint64_t at = NEED(&tenant, address_reserve, PC_GIB).value[0];
    map_fd(&tenant, make_fd(&daemon, PC_GIB), at, PC_GIB);
    expect_process(&watcher, &tenant, context + PC_GIB, "mapped");
    expect_process(&watcher, &daemon, daemons, "released");
    NEED(&tenant, large_unmap, at, PC_GIB);
    expect_process(&watcher, &tenant, context, "unmapped");
}

static void open_fd_keeps_it(void)
{
    struct actor daemon = actor_start(0), watcher = actor_start(0);
    NEED(&daemon, begin);
    uint64_t before = card_used(&watcher);
    int fd = make_fd(&daemon, PC_GIB);
    expect_card(&watcher, before + PC_GIB, "only the fd is left");
    close(fd);
    expect_card(&watcher, before, "fd closed");
}

static void death_gives_it_back(void)
{
    struct actor daemon = actor_start(0), tenant = actor_start(0), watcher = actor_start(0);
    NEED(&daemon, begin);
    uint64_t before = card_used(&watcher);
    NEED(&tenant, begin);
    uint64_t at = NEED(&tenant, address_reserve, PC_GIB).value[0];
    map_fd(&tenant, make_fd(&daemon, PC_GIB), at, PC_GIB);
    actor_kill(&tenant);
    expect_card(&watcher, before, "the tenant was killed");
}

static void pieces_of_2_mib(void)
{
    struct actor daemon = actor_start(0);
    NEED(&daemon, begin);
    EXPECT(ASK(&daemon, large_create, 2 * PC_MIB + 4096).code == PC_CU_ERROR_INVALID_VALUE);
    NEED(&daemon, large_release, NEED(&daemon, large_create, 2 * PC_MIB).value[0]);
    EXPECT(ASK(&daemon, large_create, 0).code == PC_CU_ERROR_INVALID_VALUE);
}

const struct check large_checks[] = {
    {"trap-07-large-8-gib-in-one-piece", eight_gib_in_one_piece, ALONE},
    {"trap-07-large-pieces-side-by-side", side_by_side, 0},
    {"large-reserved-is-not-mapped", reserved_is_not_mapped, 0},
    {"large-survives-its-exporter", survives_its_exporter, 0},
    {"large-nvml-names-the-importer", nvml_names_the_importer, 0},
    {"large-an-open-fd-keeps-it", open_fd_keeps_it, ALONE},
    {"large-death-gives-it-back", death_gives_it_back, ALONE},
    {"large-pieces-of-2-mib", pieces_of_2_mib, 0},
    {NULL, NULL, 0},
};
