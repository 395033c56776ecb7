/* The driver's own line: maxSize, and how a pool's books move. */
#include "tests/conformance/conformance.h"

#include <stdlib.h>

/* A pool of max bytes in a daemon: `fits` must be got, `more` beyond it must be refused as out of memory. */
static void expect_cap(struct actor *daemon, uint64_t max, bool exported, uint64_t fits)
{
    uint64_t pool = NEED(daemon, pool_create, max, exported, KEEP_ALL).value[0];
    uint64_t ptr = NEED(daemon, pool_alloc, pool, fits).value[0];
    struct answer more = ASK(daemon, pool_alloc, pool, PC_MIB);
    EXPECT(more.code == PC_CU_ERROR_OUT_OF_MEMORY, "%u", more.code);
    NEED(daemon, mem_free_async, ptr);
    more = ASK(daemon, pool_alloc, pool, fits + PC_MIB);
    EXPECT(more.code == PC_CU_ERROR_OUT_OF_MEMORY, "%u", more.code);
    NEED(daemon, pool_destroy, pool);
}

static void cap_is_enforced_exported(void)
{
    struct actor daemon = actor_start(0);
    NEED(&daemon, begin);
    expect_cap(&daemon, 64 * PC_MIB, true, 64 * PC_MIB);
    expect_cap(&daemon, PC_GIB, true, PC_GIB);
}

static void cap_is_enforced_private(void)
{
    struct actor daemon = actor_start(0);
    NEED(&daemon, begin);
    expect_cap(&daemon, 64 * PC_MIB, false, 64 * PC_MIB);
    expect_cap(&daemon, PC_GIB, false, PC_GIB);
}

static void cap_is_rounded_up(void)
{
    struct actor daemon = actor_start(0);
    NEED(&daemon, begin);
    expect_cap(&daemon, 100 * PC_MIB, true, 128 * PC_MIB);
}

static void cap_is_at_least_a_granule(void)
{
    static const uint64_t sizes[] = {1000, 3 * PC_MIB, 5 * PC_MIB};
    struct actor daemon = actor_start(0);
    NEED(&daemon, begin);
    for (size_t i = 0; i < PC_ARRAY_LEN(sizes); i++)
        expect_cap(&daemon, sizes[i], true, PC_POOL_GRANULE);
}

static void cap_holds_for_the_sum(void)
{
    struct actor daemon = actor_start(0);
    uint64_t ptr[8];
    NEED(&daemon, begin);
    uint64_t pool = NEED(&daemon, pool_create, 256 * PC_MIB, true, KEEP_ALL).value[0];
    for (size_t i = 0; i < PC_ARRAY_LEN(ptr); i++)
        ptr[i] = NEED(&daemon, pool_alloc, pool, PC_POOL_GRANULE).value[0];
    EXPECT(ASK(&daemon, pool_alloc, pool, PC_POOL_GRANULE).code == PC_CU_ERROR_OUT_OF_MEMORY);
    EXPECT(used_bytes(&daemon, pool) == 256 * PC_MIB);
    NEED(&daemon, mem_free_async, ptr[3]);
    EXPECT(used_bytes(&daemon, pool) == 224 * PC_MIB);
    NEED(&daemon, pool_alloc, pool, PC_POOL_GRANULE);
    EXPECT(reserved_bytes(&daemon, pool) == 256 * PC_MIB);
}

static void refused_request_moves_reserved_only(void)
{
    struct actor daemon = actor_start(0);
    NEED(&daemon, begin);
    uint64_t pool = NEED(&daemon, pool_create, 512 * PC_MIB, true, KEEP_ALL).value[0];
    NEED(&daemon, pool_alloc, pool, PC_POOL_GRANULE);
    EXPECT(ASK(&daemon, pool_alloc, pool, 512 * PC_MIB).code == PC_CU_ERROR_OUT_OF_MEMORY);
    EXPECT(used_bytes(&daemon, pool) == PC_POOL_GRANULE);
    uint64_t reserved = reserved_bytes(&daemon, pool);
    EXPECT(reserved <= 512 * PC_MIB);
    note("a refused request left RESERVED at %llu of 512 MiB", (unsigned long long)(reserved / PC_MIB));
}

