#include "alloc/broker/request.h"

#include <string.h>

#include "alloc/base/bytes.h"
#include "alloc/base/log.h"
#include "alloc/broker/evict.h"
#include "alloc/broker/want.h"

/* ---- hello, info ---- */

static void serve_hello(struct pc_session *session, const Poolcap__Request *request)
{
    const Poolcap__Hello *hello = request->hello;
    struct pc_grant *grant = session->grant;
    if (session->greeted) {
        pc_session_end(session, "a second hello");
        return;
    }
    if (hello->version_min > PC_WIRE_VERSION_MAX || hello->version_max < PC_WIRE_VERSION_MIN) {
        pc_session_end(session, "no version of the protocol is known to both; update libpoolcap or poolcapd");
        return;
    }
    session->greeted = true;
    session->greeted_ns = pc_loop_now_ns();
    pc_session_take_over(session);
    Poolcap__GrantedGpu gpus[PC_PAGE_GPUS_MAX], *list[PC_PAGE_GPUS_MAX];
    for (unsigned i = 0; i < grant->shares; i++) {
        poolcap__granted_gpu__init(&gpus[i]);
        gpus[i].uuid = grant->share[i].tenant->gpu->info.uuid;
        gpus[i].cap = grant->share[i].cap;
        list[i] = &gpus[i];
    }
    char server[] = "poolcapd " POOLCAP_VERSION;
    Poolcap__HelloReply body = POOLCAP__HELLO_REPLY__INIT;
    body.version = hello->version_max < PC_WIRE_VERSION_MAX ? hello->version_max : PC_WIRE_VERSION_MAX;
    body.server = server;
    body.epoch = grant->broker->epoch;
    body.grant = grant->name;
    body.n_gpus = grant->shares;
    body.gpus = list;
    Poolcap__Reply reply = POOLCAP__REPLY__INIT;
    reply.body_case = POOLCAP__REPLY__BODY_HELLO;
    reply.hello = &body;
    int page = pc_page_fd(grant->page);
    pc_session_reply(session, &reply, &page, 1);
}

static void fill_info(const struct pc_share *share, Poolcap__GpuInfo *out)
{
    struct pc_ledger_tenant_view tenant;
    struct pc_ledger_grant_view grant;
    pc_ledger_tenant_read(share->tenant->ledger, &tenant);
    pc_ledger_grant_read(share->ledger, &grant);
    poolcap__gpu_info__init(out);
    out->uuid = share->tenant->gpu->info.uuid;
    out->cap = grant.cap;
    out->charged = grant.charged;
    out->tenant_cap = tenant.cap;
    out->tenant_charged = tenant.charged;
    out->pool_reserved = tenant.pool_reserved;
    out->pool_used = tenant.pool_used;
    out->large = tenant.kinds[PC_CHARGE_LARGE];
    out->direct = tenant.kinds[PC_CHARGE_DIRECT];
    out->context = tenant.kinds[PC_CHARGE_CONTEXT];
    out->pending = tenant.kinds[PC_CHARGE_PENDING];
    out->inherited = tenant.inherited;
    out->peak = tenant.peak;
    out->refused = tenant.refused;
    out->sessions = tenant.sessions;
    out->room = pc_ledger_room(share->ledger);
}

static void serve_info(struct pc_session *session, const Poolcap__Request *request)
{
    (void)request;
    Poolcap__GpuInfo gpus[PC_PAGE_GPUS_MAX], *list[PC_PAGE_GPUS_MAX];
    Poolcap__InfoReply body = POOLCAP__INFO_REPLY__INIT;
    for (unsigned i = 0; i < session->grant->shares; i++) {
        fill_info(&session->grant->share[i], &gpus[i]);
        list[i] = &gpus[i];
    }
    body.n_gpus = session->grant->shares;
    body.gpus = list;
    Poolcap__Reply reply = POOLCAP__REPLY__INIT;
    reply.body_case = POOLCAP__REPLY__BODY_INFO;
    reply.info = &body;
    pc_session_reply(session, &reply, NULL, 0);
}

/* ---- what needs a GPU ---- */

static enum pc_status check_gpu(const struct pc_session *session, uint32_t gpu, struct pc_error *err)
{
    if (gpu >= session->grant->shares)
        return pc_error_set(err, PC_ERR_INVALID, 0, "no GPU %u in grant %s, which has %u", (unsigned)gpu,
                            session->grant->name, session->grant->shares);
    return pc_gpu_check(session->grant->share[gpu].tenant->gpu, err);
}

