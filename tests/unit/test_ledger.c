/* The ledger, call by call: exact limits, every refusal with its text, and what each change does to each level. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "alloc/ledger/ledger.h"

#define G PC_POOL_GRANULE

/* One GPU of 64 granules; tenant "pod" of 16 with cap 16; grants "a" and "b" of 16 and 8; a session in each. */
struct books {
    struct pc_ledger *ledger;
    struct pc_ledger_gpu *gpu;
    struct pc_ledger_tenant *tenant;
    struct pc_ledger_grant *grant, *grant_b;
    struct pc_ledger_session *session, *session_b;
    struct pc_ledger_generation *pool; /* of 16 granules; NULL until open_pool */
    uint64_t over_releases;            /* that the test makes on purpose */
    struct pc_error err;
};

#define assert_ok(call) assert_int_equal((call), PC_OK)
#define assert_says(words) assert_non_null(strstr(b->err.text, (words)))

static int open_books(void **state)
{
    struct books *b = calloc(1, sizeof *b);
    if (b == NULL || pc_ledger_create(&b->ledger, NULL) != PC_OK)
        return -1;
    pc_ledger_gpu_add(b->ledger, "GPU-1", 64 * G, &b->gpu, NULL);
    pc_ledger_tenant_add(b->gpu, "pod", 16 * G, 16 * G, &b->tenant, NULL);
    pc_ledger_grant_add(b->tenant, "a", 16 * G, &b->grant, NULL);
    pc_ledger_grant_add(b->tenant, "b", 8 * G, &b->grant_b, NULL);
    pc_ledger_session_add(b->grant, &b->session, NULL);
    pc_ledger_session_add(b->grant_b, &b->session_b, NULL);
    *state = b;
    return 0;
}

static int close_books(void **state)
{
    struct books *b = *state;
    int bad = pc_ledger_check(b->ledger, &b->err) != PC_OK || pc_ledger_over_releases(b->ledger) != b->over_releases;
    if (bad)
        print_error("the books: %s; %llu over-releases\n", b->err.text,
                    (unsigned long long)pc_ledger_over_releases(b->ledger));
    pc_ledger_free(b->ledger);
    free(b);
    return bad ? -1 : 0;
}

static void open_pool(struct books *b)
{
    assert_ok(pc_ledger_generation_add(b->tenant, 16 * G, &b->pool, &b->err));
}

static struct pc_ledger_tenant_view view(const struct books *b)
{
    struct pc_ledger_tenant_view tenant;
    pc_ledger_tenant_read(b->tenant, &tenant);
    return tenant;
}

static void assert_charged(const struct books *b, uint64_t tenant, uint64_t grant, uint64_t grant_b)
{
    struct pc_ledger_gpu_view gpu;
    struct pc_ledger_grant_view a_view, b_view;
    pc_ledger_gpu_read(b->gpu, &gpu);
    pc_ledger_grant_read(b->grant, &a_view);
    pc_ledger_grant_read(b->grant_b, &b_view);
    assert_int_equal(view(b).charged, tenant);
    assert_int_equal(gpu.charged, tenant);
    assert_int_equal(a_view.charged, grant);
    assert_int_equal(b_view.charged, grant_b);
    assert_ok(pc_ledger_check(b->ledger, NULL));
}

static enum pc_status book_block(struct books *b, uint64_t granules, uint64_t *growth)
{
    *growth = UINT64_MAX;
    enum pc_status status = pc_ledger_block_book(b->session, b->pool, granules * G, growth, &b->err);
    if (status != PC_OK)
        assert_int_equal(*growth, UINT64_MAX); /* outputs are written on success only */
    return status;
}

static void test_names(void **state)
{
    (void)state;
    assert_string_equal(pc_charge_kind_name(PC_CHARGE_LARGE), "large");
    assert_string_equal(pc_charge_kind_name(PC_CHARGE_DIRECT), "direct");
    assert_string_equal(pc_charge_kind_name(PC_CHARGE_CONTEXT), "context");
    assert_string_equal(pc_charge_kind_name(PC_CHARGE_PENDING), "pending");
    assert_string_equal(pc_charge_kind_name(PC_CHARGE_KINDS), "unknown");
    pc_ledger_free(NULL);
}

