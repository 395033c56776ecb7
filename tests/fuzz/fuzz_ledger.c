/*
 * Bytes drive the ledger: one byte an operation, one a slot, then an amount. After each operation the ledger's own
 * audit must agree, nothing may be charged over a cap that no forced call explains, and a refusal must leave no trace.
 */
#include <stdlib.h>
#include <string.h>

#include "alloc/ledger/ledger.h"
#include "tests/fuzz/fuzz.h"

enum { SLOTS = 4, MAX_STEPS = 300 };

struct fuzz {
    struct fuzz_input in;
    struct pc_ledger *ledger;
    struct pc_ledger_gpu *gpu;
    struct pc_ledger_tenant *tenant[SLOTS];
    struct pc_ledger_grant *grant[SLOTS];
    struct pc_ledger_session *session[SLOTS];
    struct pc_ledger_generation *generation[SLOTS];
    bool forced; /* something went past the caps by right */
};

static void must(bool holds)
{
    if (!holds)
        abort();
}

static uint64_t amount(struct fuzz *f)
{
    uint8_t how = fuzz_byte(&f->in);
    if (how < 128)
        return (how % 32) * PC_POOL_GRANULE;
    if (how < 192)
        return how;
    if (how < 224)
        return UINT64_MAX - (how - 192u) * PC_POOL_GRANULE;
    return fuzz_u64(&f->in);
}

static void tenant_op(struct fuzz *f, int op, int slot)
{
    struct pc_ledger_tenant **tenant = &f->tenant[slot];
    uint64_t bytes = amount(f);
    if (op == 0 && *tenant == NULL) {
        pc_ledger_tenant_add(f->gpu, "t", bytes, bytes, tenant, NULL);
    } else if (*tenant == NULL) {
        return;
    } else if (op == 1) {
        uint64_t cap = amount(f);
        f->forced |= pc_ledger_tenant_resize(*tenant, bytes, cap, NULL) == PC_OK; /* the cap may be lower now */
    } else if (op == 2) {
        if (pc_ledger_tenant_remove(*tenant, NULL) == PC_OK)
            *tenant = NULL;
    } else if (op == 3) {
        f->forced |= pc_ledger_inherit(*tenant, bytes, NULL) == PC_OK;
    } else if (op == 4) {
        pc_ledger_disinherit(*tenant, bytes, NULL);
    } else {
        pc_ledger_tenant_settle(*tenant, bytes, NULL);
    }
}

static void grant_op(struct fuzz *f, int op, int slot)
{
    struct pc_ledger_grant **grant = &f->grant[slot];
    struct pc_ledger_tenant *tenant = f->tenant[fuzz_byte(&f->in) % SLOTS];
    if (op == 0 && *grant == NULL) {
        if (tenant != NULL)
            pc_ledger_grant_add(tenant, "g", amount(f), grant, NULL);
    } else if (*grant == NULL) {
        return;
    } else if (op == 1) {
        pc_ledger_grant_set_cap(*grant, amount(f), NULL);
    } else if (pc_ledger_grant_remove(*grant, NULL) == PC_OK) {
        *grant = NULL;
    }
}

static void session_op(struct fuzz *f, int op, int slot)
{
    struct pc_ledger_session **session = &f->session[slot];
    struct pc_ledger_grant *grant = f->grant[fuzz_byte(&f->in) % SLOTS];
    if (op == 0 && *session == NULL) {
        if (grant != NULL)
            pc_ledger_session_add(grant, session, NULL);
    } else if (*session != NULL && pc_ledger_session_remove(*session, NULL) == PC_OK) {
        *session = NULL;
    }
}

static void generation_op(struct fuzz *f, int op, int slot)
{
    struct pc_ledger_generation **generation = &f->generation[slot];
    struct pc_ledger_tenant *tenant = f->tenant[fuzz_byte(&f->in) % SLOTS];
    uint64_t bytes = amount(f);
    if (op == 0 && *generation == NULL) {
        if (tenant != NULL)
            pc_ledger_generation_add(tenant, bytes, generation, NULL);
    } else if (*generation == NULL) {
        return;
    } else if (op == 1) {
        pc_ledger_generation_true_up(*generation, bytes);
        f->forced = true;
    } else if (pc_ledger_generation_remove(*generation, bytes % 2 == 0, NULL) == PC_OK) {
        *generation = NULL;
    }
}