static enum pc_status check_seat(const struct pc_session *session, uint32_t gpu, struct pc_error *err)
{
    enum pc_status status = check_gpu(session, gpu, err);
    if (status == PC_OK && (session->seat[gpu] == NULL || !session->seat[gpu]->attached))
        status = pc_error_set(err, PC_ERR_INVALID, 0, "attach GPU %u first", (unsigned)gpu);
    return status;
}

/* New memory and new processes; what gives back is always served. */
static enum pc_status check_taking(const struct pc_session *session, struct pc_error *err)
{
    if (!session->grant->dropping)
        return PC_OK;
    return pc_error_set(err, PC_ERR_DENIED, 0, "grant %s is being dropped", session->grant->name);
}

static void want(struct pc_session *session, uint32_t gpu, enum pc_want_kind kind, uint64_t bytes, pc_want_fn done)
{
    struct pc_error err;
    if (pc_want_start(session->seat[gpu], kind, bytes, done, session, &err) != PC_OK)
        pc_session_refuse(session, &err);
}

/* ---- attach ---- */

static void attached(const struct pc_want_result *result, void *arg)
{
    struct pc_session *session = arg;
    if (result->status != PC_OK) {
        pc_session_refuse(session, result->err);
        return;
    }
    Poolcap__AttachReply body = POOLCAP__ATTACH_REPLY__INIT;
    body.context_bytes = session->grant->share[session->attaching].tenant->gpu->probe.context_bytes;
    Poolcap__Reply reply = POOLCAP__REPLY__INIT;
    reply.body_case = POOLCAP__REPLY__BODY_ATTACH;
    reply.attach = &body;
    pc_session_reply(session, &reply, NULL, 0);
}

static void serve_attach(struct pc_session *session, const Poolcap__Request *request)
{
    uint32_t gpu = request->attach->gpu;
    struct pc_error err;
    enum pc_status status = check_gpu(session, gpu, &err);
    if (status == PC_OK)
        status = check_taking(session, &err);
    if (status == PC_OK && session->seat[gpu] == NULL)
        status = pc_seat_open(&session->grant->share[gpu], &session->peer, session->process, session->grant->name,
                              &session->seat[gpu], &err);
    if (status != PC_OK) {
        pc_session_refuse(session, &err);
        return;
    }
    session->attaching = gpu;
    session->seat[gpu]->attaching_ns = pc_loop_now_ns();
    want(session, gpu, PC_WANT_CONTEXT, session->grant->share[gpu].tenant->gpu->probe.context_bytes, attached);
}

/* ---- allocate ---- */

static void allocated(const struct pc_want_result *result, void *arg)
{
    struct pc_session *session = arg;
    const struct pc_block *block = result->block;
    if (result->status != PC_OK) {
        pc_session_refuse(session, result->err);
        return;
    }
    Poolcap__AllocateReply body = POOLCAP__ALLOCATE_REPLY__INIT;
    int fds[2];
    unsigned nfds = 0;
    body.block = block->id;
    body.bytes = block->bytes;
    if (block->generation != NULL) {
        body.generation = block->generation->id;
        body.export_data.data = (uint8_t *)(uintptr_t)block->data.bytes;
        body.export_data.len = sizeof block->data.bytes;
        body.new_generation = result->pool_fd >= 0;
    }
    if (result->pool_fd >= 0)
        fds[nfds++] = result->pool_fd;
    if (result->memory_fd >= 0)
        fds[nfds++] = result->memory_fd;
    Poolcap__Reply reply = POOLCAP__REPLY__INIT;
    reply.body_case = POOLCAP__REPLY__BODY_ALLOCATE;
    reply.allocate = &body;
    if (pc_session_reply(session, &reply, fds, nfds) && result->import != NULL)
        result->import->has_fd = true;
}

