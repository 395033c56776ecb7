/* Start-up, grants made, changed and dropped at run time, and what an administrator reads when something is wrong. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "tests/integration/broker_daemon.h"

static int end(void **state)
{
    (void)state;
    daemon_end();
    return 0;
}

static bool exists(const char *name)
{
    char path[300];
    struct stat st;
    snprintf(path, sizeof path, "%s/grants/%s", daemon_directory(), name);
    return stat(path, &st) == 0;
}

/* ---- start ---- */

static void assert_start_fails(const char *says)
{
    char text[2048];
    if (!daemon_start_fails(text, sizeof text) || strstr(text, says) == NULL)
        fail_msg("wanted \"%s\": %s", says, text);
}

static void test_second_poolcapd(void **state)
{
    (void)state;
    daemon_begin("- name: a\n  memory: 256Mi\n");
    assert_start_fails("another poolcapd runs with");
    assert_true(daemon_figures("a").found);
}

static void test_bad_grants(void **state)
{
    (void)state;
    static const struct {
        const char *yaml, *says;
    } bad[] = {
        {"- name: a\n  memory: 64Mi\n", "the smallest that works is 96Mi"},
        {"- name: a\n  memory: 5Gi\n", "capacity 4032Mi"},
        {"- name: a\n  memory: 3Gi\n- name: b\n  memory: 2Gi\n", "granted to others 3Gi, requested 2Gi"},
        {"- name: a\n  gpu: 7\n  memory: 1Gi\n", "no GPU \"7\" here; there are: 0 (GPU-"},
        {"- name: a\n  gpus: [{gpu: 0, memory: 1Gi}, {gpu: 7, memory: 1Gi}]\n", "no GPU \"7\" here"},
        {"- name: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n  memory: 1Gi\n",
         "use a shorter run"},
    };
    daemon_begin("- name: ok\n  memory: 256Mi\n");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char path[300];
        if (daemon_pid() > 0)
            daemon_stop();
        snprintf(path, sizeof path, "%s/books", daemon_directory());
        unlink(path); /* a first start */
        daemon_configure(bad[i].yaml);
        assert_start_fails(bad[i].says);
        assert_true(i >= 2 || !exists("a")); /* the third makes it, and then cannot make b */
        assert_false(exists("b"));
    }
}

static void test_simulated_is_meant(void **state)
{
    (void)state;
    daemon_begin("- name: ok\n  memory: 256Mi\n");
    daemon_stop();
    daemon_run_with("--simulated=false");
    assert_start_fails("is a simulated one");
    daemon_run_with("--run-directory=/proc/nowhere");
    assert_start_fails("choose another with --run-directory");
    daemon_run_with("--run-directory=/proc");
    assert_start_fails("cannot write in the run directory");
    daemon_run_with("--cuda-library=/nonexistent/libcuda.so.1");
    assert_start_fails("/nonexistent/libcuda.so.1");
    daemon_run_with("--nvml-library=/nonexistent/libnvidia-ml.so.1"); /* goes without */
    daemon_start();
    assert_true(daemon_figures("ok").found);
}

/* A driver that does not keep maxSize, or fails while it is tried, is not used. */
static void test_driver_is_proved(void **state)
{
    (void)state;
    static const char *const fails[] = {"cuDevicePrimaryCtxRetain:*:2",      "cuMemPoolCreate:*:999",
                                        "cuMemAllocFromPoolAsync:*:700",     "cuMemPoolGetAttribute:*:1",
                                        "cuMemGetAllocationGranularity:*:1", "cuStreamCreate:*:2"};
    daemon_begin("- name: ok\n  memory: 256Mi\n");
    daemon_stop();
    for (size_t i = 0; i < sizeof fails / sizeof fails[0]; i++) {
        daemon_inject(fails[i]);
        assert_start_fails("no GPU can be used");
    }
    daemon_inject(NULL);
    daemon_start();
}

/* ---- grants at run time ---- */

