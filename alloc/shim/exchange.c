/* One request and its reply. */
#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <unistd.h>

#include "alloc/shim/state.h"
#include "alloc/shim/wire_client.h"

enum {
    SPIN_NS = 20 * 1000,          /* poolcapd answers within some tens of microseconds: sleeping costs as much again */
    REPLY_TIMEOUT_MS = 30 * 1000, /* poolcapd gives a driver call up 5 s after it began */
};

static struct pc_arena arena;
static uint32_t sequence;

int shim_fds_take(struct shim_fds *fds)
{
    if (fds->count == 0)
        return -1;
    int fd = fds->fd[0];
    fds->count--;
    for (unsigned i = 0; i < fds->count; i++)
        fds->fd[i] = fds->fd[i + 1];
    return fd;
}

void shim_fds_close(struct shim_fds *fds)
{
    while (fds->count > 0)
        close(fds->fd[--fds->count]);
}

static int poll_for(int fd, int timeout_ms)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    int rc;
    do
        rc = poll(&poll_fd, 1, timeout_ms);
    while (rc < 0 && errno == EINTR);
    return rc;
}

static enum pc_status await(int fd, struct pc_error *err)
{
    uint64_t until = shim_now() + SPIN_NS;
    do {
        if (poll_for(fd, 0) == 1)
            return PC_OK;
    } while (shim_now() < until);
    if (poll_for(fd, REPLY_TIMEOUT_MS) == 1)
        return PC_OK;
    return pc_error_set(err, PC_ERR_UNREACHABLE, 0, "poolcapd did not answer within %d s", REPLY_TIMEOUT_MS / 1000);
}

static enum pc_status receive(int fd, Poolcap__Reply **reply, struct shim_fds *fds, struct pc_error *err)
{
    ProtobufCMessage *message = NULL;
    enum pc_status status = await(fd, err);
    if (status == PC_OK)
        status = pc_wire_receive(fd, &poolcap__reply__descriptor, &arena, &message, fds->fd, &fds->count, err);
    if (status == PC_OK && message == NULL)
        status = pc_error_set(err, PC_ERR_UNREACHABLE, 0, "poolcapd ended the session");
    if (status == PC_OK)
        *reply = (Poolcap__Reply *)message;
    return status;
}

static enum pc_status check(const Poolcap__Request *request, const Poolcap__Reply *reply, bool *lost,
                            struct pc_error *err)
{
    if (reply->sequence == request->sequence && reply->status == PC_OK)
        return PC_OK;
    if (reply->sequence == request->sequence)
        return pc_error_set(err, (enum pc_status)reply->status, reply->code, "%s", reply->text);
    *lost = true;
    if (reply->sequence == 0)
        return pc_error_set(err, reply->status != PC_OK ? (enum pc_status)reply->status : PC_ERR_PROTOCOL, reply->code,
                            "poolcapd ended the session: %s", reply->text);
    return pc_error_set(err, PC_ERR_PROTOCOL, 0, "poolcapd answered request %u while %u was asked",
                        (unsigned)reply->sequence, (unsigned)request->sequence);
}

enum pc_status shim_exchange(int fd, Poolcap__Request *request, Poolcap__Reply **reply, struct shim_fds *fds,
                             bool *lost, struct pc_error *err)
{
    fds->count = 0;
    *lost = false;
    if (++sequence == 0)
        sequence = 1;
    request->sequence = sequence;
    enum pc_status status = pc_wire_send(fd, &request->base, NULL, 0, err);
    if (status == PC_OK)
        status = receive(fd, reply, fds, err);
    if (status != PC_OK) {
        *lost = true;
        return status;
    }
    status = check(request, *reply, lost, err);
    if (status != PC_OK)
        shim_fds_close(fds);
    return status;
}
