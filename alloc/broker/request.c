/* What tenants ask: one handler a message. A request that is short waits a little for what others give back. */
#include "alloc/broker/broker.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "alloc/base/log.h"
#include "alloc/pool/large.h"

enum { WAIT_FOR_SIBLINGS_MS = 50, WAIT_FOR_CARD_MS = 400, PIECES_MAX = 16 };
#define GROW_STEP (256 * PC_MIB)
#define ZERO_STEP PC_GIB
#define RETRY_NS 200000000ull /* a dead context's bytes lag that long behind the books */

enum request_kind { REQUEST_POOLED, REQUEST_LARGE, REQUEST_RESERVE };

/* One request for memory, from its arrival to its answer. */
struct request {
    struct pc_list link; /* tenant->waiters */
    struct pc_session *session;
    struct pc_tenant *tenant;
    struct pc_timer *timer;
    enum request_kind kind;
    unsigned share;
    uint64_t bytes;
    struct pc_error err; /* why it is short */
};

/* The worker's part of it. */
enum stage {
    STAGE_CREATE,
    STAGE_FREE_PARKED,
    STAGE_GROW,
    STAGE_UNGROW,
    STAGE_TAKE,
    STAGE_ZERO,
    STAGE_FD,
    STAGE_EXPORT
};

struct work {
    struct pc_job job;
    struct request *request;
    struct pc_generation *generation; /* NULL: large */
    struct pc_block *block;
    enum stage stage;
    struct pc_list free_first; /* parked blocks that have to make room */
    uint64_t grow_left;
    pc_cu_deviceptr piece[PIECES_MAX];
    uint64_t piece_bytes[PIECES_MAX];
    unsigned pieces;
    uint64_t zero_from; /* == bytes: nothing (more) to zero */
    uint64_t zero_to;
    bool taken, want_fd;
    int fd;
    uint64_t reserved; /* what the driver says after taking */
    uint64_t retry_until;
    enum pc_status status;
    struct pc_error err;
};

static void request_free(struct request *r)
{
    pc_timer_free(r->timer);
    pc_list_remove(&r->link);
    free(r);
}

/* ---- on the worker ---- */

static enum pc_step fail(struct work *w, enum pc_status status)
{
    w->status = status;
    return PC_STEP_DONE;
}

static enum pc_status create_pool(struct pc_generation *g, struct pc_error *err)
{
    struct pc_gpu *gpu = g->tenant->gpu;
    struct pc_pool_config config = {.ordinal = gpu->info.ordinal, .cap = g->max, .exported = true, .leaks = gpu->leaks};
    return pc_pool_create(gpu->broker->devices, &config, &g->pool, err);
}

/* Frees one parked block; whose bytes it leaves behind is noted, for zeroing. */
static void free_parked(struct work *w)
{
    struct pc_block *block = pc_list_first(&w->free_first, struct pc_block, link);
    struct pc_generation *g = w->generation;
    pc_list_remove(&block->link);
    pc_pool_free(g->pool, block->ptr, block->bytes, NULL);
    if (g->freed_by == 0)
        g->freed_by = block->owner;
    else if (g->freed_by != block->owner)
        g->freed_by = PC_FREED_BY_MANY;
    free(block);
}

/* Growth in steps, so that a neighbour never waits for the clearing of more than one. A piece that fails ends growing.
 */
static void grow_step(struct work *w)
{
    uint64_t bytes = w->grow_left < GROW_STEP ? w->grow_left : GROW_STEP;
    if (w->pieces == PIECES_MAX || pc_pool_alloc(w->generation->pool, bytes, &w->piece[w->pieces], NULL) != PC_OK) {
        w->grow_left = 0;
        return;
    }
    w->piece_bytes[w->pieces++] = bytes;
    w->grow_left -= bytes;
}

static void nap_ms(long ms)
{
    struct timespec t = {.tv_nsec = ms * 1000000};
    nanosleep(&t, NULL);
}