static void test_make(void **state)
{
    (void)state;
    struct actor a;
    char text[512];
    daemon_begin("- name: ok\n  memory: 256Mi\n");
    assert_int_equal(daemon_make("made", "", "0", 256 * PC_MIB, 0, text), PC_OK);
    assert_non_null(strstr(text, "grants/made/poolcap.sock"));
    assert_int_equal(daemon_figures("made").cap, 256 * PC_MIB);
    /* The plugin repeats itself: what is there already is made; anything else of that name is not. */
    assert_int_equal(daemon_make("made", "made", "0", 256 * PC_MIB, 256 * PC_MIB, text), PC_OK);
    assert_non_null(strstr(text, "grants/made/poolcap.sock"));
    assert_int_equal(daemon_make("made", "", "0", 288 * PC_MIB, 0, text), PC_ERR_EXISTS);
    assert_non_null(strstr(text, "with another amount of memory"));
    assert_int_equal(daemon_make("made", "", "0", 256 * PC_MIB, 192 * PC_MIB, text), PC_ERR_EXISTS);
    assert_non_null(strstr(text, "with another cap"));
    assert_int_equal(daemon_make("made", "", "1", 256 * PC_MIB, 0, text), PC_ERR_EXISTS);
    assert_non_null(strstr(text, "with another GPU"));
    assert_int_equal(daemon_make("made", "t", "0", 256 * PC_MIB, 0, text), PC_ERR_EXISTS);
    assert_non_null(strstr(text, "with another tenant"));
    struct daemon_want bound = {.name = "made", .pod_uid = "1-2", .granted = 256 * PC_MIB};
    assert_int_equal(daemon_make_with(&bound, text), PC_ERR_EXISTS);
    assert_non_null(strstr(text, "with another pod"));
    assert_int_equal(daemon_figures("made").cap, 256 * PC_MIB);
    assert_int_equal(daemon_make("../made", "", "0", 256 * PC_MIB, 0, text), PC_ERR_INVALID);
    assert_int_equal(daemon_make("", "", "0", 256 * PC_MIB, 0, text), PC_ERR_INVALID);
    assert_int_equal(daemon_make("b", "no/name", "0", 256 * PC_MIB, 0, text), PC_ERR_INVALID);
    assert_int_equal(daemon_make("b", "", "0", 256 * PC_MIB + 1, 0, text), PC_ERR_INVALID);
    assert_non_null(strstr(text, "multiple of 32Mi"));
    assert_int_equal(daemon_make("b", "", "0", 256 * PC_MIB, 257 * PC_MIB, text), PC_ERR_INVALID);
    assert_non_null(strstr(text, "only lowers"));
    assert_int_equal(daemon_make("b", "", "0", 64 * PC_MIB, 0, text), PC_ERR_INVALID);
    assert_int_equal(daemon_make("b", "", "9", 256 * PC_MIB, 0, text), PC_ERR_INVALID);
    assert_int_equal(daemon_make("b", "", "0", 4096 * PC_MIB, 0, text), PC_ERR_OUT_OF_MEMORY);
    assert_non_null(strstr(text, "granted to others 512Mi"));
    assert_int_equal(daemon_set_cap("nobody", PC_GIB, text), PC_ERR_NOT_FOUND);
    assert_false(daemon_figures("b").found);
    assert_false(exists("b"));
    daemon_actor(&a, "made");
    assert_ok(&a, "alloc 0 1");
    actor_end(&a);
}

static void test_drop(void **state)
{
    (void)state;
    struct actor a;
    char text[512];
    daemon_begin("- name: a\n  memory: 512Mi\n");
    daemon_actor(&a, "a");
    assert_ok(&a, "alloc 0 %llu", 4 * GRANULE);
    uint64_t block = actor_number(&a, 0);
    assert_ok(&a, "write %llu 3", (unsigned long long)block);
    assert_int_equal(daemon_drop("a", false, text), PC_OK);
    assert_true(daemon_figures("a").dropping);
    assert_ok(&a, "check %llu 3", (unsigned long long)block); /* its sessions are not killed */
    assert_refused(&a, PC_ERR_DENIED, "alloc 0 1");
    assert_int_equal(daemon_make("a", "", "0", 512 * PC_MIB, 0, text), PC_ERR_EXISTS);
    assert_non_null(strstr(text, "being dropped"));
    assert_ok(&a, "free %llu", (unsigned long long)block);
    actor_end(&a);
    assert_within(3000, !daemon_figures("a").found);
    assert_false(exists("a"));
    assert_true(daemon_books_equal_card());
    /* wait: answered when the memory is back. */
    assert_int_equal(daemon_make("a", "", "0", 512 * PC_MIB, 0, text), PC_OK);
    daemon_actor(&a, "a");
    assert_ok(&a, "alloc 0 %llu", 4 * GRANULE);
    actor_kill(&a);
    assert_int_equal(daemon_drop("a", true, text), PC_OK);
    assert_int_equal(daemon_card_used(0), CONTEXT);
    assert_false(exists("a"));
    assert_int_equal(daemon_drop("a", true, text), PC_ERR_NOT_FOUND);
}

