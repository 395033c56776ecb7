/* Driver calls that fail or hang: requests are refused or tried again, and the books stay equal to the card. */
#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"
#include "tests/integration/broker_daemon.h"

static int end(void **state)
{
    (void)state;
    daemon_end();
    return 0;
}

static const char *const allocate_path[] = {
    "cuCtxSetCurrent",       "cuMemPoolCreate",        "cuMemPoolSetAccess",
    "cuMemPoolSetAttribute", "cuStreamCreate",         "cuMemAllocFromPoolAsync",
    "cuStreamSynchronize",   "cuMemPoolExportPointer", "cuMemPoolExportToShareableHandle",
    "cuMemsetD8Async",       "cuMemPoolGetAttribute",  "cuMemFreeAsync",
};

/*
 * Each call of the path fails once, with an error that does not stick, the first, second, third or fourth time. What
 * poolcapd said it gave is there; what it did not give is not charged, or is charged because the card holds it.
 */
static void test_each_call(void **state)
{
    (void)state;
    char rule[128];
    for (size_t call = 0; call < sizeof allocate_path / sizeof allocate_path[0]; call++) {
        for (int nth = 1; nth <= 4; nth++) {
            struct actor a, b;
            daemon_begin("- name: a\n  memory: 1536Mi\n");
            daemon_actor(&a, "a");
            daemon_actor(&b, "a");
            assert_ok(&b, "alloc 0 %llu", 2 * GRANULE);
            uint64_t old = actor_number(&b, 0);
            assert_ok(&b, "write %llu 200", (unsigned long long)old);
            assert_ok(&b, "alloc 0 %llu", 3 * GRANULE);
            assert_ok(&b, "lie %llu", (unsigned long long)actor_number(&b, 0));
            assert_ok(&b, "lie %llu", (unsigned long long)old);
            snprintf(rule, sizeof rule, "%s:%d:1", allocate_path[call], nth);
            daemon_inject(rule);
            actor_say(&a, "take 0 %llu", 2 * GRANULE);  /* a parked block, zeroed */
            actor_say(&a, "take 0 %llu", 4 * GRANULE);  /* parked blocks freed first */
            actor_say(&a, "take 0 %llu", 18 * GRANULE); /* grown in pieces */
            daemon_inject(NULL);
            if (!daemon_books_equal_card())
                fail_msg("%s", rule);
            if (daemon_gpu(0).fault[0] == '\0') { /* what is not charged can still be had, and reads zero */
                assert_ok(&a, "alloc 0 %llu", 2 * GRANULE);
                assert_ok(&a, "check %llu 0", (unsigned long long)actor_number(&a, 0));
                assert_true(daemon_books_equal_card());
            }
            actor_kill(&a);
            actor_kill(&b);
            daemon_end();
        }
    }
    daemon_begin("- name: a\n  memory: 1536Mi\n");
}

static void test_large_fails(void **state)
{
    (void)state;
    static const char *const calls[] = {"cuMemCreate:1:1", "cuMemExportToShareableHandle:1:1",
                                        "cuMemGetAllocationGranularity:1:1"};
    struct actor a;
    daemon_begin("- name: a\n  memory: 512Mi\n");
    daemon_actor(&a, "a");
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        daemon_inject(calls[i]);
        assert_refused(&a, PC_ERR_DRIVER, "large 0 %llu", 64 * PC_MIB);
        daemon_inject(NULL);
        assert_int_equal(daemon_figures("a").large, 0);
        assert_true(daemon_books_equal_card());
    }
    assert_ok(&a, "large 0 %llu", 448 * PC_MIB);
    actor_end(&a);
}

/* The card lags behind the books: tried again for 200 ms, then a broken promise is counted and said. */
static void test_broken_promise(void **state)
{
    (void)state;
    struct actor a;
    daemon_begin("- name: a\n  memory: 512Mi\n");
    daemon_actor(&a, "a");
    daemon_inject("cuMemAllocFromPoolAsync:1:2,cuMemAllocFromPoolAsync:2:2,cuMemAllocFromPoolAsync:3:2");
    assert_ok(&a, "alloc 0 %llu", 2 * GRANULE);
    assert_int_equal(daemon_gpu(0).broken_promises, 0);
    daemon_inject("cuMemAllocFromPoolAsync:*:2,cuMemCreate:*:2");
    assert_refused(&a, PC_ERR_OUT_OF_MEMORY, "alloc 0 %llu", 4 * GRANULE);
    assert_refused(&a, PC_ERR_OUT_OF_MEMORY, "large 0 %llu", 64 * PC_MIB);
    assert_int_equal(daemon_gpu(0).broken_promises, 2);
    daemon_inject(NULL);
    assert_true(daemon_books_equal_card());
    assert_int_equal(daemon_figures("a").pool_used, 2 * GRANULE);
    assert_ok(&a, "alloc 0 %llu", 12 * GRANULE);
    actor_end(&a);
}

