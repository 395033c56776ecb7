/* What a tenant gets, and never more: blocks, large and direct memory, caps, sharing, zeroes. */
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

static uint64_t alloc(struct actor *a, uint64_t bytes)
{
    assert_ok(a, "alloc 0 %llu", (unsigned long long)bytes);
    return actor_number(a, 0);
}

/* ---- the caps ---- */

static void test_exact_cap(void **state)
{
    (void)state;
    struct actor a;
    uint64_t ids[8];
    daemon_begin("- name: a\n  memory: 320Mi\n");
    daemon_actor(&a, "a");
    for (int i = 0; i < 8; i++) { /* a context and 8 granules are 320 MiB */
        ids[i] = alloc(&a, GRANULE);
        assert_ok(&a, "write %llu %d", (unsigned long long)ids[i], i + 1);
    }
    assert_refused(&a, PC_ERR_OUT_OF_MEMORY, "alloc 0 1");
    assert_non_null(strstr(a.answer, "cap 320Mi, charged 320Mi, requested 32Mi"));
    for (int i = 0; i < 8; i++)
        assert_ok(&a, "check %llu %d", (unsigned long long)ids[i], i + 1);
    assert_ok(&a, "page 0");
    assert_int_equal(actor_number(&a, 0), 320 * PC_MIB);
    assert_int_equal(actor_number(&a, 1), 320 * PC_MIB);
    assert_int_equal(actor_number(&a, 2), 0);
    assert_true(daemon_books_equal_card());
    actor_end(&a);
}

static void test_sizes(void **state)
{
    (void)state;
    struct actor a;
    daemon_begin("- name: a\n  memory: 3Gi\n");
    actor_start(&a);
    assert_ok(&a, "connect %s", daemon_socket("a"));
    assert_refused(&a, PC_ERR_INVALID, "alloc 0 1"); /* before attaching */
    assert_ok(&a, "attach 0");
    assert_int_equal(actor_number(&a, 0), CONTEXT);
    assert_ok(&a, "attach 0"); /* twice is once */
    assert_ok(&a, "info 0");
    assert_int_equal(actor_number(&a, 7), CONTEXT);
    assert_refused(&a, PC_ERR_INVALID, "alloc 0 0");
    assert_refused(&a, PC_ERR_INVALID, "alloc 7 1");
    assert_refused(&a, PC_ERR_INVALID, "alloc 0 4261412865"); /* 4064 MiB and a byte: has to be large */
    assert_non_null(strstr(a.answer, "large"));
    assert_refused(&a, PC_ERR_OUT_OF_MEMORY, "alloc 0 4261412864");
    assert_refused(&a, PC_ERR_OUT_OF_MEMORY, "large 0 18446744073709551615");
    assert_ok(&a, "alloc 0 33554433");
    assert_int_equal(actor_number(&a, 1), 2 * GRANULE);
    assert_ok(&a, "large 0 1");
    assert_int_equal(actor_number(&a, 1), 2 * PC_MIB);
    actor_end(&a);
}

/* Growth in steps, out of scattered pieces: the block is one range, and RESERVED what was booked (the daemon checks).
 */
static void test_big_block(void **state)
{
    (void)state;
    struct actor a;
    daemon_begin("- name: a\n  memory: 3Gi\n");
    daemon_actor(&a, "a");
    uint64_t small[4];
    for (int i = 0; i < 4; i++)
        small[i] = alloc(&a, 3 * GRANULE);
    assert_ok(&a, "free %llu", (unsigned long long)small[1]);
    assert_ok(&a, "free %llu", (unsigned long long)small[3]);
    uint64_t big = alloc(&a, 2048 * PC_MIB);
    assert_ok(&a, "write %llu 9", (unsigned long long)big);
    assert_ok(&a, "check %llu 9", (unsigned long long)big);
    assert_true(daemon_books_equal_card());
    assert_int_equal(daemon_figures("a").pool_reserved, 2048 * PC_MIB + 6 * GRANULE);
    actor_end(&a);
}

