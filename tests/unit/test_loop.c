/* The event loop: batches that change under their own callbacks, timers, posts from other threads, signals, stop. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "alloc/base/cleanup.h"
#include "alloc/base/loop.h"

enum { MANY = 100 }; /* more than one batch of 64 */

struct fixture {
    struct pc_loop *loop;
    struct pc_watch *watch[MANY];
    int fd[MANY];
    unsigned called[MANY];
    unsigned calls;
};

static int make_fixture(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    if (f == NULL || pc_loop_create(&f->loop, NULL) != PC_OK)
        return -1;
    for (int i = 0; i < MANY; i++)
        f->fd[i] = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    *state = f;
    return 0;
}

static int free_fixture(void **state)
{
    struct fixture *f = *state;
    pc_loop_free(f->loop);
    for (int i = 0; i < MANY; i++)
        close(f->fd[i]);
    free(f);
    return 0;
}

static int index_of(const struct fixture *f, int fd)
{
    for (int i = 0; i < MANY; i++)
        if (f->fd[i] == fd)
            return i;
    fail_msg("no such descriptor: %d", fd);
    return -1;
}

static void make_ready(int fd)
{
    uint64_t one = 1;
    assert_int_equal(write(fd, &one, sizeof one), sizeof one);
}

static void watch_all(struct fixture *f, pc_watch_fn callback)
{
    for (int i = 0; i < MANY; i++) {
        assert_int_equal(pc_loop_add(f->loop, f->fd[i], EPOLLIN, callback, f, &f->watch[i], NULL), PC_OK);
        make_ready(f->fd[i]);
    }
}

static void stop_on_timer(struct pc_loop *loop, void *arg)
{
    (void)arg;
    pc_loop_stop(loop);
}

static void stop_posted(struct pc_loop *loop, void *arg)
{
    (void)arg;
    pc_loop_stop(loop);
}

/* Runs the loop for that long, so that callbacks that must not come have had their chance. */
static void run_for(struct pc_loop *loop, uint64_t ms)
{
    struct pc_timer *timer;
    assert_int_equal(pc_timer_create(loop, stop_on_timer, NULL, &timer, NULL), PC_OK);
    pc_timer_start(timer, ms, 0);
    assert_int_equal(pc_loop_run(loop, NULL), PC_OK);
    pc_timer_free(timer);
}

static void count_and_read(struct pc_loop *loop, int fd, uint32_t events, void *arg)
{
    struct fixture *f = arg;
    uint64_t value;
    (void)loop;
    assert_true(events & EPOLLIN);
    f->called[index_of(f, fd)]++;
    f->calls++;
    assert_int_equal(read(fd, &value, sizeof value), sizeof value);
}

static void test_all_are_called(void **state)
{
    struct fixture *f = *state;
    watch_all(f, count_and_read);
    run_for(f->loop, 20);
    assert_int_equal(f->calls, MANY);
    for (int i = 0; i < MANY; i++)
        assert_int_equal(f->called[i], 1);
}

/* Removes every watch, its own too, and scribbles over what malloc gives next where the freed ones may have been. */
static void remove_all(struct pc_loop *loop, int fd, uint32_t events, void *arg)
{
    struct fixture *f = arg;
    (void)loop, (void)fd, (void)events;
    f->calls++;
    for (int i = 0; i < MANY; i++)
        pc_watch_remove(f->watch[i]);
    for (int i = 0; i < MANY; i++) {
        char *bytes = malloc(64);
        memset(bytes, 0x5a, 64);
        free(bytes);
    }
}

static void test_remove_in_batch(void **state)
{
    struct fixture *f = *state;
    watch_all(f, remove_all);
    run_for(f->loop, 20);
    assert_int_equal(f->calls, 1);
}

static void pause_all(struct pc_loop *loop, int fd, uint32_t events, void *arg)
{
    struct fixture *f = arg;
    (void)loop, (void)fd, (void)events;
    f->calls++;
    for (int i = 0; i < MANY; i++)
        assert_int_equal(pc_watch_set_events(f->watch[i], 0, NULL), PC_OK);
}

