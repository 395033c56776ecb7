#include "plugin/kubelet/lock_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "alloc/base/cleanup.h"

/* What the holder wrote; it may be between its lock and its write. */
static void read_holder(int fd, char *out, size_t size)
{
    ssize_t length = pread(fd, out, size - 1, 0);
    out[length > 0 ? length : 0] = '\0';
    out[strspn(out, "0123456789")] = '\0';
    if (out[0] == '\0')
        snprintf(out, size, "not known yet");
}

static enum pc_status write_holder(int fd, const char *path, struct pc_error *err)
{
    char text[32];
    int length = snprintf(text, sizeof text, "%ld\n", (long)getpid());
    if (ftruncate(fd, 0) < 0 || pwrite(fd, text, (size_t)length, 0) != length)
        return pc_error_errno(err, errno, "cannot write the lock file %.300s", path);
    return PC_OK;
}

enum pc_status pc_lock_file_take(const char *path, int *out, struct pc_error *err)
{
    char holder[32];
    pc_auto_fd int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0)
        return pc_error_errno(err, errno, "cannot open the lock file %.300s", path);
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK)
            return pc_error_errno(err, errno, "cannot lock %.300s", path);
        read_holder(fd, holder, sizeof holder);
        return pc_error_set(
            err, PC_ERR_BUSY, 0,
            "another instance runs here, pid %s, and has locked %.300s; stop it first, or give this one "
            "a directory of its own",
            holder, path);
    }
    enum pc_status status = write_holder(fd, path, err);
    if (status == PC_OK)
        *out = pc_steal_fd(&fd);
    return status;
}

bool pc_lock_file_holds(const char *path, int fd)
{
    struct stat ours, there;
    return fd >= 0 && fstat(fd, &ours) == 0 && stat(path, &there) == 0 && ours.st_dev == there.st_dev &&
           ours.st_ino == there.st_ino;
}
