#include "plugin/daemon/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "alloc/base/cleanup.h"
#include "alloc/base/log.h"
#include "proto/wire.h"

enum { RETRY_MIN_MS = 100, RETRY_MAX_MS = 1000, ANSWER_MS = 10000, PATH = 108 };

/* One question: it waits in line, then for its answer. */
struct question {
    struct question *next;
    ProtobufCMessage *request; /* a copy of our own */
    pc_daemon_answer answer;
    void *arg;
};

struct pc_daemon {
    struct pc_loop *loop;
    char path[PATH];
    pc_daemon_up up;
    void *arg;
    int fd;
    struct pc_watch *watch;
    struct pc_timer *retry, *late, *kick;
    uint64_t wait_ms;
    struct question *first, **last; /* the first is under way when asked */
    bool asked, said_away;
    struct pc_arena arena;
};

static void connect_now(struct pc_daemon *d);

static void free_question(struct question *q)
{
    protobuf_c_message_free_unpacked(q->request, NULL);
    free(q);
}

static struct question *take_first(struct pc_daemon *d)
{
    struct question *q = d->first;
    d->first = q->next;
    if (d->first == NULL)
        d->last = &d->first;
    d->asked = false;
    pc_timer_stop(d->late);
    return q;
}

static void tell(struct question *q, enum pc_status status, const Poolcap__AdminReply *reply,
                 const struct pc_error *err)
{
    q->answer(q->arg, status, status == PC_OK ? reply : NULL, err);
    free_question(q);
}

/* Everybody who waits hears that poolcapd is away. Those who ask again from their answer wait for the next time. */
static void fail_all(struct pc_daemon *d, const char *why)
{
    struct pc_error err;
    struct question *q = d->first, *next;
    d->first = NULL;
    d->last = &d->first;
    d->asked = false;
    pc_timer_stop(d->late);
    pc_error_set(&err, PC_ERR_UNREACHABLE, 0, "poolcapd at %s: %s", d->path, why);
    for (; q != NULL; q = next) {
        next = q->next;
        tell(q, PC_ERR_UNREACHABLE, NULL, &err);
    }
}

static void lose(struct pc_daemon *d, const char *why)
{
    pc_watch_remove(d->watch);
    d->watch = NULL;
    close(d->fd);
    d->fd = -1;
    d->wait_ms = RETRY_MIN_MS;
    pc_timer_start(d->retry, d->wait_ms, 0);
    pc_log_warn("daemon", "the connection to poolcapd is lost: %s", why);
    fail_all(d, why);
    d->up(d->arg, false);
}

static void send_next(struct pc_daemon *d)
{
    struct pc_error err = {.text = ""};
    if (d->fd < 0 || d->asked || d->first == NULL)
        return;
    if (pc_wire_send(d->fd, d->first->request, NULL, 0, &err) != PC_OK) {
        lose(d, err.text);
        return;
    }
    d->asked = true;
    pc_timer_start(d->late, ANSWER_MS, 0);
}

static void take_answer(struct pc_daemon *d, const Poolcap__AdminReply *reply)
{
    struct pc_error err = {.text = ""};
    struct question *q = take_first(d);
    if (reply->status == PC_OK) {
        tell(q, PC_OK, reply, NULL);
    } else {
        pc_error_set(&err, (enum pc_status)reply->status, reply->code, "%s", reply->text);
        tell(q, err.status, NULL, &err);
    }
    send_next(d);
}

static void on_readable(struct pc_loop *loop, int fd, uint32_t events, void *arg)
{
    (void)loop;
    (void)events;
    struct pc_daemon *d = arg;
    struct pc_error err = {.text = ""};
    ProtobufCMessage *message = NULL;
    enum pc_status status =
        pc_wire_receive(fd, &poolcap__admin_reply__descriptor, &d->arena, &message, NULL, NULL, &err);
    if (status == PC_ERR_BUSY)
        return;
    if (status != PC_OK)
        lose(d, err.text);
    else if (message == NULL)
        lose(d, "it closed the connection");
    else if (!d->asked)
        lose(d, "it answered what was not asked");
    else
        take_answer(d, (const Poolcap__AdminReply *)message);
}

static void on_late(struct pc_loop *loop, void *arg)
{
    (void)loop;
    lose(arg, "no answer in time");
}

static void on_retry(struct pc_loop *loop, void *arg)
{
    (void)loop;
    connect_now(arg);
}

