/* Grants of one pod that have the same units, the ends of such grants, and grants of pods: what the plugin relies on.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/broker/books.h"
#include "tests/integration/broker_daemon.h"

static int end(void **state)
{
    (void)state;
    daemon_end();
    return 0;
}

static void make(const char *name, const char *tenant, uint64_t granted, uint64_t shared)
{
    char text[512];
    struct daemon_want want = {.name = name, .tenant = tenant, .granted = granted, .shared = shared};
    if (daemon_make_with(&want, text) != PC_OK)
        fail_msg("%s: %s", name, text);
}

static void drop(const char *name)
{
    char text[512];
    if (daemon_drop(name, true, text) != PC_OK)
        fail_msg("%s: %s", name, text);
}

/* ---- shared units ---- */

static void test_init_then_app(void **state)
{
    (void)state;
    struct actor a;
    char text[512];
    daemon_begin("- name: ok\n  memory: 256Mi\n");
    uint64_t room = daemon_gpu(0).capacity - 256 * PC_MIB;
    make("init", "pod", room, 0);
    assert_int_equal(daemon_make("other", "", "0", 96 * PC_MIB, 0, text), PC_ERR_OUT_OF_MEMORY);
    make("app", "pod", room - 512 * PC_MIB, room - 512 * PC_MIB);
    make("sidecar", "pod", 512 * PC_MIB, 512 * PC_MIB);
    assert_int_equal(daemon_gpu(0).granted, room + 256 * PC_MIB); /* once, although it was given twice */
    daemon_actor(&a, "init");
    assert_ok(&a, "alloc 0 %llu", 64 * GRANULE);
    actor_end(&a);
    drop("init");
    assert_int_equal(daemon_gpu(0).granted, room + 256 * PC_MIB); /* the other two need it all */
    assert_int_equal(daemon_figures("app").shared + daemon_figures("sidecar").shared, 0);
    /* Each is held to its own cap, and both together get what the pod was promised. */
    daemon_actor(&a, "sidecar");
    assert_ok(&a, "alloc 0 %llu", 512 * PC_MIB - CONTEXT);
    assert_refused(&a, PC_ERR_OUT_OF_MEMORY, "alloc 0 1");
    struct actor b;
    daemon_actor(&b, "app");
    assert_ok(&b, "reserve 0 %llu", GRANULE);
    assert_ok(&b, "release 0 %llu", GRANULE);
    actor_end(&b);
    actor_end(&a);
    drop("app");
    assert_within(3000, daemon_gpu(0).granted == (256 + 512) * PC_MIB);
    drop("sidecar");
    assert_int_equal(daemon_gpu(0).granted, 256 * PC_MIB);
}

/* An annotation lowers the caps of init and app container each; the tenant's is no smaller than either. */
static void test_caps(void **state)
{
    (void)state;
    char text[512];
    daemon_begin("- name: ok\n  memory: 256Mi\n");
    struct daemon_want init = {.name = "init", .tenant = "pod", .granted = 1024 * PC_MIB, .cap = 512 * PC_MIB};
    struct daemon_want app = {.name = "app", .tenant = "pod", .granted = 1024 * PC_MIB, .shared = 1024 * PC_MIB};
    assert_int_equal(daemon_make_with(&init, text), PC_OK);
    assert_int_equal(daemon_make_with(&app, text), PC_OK);
    struct actor a;
    daemon_actor(&a, "app");
    assert_ok(&a, "reserve 0 %llu", 1024 * PC_MIB - CONTEXT); /* not init's cap */
    assert_refused(&a, PC_ERR_OUT_OF_MEMORY, "reserve 0 %llu", GRANULE);
    actor_end(&a);
    assert_int_equal(daemon_set_cap("app", 512 * PC_MIB, text), PC_OK);
    daemon_actor(&a, "app");
    assert_ok(&a, "reserve 0 %llu", 512 * PC_MIB - CONTEXT);
    assert_refused(&a, PC_ERR_OUT_OF_MEMORY, "reserve 0 %llu", GRANULE);
    actor_end(&a);
    assert_int_equal(daemon_gpu(0).granted, 1280 * PC_MIB);
}

