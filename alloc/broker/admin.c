/* The admin socket: what poolcapctl, and later the plugin, ask. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "alloc/base/log.h"
#include "alloc/broker/broker.h"

enum { LIST_PAGE = 32 };

struct admin {
    struct pc_list link;  /* broker->admins */
    struct pc_list waits; /* a dropping grant's drop_waiters */
    struct pc_broker *broker;
    int fd;
    struct pc_watch *watch;
};

static void close_admin(struct admin *a)
{
    pc_watch_remove(a->watch);
    close(a->fd);
    pc_list_remove(&a->link);
    pc_list_remove(&a->waits);
    free(a);
}

static void answer(struct admin *a, enum pc_status status, const char *text, Poolcap__AdminListReply *list)
{
    Poolcap__AdminReply reply = POOLCAP__ADMIN_REPLY__INIT;
    reply.status = (uint32_t)status;
    reply.text = (char *)(uintptr_t)text;
    reply.list = list;
    struct pc_error err;
    if (pc_wire_send(a->fd, &reply.base, NULL, 0, &err) != PC_OK)
        pc_log_warn("admin", "an answer is lost: %s", err.text);
}

void pc_admin_dropped(struct pc_list *waiters)
{
    while (!pc_list_empty(waiters)) {
        struct admin *a = pc_list_first(waiters, struct admin, waits);
        pc_list_remove(&a->waits);
        answer(a, PC_OK, "dropped; its memory is back on the card", NULL);
    }
}

/* ---- list ---- */

static void fill_gpu(const struct pc_gpu *gpu, Poolcap__AdminGpu *out)
{
    struct pc_ledger_gpu_view view;
    struct pc_leaks_snapshot *leaks = malloc(sizeof *leaks);
    pc_ledger_gpu_read(gpu->ledger, &view);
    poolcap__admin_gpu__init(out);
    if (leaks != NULL) {
        pc_leaks_read(gpu->leaks, leaks);
        out->failed_frees = leaks->total;
        free(leaks);
    }
    out->uuid = (char *)(uintptr_t)gpu->info.uuid;
    out->name = (char *)(uintptr_t)gpu->info.name;
    out->fault = (char *)(uintptr_t)gpu->fault;
    out->total = gpu->info.total;
    out->capacity = gpu->capacity;
    out->granted = view.granted;
    out->charged = view.charged;
    out->context_bytes = gpu->context_bytes;
    out->broken_promises = gpu->broken_promises;
    out->card_used = gpu->card_used;
}

static uint64_t outside(const struct pc_grant *g, unsigned share)
{
    struct pc_session *s;
    uint64_t sum = 0;
    pc_list_each(s, &g->broker->sessions, link)
        if (s->grant == g)
            sum += s->holding[share].outside;
    return sum;
}

static void fill_share(const struct pc_grant *g, unsigned i, Poolcap__AdminGrantGpu *out)
{
    const struct pc_share *share = &g->share[i];
    struct pc_ledger_tenant_view t;
    struct pc_ledger_grant_view v;
    pc_ledger_tenant_read(share->tenant->ledger, &t);
    pc_ledger_grant_read(share->ledger, &v);
    poolcap__admin_grant_gpu__init(out);
    out->uuid = share->tenant->gpu->info.uuid;
    out->granted = share->granted;
    out->cap = v.cap;
    out->charged = v.charged;
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
    out->outside = outside(g, i);
}

struct list_room {
    Poolcap__AdminGpu gpu[PC_GPUS_MAX], *gpus[PC_GPUS_MAX];
    Poolcap__AdminGrant grant[LIST_PAGE], *grants[LIST_PAGE];
    Poolcap__AdminGrantGpu share[LIST_PAGE][PC_PAGE_GPUS_MAX], *shares[LIST_PAGE][PC_PAGE_GPUS_MAX];
};

static void fill_grant(struct list_room *room, unsigned n, const struct pc_grant *g)
{
    Poolcap__AdminGrant *out = room->grants[n] = &room->grant[n];
    poolcap__admin_grant__init(out);
    out->name = (char *)(uintptr_t)g->name;
    out->tenant = (char *)(uintptr_t)g->tenant;
    out->pod_uid = (char *)(uintptr_t)g->pod_uid;
    out->socket = (char *)(uintptr_t)g->socket;
    out->sessions = g->sessions;
    out->dropping = g->dropping;
    for (unsigned i = 0; i < g->shares; i++) {
        room->shares[n][i] = &room->share[n][i];
        fill_share(g, i, &room->share[n][i]);
    }
    out->n_gpus = g->shares;
    out->gpus = room->shares[n];
}