static void test_tenant_add(void **state)
{
    struct books *b = *state;
    struct pc_ledger_tenant *t = NULL;
    assert_int_equal(pc_ledger_tenant_add(b->gpu, "x", 0, 0, &t, &b->err), PC_ERR_INVALID);
    assert_int_equal(pc_ledger_tenant_add(b->gpu, "x", G, 0, &t, &b->err), PC_ERR_INVALID);
    assert_int_equal(pc_ledger_tenant_add(b->gpu, "x", G, G + 1, &t, &b->err), PC_ERR_INVALID);
    assert_says("x");
    assert_int_equal(pc_ledger_tenant_add(b->gpu, "x", 48 * G + 1, G, &t, &b->err), PC_ERR_OUT_OF_MEMORY);
    assert_says("GPU-1");
    assert_says("capacity 2Gi");
    assert_says("512Mi");      /* granted so far */
    assert_says("1610612737"); /* asked */
    assert_int_equal(pc_ledger_tenant_add(b->gpu, "x", UINT64_MAX, G, &t, &b->err), PC_ERR_OUT_OF_MEMORY);
    assert_null(t);
    assert_ok(pc_ledger_tenant_add(b->gpu, "x", 48 * G, G, &t, &b->err));
    struct pc_ledger_gpu_view gpu;
    pc_ledger_gpu_read(b->gpu, &gpu);
    assert_int_equal(gpu.granted, gpu.capacity);
    assert_int_equal(gpu.tenants, 2);
    assert_ok(pc_ledger_tenant_remove(t, &b->err));
    pc_ledger_gpu_read(b->gpu, &gpu);
    assert_int_equal(gpu.granted, 16 * G);
    assert_int_equal(gpu.tenants, 1);
}

static void test_resize(void **state)
{
    struct books *b = *state;
    assert_int_equal(pc_ledger_tenant_resize(b->tenant, 0, 0, &b->err), PC_ERR_INVALID);
    assert_int_equal(pc_ledger_tenant_resize(b->tenant, G, 0, &b->err), PC_ERR_INVALID);
    assert_int_equal(pc_ledger_tenant_resize(b->tenant, G, 2 * G, &b->err), PC_ERR_INVALID);
    assert_int_equal(pc_ledger_tenant_resize(b->tenant, 64 * G + 1, G, &b->err), PC_ERR_OUT_OF_MEMORY);
    assert_ok(pc_ledger_tenant_resize(b->tenant, 64 * G, 64 * G, &b->err)); /* its own grant is not in its way */
    assert_int_equal(view(b).granted, 64 * G);
    assert_ok(pc_ledger_tenant_resize(b->tenant, 16 * G, 7, &b->err));
    assert_int_equal(view(b).cap, 7);
    open_pool(b);
    assert_ok(pc_ledger_tenant_resize(b->tenant, 15 * G + 1, G, &b->err)); /* rounds up to the pools' 16 */
    assert_int_equal(pc_ledger_tenant_resize(b->tenant, 15 * G, G, &b->err), PC_ERR_BUSY);
    assert_says("pod");
    assert_int_equal(view(b).granted, 15 * G + 1);
    assert_ok(pc_ledger_inherit(b->tenant, 4 * G, &b->err));
    assert_int_equal(pc_ledger_tenant_resize(b->tenant, 15 * G, G, &b->err), PC_ERR_BUSY);
    assert_ok(pc_ledger_tenant_resize(b->tenant, 18 * G, G, &b->err)); /* raising is never in the way */
    assert_int_equal(pc_ledger_generation_room(b->tenant), 0);
}

/* A pool takes nothing away from a tenant whose cap was lowered, nor lets it have more than the new cap live. */
static void test_lowered_cap(void **state)
{
    struct books *b = *state;
    uint64_t growth;
    open_pool(b);
    assert_ok(book_block(b, 8, &growth));
    assert_ok(pc_ledger_tenant_resize(b->tenant, 16 * G, 4 * G, &b->err));
    assert_charged(b, 8 * G, 8 * G, 0);
    assert_int_equal(book_block(b, 1, &growth), PC_ERR_OUT_OF_MEMORY);
    assert_int_equal(pc_ledger_book(b->session, PC_CHARGE_DIRECT, 1, &b->err), PC_ERR_OUT_OF_MEMORY);
    assert_int_equal(pc_ledger_room(b->grant), 0);
    assert_ok(pc_ledger_block_release(b->session, b->pool, 5 * G, &b->err));
    assert_int_equal(pc_ledger_room(b->grant), G);
    assert_int_equal(pc_ledger_room_new(b->grant), 0); /* RESERVED is still 8 */
    assert_int_equal(pc_ledger_book(b->session, PC_CHARGE_LARGE, 1, &b->err), PC_ERR_OUT_OF_MEMORY);
    assert_int_equal(book_block(b, 2, &growth), PC_ERR_OUT_OF_MEMORY);
    assert_ok(book_block(b, 1, &growth));
    assert_int_equal(growth, 0);
    assert_int_equal(view(b).refused, 4);
    assert_charged(b, 8 * G, 4 * G, 0);
}