static void block_op(struct fuzz *f, int op, int slot)
{
    struct pc_ledger_session *session = f->session[slot];
    struct pc_ledger_generation *generation = f->generation[fuzz_byte(&f->in) % SLOTS];
    uint64_t bytes = amount(f), growth = 1;
    if (session == NULL || generation == NULL)
        return;
    if (op != 0) {
        pc_ledger_block_release(session, generation, bytes, NULL);
        return;
    }
    struct pc_ledger_generation_view before, after;
    pc_ledger_generation_read(generation, &before);
    bool booked = pc_ledger_block_book(session, generation, bytes, &growth, NULL) == PC_OK;
    pc_ledger_generation_read(generation, &after);
    must(after.used == before.used + (booked ? bytes : 0));
    must(after.reserved == before.reserved + (booked ? growth : 0));
    must(!booked || after.used <= after.max);
}

static void charge_op(struct fuzz *f, int op, int slot)
{
    struct pc_ledger_session *session = f->session[slot];
    enum pc_charge_kind kind = fuzz_byte(&f->in) % PC_CHARGE_KINDS;
    uint64_t bytes = amount(f);
    if (session == NULL)
        return;
    if (op == 0) {
        pc_ledger_book(session, kind, bytes, NULL);
    } else if (op == 1) {
        pc_ledger_release(session, kind, bytes, NULL);
    } else if (op == 2) {
        pc_ledger_move(session, kind, fuzz_byte(&f->in) % PC_CHARGE_KINDS, bytes, NULL);
    } else {
        pc_ledger_true_up(session, kind, bytes);
        f->forced = true;
    }
}

static void check(struct fuzz *f)
{
    must(pc_ledger_check(f->ledger, NULL) == PC_OK);
    for (int i = 0; i < SLOTS; i++) {
        struct pc_ledger_tenant_view view;
        if (f->tenant[i] == NULL)
            continue;
        pc_ledger_tenant_read(f->tenant[i], &view);
        must(f->forced || view.charged <= view.cap);
        must(view.charged <= view.peak);
    }
}

static void step(struct fuzz *f)
{
    int op = fuzz_byte(&f->in) % 20, slot = fuzz_byte(&f->in) % SLOTS;
    if (op < 6)
        tenant_op(f, op, slot);
    else if (op < 9)
        grant_op(f, op - 6, slot);
    else if (op < 11)
        session_op(f, op - 9, slot);
    else if (op < 14)
        generation_op(f, op - 11, slot);
    else if (op < 16)
        block_op(f, op - 14, slot);
    else
        charge_op(f, op - 16, slot);
    check(f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz f = {.in = {data, size}};
    must(pc_ledger_create(&f.ledger, NULL) == PC_OK);
    uint64_t capacity = fuzz_byte(&f.in) % 2 == 0 ? 64 * PC_POOL_GRANULE : UINT64_MAX;
    must(pc_ledger_gpu_add(f.ledger, "GPU", capacity, &f.gpu, NULL) == PC_OK);
    /* Something to work with at once: a tenant, a grant, a session and a generation. */
    pc_ledger_tenant_add(f.gpu, "t", 16 * PC_POOL_GRANULE, 12 * PC_POOL_GRANULE, &f.tenant[0], NULL);
    pc_ledger_grant_add(f.tenant[0], "g", 10 * PC_POOL_GRANULE, &f.grant[0], NULL);
    pc_ledger_session_add(f.grant[0], &f.session[0], NULL);
    pc_ledger_generation_add(f.tenant[0], 8 * PC_POOL_GRANULE, &f.generation[0], NULL);
    for (int i = 0; i < MAX_STEPS && f.in.left > 0; i++)
        step(&f);
    pc_ledger_free(f.ledger);
    return 0;
}
