/* Units, their ids, the guard and the packing; and packing against a search of all ways. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "alloc/base/cleanup.h"
#include "plugin/placement/guard.h"
#include "plugin/placement/prefer.h"

/* GPUs with so many units each, all there and in service. */
static struct pc_units make_units(unsigned gpus, const uint32_t *counts)
{
    struct pc_units units = {.unit_bytes = 256ull << 20};
    char uuid[64];
    unsigned index;
    for (unsigned g = 0; g < gpus; g++) {
        snprintf(uuid, sizeof uuid, "GPU-8ef08c85-c347-a1e4-49c2-be590000000%u", g);
        assert_int_equal(pc_units_gpu(&units, uuid, &index, NULL), PC_OK);
        assert_int_equal(index, g);
        assert_int_equal(pc_units_resize(&units, g, counts[g], NULL), PC_OK);
        units.gpu[g].present = true;
    }
    return units;
}

/* "0:3 0:4 1:0" */
static struct pc_unit_set make_set(const char *text)
{
    struct pc_unit_set set;
    int used;
    assert_int_equal(pc_unit_set_make(64, &set, NULL), PC_OK);
    set.count = 0;
    for (; sscanf(text, "%u:%u%n", &set.unit[set.count].gpu, &set.unit[set.count].number, &used) == 2; text += used)
        set.count++;
    pc_unit_set_sort(&set);
    return set;
}

static void hold(struct pc_units *units, const char *text)
{
    struct pc_unit_set set = make_set(text);
    assert_int_equal(pc_units_hold(units, &set, NULL), PC_OK);
    pc_unit_set_free(&set);
}

static void drop(struct pc_units *units, const char *text)
{
    struct pc_unit_set set = make_set(text);
    pc_units_drop(units, &set);
    pc_unit_set_free(&set);
}

static void test_ids(void **state)
{
    (void)state;
    struct pc_units units = make_units(2, (uint32_t[]){4, 40000});
    struct pc_unit unit = {.gpu = 1, .number = 39999}, back;
    struct pc_error err;
    char id[PC_UNIT_ID_MAX];
    pc_unit_id(&units, unit, id);
    assert_true(strlen(id) <= 14);
    assert_int_equal(pc_unit_parse(&units, id, &back, NULL), PC_OK);
    assert_int_equal(back.gpu, 1);
    assert_int_equal(back.number, 39999);
    /* The simulated GPUs' UUIDs differ in their last digit alone: so do not their tags. */
    assert_string_not_equal(units.gpu[0].tag, units.gpu[1].tag);
    static const char *const bad[] = {"",         "x",     "0-0",   "zzzzzzzz-0", "%s-",
                                      "%s-40000", "%s-01", "%s--1", "%s-1x",      "%s-99999999999"};
    for (size_t i = 0; i < PC_ARRAY_LEN(bad); i++) {
        char text[64];
        snprintf(text, sizeof text, strstr(bad[i], "%s") != NULL ? "%s%s" : "%.0s%s", units.gpu[1].tag,
                 bad[i] + (strstr(bad[i], "%s") != NULL ? 2 : 0));
        assert_int_equal(pc_unit_parse(&units, text, &back, &err), PC_ERR_INVALID);
    }
    pc_units_free(&units);
}

static void test_sets(void **state)
{
    (void)state;
    struct pc_units units = make_units(1, (uint32_t[]){8});
    struct pc_unit_set a = make_set("0:1 0:2"), b = make_set("0:2 0:3"), c = make_set("0:4"), parsed;
    char one[PC_UNIT_ID_MAX];
    pc_unit_id(&units, a.unit[0], one);
    char *twice[] = {one, one};
    struct pc_error err;
    assert_true(pc_unit_set_meets(&a, &b));
    assert_false(pc_unit_set_meets(&a, &c));
    assert_false(pc_unit_set_equal(&a, &b));
    assert_int_equal(pc_unit_set_parse(&units, twice, 2, &parsed, &err), PC_ERR_INVALID);
    assert_non_null(strstr(err.text, "named twice"));
    assert_int_equal(pc_unit_set_parse(&units, twice, 1, &parsed, &err), PC_OK);
    assert_true(pc_unit_set_has(&parsed, a.unit[0]));
    pc_unit_set_free(&parsed);
    pc_unit_set_free(&a);
    pc_unit_set_free(&b);
    pc_unit_set_free(&c);
    pc_units_free(&units);
}

/* A unit is free again when its last holder is gone: an app has its init container's ids too. */
static void test_holders(void **state)
{
    (void)state;
    struct pc_units units = make_units(1, (uint32_t[]){4});
    hold(&units, "0:0 0:1");
    hold(&units, "0:1 0:2");
    assert_int_equal(units.gpu[0].free, 1);
    drop(&units, "0:0 0:1");
    assert_int_equal(units.gpu[0].free, 2);
    hold(&units, "0:9"); /* of a larger past: held, not among the advertised */
    assert_int_equal(units.gpu[0].free, 2);
    assert_int_equal(pc_units_resize(&units, 0, 16, NULL), PC_OK);
    assert_int_equal(units.gpu[0].free, 13);
    drop(&units, "0:9");
    drop(&units, "0:1 0:2");
    assert_int_equal(units.gpu[0].free, 16);
    pc_units_free(&units);
}

