/* poolcapd is killed and started again under tenants that live: nothing is promised twice, nothing is forgotten. */
#include <signal.h>
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

static void restart(void)
{
    daemon_kill();
    daemon_start();
}

static void test_reconnects(void **state)
{
    (void)state;
    struct actor a;
    daemon_begin("- name: a\n  memory: 512Mi\n");
    daemon_actor(&a, "a");
    assert_ok(&a, "alloc 0 %llu", 4 * GRANULE);
    uint64_t block = actor_number(&a, 0), generation = actor_number(&a, 2);
    assert_ok(&a, "write %llu 7", (unsigned long long)block);
    assert_ok(&a, "large 0 %llu", 64 * PC_MIB);
    uint64_t large = actor_number(&a, 0);
    assert_ok(&a, "reserve 0 %llu", 32 * PC_MIB);
    assert_ok(&a, "direct %llu", 32 * PC_MIB);
    uint64_t epoch = daemon_epoch();
    restart();
    assert_int_equal(daemon_epoch(), epoch + 1);
    struct daemon_figures f = daemon_figures("a");
    assert_int_equal(f.inherited, 4 * GRANULE);
    assert_int_equal(f.large, 64 * PC_MIB);
    assert_int_equal(f.direct, 32 * PC_MIB);
    assert_int_equal(f.context, CONTEXT);
    assert_ok(&a, "check %llu 7", (unsigned long long)block);
    assert_ok(&a, "connect %s", daemon_socket("a"));
    assert_ok(&a, "attach 0");
    assert_int_equal(daemon_figures("a").context, CONTEXT);
    assert_ok(&a, "alloc 0 %llu", 7 * GRANULE); /* 512 - 64 - 128 - 64 - 32 */
    assert_int_not_equal(actor_number(&a, 2), generation);
    assert_refused(&a, PC_ERR_OUT_OF_MEMORY, "alloc 0 1");
    assert_true(daemon_books_equal_card());
    /* It gives the old ones back, by their old names. */
    assert_ok(&a, "free %llu", (unsigned long long)large);
    assert_within(2000, daemon_figures("a").large + daemon_figures("a").pending == 0);
    assert_ok(&a, "free %llu", (unsigned long long)block);
    assert_int_equal(daemon_figures("a").inherited, 4 * GRANULE); /* one import pins it all */
    assert_ok(&a, "drop %llu", (unsigned long long)generation);
    assert_within(2000, daemon_figures("a").inherited == 0);
    /* The pool that was made beside the inherited one has its maxSize for good: the rest is a third pool's. */
    assert_refused(&a, PC_ERR_OUT_OF_MEMORY, "alloc 0 %llu", 6 * GRANULE);
    assert_non_null(strstr(a.answer, "no single pool"));
    assert_ok(&a, "alloc 0 %llu", 5 * GRANULE);
    assert_ok(&a, "alloc 0 %llu", GRANULE);
    assert_refused(&a, PC_ERR_OUT_OF_MEMORY, "alloc 0 1");
    assert_true(daemon_books_equal_card());
    actor_end(&a);
    assert_within(3000, daemon_figures("a").sessions == 0);
}

static void test_never_reconnects(void **state)
{
    (void)state;
    struct actor a, b;
    daemon_begin("- name: a\n  memory: 512Mi\n");
    daemon_actor(&a, "a");
    assert_ok(&a, "alloc 0 %llu", 8 * GRANULE);
    uint64_t block = actor_number(&a, 0);
    assert_ok(&a, "write %llu 9", (unsigned long long)block);
    restart();
    daemon_actor(&b, "a");
    assert_ok(&b, "alloc 0 %llu", 4 * GRANULE);
    assert_ok(&b, "check %llu 0", (unsigned long long)actor_number(&b, 0));
    assert_refused(&b, PC_ERR_OUT_OF_MEMORY, "alloc 0 1"); /* two contexts, 256 MiB inherited, 128 MiB */
    assert_true(daemon_books_equal_card());
    restart(); /* and once more */
    assert_int_equal(daemon_figures("a").inherited, 12 * GRANULE);
    assert_ok(&a, "check %llu 9", (unsigned long long)block);
    actor_kill(&a);
    assert_within(3000, daemon_figures("a").inherited == 4 * GRANULE);
    actor_kill(&b);
    assert_within(3000, daemon_figures("a").charged + daemon_figures("a").tenant_charged == 0);
    assert_true(daemon_books_equal_card());
    daemon_actor(&b, "a");
    assert_ok(&b, "alloc 0 %llu", 14 * GRANULE);
    actor_end(&b);
}

