/* A grant: what one container was given, its directory and its socket. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/base/log.h"
#include "alloc/broker/broker.h"

struct pc_grant *pc_grant_find(struct pc_broker *b, const char *name)
{
    struct pc_grant *g;
    pc_list_each(g, &b->grants, link)
        if (strcmp(g->name, name) == 0)
            return g;
    return NULL;
}

/* Sizes that make no sense whatever else is on the card. */
static enum pc_status check_share(const struct pc_gpu *gpu, const char *name, uint64_t granted, uint64_t cap,
                                  struct pc_error *err)
{
    char a[PC_BYTES_TEXT], c[PC_BYTES_TEXT], least_text[PC_BYTES_TEXT];
    uint64_t least = 0;
    pc_round_up(gpu->context_bytes + PC_POOL_GRANULE, PC_POOL_GRANULE, &least);
    pc_bytes_format(least, least_text);
    if (granted == 0 || granted % PC_POOL_GRANULE != 0)
        return pc_error_set(err, PC_ERR_INVALID, 0, "grant %s: memory %s is not a multiple of 32Mi above 0", name,
                            pc_bytes_format(granted, a));
    if (cap > granted)
        return pc_error_set(err, PC_ERR_INVALID, 0, "grant %s: cap %s is over memory %s; a cap only lowers", name,
                            pc_bytes_format(cap, c), pc_bytes_format(granted, a));
    if (granted > gpu->capacity)
        return pc_error_set(err, PC_ERR_OUT_OF_MEMORY, 0, "grant %s: memory %s is over the %s that GPU %s can give",
                            name, pc_bytes_format(granted, a), pc_bytes_format(gpu->capacity, c), gpu->info.uuid);
    if (cap < gpu->context_bytes + PC_POOL_GRANULE)
        return pc_error_set(
            err, PC_ERR_INVALID, 0,
            "grant %s: %s is less than one CUDA context (%llu MiB on this GPU) and 32Mi; the smallest that "
            "works is %s",
            name, pc_bytes_format(cap, c), (unsigned long long)(gpu->context_bytes / PC_MIB), least_text);
    return PC_OK;
}

static enum pc_status add_share(struct pc_grant *g, const struct pc_config_share *want, struct pc_error *err)
{
    struct pc_gpu *gpu = pc_gpu_find(g->broker, want->gpu, err);
    if (gpu == NULL)
        return pc_error_prefix(err, "grant %s", g->name);
    struct pc_share *share = &g->share[g->shares];
    uint64_t cap = want->cap != 0 ? want->cap : want->granted;
    enum pc_status status = check_share(gpu, g->name, want->granted, cap, err);
    if (status == PC_OK)
        status = pc_tenant_join(g->broker, gpu, g->tenant, want->granted, cap, &share->tenant, err);
    if (status != PC_OK)
        return status;
    status = pc_ledger_grant_add(share->tenant->ledger, g->name, cap, &share->ledger, err);
    if (status != PC_OK) {
        pc_tenant_leave(share->tenant, want->granted, cap);
        return status;
    }
    share->granted = want->granted;
    share->cap = cap;
    g->shares++;
    return PC_OK;
}

static enum pc_status make_directory(struct pc_grant *g, struct pc_error *err)
{
    struct pc_broker *b = g->broker;
    snprintf(g->directory, sizeof g->directory, "%s/grants/%s", b->config.run_directory, g->name);
    snprintf(g->socket, sizeof g->socket, "%s/poolcap.sock", g->directory);
    if (mkdir(g->directory, 0711) < 0 && errno != EEXIST)
        return pc_error_errno(err, errno, "cannot make %.200s", g->directory);
    return PC_OK;
}

static void on_accept(struct pc_loop *loop, int fd, uint32_t events, void *arg)
{
    (void)loop;
    (void)fd;
    (void)events;
    pc_session_accept(arg);
}

enum pc_status pc_grant_listen(struct pc_grant *g, struct pc_error *err)
{
    enum pc_status status = make_directory(g, err);
    if (status == PC_OK)
        status = pc_wire_listen(g->socket, 0666, &g->fd, err);
    if (status == PC_OK)
        status = pc_loop_add(g->broker->loop, g->fd, EPOLLIN, on_accept, g, &g->watch, err);
    return status;
}

static enum pc_status write_record(struct pc_grant *g, struct pc_error *err)
{
    g->record = pc_book_new(g->broker->books);
    if (g->record == NULL)
        return pc_error_set(err, PC_ERR_BUSY, 0, "grant %s: the books are full", g->name);
    struct pc_book_grant *r = &g->record->grant;
    memcpy(r->name, g->name, sizeof r->name);
    memcpy(r->tenant, g->tenant, sizeof r->tenant);
    memcpy(r->pod_uid, g->pod_uid, sizeof r->pod_uid);
    r->is_static = g->is_static;
    r->shares = g->shares;
    for (unsigned i = 0; i < g->shares; i++) {
        r->granted[i] = g->share[i].granted;
        r->cap[i] = g->share[i].cap;
        memcpy(r->uuid[i], g->share[i].tenant->gpu->info.uuid, sizeof r->uuid[i]);
    }
    pc_book_commit(g->record, PC_BOOK_GRANT);
    return PC_OK;
}

