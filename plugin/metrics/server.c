#include "plugin/metrics/server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "alloc/base/cleanup.h"

enum { CONNECTIONS = 32, SILENCE_S = 10 };

struct pc_metrics_server {
    struct MHD_Daemon *daemon;
    struct pc_watch *watch;
    struct pc_timer *timer;
    struct pc_metrics_ops ops;
    void *arg;
};

/* ---- answers ---- */

static enum MHD_Result answer(struct MHD_Connection *connection, unsigned code, const char *type, char *text,
                              size_t length)
{
    struct MHD_Response *response = MHD_create_response_from_buffer(length, text, MHD_RESPMEM_MUST_FREE);
    if (response == NULL) {
        free(text);
        return MHD_NO;
    }
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    enum MHD_Result result = MHD_queue_response(connection, code, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result answer_text(struct MHD_Connection *connection, unsigned code, const char *text)
{
    char *copy = NULL;
    int length = asprintf(&copy, "%s\n", text);
    return length < 0 ? MHD_NO : answer(connection, code, "text/plain; charset=utf-8", copy, (size_t)length);
}

static enum MHD_Result on_request(void *arg, struct MHD_Connection *connection, const char *url, const char *method,
                                  const char *version, const char *body, size_t *body_length, void **state)
{
    struct pc_metrics_server *server = arg;
    const char *why = NULL;
    size_t length = 0;
    (void)version;
    (void)body;
    (void)state;
    if ((strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0) || *body_length > 0)
        return answer_text(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET");
    if (strcmp(url, "/healthz") == 0)
        return answer_text(connection, MHD_HTTP_OK, "ok");
    if (strcmp(url, "/readyz") == 0)
        return server->ops.ready(server->arg, &why) ? answer_text(connection, MHD_HTTP_OK, "ok")
                                                    : answer_text(connection, MHD_HTTP_SERVICE_UNAVAILABLE, why);
    if (strcmp(url, "/metrics") != 0)
        return answer_text(connection, MHD_HTTP_NOT_FOUND, "there are /metrics, /healthz and /readyz");
    char *text = server->ops.metrics(server->arg, &length);
    if (text == NULL)
        return MHD_NO;
    return answer(connection, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8", text, length);
}

/* ---- on the loop ---- */

static void run(struct pc_metrics_server *server)
{
    MHD_UNSIGNED_LONG_LONG ms;
    MHD_run(server->daemon);
    if (MHD_get_timeout(server->daemon, &ms) == MHD_YES)
        pc_timer_start(server->timer, ms, 0);
    else
        pc_timer_stop(server->timer);
}

static void on_event(struct pc_loop *loop, int fd, uint32_t events, void *arg)
{
    (void)loop;
    (void)fd;
    (void)events;
    run(arg);
}

static void on_timer(struct pc_loop *loop, void *arg)
{
    (void)loop;
    run(arg);
}

/* ---- start ---- */

union address {
    struct sockaddr sa;
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
};

static enum pc_status bad_address(const char *text, struct pc_error *err)
{
    return pc_error_set(err, PC_ERR_INVALID, 0,
                        "\"%.100s\" is no address to serve metrics at; write \":9400\", \"10.0.0.1:9400\" or "
                        "\"[fd00::1]:9400\"",
                        text);
}

static enum pc_status parse_address(const char *text, union address *out, socklen_t *length, struct pc_error *err)
{
    char host[64];
    char *end;
    const char *colon = strrchr(text, ':');
    memset(out, 0, sizeof *out);
    if (colon == NULL || (size_t)(colon - text) >= sizeof host)
        return bad_address(text, err);
    unsigned long port = strtoul(colon + 1, &end, 10);
    if (colon[1] < '0' || colon[1] > '9' || *end != '\0' || port == 0 || port > 65535)
        return bad_address(text, err);
    snprintf(host, sizeof host, "%.*s", (int)(colon - text), text);
    size_t n = strlen(host);
    if (n > 1 && host[0] == '[' && host[n - 1] == ']') {
        host[n - 1] = '\0';
        out->in6.sin6_family = AF_INET6;
        out->in6.sin6_port = htons((uint16_t)port);
        *length = sizeof out->in6;
        return inet_pton(AF_INET6, host + 1, &out->in6.sin6_addr) == 1 ? PC_OK : bad_address(text, err);
    }
    out->in.sin_family = AF_INET;
    out->in.sin_port = htons((uint16_t)port);
    *length = sizeof out->in;
    return n == 0 || inet_pton(AF_INET, host, &out->in.sin_addr) == 1 ? PC_OK : bad_address(text, err);
}

static enum pc_status listen_at(const char *address, int *out, struct pc_error *err)
{
    union address at;
    socklen_t length = 0;
    int one = 1;
    enum pc_status status = parse_address(address, &at, &length, err);
    if (status != PC_OK)
        return status;
    pc_auto_fd int fd = socket(at.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) < 0 || bind(fd, &at.sa, length) < 0 ||
        listen(fd, CONNECTIONS) < 0)
        return pc_error_errno(err, errno, "cannot serve metrics at %.100s; choose another metricsAddress", address);
    *out = pc_steal_fd(&fd);
    return PC_OK;
}

static enum pc_status start(struct pc_metrics_server *server, struct pc_loop *loop, const char *address,
                            struct pc_error *err)
{
    pc_auto_fd int fd = -1;
    enum pc_status status = listen_at(address, &fd, err);
    if (status != PC_OK)
        return status;
    server->daemon = MHD_start_daemon(MHD_USE_EPOLL, 0, NULL, NULL, on_request, server, MHD_OPTION_LISTEN_SOCKET, fd,
                                      MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS, MHD_OPTION_CONNECTION_TIMEOUT,
                                      (unsigned)SILENCE_S, MHD_OPTION_END);
    if (server->daemon == NULL)
        return pc_error_set(err, PC_ERR_IO, errno, "the metrics' server does not start");
    pc_steal_fd(&fd); /* the daemon's now */
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(server->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    status = pc_timer_create(loop, on_timer, server, &server->timer, err);
    if (status == PC_OK)
        status = pc_loop_add(loop, info->epoll_fd, EPOLLIN, on_event, server, &server->watch, err);
    return status;
}

enum pc_status pc_metrics_start(struct pc_loop *loop, const char *address, const struct pc_metrics_ops *ops, void *arg,
                                struct pc_metrics_server **out, struct pc_error *err)
{
    struct pc_metrics_server *server = calloc(1, sizeof *server);
    if (server == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no host memory for the metrics' server");
    server->ops = *ops;
    server->arg = arg;
    enum pc_status status = start(server, loop, address, err);
    if (status != PC_OK)
        pc_metrics_stop(server);
    else
        *out = server;
    return status;
}

void pc_metrics_stop(struct pc_metrics_server *server)
{
    if (server == NULL)
        return;
    pc_watch_remove(server->watch);
    pc_timer_free(server->timer);
    if (server->daemon != NULL)
        MHD_stop_daemon(server->daemon);
    free(server);
}
