#include "alloc/broker/peer.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "alloc/base/cleanup.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* asm-generic/socket.h, since Linux 6.5 */
#endif

static int open_pidfd(pid_t pid)
{
    return (int)syscall(SYS_pidfd_open, pid, 0);
}

/*
 * What stands behind the program's name in /proc/PID/stat: " S 1 ...". The name is in brackets and may hold anything,
 * so it is looked for from its end. NULL: there is no such process.
 */
static const char *read_stat(pid_t pid, char *text, size_t size)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    pc_auto_file FILE *f = fopen(path, "re");
    if (f == NULL)
        return NULL;
    size_t length = fread(text, 1, size - 1, f);
    text[length] = '\0';
    const char *at = strrchr(text, ')');
    return at != NULL ? at + 1 : NULL;
}

/* Field 22; the name is the second. */
static bool read_starttime(pid_t pid, uint64_t *out)
{
    char text[1024];
    const char *at = read_stat(pid, text, sizeof text);
    for (int field = 3; at != NULL && field < 22; field++)
        at = strchr(at + 1, ' ');
    if (at == NULL)
        return false;
    *out = strtoull(at + 1, NULL, 10);
    return true;
}

static bool is_zombie(pid_t pid)
{
    char text[1024];
    const char *at = read_stat(pid, text, sizeof text);
    return at != NULL && (at[1] == 'Z' || at[1] == 'X');
}

static bool fd_dead(int pidfd)
{
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    return poll(&p, 1, 0) == 1 && (p.revents & POLLIN) != 0;
}

/*
 * SO_PEERPIDFD names the process that connected, even if its number has been given away since. Older kernels have only
 * the number: a pidfd is opened for it, and that the process began before the connection cannot be proved; what is
 * proved is that one and the same process has the number now and when its start time and cgroup are read.
 */
static enum pc_status peer_pidfd(int fd, pid_t pid, int *out, struct pc_error *err)
{
    int pidfd = -1;
    socklen_t size = sizeof pidfd;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &size) == 0) {
        *out = pidfd;
        return PC_OK;
    }
    if (errno != ENOPROTOOPT)
        return pc_error_set(err, PC_ERR_DENIED, errno, "the process that connected is gone");
    pidfd = open_pidfd(pid);
    if (pidfd < 0)
        return pc_error_set(err, PC_ERR_DENIED, errno, "the process %d that connected is gone", (int)pid);
    *out = pidfd;
    return PC_OK;
}

enum pc_status pc_peer_of_socket(int fd, struct pc_peer *out, struct pc_error *err)
{
    struct ucred cred;
    socklen_t size = sizeof cred;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &size) < 0)
        return pc_error_errno(err, errno, "SO_PEERCRED");
    if (cred.pid == 0)
        return pc_error_set(err, PC_ERR_DENIED, 0,
                            "the peer is in a pid namespace that poolcapd cannot see; run poolcapd with hostPID");
    pc_auto_fd int pidfd = -1;
    enum pc_status status = peer_pidfd(fd, cred.pid, &pidfd, err);
    if (status != PC_OK)
        return status;
    struct pc_peer peer = {.pid = cred.pid, .pidfd = pidfd};
    if (!read_starttime(cred.pid, &peer.starttime) || fd_dead(pidfd))
        return pc_error_set(err, PC_ERR_DENIED, 0, "the process %d that connected is gone", (int)cred.pid);
    pc_steal_fd(&pidfd);
    *out = peer;
    return PC_OK;
}

void pc_peer_of_pid(pid_t pid, uint64_t starttime, struct pc_peer *out)
{
    uint64_t now;
    *out = (struct pc_peer){.pid = pid, .starttime = starttime, .pidfd = open_pidfd(pid)};
    if (out->pidfd < 0)
        return;
    if (!read_starttime(pid, &now) || now != starttime || fd_dead(out->pidfd))
        pc_peer_close(out);
}

bool pc_peer_dead(const struct pc_peer *peer)
{
    return peer->pidfd < 0 || fd_dead(peer->pidfd);
}

void pc_peer_close(struct pc_peer *peer)
{
    if (peer->pidfd >= 0)
        close(peer->pidfd);
    peer->pidfd = -1;
}

/* ---- the pod ---- */

