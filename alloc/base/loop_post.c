#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "alloc/base/loop_internal.h"

enum { FIRST_ROOM = 256 };

static bool grow(struct post_queue *queue)
{
    size_t room = queue->room == 0 ? FIRST_ROOM : queue->room * 2;
    struct post *items = realloc(queue->items, room * sizeof *items);
    if (items == NULL)
        return false;
    queue->items = items;
    queue->room = room;
    return true;
}

/* Empties the eventfd; the functions themselves run after all events of the batch. */
static void woken(struct pc_loop *loop, int fd, uint32_t events, void *arg)
{
    uint64_t count;
    (void)loop, (void)events, (void)arg;
    ssize_t got = read(fd, &count, sizeof count);
    (void)got; /* EAGAIN: emptied already */
}

enum pc_status pc_posts_init(struct pc_loop *loop, struct pc_error *err)
{
    struct pc_posts *posts = &loop->posts;
    pthread_mutex_init(&posts->lock, NULL);
    if (!grow(&posts->waiting) || !grow(&posts->running))
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no memory for an event loop");
    posts->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (posts->fd < 0)
        return pc_error_errno(err, errno, "eventfd");
    return pc_loop_add(loop, posts->fd, EPOLLIN, woken, NULL, NULL, err);
}

void pc_posts_clear(struct pc_loop *loop)
{
    struct pc_posts *posts = &loop->posts;
    free(posts->waiting.items);
    free(posts->running.items);
    if (posts->fd >= 0)
        close(posts->fd);
    pthread_mutex_destroy(&posts->lock);
}

enum pc_status pc_loop_post(struct pc_loop *loop, pc_post_fn fn, void *arg, struct pc_error *err)
{
    struct pc_posts *posts = &loop->posts;
    struct post_queue *queue = &posts->waiting;
    pthread_mutex_lock(&posts->lock);
    if (queue->count == queue->room && !grow(queue)) {
        pthread_mutex_unlock(&posts->lock);
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no memory to hand work to the event loop");
    }
    bool first = queue->count == 0;
    queue->items[queue->count++] = (struct post){fn, arg};
    if (first) {
        /* Under the lock: a poster that announces after its item has run could meet a loop that is already freed. */
        uint64_t one = 1;
        ssize_t written = write(posts->fd, &one, sizeof one);
        (void)written; /* EAGAIN needs 2^64 - 1 unread announcements */
    }
    pthread_mutex_unlock(&posts->lock);
    return PC_OK;
}

bool pc_posts_left(const struct pc_loop *loop)
{
    return loop->posts.next < loop->posts.running.count;
}

static void take_waiting(struct pc_posts *posts)
{
    posts->running.count = 0;
    posts->next = 0;
    pthread_mutex_lock(&posts->lock);
    struct post_queue taken = posts->waiting;
    posts->waiting = posts->running;
    posts->running = taken;
    pthread_mutex_unlock(&posts->lock);
}

void pc_posts_run(struct pc_loop *loop)
{
    struct pc_posts *posts = &loop->posts;
    if (loop->stop)
        return;
    if (!pc_posts_left(loop))
        take_waiting(posts);
    while (pc_posts_left(loop) && !loop->stop) {
        struct post post = posts->running.items[posts->next++];
        post.fn(loop, post.arg);
    }
}
