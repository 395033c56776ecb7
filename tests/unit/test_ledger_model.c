/*
 * The ledger against a naive model (ledger_model.c): random operations on three GPUs, and after each one the status,
 * every view, every room and the ledger's own audit must agree. Seeds are fixed; POOLCAP_SEED=n runs that one alone,
 * POOLCAP_STEPS=n another number of steps a seed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/cleanup.h"
#include "tests/unit/ledger_model.h"

#define G PC_POOL_GRANULE

static const uint64_t seeds[] = {1, 2, 3, 5, 8, 13, 20261201, 0x9e3779b97f4a7c15};
#ifdef __SANITIZE_THREAD__
enum { STEPS = 20000 }; /* ten times slower, and there is one thread */
#else
enum { STEPS = 200000 };
#endif

struct run {
    uint64_t seed, random, step;
    const char *operation;
    struct model m;
    struct pc_ledger *ledger;
    struct pc_ledger_gpu *gpu[M_GPUS];
    struct pc_ledger_tenant *tenant[M_TENANTS];
    struct pc_ledger_grant *grant[M_GRANTS];
    struct pc_ledger_session *session[M_SESSIONS];
    struct pc_ledger_generation *generation[M_GENERATIONS];
    unsigned statuses[PC_ERR_BUSY + 1];
};

static uint64_t next(struct run *r)
{
    r->random ^= r->random << 13;
    r->random ^= r->random >> 7;
    r->random ^= r->random << 17;
    return r->random * 0x2545f4914f6cdd1d;
}

static unsigned below(struct run *r, unsigned n)
{
    return (unsigned)((next(r) >> 33) % n);
}

static void differ(const struct run *r, const char *what, uint64_t ledger, uint64_t model)
{
    fail_msg("POOLCAP_SEED=%" PRIu64 ", step %" PRIu64 ", %s: %s is %" PRIu64 " in the ledger, %" PRIu64
             " in the model",
             r->seed, r->step, r->operation, what, ledger, model);
}

static void agree(struct run *r, const char *what, uint64_t ledger, uint64_t model)
{
    if (ledger != model)
        differ(r, what, ledger, model);
}

/* Compares two statuses; true when both are PC_OK. A refusal must have said why, under the status it returns. */
static bool agree_status(struct run *r, enum pc_status ledger, const struct pc_error *err, enum pc_status model)
{
    agree(r, "status", ledger, model);
    r->statuses[ledger]++;
    if (ledger != PC_OK && (err->status != ledger || err->text[0] == '\0'))
        differ(r, "status in the error", err->status, ledger);
    return ledger == PC_OK;
}

/* Amounts: around every limit there is, whole granules, odd bytes, nothing, and the largest numbers. */
static uint64_t amount(struct run *r, uint64_t limit)
{
    switch (below(r, 10)) {
    case 0:
        return limit;
    case 1:
        return limit + 1;
    case 2:
        return limit - limit % G;
    case 3:
        return limit == 0 ? 0 : next(r) % limit;
    case 4:
        return below(r, 3);
    case 5:
        return below(r, 16) == 0 ? UINT64_MAX - below(r, 2) * G : below(r, 100);
    default:
        return (1 + below(r, 6)) * G;
    }
}

/* A slot with (or without) an open account, or -1. */
#define PICK(r, slots, wanted)                                          \
    ({                                                                  \
        int pick_n = (int)PC_ARRAY_LEN((r)->slots);                     \
        int pick_at = (int)below(r, (unsigned)pick_n), pick_found = -1; \
        for (int i = 0; i < pick_n && pick_found < 0; i++)              \
            if (((r)->slots[(pick_at + i) % pick_n] != NULL) == wanted) \
                pick_found = (pick_at + i) % pick_n;                    \
        pick_found;                                                     \
    })