static void test_lowered_and_raised(void **state)
{
    (void)state;
    struct actor a;
    char text[512];
    daemon_begin("- name: a\n  memory: 512Mi\n  cap: 160Mi\n");
    daemon_actor(&a, "a");
    for (int i = 0; i < 3; i++)
        alloc(&a, GRANULE);
    assert_refused(&a, PC_ERR_OUT_OF_MEMORY, "alloc 0 1");
    assert_int_equal(daemon_set_cap("a", 192 * PC_MIB, text), PC_OK);
    uint64_t last = alloc(&a, GRANULE);
    assert_refused(&a, PC_ERR_OUT_OF_MEMORY, "alloc 0 1");
    assert_int_equal(daemon_set_cap("a", 128 * PC_MIB, text), PC_OK);
    assert_non_null(strstr(text, "nothing is taken away"));
    assert_ok(&a, "page 0");
    assert_int_equal(actor_number(&a, 0), 128 * PC_MIB);
    assert_ok(&a, "free %llu", (unsigned long long)last);
    assert_refused(&a, PC_ERR_OUT_OF_MEMORY, "alloc 0 1"); /* still over the lower cap */
    assert_int_equal(daemon_set_cap("a", 1024 * PC_MIB, text), PC_ERR_INVALID);
    assert_non_null(strstr(text, "only lowers"));
    assert_int_equal(daemon_set_cap("a", 0, text), PC_ERR_INVALID);
    assert_int_equal(daemon_set_cap("a", CONTEXT, text), PC_ERR_INVALID);
    assert_non_null(strstr(text, "smallest that works is 96Mi"));
    actor_end(&a);
}

/* maxSize cannot change: what is granted more comes from a further generation. */
static void test_second_generation(void **state)
{
    (void)state;
    struct actor a;
    char text[512];
    daemon_begin("- name: a\n  memory: 192Mi\n");
    daemon_actor(&a, "a");
    assert_ok(&a, "alloc 0 134217728");
    uint64_t first = actor_number(&a, 2);
    assert_refused(&a, PC_ERR_OUT_OF_MEMORY, "alloc 0 1");
    daemon_configure("- name: a\n  memory: 320Mi\n");
    assert_int_equal(daemon_reload(text), PC_OK);
    assert_non_null(strstr(text, "1 changed"));
    assert_ok(&a, "alloc 0 134217728");
    assert_int_not_equal(actor_number(&a, 2), first);
    assert_int_equal(actor_number(&a, 3), 1);
    assert_refused(&a, PC_ERR_OUT_OF_MEMORY, "alloc 0 1");
    assert_true(daemon_books_equal_card());
    daemon_configure("- name: a\n  memory: 192Mi\n"); /* its pools may hold more */
    assert_int_equal(daemon_reload(text), PC_ERR_BUSY);
    actor_end(&a);
}

/* ---- reuse ---- */

static void test_parked_blocks(void **state)
{
    (void)state;
    struct actor a;
    daemon_begin("- name: a\n  memory: 320Mi\n");
    daemon_actor(&a, "a");
    uint64_t one = alloc(&a, 2 * GRANULE);
    assert_ok(&a, "write %llu 7", (unsigned long long)one);
    assert_ok(&a, "free %llu", (unsigned long long)one);
    uint64_t again = alloc(&a, 2 * GRANULE); /* its own block of before: not zeroed, and under a new name */
    assert_int_not_equal(again, one);
    assert_ok(&a, "check %llu 7", (unsigned long long)again);
    assert_ok(&a, "free %llu", (unsigned long long)again);
    /* Other sizes: the parked block has to go first, or RESERVED would pass what is booked. */
    for (int round = 0; round < 20; round++) {
        uint64_t ids[3];
        for (int i = 0; i < 3; i++)
            ids[i] = alloc(&a, (uint64_t)(1 + (round + i) % 3) * GRANULE);
        for (int i = 0; i < 3; i++)
            assert_ok(&a, "free %llu", (unsigned long long)ids[(i + round) % 3]);
    }
    assert_int_equal(daemon_figures("a").pool_reserved, 6 * GRANULE);
    uint64_t all = alloc(&a, 8 * GRANULE);
    assert_ok(&a, "write %llu 1", (unsigned long long)all);
    assert_true(daemon_books_equal_card());
    actor_end(&a);
}

