/* Inside of the client: one request and its reply over the socket. client.c and calls.c include this. */
#ifndef PC_SHIM_WIRE_CLIENT_H
#define PC_SHIM_WIRE_CLIENT_H

#include "alloc/base/error.h"
#include "proto/wire.h"

struct shim_gpu;

struct shim_fds {
    int fd[PC_WIRE_FDS_MAX];
    unsigned count;
};

/* A descriptor out of the list, in order; -1 when there is no more. */
int shim_fds_take(struct shim_fds *fds);
void shim_fds_close(struct shim_fds *fds);

/*
 * Sends, waits, receives. *reply is valid until the next exchange. A reply that carries an error is returned as that
 * error. *lost is set when the session is over because of what happened; err says why.
 */
enum pc_status shim_exchange(int fd, Poolcap__Request *request, Poolcap__Reply **reply, struct shim_fds *fds,
                             bool *lost, struct pc_error *err);

/* shim_exchange on the session, after connecting it if need be; once more on a new one if it broke. */
enum pc_status shim_client_request(const struct shim_gpu *gpu, Poolcap__Request *request, Poolcap__Reply **reply,
                                   struct shim_fds *fds, struct pc_error *err);

#endif
