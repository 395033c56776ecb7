/* Between server.c (the socket, new calls) and call.c (one call's life). */
#ifndef PC_PLUGIN_RPC_SERVER_H
#define PC_PLUGIN_RPC_SERVER_H

#include "plugin/rpc/internal.h"

struct pc_rpc_server {
    struct pc_rpc *rpc;
    grpc_server *server;
    grpc_server_credentials *credentials;
    const struct pc_rpc_method *methods;
    size_t count;
    void *arg;
    char path[108];
    uint64_t device, inode; /* of the socket, to know it again */
    int fd;
    struct pc_watch *watch;
    struct pc_rpc_call *calls; /* that are not over */
    struct pc_rpc_tag shutdown;
};

/* Asks core for the next call. */
void pc_rpc_call_expect(struct pc_rpc_server *server);
/* The server goes: `gone` runs where it is due, and the call ends by itself. */
void pc_rpc_call_abandon(struct pc_rpc_call *call);

#endif