/* pod<UID>, or ...-pod<UID>.slice with underscores for dashes. */
static bool component_pod(const char *text, size_t length, char out[PC_POD_UID_MAX])
{
    static const char slice[] = ".slice";
    size_t tail = sizeof slice - 1;
    if (length > 3 && strncmp(text, "pod", 3) == 0) {
        text += 3;
        length -= 3;
    } else if (length > tail && strncmp(text + length - tail, slice, tail) == 0) {
        const char *mark = memmem(text, length, "-pod", 4);
        if (mark == NULL)
            return false;
        length -= (size_t)(mark + 4 - text);
        text = mark + 4;
    } else {
        return false;
    }
    if (length > tail && strncmp(text + length - tail, slice, tail) == 0)
        length -= tail;
    if (length == 0 || length >= PC_POD_UID_MAX)
        return false;
    for (size_t i = 0; i < length; i++)
        out[i] = text[i] == '_' ? '-' : text[i];
    out[length] = '\0';
    return true;
}

bool pc_peer_pod_of_line(const char *line, char out[PC_POD_UID_MAX])
{
    const char *at = strchr(line, ':');
    at = at != NULL ? strchr(at + 1, ':') : NULL;
    if (at == NULL)
        return false;
    for (at++; *at != '\0' && *at != '\n';) {
        size_t length = strcspn(at, "/\n");
        if (component_pod(at, length, out))
            return true;
        at += length;
        at += *at == '/';
    }
    return false;
}

static bool same_uid(const char *a, const char *b)
{
    for (; *a != '\0' || *b != '\0'; a++, b++)
        if ((*a == '_' ? '-' : *a) != (*b == '_' ? '-' : *b))
            return false;
    return true;
}

enum pc_status pc_peer_check_pod(const struct pc_peer *peer, const char *pod_uid, struct pc_error *err)
{
    char path[64], line[4096], found[PC_POD_UID_MAX];
    bool any = false;
    snprintf(path, sizeof path, "/proc/%d/cgroup", (int)peer->pid);
    pc_auto_file FILE *f = fopen(path, "re");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        if (!pc_peer_pod_of_line(line, found))
            continue;
        any = true;
        if (!same_uid(found, pod_uid))
            return pc_error_set(err, PC_ERR_DENIED, 0, "process %d runs in pod %.64s; this grant is pod %.64s's",
                                (int)peer->pid, found, pod_uid);
    }
    /* Read of the same process that connected, only if that still lives now. */
    if (f == NULL || pc_peer_dead(peer))
        return pc_error_set(err, PC_ERR_DENIED, 0, "the process %d that connected is gone", (int)peer->pid);
    if (!any)
        return pc_error_set(err, PC_ERR_DENIED, 0, "process %d runs in no pod; this grant is pod %.64s's",
                            (int)peer->pid, pod_uid);
    return PC_OK;
}

static bool runs_in(pid_t pid, const char *pod_uid)
{
    char path[64], line[4096], found[PC_POD_UID_MAX];
    snprintf(path, sizeof path, "/proc/%d/cgroup", (int)pid);
    pc_auto_file FILE *f = fopen(path, "re");
    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        if (pc_peer_pod_of_line(line, found) && same_uid(found, pod_uid))
            return true;
    return false;
}

enum pc_status pc_peer_find_in_pod(const char *pod_uid, pid_t *out, struct pc_error *err)
{
    const struct dirent *entry;
    pid_t found = 0;
    DIR *proc = opendir("/proc");
    if (proc == NULL)
        return pc_error_errno(err, errno, "cannot list /proc");
    errno = 0;
    while (found == 0 && (entry = readdir(proc)) != NULL) {
        char *end;
        long pid = strtol(entry->d_name, &end, 10);
        if (pid > 0 && *end == '\0' && runs_in((pid_t)pid, pod_uid) && !is_zombie((pid_t)pid))
            found = (pid_t)pid;
        errno = 0; /* of processes that ended meanwhile */
    }
    int broken = errno;
    closedir(proc);
    if (found == 0 && broken != 0)
        return pc_error_errno(err, broken, "cannot list /proc");
    if (found == 0)
        return pc_error_set(err, PC_ERR_NOT_FOUND, 0, "pod %.64s has no process", pod_uid);
    *out = found;
    return PC_OK;
}