static void test_zeroed_between_processes(void **state)
{
    (void)state;
    struct actor a, b;
    daemon_begin("- name: a\n  memory: 384Mi\n");
    daemon_actor(&a, "a");
    uint64_t one = alloc(&a, 2 * GRANULE), two = alloc(&a, 3 * GRANULE);
    assert_ok(&a, "write %llu 85", (unsigned long long)one);
    assert_ok(&a, "write %llu 86", (unsigned long long)two);
    assert_ok(&a, "free %llu", (unsigned long long)one);
    assert_ok(&a, "free %llu", (unsigned long long)two);
    daemon_actor(&b, "a");
    uint64_t parked = alloc(&b, 2 * GRANULE); /* the parked block */
    assert_ok(&b, "check %llu 0", (unsigned long long)parked);
    uint64_t other = alloc(&b, GRANULE); /* memory that the other parked block was freed from, or new */
    assert_ok(&b, "check %llu 0", (unsigned long long)other);
    uint64_t third = alloc(&b, 2 * GRANULE);
    assert_ok(&b, "check %llu 0", (unsigned long long)third);
    assert_true(daemon_books_equal_card());
    actor_end(&a);
    actor_end(&b);
}

/* ---- neighbours ---- */

static void test_two_tenants(void **state)
{
    (void)state;
    struct actor a, b;
    daemon_begin("- name: a\n  memory: 256Mi\n- name: b\n  memory: 256Mi\n");
    daemon_actor(&a, "a");
    daemon_actor(&b, "b");
    uint64_t mine = alloc(&a, 6 * GRANULE), theirs = alloc(&b, 6 * GRANULE);
    assert_ok(&a, "write %llu 1", (unsigned long long)mine);
    assert_ok(&b, "write %llu 2", (unsigned long long)theirs);
    assert_refused(&a, PC_ERR_OUT_OF_MEMORY, "alloc 0 1");
    assert_refused(&b, PC_ERR_OUT_OF_MEMORY, "alloc 0 1");
    assert_ok(&a, "check %llu 1", (unsigned long long)mine);
    actor_kill(&a);
    assert_ok(&b, "check %llu 2", (unsigned long long)theirs);
    assert_refused(&b, PC_ERR_OUT_OF_MEMORY, "alloc 0 1"); /* what a left is a's */
    assert_true(daemon_books_equal_card());
    actor_end(&b);
}

static void test_two_grants_one_tenant(void **state)
{
    (void)state;
    struct actor a, b;
    daemon_begin("- name: one\n  tenant: t\n  memory: 160Mi\n- name: two\n  tenant: t\n  memory: 256Mi\n");
    daemon_actor(&a, "one");
    daemon_actor(&b, "two");
    uint64_t first = alloc(&a, 3 * GRANULE); /* its grant's cap, not the tenant's */
    assert_refused(&a, PC_ERR_OUT_OF_MEMORY, "alloc 0 1");
    assert_non_null(strstr(a.answer, "grant one"));
    assert_ok(&a, "write %llu 9", (unsigned long long)first);
    assert_ok(&a, "free %llu", (unsigned long long)first);
    uint64_t second = alloc(&b, 3 * GRANULE); /* what one container frees serves the next, zeroed */
    assert_ok(&b, "check %llu 0", (unsigned long long)second);
    assert_int_equal(daemon_figures("two").pool_reserved, 3 * GRANULE);
    alloc(&b, 3 * GRANULE);
    assert_refused(&b, PC_ERR_OUT_OF_MEMORY, "alloc 0 1");
    alloc(&a, 3 * GRANULE);
    assert_int_equal(daemon_figures("one").tenant_charged, 416 * PC_MIB);
    assert_true(daemon_books_equal_card());
    actor_end(&a);
    actor_end(&b);
}

/* A sibling that holds idle memory is asked for it by the page, and the request waits a little. */
static void test_wanted(void **state)
{
    (void)state;
    struct actor a, b;
    daemon_begin("- name: a\n  memory: 256Mi\n");
    daemon_actor(&a, "a");
    daemon_actor(&b, "a");
    uint64_t idle = alloc(&a, 4 * GRANULE);
    actor_tell(&b, "alloc 0 %llu", 2 * GRANULE);
    bool asked = false;
    for (int i = 0; i < 1000 && !asked; i++) {
        assert_ok(&a, "page 0");
        asked = actor_number(&a, 3) == 64;
    }
    assert_true(asked);
    assert_ok(&a, "free %llu", (unsigned long long)idle);
    assert_true(actor_hear(&b));
    assert_ok(&a, "page 0");
    assert_int_equal(actor_number(&a, 3), 0);
    alloc(&b, 2 * GRANULE);
    assert_refused(&a, PC_ERR_OUT_OF_MEMORY, "alloc 0 1"); /* nobody gives: refused after 50 ms */
    assert_ok(&a, "page 0");
    assert_int_equal(actor_number(&a, 3), 0);
    actor_end(&a);
    actor_end(&b);
}