/* One of a tenant's grants ends, the other stays: its pools keep what they may hold until they are gone. */
static void test_drop_one_of_two(void **state)
{
    (void)state;
    struct actor a;
    char text[512];
    daemon_begin("- name: one\n  tenant: t\n  memory: 256Mi\n- name: two\n  tenant: t\n  memory: 256Mi\n");
    daemon_actor(&a, "two");
    assert_ok(&a, "alloc 0 %llu", 4 * GRANULE);
    assert_int_equal(daemon_drop("one", true, text), PC_OK);
    assert_int_equal(daemon_gpu(0).granted, 512 * PC_MIB); /* the pool's maxSize cannot be lowered */
    assert_int_equal(daemon_set_cap("two", 224 * PC_MIB, text), PC_OK);
    assert_ok(&a, "alloc 0 1");
    assert_refused(&a, PC_ERR_OUT_OF_MEMORY, "alloc 0 1");
    actor_end(&a);
    assert_int_equal(daemon_drop("two", true, text), PC_OK);
    assert_int_equal(daemon_gpu(0).granted, 0);
}

static void test_reload(void **state)
{
    (void)state;
    char text[512];
    daemon_begin("- name: a\n  memory: 512Mi\n- name: b\n  memory: 512Mi\n");
    daemon_configure("- name: a\n  memory: 512Mi\n  cap: 256Mi\n- name: c\n  memory: 1Gi\n");
    assert_int_equal(daemon_reload(text), PC_OK);
    assert_string_equal(text,
                        "1 grants made, 1 changed; 1 are in the file no more and stay: drop them with poolcapctl drop");
    assert_int_equal(daemon_figures("a").cap, 256 * PC_MIB);
    assert_true(daemon_figures("b").found && daemon_figures("c").found);
    daemon_configure("- name: a\n  memory: 8Gi\n");
    assert_int_equal(daemon_reload(text), PC_ERR_OUT_OF_MEMORY);
    assert_non_null(strstr(text, "config.yaml:5: grant a"));
    daemon_configure("nonsense\n");
    assert_int_equal(daemon_reload(text), PC_ERR_INVALID);
    assert_int_equal(daemon_figures("a").cap, 256 * PC_MIB);
    daemon_configure("- name: a\n  gpu: 1\n  memory: 512Mi\n");
    assert_int_equal(daemon_reload(text), PC_ERR_INVALID);
    assert_non_null(strstr(text, "cannot change"));
}

/* ---- size ---- */

static uint64_t anonymous_kib(void)
{
    char path[64], line[256];
    unsigned long long kib = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)daemon_pid());
    FILE *f = fopen(path, "re");
    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        sscanf(line, "RssAnon: %llu", &kib);
    fclose(f);
    return kib;
}

static void test_64_tenants(void **state)
{
    (void)state;
    enum { TENANTS = 32 }; /* a GPU; both */
    static char yaml[TENANTS * 2 * 64];
    static struct actor actors[TENANTS * 2];
    size_t used = 0;
    for (int i = 0; i < TENANTS * 2; i++)
        used += (size_t)snprintf(yaml + used, sizeof yaml - used, "- name: t%d\n  gpu: %d\n  memory: 96Mi\n", i, i % 2);
    daemon_begin(yaml);
    for (int i = 0; i < TENANTS * 2; i++) {
        char name[16];
        snprintf(name, sizeof name, "t%d", i);
        daemon_actor(&actors[i], name);
        assert_ok(&actors[i], "reserve 0 %llu", 32 * PC_MIB);
        assert_true(daemon_figures(name).charged == 96 * PC_MIB); /* the list comes in pages */
    }
    /* The actors' contexts are on the GPU of their grant: all on one, they would not fit. */
    assert_int_equal(daemon_card_used(0), (TENANTS + 1) * CONTEXT);
    assert_int_equal(daemon_card_used(1), (TENANTS + 1) * CONTEXT);
    printf("poolcapd with %d tenants: %llu KiB anonymous\n", TENANTS * 2, (unsigned long long)anonymous_kib());
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_true(anonymous_kib() < 16 * 1024);
#endif
    for (int i = 0; i < TENANTS * 2; i++)
        actor_kill(&actors[i]);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "actor") == 0)
        return actor_main();
    daemon_setup();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_second_poolcapd, end),
        cmocka_unit_test_teardown(test_bad_grants, end),
        cmocka_unit_test_teardown(test_simulated_is_meant, end),
        cmocka_unit_test_teardown(test_driver_is_proved, end),
        cmocka_unit_test_teardown(test_make, end),
        cmocka_unit_test_teardown(test_drop, end),
        cmocka_unit_test_teardown(test_drop_one_of_two, end),
        cmocka_unit_test_teardown(test_reload, end),
        cmocka_unit_test_teardown(test_64_tenants, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