static void test_close_order(void **state)
{
    struct books *b = *state;
    open_pool(b);
    assert_int_equal(pc_ledger_tenant_remove(b->tenant, &b->err), PC_ERR_BUSY);
    assert_says("2 grants, 2 sessions, 1 generations");
    assert_int_equal(pc_ledger_grant_remove(b->grant, &b->err), PC_ERR_BUSY);
    assert_says("grant a");
    for (int kind = 0; kind < PC_CHARGE_KINDS; kind++) {
        assert_ok(pc_ledger_book(b->session, kind, 1, &b->err));
        assert_int_equal(pc_ledger_session_remove(b->session, &b->err), PC_ERR_BUSY);
        assert_ok(pc_ledger_release(b->session, kind, 1, &b->err));
    }
    uint64_t growth;
    assert_ok(book_block(b, 1, &growth));
    assert_int_equal(pc_ledger_session_remove(b->session, &b->err), PC_ERR_BUSY);
    assert_int_equal(pc_ledger_generation_remove(b->pool, false, &b->err), PC_ERR_BUSY);
    assert_ok(pc_ledger_block_release(b->session, b->pool, G, &b->err));
    assert_ok(pc_ledger_session_remove(b->session, &b->err));
    assert_ok(pc_ledger_session_remove(b->session_b, &b->err));
    assert_ok(pc_ledger_grant_remove(b->grant, &b->err));
    assert_ok(pc_ledger_grant_remove(b->grant_b, &b->err));
    assert_int_equal(pc_ledger_tenant_remove(b->tenant, &b->err), PC_ERR_BUSY); /* the generation */
    assert_ok(pc_ledger_generation_remove(b->pool, true, &b->err));
    assert_int_equal(pc_ledger_tenant_remove(b->tenant, &b->err), PC_ERR_BUSY); /* its unsettled bytes */
    assert_ok(pc_ledger_tenant_settle(b->tenant, G, &b->err));
    assert_ok(pc_ledger_inherit(b->tenant, 1, &b->err));
    assert_int_equal(pc_ledger_tenant_remove(b->tenant, &b->err), PC_ERR_BUSY);
    assert_ok(pc_ledger_disinherit(b->tenant, 1, &b->err));
    assert_ok(pc_ledger_tenant_remove(b->tenant, &b->err));
}

static void test_counts(void **state)
{
    struct books *b = *state;
    struct pc_ledger_session *more;
    struct pc_ledger_grant_view grant;
    open_pool(b);
    assert_ok(pc_ledger_session_add(b->grant, &more, &b->err));
    pc_ledger_grant_read(b->grant, &grant);
    assert_int_equal(grant.sessions, 2);
    assert_int_equal(grant.cap, 16 * G);
    assert_int_equal(view(b).sessions, 3);
    assert_int_equal(view(b).grants, 2);
    assert_int_equal(view(b).generations, 1);
    assert_ok(pc_ledger_session_remove(more, &b->err));
    assert_int_equal(view(b).sessions, 2);
}

static void test_generation_room(void **state)
{
    struct books *b = *state;
    struct pc_ledger_generation *g = NULL, *h = NULL;
    assert_int_equal(pc_ledger_generation_add(b->tenant, 0, &g, &b->err), PC_ERR_INVALID);
    assert_int_equal(pc_ledger_generation_add(b->tenant, G + 1, &g, &b->err), PC_ERR_INVALID);
    assert_int_equal(pc_ledger_generation_add(b->tenant, 17 * G, &g, &b->err), PC_ERR_OUT_OF_MEMORY);
    assert_says("granted 512Mi");
    assert_says("requested 544Mi");
    assert_null(g);
    assert_ok(pc_ledger_tenant_resize(b->tenant, 15 * G + 1, 15 * G, &b->err));
    assert_int_equal(pc_ledger_generation_room(b->tenant), 16 * G); /* rounded up, as the driver does */
    assert_ok(pc_ledger_generation_add(b->tenant, 10 * G, &g, &b->err));
    assert_ok(pc_ledger_inherit(b->tenant, 2 * G + 1, &b->err));
    assert_int_equal(pc_ledger_generation_room(b->tenant), 3 * G);
    assert_int_equal(pc_ledger_generation_add(b->tenant, 4 * G, &h, &b->err), PC_ERR_OUT_OF_MEMORY);
    assert_ok(pc_ledger_generation_add(b->tenant, 3 * G, &h, &b->err));
    assert_int_equal(view(b).pool_max, 13 * G);
    assert_int_equal(view(b).refused, 0);                     /* counts bookings only */
    assert_ok(pc_ledger_inherit(b->tenant, 40 * G, &b->err)); /* never refused */
    assert_int_equal(pc_ledger_generation_room(b->tenant), 0);
    assert_ok(pc_ledger_inherit(b->tenant, UINT64_MAX - view(b).charged, &b->err));
    assert_int_equal(pc_ledger_generation_room(b->tenant), 0); /* the sum does not wrap */
    assert_int_equal(pc_ledger_inherit(b->tenant, 1, &b->err), PC_ERR_INVALID);
    assert_charged(b, UINT64_MAX, 0, 0);
}

