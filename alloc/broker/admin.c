#include "alloc/broker/admin.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "alloc/base/log.h"
#include "alloc/broker/admin_list.h"
#include "alloc/broker/peer.h"
#include "alloc/broker/request.h"
#include "alloc/broker/static.h"

/* A connection: one request at a time; while it waits for a grant's end, nothing is read from it. */
struct admin {
    struct pc_list link; /* broker->admins */
    struct pc_broker *broker;
    int fd;
    struct pc_watch *watch;
    char waits_for[PC_NAME_MAX]; /* a dropped grant; empty: for nothing */
};

/* What a change says when it succeeded. */
struct said {
    char text[PC_STATIC_TEXT];
};

static void close_admin(struct admin *admin)
{
    pc_watch_remove(admin->watch);
    close(admin->fd);
    pc_list_remove(&admin->link);
    free(admin);
}

/* Closes the connection where the answer does not get out. It always has a text: an empty packet reads as an end. */
static void answer(struct admin *admin, const struct pc_error *err, const char *text, Poolcap__AdminListReply *list)
{
    Poolcap__AdminReply reply = POOLCAP__ADMIN_REPLY__INIT;
    struct pc_error why;
    reply.status = err != NULL ? (uint32_t)err->status : PC_OK;
    reply.code = err != NULL ? err->code : 0;
    reply.text = (char *)(uintptr_t)(err != NULL ? err->text : text);
    reply.list = list;
    if (pc_wire_send(admin->fd, &reply.base, NULL, 0, &why) == PC_OK)
        return;
    pc_log_warn("admin", "an answer is lost: %s", why.text);
    close_admin(admin);
}

/* ---- changes ---- */

static enum pc_status copy(char *out, size_t size, const char *text, const char *what, struct pc_error *err)
{
    size_t length = strlen(text);
    if (length >= size)
        return pc_error_set(err, PC_ERR_INVALID, 0, "%s has %zu bytes; at most %zu are allowed", what, length,
                            size - 1);
    memset(out, 0, size);
    memcpy(out, text, length);
    return PC_OK;
}

static enum pc_status find_grant(struct pc_broker *b, const char *name, struct pc_grant **out, struct pc_error *err)
{
    *out = pc_grant_find(b, name);
    if (*out != NULL)
        return PC_OK;
    return pc_error_set(err, PC_ERR_NOT_FOUND, 0, "there is no grant \"%.64s\"; poolcapctl list shows those that are",
                        name);
}

static enum pc_status read_make(const Poolcap__AdminMakeGrant *make, struct pc_config_grant *want, struct pc_error *err)
{
    const char *tenant = make->tenant[0] != '\0' ? make->tenant : make->name;
    *want = (struct pc_config_grant){.shares = 0};
    enum pc_status status = copy(want->name, sizeof want->name, make->name, "the grant's name", err);
    if (status == PC_OK)
        status = copy(want->tenant, sizeof want->tenant, tenant, "the tenant's name", err);
    if (status == PC_OK)
        status = copy(want->pod_uid, sizeof want->pod_uid, make->pod_uid, "the pod's UID", err);
    if (status == PC_OK && make->n_gpus > PC_PAGE_GPUS_MAX)
        status = pc_error_set(err, PC_ERR_INVALID, 0, "a grant has at most %d GPUs", PC_PAGE_GPUS_MAX);
    for (size_t i = 0; i < make->n_gpus && status == PC_OK; i++) {
        struct pc_config_share *share = &want->share[want->shares++];
        share->granted = make->gpus[i]->granted;
        share->cap = make->gpus[i]->cap;
        share->shared = make->gpus[i]->shared;
        status = copy(share->gpu, sizeof share->gpu, make->gpus[i]->gpu, "the GPU's name", err);
    }
    return status;
}

static enum pc_status do_make(struct pc_broker *b, const Poolcap__AdminRequest *request, struct said *said,
                              struct pc_error *err)
{
    struct pc_config_grant want;
    enum pc_status status = read_make(request->make_grant, &want, err);
    if (status != PC_OK)
        return status;
    struct pc_grant *grant = pc_grant_find(b, want.name);
    if (grant == NULL || grant->dropping || pc_grant_differs(grant, &want) != NULL) {
        status = pc_grant_make(b, &want, &grant, err);
        if (status != PC_OK)
            return status;
        status = pc_grant_listen(grant, pc_request_accept, err);
        if (status != PC_OK) {
            pc_grant_free(grant);
            return status;
        }
    }
    snprintf(said->text, sizeof said->text, "%s", grant->socket);
    return PC_OK;
}