/* Takes the memory; MORE while the driver has none and it is still early. */
static enum pc_step take(struct work *w)
{
    struct pc_generation *g = w->generation;
    struct pc_block *block = w->block;
    struct pc_gpu *gpu = w->request->tenant->gpu;
    enum pc_status status = g != NULL ? pc_pool_alloc(g->pool, block->bytes, &block->ptr, &w->err)
                                      : pc_large_create(gpu->device, block->bytes, &w->fd, &w->err);
    if (status == PC_ERR_OUT_OF_MEMORY && pc_loop_now_ns() < w->retry_until) {
        nap_ms(2);
        return PC_STEP_MORE;
    }
    struct pc_pool_stats stats;
    if (g != NULL && pc_pool_stats(g->pool, &stats, NULL) == PC_OK)
        w->reserved = stats.reserved;
    if (status != PC_OK)
        return fail(w, status);
    w->taken = true;
    if (g == NULL)
        return PC_STEP_DONE;
    /* Freed memory of another process may be in it. */
    if (w->zero_to == 0 && g->freed_by != 0 && g->freed_by != block->owner)
        w->zero_to = block->bytes;
    w->stage = STAGE_ZERO;
    return PC_STEP_MORE;
}

static enum pc_step zero_step(struct work *w)
{
    uint64_t bytes = w->zero_to - w->zero_from < ZERO_STEP ? w->zero_to - w->zero_from : ZERO_STEP;
    enum pc_status status = pc_pool_zero(w->generation->pool, w->block->ptr + w->zero_from, bytes, &w->err);
    w->zero_from += bytes;
    return status == PC_OK ? PC_STEP_MORE : fail(w, status);
}

/* Moves to the next stage that has something to do. */
static void skip_idle_stages(struct work *w)
{
    if (w->stage == STAGE_CREATE && w->generation->pool != NULL)
        w->stage = STAGE_FREE_PARKED;
    if (w->stage == STAGE_FREE_PARKED && pc_list_empty(&w->free_first))
        w->stage = STAGE_GROW;
    if (w->stage == STAGE_GROW && w->grow_left == 0)
        w->stage = STAGE_UNGROW;
    if (w->stage == STAGE_UNGROW && w->pieces == 0)
        w->stage = w->taken ? STAGE_ZERO : STAGE_TAKE;
    if (w->stage == STAGE_ZERO && w->zero_from >= w->zero_to)
        w->stage = STAGE_FD;
    if (w->stage == STAGE_FD && !w->want_fd)
        w->stage = STAGE_EXPORT;
}

static enum pc_step pooled_step(struct pc_job *job)
{
    struct work *w = pc_container_of(job, struct work, job);
    struct pc_generation *g = w->generation;
    enum pc_status status = PC_OK;
    skip_idle_stages(w);
    switch (w->stage) {
    case STAGE_CREATE:
        status = create_pool(g, &w->err);
        break;
    case STAGE_FREE_PARKED:
        free_parked(w);
        break;
    case STAGE_GROW:
        grow_step(w);
        break;
    case STAGE_UNGROW:
        w->pieces--;
        pc_pool_free(g->pool, w->piece[w->pieces], w->piece_bytes[w->pieces], NULL);
        break;
    case STAGE_TAKE:
        return take(w);
    case STAGE_ZERO:
        return zero_step(w);
    case STAGE_FD:
        status = pc_pool_export_fd(g->pool, &w->fd, &w->err);
        w->stage = STAGE_EXPORT;
        break;
    case STAGE_EXPORT:
        status = pc_pool_export_block(g->pool, w->block->ptr, w->block->bytes, &w->block->data, &w->err);
        if (status == PC_OK)
            return PC_STEP_DONE;
        break;
    }
    return status == PC_OK ? PC_STEP_MORE : fail(w, status);
}

static enum pc_step large_step(struct pc_job *job)
{
    return take(pc_container_of(job, struct work, job));
}

/* ---- answers ---- */

static void answer_memory(struct pc_session *s, const struct pc_block *block, const int *fds, unsigned nfds, bool fresh)
{
    Poolcap__AllocateReply body = POOLCAP__ALLOCATE_REPLY__INIT;
    body.block = block->id;
    body.bytes = block->bytes;
    if (block->generation != NULL) {
        body.generation = block->generation->id;
        body.export_data.data = (uint8_t *)(uintptr_t)block->data.bytes;
        body.export_data.len = sizeof block->data.bytes;
        body.new_generation = fresh;
    }
    Poolcap__Reply reply = POOLCAP__REPLY__INIT;
    reply.body_case = POOLCAP__REPLY__BODY_ALLOCATE;
    reply.allocate = &body;
    pc_session_reply(s, &reply, fds, nfds);
}