static void test_removed_generation_stays_pending(void **state)
{
    struct books *b = *state;
    uint64_t growth;
    open_pool(b);
    assert_ok(book_block(b, 6, &growth));
    assert_ok(pc_ledger_block_release(b->session, b->pool, 6 * G, &b->err));
    assert_ok(pc_ledger_generation_remove(b->pool, true, &b->err));
    assert_charged(b, 6 * G, 0, 0);
    assert_int_equal(view(b).unsettled, 6 * G);
    assert_int_equal(view(b).kinds[PC_CHARGE_PENDING], 6 * G);
    assert_int_equal(view(b).pool_max, 0);
    assert_int_equal(pc_ledger_generation_room(b->tenant), 10 * G); /* it may still be pinned on the card */
    assert_int_equal(pc_ledger_book(b->session, PC_CHARGE_LARGE, 10 * G + 1, &b->err), PC_ERR_OUT_OF_MEMORY);
    assert_ok(pc_ledger_tenant_settle(b->tenant, 2 * G, &b->err));
    assert_charged(b, 4 * G, 0, 0);
    assert_ok(pc_ledger_tenant_settle(b->tenant, 4 * G, &b->err));
    assert_charged(b, 0, 0, 0);
    assert_int_equal(pc_ledger_generation_room(b->tenant), 16 * G);
    open_pool(b);
    assert_ok(book_block(b, 2, &growth));
    assert_ok(pc_ledger_block_release(b->session, b->pool, 2 * G, &b->err));
    assert_ok(pc_ledger_generation_remove(b->pool, false, &b->err));
    assert_charged(b, 0, 0, 0);
}

static void test_reserved_is_the_high_water_mark(void **state)
{
    struct books *b = *state;
    struct pc_ledger_generation_view pool;
    uint64_t growth;
    open_pool(b);
    assert_ok(book_block(b, 4, &growth));
    assert_int_equal(growth, 4 * G);
    assert_ok(book_block(b, 2, &growth));
    assert_int_equal(growth, 2 * G);
    assert_ok(pc_ledger_block_release(b->session, b->pool, 4 * G, &b->err));
    assert_charged(b, 6 * G, 2 * G, 0); /* the tenant holds RESERVED, the grant only what its blocks use */
    assert_int_equal(pc_ledger_room(b->grant), 14 * G);
    assert_int_equal(pc_ledger_room_new(b->grant), 10 * G);
    assert_ok(book_block(b, 3, &growth));
    assert_int_equal(growth, 0);
    assert_ok(book_block(b, 3, &growth));
    assert_int_equal(growth, 2 * G);
    pc_ledger_generation_read(b->pool, &pool);
    assert_int_equal(pool.max, 16 * G);
    assert_int_equal(pool.reserved, 8 * G);
    assert_int_equal(pool.used, 8 * G);
    assert_int_equal(view(b).pool_reserved, 8 * G);
    assert_int_equal(view(b).pool_used, 8 * G);
}

/* A block that one container frees serves the next container of the pod. */
static void test_reuse_between_grants(void **state)
{
    struct books *b = *state;
    uint64_t growth;
    open_pool(b);
    assert_ok(book_block(b, 16, &growth));
    assert_int_equal(pc_ledger_block_book(b->session_b, b->pool, G, &growth, &b->err), PC_ERR_OUT_OF_MEMORY);
    assert_says("tenant pod: cap 512Mi, charged 512Mi, requested 32Mi");
    assert_ok(pc_ledger_block_release(b->session, b->pool, 16 * G, &b->err));
    assert_int_equal(pc_ledger_room(b->grant_b), 8 * G); /* the grant's own cap is the smaller */
    assert_int_equal(pc_ledger_room_new(b->grant_b), 0);
    assert_ok(pc_ledger_block_book(b->session_b, b->pool, 8 * G, &growth, &b->err));
    assert_int_equal(growth, 0);
    assert_int_equal(pc_ledger_block_book(b->session_b, b->pool, G, &growth, &b->err), PC_ERR_OUT_OF_MEMORY);
    assert_says("grant b: cap 256Mi, charged 256Mi, requested 32Mi");
    assert_charged(b, 16 * G, 0, 8 * G);
}

