/* Inside of the event loop, shared by loop.c (watches, signals, run), loop_timer.c and loop_post.c. */
#ifndef PC_BASE_LOOP_INTERNAL_H
#define PC_BASE_LOOP_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/base/loop.h"

struct pc_watch {
    struct pc_loop *loop;
    struct pc_watch *next;  /* in loop->watches, or in loop->dead when removed */
    struct pc_watch **link; /* what points at this one in loop->watches */
    int fd;
    uint32_t events; /* 0: paused, and not in the epoll set */
    bool removed;
    pc_watch_fn callback;
    void *arg;
};

struct pc_signal {
    struct pc_signal *next;
    int fd;
    pc_signal_fn callback;
    void *arg;
};

struct post {
    pc_post_fn fn;
    void *arg;
};

struct post_queue {
    struct post *items;
    size_t count, room;
};

struct pc_posts {
    pthread_mutex_t lock;
    struct post_queue waiting; /* under lock */
    struct post_queue running; /* the loop thread's: swapped with waiting, so nothing runs under the lock */
    size_t next;               /* of running */
    int fd;                    /* eventfd, written when waiting becomes non-empty */
};

struct pc_timer {
    struct pc_loop *loop;
    struct pc_timer *next;  /* in loop->timers.all */
    struct pc_timer **link; /* what points at this one there */
    pc_timer_fn callback;
    void *arg;
    uint64_t deadline; /* ns */
    uint64_t period;   /* ns, 0: once */
    uint64_t order;    /* of starts: breaks ties */
    size_t at;         /* place in the heap, TIMER_IDLE when not running */
};

struct pc_timers {
    struct pc_timer **heap; /* by (deadline, order), smallest first; room for every timer there is */
    size_t running, made, room;
    uint64_t starts;
    struct pc_timer *all;
};

struct pc_loop {
    int epoll;
    bool stop;
    struct pc_watch *watches;
    struct pc_watch *dead; /* removed, freed when no batch can name them any more */
    struct pc_signal *signals;
    struct pc_posts posts;
    struct pc_timers timers;
};

/* loop_post.c */
enum pc_status pc_posts_init(struct pc_loop *loop, struct pc_error *err);
void pc_posts_clear(struct pc_loop *loop);
void pc_posts_run(struct pc_loop *loop);
bool pc_posts_left(const struct pc_loop *loop); /* a stopped run left some that no eventfd will announce again */

/* loop_timer.c */
void pc_timers_clear(struct pc_loop *loop);
void pc_timers_run(struct pc_loop *loop);
int pc_timers_wait_ms(const struct pc_loop *loop); /* for epoll_wait: -1 without a timer */

#endif