static void sticky_fault(struct pc_gpu *gpu, const struct pc_error *err)
{
    switch (err->code) {
    case PC_CU_ERROR_ILLEGAL_ADDRESS:
    case PC_CU_ERROR_LAUNCH_TIMEOUT:
    case PC_CU_ERROR_LAUNCH_FAILED:
    case PC_CU_ERROR_CONTEXT_IS_DESTROYED:
    case PC_CU_ERROR_DEINITIALIZED:
        pc_gpu_mark_faulty(gpu, err->text);
        break;
    default:
        break;
    }
}

static void true_up(struct work *w)
{
    struct pc_generation *g = w->generation;
    if (w->reserved != 0 && !pc_ledger_generation_true_up(g->ledger, w->reserved) && w->status == PC_OK)
        pc_log_warn("request", "tenant %s: the driver holds %llu bytes for a pool, not what was booked",
                    g->tenant->name, (unsigned long long)w->reserved);
    struct pc_ledger_generation_view view;
    pc_ledger_generation_read(g->ledger, &view);
    pc_book_set(&g->record->generation.reserved, view.reserved);
}

static void undo(struct work *w)
{
    struct request *r = w->request;
    struct pc_ledger_session *ledger = r->session->holding[r->share].ledger;
    struct pc_gpu *gpu = r->tenant->gpu;
    if (w->status == PC_ERR_OUT_OF_MEMORY) {
        gpu->broken_promises++;
        pc_log_error("request", "tenant %s: the driver refused memory that is within the books: %s", r->tenant->name,
                     w->err.text);
    }
    sticky_fault(gpu, &w->err);
    if (w->generation == NULL) {
        pc_ledger_release(ledger, PC_CHARGE_LARGE, w->block->bytes, NULL);
        pc_book_end(w->block->record);
    } else {
        pc_ledger_block_release(ledger, w->generation->ledger, w->block->bytes, NULL);
        if (w->taken) { /* it is there, and could not be handed out: for the next request */
            pc_list_init(&w->block->link);
            w->block->owner = r->session->id;
            pc_block_park(w->block);
            w->block = NULL;
        } else {
            w->generation->live--;
        }
    }
    free(w->block);
    pc_session_record(r->session);
    struct pc_error err = w->err;
    err.status = w->status;
    pc_session_refuse(r->session, &err);
}

static void work_done(struct pc_job *job)
{
    struct work *w = pc_container_of(job, struct work, job);
    struct request *r = w->request;
    struct pc_session *s = r->session;
    struct pc_tenant *t = r->tenant;
    t->jobs--;
    if (w->generation != NULL)
        true_up(w);
    bool fresh = w->status == PC_OK && w->want_fd;
    if (fresh && !pc_session_set_import(s, w->generation)) {
        w->status = pc_error_set(&w->err, PC_ERR_BUSY, 0, "the process has too many pools imported; free some memory");
        fresh = false;
    }
    if (w->status == PC_OK) {
        pc_list_append(&s->blocks, &w->block->link);
        pc_session_record(s);
        answer_memory(s, w->block, &w->fd, w->fd >= 0 ? 1 : 0, fresh);
    } else {
        undo(w);
    }
    if (w->fd >= 0)
        close(w->fd);
    request_free(r);
    free(w);
    pc_tenant_publish(t);
    if (!pc_list_empty(&t->waiters))
        pc_request_retry(t);
    pc_grant_finish_drops(t->gpu->broker);
}

/* ---- taking ---- */

static struct work *new_work(struct request *r, struct pc_generation *g)
{
    struct work *w = calloc(1, sizeof *w);
    struct pc_block *block = calloc(1, sizeof *block);
    if (w == NULL || block == NULL) {
        free(w);
        free(block);
        return NULL;
    }
    block->id = pc_broker_new_id(r->session->grant->broker);
    block->bytes = r->bytes;
    block->generation = g;
    block->share = r->share;
    block->owner = r->session->id;
    pc_list_init(&block->link);
    w->request = r;
    w->generation = g;
    w->block = block;
    w->fd = -1;
    w->retry_until = pc_loop_now_ns() + RETRY_NS;
    w->job.step = g != NULL ? pooled_step : large_step;
    w->job.done = work_done;
    pc_list_init(&w->job.link);
    pc_list_init(&w->free_first);
    return w;
}

/* The generation that serves it with the least growth, opened where none does. */
static struct pc_generation *choose(struct request *r)
{
    struct pc_generation *g, *best = NULL;
    uint64_t growth, least = 0;
    pc_list_each(g, &r->tenant->generations, link)
        if (!g->closing && pc_ledger_generation_fits(g->ledger, r->bytes, &growth) &&
            (best == NULL || growth < least)) {
            best = g;
            least = growth;
        }
    if (best == NULL && pc_ledger_generation_room(r->tenant->ledger) >= r->bytes &&
        pc_generation_open(r->tenant, &best, &r->err) != PC_OK)
        best = NULL;
    return best;
}