static void op_tenant_add(struct run *r)
{
    int t = PICK(r, tenant, false), gpu = (int)below(r, M_GPUS);
    struct pc_ledger_gpu_view view;
    struct pc_error err;
    if (t < 0)
        return;
    pc_ledger_gpu_read(r->gpu[gpu], &view);
    uint64_t granted = amount(r, view.capacity - view.granted);
    if (below(r, 2) == 0)
        granted = (5 + below(r, 12)) * G;
    uint64_t cap = below(r, 2) == 0 ? granted : amount(r, granted);
    enum pc_status status = pc_ledger_tenant_add(r->gpu[gpu], "t", granted, cap, &r->tenant[t], &err);
    agree_status(r, status, &err, model_tenant_add(&r->m, t, gpu, granted, cap));
}

static void op_tenant_resize(struct run *r)
{
    int t = PICK(r, tenant, true);
    struct pc_error err;
    if (t < 0)
        return;
    uint64_t granted = below(r, 2) == 0 ? r->m.tenant[t].granted : amount(r, r->m.tenant[t].granted + 2 * G);
    uint64_t cap = below(r, 2) == 0 ? granted : amount(r, granted);
    enum pc_status status = pc_ledger_tenant_resize(r->tenant[t], granted, cap, &err);
    agree_status(r, status, &err, model_tenant_resize(&r->m, t, granted, cap));
}

static void op_tenant_remove(struct run *r)
{
    int t = PICK(r, tenant, true);
    struct pc_error err;
    if (t < 0 || below(r, 8) != 0)
        return;
    enum pc_status status = pc_ledger_tenant_remove(r->tenant[t], &err);
    if (agree_status(r, status, &err, model_tenant_remove(&r->m, t)))
        r->tenant[t] = NULL;
}

static void op_grant_add(struct run *r)
{
    int g = PICK(r, grant, false), t = PICK(r, tenant, true);
    struct pc_error err;
    if (g < 0 || t < 0)
        return;
    uint64_t cap = amount(r, r->m.tenant[t].granted);
    enum pc_status status = pc_ledger_grant_add(r->tenant[t], "g", cap, &r->grant[g], &err);
    agree_status(r, status, &err, model_grant_add(&r->m, g, t, cap));
}

static void op_grant_set_cap(struct run *r)
{
    int g = PICK(r, grant, true);
    struct pc_error err;
    if (g < 0)
        return;
    uint64_t cap = amount(r, r->m.tenant[r->m.grant[g].tenant].granted);
    enum pc_status status = pc_ledger_grant_set_cap(r->grant[g], cap, &err);
    agree_status(r, status, &err, model_grant_set_cap(&r->m, g, cap));
}

static void op_grant_remove(struct run *r)
{
    int g = PICK(r, grant, true);
    struct pc_error err;
    if (g < 0 || below(r, 4) != 0)
        return;
    enum pc_status status = pc_ledger_grant_remove(r->grant[g], &err);
    if (agree_status(r, status, &err, model_grant_remove(&r->m, g)))
        r->grant[g] = NULL;
}

static void op_session_add(struct run *r)
{
    int s = PICK(r, session, false), g = PICK(r, grant, true);
    struct pc_error err;
    if (s < 0 || g < 0)
        return;
    enum pc_status status = pc_ledger_session_add(r->grant[g], &r->session[s], &err);
    agree_status(r, status, &err, model_session_add(&r->m, s, g));
}

static void op_session_remove(struct run *r)
{
    int s = PICK(r, session, true);
    struct pc_error err;
    if (s < 0)
        return;
    enum pc_status status = pc_ledger_session_remove(r->session[s], &err);
    if (agree_status(r, status, &err, model_session_remove(&r->m, s)))
        r->session[s] = NULL;
}

static void op_generation_add(struct run *r)
{
    int n = PICK(r, generation, false), t = PICK(r, tenant, true);
    struct pc_error err;
    if (n < 0 || t < 0)
        return;
    uint64_t max = amount(r, pc_ledger_generation_room(r->tenant[t]));
    enum pc_status status = pc_ledger_generation_add(r->tenant[t], max, &r->generation[n], &err);
    agree_status(r, status, &err, model_generation_add(&r->m, n, t, max));
}

