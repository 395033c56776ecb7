#include "alloc/base/loop.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "alloc/base/cleanup.h"
#include "alloc/base/loop_internal.h"

enum { BATCH = 64 };

uint64_t pc_loop_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

enum pc_status pc_loop_create(struct pc_loop **out, struct pc_error *err)
{
    struct pc_loop *loop = calloc(1, sizeof *loop);
    if (loop == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no memory for an event loop");
    loop->posts.fd = -1;
    loop->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (loop->epoll < 0) {
        enum pc_status status = pc_error_errno(err, errno, "epoll_create1");
        free(loop);
        return status;
    }
    enum pc_status status = pc_posts_init(loop, err);
    if (status != PC_OK) {
        pc_loop_free(loop);
        return status;
    }
    *out = loop;
    return PC_OK;
}

static void reap(struct pc_loop *loop)
{
    while (loop->dead != NULL) {
        struct pc_watch *watch = loop->dead;
        loop->dead = watch->next;
        free(watch);
    }
}

void pc_loop_free(struct pc_loop *loop)
{
    if (loop == NULL)
        return;
    while (loop->watches != NULL)
        pc_watch_remove(loop->watches);
    reap(loop);
    while (loop->signals != NULL) {
        struct pc_signal *signal = loop->signals;
        loop->signals = signal->next;
        close(signal->fd);
        free(signal);
    }
    pc_timers_clear(loop);
    pc_posts_clear(loop);
    close(loop->epoll);
    free(loop);
}

/* Brings the epoll set from the watch's present events to wanted; errno is set when false. */
static bool epoll_change(struct pc_watch *watch, uint32_t wanted)
{
    struct epoll_event event = {.events = wanted, .data.ptr = watch};
    if (wanted == watch->events)
        return true;
    int op = watch->events == 0 ? EPOLL_CTL_ADD : wanted == 0 ? EPOLL_CTL_DEL : EPOLL_CTL_MOD;
    return epoll_ctl(watch->loop->epoll, op, watch->fd, &event) == 0;
}

enum pc_status pc_loop_add(struct pc_loop *loop, int fd, uint32_t events, pc_watch_fn callback, void *arg,
                           struct pc_watch **out, struct pc_error *err)
{
    struct pc_watch *watch = calloc(1, sizeof *watch);
    if (watch == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no memory to watch descriptor %d", fd);
    watch->loop = loop;
    watch->fd = fd;
    watch->callback = callback;
    watch->arg = arg;
    if (!epoll_change(watch, events)) {
        enum pc_status status = pc_error_errno(err, errno, "cannot watch descriptor %d", fd);
        free(watch);
        return status;
    }
    watch->events = events;
    watch->next = loop->watches;
    watch->link = &loop->watches;
    if (watch->next != NULL)
        watch->next->link = &watch->next;
    loop->watches = watch;
    if (out != NULL)
        *out = watch;
    return PC_OK;
}

enum pc_status pc_watch_set_events(struct pc_watch *watch, uint32_t events, struct pc_error *err)
{
    if (!epoll_change(watch, events))
        return pc_error_errno(err, errno, "cannot change the watch of descriptor %d", watch->fd);
    watch->events = events;
    return PC_OK;
}

void pc_watch_remove(struct pc_watch *watch)
{
    if (watch == NULL)
        return;
    /* Fails only for a descriptor that was closed first, against the contract: then it has left the set by itself. */
    epoll_change(watch, 0);
    watch->removed = true;
    *watch->link = watch->next;
    if (watch->next != NULL)
        watch->next->link = watch->link;
    /* Not freed here: events later in the batch that is being delivered may still point at it. */
    watch->next = watch->loop->dead;
    watch->loop->dead = watch;
}

static void deliver(struct pc_loop *loop, const struct epoll_event *events, int count)
{
    for (int i = 0; i < count && !loop->stop; i++) {
        struct pc_watch *watch = events[i].data.ptr;
        if (watch->removed || watch->events == 0)
            continue;
        /* Events that an earlier callback of this batch has unsubscribed are left out. */
        uint32_t happened = events[i].events & (watch->events | EPOLLERR | EPOLLHUP);
        if (happened != 0)
            watch->callback(loop, watch->fd, happened, watch->arg);
    }
}

enum pc_status pc_loop_run(struct pc_loop *loop, struct pc_error *err)
{
    struct epoll_event events[BATCH];
    while (!loop->stop) {
        int wait = pc_posts_left(loop) ? 0 : pc_timers_wait_ms(loop);
        int count = epoll_wait(loop->epoll, events, BATCH, wait);
        if (count < 0 && errno != EINTR)
            return pc_error_errno(err, errno, "epoll_wait");
        deliver(loop, events, count);
        pc_posts_run(loop);
        pc_timers_run(loop);
        reap(loop);
    }
    loop->stop = false;
    return PC_OK;
}

void pc_loop_stop(struct pc_loop *loop)
{
    loop->stop = true;
}

static void signal_ready(struct pc_loop *loop, int fd, uint32_t events, void *arg)
{
    struct pc_signal *signal = arg;
    struct signalfd_siginfo info;
    (void)events;
    if (read(fd, &info, sizeof info) == (ssize_t)sizeof info)
        signal->callback(loop, (int)info.ssi_signo, signal->arg);
}

void pc_loop_block_signals(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL); /* one thread: and the shim, which has this file, may name old symbols only */
    signal(SIGPIPE, SIG_IGN);
}

enum pc_status pc_loop_signal(struct pc_loop *loop, int signal_number, pc_signal_fn callback, void *arg,
                              struct pc_error *err)
{
    sigset_t set;
    sigemptyset(&set);
    if (sigaddset(&set, signal_number) != 0)
        return pc_error_errno(err, errno, "signal %d", signal_number);
    pc_auto_fd int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd < 0)
        return pc_error_errno(err, errno, "signalfd for signal %d", signal_number);
    pc_auto_free struct pc_signal *signal = calloc(1, sizeof *signal);
    if (signal == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no memory to watch signal %d", signal_number);
    *signal = (struct pc_signal){.next = loop->signals, .fd = fd, .callback = callback, .arg = arg};
    enum pc_status status = pc_loop_add(loop, fd, EPOLLIN, signal_ready, signal, NULL, err);
    if (status != PC_OK)
        return status;
    loop->signals = pc_steal(&signal);
    pc_steal_fd(&fd);
    return PC_OK;
}