static void test_bad_shared(void **state)
{
    (void)state;
    char text[512];
    daemon_begin("- name: ok\n  memory: 256Mi\n");
    struct daemon_want want = {.name = "a", .tenant = "pod", .granted = 256 * PC_MIB, .shared = 288 * PC_MIB};
    assert_int_equal(daemon_make_with(&want, text), PC_ERR_INVALID);
    assert_non_null(strstr(text, "shared 288Mi is not a multiple of 32Mi within the granted 256Mi"));
    want.shared = 1;
    assert_int_equal(daemon_make_with(&want, text), PC_ERR_INVALID);
    /* With whom? Then it counts. */
    make("a", "pod", 256 * PC_MIB, 256 * PC_MIB);
    assert_int_equal(daemon_figures("a").shared, 0);
    make("b", "pod", 512 * PC_MIB, 512 * PC_MIB);
    assert_int_equal(daemon_figures("b").shared, 256 * PC_MIB);
    make("c", "elsewhere", 256 * PC_MIB, 32 * PC_MIB);
    assert_int_equal(daemon_figures("c").shared, 0);
    assert_int_equal(daemon_gpu(0).granted, (256 + 512 + 256) * PC_MIB);
    /* Repeated after its partner has gone, when the plugin says something else is shared: the same grant. */
    drop("a");
    assert_int_equal(daemon_figures("b").shared, 0);
    make("b", "pod", 512 * PC_MIB, 0);
    /* More than 2^64 together is refused, not less than nothing. */
    want = (struct daemon_want){.name = "d", .tenant = "pod", .granted = UINT64_MAX - UINT64_MAX % GRANULE};
    assert_int_not_equal(daemon_make_with(&want, text), PC_OK);
    assert_int_equal(daemon_gpu(0).granted, (256 + 512 + 256) * PC_MIB);
}

/* A pool whose maxSize is beyond what is promised any more keeps the promise up; once nobody uses it, both end. */
static void test_outlived(void **state)
{
    (void)state;
    struct actor init, app;
    daemon_begin("- name: ok\n  memory: 256Mi\n");
    make("init", "pod", 1024 * PC_MIB, 0);
    make("app", "pod", 256 * PC_MIB, 256 * PC_MIB);
    daemon_actor(&init, "init");
    assert_ok(&init, "alloc 0 %llu", 16 * GRANULE);
    daemon_actor(&app, "app");
    assert_ok(&app, "alloc 0 %llu", 2 * GRANULE); /* of the same pool */
    uint64_t block = actor_number(&app, 0), generation = actor_number(&app, 2);
    actor_end(&init);
    assert_within(3000, daemon_figures("init").sessions == 0);
    drop("init");
    assert_int_equal(daemon_gpu(0).granted, (1024 + 256) * PC_MIB);
    assert_ok(&app, "free %llu", (unsigned long long)block);
    assert_ok(&app, "drop %llu", (unsigned long long)generation);
    assert_within(3000, daemon_gpu(0).granted == (256 + 256) * PC_MIB);
    assert_ok(&app, "alloc 0 %llu", 6 * GRANULE);
    assert_refused(&app, PC_ERR_OUT_OF_MEMORY, "alloc 0 1");
    actor_end(&app);
    drop("app");
}

/* ---- the same with numbers by chance, and a poolcapd that is killed ---- */

enum { TENANTS = 2, GRANTS = 16, WINDOW = 30, STEPS = 600 };

/* What the test knows and poolcapd does not: which units a grant has. In the order of making. */
struct known {
    char name[16];
    unsigned tenant;
    uint64_t units; /* bits */
};

static struct {
    struct known grant[GRANTS];
    unsigned grants, names;
    uint64_t promise[TENANTS];
    uint32_t seed;
} m;

static uint32_t chance(uint32_t below)
{
    m.seed = m.seed * 1664525u + 1013904223u;
    return (m.seed >> 8) % below;
}

static uint64_t all_units(unsigned tenant)
{
    uint64_t all = 0;
    for (unsigned i = 0; i < m.grants; i++)
        all |= m.grant[i].tenant == tenant ? m.grant[i].units : 0;
    return all;
}

static uint64_t bytes_of(uint64_t units)
{
    return (uint64_t)__builtin_popcountll(units) * GRANULE;
}

/* What holds at any time. Returns what the tenant is promised. */
static uint64_t check_tenant(unsigned tenant)
{
    uint64_t promise = 0, granted = 0;
    for (unsigned i = 0; i < m.grants; i++) {
        if (m.grant[i].tenant != tenant)
            continue;
        struct daemon_figures f = daemon_figures(m.grant[i].name);
        assert_true(f.found && f.granted == bytes_of(m.grant[i].units) && f.shared <= f.granted);
        promise += f.granted - f.shared;
        granted += f.granted;
    }
    if (promise < bytes_of(all_units(tenant)) || promise > granted)
        fail_msg("tenant %u is promised %llu; its units are %llu, its grants %llu", tenant, (unsigned long long)promise,
                 (unsigned long long)bytes_of(all_units(tenant)), (unsigned long long)granted);
    return promise;
}

static void check_all(void)
{
    uint64_t sum = 256 * PC_MIB;
    for (unsigned t = 0; t < TENANTS; t++) {
        m.promise[t] = check_tenant(t);
        sum += m.promise[t];
    }
    assert_int_equal(daemon_gpu(0).granted, sum);
}