static void do_list(struct admin *a, const Poolcap__AdminRequest *request)
{
    struct pc_broker *b = a->broker;
    struct list_room *room = calloc(1, sizeof *room);
    if (room == NULL) {
        answer(a, PC_ERR_HOST_MEMORY, "no host memory for the list", NULL);
        return;
    }
    char server[] = "poolcapd " POOLCAP_VERSION;
    Poolcap__AdminListReply list = POOLCAP__ADMIN_LIST_REPLY__INIT;
    list.server = server;
    list.epoch = b->epoch;
    for (unsigned i = 0; i < b->gpus; i++) {
        fill_gpu(b->gpu[i], &room->gpu[i]);
        room->gpus[i] = &room->gpu[i];
    }
    list.n_gpus = b->gpus;
    list.gpus = room->gpus;
    const char *after = request->list->after;
    bool begun = after[0] == '\0';
    struct pc_grant *g;
    pc_list_each(g, &b->grants, link) {
        if (begun && list.n_grants == LIST_PAGE)
            list.more = true;
        else if (begun)
            fill_grant(room, (unsigned)list.n_grants++, g);
        else
            begun = strcmp(g->name, after) == 0;
    }
    list.grants = room->grants;
    answer(a, PC_OK, "", &list);
    free(room);
}

/* ---- changes ---- */

static enum pc_status copy_text(char *out, size_t size, const char *text, const char *what, struct pc_error *err)
{
    if (strlen(text) >= size)
        return pc_error_set(err, PC_ERR_INVALID, 0, "%s is too long; at most %zu bytes", what, size - 1);
    memcpy(out, text, strlen(text) + 1);
    return PC_OK;
}

static enum pc_status make_grant(struct pc_broker *b, const Poolcap__AdminMakeGrant *make, struct pc_error *err)
{
    struct pc_config_grant want = {.shares = 0};
    struct pc_grant *g = NULL;
    enum pc_status status = copy_text(want.name, sizeof want.name, make->name, "the name", err);
    if (status == PC_OK)
        status = copy_text(want.tenant, sizeof want.tenant, make->tenant[0] != '\0' ? make->tenant : make->name,
                           "the tenant's name", err);
    if (status == PC_OK && make->n_gpus > PC_PAGE_GPUS_MAX)
        status = pc_error_set(err, PC_ERR_INVALID, 0, "a grant has at most %d GPUs", PC_PAGE_GPUS_MAX);
    for (size_t i = 0; status == PC_OK && i < make->n_gpus; i++) {
        struct pc_config_share *share = &want.share[want.shares++];
        status = copy_text(share->gpu, sizeof share->gpu, make->gpus[i]->gpu, "the GPU's name", err);
        share->granted = make->gpus[i]->granted;
        share->cap = make->gpus[i]->cap;
    }
    if (status == PC_OK)
        status = pc_grant_make(b, &want, false, &g, err);
    if (status == PC_OK && (status = pc_grant_listen(g, err)) != PC_OK)
        pc_grant_free(g, true);
    return status;
}

static struct pc_grant *need_grant(struct pc_broker *b, const char *name, struct pc_error *err)
{
    struct pc_grant *g = pc_grant_find(b, name);
    if (g == NULL)
        pc_error_set(err, PC_ERR_NOT_FOUND, 0, "there is no grant %.64s; poolcapctl list shows those that are", name);
    return g;
}

static enum pc_status do_set_cap(struct pc_broker *b, const Poolcap__AdminSetCap *set, struct pc_error *err)
{
    struct pc_grant *g = need_grant(b, set->grant, err);
    if (g == NULL)
        return PC_ERR_NOT_FOUND;
    if (set->gpu[0] == '\0' && g->shares > 1)
        return pc_error_set(err, PC_ERR_INVALID, 0, "grant %s has %u GPUs; name one", g->name, g->shares);
    struct pc_gpu *gpu = set->gpu[0] == '\0' ? g->share[0].tenant->gpu : pc_gpu_find(b, set->gpu, err);
    if (gpu == NULL)
        return PC_ERR_INVALID;
    for (unsigned i = 0; i < g->shares; i++)
        if (g->share[i].tenant->gpu == gpu)
            return pc_grant_set_cap(g, i, set->cap, err);
    return pc_error_set(err, PC_ERR_INVALID, 0, "grant %s has nothing on GPU %s", g->name, gpu->info.uuid);
}

static enum pc_status do_bind(struct pc_broker *b, const Poolcap__AdminBind *bind, struct pc_error *err)
{
    struct pc_grant *g = need_grant(b, bind->grant, err);
    if (g == NULL)
        return PC_ERR_NOT_FOUND;
    enum pc_status status = copy_text(g->pod_uid, sizeof g->pod_uid, bind->pod_uid, "the pod's UID", err);
    if (status == PC_OK && g->record != NULL)
        memcpy(g->record->grant.pod_uid, g->pod_uid, sizeof g->pod_uid);
    return status;
}

