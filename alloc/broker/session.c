/* A session: one process of a grant. Its connection, and its holdings until the witness has seen it dead. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "alloc/base/log.h"
#include "alloc/broker/broker.h"

#define GRACE_WITHOUT_LIST_NS 500000000ull /* where NVML has no process list (trap 10) */

/* ---- records ---- */

void pc_session_record(struct pc_session *s)
{
    if (s->record == NULL)
        return;
    struct pc_book_session *r = &s->record->session;
    for (unsigned i = 0; i < s->grant->shares; i++) {
        struct pc_ledger_session_view view = {.blocks = 0};
        if (s->holding[i].ledger != NULL)
            pc_ledger_session_read(s->holding[i].ledger, &view);
        pc_book_set(&r->attached[i], s->holding[i].ledger != NULL);
        pc_book_set(&r->context[i], view.kinds[PC_CHARGE_CONTEXT]);
        pc_book_set(&r->large[i], view.kinds[PC_CHARGE_LARGE]);
        pc_book_set(&r->direct[i], view.kinds[PC_CHARGE_DIRECT]);
        pc_book_set(&r->pending[i], view.kinds[PC_CHARGE_PENDING]);
    }
}

bool pc_session_imports(const struct pc_session *s, uint64_t generation)
{
    for (unsigned i = 0; i < PC_IMPORTS_MAX; i++)
        if (s->imports[i] == generation)
            return true;
    return false;
}

bool pc_session_set_import(struct pc_session *s, struct pc_generation *g)
{
    if (pc_session_imports(s, g->id))
        return true;
    for (unsigned i = 0; i < PC_IMPORTS_MAX; i++) {
        if (s->imports[i] != 0)
            continue;
        s->imports[i] = g->id;
        pc_book_set(&s->record->session.imports[i], g->id);
        g->importers++;
        g->exported = true;
        return true;
    }
    return false;
}

void pc_session_clear_import(struct pc_session *s, uint64_t generation)
{
    for (unsigned i = 0; i < PC_IMPORTS_MAX; i++) {
        if (s->imports[i] != generation)
            continue;
        s->imports[i] = 0;
        pc_book_set(&s->record->session.imports[i], 0);
        for (unsigned k = 0; k < s->grant->shares; k++) {
            struct pc_generation *g = pc_tenant_find_generation(s->grant->share[k].tenant, generation);
            if (g != NULL)
                g->importers--;
        }
    }
}

/* ---- connection ---- */

static void close_connection(struct pc_session *s)
{
    if (s->watch != NULL)
        pc_watch_remove(s->watch);
    s->watch = NULL;
    if (s->fd >= 0)
        close(s->fd);
    s->fd = -1;
    s->greeted = false;
    pc_request_cancel(s);
}

static void note_death(struct pc_session *s)
{
    if (s->dead && s->fd < 0 && s->dead_ns == 0) {
        s->dead_ns = pc_loop_now_ns();
        pc_watch_pace(s->grant->broker);
    }
}

void pc_session_end(struct pc_session *s, const char *why)
{
    if (s->fd < 0)
        return;
    if (why != NULL) {
        Poolcap__Reply reply = POOLCAP__REPLY__INIT;
        reply.status = PC_ERR_PROTOCOL;
        reply.text = (char *)(uintptr_t)why;
        pc_wire_send(s->fd, &reply.base, NULL, 0, NULL);
        pc_log_warn("session", "grant %s, process %d: %s; the session is ended", s->grant->name, (int)s->peer.pid, why);
    }
    close_connection(s);
    note_death(s);
}

void pc_session_reply(struct pc_session *s, Poolcap__Reply *reply, const int *fds, unsigned nfds)
{
    s->busy = false;
    if (s->fd < 0)
        return;
    reply->sequence = s->sequence;
    struct pc_error err;
    if (pc_wire_send(s->fd, &reply->base, fds, nfds, &err) != PC_OK) {
        pc_log_warn("session", "grant %s, process %d: %s", s->grant->name, (int)s->peer.pid, err.text);
        pc_session_end(s, NULL);
        return;
    }
    pc_watch_set_events(s->watch, EPOLLIN | EPOLLRDHUP, NULL);
}

