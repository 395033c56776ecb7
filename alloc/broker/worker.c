#include "alloc/broker/worker.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

struct pc_account {
    struct pc_list link; /* in worker->active while it has jobs */
    struct pc_list jobs;
    struct pc_worker *worker;
    uint64_t vtime; /* ns of driver time, times weight */
    unsigned weight;
};

struct pc_worker {
    struct pc_loop *loop;
    pthread_t thread;
    pthread_mutex_t lock; /* guards everything below but running_since */
    pthread_cond_t wake;
    struct pc_list active;   /* accounts with jobs */
    struct pc_list finished; /* jobs whose done is to be called */
    bool posted;             /* a delivery of finished jobs is on its way */
    bool stop;
    uint64_t floor; /* vtime of the least served account when it was last chosen */
    _Atomic uint64_t running_since;
};

static struct pc_account *least_served(struct pc_worker *worker)
{
    struct pc_account *best = NULL, *it;
    pc_list_each(it, &worker->active, link)
        if (best == NULL || it->vtime < best->vtime)
            best = it;
    return best;
}

static void deliver(struct pc_loop *loop, void *arg)
{
    (void)loop;
    struct pc_worker *worker = arg;
    pthread_mutex_lock(&worker->lock);
    worker->posted = false;
    while (!pc_list_empty(&worker->finished)) {
        struct pc_job *job = pc_list_first(&worker->finished, struct pc_job, link);
        pc_list_remove(&job->link);
        pthread_mutex_unlock(&worker->lock);
        job->done(job);
        pthread_mutex_lock(&worker->lock);
    }
    pthread_mutex_unlock(&worker->lock);
}

/* Called with the lock held. Should the post fail for want of memory, the next finished job posts for this one too. */
static void finish(struct pc_worker *worker, struct pc_account *account, struct pc_job *job)
{
    pc_list_remove(&job->link);
    if (pc_list_empty(&account->jobs))
        pc_list_remove(&account->link);
    pc_list_append(&worker->finished, &job->link);
    if (!worker->posted)
        worker->posted = pc_loop_post(worker->loop, deliver, worker, NULL) == PC_OK;
}

/* Serves one step. Called, and returns, with the lock held. */
static void serve(struct pc_worker *worker)
{
    struct pc_account *account = least_served(worker);
    struct pc_job *job = pc_list_first(&account->jobs, struct pc_job, link);
    worker->floor = account->vtime;
    uint64_t before = pc_loop_now_ns();
    atomic_store(&worker->running_since, before);
    pthread_mutex_unlock(&worker->lock);
    enum pc_step step = job->step(job);
    pthread_mutex_lock(&worker->lock);
    atomic_store(&worker->running_since, 0);
    account->vtime += (pc_loop_now_ns() - before) * account->weight;
    if (step == PC_STEP_DONE)
        finish(worker, account, job);
}

static void *run(void *arg)
{
    struct pc_worker *worker = arg;
    pthread_mutex_lock(&worker->lock);
    while (!worker->stop) {
        if (pc_list_empty(&worker->active))
            pthread_cond_wait(&worker->wake, &worker->lock);
        else
            serve(worker);
    }
    pthread_mutex_unlock(&worker->lock);
    return NULL;
}

enum pc_status pc_worker_create(struct pc_loop *loop, struct pc_worker **out, struct pc_error *err)
{
    struct pc_worker *worker = calloc(1, sizeof *worker);
    if (worker == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no memory for a worker");
    worker->loop = loop;
    pthread_mutex_init(&worker->lock, NULL);
    pthread_cond_init(&worker->wake, NULL);
    pc_list_init(&worker->active);
    pc_list_init(&worker->finished);
    int rc = pthread_create(&worker->thread, NULL, run, worker);
    if (rc != 0) {
        free(worker);
        return pc_error_errno(err, rc, "cannot start the thread of a GPU");
    }
    *out = worker;
    return PC_OK;
}

bool pc_worker_stop(struct pc_worker *worker, unsigned wait_ms)
{
    if (worker == NULL)
        return true;
    pthread_mutex_lock(&worker->lock);
    worker->stop = true;
    pthread_cond_signal(&worker->wake);
    pthread_mutex_unlock(&worker->lock);
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += wait_ms / 1000;
    until.tv_nsec += (long)(wait_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    if (pthread_timedjoin_np(worker->thread, NULL, &until) != 0)
        return false;
    pthread_mutex_destroy(&worker->lock);
    pthread_cond_destroy(&worker->wake);
    free(worker);
    return true;
}

enum pc_status pc_account_create(struct pc_worker *worker, unsigned weight, struct pc_account **out,
                                 struct pc_error *err)
{
    struct pc_account *account = calloc(1, sizeof *account);
    if (account == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no memory for a worker's account");
    account->worker = worker;
    account->weight = weight;
    pc_list_init(&account->link);
    pc_list_init(&account->jobs);
    *out = account;
    return PC_OK;
}

void pc_account_free(struct pc_account *account)
{
    free(account);
}

void pc_worker_submit(struct pc_account *account, struct pc_job *job)
{
    struct pc_worker *worker = account->worker;
    job->account = account;
    pthread_mutex_lock(&worker->lock);
    if (pc_list_empty(&account->jobs)) {
        struct pc_account *least = least_served(worker);
        uint64_t start = least != NULL ? least->vtime : worker->floor;
        if (account->vtime < start)
            account->vtime = start;
        pc_list_append(&worker->active, &account->link);
    }
    pc_list_append(&account->jobs, &job->link);
    pthread_cond_signal(&worker->wake);
    pthread_mutex_unlock(&worker->lock);
}

uint64_t pc_worker_running_since(struct pc_worker *worker)
{
    return atomic_load(&worker->running_since);
}