/* Died while poolcapd was away: the witness finds out. */
static void test_died_meanwhile(void **state)
{
    (void)state;
    struct actor a;
    daemon_begin("- name: a\n  memory: 512Mi\n");
    daemon_actor(&a, "a");
    assert_ok(&a, "alloc 0 %llu", 8 * GRANULE);
    assert_ok(&a, "large 0 %llu", 64 * PC_MIB);
    daemon_kill();
    actor_kill(&a);
    daemon_start();
    daemon_actor(&a, "a"); /* waits for the witness where it has to */
    assert_ok(&a, "alloc 0 %llu", 14 * GRANULE);
    assert_true(daemon_books_equal_card());
    actor_end(&a);
}

/* A forked child of a process that died keeps all of it on the card: charged until it goes. */
static void test_child_meanwhile(void **state)
{
    (void)state;
    struct actor a;
    daemon_begin("- name: a\n  memory: 512Mi\n");
    daemon_actor(&a, "a");
    assert_ok(&a, "alloc 0 %llu", 8 * GRANULE);
    assert_ok(&a, "fork");
    pid_t child = (pid_t)actor_number(&a, 0);
    daemon_kill();
    actor_kill(&a);
    daemon_start();
    daemon_nap(700);
    assert_int_equal(daemon_figures("a").inherited, 8 * GRANULE);
    kill(child, SIGKILL);
    assert_within(3000, daemon_figures("a").tenant_charged == 0);
}

/* It says that it dropped an old generation, and did not: charged until it is dead. */
static void test_lied_about_old(void **state)
{
    (void)state;
    struct actor a, b;
    daemon_begin("- name: a\n  memory: 512Mi\n- name: b\n  memory: 512Mi\n");
    daemon_actor(&a, "a");
    daemon_actor(&b, "b");
    assert_ok(&a, "alloc 0 %llu", 8 * GRANULE);
    uint64_t generation = actor_number(&a, 2);
    assert_ok(&b, "alloc 0 %llu", 8 * GRANULE);
    uint64_t other = actor_number(&b, 2), block = actor_number(&b, 0);
    restart();
    assert_ok(&a, "connect %s", daemon_socket("a"));
    assert_ok(&b, "connect %s", daemon_socket("b"));
    assert_ok(&a, "liedrop %llu", (unsigned long long)generation);
    daemon_nap(500);
    assert_int_equal(daemon_figures("a").inherited, 8 * GRANULE);
    assert_ok(&a, "attach 0");
    assert_refused(&a, PC_ERR_OUT_OF_MEMORY, "alloc 0 %llu", 7 * GRANULE);
    restart(); /* what it said is in the books too, and still not believed */
    daemon_nap(500);
    assert_int_equal(daemon_figures("a").inherited, 8 * GRANULE);
    actor_kill(&a);
    assert_within(3000, daemon_figures("a").tenant_charged == 0);
    assert_ok(&b, "connect %s", daemon_socket("b"));
    assert_ok(&b, "free %llu", (unsigned long long)block);
    assert_ok(&b, "drop %llu", (unsigned long long)other);
    assert_within(3000, daemon_figures("b").inherited == 0);
    actor_end(&b);
}

