#include "alloc/broker/watcher.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct pc_watcher {
    struct pc_loop *loop;
    const struct pc_nvml *nvml;
    const char *const *uuids;
    unsigned cards;
    pc_snapshot_fn callback;
    void *arg;
    pthread_t thread;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t wake;
    unsigned interval_ms;
    struct pc_snapshot *ready; /* taken, not yet looked at */
    bool stop;
};

/* ---- one snapshot ---- */

static void read_memory(const struct pc_nvml *nvml, pc_nvml_device device, struct pc_card_view *card)
{
    struct pc_nvml_memory memory = {.version = PC_NVML_MEMORY_VERSION};
    if (nvml->nvmlDeviceGetMemoryInfo(device, &memory) != PC_NVML_SUCCESS)
        return;
    card->total = memory.total;
    card->reserved = memory.reserved;
    card->used = memory.used;
    card->memory_valid = true;
}

/* The list grows between two calls, so room is doubled until it fits. */
static void read_processes(const struct pc_nvml *nvml, pc_nvml_device device, struct pc_card_view *card)
{
    for (unsigned room = 64; room <= 64 * 1024; room *= 2) {
        struct pc_nvml_process *list = calloc(room, sizeof *list);
        unsigned count = room;
        if (list == NULL)
            return;
        pc_nvml_result r = nvml->nvmlDeviceGetComputeRunningProcesses(device, &count, list);
        if (r == PC_NVML_SUCCESS && count <= room) {
            card->process = list;
            card->count = count;
            card->list_valid = true;
            return;
        }
        free(list);
        if (r != PC_NVML_ERROR_INSUFFICIENT_SIZE && r != PC_NVML_SUCCESS)
            return;
    }
}

struct pc_snapshot *pc_snapshot_take(const struct pc_nvml *nvml, const char *const *uuids, unsigned cards)
{
    struct pc_snapshot *snapshot = calloc(1, sizeof *snapshot + cards * sizeof snapshot->card[0]);
    if (snapshot == NULL)
        return NULL;
    snapshot->cards = cards;
    snapshot->started_ns = pc_loop_now_ns();
    for (unsigned i = 0; i < cards; i++) {
        pc_nvml_device device;
        if (nvml->nvmlDeviceGetHandleByUUID(uuids[i], &device) != PC_NVML_SUCCESS)
            continue;
        read_memory(nvml, device, &snapshot->card[i]);
        read_processes(nvml, device, &snapshot->card[i]);
    }
    return snapshot;
}

void pc_snapshot_free(struct pc_snapshot *snapshot)
{
    if (snapshot == NULL)
        return;
    for (unsigned i = 0; i < snapshot->cards; i++)
        free(snapshot->card[i].process);
    free(snapshot);
}

const struct pc_nvml_process *pc_card_process(const struct pc_card_view *card, int64_t pid)
{
    for (unsigned i = 0; i < card->count; i++)
        if ((int64_t)card->process[i].pid == pid)
            return &card->process[i];
    return NULL;
}

/* ---- the thread ---- */

static void deliver(struct pc_loop *loop, void *arg)
{
    (void)loop;
    struct pc_watcher *watcher = arg;
    pthread_mutex_lock(&watcher->lock);
    struct pc_snapshot *snapshot = watcher->ready;
    pthread_mutex_unlock(&watcher->lock);
    watcher->callback(snapshot, watcher->arg);
    pthread_mutex_lock(&watcher->lock);
    watcher->ready = NULL;
    pthread_cond_signal(&watcher->wake);
    pthread_mutex_unlock(&watcher->lock);
    pc_snapshot_free(snapshot);
}

/* Waits out the interval counted from `since`; the interval may change meanwhile. Called with the lock held. */
static void pause_between(struct pc_watcher *watcher, uint64_t since)
{
    while (!watcher->stop) {
        uint64_t until = since + watcher->interval_ms * 1000000ull;
        if (watcher->ready == NULL && pc_loop_now_ns() >= until)
            return;
        if (watcher->ready != NULL) {
            pthread_cond_wait(&watcher->wake, &watcher->lock);
            continue;
        }
        struct timespec at = {.tv_sec = (time_t)(until / 1000000000), .tv_nsec = (long)(until % 1000000000)};
        pthread_cond_timedwait(&watcher->wake, &watcher->lock, &at);
    }
}

static void *run(void *arg)
{
    struct pc_watcher *watcher = arg;
    pthread_mutex_lock(&watcher->lock);
    while (!watcher->stop) {
        pthread_mutex_unlock(&watcher->lock);
        struct pc_snapshot *snapshot = pc_snapshot_take(watcher->nvml, watcher->uuids, watcher->cards);
        pthread_mutex_lock(&watcher->lock);
        uint64_t now = pc_loop_now_ns();
        if (snapshot != NULL) {
            watcher->ready = snapshot;
            if (pc_loop_post(watcher->loop, deliver, watcher, NULL) != PC_OK) {
                watcher->ready = NULL;
                pc_snapshot_free(snapshot);
            }
        }
        pause_between(watcher, now);
    }
    pthread_mutex_unlock(&watcher->lock);
    return NULL;
}

enum pc_status pc_watcher_create(struct pc_loop *loop, const struct pc_nvml *nvml, const char *const *uuids,
                                 unsigned cards, pc_snapshot_fn callback, void *arg, struct pc_watcher **out,
                                 struct pc_error *err)
{
    struct pc_watcher *watcher = calloc(1, sizeof *watcher);
    if (watcher == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no memory for the NVML watch");
    *watcher = (struct pc_watcher){.loop = loop,
                                   .nvml = nvml,
                                   .uuids = uuids,
                                   .cards = cards,
                                   .callback = callback,
                                   .arg = arg,
                                   .interval_ms = 1000};
    pthread_mutex_init(&watcher->lock, NULL);
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&watcher->wake, &clock);
    pthread_condattr_destroy(&clock);
    int rc = pthread_create(&watcher->thread, NULL, run, watcher);
    if (rc != 0) {
        free(watcher);
        return pc_error_errno(err, rc, "cannot start the thread of the NVML watch");
    }
    *out = watcher;
    return PC_OK;
}

void pc_watcher_set_interval(struct pc_watcher *watcher, unsigned ms)
{
    pthread_mutex_lock(&watcher->lock);
    if (watcher->interval_ms != ms) {
        watcher->interval_ms = ms;
        pthread_cond_signal(&watcher->wake);
    }
    pthread_mutex_unlock(&watcher->lock);
}

void pc_watcher_stop(struct pc_watcher *watcher, unsigned wait_ms)
{
    if (watcher == NULL)
        return;
    pthread_mutex_lock(&watcher->lock);
    watcher->stop = true;
    pthread_cond_signal(&watcher->wake);
    pthread_mutex_unlock(&watcher->lock);
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += wait_ms / 1000 + 1;
    if (pthread_timedjoin_np(watcher->thread, NULL, &until) != 0)
        return;
    pc_snapshot_free(watcher->ready);
    pthread_mutex_destroy(&watcher->lock);
    pthread_cond_destroy(&watcher->wake);
    free(watcher);
}