/* A parked block of just this size: its own of before, if there is one. */
static struct pc_block *find_parked(struct pc_generation *g, uint64_t bytes, uint64_t session)
{
    struct pc_block *block, *other = NULL;
    pc_list_each(block, &g->parked, link) {
        if (block->bytes == bytes && block->owner == session)
            return block;
        if (block->bytes == bytes)
            other = block;
    }
    return other;
}

/*
 * What is parked still lies in the pool. So that the driver never needs more than the books say, parked blocks go until
 * what is left of them fits beside the blocks that are booked.
 */
static void make_room(struct work *w)
{
    struct pc_generation *g = w->generation;
    struct pc_ledger_generation_view view;
    pc_ledger_generation_read(g->ledger, &view);
    while (g->parked_bytes > view.reserved - view.used && !pc_list_empty(&g->parked)) {
        struct pc_block *block = pc_list_first(&g->parked, struct pc_block, link);
        g->parked_bytes -= block->bytes;
        pc_list_remove(&block->link);
        pc_list_append(&w->free_first, &block->link);
    }
}

/* Gives out a parked block: at once where it is the session's own of before, else zeroed by the worker. */
static void use_parked(struct work *w, struct pc_block *parked)
{
    struct pc_session *s = w->request->session;
    bool own = parked->owner == s->id;
    pc_list_remove(&parked->link);
    w->generation->parked_bytes -= parked->bytes;
    parked->id = w->block->id;
    parked->owner = s->id;
    parked->share = w->request->share;
    free(w->block);
    w->block = parked;
    w->taken = true;
    w->zero_to = own ? 0 : parked->bytes;
    w->stage = STAGE_ZERO;
}

static void submit(struct work *w)
{
    struct request *r = w->request;
    pc_list_remove(&r->link); /* it waits no more */
    pc_timer_free(r->timer);
    r->timer = NULL;
    r->tenant->jobs++;
    pc_worker_submit(w->request->tenant->account, &w->job);
}

static enum pc_status start_pooled(struct request *r)
{
    struct pc_session *s = r->session;
    struct pc_generation *g = choose(r);
    uint64_t growth = 0;
    if (g == NULL) {
        char want[PC_BYTES_TEXT];
        struct pc_ledger_tenant_view view;
        pc_ledger_tenant_read(r->tenant->ledger, &view);
        return pc_error_set(&r->err, PC_ERR_OUT_OF_MEMORY, 0,
                            "tenant %s on GPU %s: cap %llu bytes, charged %llu, requested %s: no pool has room",
                            r->tenant->name, r->tenant->gpu->info.uuid, (unsigned long long)view.cap,
                            (unsigned long long)view.charged, pc_bytes_format(r->bytes, want));
    }
    enum pc_status status = pc_ledger_block_book(s->holding[r->share].ledger, g->ledger, r->bytes, &growth, &r->err);
    if (status != PC_OK)
        return status == PC_ERR_BUSY ? r->err.status = PC_ERR_OUT_OF_MEMORY : status;
    struct work *w = new_work(r, g);
    if (w == NULL) {
        pc_ledger_block_release(s->holding[r->share].ledger, g->ledger, r->bytes, NULL);
        return pc_error_set(&r->err, PC_ERR_HOST_MEMORY, 0, "no host memory for the request");
    }
    /* Booked in the file before the driver is asked. */
    struct pc_ledger_generation_view view;
    pc_ledger_generation_read(g->ledger, &view);
    pc_book_set(&g->record->generation.reserved, view.reserved);
    g->live++;
    w->want_fd = !pc_session_imports(s, g->id);
    struct pc_block *parked = growth == 0 ? find_parked(g, r->bytes, s->id) : NULL;
    if (parked != NULL)
        use_parked(w, parked);
    if (parked != NULL && w->zero_to == 0 && !w->want_fd) {
        pc_list_append(&s->blocks, &parked->link);
        answer_memory(s, parked, NULL, 0, false);
        request_free(r);
        free(w);
        return PC_OK;
    }
    make_room(w);
    if (!w->taken)
        w->grow_left = growth > GROW_STEP ? growth : 0;
    submit(w);
    return PC_OK;
}