/* The sequence that was seen on a real cluster: two GPUs of 4 units. */
static void test_guard(void **state)
{
    (void)state;
    struct pc_units units = make_units(2, (uint32_t[]){4, 4});
    assert_int_equal(pc_guard_open(&units), 0);
    hold(&units, "0:0 0:1 0:2");
    assert_int_equal(pc_guard_open(&units), 1);
    hold(&units, "1:0 1:1 1:2");
    assert_int_equal(pc_guard_open(&units), 0); /* one unit on each: one is offered, not two */
    drop(&units, "1:0 1:1 1:2");
    assert_int_equal(pc_guard_open(&units), 1);
    units.gpu[1].faulty = true;
    assert_int_equal(pc_guard_open(&units), 0);
    units.gpu[0].present = false;
    assert_int_equal(pc_guard_open(&units), PC_UNITS_GPUS_MAX);
    pc_units_free(&units);
}

static void assert_prefers(const struct pc_units *units, const char *available, const char *must, size_t size,
                           const char *expected)
{
    struct pc_unit_set a = make_set(available), m = make_set(must), e = make_set(expected), got;
    assert_int_equal(pc_prefer(units, &a, &m, size, &got, NULL), PC_OK);
    assert_true(pc_unit_set_equal(&got, &e));
    pc_unit_set_free(&a);
    pc_unit_set_free(&m);
    pc_unit_set_free(&e);
    pc_unit_set_free(&got);
}

static void test_prefer(void **state)
{
    (void)state;
    struct pc_units units = make_units(3, (uint32_t[]){8, 8, 8});
    /* best fit: the smallest hole that is large enough */
    assert_prefers(&units, "0:0 0:1 0:2 0:3 1:4 1:5 2:0 2:1 2:2", "", 2, "1:4 1:5");
    assert_prefers(&units, "0:0 0:1 0:2 0:3 1:4 1:5 2:0 2:1 2:2", "", 3, "2:0 2:1 2:2");
    /* what the init container had comes first, and its GPU */
    assert_prefers(&units, "0:0 0:1 0:2 0:3 1:4 1:5", "0:3", 2, "0:0 0:3");
    /* no GPU has enough: the fewest GPUs, those of must first */
    assert_prefers(&units, "0:0 0:1 1:4 1:5 1:6 2:0", "", 4, "0:0 1:4 1:5 1:6");
    assert_prefers(&units, "0:0 0:1 1:4 1:5 1:6 2:0", "2:0", 3, "1:4 1:5 2:0");
    /* fewer than asked for: all of them, and the kubelet decides */
    assert_prefers(&units, "0:0", "", 3, "0:0");
    assert_prefers(&units, "", "", 0, "");
    pc_units_free(&units);
}

/* Whenever one GPU alone can give them, all of them are on one, and none could be tighter. */
static void test_prefer_random(void **state)
{
    (void)state;
    struct pc_units units = make_units(4, (uint32_t[]){8, 8, 8, 8});
    srand(7);
    for (int round = 0; round < 20000; round++) {
        struct pc_unit_set available, none = {.count = 0}, got;
        size_t on[4] = {0}, size = 1 + (size_t)rand() % 8, best = SIZE_MAX;
        assert_int_equal(pc_unit_set_make(32, &available, NULL), PC_OK);
        available.count = 0;
        for (uint32_t i = 0; i < 32; i++)
            if (rand() % 2 == 0)
                available.unit[available.count++] = (struct pc_unit){.gpu = i / 8, .number = i % 8}, on[i / 8]++;
        for (int g = 0; g < 4; g++)
            if (on[g] >= size && on[g] < best)
                best = on[g];
        assert_int_equal(pc_prefer(&units, &available, &none, size, &got, NULL), PC_OK);
        assert_int_equal(got.count, size < available.count ? size : available.count);
        for (size_t i = 0; i < got.count; i++)
            assert_true(pc_unit_set_has(&available, got.unit[i]));
        if (best != SIZE_MAX) {
            assert_int_equal(pc_unit_set_on(&got, got.unit[0].gpu), size);
            assert_int_equal(on[got.unit[0].gpu], best);
        }
        pc_unit_set_free(&available);
        pc_unit_set_free(&got);
    }
    pc_units_free(&units);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ids),   cmocka_unit_test(test_sets),   cmocka_unit_test(test_holders),
        cmocka_unit_test(test_guard), cmocka_unit_test(test_prefer), cmocka_unit_test(test_prefer_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
