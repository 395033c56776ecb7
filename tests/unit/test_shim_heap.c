/*
 * The carving of slabs against a naive model: a byte for each 512 bytes of device memory, which says whether it is
 * live, clean, or freed by which owner. Addresses are made up; nothing of the driver is there.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/shim/heap.h"
#include "alloc/shim/map.h"

enum { OWNERS = 4, SLABS = 12, LIVE_MOST = 700, UNIT = 512 };
enum { CLEAN = 0, LIVE = 255 }; /* else: 2 * (owner + 1), plus 1 while the batch is open */

struct model_slab {
    struct shim_slab *slab; /* NULL: a free place */
    uint64_t base, bytes;
    uint8_t *units;
};

struct allocation {
    uint64_t addr, bytes;
    struct shim_block *block;
};

static struct shim_heap *heap;
static struct shim_owner *owners[OWNERS];
static struct model_slab slabs[SLABS];
static struct allocation live[LIVE_MOST];
static unsigned live_count;
static uint64_t next_base, random_state;

static uint64_t random_below(uint64_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (random_state >> 33) % n;
}

static int setup(void **state)
{
    (void)state;
    heap = calloc(1, sizeof *heap);
    shim_heap_init(heap);
    for (unsigned i = 0; i < OWNERS; i++) {
        owners[i] = calloc(1, sizeof *owners[i]);
        shim_owner_init(owners[i]);
    }
    memset(slabs, 0, sizeof slabs);
    live_count = 0;
    next_base = 1ull << 40;
    return 0;
}

static void audit(void)
{
    const char *wrong = shim_heap_audit(heap, owners, OWNERS);
    if (wrong != NULL)
        fail_msg("audit: %s", wrong);
}

static struct model_slab *add_slab(uint64_t bytes)
{
    struct shim_slab_origin origin = {.id = 1};
    for (unsigned i = 0; i < SLABS; i++) {
        if (slabs[i].slab != NULL)
            continue;
        slabs[i].slab = shim_slab_add(heap, next_base, bytes, &origin);
        assert_non_null(slabs[i].slab);
        slabs[i].base = next_base;
        slabs[i].bytes = bytes;
        slabs[i].units = calloc(bytes / UNIT, 1);
        next_base += bytes + random_below(3) * 2 * PC_MIB;
        return &slabs[i];
    }
    return NULL;
}

static void pull_slab(struct model_slab *slab)
{
    for (uint64_t i = 0; i < slab->bytes / UNIT; i++)
        assert_int_equal(slab->units[i], CLEAN);
    shim_slab_pull(heap, slab->slab);
    shim_slab_forget(heap, slab->slab);
    assert_null(shim_map_find(slab->base));
    free(slab->units);
    *slab = (struct model_slab){0};
}

static void sweep_all(void)
{
    for (unsigned i = 0; i < OWNERS; i++) {
        owners[i]->done = owners[i]->batch++;
        shim_heap_sweep(heap, owners[i]);
        assert_int_equal(owners[i]->blocks, 0);
    }
    for (unsigned i = 0; i < SLABS; i++)
        for (uint64_t u = 0; slabs[i].slab != NULL && u < slabs[i].bytes / UNIT; u++)
            if (slabs[i].units[u] != LIVE)
                slabs[i].units[u] = CLEAN;
}

static int teardown(void **state)
{
    (void)state;
    while (live_count > 0)
        shim_heap_put_clean(heap, live[--live_count].block);
    for (unsigned i = 0; i < SLABS; i++)
        if (slabs[i].slab != NULL)
            memset(slabs[i].units, CLEAN, slabs[i].bytes / UNIT);
    sweep_all();
    audit();
    for (unsigned i = 0; i < SLABS; i++) {
        if (slabs[i].slab == NULL)
            continue;
        if (!shim_slab_ready(heap, slabs[i].slab)) /* all was given back, so all must be one piece again */
            return -1;
        pull_slab(&slabs[i]);
    }
    if (heap->held != 0 || heap->live != 0 || heap->empty != 0 || heap->clean.blocks != 0)
        return -1;
    for (unsigned i = 0; i < OWNERS; i++)
        free(owners[i]);
    free(heap);
    return 0;
}