static enum pc_status start_large(struct request *r)
{
    struct pc_session *s = r->session;
    struct pc_ledger_session *ledger = s->holding[r->share].ledger;
    enum pc_status status = pc_ledger_book(ledger, PC_CHARGE_LARGE, r->bytes, &r->err);
    if (status != PC_OK)
        return status;
    struct work *w = new_work(r, NULL);
    struct pc_book_record *record = w != NULL ? pc_book_new(s->grant->broker->books) : NULL;
    if (record == NULL) {
        if (w != NULL)
            free(w->block);
        free(w);
        pc_ledger_release(ledger, PC_CHARGE_LARGE, r->bytes, NULL);
        return pc_error_set(&r->err, PC_ERR_HOST_MEMORY, 0, "no place in the books for the request");
    }
    record->large =
        (struct pc_book_large){.session = s->id, .block = w->block->id, .bytes = w->block->bytes, .share = r->share};
    w->block->record = record;
    pc_book_commit(record, PC_BOOK_LARGE);
    pc_session_record(s);
    submit(w);
    return PC_OK;
}

static void answer_empty(struct pc_session *s, Poolcap__Reply__BodyCase body)
{
    Poolcap__ReserveReply reserve = POOLCAP__RESERVE_REPLY__INIT;
    Poolcap__ReleaseReply release = POOLCAP__RELEASE_REPLY__INIT;
    Poolcap__FreeReply freed = POOLCAP__FREE_REPLY__INIT;
    Poolcap__Reply reply = POOLCAP__REPLY__INIT;
    reply.body_case = body;
    if (body == POOLCAP__REPLY__BODY_RESERVE)
        reply.reserve = &reserve;
    else if (body == POOLCAP__REPLY__BODY_RELEASE)
        reply.release = &release;
    else
        reply.free = &freed;
    pc_session_reply(s, &reply, NULL, 0);
}

static enum pc_status start_reserve(struct request *r)
{
    struct pc_session *s = r->session;
    enum pc_status status = pc_ledger_book(s->holding[r->share].ledger, PC_CHARGE_DIRECT, r->bytes, &r->err);
    if (status != PC_OK)
        return status;
    pc_session_record(s);
    answer_empty(s, POOLCAP__REPLY__BODY_RESERVE);
    request_free(r);
    return PC_OK;
}

static enum pc_status start(struct request *r)
{
    switch (r->kind) {
    case REQUEST_POOLED:
        return start_pooled(r);
    case REQUEST_LARGE:
        return start_large(r);
    default:
        return start_reserve(r);
    }
}

/* ---- waiting ---- */

static void refuse(struct request *r)
{
    struct pc_session *s = r->session;
    struct pc_tenant *t = r->tenant;
    struct pc_error err = r->err;
    request_free(r);
    if (pc_list_empty(&t->waiters))
        pc_tenant_set_wanted(t, 0);
    pc_session_refuse(s, &err);
    pc_tenant_publish(t);
}

static void on_deadline(struct pc_loop *loop, void *arg)
{
    (void)loop;
    refuse(arg);
}

/* How long it pays to wait: for memory that is on its way back to the card, or for siblings' idle slabs. */
static unsigned patience_ms(struct pc_tenant *t)
{
    struct pc_ledger_tenant_view view;
    pc_ledger_tenant_read(t->ledger, &view);
    if (pc_tenant_close_empty(t) || t->jobs > 0 || view.kinds[PC_CHARGE_PENDING] > 0)
        return WAIT_FOR_CARD_MS;
    return view.sessions > 1 ? WAIT_FOR_SIBLINGS_MS : 0;
}

static void start_or_wait(struct request *r)
{
    struct pc_tenant *t = r->tenant;
    enum pc_status status = start(r);
    if (status == PC_OK) {
        pc_tenant_publish(t);
        return;
    }
    unsigned patience = status == PC_ERR_OUT_OF_MEMORY ? patience_ms(t) : 0;
    if (patience == 0 || pc_timer_create(t->gpu->broker->loop, on_deadline, r, &r->timer, NULL) != PC_OK) {
        refuse(r);
        return;
    }
    pc_list_append(&t->waiters, &r->link);
    pc_timer_start(r->timer, patience, 0);
    pc_tenant_set_wanted(t, r->bytes);
    pc_watch_pace(t->gpu->broker);
}