static void try_later(struct pc_daemon *d, const struct pc_error *err)
{
    if (!d->said_away)
        pc_log_warn("daemon", "poolcapd cannot be reached, trying on: %s", err->text);
    d->said_away = true;
    pc_timer_start(d->retry, d->wait_ms, 0);
    d->wait_ms = d->wait_ms * 2 < RETRY_MAX_MS ? d->wait_ms * 2 : RETRY_MAX_MS;
}

static void connect_now(struct pc_daemon *d)
{
    struct pc_error err = {.text = ""};
    pc_auto_fd int fd = -1;
    enum pc_status status = pc_wire_connect(d->path, &fd, &err);
    if (status == PC_OK && fcntl(fd, F_SETFL, O_NONBLOCK) < 0)
        status = pc_error_errno(&err, errno, "cannot set the socket non-blocking");
    if (status == PC_OK)
        status = pc_loop_add(d->loop, fd, EPOLLIN, on_readable, d, &d->watch, &err);
    if (status != PC_OK) {
        try_later(d, &err);
        return;
    }
    d->fd = pc_steal_fd(&fd);
    d->wait_ms = RETRY_MIN_MS;
    d->said_away = false;
    d->up(d->arg, true);
    send_next(d);
}

/* What pc_daemon_ask began, from the loop: so no answer comes from inside that call. */
static void on_kick(struct pc_loop *loop, void *arg)
{
    (void)loop;
    struct pc_daemon *d = arg;
    if (d->fd < 0)
        fail_all(d, "it is away");
    else
        send_next(d);
}

static enum pc_status make_timers(struct pc_daemon *d, struct pc_error *err)
{
    enum pc_status status = pc_timer_create(d->loop, on_retry, d, &d->retry, err);
    if (status == PC_OK)
        status = pc_timer_create(d->loop, on_late, d, &d->late, err);
    if (status == PC_OK)
        status = pc_timer_create(d->loop, on_kick, d, &d->kick, err);
    return status;
}

enum pc_status pc_daemon_create(struct pc_loop *loop, const char *socket_path, pc_daemon_up up, void *arg,
                                struct pc_daemon **out, struct pc_error *err)
{
    struct pc_daemon *d = calloc(1, sizeof *d);
    if (d == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no host memory for the connection to poolcapd");
    *d = (struct pc_daemon){.loop = loop, .up = up, .arg = arg, .fd = -1, .wait_ms = RETRY_MIN_MS};
    d->last = &d->first;
    enum pc_status status = make_timers(d, err);
    if (status == PC_OK && strlen(socket_path) >= sizeof d->path)
        status = pc_error_set(err, PC_ERR_INVALID, 0, "the path of poolcapd's socket is over %d bytes: %s", PATH - 1,
                              socket_path);
    if (status != PC_OK) {
        pc_daemon_free(d);
        return status;
    }
    memcpy(d->path, socket_path, strlen(socket_path));
    pc_timer_start(d->retry, 0, 0);
    *out = d;
    return PC_OK;
}

void pc_daemon_free(struct pc_daemon *d)
{
    struct question *next;
    if (d == NULL)
        return;
    for (struct question *q = d->first; q != NULL; q = next) {
        next = q->next;
        free_question(q);
    }
    pc_watch_remove(d->watch);
    if (d->fd >= 0)
        close(d->fd);
    pc_timer_free(d->retry);
    pc_timer_free(d->late);
    pc_timer_free(d->kick);
    free(d);
}

bool pc_daemon_is_up(const struct pc_daemon *d)
{
    return d->fd >= 0;
}

/* By way of its packed form: the message may be on a stack, or in an arena, and point into anything. */
ProtobufCMessage *pc_daemon_copy(const ProtobufCMessage *message)
{
    size_t length = protobuf_c_message_get_packed_size(message);
    pc_auto_free uint8_t *bytes = malloc(length + 1);
    if (bytes == NULL)
        return NULL;
    protobuf_c_message_pack(message, bytes);
    return protobuf_c_message_unpack(message->descriptor, NULL, length, bytes);
}

void pc_daemon_ask(struct pc_daemon *d, const Poolcap__AdminRequest *request, pc_daemon_answer answer, void *arg)
{
    struct question *q = calloc(1, sizeof *q);
    if (q == NULL || (q->request = pc_daemon_copy(&request->base)) == NULL) {
        pc_log_error("daemon", "no host memory to ask poolcapd");
        abort(); /* a few hundred bytes: the kernel gives them or ends us; we are started again and lose nothing */
    }
    q->answer = answer;
    q->arg = arg;
    *d->last = q;
    d->last = &q->next;
    pc_timer_start(d->kick, 0, 0);
}