static void small_blocks_cost_their_size(void)
{
    struct actor daemon = actor_start(0);
    NEED(&daemon, begin);
    uint64_t pool = NEED(&daemon, pool_create, PC_POOL_GRANULE, true, KEEP_ALL).value[0];
    for (int i = 0; i < 4096; i++)
        NEED(&daemon, pool_alloc, pool, 1000);
    uint64_t used = used_bytes(&daemon, pool);
    EXPECT(used >= 4096 * 1000 && used <= 4096 * 1536, "%llu", (unsigned long long)used);
}

static void thousand_pools(void)
{
    enum { POOLS = 1000 };
    static uint64_t pool[POOLS];
    struct actor daemon = actor_start(0), watcher = actor_start(0);
    NEED(&daemon, begin);
    uint64_t before = card_used(&watcher);
    for (int i = 0; i < POOLS; i++)
        pool[i] = NEED(&daemon, pool_create, PC_GIB, true, KEEP_ALL).value[0];
    pause_ms(100);
    uint64_t with = card_used(&watcher);
    EXPECT(with <= before + 256 * PC_MIB, "%llu", (unsigned long long)(with - before));
    for (int i = 0; i < POOLS; i++)
        NEED(&daemon, pool_destroy, pool[i]);
    expect_card(&watcher, before, "all destroyed");
}

static void sum_of_caps_is_not_checked(void)
{
    struct actor daemon = actor_start(0), watcher = actor_start(0);
    NEED(&daemon, begin);
    uint64_t part = NEED(&watcher, card_memory).value[3] / 5 * 3 / PC_GIB * PC_GIB;
    uint64_t one = NEED(&daemon, pool_create, part, true, KEEP_ALL).value[0];
    uint64_t two = NEED(&daemon, pool_create, part, true, KEEP_ALL).value[0];
    NEED(&daemon, pool_create, part * 10, true, KEEP_ALL);
    NEED(&daemon, pool_alloc, one, part);
    struct answer a = ASK(&daemon, pool_alloc, two, part);
    EXPECT(a.code == PC_CU_ERROR_OUT_OF_MEMORY, "%u", a.code);
}

static void full_card_is_out_of_memory(void)
{
    struct actor daemon = actor_start(0), watcher = actor_start(0);
    NEED(&daemon, begin);
    uint64_t more = (NEED(&watcher, card_memory).value[3] / PC_POOL_GRANULE + 64) * PC_POOL_GRANULE;
    uint64_t pool = NEED(&daemon, pool_create, 2 * more, true, KEEP_ALL).value[0];
    EXPECT(ASK(&daemon, pool_alloc, pool, more).code == PC_CU_ERROR_OUT_OF_MEMORY);
    EXPECT(ASK(&daemon, direct_alloc, more).code == PC_CU_ERROR_OUT_OF_MEMORY);
    EXPECT(ASK(&daemon, async_alloc, more).code == PC_CU_ERROR_OUT_OF_MEMORY);
    EXPECT(ASK(&daemon, large_create, more).code == PC_CU_ERROR_OUT_OF_MEMORY);
    NEED(&daemon, pool_destroy, pool);
    NEED(&daemon, direct_alloc, PC_GIB); /* a refusal spoils nothing */
}

/* Trap 1, the good half: with everything kept and never trimmed, the pool stays at its high-water mark. */
static void trap_01_kept_memory_stays(void)
{
    struct scene s = scene_open(PC_GIB);
    for (int round = 0; round < 40; round++) {
        uint64_t size = (uint64_t)(1 + round * 7 % 31) * PC_POOL_GRANULE;
        struct answer a = scene_export(&s, size);
        uint64_t ptr = import_into(&s.tenant, s.imported, a.data);
        NEED(&s.tenant, mem_free_async, ptr);
        NEED(&s.daemon, mem_free_async, a.value[0]);
        EXPECT(used_bytes(&s.daemon, s.pool) == 0);
        EXPECT(reserved_bytes(&s.daemon, s.pool) <= PC_GIB);
    }
    EXPECT(reserved_bytes(&s.daemon, s.pool) == 31 * PC_POOL_GRANULE);
}

