/* Helpers shared by the files of alloc/pool; nobody else includes this. */
#ifndef PC_POOL_CHECK_H
#define PC_POOL_CHECK_H

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/driver/driver.h"

/*
 * As pc_cuda_error, but with one status for every failure: for calls whose "out of memory" is not the tenant's
 * (a context, a stream, a free), so that nobody takes it for a full cap. err->code still tells.
 */
static inline enum pc_status pc_cuda_error_as(const struct pc_cuda *cu, pc_cu_result code, enum pc_status status,
                                              const char *what, struct pc_error *err)
{
    if (pc_cuda_error(cu, code, status, what, err) == PC_OK)
        return PC_OK;
    if (err != NULL)
        err->status = status;
    return status;
}

/* Takes an fd that the driver made and sets FD_CLOEXEC, which the driver does not promise. Closes it on failure. */
static inline enum pc_status pc_driver_fd(int fd, int *out, struct pc_error *err)
{
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
        int errnum = errno;
        if (fd >= 0)
            close(fd);
        return pc_error_errno(err, errnum, "cannot set close-on-exec on the driver's fd %d", fd);
    }
    *out = fd;
    return PC_OK;
}

#endif
