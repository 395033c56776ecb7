/*
 * A session: one process of a grant, by its connection. When the connection ends, the session stays (without one) for
 * as long as the process may hold anything; a process that connects again takes its seats over.
 */
#ifndef PC_BROKER_SESSION_H
#define PC_BROKER_SESSION_H

#include "alloc/broker/grant.h"
#include "alloc/broker/peer.h"
#include "alloc/broker/seat.h"

struct pc_session;
typedef void (*pc_session_handler)(struct pc_session *session, const Poolcap__Request *request);

struct pc_session {
    struct pc_list link; /* grant->sessions */
    struct pc_grant *grant;
    uint64_t process; /* id of the process */
    struct pc_peer peer;
    struct pc_watch *death; /* of the pidfd; only without a connection */
    uint64_t dead_ns;       /* when its process was seen dead and its connection at its end; 0: not yet */
    int fd;                 /* -1: no connection */
    struct pc_watch *watch;
    pc_session_handler handler;
    bool greeted;
    uint64_t greeted_ns;
    bool serving;                           /* a request is being worked on, and reading is paused */
    uint32_t sequence;                      /* of that request */
    uint32_t attaching;                     /* the GPU of the attach that is being served */
    struct pc_seat *seat[PC_PAGE_GPUS_MAX]; /* by share; NULL: never attached */
};

/* Takes one connection that waits at the grant's socket; handler gets its requests, the first of which is a hello. */
void pc_session_accept(struct pc_grant *grant, pc_session_handler handler);

/* One of an earlier poolcapd, without a connection. peer becomes its. Errors: PC_ERR_HOST_MEMORY. */
enum pc_status pc_session_adopt(struct pc_grant *grant, const struct pc_peer *peer, struct pc_session **out,
                                struct pc_error *err);

/* At hello: what earlier connections of the same process left behind is this one's. */
void pc_session_take_over(struct pc_session *session);

/* Answers the request that is being served and goes on reading. False: the answer did not get out, the session ended.
 */
bool pc_session_reply(struct pc_session *session, Poolcap__Reply *reply, const int *fds, unsigned nfds);
void pc_session_refuse(struct pc_session *session, const struct pc_error *err);

/* Ends the connection; why is told to the peer and logged. NULL: the peer ended it. The session itself stays for now.
 */
void pc_session_end(struct pc_session *session, const char *why);

/* Whether anything is booked for the process, or a job is under way for it. */
bool pc_session_holds(const struct pc_session *session);

void pc_session_free(struct pc_session *session); /* closes its seats: see pc_seat_close */

#endif
