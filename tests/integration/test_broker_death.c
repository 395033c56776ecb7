/* Processes that die at bad moments, and what they leave behind. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "alloc/base/error.h"
#include "tests/integration/broker_daemon.h"

static int end(void **state)
{
    (void)state;
    daemon_end();
    return 0;
}

/* All that a killed process held is its tenant's again: its next process gets it all, and zeroes. */
static void test_killed_while_holding(void **state)
{
    (void)state;
    struct actor a;
    daemon_begin("- name: a\n  memory: 640Mi\n");
    daemon_actor(&a, "a");
    for (int i = 0; i < 4; i++) {
        assert_ok(&a, "alloc 0 %llu", 2 * GRANULE);
        assert_ok(&a, "write %llu 255", (unsigned long long)actor_number(&a, 0));
    }
    assert_ok(&a, "large 0 %llu", 128 * PC_MIB);
    assert_ok(&a, "reserve 0 %llu", 64 * PC_MIB);
    assert_ok(&a, "direct %llu", 64 * PC_MIB);
    actor_kill(&a);
    daemon_actor(&a, "a"); /* at once: it waits for the dead one's context where it has to */
    for (int i = 0; i < 9; i++) {
        assert_ok(&a, "alloc 0 %llu", 2 * GRANULE);
        assert_ok(&a, "check %llu 0", (unsigned long long)actor_number(&a, 0));
    }
    assert_refused(&a, PC_ERR_OUT_OF_MEMORY, "alloc 0 1");
    assert_true(daemon_books_equal_card());
    actor_end(&a);
    assert_within(3000, daemon_figures("a").charged == 0);
    assert_int_equal(daemon_figures("a").sessions, 0);
}

/* A forked child keeps the device files: the memory is not touched while NVML names the pid (trap 10). */
static void test_forked_child(void **state)
{
    (void)state;
    struct actor a, b;
    daemon_begin("- name: a\n  memory: 384Mi\n");
    daemon_actor(&a, "a");
    assert_ok(&a, "alloc 0 %llu", 6 * GRANULE);
    assert_ok(&a, "fork");
    pid_t child = (pid_t)actor_number(&a, 0);
    actor_kill(&a);
    daemon_actor(&b, "a");
    assert_refused(&b, PC_ERR_OUT_OF_MEMORY, "alloc 0 %llu", 6 * GRANULE);
    daemon_nap(1200);
    assert_int_equal(daemon_figures("a").pool_used, 6 * GRANULE);
    assert_true(daemon_books_equal_card());
    kill(child, SIGKILL);
    assert_within(3000, daemon_figures("a").pool_used == 0);
    assert_ok(&b, "alloc 0 %llu", 6 * GRANULE);
    assert_ok(&b, "check %llu 0", (unsigned long long)actor_number(&b, 0));
    actor_end(&b);
}

/* A process that closes its socket and lives is charged on; when it connects again, all of it is its own. */
static void test_reconnects(void **state)
{
    (void)state;
    struct actor a;
    daemon_begin("- name: a\n  memory: 384Mi\n");
    daemon_actor(&a, "a");
    assert_ok(&a, "alloc 0 %llu", 2 * GRANULE);
    uint64_t block = actor_number(&a, 0), generation = actor_number(&a, 2);
    assert_ok(&a, "large 0 %llu", 64 * PC_MIB);
    uint64_t large = actor_number(&a, 0);
    assert_ok(&a, "write %llu 3", (unsigned long long)block);
    assert_ok(&a, "close");
    daemon_nap(300);
    assert_int_equal(daemon_figures("a").charged, 192 * PC_MIB);
    assert_ok(&a, "connect %s", daemon_socket("a"));
    assert_ok(&a, "attach 0");
    assert_int_equal(daemon_figures("a").charged, 192 * PC_MIB);
    assert_int_equal(daemon_figures("a").context, CONTEXT);
    assert_within(1000, daemon_figures("a").sessions == 1);
    assert_ok(&a, "check %llu 3", (unsigned long long)block);
    assert_ok(&a, "alloc 0 %llu", GRANULE); /* the pool is imported still: no second fd */
    assert_int_equal(actor_number(&a, 2), generation);
    assert_int_equal(actor_number(&a, 3), 0);
    assert_ok(&a, "free %llu", (unsigned long long)block);
    assert_ok(&a, "free %llu", (unsigned long long)large);
    assert_within(2000, daemon_figures("a").pending == 0);
    /* The old connection may not be seen to be closed when the new one says hello. */
    for (int i = 0; i < 20; i++)
        assert_ok(&a, "connect %s", daemon_socket("a"));
    assert_ok(&a, "attach 0");
    assert_int_equal(daemon_figures("a").context, CONTEXT);
    assert_within(1000, daemon_figures("a").sessions == 1);
    actor_end(&a);
}