static void op_generation_remove(struct run *r)
{
    int n = PICK(r, generation, true);
    struct pc_error err;
    if (n < 0)
        return;
    bool keep = below(r, 2) == 0;
    enum pc_status status = pc_ledger_generation_remove(r->generation[n], keep, &err);
    if (agree_status(r, status, &err, model_generation_remove(&r->m, n, keep)))
        r->generation[n] = NULL;
}

/* A session and a generation, of one tenant as a rule. */
static bool pick_pair(struct run *r, int *session, int *generation)
{
    for (int try = 0; try < 4; try++) {
        *session = PICK(r, session, true);
        *generation = PICK(r, generation, true);
        if (*session < 0 || *generation < 0)
            return false;
        if (r->m.grant[r->m.session[*session].grant].tenant == r->m.generation[*generation].tenant)
            return true;
    }
    return true;
}

/* A size that a block may have, as a rule. */
static uint64_t block_amount(struct run *r, uint64_t limit)
{
    uint64_t bytes = amount(r, limit);
    return below(r, 8) == 0 ? bytes : bytes - bytes % G;
}

static void op_block_book(struct run *r)
{
    int s, n;
    struct pc_error err;
    if (!pick_pair(r, &s, &n))
        return;
    uint64_t bytes = block_amount(r, pc_ledger_room(r->grant[r->m.session[s].grant]));
    uint64_t growth = 77, model_growth = 77, fits = 78;
    bool fit = pc_ledger_generation_fits(r->generation[n], bytes, &fits);
    enum pc_status status = pc_ledger_block_book(r->session[s], r->generation[n], bytes, &growth, &err);
    if (agree_status(r, status, &err, model_block_book(&r->m, s, n, bytes, &model_growth))) {
        agree(r, "whether it fits", fit, true);
        agree(r, "growth foretold", fits, model_growth);
    }
    agree(r, "growth", growth, model_growth);
}

static void op_block_release(struct run *r)
{
    int s, n;
    struct pc_error err;
    struct pc_ledger_session_view mine;
    struct pc_ledger_generation_view its;
    if (!pick_pair(r, &s, &n))
        return;
    model_session_view(&r->m, s, &mine);
    model_generation_view(&r->m, n, &its);
    uint64_t bytes = block_amount(r, mine.blocks < its.used ? mine.blocks : its.used);
    enum pc_status status = pc_ledger_block_release(r->session[s], r->generation[n], bytes, &err);
    agree_status(r, status, &err, model_block_release(&r->m, s, n, bytes));
}

static void op_generation_true_up(struct run *r)
{
    int n = PICK(r, generation, true);
    if (n < 0)
        return;
    uint64_t reserved = r->m.generation[n].reserved;
    if (below(r, 2) == 0)
        reserved = amount(r, r->m.generation[n].max);
    bool same = pc_ledger_generation_true_up(r->generation[n], reserved);
    agree(r, "whether the books said so", same, model_generation_true_up(&r->m, n, reserved));
}

static void op_book(struct run *r)
{
    int s = PICK(r, session, true), kind = (int)below(r, PC_CHARGE_KINDS);
    struct pc_error err;
    if (s < 0)
        return;
    uint64_t bytes = amount(r, pc_ledger_room_new(r->grant[r->m.session[s].grant]));
    enum pc_status status = pc_ledger_book(r->session[s], (enum pc_charge_kind)kind, bytes, &err);
    agree_status(r, status, &err, model_book(&r->m, s, kind, bytes));
}

static uint64_t booked(struct run *r, int session, int kind)
{
    struct pc_ledger_session_view view;
    model_session_view(&r->m, session, &view);
    return view.kinds[kind];
}

static void op_release(struct run *r)
{
    int s = PICK(r, session, true), kind = (int)below(r, PC_CHARGE_KINDS);
    struct pc_error err;
    if (s < 0)
        return;
    uint64_t bytes = amount(r, booked(r, s, kind));
    enum pc_status status = pc_ledger_release(r->session[s], (enum pc_charge_kind)kind, bytes, &err);
    agree_status(r, status, &err, model_release(&r->m, s, kind, bytes));
}

