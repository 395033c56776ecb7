/* alloc/pool/leaks: the audit of frees that failed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "alloc/pool/leaks.h"

static struct pc_leaks *leaks;
static struct pc_leaks_snapshot *seen;

static int setup(void **state)
{
    (void)state;
    seen = malloc(sizeof *seen);
    return pc_leaks_create(&leaks, NULL) == PC_OK && seen != NULL ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    pc_leaks_free(leaks);
    free(seen);
    return 0;
}

static void test_records(void **state)
{
    (void)state;
    pc_leaks_read(leaks, seen);
    assert_int_equal(seen->total, 0);
    assert_int_equal(seen->count, 0);
    pc_leaks_record(leaks, 0x1000, 64, 719);
    pc_leaks_record(leaks, 0x2000, 32, 1);
    pc_leaks_record(NULL, 0x3000, 1, 1);
    pc_leaks_read(leaks, seen);
    assert_int_equal(seen->total, 2);
    assert_int_equal(seen->overflow, 0);
    assert_int_equal(seen->count, 2);
    assert_int_equal(seen->kept[0].address, 0x1000);
    assert_int_equal(seen->kept[0].bytes, 64);
    assert_int_equal(seen->kept[0].code, 719);
    assert_int_equal(seen->kept[1].address, 0x2000);
}

static void test_same_address_takes_one_place(void **state)
{
    (void)state;
    for (int i = 0; i < 10; i++)
        pc_leaks_record(leaks, 0x1000, 64, i);
    pc_leaks_read(leaks, seen);
    assert_int_equal(seen->total, 10);
    assert_int_equal(seen->count, 1);
    assert_int_equal(seen->overflow, 0);
    assert_int_equal(seen->kept[0].code, 0); /* the first one: what happened first explains the rest */
}

static void test_full(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < PC_LEAKS_MAX + 100; i++)
        pc_leaks_record(leaks, i, 1, 1);
    pc_leaks_record(leaks, 5, 1, 1); /* known: counted, but not an overflow */
    pc_leaks_read(leaks, seen);
    assert_int_equal(seen->total, PC_LEAKS_MAX + 101);
    assert_int_equal(seen->count, PC_LEAKS_MAX);
    assert_int_equal(seen->overflow, 100);
    assert_int_equal(seen->kept[PC_LEAKS_MAX - 1].address, PC_LEAKS_MAX - 1);
}

/* A view is the caller's own: what is recorded while it is read does not change it, and is not held up. */
static void test_snapshot_is_a_copy(void **state)
{
    (void)state;
    pc_leaks_record(leaks, 1, 1, 1);
    pc_leaks_read(leaks, seen);
    pc_leaks_record(leaks, 2, 1, 1);
    assert_int_equal(seen->count, 1);
    assert_int_equal(seen->total, 1);
}

enum { THREADS = 8, EACH = 700 };
static atomic_bool done;

static void *record_many(void *arg)
{
    uint64_t mine = (uint64_t)(uintptr_t)arg;
    for (uint64_t i = 0; i < EACH; i++) {
        pc_leaks_record(leaks, mine * EACH + i, mine + 1, 2);
        pc_leaks_record(leaks, mine * EACH, mine + 1, 2);
    }
    return NULL;
}

static void *read_many(void *arg)
{
    struct pc_leaks_snapshot *view = malloc(sizeof *view);
    uint64_t last = 0;
    long bad = 0;
    (void)arg;
    while (!atomic_load(&done)) {
        pc_leaks_read(leaks, view);
        bad += view->total < last || view->total < view->count + view->overflow;
        for (unsigned i = 0; i < view->count; i++)
            bad += view->kept[i].bytes != view->kept[i].address / EACH + 1 || view->kept[i].code != 2;
        last = view->total;
    }
    free(view);
    return (void *)bad;
}

static void test_threads(void **state)
{
    (void)state;
    pthread_t reader, writers[THREADS];
    void *bad = NULL;
    atomic_store(&done, false);
    assert_int_equal(pthread_create(&reader, NULL, read_many, NULL), 0);
    for (uintptr_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&writers[i], NULL, record_many, (void *)i), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(writers[i], NULL);
    atomic_store(&done, true);
    pthread_join(reader, &bad);
    assert_null(bad);
    pc_leaks_read(leaks, seen);
    assert_int_equal(seen->total, 2 * THREADS * EACH);
    assert_int_equal(seen->count, PC_LEAKS_MAX);
    /* Addresses that found no place may be recorded again and are then counted again. */
    assert_true(seen->overflow >= THREADS * EACH - PC_LEAKS_MAX);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_records), T(test_same_address_takes_one_place), T(test_full), T(test_snapshot_is_a_copy),
        T(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
