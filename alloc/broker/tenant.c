/* A tenant on a GPU: its account with the worker, and its pool generations. */
#include <stdlib.h>
#include <string.h>

#include "alloc/base/log.h"
#include "alloc/broker/broker.h"

static struct pc_tenant *find(struct pc_broker *b, const struct pc_gpu *gpu, const char *name)
{
    struct pc_tenant *t;
    pc_list_each(t, &b->tenants, link)
        if (t->gpu == gpu && strcmp(t->name, name) == 0)
            return t;
    return NULL;
}

static enum pc_status make(struct pc_broker *b, struct pc_gpu *gpu, const char *name, uint64_t granted, uint64_t cap,
                           struct pc_tenant **out, struct pc_error *err)
{
    struct pc_tenant *t = calloc(1, sizeof *t);
    if (t == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no memory for a tenant");
    enum pc_status status = pc_ledger_tenant_add(gpu->ledger, name, granted, cap, &t->ledger, err);
    if (status == PC_OK)
        status = pc_account_create(gpu->worker, 1, &t->account, err);
    if (status != PC_OK) {
        if (t->ledger != NULL)
            pc_ledger_tenant_remove(t->ledger, NULL);
        free(t);
        return status;
    }
    t->gpu = gpu;
    memcpy(t->name, name, strlen(name) + 1);
    t->granted = granted;
    t->cap = cap;
    pc_list_init(&t->generations);
    pc_list_init(&t->waiters);
    pc_list_init(&t->inherited);
    pc_list_append(&b->tenants, &t->link);
    *out = t;
    return PC_OK;
}

enum pc_status pc_tenant_resize(struct pc_tenant *t, uint64_t granted, uint64_t cap, struct pc_error *err)
{
    enum pc_status status = pc_ledger_tenant_resize(t->ledger, granted, cap, err);
    if (status != PC_OK)
        return status;
    t->granted = granted;
    t->cap = cap;
    return PC_OK;
}

enum pc_status pc_tenant_join(struct pc_broker *b, struct pc_gpu *gpu, const char *name, uint64_t granted, uint64_t cap,
                              struct pc_tenant **out, struct pc_error *err)
{
    struct pc_tenant *t = find(b, gpu, name);
    enum pc_status status = t == NULL ? make(b, gpu, name, granted, cap, &t, err)
                                      : pc_tenant_resize(t, t->granted + granted, t->cap + cap, err);
    if (status != PC_OK)
        return status;
    t->grants++;
    *out = t;
    return PC_OK;
}

void pc_tenant_leave(struct pc_tenant *t, uint64_t granted, uint64_t cap)
{
    t->grants--;
    if (t->grants > 0) {
        if (pc_tenant_resize(t, t->granted - granted, t->cap - cap, NULL) != PC_OK)
            pc_log_warn("tenant", "%s keeps the bytes of a grant that ended: its pools still hold them", t->name);
        return;
    }
    struct pc_error err;
    if (pc_ledger_tenant_remove(t->ledger, &err) != PC_OK)
        pc_log_error("tenant", "%s ends with open books: %s", t->name, err.text);
    pc_list_remove(&t->link);
    pc_account_free(t->account);
    free(t);
}

/* ---- what its processes see ---- */

static void publish_grant(struct pc_grant *g, unsigned share)
{
    struct pc_ledger_grant_view view;
    pc_ledger_grant_read(g->share[share].ledger, &view);
    struct pc_page_figures figures = {
        .cap = view.cap, .charged = view.charged, .room = pc_ledger_room(g->share[share].ledger)};
    pc_page_publish(g->page, share, &figures);
}

void pc_tenant_publish(struct pc_tenant *t)
{
    struct pc_grant *g;
    pc_list_each(g, &t->gpu->broker->grants, link)
        for (unsigned i = 0; i < g->shares; i++)
            if (g->share[i].tenant == t && g->page != NULL)
                publish_grant(g, i);
}

void pc_tenant_set_wanted(struct pc_tenant *t, uint64_t bytes)
{
    struct pc_grant *g;
    pc_list_each(g, &t->gpu->broker->grants, link)
        for (unsigned i = 0; i < g->shares; i++)
            if (g->share[i].tenant == t && g->page != NULL)
                pc_page_set_wanted(g->page, i, (uint32_t)((bytes + PC_MIB - 1) / PC_MIB));
}

void pc_tenant_changed(struct pc_tenant *t)
{
    pc_request_retry(t);
    pc_tenant_publish(t);
}

/* ---- generations ---- */

struct pc_generation *pc_tenant_find_generation(struct pc_tenant *t, uint64_t id)
{
    struct pc_generation *g;
    pc_list_each(g, &t->generations, link)
        if (g->id == id)
            return g;
    return NULL;
}

enum pc_status pc_generation_open(struct pc_tenant *t, struct pc_generation **out, struct pc_error *err)
{
    struct pc_broker *b = t->gpu->broker;
    uint64_t max = pc_ledger_generation_room(t->ledger);
    if (max == 0)
        return pc_error_set(err, PC_ERR_OUT_OF_MEMORY, 0, "tenant %s: its pools may hold no more than they do",
                            t->name);
    struct pc_generation *g = calloc(1, sizeof *g);
    if (g == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no memory for a pool");
    enum pc_status status = pc_ledger_generation_add(t->ledger, max, &g->ledger, err);
    if (status != PC_OK) {
        free(g);
        return status;
    }
    struct pc_book_record *record = pc_book_new(b->books);
    if (record == NULL) {
        pc_ledger_generation_remove(g->ledger, false, NULL);
        free(g);
        return pc_error_set(err, PC_ERR_BUSY, 0, "the books are full");
    }
    g->tenant = t;
    g->id = pc_broker_new_id(b);
    g->max = max;
    g->record = record;
    pc_list_init(&g->parked);
    memcpy(record->generation.tenant, t->name, sizeof t->name);
    memcpy(record->generation.uuid, t->gpu->info.uuid, sizeof record->generation.uuid);
    record->generation.id = g->id;
    pc_book_commit(record, PC_BOOK_GENERATION);
    pc_list_append(&t->generations, &g->link);
    *out = g;
    return PC_OK;
}

void pc_block_park(struct pc_block *block)
{
    struct pc_generation *g = block->generation;
    pc_list_remove(&block->link);
    pc_list_append(&g->parked, &block->link);
    g->parked_bytes += block->bytes;
    g->live--;
}

/* ---- closing ---- */

struct close_job {
    struct pc_job job;
    struct pc_generation *generation;
};

static enum pc_step close_step(struct pc_job *job)
{
    struct pc_generation *g = pc_container_of(job, struct close_job, job)->generation;
    if (!pc_list_empty(&g->parked)) { /* one free a step */
        struct pc_block *block = pc_list_first(&g->parked, struct pc_block, link);
        pc_list_remove(&block->link);
        pc_pool_free(g->pool, block->ptr, block->bytes, NULL);
        free(block);
        return PC_STEP_MORE;
    }
    pc_pool_destroy(g->pool);
    return PC_STEP_DONE;
}

static void close_done(struct pc_job *job)
{
    struct close_job *close = pc_container_of(job, struct close_job, job);
    struct pc_generation *g = close->generation;
    struct pc_tenant *t = g->tenant;
    struct pc_session *s;
    bool living = false;
    /* Its importers said that they dropped it. While one of them lives, its word is checked against the card. */
    pc_list_each(s, &t->gpu->broker->sessions, link)
        for (unsigned i = 0; i < s->grant->shares; i++)
            living |= g->exported && s->grant->share[i].tenant == t && s->holding[i].ledger != NULL;
    struct pc_error err;
    if (pc_ledger_generation_remove(g->ledger, living, &err) != PC_OK)
        pc_log_error("tenant", "%s: %s", t->name, err.text);
    if (living)
        t->unsettled_since = pc_loop_now_ns();
    pc_book_end(g->record);
    pc_list_remove(&g->link);
    free(g);
    free(close);
    t->jobs--;
    pc_watch_pace(t->gpu->broker);
    pc_tenant_changed(t);
    pc_grant_finish_drops(t->gpu->broker);
}

static bool start_close(struct pc_generation *g)
{
    struct close_job *close = calloc(1, sizeof *close);
    if (close == NULL)
        return false;
    g->closing = true;
    g->tenant->jobs++;
    close->generation = g;
    close->job.step = close_step;
    close->job.done = close_done;
    pc_list_init(&close->job.link);
    pc_worker_submit(g->tenant->gpu->cleanup, &close->job);
    return true;
}

bool pc_tenant_close_empty(struct pc_tenant *t)
{
    struct pc_generation *g;
    bool any = false;
    pc_list_each(g, &t->generations, link) {
        if (g->closing)
            any = true;
        else if (g->live == 0 && g->importers == 0)
            any |= start_close(g);
    }
    return any;
}