static enum pc_status do_bind(struct pc_broker *b, const Poolcap__AdminRequest *request, struct said *said,
                              struct pc_error *err)
{
    char pod_uid[PC_NAME_MAX];
    struct pc_grant *grant;
    (void)said;
    enum pc_status status = find_grant(b, request->bind->grant, &grant, err);
    if (status == PC_OK)
        status = copy(pod_uid, sizeof pod_uid, request->bind->pod_uid, "the pod's UID", err);
    if (status == PC_OK)
        pc_grant_bind(grant, pod_uid);
    return status;
}

static enum pc_status find_share(struct pc_grant *grant, const char *reference, struct pc_share **out,
                                 struct pc_error *err)
{
    struct pc_gpu *gpu;
    if (reference[0] == '\0') {
        *out = &grant->share[0];
        if (grant->shares == 1)
            return PC_OK;
        return pc_error_set(err, PC_ERR_INVALID, 0, "grant %s has %u GPUs; name one", grant->name, grant->shares);
    }
    enum pc_status status = pc_gpu_find(grant->broker, reference, &gpu, err);
    if (status != PC_OK)
        return status;
    *out = pc_grant_share(grant, gpu);
    if (*out != NULL)
        return PC_OK;
    return pc_error_set(err, PC_ERR_INVALID, 0, "grant %s has nothing on GPU %s", grant->name, gpu->info.uuid);
}

static enum pc_status do_set_cap(struct pc_broker *b, const Poolcap__AdminRequest *request, struct said *said,
                                 struct pc_error *err)
{
    const Poolcap__AdminSetCap *set = request->set_cap;
    struct pc_grant *grant;
    struct pc_share *share;
    struct pc_ledger_grant_view view;
    enum pc_status status = find_grant(b, set->grant, &grant, err);
    if (status == PC_OK)
        status = find_share(grant, set->gpu, &share, err);
    if (status == PC_OK)
        status = pc_grant_resize(grant, share, share->granted, set->cap, err);
    if (status != PC_OK)
        return status;
    pc_ledger_grant_read(share->ledger, &view);
    if (view.charged > view.cap)
        snprintf(said->text, sizeof said->text,
                 "the grant holds %llu bytes, more than its cap now: nothing is taken away, and nothing more is given",
                 (unsigned long long)view.charged);
    return PC_OK;
}

static enum pc_status do_reload(struct pc_broker *b, const Poolcap__AdminRequest *request, struct said *said,
                                struct pc_error *err)
{
    struct pc_config fresh;
    (void)request;
    if (b->config.file[0] == '\0')
        return pc_error_set(err, PC_ERR_INVALID, 0, "poolcapd was started without a configuration file");
    enum pc_status status = pc_config_read(b->config.file, &fresh, err);
    if (status != PC_OK)
        return status;
    status = pc_static_apply(b, &fresh, said->text, err);
    pc_config_clear(&fresh);
    return status;
}

/* ---- list, drop ---- */

static void do_list(struct admin *admin, const Poolcap__AdminRequest *request)
{
    struct pc_admin_list *list = pc_admin_list_make(admin->broker, request->list->after);
    struct pc_error err;
    if (list == NULL) {
        pc_error_set(&err, PC_ERR_HOST_MEMORY, 0, "no host memory for the list");
        answer(admin, &err, "", NULL);
        return;
    }
    answer(admin, NULL, "", pc_admin_list_reply(list));
    pc_admin_list_free(list);
}

/* PC_ERR_BUSY where somebody uses the grant, or may. */
static enum pc_status check_unused(const struct pc_grant *grant, struct pc_error *err)
{
    pid_t pid;
    if (grant->session_count > 0)
        return pc_error_set(err, PC_ERR_BUSY, 0, "grant %s has %u processes", grant->name, grant->session_count);
    if (grant->pod_uid[0] == '\0')
        return PC_OK;
    enum pc_status status = pc_peer_find_in_pod(grant->pod_uid, &pid, err);
    if (status == PC_ERR_NOT_FOUND)
        return PC_OK;
    if (status == PC_OK)
        status = pc_error_set(err, PC_ERR_BUSY, 0, "process %d of pod %s, which has grant %s, lives", (int)pid,
                              grant->pod_uid, grant->name);
    return status;
}

