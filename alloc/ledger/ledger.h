/*
 * The books: who may hold how much of each GPU, and who holds it. Knows no driver, no socket, no
 * clock; allocates only when an account is opened.
 *
 * Levels, each with its own limit, checked all before any is booked:
 *
 *   gpu      capacity  - what all tenants together can be given
 *   tenant   cap       - the pod on this GPU. Charged: pool RESERVED + large + direct + context + pending + inherited
 *   grant    cap       - one container's share of it. Charged: its sessions' blocks (USED) + their large + direct +
 *                        context + pending. (RESERVED is the tenant's: a block one container frees serves the next.)
 *   session            - one process; no limit of its own, but it knows what to give back when the process dies
 *
 * RESERVED, not live bytes, is charged to the tenant, because a pool never shrinks and reserved is what the card
 * really holds. Within a generation RESERVED is the high-water mark of USED (blocks are whole multiples of
 * PC_POOL_GRANULE: trap 16), so the growth of a request is known before the driver is asked.
 *
 * A refusal is PC_ERR_OUT_OF_MEMORY and its text gives level, cap, charged and requested. After a refusal nothing has
 * changed. Releasing (moving, settling) more than is booked is PC_ERR_INVALID and counted: what is booked is released,
 * and nothing goes below zero; a test asserts pc_ledger_over_releases() == 0. pc_ledger_check() verifies every sum from
 * the leaves up. Forced charges (true-ups) stop where the GPU's sum would pass 2^64 - 1.
 *
 * Thread rules: one thread at a time (poolcapd's loop thread).
 */
#ifndef PC_LEDGER_LEDGER_H
#define PC_LEDGER_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

#include "alloc/base/bytes.h"
#include "alloc/base/error.h"

struct pc_ledger;
struct pc_ledger_gpu;
struct pc_ledger_tenant;     /* one tenant on one GPU */
struct pc_ledger_generation; /* one pool of a tenant on that GPU */
struct pc_ledger_grant;      /* one grant on that GPU */
struct pc_ledger_session;    /* one process on that GPU */

enum pc_charge_kind {
    PC_CHARGE_LARGE,   /* over PC_POOL_ALLOC_MAX, mapped by the process */
    PC_CHARGE_DIRECT,  /* the process's own driver memory, reserved by message */
    PC_CHARGE_CONTEXT, /* CUDA contexts */
    PC_CHARGE_PENDING, /* said to be freed, not yet seen to be free */
    PC_CHARGE_KINDS
};
const char *pc_charge_kind_name(enum pc_charge_kind kind);

enum pc_status pc_ledger_create(struct pc_ledger **out, struct pc_error *err);
void pc_ledger_free(struct pc_ledger *ledger); /* frees every account; NULL is allowed */

/* name is used in texts (a UUID). */
enum pc_status pc_ledger_gpu_add(struct pc_ledger *ledger, const char *name, uint64_t capacity,
                                 struct pc_ledger_gpu **out, struct pc_error *err);

/*
 * Opens a tenant's account. granted is what the sum over tenants is checked with and what bounds the generations'
 * maxSize; cap <= granted is what charges are checked with. Errors: PC_ERR_INVALID (0, cap over granted),
 * PC_ERR_OUT_OF_MEMORY (the sum of grants would pass the GPU's capacity; text gives capacity, granted so far, asked).
 */
enum pc_status pc_ledger_tenant_add(struct pc_ledger_gpu *gpu, const char *name, uint64_t granted, uint64_t cap,
                                    struct pc_ledger_tenant **out, struct pc_error *err);
/*
 * Changes both at run time, up or down. Lowering cap below what is charged takes nothing away: new requests are refused
 * until enough is given back. Lowering granted below what the generations may hold is PC_ERR_BUSY; else the errors are
 * pc_ledger_tenant_add's.
 */
enum pc_status pc_ledger_tenant_resize(struct pc_ledger_tenant *tenant, uint64_t granted, uint64_t cap,
                                       struct pc_error *err);
/* Errors: PC_ERR_BUSY while anything is charged or a grant, session or generation is open. */
enum pc_status pc_ledger_tenant_remove(struct pc_ledger_tenant *tenant, struct pc_error *err);