void pc_request_retry(struct pc_tenant *t)
{
    struct request *r;
    bool waited = !pc_list_empty(&t->waiters);
    pc_list_each(r, &t->waiters, link) {
        /* A generation that became empty may be what holds the room. */
        if (start(r) != PC_OK && r->kind != REQUEST_POOLED)
            pc_tenant_close_empty(t);
    }
    if (waited && pc_list_empty(&t->waiters))
        pc_tenant_set_wanted(t, 0);
}

void pc_request_cancel(struct pc_session *s)
{
    for (unsigned i = 0; i < s->grant->shares; i++) {
        struct request *r;
        struct pc_tenant *t = s->grant->share[i].tenant;
        pc_list_each(r, &t->waiters, link)
            if (r->session == s) {
                request_free(r);
                s->busy = false;
            }
    }
}

/* ---- handlers ---- */

static enum pc_status need_share(struct pc_session *s, uint32_t gpu, struct pc_error *err)
{
    if (gpu >= s->grant->shares)
        return pc_error_set(err, PC_ERR_INVALID, 0, "GPU %u is not in the grant, which has %u", gpu, s->grant->shares);
    const char *fault = s->grant->share[gpu].tenant->gpu->fault;
    if (fault[0] != '\0')
        return pc_error_set(err, PC_ERR_DEVICE, 0, "the GPU is out of service: %s", fault);
    return PC_OK;
}

static enum pc_status need_attached(struct pc_session *s, uint32_t gpu, struct pc_error *err)
{
    enum pc_status status = need_share(s, gpu, err);
    if (status == PC_OK && s->holding[gpu].ledger == NULL)
        status = pc_error_set(err, PC_ERR_PROTOCOL, 0, "attach the GPU first");
    return status;
}

static void handle_hello(struct pc_session *s, const Poolcap__Request *request)
{
    const Poolcap__Hello *hello = request->hello;
    struct pc_grant *g = s->grant;
    if (s->greeted || hello->version_min > PC_WIRE_VERSION_MAX || hello->version_max < PC_WIRE_VERSION_MIN) {
        pc_session_end(s, s->greeted ? "hello twice" : "no protocol version in common; update libpoolcap or poolcapd");
        return;
    }
    Poolcap__GrantedGpu gpus[PC_PAGE_GPUS_MAX], *list[PC_PAGE_GPUS_MAX];
    for (unsigned i = 0; i < g->shares; i++) {
        poolcap__granted_gpu__init(&gpus[i]);
        gpus[i].uuid = g->share[i].tenant->gpu->info.uuid;
        gpus[i].cap = g->share[i].cap;
        list[i] = &gpus[i];
    }
    char server[] = "poolcapd " POOLCAP_VERSION;
    Poolcap__HelloReply body = POOLCAP__HELLO_REPLY__INIT;
    body.version = hello->version_max < PC_WIRE_VERSION_MAX ? hello->version_max : PC_WIRE_VERSION_MAX;
    body.server = server;
    body.epoch = g->broker->epoch;
    body.grant = g->name;
    body.n_gpus = g->shares;
    body.gpus = list;
    Poolcap__Reply reply = POOLCAP__REPLY__INIT;
    reply.body_case = POOLCAP__REPLY__BODY_HELLO;
    reply.hello = &body;
    s->greeted = true;
    int fd = pc_page_fd(g->page);
    pc_session_reply(s, &reply, &fd, 1);
}

static void handle_attach(struct pc_session *s, const Poolcap__Request *request)
{
    uint32_t gpu = request->attach->gpu;
    struct pc_error err;
    enum pc_status status = need_share(s, gpu, &err);
    struct pc_holding *holding = status == PC_OK ? &s->holding[gpu] : NULL;
    uint64_t context = status == PC_OK ? s->grant->share[gpu].tenant->gpu->context_bytes : 0;
    if (status == PC_OK && holding->ledger == NULL) {
        status = pc_ledger_session_add(s->grant->share[gpu].ledger, &holding->ledger, &err);
        if (status == PC_OK && (status = pc_ledger_book(holding->ledger, PC_CHARGE_CONTEXT, context, &err)) != PC_OK) {
            pc_ledger_session_remove(holding->ledger, NULL);
            holding->ledger = NULL;
        }
    }
    if (status != PC_OK) {
        pc_session_refuse(s, &err);
        return;
    }
    pc_session_record(s);
    pc_tenant_publish(s->grant->share[gpu].tenant);
    Poolcap__AttachReply body = POOLCAP__ATTACH_REPLY__INIT;
    body.context_bytes = context;
    Poolcap__Reply reply = POOLCAP__REPLY__INIT;
    reply.body_case = POOLCAP__REPLY__BODY_ATTACH;
    reply.attach = &body;
    pc_session_reply(s, &reply, NULL, 0);
}