static enum pc_status check_size(const struct pc_gpu *gpu, const Poolcap__Allocate *allocate, uint64_t *bytes,
                                 struct pc_error *err)
{
    uint64_t step = allocate->large ? gpu->probe.granularity : PC_POOL_GRANULE;
    if (allocate->bytes == 0)
        return pc_error_set(err, PC_ERR_INVALID, 0, "a request for 0 bytes");
    if (!pc_round_up(allocate->bytes, step, bytes))
        return pc_error_set(err, PC_ERR_OUT_OF_MEMORY, 0, "a request for %llu bytes is over any cap",
                            (unsigned long long)allocate->bytes);
    if (!allocate->large && *bytes > PC_POOL_ALLOC_MAX)
        return pc_error_set(err, PC_ERR_INVALID, 0, "%llu bytes are over the %llu of one block: ask for them as large",
                            (unsigned long long)allocate->bytes, (unsigned long long)PC_POOL_ALLOC_MAX);
    return PC_OK;
}

static void serve_allocate(struct pc_session *session, const Poolcap__Request *request)
{
    const Poolcap__Allocate *allocate = request->allocate;
    struct pc_error err;
    uint64_t bytes = 0;
    enum pc_status status = check_seat(session, allocate->gpu, &err);
    if (status == PC_OK)
        status = check_taking(session, &err);
    if (status == PC_OK)
        status = check_size(session->seat[allocate->gpu]->tenant->gpu, allocate, &bytes, &err);
    if (status != PC_OK)
        pc_session_refuse(session, &err);
    else
        want(session, allocate->gpu, allocate->large ? PC_WANT_LARGE : PC_WANT_POOLED, bytes, allocated);
}

/* ---- free ---- */

/* Whose an id is: its epoch. Of an earlier poolcapd only large memory has kept its name. */
static bool is_old(const struct pc_session *session, uint64_t id)
{
    uint64_t epoch = id >> 32;
    return epoch != 0 && epoch < session->grant->broker->epoch;
}

static bool holds(const struct pc_session *session, const struct pc_block *block)
{
    for (unsigned i = 0; i < session->grant->shares && block != NULL && block->seat != NULL; i++)
        if (block->seat == session->seat[i])
            return true;
    return false;
}

static struct pc_import *find_import(const struct pc_session *session, uint64_t generation)
{
    for (unsigned i = 0; i < session->grant->shares; i++) {
        struct pc_import *import = session->seat[i] != NULL ? pc_import_find(session->seat[i], generation) : NULL;
        if (import != NULL)
            return import;
    }
    return NULL;
}

/* The blocks of a Free, each marked, and counted in its import. NULL, or why they cannot be freed. */
static const char *mark_blocks(const struct pc_session *session, const Poolcap__Free *f)
{
    for (size_t i = 0; i < f->n_blocks; i++) {
        struct pc_block *block = pc_block_find(session->grant->broker, f->blocks[i]);
        if (block == NULL && is_old(session, f->blocks[i]))
            continue;
        if (!holds(session, block))
            return "a free of a block that the process does not hold";
        if (block->marked)
            return "a free that names a block twice";
        block->marked = true;
        if (block->generation != NULL)
            pc_import_find(block->seat, block->generation->id)->freeing++;
    }
    return NULL;
}

static const char *check_dropped(const struct pc_session *session, const Poolcap__Free *f)
{
    for (size_t i = 0; i < f->n_dropped; i++) {
        const struct pc_import *import = find_import(session, f->dropped[i]);
        if (import == NULL && is_old(session, f->dropped[i]))
            continue;
        if (import == NULL)
            return "a drop of a generation that the process never had";
        if (import->blocks != import->freeing)
            return "a drop of a generation that the process holds blocks of";
    }
    return NULL;
}

static void unmark(const struct pc_session *session, const Poolcap__Free *f)
{
    for (size_t i = 0; i < f->n_blocks; i++) {
        struct pc_block *block = pc_block_find(session->grant->broker, f->blocks[i]);
        if (block == NULL || !block->marked || !holds(session, block))
            continue;
        block->marked = false;
        if (block->generation != NULL)
            pc_import_find(block->seat, block->generation->id)->freeing = 0;
    }
}

static void do_free(struct pc_session *session, const Poolcap__Free *f)
{
    struct pc_broker *b = session->grant->broker;
    for (size_t i = 0; i < f->n_blocks; i++) {
        struct pc_block *block = pc_block_find(b, f->blocks[i]);
        if (block != NULL)
            pc_block_take_back(block, false);
    }
    for (size_t i = 0; i < f->n_dropped; i++) {
        struct pc_import *import = find_import(session, f->dropped[i]);
        if (import == NULL || import->said_dropped)
            continue;
        pc_import_say_dropped(import);
        pc_evict_importers_changed(import->generation);
    }
    for (unsigned i = 0; i < session->grant->shares; i++)
        pc_tenant_publish(session->grant->share[i].tenant);
    pc_broker_changed(b);
    pc_broker_hurry(b);
}