static void test_block_arguments(void **state)
{
    struct books *b = *state;
    struct pc_ledger_tenant *other;
    struct pc_ledger_generation *foreign;
    uint64_t growth;
    open_pool(b);
    assert_ok(pc_ledger_tenant_add(b->gpu, "other", G, G, &other, &b->err));
    assert_ok(pc_ledger_generation_add(other, G, &foreign, &b->err));
    assert_int_equal(pc_ledger_block_book(b->session, foreign, G, &growth, &b->err), PC_ERR_INVALID);
    assert_says("other");
    assert_int_equal(pc_ledger_block_release(b->session, foreign, G, &b->err), PC_ERR_INVALID);
    assert_int_equal(book_block(b, 0, &growth), PC_ERR_INVALID);
    assert_int_equal(pc_ledger_block_book(b->session, b->pool, G + 1, &growth, &b->err), PC_ERR_INVALID);
    assert_int_equal(pc_ledger_block_release(b->session, b->pool, G - 1, &b->err), PC_ERR_INVALID);
    assert_int_equal(pc_ledger_block_release(b->session, b->pool, 0, &b->err), PC_ERR_INVALID);
    assert_int_equal(pc_ledger_block_book(b->session, b->pool, UINT64_MAX - UINT64_MAX % G, &growth, &b->err),
                     PC_ERR_OUT_OF_MEMORY);
    assert_charged(b, 0, 0, 0);
}

/* BUSY means "another generation may serve it", OUT_OF_MEMORY that none can. */
static void test_busy_or_out_of_memory(void **state)
{
    struct books *b = *state;
    struct pc_ledger_generation *second;
    uint64_t growth = 7;
    assert_ok(pc_ledger_generation_add(b->tenant, 8 * G, &b->pool, &b->err));
    assert_ok(pc_ledger_generation_add(b->tenant, 8 * G, &second, &b->err));
    assert_false(pc_ledger_generation_fits(b->pool, 9 * G, &growth));
    assert_false(pc_ledger_generation_fits(b->pool, UINT64_MAX, &growth));
    assert_int_equal(growth, 7);
    assert_true(pc_ledger_generation_fits(b->pool, 8 * G, &growth));
    assert_int_equal(growth, 8 * G);
    assert_int_equal(book_block(b, 9, &growth), PC_ERR_BUSY);
    assert_int_equal(b->err.status, PC_ERR_BUSY);
    assert_says("cap 512Mi, charged 0, requested 288Mi");
    assert_int_equal(pc_ledger_block_book(b->session, b->pool, 9 * G, &growth, NULL), PC_ERR_BUSY);
    assert_int_equal(book_block(b, 17, &growth), PC_ERR_OUT_OF_MEMORY);
    assert_ok(pc_ledger_block_book(b->session, second, 8 * G, &growth, &b->err));
    assert_ok(pc_ledger_block_release(b->session, second, 8 * G, &b->err));
    assert_ok(pc_ledger_book(b->session, PC_CHARGE_DIRECT, 8 * G, &b->err));
    /* The cap is full with the second one's idle memory: growing the first is not possible, reusing the second is. */
    assert_int_equal(book_block(b, 1, &growth), PC_ERR_BUSY);
    assert_true(pc_ledger_generation_fits(second, G, &growth));
    assert_int_equal(growth, 0);
    assert_ok(pc_ledger_block_book(b->session, second, G, &growth, &b->err));
    assert_int_equal(view(b).refused, 1); /* BUSY is no refusal */
    assert_charged(b, 16 * G, 9 * G, 0);
}

static void test_kinds_exact_limits(void **state)
{
    struct books *b = *state;
    for (int kind = 0; kind < PC_CHARGE_KINDS; kind++) {
        assert_int_equal(pc_ledger_book(b->session, kind, 16 * G + 1, &b->err), PC_ERR_OUT_OF_MEMORY);
        assert_says("grant a: cap 512Mi, charged 0, requested 536870913");
        assert_int_equal(pc_ledger_book(b->session, kind, UINT64_MAX, &b->err), PC_ERR_OUT_OF_MEMORY);
        assert_charged(b, 0, 0, 0);
        assert_ok(pc_ledger_book(b->session, kind, 16 * G, &b->err));
        assert_charged(b, 16 * G, 16 * G, 0);
        assert_int_equal(view(b).kinds[kind], 16 * G);
        assert_int_equal(pc_ledger_book(b->session, kind, 1, &b->err), PC_ERR_OUT_OF_MEMORY);
        assert_int_equal(pc_ledger_book(b->session, kind, UINT64_MAX, &b->err), PC_ERR_OUT_OF_MEMORY); /* 2^64 */
        assert_int_equal(pc_ledger_book(b->session_b, kind, 1, &b->err), PC_ERR_OUT_OF_MEMORY);
        assert_says("tenant pod: cap 512Mi, charged 512Mi, requested 1");
        assert_ok(pc_ledger_book(b->session, kind, 0, &b->err));
        assert_ok(pc_ledger_release(b->session, kind, 16 * G, &b->err));
    }
    assert_int_equal(view(b).peak, 16 * G);
    assert_int_equal(view(b).refused, 5 * PC_CHARGE_KINDS);
}

