/* What processes ask: one handler a message. */
#ifndef PC_BROKER_REQUEST_H
#define PC_BROKER_REQUEST_H

#include "alloc/broker/session.h"

/* Serves one request of a session; the answer goes out now or later. Only here is a message told from another. */
void pc_request_serve(struct pc_session *session, const Poolcap__Request *request);

/* The accept function of a grant's socket; arg is the grant. */
void pc_request_accept(struct pc_loop *loop, int fd, uint32_t events, void *arg);

#endif