static void test_pause_in_batch_and_resume(void **state)
{
    struct fixture *f = *state;
    watch_all(f, pause_all);
    run_for(f->loop, 10);
    assert_int_equal(f->calls, 1);
    assert_int_equal(pc_watch_set_events(f->watch[7], EPOLLIN, NULL), PC_OK);
    run_for(f->loop, 10);
    assert_int_equal(f->calls, 2);
}

/* The first callback makes both watches want EPOLLOUT alone: the other's waiting EPOLLIN must not be delivered. */
static void want_only_out(struct pc_loop *loop, int fd, uint32_t events, void *arg)
{
    struct fixture *f = arg;
    (void)loop, (void)fd;
    f->calls++;
    if (f->calls == 1)
        assert_true(events & EPOLLIN);
    else
        assert_false(events & EPOLLIN);
    pc_watch_set_events(f->watch[0], EPOLLOUT, NULL);
    pc_watch_set_events(f->watch[1], EPOLLOUT, NULL);
    if (f->calls > 10)
        pc_loop_stop(f->loop);
}

static void test_change_in_batch(void **state)
{
    struct fixture *f = *state;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pc_loop_add(f->loop, f->fd[i], EPOLLIN, want_only_out, f, &f->watch[i], NULL), PC_OK);
        make_ready(f->fd[i]);
    }
    assert_int_equal(pc_loop_run(f->loop, NULL), PC_OK);
    assert_true(f->calls > 10);
}

static void count_hangup(struct pc_loop *loop, int fd, uint32_t events, void *arg)
{
    unsigned *calls = arg;
    (void)loop, (void)fd;
    assert_true(events & EPOLLHUP);
    (*calls)++;
    pc_loop_stop(loop);
}

/* A paused session whose peer is gone must not spin the loop: epoll reports EPOLLHUP even with events 0. */
static void test_paused_hears_no_hangup(void **state)
{
    struct fixture *f = *state;
    int pair[2];
    unsigned calls = 0;
    struct pc_watch *watch;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(pc_loop_add(f->loop, pair[0], 0, count_hangup, &calls, &watch, NULL), PC_OK);
    close(pair[1]);
    run_for(f->loop, 10);
    assert_int_equal(calls, 0);
    assert_int_equal(pc_watch_set_events(watch, EPOLLIN, NULL), PC_OK);
    assert_int_equal(pc_watch_set_events(watch, 0, NULL), PC_OK);
    run_for(f->loop, 10);
    assert_int_equal(calls, 0);
    assert_int_equal(pc_watch_set_events(watch, EPOLLIN, NULL), PC_OK);
    assert_int_equal(pc_loop_run(f->loop, NULL), PC_OK);
    assert_int_equal(calls, 1);
    pc_watch_remove(watch);
    close(pair[0]);
}

struct gone {
    struct pc_watch *watch[2];
    unsigned calls;
};

static void pause_both(struct pc_loop *loop, int fd, uint32_t events, void *arg)
{
    struct gone *gone = arg;
    (void)loop, (void)fd, (void)events;
    gone->calls++;
    for (int i = 0; i < 2; i++)
        assert_int_equal(pc_watch_set_events(gone->watch[i], 0, NULL), PC_OK);
}

/* The same for a hang-up that waits in the batch in which its watch is paused. */
static void test_paused_in_batch_hears_no_hangup(void **state)
{
    struct fixture *f = *state;
    struct gone gone = {0};
    int pair[2][2];
    for (int i = 0; i < 2; i++) {
        assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair[i]), 0);
        assert_int_equal(pc_loop_add(f->loop, pair[i][0], EPOLLIN, pause_both, &gone, &gone.watch[i], NULL), PC_OK);
        close(pair[i][1]);
    }
    run_for(f->loop, 10);
    assert_int_equal(gone.calls, 1);
    for (int i = 0; i < 2; i++) {
        pc_watch_remove(gone.watch[i]);
        close(pair[i][0]);
    }
}

static void test_refused_watches(void **state)
{
    struct fixture *f = *state;
    struct pc_error err;
    struct pc_watch *watch = NULL;
    pc_auto_fd int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    assert_int_equal(pc_loop_add(f->loop, file, EPOLLIN, count_and_read, f, &watch, &err), PC_ERR_IO);
    assert_int_equal(err.code, EPERM);
    assert_int_equal(pc_loop_add(f->loop, -1, EPOLLIN, count_and_read, f, &watch, &err), PC_ERR_IO);
    assert_int_equal(err.code, EBADF);
    assert_null(watch);
    assert_int_equal(pc_loop_add(f->loop, f->fd[0], EPOLLIN, count_and_read, f, &watch, &err), PC_OK);
    assert_int_equal(pc_loop_add(f->loop, f->fd[0], EPOLLIN, count_and_read, f, NULL, &err), PC_ERR_IO);
    assert_int_equal(err.code, EEXIST);
}