static void test_grant_cap(void **state)
{
    struct books *b = *state;
    struct pc_ledger_grant *g = NULL;
    assert_int_equal(pc_ledger_grant_add(b->tenant, "none", 0, &g, &b->err), PC_ERR_INVALID);
    assert_null(g);
    assert_int_equal(pc_ledger_grant_set_cap(b->grant, 0, &b->err), PC_ERR_INVALID);
    assert_ok(pc_ledger_book(b->session, PC_CHARGE_CONTEXT, 10, &b->err));
    assert_ok(pc_ledger_grant_set_cap(b->grant, 4, &b->err));
    assert_int_equal(pc_ledger_room(b->grant), 0);
    assert_int_equal(pc_ledger_book(b->session, PC_CHARGE_LARGE, 1, &b->err), PC_ERR_OUT_OF_MEMORY);
    assert_says("grant a: cap 4, charged 10, requested 1");
    assert_ok(pc_ledger_grant_set_cap(b->grant, 12, &b->err));
    assert_int_equal(pc_ledger_room(b->grant), 2);
    assert_int_equal(pc_ledger_room_new(b->grant), 2);
    assert_int_equal(pc_ledger_book(b->session, PC_CHARGE_LARGE, 3, &b->err), PC_ERR_OUT_OF_MEMORY);
    assert_ok(pc_ledger_book(b->session, PC_CHARGE_LARGE, 2, &b->err));
}

/* The card is the last level: a neighbour's forced charge can leave less than the caps promise. */
static void test_gpu_level(void **state)
{
    struct books *b = *state;
    struct pc_ledger_tenant *other;
    uint64_t growth;
    open_pool(b);
    assert_ok(book_block(b, 2, &growth));
    assert_ok(pc_ledger_block_release(b->session, b->pool, 2 * G, &b->err));
    assert_ok(pc_ledger_tenant_add(b->gpu, "other", G, G, &other, &b->err));
    assert_ok(pc_ledger_inherit(other, 61 * G, &b->err));
    assert_int_equal(pc_ledger_book(b->session, PC_CHARGE_LARGE, G + 1, &b->err), PC_ERR_OUT_OF_MEMORY);
    assert_says("gpu GPU-1: cap 2Gi, charged 2016Mi, requested 33554433");
    assert_int_equal(book_block(b, 4, &growth), PC_ERR_OUT_OF_MEMORY);
    assert_ok(book_block(b, 3, &growth)); /* 2 of them reused */
    assert_int_equal(growth, G);
    assert_int_equal(pc_ledger_book(b->session, PC_CHARGE_LARGE, 1, &b->err), PC_ERR_OUT_OF_MEMORY);
    assert_ok(pc_ledger_inherit(other, G, &b->err));
    assert_ok(pc_ledger_block_release(b->session, b->pool, 3 * G, &b->err));
    assert_ok(book_block(b, 3, &growth)); /* no growth: a full card is not in its way */
}

static void test_move(void **state)
{
    struct books *b = *state;
    struct pc_ledger_session_view session;
    assert_ok(pc_ledger_book(b->session, PC_CHARGE_LARGE, 100, &b->err));
    assert_ok(pc_ledger_move(b->session, PC_CHARGE_LARGE, PC_CHARGE_PENDING, 60, &b->err));
    assert_ok(pc_ledger_move(b->session, PC_CHARGE_LARGE, PC_CHARGE_LARGE, 40, &b->err));
    assert_charged(b, 100, 100, 0);
    pc_ledger_session_read(b->session, &session);
    assert_int_equal(session.kinds[PC_CHARGE_LARGE], 40);
    assert_int_equal(session.kinds[PC_CHARGE_PENDING], 60);
    assert_int_equal(session.blocks, 0);
    assert_int_equal(view(b).kinds[PC_CHARGE_PENDING], 60);
    assert_int_equal(pc_ledger_move(b->session, PC_CHARGE_LARGE, PC_CHARGE_DIRECT, 41, &b->err), PC_ERR_INVALID);
    b->over_releases = 1;
    assert_charged(b, 100, 100, 0);
    assert_int_equal(view(b).kinds[PC_CHARGE_DIRECT], 40); /* what there was */
    assert_ok(pc_ledger_release(b->session, PC_CHARGE_PENDING, 60, &b->err));
    assert_charged(b, 40, 40, 0);
}