static uint8_t *units_of(uint64_t addr, uint64_t bytes)
{
    for (unsigned i = 0; i < SLABS; i++) {
        if (slabs[i].slab == NULL || addr < slabs[i].base || addr >= slabs[i].base + slabs[i].bytes)
            continue;
        assert_true(addr + bytes <= slabs[i].base + slabs[i].bytes);
        return slabs[i].units + (addr - slabs[i].base) / UNIT;
    }
    fail_msg("%llx is in no slab", (unsigned long long)addr);
    return NULL;
}

/* Takes; checks the place against the model. NULL: no room. */
static struct shim_block *take(unsigned owner, uint64_t bytes)
{
    unsigned class = shim_class(bytes);
    uint64_t rounded = shim_rounded(bytes, class);
    struct shim_block *block = shim_heap_pop(owners[owner], class, rounded);
    if (block == NULL)
        block = shim_heap_take(heap, owners[owner], class, rounded);
    if (block == NULL)
        block = shim_heap_absorb(heap, owners[owner], class, rounded);
    if (block == NULL)
        return NULL;
    shim_heap_use(heap, block);
    assert_true(block->bytes >= bytes);
    assert_true(block->bytes <= bytes + bytes / 8 + UNIT ||
                (bytes > SHIM_SMALL_MAX && block->bytes < bytes * 9 / 8 + 1));
    assert_int_equal(block->addr % UNIT, 0);
    uint8_t *units = units_of(block->addr, block->bytes);
    for (uint64_t i = 0; i < block->bytes / UNIT; i++) {
        assert_true(units[i] == CLEAN || units[i] / 2 == owner + 1);
        units[i] = LIVE;
    }
    assert_ptr_equal(shim_slab_live_block(shim_map_find(block->addr), block->addr), block);
    return block;
}

static void keep(struct shim_block *block)
{
    live[live_count++] = (struct allocation){.addr = block->addr, .bytes = block->bytes, .block = block};
}

static void give(unsigned at, unsigned owner)
{
    struct allocation *a = &live[at];
    struct shim_block *block = shim_slab_live_block(shim_map_find(a->addr), a->addr);
    assert_ptr_equal(block, a->block);
    assert_int_equal(block->bytes, a->bytes);
    memset(units_of(a->addr, a->bytes), (int)(2 * (owner + 1) + 1), a->bytes / UNIT);
    shim_heap_put(heap, owners[owner], block);
    assert_null(shim_slab_live_block(shim_map_find(a->addr), a->addr));
    *a = live[--live_count];
}

/* Closes the owner's batch, as an event would. */
static void close_batch(unsigned owner)
{
    owners[owner]->batch++;
    for (unsigned i = 0; i < SLABS; i++)
        for (uint64_t u = 0; slabs[i].slab != NULL && u < slabs[i].bytes / UNIT; u++)
            if (slabs[i].units[u] == 2 * (owner + 1) + 1)
                slabs[i].units[u]--;
}

/* The events of all closed batches have passed. */
static void pass(unsigned owner)
{
    owners[owner]->done = owners[owner]->batch - 1;
    shim_heap_sweep(heap, owners[owner]);
    for (unsigned i = 0; i < SLABS; i++)
        for (uint64_t u = 0; slabs[i].slab != NULL && u < slabs[i].bytes / UNIT; u++)
            if (slabs[i].units[u] == 2 * (owner + 1))
                slabs[i].units[u] = CLEAN;
}

static uint64_t random_size(void)
{
    switch (random_below(8)) {
    case 0:
        return 1 + random_below(512);
    case 1:
    case 2:
        return 1 + random_below(16 * 1024);
    case 3:
    case 4:
        return 1 + random_below(256 * 1024);
    case 5:
        return 1 + random_below(4 * PC_MIB);
    case 6:
        return (1 + random_below(8)) * PC_MIB;
    default:
        return 1 + random_below(20 * PC_MIB);
    }
}

