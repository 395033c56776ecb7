/*
 * The event loop: file descriptors, timers, signals, and work handed over by other threads. All its state is in one
 * struct pc_loop that is passed down; there is no global.
 *
 * One epoll_wait an iteration, at most 64 events a batch. In an iteration events come first, then posted functions,
 * then timers. Level-triggered: what a callback leaves unread comes again.
 *
 * Thread rules: one thread owns the loop, runs it, and makes every call here; other threads may call pc_loop_post and
 * pc_loop_now_ns and nothing else. All callbacks run on the owning thread. Every call may be made from inside any
 * callback, except pc_loop_run and pc_loop_free.
 */
#ifndef PC_BASE_LOOP_H
#define PC_BASE_LOOP_H

#include <stdint.h>
#include <sys/epoll.h>

#include "alloc/base/error.h"

struct pc_loop;
struct pc_watch;
struct pc_timer;

/* events are EPOLLIN, EPOLLOUT, EPOLLRDHUP, ... as they happened; EPOLLERR and EPOLLHUP may always be among them. */
typedef void (*pc_watch_fn)(struct pc_loop *loop, int fd, uint32_t events, void *arg);
typedef void (*pc_timer_fn)(struct pc_loop *loop, void *arg);
typedef void (*pc_post_fn)(struct pc_loop *loop, void *arg);
typedef void (*pc_signal_fn)(struct pc_loop *loop, int signal_number, void *arg);

/* Errors: PC_ERR_IO (no descriptor left), PC_ERR_HOST_MEMORY. */
enum pc_status pc_loop_create(struct pc_loop **out, struct pc_error *err);

/*
 * Frees the loop with the watches and timers still in it; their descriptors stay the caller's and stay open. Functions
 * posted and not yet run are dropped, so threads that post must have ended. NULL is allowed.
 */
void pc_loop_free(struct pc_loop *loop);

/* Runs until pc_loop_stop. May be called again after it returned. Errors: PC_ERR_IO when epoll itself fails. */
enum pc_status pc_loop_run(struct pc_loop *loop, struct pc_error *err);

/*
 * Makes pc_loop_run return after the callback that is running; a call before pc_loop_run makes that return at once.
 * What was ready and has not been called stays so for the next run. Another thread posts a function that stops.
 */
void pc_loop_stop(struct pc_loop *loop);

/* CLOCK_MONOTONIC in ns, read anew on every call. */
uint64_t pc_loop_now_ns(void);

/*
 * Calls callback while one of events (EPOLLIN, EPOLLOUT, EPOLLRDHUP) holds on fd, which must be non-blocking if the
 * callback reads it: an event is a hint, and may be stale by the time it is delivered. The descriptor stays the
 * caller's, who removes the watch BEFORE closing it. events = 0 makes a paused watch. watch may be NULL for one that
 * lives as long as the loop.
 * Errors: PC_ERR_IO (code EPERM: a regular file cannot be watched; EEXIST: watched already), PC_ERR_HOST_MEMORY.
 */
enum pc_status pc_loop_add(struct pc_loop *loop, int fd, uint32_t events, pc_watch_fn callback, void *arg,
                           struct pc_watch **watch, struct pc_error *err);

/*
 * Changes what is waited for. 0 pauses: not one call comes then, not even for EPOLLHUP, which epoll would else repeat
 * at full speed for a peer that went away while its request is being worked on; it comes when the watch is resumed.
 * Errors: PC_ERR_IO; the watch is then as it was.
 */
enum pc_status pc_watch_set_events(struct pc_watch *watch, uint32_t events, struct pc_error *err);

/*
 * Removes and frees a watch: its callback is never called again, also when an event of it is waiting in the batch that
 * is being delivered. A callback may remove its own watch and any other. NULL is allowed.
 */
void pc_watch_remove(struct pc_watch *watch);

/* Makes a timer that is not running. Errors: PC_ERR_HOST_MEMORY. */
enum pc_status pc_timer_create(struct pc_loop *loop, pc_timer_fn callback, void *arg, struct pc_timer **out,
                               struct pc_error *err);

/*
 * Calls back once after delay_ms, then every period_ms (0: once only). Starting a running timer sets it anew. Never
 * early; timers due together run in the order of their deadlines, equal ones in the order of their starts. Ticks that
 * a busy loop missed are left out, not made up for. Cannot fail. A timer started by a callback with delay 0 runs in the
 * next iteration.
 */
void pc_timer_start(struct pc_timer *timer, uint64_t delay_ms, uint64_t period_ms);
void pc_timer_stop(struct pc_timer *timer); /* no call comes after it; it may be started again */
void pc_timer_free(struct pc_timer *timer); /* stops it too; also from its own callback; NULL is allowed */

/*
 * Any thread: has fn(loop, arg) called on the loop's thread. Posts run in the order in which they were made; what a
 * posted function posts runs in the next iteration. What the poster wrote before is visible to fn. Never blocks for
 * longer than the queue's lock.
 * Errors: PC_ERR_HOST_MEMORY, only when the queue (which starts with room for 256 and never shrinks) cannot grow.
 */
enum pc_status pc_loop_post(struct pc_loop *loop, pc_post_fn fn, void *arg, struct pc_error *err);

/*
 * Blocks SIGTERM and SIGINT in this thread and those that it starts, and ignores SIGPIPE. A daemon's main calls it
 * before any thread starts, also a library's: only the loop may take its end.
 */
void pc_loop_block_signals(void);

/*
 * Calls back on a signal, by a signalfd that the loop owns. The caller has blocked the signal in every thread before
 * (pc_loop_block_signals, or pthread_sigmask); an unblocked one would take its default action instead. Signals of
 * the same number that come close together are one call, as always. Errors: PC_ERR_IO, PC_ERR_HOST_MEMORY.
 */
enum pc_status pc_loop_signal(struct pc_loop *loop, int signal_number, pc_signal_fn callback, void *arg,
                              struct pc_error *err);

#endif