static void step_make(void)
{
    struct known *k = &m.grant[m.grants];
    uint64_t before[TENANTS];
    memcpy(before, m.promise, sizeof before);
    k->tenant = chance(TENANTS);
    k->units = 0;
    while (__builtin_popcountll(k->units) < 3) /* a context and a granule */
        k->units |= (uint64_t)chance(1u << 15) << (chance(WINDOW / 15) * 15);
    snprintf(k->name, sizeof k->name, "g%u", m.names++);
    uint64_t fresh = bytes_of(k->units & ~all_units(k->tenant));
    make(k->name, k->tenant == 0 ? "t0" : "t1", bytes_of(k->units), bytes_of(k->units) - fresh);
    m.grants++;
    check_all();
    assert_int_equal(m.promise[k->tenant], before[k->tenant] + fresh);
    if (chance(4) != 0)
        return;
    drop(k->name); /* made and dropped again: no trace */
    m.grants--;
    check_all();
    assert_memory_equal(before, m.promise, sizeof before);
}

static void forget(unsigned which)
{
    memmove(&m.grant[which], &m.grant[which + 1], (--m.grants - which) * sizeof m.grant[0]);
}

static void step_drop(void)
{
    uint64_t before[TENANTS];
    memcpy(before, m.promise, sizeof before);
    unsigned which = chance(m.grants), tenant = m.grant[which].tenant;
    drop(m.grant[which].name);
    forget(which);
    check_all();
    assert_true(m.promise[tenant] <= before[tenant]);
    assert_true(all_units(tenant) != 0 || m.promise[tenant] == 0);
}

static struct pc_books_grant *find_record(struct pc_books *books, const char *name)
{
    struct pc_books_grant *record;
    unsigned at = 0;
    while ((record = pc_books_next(books, PC_BOOKS_GRANTS, &at)) != NULL)
        if (strcmp(record->name, name) == 0)
            return record;
    fail_msg("%s is not in the books", name);
    return NULL;
}

/* What the books look like when poolcapd is killed while this grant ends; some of the others are lowered already. */
static uint64_t end_half_way(struct pc_books *books, unsigned which)
{
    struct pc_books_grant *leaving = find_record(books, m.grant[which].name);
    uint64_t promise = m.promise[m.grant[which].tenant] - leaving->granted[0] + leaving->shared[0];
    uint64_t left = leaving->granted[0] - leaving->shared[0];
    unsigned lowered = chance(3);
    for (unsigned i = which + 1; i < m.grants && left > 0; i++) {
        if (m.grant[i].tenant != m.grant[which].tenant)
            continue;
        struct pc_books_grant *later = find_record(books, m.grant[i].name);
        uint64_t part = later->shared[0] < left ? later->shared[0] : left;
        promise += part;
        left -= part;
        if (lowered > 0) {
            lowered--;
            later->shared[0] -= part;
        }
    }
    leaving->promise[0] = promise;
    pc_books_commit(leaving, PC_BOOKS_LEAVING);
    return promise;
}

static void step_kill(void)
{
    struct pc_books *books;
    struct pc_error err;
    uint64_t expected[TENANTS];
    memcpy(expected, m.promise, sizeof expected);
    daemon_kill();
    if (m.grants > 0 && chance(2) == 0) {
        unsigned which = chance(m.grants);
        assert_int_equal(pc_books_open(daemon_directory(), &books, &err), PC_OK);
        expected[m.grant[which].tenant] = end_half_way(books, which);
        pc_books_close(books);
        forget(which);
    }
    daemon_start();
    check_all();
    assert_memory_equal(expected, m.promise, sizeof expected);
}

static void test_by_chance(void **state)
{
    (void)state;
    daemon_begin("- name: ok\n  memory: 256Mi\n");
    m.seed = 7;
    for (unsigned i = 0; i < STEPS; i++) {
        uint32_t which = chance(16);
        if (which == 0)
            step_kill();
        else if (m.grants > 0 && (m.grants == GRANTS || which < 8))
            step_drop();
        else
            step_make();
    }
    while (m.grants > 0)
        step_drop();
    assert_int_equal(daemon_gpu(0).granted, 256 * PC_MIB);
}

/* ---- pods ---- */

/* Makes a cgroup as the kubelet does, in a hierarchy that lets us; false: none does. */
static bool make_cgroup(const char *uid, char path[300])
{
    static const char *const roots[] = {"/sys/fs/cgroup/pids", "/sys/fs/cgroup/freezer", "/sys/fs/cgroup"};
    for (size_t i = 0; i < sizeof roots / sizeof roots[0]; i++) {
        char procs[320];
        snprintf(path, 300, "%s/pod%s", roots[i], uid);
        snprintf(procs, sizeof procs, "%s/cgroup.procs", path);
        if (mkdir(path, 0755) == 0 && access(procs, W_OK) == 0)
            return true;
        rmdir(path);
    }
    return false;
}