static void random_step(void)
{
    unsigned owner = (unsigned)random_below(OWNERS);
    uint64_t what = random_below(100);
    if (what < 50 && live_count < LIVE_MOST) {
        uint64_t bytes = random_size();
        struct shim_block *block = take(owner, bytes);
        if (block == NULL && add_slab((1 + random_below(2)) * 32 * PC_MIB) != NULL) {
            block = take(owner, bytes);
            assert_non_null(block);
        }
        if (block != NULL)
            keep(block);
    } else if (what < 97 && live_count > 0) {
        give((unsigned)random_below(live_count), owner);
    } else if (what == 97) {
        close_batch(owner);
    } else if (what == 98) {
        pass(owner);
    } else {
        for (unsigned i = 0; i < SLABS; i++)
            if (slabs[i].slab != NULL && shim_slab_ready(heap, slabs[i].slab) && random_below(2) == 0)
                pull_slab(&slabs[i]);
    }
}

static void random_work_keeps_every_rule(void **state)
{
    (void)state;
    for (unsigned seed = 1; seed <= 12; seed++) {
        random_state = seed;
        for (unsigned step = 0; step < 2500; step++) {
            random_step();
            if (step % 50 == 0)
                audit();
        }
        audit();
        assert_int_equal(teardown(NULL), 0);
        setup(NULL);
    }
}

static void classes_hold_what_they_say(void **state)
{
    (void)state;
    assert_int_equal(shim_class(PC_POOL_ALLOC_MAX), SHIM_CLASSES - 1);
    for (unsigned class = 0; class < SHIM_CLASSES; class ++) {
        uint64_t most = shim_class_bytes(class);
        assert_int_equal(shim_class(most), class);
        assert_int_equal(most % UNIT, 0);
        if (class + 1 < SHIM_CLASSES)
            assert_int_equal(shim_class(most + 1), class + 1);
        if (most > 4096) {
            uint64_t least = shim_class_bytes(class - 1) + 1;
            assert_true(most - least <= least / 8);
        }
    }
    for (uint64_t bytes = SHIM_SMALL_MAX + 1; bytes < 3 * PC_MIB; bytes += 4097)
        assert_true(shim_rounded(bytes, shim_class(bytes)) - bytes <= bytes / 8);
}

static void the_same_stream_gets_it_back_at_once(void **state)
{
    (void)state;
    add_slab(32 * PC_MIB);
    const uint64_t sizes[] = {1, 512, 5000, 256 * PC_KIB, 300 * PC_KIB, 2 * PC_MIB, 20 * PC_MIB};
    for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct shim_block *block = take(0, sizes[i]);
        uint64_t addr = block->addr;
        keep(block);
        give(live_count - 1, 0);
        struct shim_block *other = take(1, sizes[i]);
        if (other != NULL) {
            assert_true(other->addr != addr);
            keep(other);
            give(live_count - 1, 1);
            sweep_all();
            continue;
        }
        other = take(0, sizes[i]);
        assert_non_null(other);
        keep(other);
        give(live_count - 1, 0);
        sweep_all();
    }
}

static void freed_neighbours_serve_a_larger_request(void **state)
{
    (void)state;
    add_slab(32 * PC_MIB);
    for (unsigned i = 0; i < 32; i++)
        keep(take(0, PC_MIB));
    assert_null(take(0, PC_MIB));
    while (live_count > 0)
        give(live_count - 1, 0);
    struct shim_block *all = take(0, 32 * PC_MIB);
    assert_non_null(all);
    keep(all);
}

static void own_and_clean_neighbours_are_joined_before_more_is_asked_for(void **state)
{
    (void)state;
    add_slab(32 * PC_MIB);
    keep(take(0, 16 * PC_MIB));
    give(0, 0);
    assert_null(take(1, 32 * PC_MIB));
    struct shim_block *all = take(0, 32 * PC_MIB);
    assert_non_null(all);
    keep(all);
}