enum pc_status pc_ledger_grant_add(struct pc_ledger_tenant *tenant, const char *name, uint64_t cap,
                                   struct pc_ledger_grant **out, struct pc_error *err);
enum pc_status pc_ledger_grant_set_cap(struct pc_ledger_grant *grant, uint64_t cap, struct pc_error *err);
enum pc_status pc_ledger_grant_remove(struct pc_ledger_grant *grant,
                                      struct pc_error *err); /* PC_ERR_BUSY with sessions */

enum pc_status pc_ledger_session_add(struct pc_ledger_grant *grant, struct pc_ledger_session **out,
                                     struct pc_error *err);
/* Errors: PC_ERR_BUSY while anything is booked for it. */
enum pc_status pc_ledger_session_remove(struct pc_ledger_session *session, struct pc_error *err);

/*
 * Opens a generation of max bytes (a multiple of PC_POOL_GRANULE). The generations' max, the inherited bytes and the
 * unsettled ones (a removed pool that an importer may still pin) together never pass granted rounded up to
 * PC_POOL_GRANULE; more is PC_ERR_OUT_OF_MEMORY. (Inheriting is never refused: it may pass, and then there is no room.)
 * pc_ledger_generation_room() says how much a new one could have, a multiple of PC_POOL_GRANULE.
 */
enum pc_status pc_ledger_generation_add(struct pc_ledger_tenant *tenant, uint64_t max,
                                        struct pc_ledger_generation **out, struct pc_error *err);
uint64_t pc_ledger_generation_room(const struct pc_ledger_tenant *tenant);
/*
 * Closes an empty generation: its reserved bytes are no longer charged. PC_ERR_BUSY while blocks are live.
 * With keep_pending true (its importers said that they dropped it, and may lie) the reserved bytes stay charged as the
 * tenant's pending until pc_ledger_tenant_settle.
 */
enum pc_status pc_ledger_generation_remove(struct pc_ledger_generation *generation, bool keep_pending,
                                           struct pc_error *err);
/* Ends bytes of the tenant-level pending: the card was seen to have them back. */
enum pc_status pc_ledger_tenant_settle(struct pc_ledger_tenant *tenant, uint64_t bytes, struct pc_error *err);

/*
 * Whether a block of bytes fits a generation's max beside its blocks, and by how much RESERVED would grow for it. With
 * several generations try the one that grows least first: bytes that grow nothing need no room under the tenant's cap.
 */
bool pc_ledger_generation_fits(const struct pc_ledger_generation *generation, uint64_t bytes, uint64_t *growth);
/*
 * Books a block of bytes (a multiple of PC_POOL_GRANULE, not 0) of a generation for a session. *growth is by how much
 * the pool's RESERVED will grow: 0 means that the block reuses memory. A block that reuses memory fits the tenant's cap
 * when what is live (charged less idle pool memory) does: after a cap was lowered RESERVED may be over it for good.
 * Errors: PC_ERR_OUT_OF_MEMORY (a level's cap: no generation of this tenant can serve it), PC_ERR_BUSY (not this
 * generation, whose max or idle memory is too small, but perhaps another or a new one; when none serves it, the caller
 * makes it out of memory), PC_ERR_INVALID (bytes; or a generation of another tenant).
 */
enum pc_status pc_ledger_block_book(struct pc_ledger_session *session, struct pc_ledger_generation *generation,
                                    uint64_t bytes, uint64_t *growth, struct pc_error *err);
/*
 * Gives a block back (or rolls a booking back); RESERVED stays: after a rollback pc_ledger_generation_true_up says what
 * the pool holds. The ledger keeps sums, not blocks: which block lies in which generation is the caller's to know.
 */
enum pc_status pc_ledger_block_release(struct pc_ledger_session *session, struct pc_ledger_generation *generation,
                                       uint64_t bytes, struct pc_error *err);
/*
 * Sets RESERVED to what the driver reports. Used after a failed driver call (which may have grown the pool, or not),
 * and after a good one to verify; never below the blocks' sum. May raise the charge over the cap (the card's word is
 * final). Returns whether the books already said so.
 */