/* A descriptor number that is used again at once, in the batch that removed its predecessor. */
static void reuse_number(struct pc_loop *loop, int fd, uint32_t events, void *arg)
{
    struct fixture *f = arg;
    (void)fd, (void)events;
    f->calls++;
    for (int i = 0; i < MANY; i++) {
        pc_watch_remove(f->watch[i]);
        close(f->fd[i]);
        f->fd[i] = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        assert_int_equal(pc_loop_add(loop, f->fd[i], EPOLLIN, count_and_read, f, &f->watch[i], NULL), PC_OK);
    }
}

static void test_reused_descriptor(void **state)
{
    struct fixture *f = *state;
    watch_all(f, reuse_number);
    run_for(f->loop, 10);
    assert_int_equal(f->calls, 1); /* the new ones are not ready: old events in the batch are not theirs */
    make_ready(f->fd[3]);
    run_for(f->loop, 10);
    assert_int_equal(f->called[3], 1);
}

static void stop_from_watch(struct pc_loop *loop, int fd, uint32_t events, void *arg)
{
    count_and_read(loop, fd, events, arg);
    pc_loop_stop(loop);
}

static void test_stop_from_callback(void **state)
{
    struct fixture *f = *state;
    watch_all(f, stop_from_watch);
    for (unsigned run = 1; run <= MANY; run++) {
        assert_int_equal(pc_loop_run(f->loop, NULL), PC_OK);
        assert_int_equal(f->calls, run); /* what was ready beside it stays ready */
    }
    pc_loop_stop(f->loop);
    assert_int_equal(pc_loop_run(f->loop, NULL), PC_OK);
}

/* Timers. */

enum { TIMERS = 200 };

struct ring {
    struct pc_timer *timer;
    uint64_t due;
    struct rings *all;
    unsigned number;
};

struct rings {
    struct ring ring[TIMERS];
    unsigned order[TIMERS];
    unsigned count, expected;
};

static void note_ring(struct pc_loop *loop, void *arg)
{
    struct ring *ring = arg;
    assert_true(pc_loop_now_ns() >= ring->due); /* never early */
    ring->all->order[ring->all->count++] = ring->number;
    if (ring->all->count == ring->all->expected)
        pc_loop_stop(loop);
}

static void test_timers_in_order(void **state)
{
    struct fixture *f = *state;
    struct rings rings = {.expected = TIMERS * 3 / 4};
    uint64_t delay[TIMERS];
    for (unsigned i = 0; i < TIMERS; i++) {
        struct ring *ring = &rings.ring[i];
        *ring = (struct ring){.all = &rings, .number = i};
        delay[i] = (i * 7919u) % 40; /* many equal ones, in no order */
        assert_int_equal(pc_timer_create(f->loop, note_ring, ring, &ring->timer, NULL), PC_OK);
        pc_timer_start(ring->timer, 5000, 0); /* started anew below */
        ring->due = pc_loop_now_ns() + delay[i] * 1000000u;
        pc_timer_start(ring->timer, delay[i], 0);
    }
    for (unsigned i = 0; i < TIMERS; i += 4)
        pc_timer_stop(rings.ring[i].timer);
    assert_int_equal(pc_loop_run(f->loop, NULL), PC_OK);
    for (unsigned i = 0; i < rings.count; i++) {
        assert_true(rings.order[i] % 4 != 0);
        if (i == 0)
            continue;
        unsigned before = rings.order[i - 1], after = rings.order[i];
        /* Deadlines are a start time apart at most; a smaller delay by a ms can only lose to that. */
        assert_true(delay[before] < delay[after] + 1 || (delay[before] == delay[after] && before < after));
    }
    for (unsigned i = 0; i < TIMERS; i++)
        pc_timer_free(rings.ring[i].timer);
}

struct ticker {
    struct pc_timer *timer, *other;
    unsigned calls;
};