/* A grant that was made by hand is there again; one that the configuration lost ends with its last process. */
static void test_grants_come_back(void **state)
{
    (void)state;
    struct actor a, m;
    char text[512];
    daemon_begin("- name: a\n  memory: 512Mi\n- name: gone\n  memory: 2Gi\n");
    assert_int_equal(daemon_make("made", "", "0", 1024 * PC_MIB, 896 * PC_MIB, text), PC_OK);
    assert_int_equal(daemon_set_cap("made", 512 * PC_MIB, text), PC_OK);
    daemon_actor(&a, "gone");
    daemon_actor(&m, "made");
    assert_ok(&a, "alloc 0 %llu", 8 * GRANULE);
    assert_ok(&m, "alloc 0 %llu", 8 * GRANULE);
    daemon_kill();
    daemon_configure("- name: a\n  memory: 512Mi\n- name: new\n  memory: 2Gi\n"); /* does not fit beside gone */
    daemon_start();
    assert_int_equal(daemon_figures("made").granted, 1024 * PC_MIB);
    assert_int_equal(daemon_figures("made").cap, 512 * PC_MIB);
    assert_true(daemon_figures("gone").dropping);
    assert_int_equal(daemon_figures("gone").granted, 2048 * PC_MIB);
    assert_false(daemon_figures("new").found);
    assert_ok(&m, "connect %s", daemon_socket("made"));
    assert_false(actor_say(&a, "connect %s", daemon_socket("gone")));
    actor_kill(&a);
    assert_within(3000, !daemon_figures("gone").found);
    assert_int_equal(daemon_reload(text), PC_OK);
    assert_true(daemon_figures("new").found);
    actor_end(&m);
}

static void test_orderly_stop(void **state)
{
    (void)state;
    struct actor a;
    daemon_begin("- name: a\n  memory: 512Mi\n");
    daemon_actor(&a, "a");
    assert_ok(&a, "alloc 0 %llu", 8 * GRANULE);
    uint64_t block = actor_number(&a, 0);
    assert_ok(&a, "write %llu 9", (unsigned long long)block);
    daemon_stop();
    assert_ok(&a, "check %llu 9", (unsigned long long)block);
    daemon_start();
    assert_int_equal(daemon_figures("a").inherited, 8 * GRANULE);
    actor_end(&a);
    assert_within(3000, daemon_figures("a").tenant_charged == 0);
}

/* Killed at many moments of a busy life, again and again: never more on the card than what the next one charges. */
static void test_killed_at_any_moment(void **state)
{
    (void)state;
    struct actor a[4];
    unsigned seed = 99;
    daemon_begin("- name: a\n  memory: 1Gi\n- name: b\n  memory: 1Gi\n");
    for (int i = 0; i < 4; i++)
        daemon_actor(&a[i], i % 2 == 0 ? "a" : "b");
    for (int round = 0; round < 25; round++) {
        for (int i = 0; i < 4; i++) {
            unsigned dice = (unsigned)rand_r(&seed) % 4;
            actor_tell(&a[i], dice == 3 ? "large 0 %llu" : "alloc 0 %llu", (1 + dice) * GRANULE);
        }
        daemon_nap((unsigned)rand_r(&seed) % 4);
        daemon_kill();
        for (int i = 0; i < 4; i++)
            actor_hear(&a[i]);
        daemon_start();
        uint64_t charged = daemon_gpu(0).charged, used = daemon_card_used(0);
        if (used > charged + CONTEXT)
            fail_msg("round %d: %llu MiB on the card, %llu charged", round, (unsigned long long)(used / PC_MIB),
                     (unsigned long long)(charged / PC_MIB));
        for (int i = 0; i < 4; i++) {
            assert_ok(&a[i], "connect %s", daemon_socket(i % 2 == 0 ? "a" : "b"));
            assert_ok(&a[i], "attach 0");
        }
    }
    assert_true(daemon_figures("a").tenant_charged <= 1024 * PC_MIB);
    for (int i = 0; i < 4; i++)
        actor_kill(&a[i]);
    assert_within(3000, daemon_gpu(0).charged == 0);
    assert_true(daemon_books_equal_card());
}

static void test_other_boot(void **state)
{
    (void)state;
    struct actor a;
    char path[300];
    daemon_begin("- name: a\n  memory: 512Mi\n");
    daemon_actor(&a, "a");
    assert_ok(&a, "alloc 0 %llu", 8 * GRANULE);
    daemon_kill();
    actor_kill(&a);
    snprintf(path, sizeof path, "%s/books", daemon_directory());
    FILE *f = fopen(path, "r+e");
    fseek(f, 16, SEEK_SET); /* the boot id */
    fputs("another", f);
    fclose(f);
    daemon_start();
    assert_int_equal(daemon_figures("a").tenant_charged, 0);
    daemon_kill();
    assert_int_equal(truncate(path, 1000), 0); /* not a whole file: begun anew, and said */
    daemon_start();
    assert_int_equal(daemon_figures("a").tenant_charged, 0);
}