/* One that connects and never takes anything leaves nothing. */
static void test_holds_nothing(void **state)
{
    (void)state;
    struct actor a;
    daemon_begin("- name: a\n  memory: 384Mi\n");
    actor_start(&a);
    for (int i = 0; i < 300; i++) { /* more than a grant's sessions */
        assert_ok(&a, "connect %s", daemon_socket("a"));
        assert_ok(&a, "close");
    }
    assert_within(1000, daemon_figures("a").sessions == 0);
    actor_end(&a);
}

/* Killed while its request is with the worker: the block is put back, whole and clean. */
static void test_killed_in_a_request(void **state)
{
    (void)state;
    struct actor a;
    daemon_begin("- name: a\n  memory: 1Gi\n");
    for (int i = 0; i < 12; i++) {
        static const char *const slow[] = {"cuMemPoolCreate:40000",
                                           "cuMemAllocFromPoolAsync:40000",
                                           "cuMemPoolExportPointer:40000",
                                           "cuMemPoolExportToShareableHandle:40000",
                                           "cuMemCreate:40000",
                                           "cuMemsetD8Async:40000"};
        daemon_actor(&a, "a");
        if (i >= 6) { /* leaves something behind that has to be zeroed */
            assert_ok(&a, "alloc 0 %llu", 2 * GRANULE);
            assert_ok(&a, "write %llu 77", (unsigned long long)actor_number(&a, 0));
        }
        daemon_delay(slow[i % 6]);
        actor_tell(&a, i % 6 == 4 ? "large 0 %llu" : "alloc 0 %llu", i % 2 == 0 ? 2 * GRANULE : 12 * GRANULE);
        daemon_nap(15);
        actor_kill(&a);
        daemon_delay(NULL);
        assert_within(3000, daemon_figures("a").sessions == 0);
        assert_int_equal(daemon_figures("a").pool_used, 0);
        assert_int_equal(daemon_figures("a").charged, 0);
        assert_true(daemon_books_equal_card());
    }
    daemon_actor(&a, "a");
    for (int i = 0; i < 15; i++) {
        assert_ok(&a, "alloc 0 %llu", 2 * GRANULE);
        assert_ok(&a, "check %llu 0", (unsigned long long)actor_number(&a, 0));
    }
    assert_refused(&a, PC_ERR_OUT_OF_MEMORY, "alloc 0 1");
    actor_end(&a);
}

/* Many at once, killed at random: the books come back to nothing. */
static void test_crowd(void **state)
{
    (void)state;
    struct actor crowd[12];
    unsigned seed = 4711;
    daemon_begin("- name: a\n  memory: 1Gi\n- name: b\n  memory: 1Gi\n");
    for (int round = 0; round < 6; round++) {
        for (int i = 0; i < 12; i++) {
            actor_start(&crowd[i]);
            actor_say(&crowd[i], "connect %s", daemon_socket(i % 2 == 0 ? "a" : "b"));
            actor_say(&crowd[i], "attach 0");
        }
        for (int step = 0; step < 20; step++)
            for (int i = 0; i < 12; i++)
                if (actor_say(&crowd[i], "alloc 0 %llu", (1 + (unsigned)rand_r(&seed) % 4) * GRANULE) &&
                    rand_r(&seed) % 2 == 0)
                    assert_ok(&crowd[i], "free %llu", (unsigned long long)actor_number(&crowd[i], 0));
        for (int i = 0; i < 12; i++) {
            if (rand_r(&seed) % 2 == 0)
                actor_tell(&crowd[i], "alloc 0 %llu", 3 * GRANULE);
            actor_kill(&crowd[i]);
        }
        assert_within(3000, daemon_figures("a").sessions + daemon_figures("b").sessions == 0);
        assert_int_equal(daemon_figures("a").charged + daemon_figures("b").charged, 0);
        assert_true(daemon_books_equal_card());
    }
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "actor") == 0)
        return actor_main();
    daemon_setup();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_killed_while_holding, end), cmocka_unit_test_teardown(test_forked_child, end),
        cmocka_unit_test_teardown(test_reconnects, end),           cmocka_unit_test_teardown(test_holds_nothing, end),
        cmocka_unit_test_teardown(test_killed_in_a_request, end),  cmocka_unit_test_teardown(test_crowd, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
