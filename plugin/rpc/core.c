#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "alloc/base/log.h"
#include "plugin/rpc/internal.h"

struct pc_rpc {
    struct pc_loop *loop;
    grpc_completion_queue *queue;
    pthread_t thread;
    int wake; /* eventfd: something is in the list */
    struct pc_watch *watch;
    unsigned long pending; /* tags that have not come back; the loop's thread */
    pthread_mutex_t lock;  /* over what follows */
    pthread_cond_t came;
    struct pc_rpc_tag *first, **last;
};

/* ---- the thread ---- */

static void put(struct pc_rpc *rpc, struct pc_rpc_tag *tag)
{
    uint64_t one = 1;
    tag->next = NULL;
    pthread_mutex_lock(&rpc->lock);
    *rpc->last = tag;
    rpc->last = &tag->next;
    pthread_cond_signal(&rpc->came);
    pthread_mutex_unlock(&rpc->lock);
    if (write(rpc->wake, &one, sizeof one) < 0 && errno != EAGAIN) /* EAGAIN: it is awake enough */
        pc_log_error("rpc", "cannot wake the loop: %s", strerror(errno));
}

static void *take_completions(void *arg)
{
    struct pc_rpc *rpc = arg;
    for (;;) {
        grpc_event event = grpc_completion_queue_next(rpc->queue, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
        if (event.type == GRPC_QUEUE_SHUTDOWN)
            return NULL;
        struct pc_rpc_tag *tag = event.tag;
        (void)__atomic_load_n(&tag->armed, __ATOMIC_ACQUIRE);
        tag->ok = event.success != 0;
        put(rpc, tag);
    }
}

/* ---- the loop's side ---- */

static struct pc_rpc_tag *take_all(struct pc_rpc *rpc, bool wait)
{
    pthread_mutex_lock(&rpc->lock);
    while (wait && rpc->first == NULL)
        pthread_cond_wait(&rpc->came, &rpc->lock);
    struct pc_rpc_tag *tag = rpc->first;
    rpc->first = NULL;
    rpc->last = &rpc->first;
    pthread_mutex_unlock(&rpc->lock);
    return tag;
}

static void call_all(struct pc_rpc *rpc, struct pc_rpc_tag *tag)
{
    struct pc_rpc_tag *next;
    for (; tag != NULL; tag = next) {
        next = tag->next; /* the owner, and the tag in it, may be gone after done */
        rpc->pending--;
        tag->done(tag->owner, tag->ok);
    }
}

static void on_wake(struct pc_loop *loop, int fd, uint32_t events, void *arg)
{
    uint64_t count;
    (void)loop;
    (void)events;
    if (read(fd, &count, sizeof count) < 0 && errno != EAGAIN)
        pc_log_error("rpc", "cannot read the eventfd: %s", strerror(errno));
    call_all(arg, take_all(arg, false));
}

grpc_completion_queue *pc_rpc_queue(struct pc_rpc *rpc)
{
    return rpc->queue;
}

struct pc_loop *pc_rpc_loop(struct pc_rpc *rpc)
{
    return rpc->loop;
}

void *pc_rpc_tag(struct pc_rpc *rpc, struct pc_rpc_tag *tag, void (*done)(void *owner, bool ok), void *owner)
{
    tag->done = done;
    tag->owner = owner;
    rpc->pending++;
    __atomic_store_n(&tag->armed, 1, __ATOMIC_RELEASE);
    return tag;
}

void pc_rpc_untag(struct pc_rpc *rpc)
{
    rpc->pending--;
}

bool pc_rpc_batch(struct pc_rpc *rpc, grpc_call *call, const grpc_op *ops, size_t count, struct pc_rpc_tag *tag,
                  void (*done)(void *owner, bool ok), void *owner)
{
    grpc_call_error error = grpc_call_start_batch(call, ops, count, pc_rpc_tag(rpc, tag, done, owner), NULL);
    if (error == GRPC_CALL_OK)
        return true;
    pc_rpc_untag(rpc);
    pc_log_error("rpc", "core refused a batch: %s", grpc_call_error_to_string(error));
    return false;
}

/* ---- life ---- */

static enum pc_status start(struct pc_rpc *rpc, struct pc_error *err)
{
    rpc->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (rpc->wake < 0)
        return pc_error_errno(err, errno, "cannot make an eventfd");
    enum pc_status status = pc_loop_add(rpc->loop, rpc->wake, EPOLLIN, on_wake, rpc, &rpc->watch, err);
    if (status != PC_OK)
        return status;
    int failed = pthread_create(&rpc->thread, NULL, take_completions, rpc);
    return failed == 0 ? PC_OK : pc_error_errno(err, failed, "cannot start gRPC's thread");
}

static void free_parts(struct pc_rpc *rpc)
{
    grpc_completion_queue_destroy(rpc->queue);
    grpc_shutdown_blocking();
    pc_watch_remove(rpc->watch);
    if (rpc->wake >= 0)
        close(rpc->wake);
    pthread_mutex_destroy(&rpc->lock);
    pthread_cond_destroy(&rpc->came);
    free(rpc);
}

enum pc_status pc_rpc_create(struct pc_loop *loop, struct pc_rpc **out, struct pc_error *err)
{
    struct pc_rpc *rpc = calloc(1, sizeof *rpc);
    if (rpc == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no host memory for gRPC");
    rpc->loop = loop;
    rpc->last = &rpc->first;
    pthread_mutex_init(&rpc->lock, NULL);
    pthread_cond_init(&rpc->came, NULL);
    grpc_init();
    rpc->queue = grpc_completion_queue_create_for_next(NULL);
    enum pc_status status = start(rpc, err);
    if (status == PC_OK) {
        *out = rpc;
        return PC_OK;
    }
    grpc_completion_queue_shutdown(rpc->queue);
    grpc_completion_queue_next(rpc->queue, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
    free_parts(rpc);
    return status;
}

void pc_rpc_free(struct pc_rpc *rpc)
{
    if (rpc == NULL)
        return;
    while (rpc->pending > 0) /* of servers and calls that have ended already */
        call_all(rpc, take_all(rpc, true));
    grpc_completion_queue_shutdown(rpc->queue);
    pthread_join(rpc->thread, NULL);
    free_parts(rpc);
}
