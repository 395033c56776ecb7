/*
 * Timers: a binary heap of pointers by deadline. Room for a timer is taken when it is made, so that starting one can
 * never fail.
 */
#include <limits.h>
#include <stdlib.h>

#include "alloc/base/loop_internal.h"

#define TIMER_IDLE SIZE_MAX
#define NS_PER_MS 1000000ull

static bool before(const struct pc_timer *a, const struct pc_timer *b)
{
    return a->deadline != b->deadline ? a->deadline < b->deadline : a->order < b->order;
}

static void put(struct pc_timers *timers, size_t at, struct pc_timer *timer)
{
    timers->heap[at] = timer;
    timer->at = at;
}

static void sift_up(struct pc_timers *timers, size_t at, struct pc_timer *timer)
{
    while (at > 0 && before(timer, timers->heap[(at - 1) / 2])) {
        put(timers, at, timers->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    put(timers, at, timer);
}

static void sift_down(struct pc_timers *timers, size_t at, struct pc_timer *timer)
{
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= timers->running)
            break;
        if (child + 1 < timers->running && before(timers->heap[child + 1], timers->heap[child]))
            child++;
        if (!before(timers->heap[child], timer))
            break;
        put(timers, at, timers->heap[child]);
        at = child;
    }
    put(timers, at, timer);
}

static void heap_insert(struct pc_timers *timers, struct pc_timer *timer)
{
    timer->order = timers->starts++;
    sift_up(timers, timers->running++, timer);
}

static void heap_remove(struct pc_timers *timers, struct pc_timer *timer)
{
    size_t at = timer->at;
    struct pc_timer *last = timers->heap[--timers->running];
    timer->at = TIMER_IDLE;
    if (last == timer)
        return;
    if (at > 0 && before(last, timers->heap[(at - 1) / 2]))
        sift_up(timers, at, last);
    else
        sift_down(timers, at, last);
}

static bool reserve(struct pc_timers *timers)
{
    if (timers->made < timers->room)
        return true;
    size_t room = timers->room == 0 ? 16 : timers->room * 2;
    struct pc_timer **heap = realloc(timers->heap, room * sizeof *heap);
    if (heap == NULL)
        return false;
    timers->heap = heap;
    timers->room = room;
    return true;
}

enum pc_status pc_timer_create(struct pc_loop *loop, pc_timer_fn callback, void *arg, struct pc_timer **out,
                               struct pc_error *err)
{
    struct pc_timers *timers = &loop->timers;
    struct pc_timer *timer = calloc(1, sizeof *timer);
    if (timer == NULL || !reserve(timers)) {
        free(timer);
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no memory for a timer");
    }
    *timer = (struct pc_timer){
        .loop = loop, .next = timers->all, .link = &timers->all, .callback = callback, .arg = arg, .at = TIMER_IDLE};
    if (timer->next != NULL)
        timer->next->link = &timer->next;
    timers->all = timer;
    timers->made++;
    *out = timer;
    return PC_OK;
}

/* Times beyond 2^64 ns (584 years) are as good as never. */
static uint64_t ms_to_ns(uint64_t ms)
{
    return ms > UINT64_MAX / 2 / NS_PER_MS ? UINT64_MAX / 2 : ms * NS_PER_MS;
}

void pc_timer_start(struct pc_timer *timer, uint64_t delay_ms, uint64_t period_ms)
{
    pc_timer_stop(timer);
    timer->deadline = pc_loop_now_ns() + ms_to_ns(delay_ms);
    timer->period = ms_to_ns(period_ms);
    heap_insert(&timer->loop->timers, timer);
}

void pc_timer_stop(struct pc_timer *timer)
{
    if (timer->at != TIMER_IDLE)
        heap_remove(&timer->loop->timers, timer);
}

void pc_timer_free(struct pc_timer *timer)
{
    if (timer == NULL)
        return;
    pc_timer_stop(timer);
    *timer->link = timer->next;
    if (timer->next != NULL)
        timer->next->link = timer->link;
    timer->loop->timers.made--;
    free(timer);
}

void pc_timers_clear(struct pc_loop *loop)
{
    while (loop->timers.all != NULL)
        pc_timer_free(loop->timers.all);
    free(loop->timers.heap);
}

int pc_timers_wait_ms(const struct pc_loop *loop)
{
    if (loop->timers.running == 0)
        return -1;
    uint64_t deadline = loop->timers.heap[0]->deadline, now = pc_loop_now_ns();
    if (deadline <= now)
        return 0;
    uint64_t ms = (deadline - now + NS_PER_MS - 1) / NS_PER_MS; /* up, or the loop would spin through the last one */
    return ms > INT_MAX ? INT_MAX : (int)ms;
}

static void restart(struct pc_timer *timer, uint64_t now)
{
    timer->deadline += timer->period;
    if (timer->deadline <= now) /* the loop was busy for longer than a period */
        timer->deadline = now + timer->period;
    heap_insert(&timer->loop->timers, timer);
}

void pc_timers_run(struct pc_loop *loop)
{
    struct pc_timers *timers = &loop->timers;
    if (timers->running == 0)
        return;
    uint64_t now = pc_loop_now_ns(), starts = timers->starts;
    while (timers->running > 0 && !loop->stop) {
        struct pc_timer *timer = timers->heap[0];
        /* One started by a callback of this round waits for the next, or delay 0 would never let the events in. */
        if (timer->deadline > now || timer->order >= starts)
            return;
        heap_remove(timers, timer);
        if (timer->period > 0)
            restart(timer, now);
        timer->callback(loop, timer->arg); /* may free the timer: not touched after this */
    }
}
