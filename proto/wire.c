#include "proto/wire.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include "alloc/base/cleanup.h"

static void *arena_alloc(void *data, size_t size)
{
    struct pc_arena *arena = data;
    size_t start = (arena->used + 15) & ~(size_t)15;
    if (size > sizeof arena->memory || start > sizeof arena->memory - size)
        return NULL;
    arena->used = start + size;
    return arena->memory + start;
}

static void arena_free(void *data, void *pointer)
{
    (void)data;
    (void)pointer; /* the arena goes as a whole */
}

static enum pc_status send_error(int errnum, struct pc_error *err)
{
    switch (errnum) {
    case EAGAIN:
        return pc_error_set(err, PC_ERR_BUSY, errnum, "the peer does not read: its socket buffer is full");
    case EPIPE:
    case ECONNRESET:
    case ENOTCONN:
        return pc_error_set(err, PC_ERR_UNREACHABLE, errnum, "the peer is gone");
    default:
        return pc_error_errno(err, errnum, "sendmsg");
    }
}

enum pc_status pc_wire_send(int fd, const ProtobufCMessage *message, const int *fds, unsigned nfds,
                            struct pc_error *err)
{
    size_t size = protobuf_c_message_get_packed_size(message);
    if (size > PC_WIRE_PACKET_MAX)
        return pc_error_set(err, PC_ERR_INVALID, 0, "a message of %zu bytes is over the limit of %d", size,
                            PC_WIRE_PACKET_MAX);
    /* Most messages are short; only lists need the heap. */
    uint8_t small[1024];
    pc_auto_free uint8_t *big = NULL;
    uint8_t *packet = small;
    if (size > sizeof small) {
        big = malloc(size);
        if (big == NULL)
            return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no memory for a message of %zu bytes", size);
        packet = big;
    }
    protobuf_c_message_pack(message, packet);

    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int) * PC_WIRE_FDS_MAX)];
    } control = {.space = {0}};
    struct iovec iov = {.iov_base = packet, .iov_len = size};
    struct msghdr header = {.msg_iov = &iov, .msg_iovlen = 1};
    if (nfds > 0) {
        header.msg_control = control.space;
        header.msg_controllen = CMSG_SPACE(sizeof(int) * nfds);
        struct cmsghdr *cmsg = CMSG_FIRSTHDR(&header);
        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = CMSG_LEN(sizeof(int) * nfds);
        memcpy(CMSG_DATA(cmsg), fds, sizeof(int) * nfds);
    }
    ssize_t sent;
    do
        sent = sendmsg(fd, &header, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent < 0 ? send_error(errno, err) : PC_OK;
}

/* Collects received descriptors; closes all of them and returns false where there are more than fit. */
static bool take_fds(struct msghdr *header, int *fds, unsigned *nfds)
{
    *nfds = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c != NULL; c = CMSG_NXTHDR(header, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        unsigned count = (unsigned)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        for (unsigned i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
            if (*nfds < PC_WIRE_FDS_MAX)
                fds[(*nfds)++] = fd;
            else
                close(fd);
        }
    }
    return (header->msg_flags & MSG_CTRUNC) == 0;
}

static void close_fds(int *fds, unsigned *nfds)
{
    for (unsigned i = 0; fds != NULL && i < *nfds; i++)
        close(fds[i]);
    if (nfds != NULL)
        *nfds = 0;
}

