#include "alloc/broker/death.h"

#include "alloc/base/log.h"
#include "alloc/broker/evict.h"

#define GRACE_NS 500000000ull

static void note_dead(struct pc_session *session)
{
    pc_watch_remove(session->death);
    session->death = NULL;
    session->dead_ns = pc_loop_now_ns();
    session->grant->broker->dying++;
    pc_broker_hurry(session->grant->broker);
}

static void on_pidfd(struct pc_loop *loop, int fd, uint32_t events, void *arg)
{
    (void)loop;
    (void)fd;
    (void)events;
    note_dead(arg);
}

/* What depends on this process's word, or on its life, is looked at again. The list goes with the seat. */
static void bury(struct pc_session *session)
{
    struct pc_grant *grant = session->grant;
    struct pc_broker *b = grant->broker;
    for (unsigned i = 0; i < grant->shares; i++) {
        struct pc_seat *seat = session->seat[i];
        struct pc_import *import;
        if (seat == NULL)
            continue;
        while (!pc_list_empty(&seat->blocks))
            pc_block_take_back(pc_list_first(&seat->blocks, struct pc_block, link), true);
        pc_list_each(import, &seat->imports, in_seat) {
            struct pc_generation *generation = import->generation;
            pc_import_close(import);
            pc_evict_importers_changed(generation);
        }
    }
    if (session->dead_ns != 0)
        b->dying--;
    pc_session_free(session);
}

static void begin_watch(struct pc_session *session)
{
    struct pc_error err;
    if (pc_peer_dead(&session->peer)) {
        note_dead(session);
        return;
    }
    if (pc_loop_add(session->grant->broker->loop, session->peer.pidfd, EPOLLIN, on_pidfd, session, &session->death,
                    &err) != PC_OK)
        pc_log_error("death", "process %d is looked at by and by: %s", (int)session->peer.pid, err.text);
}

static void sweep(struct pc_session *session)
{
    if (session->fd >= 0 || session->dead_ns != 0)
        return;
    if (!pc_session_holds(session))
        pc_session_free(session);
    else if (session->death == NULL)
        begin_watch(session);
}

void pc_death_sweep(struct pc_broker *b)
{
    struct pc_grant *grant;
    pc_list_each(grant, &b->grants, link) {
        struct pc_session *session;
        pc_list_each(session, &grant->sessions, link)
            sweep(session);
    }
}

static bool has_job(const struct pc_session *session)
{
    for (unsigned i = 0; i < session->grant->shares; i++)
        if (session->seat[i] != NULL && session->seat[i]->jobs > 0)
            return true;
    return false;
}

static bool is_gone(const struct pc_session *session, const struct pc_snapshot *snapshot)
{
    if (session->dead_ns == 0 || snapshot->started_ns <= session->dead_ns || has_job(session))
        return false;
    for (unsigned i = 0; i < session->grant->shares; i++) {
        const struct pc_card_view *card = &snapshot->card[session->grant->share[i].tenant->gpu->index];
        if (card->list_valid && pc_card_process(card, session->peer.pid) != NULL)
            return false;
        if (!card->list_valid && snapshot->started_ns <= session->dead_ns + GRACE_NS)
            return false;
    }
    return true;
}

void pc_death_look(struct pc_broker *b, const struct pc_snapshot *snapshot)
{
    struct pc_grant *grant;
    pc_list_each(grant, &b->grants, link) {
        struct pc_session *session;
        pc_list_each(session, &grant->sessions, link)
            if (is_gone(session, snapshot))
                bury(session);
    }
}