static void tick_five_times(struct pc_loop *loop, void *arg)
{
    struct ticker *ticker = arg;
    if (++ticker->calls == 5)
        pc_loop_stop(loop);
}

static void test_periodic(void **state)
{
    struct fixture *f = *state;
    struct ticker ticker = {0};
    uint64_t start = pc_loop_now_ns();
    assert_int_equal(pc_timer_create(f->loop, tick_five_times, &ticker, &ticker.timer, NULL), PC_OK);
    pc_timer_start(ticker.timer, 4, 2);
    assert_int_equal(pc_loop_run(f->loop, NULL), PC_OK);
    assert_int_equal(ticker.calls, 5);
    assert_true(pc_loop_now_ns() - start >= (4 + 4 * 2) * 1000000u);
    pc_timer_free(ticker.timer);
}

static void free_both(struct pc_loop *loop, void *arg)
{
    struct ticker *ticker = arg;
    (void)loop;
    ticker->calls++;
    pc_timer_free(ticker->timer); /* its own, periodic */
    pc_timer_free(ticker->other); /* and one that is due in this very round */
}

static void test_free_inside(void **state)
{
    struct fixture *f = *state;
    struct ticker ticker = {0};
    assert_int_equal(pc_timer_create(f->loop, free_both, &ticker, &ticker.timer, NULL), PC_OK);
    assert_int_equal(pc_timer_create(f->loop, free_both, &ticker, &ticker.other, NULL), PC_OK);
    pc_timer_start(ticker.timer, 0, 1);
    pc_timer_start(ticker.other, 0, 1);
    run_for(f->loop, 10);
    assert_int_equal(ticker.calls, 1);
}

static void tick_slowly(struct pc_loop *loop, void *arg)
{
    struct ticker *ticker = arg;
    (void)loop;
    ticker->calls++;
    if (ticker->calls == 1)
        usleep(20000); /* nine periods are missed */
}

static void test_missed_ticks_are_left_out(void **state)
{
    struct fixture *f = *state;
    struct ticker ticker = {0};
    assert_int_equal(pc_timer_create(f->loop, tick_slowly, &ticker, &ticker.timer, NULL), PC_OK);
    pc_timer_start(ticker.timer, 0, 2);
    run_for(f->loop, 21);
    assert_in_range(ticker.calls, 1, 4);
    pc_timer_free(ticker.timer);
}

static void restart_at_once(struct pc_loop *loop, void *arg)
{
    struct ticker *ticker = arg;
    (void)loop;
    ticker->calls++;
    pc_timer_start(ticker->timer, 0, 0);
}

/* A timer that restarts itself with delay 0 must let events and other timers in. */
static void test_zero_delay_starves_nobody(void **state)
{
    struct fixture *f = *state;
    struct ticker ticker = {0};
    assert_int_equal(pc_timer_create(f->loop, restart_at_once, &ticker, &ticker.timer, NULL), PC_OK);
    pc_timer_start(ticker.timer, 0, 0);
    watch_all(f, count_and_read);
    run_for(f->loop, 10);
    assert_int_equal(f->calls, MANY);
    assert_true(ticker.calls > 1);
    unsigned before = ticker.calls;
    pc_timer_start(ticker.timer, UINT64_MAX, UINT64_MAX); /* no overflow: as good as never; freed with the loop */
    run_for(f->loop, 5);
    assert_int_equal(ticker.calls, before);
}

/* Posts. */

enum { THREADS = 4, POSTS = 10000 };

struct poster {
    struct pc_loop *loop;
    struct posted {
        struct poster *poster;
        unsigned number;
    } item[POSTS];
    unsigned next;
    unsigned *total;
    pthread_t thread;
};

static void take_post(struct pc_loop *loop, void *arg)
{
    struct posted *item = arg;
    assert_int_equal(item->number, item->poster->next); /* each thread's own order is kept */
    item->poster->next++;
    if (++*item->poster->total == THREADS * POSTS)
        pc_loop_stop(loop);
}

static void *post_all(void *arg)
{
    struct poster *poster = arg;
    for (unsigned i = 0; i < POSTS; i++) {
        poster->item[i] = (struct posted){poster, i};
        if (pc_loop_post(poster->loop, take_post, &poster->item[i], NULL) != PC_OK)
            abort();
    }
    return NULL;
}