/* An error that sticks takes the GPU out of service, with its reason; the other GPU goes on. */
static void test_sticky(void **state)
{
    (void)state;
    struct actor a, b;
    daemon_begin("- name: a\n  memory: 512Mi\n- name: b\n  gpu: 1\n  memory: 512Mi\n");
    daemon_actor(&a, "a");
    actor_start(&b);
    assert_ok(&b, "connect %s", daemon_socket("b"));
    assert_ok(&b, "book 0"); /* of its grant: the card's GPU 1 */
    assert_ok(&a, "alloc 0 1");
    uint64_t block = actor_number(&a, 0);
    daemon_inject("cuMemPoolExportPointer:1:700");
    assert_refused(&a, PC_ERR_DRIVER, "alloc 0 %llu", 4 * GRANULE);
    daemon_inject(NULL);
    assert_refused(&a, PC_ERR_DEVICE, "alloc 0 1");
    assert_non_null(strstr(a.answer, "out of service"));
    assert_non_null(strstr(daemon_gpu(0).fault, "700"));
    assert_ok(&a, "free %llu", (unsigned long long)block);
    assert_ok(&a, "info 0");
    assert_ok(&b, "take 0 1");
    assert_string_equal(daemon_gpu(1).fault, "");
    actor_end(&a);
    actor_end(&b);
}

/* A call that hangs: after 5 s the request is answered, and the other GPU has not waited for anything. */
static void test_hangs(void **state)
{
    (void)state;
    struct actor a, b;
    daemon_begin("- name: a\n  memory: 512Mi\n- name: b\n  gpu: 1\n  memory: 512Mi\n");
    daemon_actor(&a, "a");
    actor_start(&b);
    assert_ok(&b, "connect %s", daemon_socket("b"));
    assert_ok(&b, "book 0");
    daemon_delay("cuMemPoolCreate:8000000");
    actor_tell(&a, "alloc 0 1");
    daemon_nap(300);
    daemon_delay(NULL);
    assert_ok(&b, "take 0 1");
    assert_false(actor_hear(&a));
    assert_int_equal(actor_number(&a, 0), PC_ERR_DEVICE);
    assert_non_null(strstr(a.answer, "5 s"));
    assert_refused(&a, PC_ERR_DEVICE, "alloc 0 1");
    assert_ok(&b, "take 0 1");
    daemon_nap(4000); /* it comes back after all: what it brought is put back */
    assert_int_equal(daemon_figures("a").pool_used, 0);
    assert_true(daemon_books_equal_card());
    actor_end(&a);
    assert_within(3000, daemon_figures("a").sessions == 0);
    actor_end(&b);
}

/* Without NVML: pending ends by and by, and the dead are waited for half a second more. */
static void test_without_nvml(void **state)
{
    (void)state;
    struct actor a;
    daemon_begin("- name: a\n  memory: 512Mi\n");
    daemon_stop();
    daemon_run_with("--nvml-library=/nonexistent/libnvidia-ml.so.1");
    daemon_start();
    daemon_actor(&a, "a");
    assert_ok(&a, "alloc 0 %llu", 4 * GRANULE);
    assert_ok(&a, "large 0 %llu", 64 * PC_MIB);
    assert_ok(&a, "free %llu", (unsigned long long)actor_number(&a, 0));
    assert_within(2500, daemon_figures("a").pending == 0);
    assert_ok(&a, "reserve 0 %llu", 64 * PC_MIB);
    assert_ok(&a, "release 0 %llu", 64 * PC_MIB);
    assert_within(2500, daemon_figures("a").pending == 0);
    actor_kill(&a);
    daemon_nap(300);
    assert_int_equal(daemon_figures("a").pool_used, 4 * GRANULE);
    assert_within(2000, daemon_figures("a").charged == 0);
    daemon_actor(&a, "a");
    assert_ok(&a, "alloc 0 %llu", 14 * GRANULE);
    actor_end(&a);
}

/* A list that NVML fails to give is no list: nobody is buried by it. */
static void test_nvml_fails(void **state)
{
    (void)state;
    struct actor a;
    daemon_begin("- name: a\n  memory: 512Mi\n");
    daemon_actor(&a, "a");
    assert_ok(&a, "alloc 0 %llu", 4 * GRANULE);
    daemon_inject("nvmlDeviceGetComputeRunningProcesses:*:999,nvmlDeviceGetMemoryInfo:*:999");
    actor_kill(&a);
    daemon_nap(300);
    assert_int_equal(daemon_figures("a").pool_used, 4 * GRANULE);
    assert_within(2000, daemon_figures("a").charged == 0);
    daemon_inject(NULL);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "actor") == 0)
        return actor_main();
    daemon_setup();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_each_call, end),      cmocka_unit_test_teardown(test_large_fails, end),
        cmocka_unit_test_teardown(test_broken_promise, end), cmocka_unit_test_teardown(test_sticky, end),
        cmocka_unit_test_teardown(test_hangs, end),          cmocka_unit_test_teardown(test_without_nvml, end),
        cmocka_unit_test_teardown(test_nvml_fails, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