static void ask_memory(struct pc_session *s, uint32_t gpu, enum request_kind kind, uint64_t bytes)
{
    struct pc_error err;
    enum pc_status status = need_attached(s, gpu, &err);
    uint64_t rounded = bytes;
    uint64_t step = 1;
    if (status == PC_OK && kind != REQUEST_RESERVE)
        step = kind == REQUEST_POOLED ? PC_POOL_GRANULE : s->grant->share[gpu].tenant->gpu->large_granularity;
    if (status == PC_OK && s->grant->dropping)
        status = pc_error_set(&err, PC_ERR_DENIED, 0, "the grant is being dropped");
    if (status == PC_OK && (bytes == 0 || !pc_round_up(bytes, step, &rounded)))
        status = pc_error_set(&err, bytes == 0 ? PC_ERR_INVALID : PC_ERR_OUT_OF_MEMORY, 0,
                              "%llu bytes cannot be allocated", (unsigned long long)bytes);
    if (status == PC_OK && kind == REQUEST_POOLED && rounded > PC_POOL_ALLOC_MAX)
        status = pc_error_set(&err, PC_ERR_INVALID, 0, "over 4064Mi memory has to be asked for as large");
    struct request *r = status == PC_OK ? calloc(1, sizeof *r) : NULL;
    if (status == PC_OK && r == NULL)
        status = pc_error_set(&err, PC_ERR_HOST_MEMORY, 0, "no host memory for the request");
    if (status != PC_OK) {
        pc_session_refuse(s, &err);
        return;
    }
    r->session = s;
    r->tenant = s->grant->share[gpu].tenant;
    r->kind = kind;
    r->share = gpu;
    r->bytes = rounded;
    pc_list_init(&r->link);
    start_or_wait(r);
}

static void handle_allocate(struct pc_session *s, const Poolcap__Request *request)
{
    const Poolcap__Allocate *a = request->allocate;
    ask_memory(s, a->gpu, a->large ? REQUEST_LARGE : REQUEST_POOLED, a->bytes);
}

static void handle_reserve(struct pc_session *s, const Poolcap__Request *request)
{
    ask_memory(s, request->reserve->gpu, REQUEST_RESERVE, request->reserve->bytes);
}

static struct pc_block *find_block(struct pc_session *s, uint64_t id)
{
    struct pc_block *block;
    pc_list_each(block, &s->blocks, link)
        if (block->id == id)
            return block;
    return NULL;
}

static void give_back(struct pc_session *s, struct pc_block *block)
{
    struct pc_holding *holding = &s->holding[block->share];
    if (block->generation != NULL) {
        pc_ledger_block_release(holding->ledger, block->generation->ledger, block->bytes, NULL);
        pc_block_park(block);
        return;
    }
    /* On the tenant's word only: it stays charged until NVML shows the drop. */
    pc_ledger_move(holding->ledger, PC_CHARGE_LARGE, PC_CHARGE_PENDING, block->bytes, NULL);
    holding->moved_ns = pc_loop_now_ns();
    pc_book_end(block->record);
    pc_list_remove(&block->link);
    free(block);
}

static void handle_free(struct pc_session *s, const Poolcap__Request *request)
{
    const Poolcap__Free *f = request->free;
    if (f->n_blocks + f->n_dropped > PC_WIRE_FREE_MAX) {
        pc_session_end(s, "too many ids in one free");
        return;
    }
    for (size_t i = 0; i < f->n_blocks; i++) {
        bool twice = false;
        for (size_t k = 0; k < i; k++)
            twice |= f->blocks[k] == f->blocks[i];
        if (twice || find_block(s, f->blocks[i]) == NULL) {
            pc_session_end(s, "a free of a block that the process does not have");
            return;
        }
    }
    for (size_t i = 0; i < f->n_blocks; i++)
        give_back(s, find_block(s, f->blocks[i]));
    for (size_t i = 0; i < f->n_dropped; i++) {
        if (f->dropped[i] == 0)
            continue;
        if (pc_session_imports(s, f->dropped[i]))
            pc_session_clear_import(s, f->dropped[i]);
        pc_inherited_drop(s->grant->broker, s, f->dropped[i]);
    }
    pc_session_record(s);
    answer_empty(s, POOLCAP__REPLY__BODY_FREE);
    pc_watch_pace(s->grant->broker);
    for (unsigned i = 0; i < s->grant->shares; i++)
        pc_tenant_changed(s->grant->share[i].tenant);
}