/* Reads the file again: new grants are made, caps of known ones applied, those that are gone dropped. */
static enum pc_status do_reload(struct pc_broker *b, struct pc_error *err)
{
    struct pc_config fresh;
    if (b->config.file[0] == '\0')
        return pc_error_set(err, PC_ERR_INVALID, 0, "poolcapd was started without a configuration file");
    enum pc_status status = pc_config_read(b->config.file, &fresh, err);
    for (unsigned i = 0; status == PC_OK && i < fresh.grants; i++) {
        struct pc_grant *g = pc_grant_find(b, fresh.grant[i].name);
        if (g != NULL) {
            for (unsigned k = 0; status == PC_OK && k < g->shares && k < fresh.grant[i].shares; k++)
                if (fresh.grant[i].share[k].cap != g->share[k].cap)
                    status = pc_grant_set_cap(g, k, fresh.grant[i].share[k].cap, err);
            continue;
        }
        status = pc_grant_make(b, &fresh.grant[i], true, &g, err);
        if (status == PC_OK && (status = pc_grant_listen(g, err)) != PC_OK)
            pc_grant_free(g, true);
    }
    pc_config_clear(&fresh);
    return status;
}

static void do_drop(struct admin *a, const Poolcap__AdminDropGrant *drop)
{
    struct pc_error err;
    struct pc_grant *g = need_grant(a->broker, drop->grant, &err);
    if (g == NULL) {
        answer(a, err.status, err.text, NULL);
        return;
    }
    pc_grant_drop(g);
    if (drop->wait)
        pc_list_append(&g->drop_waiters, &a->waits);
    else
        answer(a, PC_OK, "it ends with its last process", NULL);
    pc_grant_finish_drops(a->broker);
    pc_watch_pace(a->broker);
}

static void dispatch(struct admin *a, const Poolcap__AdminRequest *request)
{
    struct pc_error err = {.text = ""};
    enum pc_status status;
    switch (request->body_case) {
    case POOLCAP__ADMIN_REQUEST__BODY_LIST:
        do_list(a, request);
        return;
    case POOLCAP__ADMIN_REQUEST__BODY_DROP_GRANT:
        do_drop(a, request->drop_grant);
        return;
    case POOLCAP__ADMIN_REQUEST__BODY_MAKE_GRANT:
        status = make_grant(a->broker, request->make_grant, &err);
        break;
    case POOLCAP__ADMIN_REQUEST__BODY_SET_CAP:
        status = do_set_cap(a->broker, request->set_cap, &err);
        break;
    case POOLCAP__ADMIN_REQUEST__BODY_BIND:
        status = do_bind(a->broker, request->bind, &err);
        break;
    case POOLCAP__ADMIN_REQUEST__BODY_RELOAD:
        status = do_reload(a->broker, &err);
        break;
    default:
        status = pc_error_set(&err, PC_ERR_PROTOCOL, 0, "a request of no known kind");
        break;
    }
    answer(a, status, status == PC_OK ? "" : err.text, NULL);
}

static void on_request(struct pc_loop *loop, int fd, uint32_t events, void *arg)
{
    (void)loop;
    (void)events;
    struct admin *a = arg;
    ProtobufCMessage *message = NULL;
    struct pc_error err;
    enum pc_status status =
        pc_wire_receive(fd, &poolcap__admin_request__descriptor, a->broker->arena, &message, NULL, NULL, &err);
    if (status == PC_ERR_BUSY)
        return;
    if (status != PC_OK || message == NULL)
        close_admin(a);
    else
        dispatch(a, (const Poolcap__AdminRequest *)message);
}

static void on_connect(struct pc_loop *loop, int fd, uint32_t events, void *arg)
{
    (void)events;
    struct pc_broker *b = arg;
    int conn = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    struct admin *a = conn >= 0 ? calloc(1, sizeof *a) : NULL;
    if (a == NULL || pc_loop_add(loop, conn, EPOLLIN, on_request, a, &a->watch, NULL) != PC_OK) {
        free(a);
        if (conn >= 0)
            close(conn);
        return;
    }
    a->broker = b;
    a->fd = conn;
    pc_list_init(&a->waits);
    pc_list_append(&b->admins, &a->link);
}

enum pc_status pc_admin_open(struct pc_broker *b, struct pc_error *err)
{
    char path[PC_PATH_MAX + 16];
    snprintf(path, sizeof path, "%s/admin.sock", b->config.run_directory);
    enum pc_status status = pc_wire_listen(path, 0600, &b->admin_fd, err);
    if (status == PC_OK)
        status = pc_loop_add(b->loop, b->admin_fd, EPOLLIN, on_connect, b, &b->admin_watch, err);
    return status;
}

void pc_admin_close(struct pc_broker *b)
{
    struct admin *a;
    pc_list_each(a, &b->admins, link)
        close_admin(a);
    if (b->admin_watch != NULL)
        pc_watch_remove(b->admin_watch);
    if (b->admin_fd >= 0)
        close(b->admin_fd);
}