static void test_posts_from_threads(void **state)
{
    struct fixture *f = *state;
    unsigned total = 0;
    struct poster *posters = calloc(THREADS, sizeof *posters);
    for (int i = 0; i < THREADS; i++) {
        posters[i].loop = f->loop;
        posters[i].total = &total;
        assert_int_equal(pthread_create(&posters[i].thread, NULL, post_all, &posters[i]), 0);
    }
    assert_int_equal(pc_loop_run(f->loop, NULL), PC_OK);
    assert_int_equal(total, THREADS * POSTS);
    for (int i = 0; i < THREADS; i++)
        pthread_join(posters[i].thread, NULL);
    free(posters);
}

static void post_again(struct pc_loop *loop, void *arg)
{
    unsigned *calls = arg;
    ++*calls;
    assert_int_equal(pc_loop_post(loop, post_again, arg, NULL), PC_OK);
}

/* A function that posts itself for ever lets the timers run. */
static void test_posting_from_a_post(void **state)
{
    struct fixture *f = *state;
    unsigned calls = 0;
    assert_int_equal(pc_loop_post(f->loop, post_again, &calls, NULL), PC_OK);
    run_for(f->loop, 5);
    assert_true(calls > 1);
}

static void count_post(struct pc_loop *loop, void *arg)
{
    (void)loop;
    ++*(unsigned *)arg;
}

/* Posts behind the one that stops are run by the next pc_loop_run, though the eventfd is empty then. */
static void test_posts_after_stop_are_kept(void **state)
{
    struct fixture *f = *state;
    unsigned calls = 0;
    pc_loop_post(f->loop, count_post, &calls, NULL);
    pc_loop_post(f->loop, stop_posted, NULL, NULL);
    pc_loop_post(f->loop, count_post, &calls, NULL);
    pc_loop_post(f->loop, stop_posted, NULL, NULL);
    assert_int_equal(pc_loop_run(f->loop, NULL), PC_OK);
    assert_int_equal(calls, 1);
    assert_int_equal(pc_loop_run(f->loop, NULL), PC_OK);
    assert_int_equal(calls, 2);
}

/* Signals. */

static void note_signal(struct pc_loop *loop, int number, void *arg)
{
    *(int *)arg = number;
    pc_loop_stop(loop);
}

static void test_signals(void **state)
{
    struct fixture *f = *state;
    int got = 0;
    sigset_t set, old;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &set, &old);
    assert_int_equal(pc_loop_signal(f->loop, SIGUSR1, note_signal, &got, NULL), PC_OK);
    assert_int_equal(pc_loop_signal(f->loop, SIGUSR2, note_signal, &got, NULL), PC_OK);
    assert_int_equal(pc_loop_signal(f->loop, 1000, note_signal, &got, NULL), PC_ERR_IO);
    kill(getpid(), SIGUSR2);
    assert_int_equal(pc_loop_run(f->loop, NULL), PC_OK);
    assert_int_equal(got, SIGUSR2);
    kill(getpid(), SIGUSR1);
    assert_int_equal(pc_loop_run(f->loop, NULL), PC_OK);
    assert_int_equal(got, SIGUSR1);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

#define WITH_LOOP(test) cmocka_unit_test_setup_teardown(test, make_fixture, free_fixture)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_LOOP(test_all_are_called),
        WITH_LOOP(test_remove_in_batch),
        WITH_LOOP(test_pause_in_batch_and_resume),
        WITH_LOOP(test_change_in_batch),
        WITH_LOOP(test_paused_hears_no_hangup),
        WITH_LOOP(test_paused_in_batch_hears_no_hangup),
        WITH_LOOP(test_refused_watches),
        WITH_LOOP(test_reused_descriptor),
        WITH_LOOP(test_stop_from_callback),
        WITH_LOOP(test_timers_in_order),
        WITH_LOOP(test_periodic),
        WITH_LOOP(test_free_inside),
        WITH_LOOP(test_missed_ticks_are_left_out),
        WITH_LOOP(test_zero_delay_starves_nobody),
        WITH_LOOP(test_posts_from_threads),
        WITH_LOOP(test_posting_from_a_post),
        WITH_LOOP(test_posts_after_stop_are_kept),
        WITH_LOOP(test_signals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