enum pc_status pc_wire_receive(int fd, const ProtobufCMessageDescriptor *type, struct pc_arena *arena,
                               ProtobufCMessage **out, int *fds, unsigned *nfds, struct pc_error *err)
{
    /* Read on the stack: what is kept of the packet is copied into the arena by the unpacking. */
    uint8_t packet[PC_WIRE_PACKET_MAX];
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int) * PC_WIRE_FDS_MAX)];
    } control;
    struct iovec iov = {.iov_base = packet, .iov_len = sizeof packet};
    struct msghdr header = {.msg_iov = &iov, .msg_iovlen = 1};
    if (fds != NULL) {
        header.msg_control = control.space;
        header.msg_controllen = sizeof control.space;
    }
    if (nfds != NULL)
        *nfds = 0;
    ssize_t size;
    do
        size = recvmsg(fd, &header, MSG_CMSG_CLOEXEC);
    while (size < 0 && errno == EINTR);
    if (size < 0) {
        if (errno == EAGAIN)
            return pc_error_set(err, PC_ERR_BUSY, errno, "nothing to read");
        if (errno == ECONNRESET)
            return pc_error_set(err, PC_ERR_UNREACHABLE, errno, "the peer closed the connection");
        return pc_error_errno(err, errno, "recvmsg");
    }
    if (fds != NULL && !take_fds(&header, fds, nfds)) {
        close_fds(fds, nfds);
        return pc_error_set(err, PC_ERR_PROTOCOL, 0, "a packet with more than %d descriptors", PC_WIRE_FDS_MAX);
    }
    if ((header.msg_flags & MSG_TRUNC) != 0) {
        close_fds(fds, nfds);
        return pc_error_set(err, PC_ERR_PROTOCOL, 0, "a packet over %d bytes", PC_WIRE_PACKET_MAX);
    }
    if (size == 0) { /* end-of-file; an empty packet, which no peer of ours sends, is taken for one */
        close_fds(fds, nfds);
        *out = NULL;
        return PC_OK;
    }
    arena->used = 0;
    ProtobufCAllocator allocator = {.alloc = arena_alloc, .free = arena_free, .allocator_data = arena};
    ProtobufCMessage *message = protobuf_c_message_unpack(type, &allocator, (size_t)size, packet);
    if (message == NULL) {
        close_fds(fds, nfds);
        return pc_error_set(err, PC_ERR_PROTOCOL, 0, "a packet of %zd bytes that is no valid %s", size, type->name);
    }
    *out = message;
    return PC_OK;
}

enum pc_status pc_wire_address(const char *path, struct sockaddr_un *out, struct pc_error *err)
{
    size_t length = strlen(path);
    size_t most = sizeof out->sun_path - 1;
    if (length > most)
        return pc_error_set(err, PC_ERR_INVALID, 0,
                            "the socket path %.200s has %zu bytes, %zu more than the %zu that a unix socket can have; "
                            "use a shorter run directory or grant name",
                            path, length, length - most, most);
    memset(out, 0, sizeof *out);
    out->sun_family = AF_UNIX;
    memcpy(out->sun_path, path, length + 1);
    return PC_OK;
}

enum pc_status pc_wire_connect(const char *path, int *out, struct pc_error *err)
{
    struct sockaddr_un address;
    enum pc_status status = pc_wire_address(path, &address, err);
    if (status != PC_OK)
        return status;
    pc_auto_fd int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return pc_error_errno(err, errno, "socket");
    int rc;
    do
        rc = connect(fd, (const struct sockaddr *)&address, sizeof address);
    while (rc < 0 && errno == EINTR);
    if (rc < 0) {
        int errnum = errno;
        return pc_error_set(err, PC_ERR_UNREACHABLE, errnum, "cannot connect to %.300s: %s", path, strerror(errnum));
    }
    *out = pc_steal_fd(&fd);
    return PC_OK;
}

/* Removes a socket that nobody serves. */
static enum pc_status clear_path(const char *path, const struct sockaddr_un *address, struct pc_error *err)
{
    struct stat st;
    if (lstat(path, &st) < 0)
        return errno == ENOENT ? PC_OK : pc_error_errno(err, errno, "%.300s", path);
    if (!S_ISSOCK(st.st_mode))
        return pc_error_set(err, PC_ERR_EXISTS, 0, "%.300s exists and is no socket; remove it", path);
    pc_auto_fd int probe = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (probe < 0)
        return pc_error_errno(err, errno, "socket");
    if (connect(probe, (const struct sockaddr *)address, sizeof *address) == 0 || errno == EAGAIN)
        return pc_error_set(err, PC_ERR_EXISTS, 0, "another poolcapd serves %.300s; stop it first", path);
    if (unlink(path) < 0 && errno != ENOENT)
        return pc_error_errno(err, errno, "cannot remove the old socket %.300s", path);
    return PC_OK;
}

enum pc_status pc_wire_listen(const char *path, unsigned mode, int *out, struct pc_error *err)
{
    struct sockaddr_un address;
    enum pc_status status = pc_wire_address(path, &address, err);
    if (status == PC_OK)
        status = clear_path(path, &address, err);
    if (status != PC_OK)
        return status;
    pc_auto_fd int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return pc_error_errno(err, errno, "socket");
    if (bind(fd, (const struct sockaddr *)&address, sizeof address) < 0)
        return pc_error_errno(err, errno, "cannot make the socket %.300s", path);
    if (chmod(path, (mode_t)mode) < 0 || listen(fd, 128) < 0) {
        int errnum = errno;
        unlink(path);
        return pc_error_errno(err, errnum, "cannot listen on %.300s", path);
    }
    *out = pc_steal_fd(&fd);
    return PC_OK;
}