enum pc_status pc_grant_make(struct pc_broker *b, const struct pc_config_grant *want, bool is_static,
                             struct pc_grant **out, struct pc_error *err)
{
    if (!pc_config_name_ok(want->name) || !pc_config_name_ok(want->tenant))
        return pc_error_set(err, PC_ERR_INVALID, 0, "\"%.64s\" is no name: 1 to 63 of A-Z a-z 0-9 . _ -", want->name);
    if (want->shares == 0 || want->shares > PC_PAGE_GPUS_MAX)
        return pc_error_set(err, PC_ERR_INVALID, 0, "grant %s names no GPU, or too many", want->name);
    if (pc_grant_find(b, want->name) != NULL)
        return pc_error_set(err, PC_ERR_EXISTS, 0, "there is a grant %s already; drop it first, or use another name",
                            want->name);
    struct pc_grant *g = calloc(1, sizeof *g);
    if (g == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no memory for a grant");
    g->broker = b;
    g->fd = -1;
    g->is_static = is_static;
    memcpy(g->name, want->name, sizeof g->name);
    memcpy(g->tenant, want->tenant, sizeof g->tenant);
    memcpy(g->pod_uid, want->pod_uid, sizeof g->pod_uid);
    pc_list_init(&g->drop_waiters);
    pc_list_append(&b->grants, &g->link);
    enum pc_status status = PC_OK;
    for (unsigned i = 0; status == PC_OK && i < want->shares; i++)
        status = add_share(g, &want->share[i], err);
    if (status == PC_OK)
        status = pc_page_create(g->shares, b->epoch, &g->page, err);
    if (status == PC_OK)
        status = write_record(g, err);
    if (status != PC_OK) {
        pc_grant_free(g, true);
        return status;
    }
    for (unsigned i = 0; i < g->shares; i++)
        pc_tenant_publish(g->share[i].tenant);
    *out = g;
    return PC_OK;
}

void pc_grant_free(struct pc_grant *g, bool remove_directory)
{
    if (g->watch != NULL)
        pc_watch_remove(g->watch);
    if (g->fd >= 0)
        close(g->fd);
    if (remove_directory && g->directory[0] != '\0') {
        unlink(g->socket);
        rmdir(g->directory);
    }
    for (unsigned i = 0; i < g->shares; i++) {
        struct pc_error err;
        if (pc_ledger_grant_remove(g->share[i].ledger, &err) != PC_OK)
            pc_log_error("grant", "%s: %s", g->name, err.text);
        pc_tenant_leave(g->share[i].tenant, g->share[i].granted, g->share[i].cap);
    }
    pc_book_end(g->record);
    pc_page_free(g->page);
    pc_list_remove(&g->link);
    pc_admin_dropped(&g->drop_waiters);
    free(g);
}

enum pc_status pc_grant_set_cap(struct pc_grant *g, unsigned index, uint64_t cap, struct pc_error *err)
{
    struct pc_share *share = &g->share[index];
    enum pc_status status = check_share(share->tenant->gpu, g->name, share->granted, cap, err);
    struct pc_tenant *t = share->tenant;
    if (status == PC_OK)
        status = pc_tenant_resize(t, t->granted, t->cap - share->cap + cap, err);
    if (status == PC_OK)
        status = pc_ledger_grant_set_cap(share->ledger, cap, err);
    if (status != PC_OK)
        return status;
    share->cap = cap;
    if (g->record != NULL)
        pc_book_set(&g->record->grant.cap[index], cap);
    pc_tenant_changed(t);
    return PC_OK;
}

void pc_grant_drop(struct pc_grant *g)
{
    if (!g->dropping) {
        g->dropping = true;
        if (g->watch != NULL)
            pc_watch_remove(g->watch);
        g->watch = NULL;
        if (g->fd >= 0)
            close(g->fd);
        g->fd = -1;
        unlink(g->socket);
    }
}

/* A dropped grant goes with its last session; a tenant's last grant waits until the card has all of it back. */
static bool may_go(struct pc_grant *g)
{
    if (g->sessions > 0)
        return false;
    bool ready = true;
    for (unsigned i = 0; i < g->shares; i++) {
        struct pc_tenant *t = g->share[i].tenant;
        if (t->grants > 1)
            continue;
        pc_tenant_close_empty(t);
        ready &= t->jobs == 0 && pc_list_empty(&t->generations) && pc_list_empty(&t->inherited);
        struct pc_ledger_tenant_view view;
        pc_ledger_tenant_read(t->ledger, &view);
        ready &= view.charged == 0 && view.sessions == 0;
    }
    return ready;
}

void pc_grant_finish_drops(struct pc_broker *b)
{
    struct pc_grant *g;
    pc_list_each(g, &b->grants, link)
        if (g->dropping && may_go(g)) {
            pc_log_info("grant", "%s ended", g->name);
            pc_grant_free(g, true);
        }
}
