/* Actors: processes that do what a check asks, one question at a time over a socket. */
#include "tests/conformance/conformance.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

struct pc_cuda cu;
struct pc_nvml nvml;
int actor_gpu;
pc_cu_stream actor_stream;

struct packet { /* one of each direction; forked from one image, so a function's address means the same in both */
    op *fn;
    struct question q;
    struct answer a;
};

static bool send_packet(int sock, const struct packet *packet, int fd)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct iovec part = {(void *)(uintptr_t)packet, sizeof *packet};
    struct msghdr head = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd >= 0) {
        head.msg_control = control.bytes;
        head.msg_controllen = sizeof control.bytes;
        struct cmsghdr *c = CMSG_FIRSTHDR(&head);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    return sendmsg(sock, &head, MSG_NOSIGNAL) == (ssize_t)sizeof *packet;
}

static bool receive_packet(int sock, struct packet *packet, int *fd)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec part = {packet, sizeof *packet};
    struct msghdr head = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    *fd = -1;
    ssize_t n;
    do {
        n = recvmsg(sock, &head, MSG_CMSG_CLOEXEC);
    } while (n < 0 && errno == EINTR);
    if (n != (ssize_t)sizeof *packet)
        return false;
    struct cmsghdr *c = CMSG_FIRSTHDR(&head);
    if (c != NULL && c->cmsg_type == SCM_RIGHTS)
        memcpy(fd, CMSG_DATA(c), sizeof *fd);
    return true;
}

pc_cu_result cuda_ready(void)
{
    static pc_cu_context ctx;
    if (ctx != NULL)
        return PC_CU_SUCCESS;
    pc_cu_result code = cu.cuInit(0);
    if (code == PC_CU_SUCCESS)
        code = cu.cuDevicePrimaryCtxRetain(&ctx, actor_gpu);
    if (code == PC_CU_SUCCESS)
        code = cu.cuCtxSetCurrent(ctx);
    if (code == PC_CU_SUCCESS)
        code = cu.cuStreamCreate(&actor_stream, PC_CU_STREAM_NON_BLOCKING);
    return code;
}

static void act(int sock)
{
    struct packet packet;
    int fd;
    while (receive_packet(sock, &packet, &fd)) {
        packet.q.fd = fd;
        packet.a = (struct answer){.fd = -1};
        packet.fn(&packet.q, &packet.a);
        if (fd >= 0)
            close(fd);
        if (!send_packet(sock, &packet, packet.a.fd))
            break;
        if (packet.a.fd >= 0)
            close(packet.a.fd);
    }
    _exit(0);
}

struct actor actor_start(int gpu)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        fail("socketpair: %s", strerror(errno));
    struct actor actor = {.sock = ends[0], .gpu = gpu, .pid = fork()};
    if (actor.pid < 0)
        fail("fork: %s", strerror(errno));
    if (actor.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(ends[0]);
        actor_gpu = gpu;
        act(ends[1]);
    }
    close(ends[1]);
    return actor;
}

static struct answer gone(struct actor *actor, int status)
{
    close(actor->sock);
    actor->sock = -1;
    actor->pid = 0;
    return (struct answer){.died = true, .status = status, .fd = -1};
}

struct answer actor_ask(struct actor *actor, op *fn, const struct question *q, int timeout)
{
    struct packet packet = {.fn = fn, .q = *q};
    int status = -1, fd;
    if (actor->pid == 0)
        fail("asked a dead actor");
    if (send_packet(actor->sock, &packet, q->fd)) {
        struct pollfd ready = {.fd = actor->sock, .events = POLLIN};
        if (poll(&ready, 1, timeout * 1000) == 0) {
            kill(actor->pid, SIGKILL);
            waitpid(actor->pid, &status, 0);
            return gone(actor, -1);
        }
        if (receive_packet(actor->sock, &packet, &fd)) {
            packet.a.fd = fd;
            return packet.a;
        }
    }
    waitpid(actor->pid, &status, 0);
    return gone(actor, status);
}