/* ---- large and direct ---- */

static void test_large(void **state)
{
    (void)state;
    struct actor a;
    daemon_begin("- name: a\n  memory: 512Mi\n");
    daemon_actor(&a, "a");
    assert_ok(&a, "large 0 469762048"); /* 448 MiB: all that a context leaves */
    uint64_t id = actor_number(&a, 0);
    assert_ok(&a, "write %llu 4", (unsigned long long)id);
    assert_ok(&a, "check %llu 4", (unsigned long long)id);
    assert_true(daemon_books_equal_card());
    assert_refused(&a, PC_ERR_OUT_OF_MEMORY, "large 0 1");
    assert_ok(&a, "free %llu", (unsigned long long)id);
    assert_ok(&a, "large 0 469762048"); /* waits for NVML to show that the first one is gone */
    id = actor_number(&a, 0);
    assert_ok(&a, "lie %llu", (unsigned long long)id); /* still mapped: stays charged */
    assert_refused(&a, PC_ERR_OUT_OF_MEMORY, "large 0 1");
    assert_int_equal(daemon_figures("a").pending, 448 * PC_MIB);
    assert_true(daemon_books_equal_card());
    actor_end(&a);
    assert_within(3000, daemon_figures("a").charged == 0);
}

static void test_slabs_then_large(void **state)
{
    (void)state;
    struct actor a;
    daemon_begin("- name: a\n  memory: 512Mi\n");
    daemon_actor(&a, "a");
    assert_ok(&a, "alloc 0 469762048");
    uint64_t id = actor_number(&a, 0), generation = actor_number(&a, 2);
    assert_ok(&a, "free %llu", (unsigned long long)id);
    assert_refused(&a, PC_ERR_OUT_OF_MEMORY, "large 0 469762048"); /* the pool has it, and the process the pool */
    assert_ok(&a, "drop %llu", (unsigned long long)generation);
    assert_ok(&a, "large 0 469762048");
    assert_int_equal(daemon_figures("a").pool_reserved, 0);
    assert_true(daemon_books_equal_card());
    assert_ok(&a, "free %llu", (unsigned long long)actor_number(&a, 0));
    actor_end(&a);
}

/* A process that says that it dropped a pool and keeps it is charged for it until it is dead. */
static void test_lied_drop(void **state)
{
    (void)state;
    struct actor a, b;
    daemon_begin("- name: a\n  memory: 512Mi\n- name: b\n  memory: 512Mi\n");
    daemon_actor(&a, "a");
    assert_ok(&a, "alloc 0 469762048");
    uint64_t id = actor_number(&a, 0), generation = actor_number(&a, 2);
    assert_ok(&a, "lie %llu", (unsigned long long)id);
    assert_ok(&a, "liedrop %llu", (unsigned long long)generation);
    assert_refused(&a, PC_ERR_OUT_OF_MEMORY, "large 0 469762048");
    assert_true(daemon_books_equal_card());
    assert_refused(&a, PC_ERR_OUT_OF_MEMORY, "large 0 469762048");
    /* An honest neighbour is not made to pay for it. */
    daemon_actor(&b, "b");
    assert_ok(&b, "alloc 0 469762048");
    id = actor_number(&b, 0);
    generation = actor_number(&b, 2);
    assert_ok(&b, "free %llu", (unsigned long long)id);
    assert_ok(&b, "drop %llu", (unsigned long long)generation);
    daemon_nap(1500); /* the liar's pool is watched for a second */
    assert_ok(&b, "large 0 469762048");
    assert_true(daemon_books_equal_card());
    assert_int_equal(daemon_figures("a").charged + daemon_figures("a").pending, 64 * PC_MIB + 448 * PC_MIB);
    actor_end(&a);
    assert_within(3000, daemon_figures("a").tenant_charged == 0);
    actor_end(&b);
    assert_true(daemon_books_equal_card());
}

