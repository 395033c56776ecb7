/*
 * A naive second ledger for test_ledger_model.c: a plain table of what each leaf holds, every sum added up anew by a
 * loop in 128 bits, nothing above the leaves kept. It knows ledger.h's words and none of its code; accounts are
 * numbers, slots of fixed arrays.
 */
#ifndef PC_TESTS_LEDGER_MODEL_H
#define PC_TESTS_LEDGER_MODEL_H

#include "alloc/ledger/ledger.h"

enum { M_GPUS = 3, M_TENANTS = 5, M_GRANTS = 6, M_SESSIONS = 8, M_GENERATIONS = 8, M_OWNERS = 8 };

typedef unsigned __int128 wide;

/* Lists of leaves by owner's number. A block stands in two: its session's and its generation's. */
enum m_list {
    M_SESSION_BLOCK,
    M_GENERATION_BLOCK,
    M_UNSETTLED,
    M_INHERITED,
    M_KIND,
    M_LISTS = M_KIND + PC_CHARGE_KINDS
};

struct model {
    struct {
        uint64_t capacity;
    } gpu[M_GPUS];
    struct {
        bool open;
        int gpu;
        uint64_t granted, cap, peak, refused;
        bool over_cap_explained, over_limit_explained; /* by something forced, or by a cap that was lowered */
    } tenant[M_TENANTS];
    struct {
        bool open;
        int tenant;
        uint64_t cap;
    } grant[M_GRANTS];
    struct {
        bool open;
        int grant;
    } session[M_SESSIONS];
    struct {
        bool open;
        int tenant;
        uint64_t max, reserved;
    } generation[M_GENERATIONS];
    uint64_t leaf[M_LISTS][M_OWNERS];
    uint64_t over_releases;
};

/* Each says what the call of the same name must return, and does it to the model. */
enum pc_status model_tenant_add(struct model *m, int tenant, int gpu, uint64_t granted, uint64_t cap);
enum pc_status model_tenant_resize(struct model *m, int tenant, uint64_t granted, uint64_t cap);
enum pc_status model_tenant_remove(struct model *m, int tenant);
enum pc_status model_grant_add(struct model *m, int grant, int tenant, uint64_t cap);
enum pc_status model_grant_set_cap(struct model *m, int grant, uint64_t cap);
enum pc_status model_grant_remove(struct model *m, int grant);
enum pc_status model_session_add(struct model *m, int session, int grant);
enum pc_status model_session_remove(struct model *m, int session);
enum pc_status model_generation_add(struct model *m, int generation, int tenant, uint64_t max);
enum pc_status model_generation_remove(struct model *m, int generation, bool keep_pending);
enum pc_status model_settle(struct model *m, int tenant, uint64_t bytes);
enum pc_status model_block_book(struct model *m, int session, int generation, uint64_t bytes, uint64_t *growth);
enum pc_status model_block_release(struct model *m, int session, int generation, uint64_t bytes);
bool model_generation_true_up(struct model *m, int generation, uint64_t reserved);
enum pc_status model_book(struct model *m, int session, int kind, uint64_t bytes);
enum pc_status model_release(struct model *m, int session, int kind, uint64_t bytes);
enum pc_status model_move(struct model *m, int session, int from, int to, uint64_t bytes);
void model_true_up(struct model *m, int session, int kind, uint64_t bytes);
enum pc_status model_inherit(struct model *m, int tenant, uint64_t bytes);
enum pc_status model_disinherit(struct model *m, int tenant, uint64_t bytes);

void model_gpu_view(const struct model *m, int gpu, struct pc_ledger_gpu_view *out);
void model_tenant_view(const struct model *m, int tenant, struct pc_ledger_tenant_view *out);
void model_grant_view(const struct model *m, int grant, struct pc_ledger_grant_view *out);
void model_session_view(const struct model *m, int session, struct pc_ledger_session_view *out);
void model_generation_view(const struct model *m, int generation, struct pc_ledger_generation_view *out);
uint64_t model_generation_room(const struct model *m, int tenant);
uint64_t model_room(const struct model *m, int grant);
uint64_t model_room_new(const struct model *m, int grant);

/* Call after each operation: keeps the peaks, and returns what rule the model itself breaks, or NULL. */
const char *model_settle_step(struct model *m);

#endif
