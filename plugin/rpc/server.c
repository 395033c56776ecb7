/*
 * The socket is ours, and each connection is handed to core: core's own listening would take a live server's path
 * silently, and unlink a path that another server owns by then (facts).
 */
#include "plugin/rpc/server.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "alloc/base/cleanup.h"
#include "alloc/base/log.h"

enum { BACKLOG = 16 };

static void on_connect(struct pc_loop *loop, int fd, uint32_t events, void *arg)
{
    struct pc_rpc_server *server = arg;
    (void)loop;
    (void)events;
    int connection = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (connection >= 0)
        grpc_server_add_channel_from_fd(server->server, connection, server->credentials);
    else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
        pc_log_warn("rpc", "cannot accept a connection at %s: %s", server->path, strerror(errno));
}

static enum pc_status replace_stale(const char *path, struct pc_error *err)
{
    struct stat st;
    if (lstat(path, &st) < 0)
        return PC_OK;
    if (!S_ISSOCK(st.st_mode))
        return pc_error_set(err, PC_ERR_IO, EEXIST, "%.100s is there and is no socket; move it away", path);
    if (unlink(path) < 0 && errno != ENOENT)
        return pc_error_errno(err, errno, "cannot remove the old socket %.100s", path);
    return PC_OK;
}

static enum pc_status listen_at(struct pc_rpc_server *server, struct pc_error *err)
{
    struct stat st;
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    enum pc_status status = replace_stale(server->path, err);
    if (status != PC_OK)
        return status;
    memcpy(at.sun_path, server->path, strlen(server->path));
    server->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (server->fd < 0 || bind(server->fd, (struct sockaddr *)&at, sizeof at) < 0)
        return pc_error_errno(err, errno, "cannot make the socket %.100s", server->path);
    if (lstat(server->path, &st) < 0 || chmod(server->path, 0700) < 0 || listen(server->fd, BACKLOG) < 0)
        return pc_error_errno(err, errno, "cannot listen at %.100s", server->path);
    server->device = st.st_dev;
    server->inode = st.st_ino;
    return pc_loop_add(pc_rpc_loop(server->rpc), server->fd, EPOLLIN, on_connect, server, &server->watch, err);
}

static grpc_server *make_server(void)
{
    grpc_arg limit = {.type = GRPC_ARG_INTEGER, .key = (char *)(uintptr_t)GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH};
    limit.value.integer = PC_RPC_MESSAGE_MAX;
    const grpc_channel_args args = {.num_args = 1, .args = &limit};
    return grpc_server_create(&args, NULL);
}

bool pc_rpc_server_there(const struct pc_rpc_server *server)
{
    struct stat st;
    return server->inode != 0 && lstat(server->path, &st) == 0 && st.st_dev == server->device &&
           st.st_ino == server->inode;
}

static void close_socket(struct pc_rpc_server *server)
{
    pc_watch_remove(server->watch);
    server->watch = NULL;
    if (server->fd >= 0)
        close(server->fd);
    server->fd = -1;
    if (pc_rpc_server_there(server))
        unlink(server->path);
}

static void on_shutdown(void *owner, bool ok)
{
    struct pc_rpc_server *server = owner;
    (void)ok;
    grpc_server_destroy(server->server);
    grpc_server_credentials_release(server->credentials);
    free(server);
}

enum pc_status pc_rpc_server_start(struct pc_rpc *rpc, const char *socket_path, const struct pc_rpc_method *methods,
                                   size_t count, void *arg, struct pc_rpc_server **out, struct pc_error *err)
{
    if (strlen(socket_path) >= sizeof((struct sockaddr_un *)0)->sun_path)
        return pc_error_set(err, PC_ERR_INVALID, 0, "a socket's path has at most 107 bytes, this one %zu: %.200s",
                            strlen(socket_path), socket_path);
    struct pc_rpc_server *server = calloc(1, sizeof *server);
    if (server == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no host memory for a server");
    *server = (struct pc_rpc_server){.rpc = rpc, .methods = methods, .count = count, .arg = arg, .fd = -1};
    memcpy(server->path, socket_path, strlen(socket_path));
    server->server = make_server();
    server->credentials = grpc_insecure_server_credentials_create();
    grpc_server_register_completion_queue(server->server, pc_rpc_queue(rpc), NULL);
    grpc_server_start(server->server);
    enum pc_status status = listen_at(server, err);
    if (status != PC_OK) {
        pc_rpc_server_stop(server);
        return status;
    }
    pc_rpc_call_expect(server);
    *out = server;
    return PC_OK;
}

void pc_rpc_server_stop(struct pc_rpc_server *server)
{
    if (server == NULL)
        return;
    close_socket(server);
    while (server->calls != NULL)
        pc_rpc_call_abandon(server->calls);
    grpc_server_shutdown_and_notify(server->server, pc_rpc_queue(server->rpc),
                                    pc_rpc_tag(server->rpc, &server->shutdown, on_shutdown, server));
    grpc_server_cancel_all_calls(server->server);
}