void pc_session_refuse(struct pc_session *s, const struct pc_error *err)
{
    Poolcap__Reply reply = POOLCAP__REPLY__INIT;
    reply.status = (uint32_t)err->status;
    reply.code = err->code;
    reply.text = (char *)(uintptr_t)err->text;
    pc_session_reply(s, &reply, NULL, 0);
}

static void on_readable(struct pc_loop *loop, int fd, uint32_t events, void *arg)
{
    (void)loop;
    (void)events;
    struct pc_session *s = arg;
    struct pc_error err = {.text = ""};
    ProtobufCMessage *message = NULL;
    enum pc_status status =
        pc_wire_receive(fd, &poolcap__request__descriptor, s->grant->broker->arena, &message, NULL, NULL, &err);
    if (status == PC_ERR_BUSY)
        return;
    if (status != PC_OK || message == NULL) {
        pc_session_end(s, status == PC_ERR_PROTOCOL ? err.text : NULL);
        return;
    }
    if (s->busy) {
        pc_session_end(s, "a second request before the answer to the first");
        return;
    }
    /* Reading pauses until the answer is out: one outstanding request. */
    s->busy = true;
    pc_watch_set_events(s->watch, 0, NULL);
    s->sequence = ((const Poolcap__Request *)message)->sequence;
    pc_request_handle(s, (const Poolcap__Request *)message);
}

static void on_pid(struct pc_loop *loop, int fd, uint32_t events, void *arg)
{
    (void)loop;
    (void)fd;
    (void)events;
    struct pc_session *s = arg;
    s->dead = true;
    pc_watch_remove(s->pid_watch);
    s->pid_watch = NULL;
    /* While a request is outstanding the socket is not watched: look whether it is at its end. */
    if (s->fd >= 0 && s->busy)
        pc_watch_set_events(s->watch, EPOLLRDHUP, NULL);
    note_death(s);
}

enum pc_status pc_session_create(struct pc_grant *g, const struct pc_peer *peer, struct pc_session **out,
                                 struct pc_error *err)
{
    struct pc_session *s = calloc(1, sizeof *s);
    struct pc_book_record *record = s != NULL ? pc_book_new(g->broker->books) : NULL;
    if (record == NULL) {
        free(s);
        return pc_error_set(err, PC_ERR_BUSY, 0, "no place for one more session");
    }
    s->grant = g;
    s->id = pc_broker_new_id(g->broker);
    s->peer = *peer;
    s->fd = -1;
    s->record = record;
    s->dead = peer->pidfd < 0;
    pc_list_init(&s->blocks);
    if (!s->dead && pc_loop_add(g->broker->loop, peer->pidfd, EPOLLIN, on_pid, s, &s->pid_watch, err) != PC_OK) {
        free(s);
        return PC_ERR_IO;
    }
    memcpy(record->session.grant, g->name, sizeof g->name);
    record->session.pid = peer->pid;
    record->session.starttime = peer->starttime;
    record->session.id = s->id;
    pc_book_commit(record, PC_BOOK_SESSION);
    pc_list_append(&g->broker->sessions, &s->link);
    g->sessions++;
    *out = s;
    return PC_OK;
}

/* A process that connects again takes over what it held. */
static struct pc_session *find_orphan(struct pc_grant *g, const struct pc_peer *peer)
{
    struct pc_session *s;
    pc_list_each(s, &g->broker->sessions, link)
        if (s->grant == g && s->fd < 0 && !s->dead && pc_peer_same(&s->peer, peer))
            return s;
    return NULL;
}

static void turn_away(struct pc_grant *g, int fd, const struct pc_error *err)
{
    Poolcap__Reply reply = POOLCAP__REPLY__INIT;
    reply.status = (uint32_t)err->status;
    reply.text = (char *)(uintptr_t)err->text;
    pc_wire_send(fd, &reply.base, NULL, 0, NULL);
    pc_log_warn("session", "grant %s: %s", g->name, err->text);
    close(fd);
}