static void small_blocks_use_the_last_crumbs(void **state)
{
    (void)state;
    add_slab(32 * PC_MIB);
    keep(take(0, 31 * PC_MIB + 512 * PC_KIB));
    unsigned got = 0;
    for (struct shim_block *block; (block = take(0, 64 * PC_KIB)) != NULL; got++)
        keep(block);
    assert_int_equal(got, 8);
    audit();
}

static void an_address_inside_a_block_finds_it(void **state)
{
    (void)state;
    add_slab(32 * PC_MIB);
    struct shim_block *small = take(0, 3000), *big = take(0, 5 * PC_MIB);
    keep(small);
    keep(big);
    const struct shim_slab *slab = slabs[0].slab;
    assert_ptr_equal(shim_slab_block_of(slab, small->addr + 2999), small);
    assert_ptr_equal(shim_slab_block_of(slab, big->addr + 5 * PC_MIB - 1), big);
    assert_null(shim_slab_live_block(slab, big->addr + 512));
    assert_null(shim_slab_live_block(slab, small->addr + 512));
}

static void odd_ranges_are_refused(void **state)
{
    (void)state;
    struct shim_slab_origin origin = {.id = 1};
    add_slab(32 * PC_MIB);
    assert_null(shim_slab_add(heap, slabs[0].base + 2 * PC_MIB, 32 * PC_MIB, &origin)); /* overlaps */
    assert_null(shim_slab_add(heap, (1ull << 41) + 4096, 32 * PC_MIB, &origin));
    assert_null(shim_slab_add(heap, 1ull << 60, 32 * PC_MIB, &origin));
    assert_null(shim_map_find(UINT64_MAX));
    audit();
}

static void large_memory_is_one_block(void **state)
{
    (void)state;
    struct shim_slab_origin origin = {.id = 1, .large = true};
    const uint64_t bytes = 8 * PC_GIB;
    struct shim_slab *slab = shim_slab_add(heap, 1ull << 42, bytes, &origin);
    assert_non_null(slab);
    struct shim_block *block = shim_heap_take_large(heap, owners[0], bytes - PC_MIB);
    assert_ptr_equal(block, slab->region.first);
    shim_heap_use(heap, block);
    assert_null(shim_heap_take_large(heap, owners[0], bytes));
    assert_ptr_equal(shim_slab_live_block(shim_map_find((1ull << 42) + bytes - 1), 1ull << 42), block);
    shim_heap_put(heap, owners[0], block);
    assert_null(shim_heap_take_large(heap, owners[1], bytes));
    assert_null(shim_heap_take_large(heap, owners[0], bytes / 2)); /* would waste half of it */
    assert_null(take(0, PC_MIB));
    audit();
    owners[0]->done = owners[0]->batch++;
    shim_heap_sweep(heap, owners[0]);
    assert_true(shim_slab_ready(heap, slab));
    shim_slab_pull(heap, slab);
    shim_slab_forget(heap, slab);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(classes_hold_what_they_say),
        cmocka_unit_test_setup_teardown(random_work_keeps_every_rule, setup, teardown),
        cmocka_unit_test_setup_teardown(the_same_stream_gets_it_back_at_once, setup, teardown),
        cmocka_unit_test_setup_teardown(freed_neighbours_serve_a_larger_request, setup, teardown),
        cmocka_unit_test_setup_teardown(own_and_clean_neighbours_are_joined_before_more_is_asked_for, setup, teardown),
        cmocka_unit_test_setup_teardown(small_blocks_use_the_last_crumbs, setup, teardown),
        cmocka_unit_test_setup_teardown(an_address_inside_a_block_finds_it, setup, teardown),
        cmocka_unit_test_setup_teardown(odd_ranges_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(large_memory_is_one_block, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
