/*
 * The third line: what NVML shows for a process is compared with what is booked for it. More is charged first (as its
 * context) and reported second; bytes that it said it gave back (pending) end when NVML shows it.
 */
#ifndef PC_BROKER_WATCH_H
#define PC_BROKER_WATCH_H

#include "alloc/broker/session.h"

/* Who hears of memory that a process took beside poolcap. bytes: beyond what it should have, all in all. */
struct pc_outside_report {
    void (*report)(const struct pc_seat *seat, uint64_t bytes, void *arg);
    void *arg;
};

/* Looks at a snapshot for all processes. Where report is NULL, it is a line in the log. */
void pc_watch_look(struct pc_broker *b, const struct pc_snapshot *snapshot, const struct pc_outside_report *report);

#endif