static void op_move(struct run *r)
{
    int s = PICK(r, session, true), from = (int)below(r, PC_CHARGE_KINDS), to = (int)below(r, PC_CHARGE_KINDS);
    struct pc_error err;
    if (s < 0)
        return;
    uint64_t bytes = amount(r, booked(r, s, from));
    enum pc_status status =
        pc_ledger_move(r->session[s], (enum pc_charge_kind)from, (enum pc_charge_kind)to, bytes, &err);
    agree_status(r, status, &err, model_move(&r->m, s, from, to, bytes));
}

static void op_true_up(struct run *r)
{
    int s = PICK(r, session, true), kind = (int)below(r, PC_CHARGE_KINDS);
    if (s < 0)
        return;
    uint64_t bytes = below(r, 2) == 0 ? 0 : amount(r, booked(r, s, kind));
    pc_ledger_true_up(r->session[s], (enum pc_charge_kind)kind, bytes);
    model_true_up(&r->m, s, kind, bytes);
}

static void op_inherit(struct run *r)
{
    int t = PICK(r, tenant, true);
    struct pc_error err;
    if (t < 0 || below(r, 4) != 0)
        return;
    uint64_t bytes = amount(r, pc_ledger_generation_room(r->tenant[t]));
    agree_status(r, pc_ledger_inherit(r->tenant[t], bytes, &err), &err, model_inherit(&r->m, t, bytes));
}

static void op_disinherit(struct run *r)
{
    int t = PICK(r, tenant, true);
    struct pc_error err;
    struct pc_ledger_tenant_view view;
    if (t < 0)
        return;
    model_tenant_view(&r->m, t, &view);
    uint64_t bytes = amount(r, view.inherited);
    agree_status(r, pc_ledger_disinherit(r->tenant[t], bytes, &err), &err, model_disinherit(&r->m, t, bytes));
}

static void op_settle(struct run *r)
{
    int t = PICK(r, tenant, true);
    struct pc_error err;
    struct pc_ledger_tenant_view view;
    if (t < 0)
        return;
    model_tenant_view(&r->m, t, &view);
    uint64_t bytes = amount(r, view.unsettled);
    agree_status(r, pc_ledger_tenant_settle(r->tenant[t], bytes, &err), &err, model_settle(&r->m, t, bytes));
}

static const struct {
    const char *name;
    void (*run)(struct run *r);
    unsigned weight;
} operations[] = {
    {"tenant_add", op_tenant_add, 2},
    {"tenant_resize", op_tenant_resize, 2},
    {"tenant_remove", op_tenant_remove, 1},
    {"grant_add", op_grant_add, 3},
    {"grant_set_cap", op_grant_set_cap, 2},
    {"grant_remove", op_grant_remove, 1},
    {"session_add", op_session_add, 3},
    {"session_remove", op_session_remove, 1},
    {"generation_add", op_generation_add, 3},
    {"generation_remove", op_generation_remove, 2},
    {"block_book", op_block_book, 14},
    {"block_release", op_block_release, 9},
    {"generation_true_up", op_generation_true_up, 2},
    {"book", op_book, 8},
    {"release", op_release, 8},
    {"move", op_move, 3},
    {"true_up", op_true_up, 3},
    {"inherit", op_inherit, 1},
    {"disinherit", op_disinherit, 2},
    {"settle", op_settle, 2},
};

/* Compares a pair of views word by word, so that a difference names its place. */
static void agree_words(struct run *r, const char *what, const void *ledger, const void *model, size_t size)
{
    if (memcmp(ledger, model, size) == 0)
        return;
    const unsigned char *a = ledger, *b = model;
    for (size_t at = 0; at + sizeof(uint64_t) <= size; at += sizeof(uint64_t)) {
        uint64_t left, right;
        memcpy(&left, a + at, sizeof left);
        memcpy(&right, b + at, sizeof right);
        if (left != right)
            print_error("%s, word %zu: ledger %" PRIu64 ", model %" PRIu64 "\n", what, at / sizeof left, left, right);
    }
    differ(r, what, 0, 1);
}