static void test_true_up(void **state)
{
    struct books *b = *state;
    assert_ok(pc_ledger_book(b->session, PC_CHARGE_CONTEXT, 5 * G, &b->err));
    pc_ledger_true_up(b->session, PC_CHARGE_CONTEXT, 6 * G);
    assert_charged(b, 6 * G, 6 * G, 0);
    pc_ledger_true_up(b->session, PC_CHARGE_CONTEXT, 4 * G);
    assert_charged(b, 4 * G, 4 * G, 0);
    pc_ledger_true_up(b->session, PC_CHARGE_DIRECT, 20 * G); /* over the cap: it is on the card */
    assert_charged(b, 24 * G, 24 * G, 0);
    assert_int_equal(view(b).peak, 24 * G);
    assert_int_equal(pc_ledger_room(b->grant_b), 0);
    assert_int_equal(pc_ledger_book(b->session_b, PC_CHARGE_CONTEXT, 1, &b->err), PC_ERR_OUT_OF_MEMORY);
    pc_ledger_true_up(b->session, PC_CHARGE_DIRECT, UINT64_MAX); /* stops at what 64 bits hold */
    assert_charged(b, UINT64_MAX, UINT64_MAX, 0);
    pc_ledger_true_up(b->session_b, PC_CHARGE_DIRECT, 1);
    assert_charged(b, UINT64_MAX, UINT64_MAX, 0);
    pc_ledger_true_up(b->session, PC_CHARGE_DIRECT, 0);
    assert_charged(b, 4 * G, 4 * G, 0);
}

static void test_pool_true_up(void **state)
{
    struct books *b = *state;
    uint64_t growth;
    open_pool(b);
    assert_ok(book_block(b, 4, &growth));
    assert_true(pc_ledger_generation_true_up(b->pool, 4 * G));
    /* A refused driver call grew the pool (facts: it may, up to maxSize); the booking is rolled back. */
    assert_ok(book_block(b, 2, &growth));
    assert_ok(pc_ledger_block_release(b->session, b->pool, 2 * G, &b->err));
    assert_false(pc_ledger_generation_true_up(b->pool, 5 * G));
    assert_charged(b, 5 * G, 4 * G, 0);
    assert_false(pc_ledger_generation_true_up(b->pool, 3 * G)); /* never below the blocks */
    assert_charged(b, 4 * G, 4 * G, 0);
    assert_false(pc_ledger_generation_true_up(b->pool, 40 * G)); /* over max and cap: the card's word */
    assert_charged(b, 40 * G, 4 * G, 0);
    assert_true(pc_ledger_generation_true_up(b->pool, 40 * G));
    assert_false(pc_ledger_generation_true_up(b->pool, UINT64_MAX));
    pc_ledger_true_up(b->session, PC_CHARGE_DIRECT, G);
    assert_charged(b, UINT64_MAX, 4 * G, 0);
}

/* After another poolcapd: what it exported is charged whole, over the cap too. */
static void test_inherit(void **state)
{
    struct books *b = *state;
    assert_ok(pc_ledger_inherit(b->tenant, 10 * G, &b->err));
    assert_ok(pc_ledger_inherit(b->tenant, 8 * G, &b->err));
    assert_charged(b, 18 * G, 0, 0);
    assert_int_equal(view(b).inherited, 18 * G);
    assert_int_equal(pc_ledger_generation_room(b->tenant), 0);
    assert_int_equal(pc_ledger_book(b->session, PC_CHARGE_CONTEXT, 1, &b->err), PC_ERR_OUT_OF_MEMORY);
    assert_ok(pc_ledger_disinherit(b->tenant, 10 * G, &b->err));
    assert_charged(b, 8 * G, 0, 0);
    assert_int_equal(pc_ledger_generation_room(b->tenant), 8 * G);
    assert_ok(pc_ledger_book(b->session, PC_CHARGE_CONTEXT, 8 * G, &b->err));
}