/* Trap 16. */
static void trap_16_multiples_keep_the_books_exact(void)
{
    enum { LIVE = 64, ROUNDS = 4000 };
    static uint64_t ptr[LIVE], size[LIVE];
    struct actor daemon = actor_start(0), watcher = actor_start(0);
    need_free(&watcher, 6 * PC_GIB);
    NEED(&daemon, begin);
    uint64_t pool = NEED(&daemon, pool_create, 4 * PC_GIB, true, KEEP_ALL).value[0], used = 0, high = 0;
    NEED(&daemon, pool_export, pool);
    unsigned int seed = 1;
    for (int i = 0; i < ROUNDS; i++) {
        int slot = rand_r(&seed) % LIVE;
        if (ptr[slot] != 0) {
            NEED(&daemon, mem_free_async, ptr[slot]);
            used -= size[slot];
            ptr[slot] = 0;
            continue;
        }
        size[slot] = (uint64_t)(1 + rand_r(&seed) % 20) * PC_POOL_GRANULE;
        if (used + size[slot] > 4 * PC_GIB)
            continue;
        ptr[slot] = NEED(&daemon, pool_alloc, pool, size[slot]).value[0]; /* nothing that fits is refused */
        used += size[slot];
        high = used > high ? used : high;
        uint64_t reserved = reserved_bytes(&daemon, pool);
        EXPECT(reserved == high, "round %d: %llu, high-water mark %llu", i, (unsigned long long)reserved,
               (unsigned long long)high);
    }
    EXPECT(used_bytes(&daemon, pool) == used);
}

static void trap_16_scattered_pieces_serve(void)
{
    enum { PIECES = 32 };
    uint64_t ptr[PIECES];
    struct actor daemon = actor_start(0);
    NEED(&daemon, begin);
    uint64_t pool = NEED(&daemon, pool_create, PC_GIB, true, KEEP_ALL).value[0];
    NEED(&daemon, pool_export, pool);
    for (int i = 0; i < PIECES; i++) {
        ptr[i] = NEED(&daemon, pool_alloc, pool, PC_POOL_GRANULE).value[0];
        NEED(&daemon, export_pointer, ptr[i]);
    }
    for (int i = 0; i < PIECES; i += 2)
        NEED(&daemon, mem_free_async, ptr[i]);
    uint64_t whole = NEED(&daemon, pool_alloc, pool, 512 * PC_MIB).value[0];
    NEED(&daemon, export_pointer, whole);
    NEED(&daemon, fill, whole, 512 * PC_MIB, 7);
    EXPECT(reserved_bytes(&daemon, pool) == PC_GIB);
    EXPECT(ASK(&daemon, pool_alloc, pool, PC_MIB).code == PC_CU_ERROR_OUT_OF_MEMORY);
}

const struct check cap_checks[] = {
    {"cap-is-enforced-exported", cap_is_enforced_exported, 0},
    {"cap-is-enforced-private", cap_is_enforced_private, 0},
    {"cap-is-rounded-up-to-32-mib", cap_is_rounded_up, 0},
    {"cap-is-at-least-32-mib", cap_is_at_least_a_granule, 0},
    {"cap-holds-for-the-sum-of-blocks", cap_holds_for_the_sum, 0},
    {"cap-sum-of-pools-is-not-checked", sum_of_caps_is_not_checked, ALONE},
    {"refused-request-moves-reserved-only", refused_request_moves_reserved_only, 0},
    {"small-blocks-cost-their-size", small_blocks_cost_their_size, 0},
    {"thousand-pools", thousand_pools, ALONE},
    {"full-card-is-out-of-memory", full_card_is_out_of_memory, ALONE},
    {"trap-01-kept-memory-stays-at-its-high-mark", trap_01_kept_memory_stays, 0},
    {"trap-16-multiples-keep-the-books-exact", trap_16_multiples_keep_the_books_exact, 0},
    {"trap-16-scattered-pieces-serve-one-request", trap_16_scattered_pieces_serve, 0},
    {NULL, NULL, 0},
};