static void test_direct(void **state)
{
    (void)state;
    struct actor a;
    daemon_begin("- name: a\n  memory: 512Mi\n");
    daemon_actor(&a, "a");
    assert_refused(&a, PC_ERR_OUT_OF_MEMORY, "reserve 0 469762049");
    assert_ok(&a, "reserve 0 268435456");
    assert_ok(&a, "direct 268435456");
    assert_refused(&a, PC_ERR_OUT_OF_MEMORY, "alloc 0 268435456");
    assert_true(daemon_books_equal_card());
    assert_refused(&a, PC_ERR_INVALID, "release 0 268435457");
    assert_ok(&a, "release 0 268435456"); /* a lie so far: stays pending */
    daemon_nap(200);
    assert_int_equal(daemon_figures("a").pending, 256 * PC_MIB);
    assert_ok(&a, "undirect");
    assert_within(1500, daemon_figures("a").pending == 0);
    assert_true(daemon_books_equal_card());
    actor_end(&a);
}

/* Memory that a process takes beside poolcap is charged. */
static void test_outside(void **state)
{
    (void)state;
    struct actor a;
    daemon_begin("- name: a\n  memory: 512Mi\n");
    daemon_actor(&a, "a");
    assert_ok(&a, "direct 134217728");
    assert_within(3000, daemon_figures("a").outside == 128 * PC_MIB);
    assert_int_equal(daemon_figures("a").context, 192 * PC_MIB);
    assert_refused(&a, PC_ERR_OUT_OF_MEMORY, "alloc 0 335544321"); /* 320 MiB are left */
    assert_ok(&a, "undirect");
    assert_within(3000, daemon_figures("a").context == CONTEXT);
    actor_end(&a);
}

/* One that has a context and never attached is charged too. */
static void test_uninvited(void **state)
{
    (void)state;
    struct actor a;
    daemon_begin("- name: a\n  memory: 512Mi\n");
    actor_start(&a);
    assert_ok(&a, "connect %s", daemon_socket("a"));
    assert_ok(&a, "context 0");
    assert_within(4000, daemon_figures("a").context == CONTEXT);
    assert_ok(&a, "attach 0");
    assert_int_equal(daemon_figures("a").context, CONTEXT);
    actor_end(&a);
    assert_within(3000, daemon_figures("a").charged == 0);
}

static void test_second_gpu(void **state)
{
    (void)state;
    struct actor a;
    daemon_begin("- name: a\n  gpus: [{gpu: 1, memory: 256Mi}, {gpu: 0, memory: 128Mi}]\n");
    actor_start(&a);
    assert_ok(&a, "connect %s", daemon_socket("a"));
    assert_int_equal(actor_number(&a, 1), 2);
    assert_ok(&a, "attach 0"); /* GPU 0 of the grant is the card's GPU 1 */
    assert_ok(&a, "reserve 0 201326592");
    assert_ok(&a, "attach 1");
    assert_refused(&a, PC_ERR_OUT_OF_MEMORY, "reserve 1 201326592");
    assert_ok(&a, "page 1");
    assert_int_equal(actor_number(&a, 0), 128 * PC_MIB);
    assert_int_equal(daemon_gpu(1).charged, 256 * PC_MIB);
    assert_int_equal(daemon_gpu(0).charged, CONTEXT);
    actor_end(&a);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "actor") == 0)
        return actor_main();
    daemon_setup();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_exact_cap, end),
        cmocka_unit_test_teardown(test_sizes, end),
        cmocka_unit_test_teardown(test_big_block, end),
        cmocka_unit_test_teardown(test_lowered_and_raised, end),
        cmocka_unit_test_teardown(test_second_generation, end),
        cmocka_unit_test_teardown(test_parked_blocks, end),
        cmocka_unit_test_teardown(test_zeroed_between_processes, end),
        cmocka_unit_test_teardown(test_two_tenants, end),
        cmocka_unit_test_teardown(test_two_grants_one_tenant, end),
        cmocka_unit_test_teardown(test_wanted, end),
        cmocka_unit_test_teardown(test_large, end),
        cmocka_unit_test_teardown(test_slabs_then_large, end),
        cmocka_unit_test_teardown(test_lied_drop, end),
        cmocka_unit_test_teardown(test_direct, end),
        cmocka_unit_test_teardown(test_outside, end),
        cmocka_unit_test_teardown(test_uninvited, end),
        cmocka_unit_test_teardown(test_second_gpu, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
