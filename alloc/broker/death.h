/*
 * The witness of a process's death. Its memory may be touched only when its pidfd is readable AND its connection is at
 * its end AND no snapshot of NVML's list that was begun after that names it: before, its kernels may still write
 * (traps 10, 13). Where NVML has no list, half a second more stands for that.
 */
#ifndef PC_BROKER_DEATH_H
#define PC_BROKER_DEATH_H

#include "alloc/broker/session.h"

/* Takes note of connections that ended: frees sessions that hold nothing, watches the processes of the others. */
void pc_death_sweep(struct pc_broker *b);

/* Frees the sessions of processes that a snapshot shows to be gone. */
void pc_death_look(struct pc_broker *b, const struct pc_snapshot *snapshot);

#endif