void actor_tell(struct actor *actor, op *fn, uint64_t arg)
{
    struct packet packet = {.fn = fn, .q = {.arg = {arg}, .fd = -1}};
    if (!send_packet(actor->sock, &packet, -1))
        fail("actor %d does not listen", (int)actor->pid);
}

void actor_kill(struct actor *actor)
{
    int status;
    if (actor->pid == 0)
        return;
    kill(actor->pid, SIGKILL);
    waitpid(actor->pid, &status, 0);
    gone(actor, status);
}

void actor_end(struct actor *actor)
{
    int status;
    if (actor->pid == 0)
        return;
    shutdown(actor->sock, SHUT_RDWR);
    waitpid(actor->pid, &status, 0);
    gone(actor, status);
}

struct answer must(struct answer a, const char *what, const char *file, int line)
{
    const char *base = strrchr(file, '/');
    const char *name = NULL;
    base = base != NULL ? base + 1 : file;
    if (a.died && a.status == -1)
        fail("%s:%d: %s: the process hung", base, line, what);
    if (a.died)
        fail("%s:%d: %s: the process died, status %#x", base, line, what, (unsigned int)a.status);
    if (a.code != PC_CU_SUCCESS) {
        cu.cuGetErrorName(a.code, &name);
        fail("%s:%d: %s: %s (%u)", base, line, what, name != NULL ? name : "?", a.code);
    }
    return a;
}

/* --- scenes --- */

uint64_t import_pool_into(struct actor *daemon, uint64_t pool, struct actor *tenant)
{
    int fd = NEED(daemon, pool_export, pool).fd;
    uint64_t imported = NEED_FD(tenant, pool_import, fd).value[0];
    close(fd);
    NEED(tenant, pool_access, imported);
    return imported;
}

struct scene scene_open(uint64_t max)
{
    struct scene s = {.daemon = actor_start(0), .tenant = actor_start(0), .watcher = actor_start(0)};
    need_free(&s.watcher, max + 2 * PC_GIB);
    NEED(&s.daemon, begin);
    NEED(&s.tenant, begin);
    s.pool = NEED(&s.daemon, pool_create, max, true, KEEP_ALL).value[0];
    s.imported = import_pool_into(&s.daemon, s.pool, &s.tenant);
    return s;
}

struct answer scene_export(struct scene *s, uint64_t bytes)
{
    uint64_t ptr = NEED(&s->daemon, pool_alloc, s->pool, bytes).value[0];
    struct answer a = NEED(&s->daemon, export_pointer, ptr);
    a.value[0] = ptr;
    return a;
}

uint64_t import_into(struct actor *tenant, uint64_t pool, struct pc_cu_ptr_export data)
{
    return NEED_DATA(tenant, import_pointer, data, pool).value[0];
}

uint64_t card_used(struct actor *watcher)
{
    return NEED(watcher, card_memory).value[2];
}

void expect_card(struct actor *watcher, uint64_t expected, const char *when)
{
    uint64_t used = 0;
    for (int i = 0; i < 200; i++) {
        used = card_used(watcher);
        if (used + SLACK >= expected && used <= expected + SLACK)
            return;
        pause_ms(10);
    }
    fail("%s: the card has %llu MiB in use, expected %llu MiB", when, (unsigned long long)(used / PC_MIB),
         (unsigned long long)(expected / PC_MIB));
}

void need_free(struct actor *watcher, uint64_t bytes)
{
    uint64_t left = NEED(watcher, card_memory).value[3];
    if (left < bytes)
        skip("the card has %llu MiB free, this takes %llu MiB", (unsigned long long)(left / PC_MIB),
             (unsigned long long)(bytes / PC_MIB));
}

uint64_t reserved_bytes(struct actor *daemon, uint64_t pool)
{
    return NEED(daemon, pool_get, pool, PC_CU_MEMPOOL_RESERVED_CURRENT).value[0];
}

uint64_t used_bytes(struct actor *daemon, uint64_t pool)
{
    return NEED(daemon, pool_get, pool, PC_CU_MEMPOOL_USED_CURRENT).value[0];
}