/* A process that sleeps in the cgroup. */
static pid_t start_in(const char *cgroup)
{
    char procs[320], number[16];
    pid_t pid = fork();
    if (pid == 0) {
        for (;;)
            pause();
    }
    snprintf(procs, sizeof procs, "%s/cgroup.procs", cgroup);
    int length = snprintf(number, sizeof number, "%d", (int)pid);
    int fd = open(procs, O_WRONLY | O_CLOEXEC);
    assert_int_equal(write(fd, number, (size_t)length), length);
    close(fd);
    return pid;
}

static void test_drop_if_unused(void **state)
{
    (void)state;
    struct actor a;
    char text[512], uid[64], cgroup[300];
    daemon_begin("- name: ok\n  memory: 256Mi\n");
    assert_int_equal(daemon_drop_unused("nobody", text), PC_ERR_NOT_FOUND);
    make("a", "", 256 * PC_MIB, 0);
    daemon_actor(&a, "a");
    assert_int_equal(daemon_drop_unused("a", text), PC_ERR_BUSY);
    assert_non_null(strstr(text, "has 1 processes"));
    assert_false(daemon_figures("a").dropping);
    assert_ok(&a, "alloc 0 1"); /* nothing has changed */
    actor_end(&a);
    assert_within(3000, daemon_drop_unused("a", text) == PC_OK);
    assert_within(3000, !daemon_figures("a").found);

    snprintf(uid, sizeof uid, "5eed0000-0000-4000-8000-%012d", (int)getpid());
    struct daemon_want want = {.name = "b", .pod_uid = uid, .granted = 256 * PC_MIB};
    assert_int_equal(daemon_make_with(&want, text), PC_OK);
    assert_string_equal(daemon_figures("b").pod_uid, uid);
    actor_start(&a);
    assert_refused(&a, PC_ERR_DENIED, "connect %s", daemon_socket("b")); /* bound from the start */
    actor_end(&a);
    if (!make_cgroup(uid, cgroup)) {
        assert_int_equal(daemon_drop_unused("b", text), PC_OK);
        print_message("skipped: no cgroup can be made here: a pod's processes are not looked for\n");
        skip();
    }
    pid_t pid = start_in(cgroup);
    assert_int_equal(daemon_drop_unused("b", text), PC_ERR_BUSY);
    assert_non_null(strstr(text, "lives"));
    assert_false(daemon_figures("b").dropping);
    kill(pid, SIGKILL);
    assert_int_equal(waitid(P_PID, (id_t)pid, &(siginfo_t){0}, WEXITED | WNOWAIT), 0);
    assert_int_equal(daemon_drop_unused("b", text), PC_OK); /* a zombie has no memory */
    assert_within(3000, !daemon_figures("b").found);
    waitpid(pid, NULL, 0);
    assert_int_equal(rmdir(cgroup), 0);
}

/* ---- figures ---- */

static void test_latency(void **state)
{
    (void)state;
    struct actor a;
    daemon_begin("- name: a\n  memory: 512Mi\n");
    assert_int_equal(daemon_gpu(0).requests, 0);
    daemon_actor(&a, "a");
    assert_ok(&a, "alloc 0 %llu", 4 * GRANULE);
    assert_ok(&a, "free %llu", (unsigned long long)actor_number(&a, 0));
    assert_ok(&a, "alloc 0 %llu", 4 * GRANULE);
    assert_refused(&a, PC_ERR_OUT_OF_MEMORY, "alloc 0 %llu", 64 * GRANULE);
    struct daemon_gpu gpu = daemon_gpu(0);
    assert_true(gpu.histogram_whole);
    assert_int_equal(gpu.requests, 3);
    assert_true(gpu.latency_sum_ns > 0);
    assert_int_equal(gpu.pool_reserved, 4 * GRANULE);
    assert_int_equal(daemon_gpu(1).requests + daemon_gpu(1).pool_reserved, 0);
    actor_end(&a);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "actor") == 0)
        return actor_main();
    daemon_setup();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_init_then_app, end), cmocka_unit_test_teardown(test_caps, end),
        cmocka_unit_test_teardown(test_bad_shared, end),    cmocka_unit_test_teardown(test_outlived, end),
        cmocka_unit_test_teardown(test_by_chance, end),     cmocka_unit_test_teardown(test_drop_if_unused, end),
        cmocka_unit_test_teardown(test_latency, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