static void handle_release(struct pc_session *s, const Poolcap__Request *request)
{
    struct pc_error err;
    uint32_t gpu = request->release->gpu;
    enum pc_status status = need_attached(s, gpu, &err);
    struct pc_ledger_session_view view = {.blocks = 0};
    if (status == PC_OK) {
        pc_ledger_session_read(s->holding[gpu].ledger, &view);
        if (request->release->bytes > view.kinds[PC_CHARGE_DIRECT])
            status = pc_error_set(&err, PC_ERR_INVALID, 0, "a release of more than was reserved");
    }
    if (status == PC_OK)
        status =
            pc_ledger_move(s->holding[gpu].ledger, PC_CHARGE_DIRECT, PC_CHARGE_PENDING, request->release->bytes, &err);
    if (status != PC_OK) {
        pc_session_refuse(s, &err);
        return;
    }
    s->holding[gpu].moved_ns = pc_loop_now_ns();
    pc_session_record(s);
    answer_empty(s, POOLCAP__REPLY__BODY_RELEASE);
    pc_watch_pace(s->grant->broker);
}

static void fill_info(const struct pc_share *share, Poolcap__GpuInfo *out)
{
    struct pc_ledger_tenant_view t;
    struct pc_ledger_grant_view g;
    pc_ledger_tenant_read(share->tenant->ledger, &t);
    pc_ledger_grant_read(share->ledger, &g);
    poolcap__gpu_info__init(out);
    out->uuid = share->tenant->gpu->info.uuid;
    out->cap = g.cap;
    out->charged = g.charged;
    out->tenant_cap = t.cap;
    out->tenant_charged = t.charged;
    out->pool_reserved = t.pool_reserved;
    out->pool_used = t.pool_used;
    out->large = t.kinds[PC_CHARGE_LARGE];
    out->direct = t.kinds[PC_CHARGE_DIRECT];
    out->context = t.kinds[PC_CHARGE_CONTEXT];
    out->pending = t.kinds[PC_CHARGE_PENDING];
    out->inherited = t.inherited;
    out->peak = t.peak;
    out->refused = t.refused;
    out->sessions = t.sessions;
    out->room = pc_ledger_room(share->ledger);
}

static void handle_info(struct pc_session *s, const Poolcap__Request *request)
{
    (void)request;
    Poolcap__GpuInfo gpus[PC_PAGE_GPUS_MAX], *list[PC_PAGE_GPUS_MAX];
    Poolcap__InfoReply body = POOLCAP__INFO_REPLY__INIT;
    for (unsigned i = 0; i < s->grant->shares; i++) {
        fill_info(&s->grant->share[i], &gpus[i]);
        list[i] = &gpus[i];
    }
    body.n_gpus = s->grant->shares;
    body.gpus = list;
    Poolcap__Reply reply = POOLCAP__REPLY__INIT;
    reply.body_case = POOLCAP__REPLY__BODY_INFO;
    reply.info = &body;
    pc_session_reply(s, &reply, NULL, 0);
}

typedef void (*handler)(struct pc_session *s, const Poolcap__Request *request);

static const handler handlers[] = {
    [POOLCAP__REQUEST__BODY_HELLO] = handle_hello,       [POOLCAP__REQUEST__BODY_ATTACH] = handle_attach,
    [POOLCAP__REQUEST__BODY_ALLOCATE] = handle_allocate, [POOLCAP__REQUEST__BODY_FREE] = handle_free,
    [POOLCAP__REQUEST__BODY_RESERVE] = handle_reserve,   [POOLCAP__REQUEST__BODY_RELEASE] = handle_release,
    [POOLCAP__REQUEST__BODY_INFO] = handle_info,
};

void pc_request_handle(struct pc_session *s, const Poolcap__Request *request)
{
    unsigned body = (unsigned)request->body_case;
    if (body >= PC_ARRAY_LEN(handlers) || handlers[body] == NULL)
        pc_session_end(s, "a message of no known kind");
    else if (!s->greeted && body != POOLCAP__REQUEST__BODY_HELLO)
        pc_session_end(s, "the first message has to be hello");
    else
        handlers[body](s, request);
}