/*
 * Makes a file of version 3 of the file, which it has to be able to be: the same tables, and a grant's record ended
 * with its pod's UID.
 */
static void to_version_3(const char *path)
{
    static const struct {
        size_t now, then, count;
    } tables[] = {{72, 72, 32},    {1504, 1240, 1024}, {144, 144, 2048},
                  {32, 32, 16384}, {160, 160, 4096},   {152, 152, 8192}};
    enum { HEADER = 4096, MOST = 8 << 20 };
    char *old = calloc(1, MOST), *made = calloc(1, MOST);
    FILE *f = fopen(path, "re");
    assert_true(old != NULL && made != NULL && f != NULL);
    size_t size = fread(old, 1, MOST, f), at = HEADER, to = HEADER;
    fclose(f);
    memcpy(made, old, HEADER);
    assert_int_equal(((uint64_t *)(void *)made)[1], 4);
    ((uint64_t *)(void *)made)[1] = 3;
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        for (size_t n = 0; n < tables[i].count; n++)
            memcpy(made + to + n * tables[i].then, old + at + n * tables[i].now, tables[i].then);
        at += (tables[i].now * tables[i].count + 4095) / 4096 * 4096;
        to += (tables[i].then * tables[i].count + 4095) / 4096 * 4096;
    }
    assert_int_equal(at, size);
    f = fopen(path, "we");
    assert_int_equal(fwrite(made, 1, to, f), to);
    fclose(f);
    free(old);
    free(made);
}

/* An upgrade: the poolcapd before had books without shared units. */
static void test_version_before(void **state)
{
    (void)state;
    struct actor a;
    char path[300], text[512];
    daemon_begin("- name: a\n  memory: 512Mi\n");
    assert_int_equal(daemon_make("made", "t", "0", 1024 * PC_MIB, 512 * PC_MIB, text), PC_OK);
    daemon_actor(&a, "made");
    assert_ok(&a, "alloc 0 %llu", 4 * GRANULE);
    uint64_t block = actor_number(&a, 0), epoch = daemon_epoch();
    assert_ok(&a, "write %llu 5", (unsigned long long)block);
    assert_ok(&a, "large 0 %llu", 64 * PC_MIB);
    snprintf(path, sizeof path, "%s/books", daemon_directory());
    daemon_kill();
    to_version_3(path);
    daemon_start();
    assert_int_equal(daemon_epoch(), epoch + 1);
    struct daemon_figures f = daemon_figures("made");
    assert_int_equal(f.granted, 1024 * PC_MIB);
    assert_int_equal(f.cap, 512 * PC_MIB);
    assert_int_equal(f.shared, 0);
    assert_int_equal(f.inherited, 4 * GRANULE);
    assert_int_equal(f.large, 64 * PC_MIB);
    assert_int_equal(daemon_gpu(0).granted, (512 + 1024) * PC_MIB);
    assert_true(daemon_books_equal_card());
    struct daemon_want app = {.name = "app", .tenant = "t", .granted = 512 * PC_MIB, .shared = 512 * PC_MIB};
    assert_int_equal(daemon_make_with(&app, text), PC_OK);
    assert_int_equal(daemon_gpu(0).granted, (512 + 1024) * PC_MIB);
    restart(); /* from books that are of this version now */
    assert_int_equal(daemon_figures("app").shared, 512 * PC_MIB);
    assert_int_equal(daemon_figures("made").inherited, 4 * GRANULE);
    assert_ok(&a, "connect %s", daemon_socket("made"));
    assert_ok(&a, "check %llu 5", (unsigned long long)block);
    actor_end(&a);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "actor") == 0)
        return actor_main();
    daemon_setup();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_reconnects, end),     cmocka_unit_test_teardown(test_never_reconnects, end),
        cmocka_unit_test_teardown(test_died_meanwhile, end), cmocka_unit_test_teardown(test_child_meanwhile, end),
        cmocka_unit_test_teardown(test_lied_about_old, end), cmocka_unit_test_teardown(test_grants_come_back, end),
        cmocka_unit_test_teardown(test_orderly_stop, end),   cmocka_unit_test_teardown(test_killed_at_any_moment, end),
        cmocka_unit_test_teardown(test_other_boot, end),     cmocka_unit_test_teardown(test_version_before, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