static void do_drop(struct admin *admin, const Poolcap__AdminRequest *request)
{
    const Poolcap__AdminDropGrant *drop = request->drop_grant;
    struct pc_grant *grant;
    struct pc_error err;
    if (find_grant(admin->broker, drop->grant, &grant, &err) != PC_OK ||
        (drop->if_unused && check_unused(grant, &err) != PC_OK)) {
        answer(admin, &err, "", NULL);
        return;
    }
    pc_grant_drop(grant);
    if (!drop->wait) {
        answer(admin, NULL, grant->session_count > 0 ? "it ends with its last process" : "it ends now", NULL);
        return;
    }
    memcpy(admin->waits_for, grant->name, sizeof admin->waits_for);
    pc_watch_set_events(admin->watch, EPOLLRDHUP, NULL);
}

void pc_admin_grant_ended(struct pc_broker *b, const char *name)
{
    struct admin *admin;
    pc_list_each(admin, &b->admins, link) {
        if (strcmp(admin->waits_for, name) != 0)
            continue;
        admin->waits_for[0] = '\0';
        pc_watch_set_events(admin->watch, EPOLLIN, NULL);
        answer(admin, NULL, "ended; its memory is back on the card", NULL);
    }
}

/* ---- connections ---- */

typedef enum pc_status (*change_fn)(struct pc_broker *b, const Poolcap__AdminRequest *request, struct said *said,
                                    struct pc_error *err);

static const change_fn changes[] = {
    [POOLCAP__ADMIN_REQUEST__BODY_MAKE_GRANT] = do_make,
    [POOLCAP__ADMIN_REQUEST__BODY_BIND] = do_bind,
    [POOLCAP__ADMIN_REQUEST__BODY_SET_CAP] = do_set_cap,
    [POOLCAP__ADMIN_REQUEST__BODY_RELOAD] = do_reload,
};

static void serve(struct admin *admin, const Poolcap__AdminRequest *request)
{
    unsigned body = (unsigned)request->body_case;
    struct pc_error err = {.text = ""};
    struct said said = {.text = "done"};
    if (request->body_case == POOLCAP__ADMIN_REQUEST__BODY_LIST) {
        do_list(admin, request);
    } else if (request->body_case == POOLCAP__ADMIN_REQUEST__BODY_DROP_GRANT) {
        do_drop(admin, request);
    } else if (body < PC_ARRAY_LEN(changes) && changes[body] != NULL) {
        enum pc_status status = changes[body](admin->broker, request, &said, &err);
        pc_broker_changed(admin->broker);
        answer(admin, status == PC_OK ? NULL : &err, said.text, NULL);
    } else {
        pc_error_set(&err, PC_ERR_PROTOCOL, 0, "a request of no known kind; is poolcapctl newer than poolcapd?");
        answer(admin, &err, "", NULL);
    }
}

static void on_readable(struct pc_loop *loop, int fd, uint32_t events, void *arg)
{
    (void)loop;
    (void)events;
    struct admin *admin = arg;
    struct pc_error err = {.text = ""};
    ProtobufCMessage *message = NULL;
    if (admin->waits_for[0] != '\0') { /* it went away instead of waiting */
        close_admin(admin);
        return;
    }
    enum pc_status status =
        pc_wire_receive(fd, &poolcap__admin_request__descriptor, admin->broker->arena, &message, NULL, NULL, &err);
    if (status == PC_ERR_BUSY)
        return;
    if (status == PC_OK && message != NULL) {
        serve(admin, (const Poolcap__AdminRequest *)message);
        return;
    }
    if (status != PC_OK)
        pc_log_warn("admin", "a connection is closed: %s", err.text);
    close_admin(admin);
}

static void on_connect(struct pc_loop *loop, int fd, uint32_t events, void *arg)
{
    (void)events;
    struct pc_broker *b = arg;
    pc_auto_fd int connection = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (connection < 0)
        return;
    struct admin *admin = calloc(1, sizeof *admin);
    if (admin == NULL || pc_loop_add(loop, connection, EPOLLIN, on_readable, admin, &admin->watch, NULL) != PC_OK) {
        free(admin);
        return;
    }
    admin->broker = b;
    admin->fd = pc_steal_fd(&connection);
    pc_list_append(&b->admins, &admin->link);
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
    struct admin *admin;
    pc_list_each(admin, &b->admins, link)
        close_admin(admin);
    pc_watch_remove(b->admin_watch);
    if (b->admin_fd >= 0)
        close(b->admin_fd);
}
