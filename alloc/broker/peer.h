/*
 * Who is at the other end of a socket, by the kernel's word: the process that called connect(), held by a pidfd so that
 * its number cannot come to mean another process, and the pod whose cgroup it runs in.
 */
#ifndef PC_BROKER_PEER_H
#define PC_BROKER_PEER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "alloc/base/error.h"

struct pc_peer {
    pid_t pid;          /* in our pid namespace, which has to be the host's: NVML's list has host pids */
    uint64_t starttime; /* /proc/PID/stat, clock ticks since boot; with pid it names a process for good */
    int pidfd;          /* readable once the process is dead; -1: dead already */
};

/* Errors: PC_ERR_DENIED (the peer is gone, or in another pid namespace), PC_ERR_IO. */
enum pc_status pc_peer_of_socket(int fd, struct pc_peer *out, struct pc_error *err);

/* A process known by its number and start time; pidfd is -1 where it does not live any more. */
void pc_peer_of_pid(pid_t pid, uint64_t starttime, struct pc_peer *out);

bool pc_peer_dead(const struct pc_peer *peer);
static inline bool pc_peer_same(const struct pc_peer *a, const struct pc_peer *b)
{
    return a->pid == b->pid && a->starttime == b->starttime;
}
void pc_peer_close(struct pc_peer *peer);

/* Errors: PC_ERR_DENIED where the peer's cgroup is not one of this pod's; the text says whose it is. */
enum pc_status pc_peer_check_pod(const struct pc_peer *peer, const char *pod_uid, struct pc_error *err);

/*
 * The first living process that is in the pod's cgroup; zombies do not count. One look through /proc: a process that is
 * forked meanwhile is only seen by its parent, which is looked at before it.
 * Errors: PC_ERR_NOT_FOUND (there is none), PC_ERR_IO.
 */
enum pc_status pc_peer_find_in_pod(const char *pod_uid, pid_t *out, struct pc_error *err);

enum { PC_POD_UID_MAX = 128 };
/*
 * Finds the pod in one line of /proc/PID/cgroup ("4:memory:/kubepods/burstable/pod<UID>/..."): the first component that
 * is pod<UID>, or ends in -pod<UID with underscores>.slice as systemd's driver has it. False where there is none.
 */
bool pc_peer_pod_of_line(const char *line, char out[PC_POD_UID_MAX]);

#endif