#define AGREE_VIEW(r, type, account, slot)                                    \
    do {                                                                      \
        struct pc_ledger_##type##_view ledger_view, model_view;               \
        memset(&ledger_view, 0, sizeof ledger_view);                          \
        pc_ledger_##type##_read(account, &ledger_view);                       \
        model_##type##_view(&(r)->m, slot, &model_view);                      \
        agree_words(r, #type, &ledger_view, &model_view, sizeof ledger_view); \
    } while (0)

static void agree_all(struct run *r)
{
    for (int i = 0; i < M_GPUS; i++)
        AGREE_VIEW(r, gpu, r->gpu[i], i);
    for (int i = 0; i < M_TENANTS; i++)
        if (r->tenant[i] != NULL) {
            AGREE_VIEW(r, tenant, r->tenant[i], i);
            agree(r, "generation_room", pc_ledger_generation_room(r->tenant[i]), model_generation_room(&r->m, i));
        }
    for (int i = 0; i < M_GRANTS; i++)
        if (r->grant[i] != NULL) {
            AGREE_VIEW(r, grant, r->grant[i], i);
            agree(r, "room", pc_ledger_room(r->grant[i]), model_room(&r->m, i));
            agree(r, "room_new", pc_ledger_room_new(r->grant[i]), model_room_new(&r->m, i));
        }
    for (int i = 0; i < M_SESSIONS; i++)
        if (r->session[i] != NULL)
            AGREE_VIEW(r, session, r->session[i], i);
    for (int i = 0; i < M_GENERATIONS; i++)
        if (r->generation[i] != NULL)
            AGREE_VIEW(r, generation, r->generation[i], i);
    agree(r, "over_releases", pc_ledger_over_releases(r->ledger), r->m.over_releases);
}

static void step(struct run *r)
{
    unsigned total = 0, at = 0;
    struct pc_error err;
    for (size_t i = 0; i < PC_ARRAY_LEN(operations); i++)
        total += operations[i].weight;
    for (unsigned draw = below(r, total); draw >= operations[at].weight; at++)
        draw -= operations[at].weight;
    r->operation = operations[at].name;
    operations[at].run(r);
    const char *broken = model_settle_step(&r->m);
    if (broken != NULL)
        fail_msg("POOLCAP_SEED=%" PRIu64 ", step %" PRIu64 ", %s: %s", r->seed, r->step, r->operation, broken);
    agree_all(r);
    if (pc_ledger_check(r->ledger, &err) != PC_OK)
        fail_msg("POOLCAP_SEED=%" PRIu64 ", step %" PRIu64 ", %s: check: %s", r->seed, r->step, r->operation, err.text);
}

static void run_seed(uint64_t seed, uint64_t steps)
{
    struct run r = {.seed = seed, .random = seed * 0x9e3779b97f4a7c15 + 1};
    const uint64_t capacity[M_GPUS] = {40 * G, 25 * G + 12345, UINT64_MAX};
    assert_int_equal(pc_ledger_create(&r.ledger, NULL), PC_OK);
    for (int i = 0; i < M_GPUS; i++) {
        r.m.gpu[i].capacity = capacity[i];
        assert_int_equal(pc_ledger_gpu_add(r.ledger, "GPU", capacity[i], &r.gpu[i], NULL), PC_OK);
    }
    for (r.step = 0; r.step < steps; r.step++)
        step(&r);
    /* A run that never met a status has tested nothing of it. */
    if (steps >= 10000) {
        const enum pc_status met[] = {PC_OK, PC_ERR_INVALID, PC_ERR_OUT_OF_MEMORY, PC_ERR_BUSY};
        for (size_t i = 0; i < PC_ARRAY_LEN(met); i++)
            assert_true(r.statuses[met[i]] > steps / 100);
    }
    pc_ledger_free(r.ledger);
}

static void test_against_model(void **state)
{
    (void)state;
    const char *seed = getenv("POOLCAP_SEED"), *count = getenv("POOLCAP_STEPS");
    uint64_t steps = count != NULL ? strtoull(count, NULL, 0) : STEPS;
    if (seed != NULL) {
        run_seed(strtoull(seed, NULL, 0), steps);
        return;
    }
    for (size_t i = 0; i < PC_ARRAY_LEN(seeds); i++)
        run_seed(seeds[i], steps);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_against_model)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