bool pc_ledger_generation_true_up(struct pc_ledger_generation *generation, uint64_t reserved);

/* Books bytes of one kind; PC_ERR_OUT_OF_MEMORY over any level's cap. 0 bytes always fit. */
enum pc_status pc_ledger_book(struct pc_ledger_session *session, enum pc_charge_kind kind, uint64_t bytes,
                              struct pc_error *err);
enum pc_status pc_ledger_release(struct pc_ledger_session *session, enum pc_charge_kind kind, uint64_t bytes,
                                 struct pc_error *err);
/* Moves bytes between kinds of one session (large freed on the tenant's word becomes pending). Charge unchanged. */
enum pc_status pc_ledger_move(struct pc_ledger_session *session, enum pc_charge_kind from, enum pc_charge_kind to,
                              uint64_t bytes, struct pc_error *err);
/* Sets the bytes of one kind to what NVML shows, up or down, also over the cap: charged first, reported second. */
void pc_ledger_true_up(struct pc_ledger_session *session, enum pc_charge_kind kind, uint64_t bytes);

/*
 * Memory of generations that an earlier poolcapd exported, charged whole to the tenant until its importers are gone.
 * Never refused: it is on the card already; may raise the charge over the cap. (PC_ERR_INVALID past 2^64 alone.)
 */
enum pc_status pc_ledger_inherit(struct pc_ledger_tenant *tenant, uint64_t bytes, struct pc_error *err);
enum pc_status pc_ledger_disinherit(struct pc_ledger_tenant *tenant, uint64_t bytes, struct pc_error *err);

struct pc_ledger_tenant_view {
    uint64_t granted, cap, charged, peak;
    uint64_t pool_max;      /* sum of the generations' max */
    uint64_t pool_reserved; /* part of charged */
    uint64_t pool_used;     /* live blocks, inside pool_reserved */
    uint64_t kinds[PC_CHARGE_KINDS];
    uint64_t unsettled; /* part of kinds[PC_CHARGE_PENDING]: ends by pc_ledger_tenant_settle, the rest by sessions */
    uint64_t inherited;
    uint64_t refused; /* count of bookings refused with PC_ERR_OUT_OF_MEMORY */
    unsigned grants, sessions, generations;
};
struct pc_ledger_grant_view {
    uint64_t cap, charged;
    uint64_t blocks;
    uint64_t kinds[PC_CHARGE_KINDS];
    unsigned sessions;
};
struct pc_ledger_session_view {
    uint64_t blocks;
    uint64_t kinds[PC_CHARGE_KINDS];
};
struct pc_ledger_generation_view {
    uint64_t max, reserved, used;
};
struct pc_ledger_gpu_view {
    uint64_t capacity, granted, charged;
    unsigned tenants;
};
void pc_ledger_tenant_read(const struct pc_ledger_tenant *tenant, struct pc_ledger_tenant_view *out);
void pc_ledger_grant_read(const struct pc_ledger_grant *grant, struct pc_ledger_grant_view *out);
void pc_ledger_session_read(const struct pc_ledger_session *session, struct pc_ledger_session_view *out);
void pc_ledger_generation_read(const struct pc_ledger_generation *generation, struct pc_ledger_generation_view *out);
void pc_ledger_gpu_read(const struct pc_ledger_gpu *gpu, struct pc_ledger_gpu_view *out);

/*
 * What a process of this grant could still be given as pool blocks: the smaller room of tenant and grant, where memory
 * reserved but not used counts as room. As large or direct memory: pc_ledger_room_new, where it does not.
 */
uint64_t pc_ledger_room(const struct pc_ledger_grant *grant);
uint64_t pc_ledger_room_new(const struct pc_ledger_grant *grant);

/* Recomputes every sum from the leaves; PC_ERR_INVALID names the first that differs. For tests and debug builds. */
enum pc_status pc_ledger_check(const struct pc_ledger *ledger, struct pc_error *err);
uint64_t pc_ledger_over_releases(const struct pc_ledger *ledger);

#endif