void pc_session_accept(struct pc_grant *g)
{
    struct pc_error err = {.text = ""};
    struct pc_peer peer = {.pidfd = -1};
    struct pc_session *s = NULL;
    int fd = accept4(g->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return;
    enum pc_status status = pc_peer_of_socket(fd, &peer, &err);
    if (status == PC_OK && g->pod_uid[0] != '\0')
        status = pc_peer_check_pod(&peer, g->pod_uid, &err);
    if (status == PC_OK && g->sessions >= PC_SESSIONS_PER_GRANT)
        status =
            pc_error_set(&err, PC_ERR_BUSY, 0, "the grant has %d processes, which is the most", PC_SESSIONS_PER_GRANT);
    if (status == PC_OK && (s = find_orphan(g, &peer)) != NULL)
        pc_peer_close(&peer);
    else if (status == PC_OK)
        status = pc_session_create(g, &peer, &s, &err);
    if (status == PC_OK)
        status = pc_loop_add(g->broker->loop, fd, EPOLLIN | EPOLLRDHUP, on_readable, s, &s->watch, &err);
    if (status != PC_OK) {
        if (s == NULL)
            pc_peer_close(&peer);
        turn_away(g, fd, &err);
        return;
    }
    s->fd = fd;
    s->busy = false;
    s->dead_ns = 0;
}

/* ---- death ---- */

/* Its memory goes back: blocks to the tenant, marked with whose bytes are in them; everything else to the card. */
static void release_holdings(struct pc_session *s)
{
    struct pc_block *block;
    pc_list_each(block, &s->blocks, link) {
        struct pc_ledger_session *ledger = s->holding[block->share].ledger;
        if (block->generation != NULL) {
            pc_ledger_block_release(ledger, block->generation->ledger, block->bytes, NULL);
            pc_block_park(block);
        } else {
            pc_ledger_release(ledger, PC_CHARGE_LARGE, block->bytes, NULL);
            pc_book_end(block->record);
            pc_list_remove(&block->link);
            free(block);
        }
    }
    for (unsigned i = 0; i < PC_IMPORTS_MAX; i++)
        if (s->imports[i] != 0)
            pc_session_clear_import(s, s->imports[i]);
    for (unsigned i = 0; i < s->grant->shares; i++) {
        struct pc_ledger_session *ledger = s->holding[i].ledger;
        struct pc_ledger_session_view view;
        struct pc_error err;
        if (ledger == NULL)
            continue;
        pc_ledger_session_read(ledger, &view);
        for (unsigned k = 0; k < PC_CHARGE_KINDS; k++)
            pc_ledger_release(ledger, (enum pc_charge_kind)k, view.kinds[k], NULL);
        if (pc_ledger_session_remove(ledger, &err) != PC_OK)
            pc_log_error("session", "grant %s, process %d: %s", s->grant->name, (int)s->peer.pid, err.text);
    }
}

static void bury(struct pc_session *s)
{
    struct pc_grant *g = s->grant;
    release_holdings(s);
    pc_book_end(s->record);
    pc_peer_close(&s->peer);
    pc_list_remove(&s->link);
    g->sessions--;
    free(s);
    for (unsigned i = 0; i < g->shares; i++)
        pc_tenant_changed(g->share[i].tenant);
}

/* Whether NVML names the process on one of its GPUs no more, in a list that was taken after its death. */
static bool gone_from_lists(const struct pc_session *s, const struct pc_snapshot *snapshot)
{
    for (unsigned i = 0; i < s->grant->shares; i++) {
        if (s->holding[i].ledger == NULL)
            continue;
        const struct pc_card_view *card = &snapshot->card[s->grant->share[i].tenant->gpu->index];
        if (!card->list_valid && snapshot->started_ns < s->dead_ns + GRACE_WITHOUT_LIST_NS)
            return false;
        if (card->list_valid && pc_card_process(card, s->peer.pid) != NULL)
            return false;
    }
    return true;
}

/* While a request is with the worker (busy), its done callback must still find the session. */
void pc_session_snapshot(struct pc_broker *b, const struct pc_snapshot *snapshot)
{
    struct pc_session *s;
    pc_list_each(s, &b->sessions, link)
        if (s->dead_ns != 0 && !s->busy && snapshot->started_ns > s->dead_ns && gone_from_lists(s, snapshot))
            bury(s);
}