static void serve_free(struct pc_session *session, const Poolcap__Request *request)
{
    const Poolcap__Free *f = request->free;
    const char *wrong = f->n_blocks + f->n_dropped > PC_WIRE_FREE_MAX ? "a free of too many ids" : NULL;
    if (wrong == NULL) {
        wrong = mark_blocks(session, f);
        if (wrong == NULL)
            wrong = check_dropped(session, f);
        unmark(session, f);
    }
    if (wrong != NULL) {
        pc_session_end(session, wrong);
        return;
    }
    do_free(session, f);
    Poolcap__FreeReply body = POOLCAP__FREE_REPLY__INIT;
    Poolcap__Reply reply = POOLCAP__REPLY__INIT;
    reply.body_case = POOLCAP__REPLY__BODY_FREE;
    reply.free = &body;
    pc_session_reply(session, &reply, NULL, 0);
}

/* ---- reserve, release ---- */

static void reserved(const struct pc_want_result *result, void *arg)
{
    struct pc_session *session = arg;
    if (result->status != PC_OK) {
        pc_session_refuse(session, result->err);
        return;
    }
    Poolcap__ReserveReply body = POOLCAP__RESERVE_REPLY__INIT;
    Poolcap__Reply reply = POOLCAP__REPLY__INIT;
    reply.body_case = POOLCAP__REPLY__BODY_RESERVE;
    reply.reserve = &body;
    pc_session_reply(session, &reply, NULL, 0);
}

static void serve_reserve(struct pc_session *session, const Poolcap__Request *request)
{
    const Poolcap__Reserve *reserve = request->reserve;
    struct pc_error err;
    enum pc_status status = check_seat(session, reserve->gpu, &err);
    if (status == PC_OK)
        status = check_taking(session, &err);
    if (status != PC_OK)
        pc_session_refuse(session, &err);
    else
        want(session, reserve->gpu, PC_WANT_DIRECT, reserve->bytes, reserved);
}

static void serve_release(struct pc_session *session, const Poolcap__Request *request)
{
    const Poolcap__Release *release = request->release;
    struct pc_error err;
    struct pc_seat *seat = release->gpu < session->grant->shares ? session->seat[release->gpu] : NULL;
    enum pc_status status =
        seat != NULL ? pc_seat_release_direct(seat, release->bytes, &err) : check_seat(session, release->gpu, &err);
    if (seat == NULL || status != PC_OK) {
        pc_session_refuse(session, &err);
        return;
    }
    pc_tenant_publish(seat->tenant);
    pc_broker_hurry(session->grant->broker);
    Poolcap__ReleaseReply body = POOLCAP__RELEASE_REPLY__INIT;
    Poolcap__Reply reply = POOLCAP__REPLY__INIT;
    reply.body_case = POOLCAP__REPLY__BODY_RELEASE;
    reply.release = &body;
    pc_session_reply(session, &reply, NULL, 0);
}

/* ---- the table ---- */

static const pc_session_handler handlers[] = {
    [POOLCAP__REQUEST__BODY_HELLO] = serve_hello,       [POOLCAP__REQUEST__BODY_ATTACH] = serve_attach,
    [POOLCAP__REQUEST__BODY_ALLOCATE] = serve_allocate, [POOLCAP__REQUEST__BODY_FREE] = serve_free,
    [POOLCAP__REQUEST__BODY_RESERVE] = serve_reserve,   [POOLCAP__REQUEST__BODY_RELEASE] = serve_release,
    [POOLCAP__REQUEST__BODY_INFO] = serve_info,
};

void pc_request_serve(struct pc_session *session, const Poolcap__Request *request)
{
    unsigned body = (unsigned)request->body_case;
    if (body >= PC_ARRAY_LEN(handlers) || handlers[body] == NULL)
        pc_session_end(session, "a message of no known kind");
    else
        handlers[body](session, request);
}

void pc_request_accept(struct pc_loop *loop, int fd, uint32_t events, void *arg)
{
    (void)loop;
    (void)fd;
    (void)events;
    pc_session_accept(arg, pc_request_serve);
}
