#include "alloc/broker/session.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "alloc/base/log.h"
#include "alloc/broker/want.h"

enum { REFUSALS_MAX = 64 };

/* ---- making and ending ---- */

static struct pc_session *new_session(struct pc_grant *grant, const struct pc_peer *peer)
{
    struct pc_session *session = calloc(1, sizeof *session);
    if (session == NULL)
        return NULL;
    session->grant = grant;
    session->process = pc_broker_new_id(grant->broker);
    session->peer = *peer;
    session->fd = -1;
    pc_list_append(&grant->sessions, &session->link);
    grant->session_count++;
    return session;
}

enum pc_status pc_session_adopt(struct pc_grant *grant, const struct pc_peer *peer, struct pc_session **out,
                                struct pc_error *err)
{
    *out = new_session(grant, peer);
    if (*out == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no memory for a session");
    return PC_OK;
}

void pc_session_free(struct pc_session *session)
{
    struct pc_grant *grant = session->grant;
    for (unsigned i = 0; i < grant->shares; i++)
        if (session->seat[i] != NULL)
            pc_seat_close(session->seat[i]);
    pc_watch_remove(session->death);
    pc_watch_remove(session->watch);
    if (session->fd >= 0)
        close(session->fd);
    pc_peer_close(&session->peer);
    pc_list_remove(&session->link);
    grant->session_count--;
    pc_broker_changed(grant->broker);
    free(session);
}

static void close_connection(struct pc_session *session)
{
    pc_watch_remove(session->watch);
    session->watch = NULL;
    close(session->fd);
    session->fd = -1;
    session->serving = false;
    for (unsigned i = 0; i < session->grant->shares; i++)
        if (session->seat[i] != NULL)
            pc_want_cancel(session->seat[i]);
    pc_broker_changed(session->grant->broker);
}

static void say_why(const struct pc_session *session, const struct pc_error *err)
{
    Poolcap__Reply reply = POOLCAP__REPLY__INIT; /* sequence 0: not an answer */
    reply.status = (uint32_t)err->status;
    reply.code = err->code;
    reply.text = (char *)(uintptr_t)err->text;
    pc_wire_send(session->fd, &reply.base, NULL, 0, NULL); /* best effort */
    pc_log_warn("session", "grant %s, process %d: %s; the session is ended", session->grant->name,
                (int)session->peer.pid, err->text);
}

void pc_session_end(struct pc_session *session, const char *why)
{
    struct pc_error err;
    if (session->fd < 0)
        return;
    if (why != NULL) {
        pc_error_set(&err, PC_ERR_PROTOCOL, 0, "%s", why);
        say_why(session, &err);
    }
    close_connection(session);
}

bool pc_session_holds(const struct pc_session *session)
{
    for (unsigned i = 0; i < session->grant->shares; i++) {
        const struct pc_seat *seat = session->seat[i];
        struct pc_ledger_session_view view;
        if (seat == NULL)
            continue;
        if (seat->attached || seat->jobs > 0 || !pc_list_empty(&seat->blocks) || !pc_list_empty(&seat->imports))
            return true;
        pc_ledger_session_read(seat->ledger, &view);
        for (unsigned kind = 0; kind < PC_CHARGE_KINDS; kind++)
            if (view.kinds[kind] > 0)
                return true;
    }
    return false;
}

/* ---- a process that connects again ---- */

static bool same_process(const struct pc_session *a, const struct pc_session *b)
{
    return a != b && pc_peer_same(&a->peer, &b->peer);
}

/* The end of the old connection may lie unread behind the new one's hello. */
static bool at_end(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLRDHUP};
    return poll(&p, 1, 0) == 1 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

void pc_session_take_over(struct pc_session *session)
{
    struct pc_session *old;
    pc_list_each(old, &session->grant->sessions, link) {
        if (!same_process(old, session))
            continue;
        if (old->fd >= 0 && at_end(old->fd))
            pc_session_end(old, NULL);
        if (old->fd >= 0)
            continue;
        for (unsigned i = 0; i < session->grant->shares; i++) {
            if (session->seat[i] != NULL || old->seat[i] == NULL)
                continue;
            session->seat[i] = old->seat[i];
            old->seat[i] = NULL;
            session->process = session->seat[i]->process;
        }
    }
}

/* ---- requests and answers ---- */

bool pc_session_reply(struct pc_session *session, Poolcap__Reply *reply, const int *fds, unsigned nfds)
{
    struct pc_error err;
    if (session->fd < 0)
        return false;
    reply->sequence = session->sequence;
    session->serving = false;
    if (pc_wire_send(session->fd, &reply->base, fds, nfds, &err) != PC_OK) {
        pc_session_end(session, err.status == PC_ERR_UNREACHABLE ? NULL : err.text);
        return false;
    }
    if (pc_watch_set_events(session->watch, EPOLLIN, &err) != PC_OK) {
        pc_session_end(session, err.text);
        return false;
    }
    return true;
}

void pc_session_refuse(struct pc_session *session, const struct pc_error *err)
{
    pc_log_debug("session", "grant %s, process %d: refused: %s", session->grant->name, (int)session->peer.pid,
                 err->text);
    Poolcap__Reply reply = POOLCAP__REPLY__INIT;
    reply.status = (uint32_t)err->status;
    reply.code = err->code;
    reply.text = (char *)(uintptr_t)err->text;
    pc_session_reply(session, &reply, NULL, 0);
}

static void on_readable(struct pc_loop *loop, int fd, uint32_t events, void *arg)
{
    (void)loop;
    (void)events;
    struct pc_session *session = arg;
    struct pc_error err = {.text = ""};
    ProtobufCMessage *message = NULL;
    enum pc_status status =
        pc_wire_receive(fd, &poolcap__request__descriptor, session->grant->broker->arena, &message, NULL, NULL, &err);
    if (status == PC_ERR_BUSY)
        return;
    if (status != PC_OK || message == NULL) {
        pc_session_end(session, status == PC_ERR_PROTOCOL ? err.text : NULL);
        return;
    }
    /* One request at a time: the next one is not even read until this one is answered. */
    if (pc_watch_set_events(session->watch, 0, &err) != PC_OK) {
        pc_session_end(session, err.text);
        return;
    }
    const Poolcap__Request *request = (const Poolcap__Request *)message;
    session->sequence = request->sequence;
    session->serving = true;
    if (!session->greeted && request->body_case != POOLCAP__REQUEST__BODY_HELLO)
        pc_session_end(session, "the first message has to be a hello");
    else
        session->handler(session, request);
}

/* ---- accepting ---- */

/*
 * A connection that is refused. Its answer goes out when its hello has come: a socket that is closed with something
 * unread in it is reset, and the peer would lose the reason. Few at a time: a further one pushes the oldest out.
 */
struct refusal {
    struct pc_list link; /* broker->refusals */
    struct pc_broker *broker;
    int fd;
    struct pc_watch *watch;
    struct pc_error err;
};

static void end_refusal(struct refusal *refusal)
{
    pc_watch_remove(refusal->watch);
    close(refusal->fd);
    pc_list_remove(&refusal->link);
    refusal->broker->refusal_count--;
    free(refusal);
}

static void on_refused(struct pc_loop *loop, int fd, uint32_t events, void *arg)
{
    (void)loop;
    (void)events;
    struct refusal *refusal = arg;
    ProtobufCMessage *message;
    Poolcap__Reply reply = POOLCAP__REPLY__INIT;
    reply.status = (uint32_t)refusal->err.status;
    reply.code = refusal->err.code;
    reply.text = refusal->err.text;
    if (pc_wire_receive(fd, &poolcap__request__descriptor, refusal->broker->arena, &message, NULL, NULL, NULL) ==
        PC_ERR_BUSY)
        return;
    pc_wire_send(fd, &reply.base, NULL, 0, NULL);
    end_refusal(refusal);
}

/* fd is the refusal's from now on. */
static void turn_away(const struct pc_grant *grant, int fd, const struct pc_error *err)
{
    struct pc_broker *b = grant->broker;
    struct refusal *refusal = calloc(1, sizeof *refusal);
    pc_log_warn("session", "grant %s: a connection is refused: %s", grant->name, err->text);
    if (refusal == NULL || pc_loop_add(b->loop, fd, EPOLLIN, on_refused, refusal, &refusal->watch, NULL) != PC_OK) {
        close(fd);
        free(refusal);
        return;
    }
    refusal->broker = b;
    refusal->fd = fd;
    refusal->err = *err;
    pc_list_append(&b->refusals, &refusal->link);
    if (++b->refusal_count > REFUSALS_MAX)
        end_refusal(pc_list_first(&b->refusals, struct refusal, link));
}

static enum pc_status check_peer(struct pc_grant *grant, int fd, struct pc_peer *peer, struct pc_error *err)
{
    if (grant->session_count >= PC_SESSIONS_PER_GRANT)
        return pc_error_set(err, PC_ERR_BUSY, 0, "grant %s has %d processes, which is the most", grant->name,
                            PC_SESSIONS_PER_GRANT);
    enum pc_status status = pc_peer_of_socket(fd, peer, err);
    if (status == PC_OK && grant->pod_uid[0] != '\0')
        status = pc_peer_check_pod(peer, grant->pod_uid, err);
    return status;
}

static enum pc_status open_session(struct pc_grant *grant, int fd, const struct pc_peer *peer,
                                   pc_session_handler handler, struct pc_error *err)
{
    struct pc_session *session = new_session(grant, peer);
    if (session == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no memory for a session");
    session->handler = handler;
    enum pc_status status = pc_loop_add(grant->broker->loop, fd, EPOLLIN, on_readable, session, &session->watch, err);
    if (status == PC_OK) {
        session->fd = fd;
        return PC_OK;
    }
    session->peer.pidfd = -1; /* stays the caller's */
    pc_session_free(session);
    return status;
}

void pc_session_accept(struct pc_grant *grant, pc_session_handler handler)
{
    struct pc_error err = {.text = ""};
    struct pc_peer peer = {.pidfd = -1};
    pc_auto_fd int fd = accept4(grant->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE)
            pc_log_error("session", "grant %s: no descriptor is left for a connection", grant->name);
        return;
    }
    enum pc_status status = check_peer(grant, fd, &peer, &err);
    if (status == PC_OK)
        status = open_session(grant, fd, &peer, handler, &err);
    if (status == PC_OK) {
        pc_steal_fd(&fd);
        return;
    }
    turn_away(grant, pc_steal_fd(&fd), &err);
    pc_peer_close(&peer);
}