static void test_over_releases(void **state)
{
    struct books *b = *state;
    uint64_t growth;
    open_pool(b);
    assert_ok(book_block(b, 2, &growth));
    assert_int_equal(pc_ledger_block_release(b->session_b, b->pool, G, &b->err), PC_ERR_INVALID); /* not its own */
    assert_int_equal(pc_ledger_over_releases(b->ledger), 1);
    assert_charged(b, 2 * G, 2 * G, 0);
    assert_int_equal(pc_ledger_block_release(b->session, b->pool, 3 * G, &b->err), PC_ERR_INVALID);
    assert_int_equal(pc_ledger_over_releases(b->ledger), 2);
    assert_says("grant a");
    assert_charged(b, 2 * G, 0, 0);
    assert_ok(pc_ledger_book(b->session, PC_CHARGE_DIRECT, 9, &b->err));
    assert_int_equal(pc_ledger_release(b->session, PC_CHARGE_DIRECT, 10, &b->err), PC_ERR_INVALID);
    assert_says("10 bytes where 9");
    assert_int_equal(pc_ledger_release(b->session, PC_CHARGE_DIRECT, UINT64_MAX, &b->err), PC_ERR_INVALID);
    assert_charged(b, 2 * G, 0, 0);
    assert_int_equal(pc_ledger_tenant_settle(b->tenant, 1, &b->err), PC_ERR_INVALID);
    assert_int_equal(pc_ledger_disinherit(b->tenant, 1, &b->err), PC_ERR_INVALID);
    assert_ok(pc_ledger_inherit(b->tenant, 5, &b->err));
    assert_int_equal(pc_ledger_disinherit(b->tenant, 6, &b->err), PC_ERR_INVALID);
    assert_charged(b, 2 * G, 0, 0);
    b->over_releases = 7;
}

/* A settle may take only the tenant's own pending, never a session's. */
static void test_settle_leaves_the_sessions_pending(void **state)
{
    struct books *b = *state;
    assert_ok(pc_ledger_book(b->session, PC_CHARGE_PENDING, 50, &b->err));
    assert_int_equal(pc_ledger_tenant_settle(b->tenant, 50, &b->err), PC_ERR_INVALID);
    b->over_releases = 1;
    assert_charged(b, 50, 50, 0);
}

/* A ledger at the edge of 64 bits. */
static void test_largest_numbers(void **state)
{
    struct books *b = *state;
    struct pc_ledger_gpu *gpu;
    struct pc_ledger_tenant *t;
    struct pc_ledger_grant *grant;
    struct pc_ledger_session *session;
    assert_ok(pc_ledger_gpu_add(b->ledger, "GPU-2", UINT64_MAX, &gpu, &b->err));
    assert_ok(pc_ledger_tenant_add(gpu, "huge", UINT64_MAX, UINT64_MAX, &t, &b->err));
    assert_int_equal(pc_ledger_tenant_add(gpu, "one", 1, 1, &t, &b->err), PC_ERR_OUT_OF_MEMORY);
    assert_int_equal(pc_ledger_generation_room(t), UINT64_MAX - UINT64_MAX % G);
    assert_ok(pc_ledger_grant_add(t, "g", UINT64_MAX, &grant, &b->err));
    assert_ok(pc_ledger_session_add(grant, &session, &b->err));
    assert_ok(pc_ledger_book(session, PC_CHARGE_DIRECT, UINT64_MAX, &b->err));
    assert_int_equal(pc_ledger_book(session, PC_CHARGE_LARGE, 1, &b->err), PC_ERR_OUT_OF_MEMORY);
    assert_int_equal(pc_ledger_book(session, PC_CHARGE_LARGE, UINT64_MAX, &b->err), PC_ERR_OUT_OF_MEMORY);
    assert_ok(pc_ledger_release(session, PC_CHARGE_DIRECT, UINT64_MAX, &b->err));
    assert_ok(pc_ledger_check(b->ledger, &b->err));
}

#define WITH_BOOKS(test) cmocka_unit_test_setup_teardown(test, open_books, close_books)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        WITH_BOOKS(test_tenant_add),
        WITH_BOOKS(test_resize),
        WITH_BOOKS(test_lowered_cap),
        WITH_BOOKS(test_close_order),
        WITH_BOOKS(test_counts),
        WITH_BOOKS(test_generation_room),
        WITH_BOOKS(test_removed_generation_stays_pending),
        WITH_BOOKS(test_reserved_is_the_high_water_mark),
        WITH_BOOKS(test_reuse_between_grants),
        WITH_BOOKS(test_block_arguments),
        WITH_BOOKS(test_busy_or_out_of_memory),
        WITH_BOOKS(test_kinds_exact_limits),
        WITH_BOOKS(test_grant_cap),
        WITH_BOOKS(test_gpu_level),
        WITH_BOOKS(test_move),
        WITH_BOOKS(test_true_up),
        WITH_BOOKS(test_pool_true_up),
        WITH_BOOKS(test_inherit),
        WITH_BOOKS(test_over_releases),
        WITH_BOOKS(test_settle_leaves_the_sessions_pending),
        WITH_BOOKS(test_largest_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
