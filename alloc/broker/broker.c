/* Start and stop. */
#include "alloc/broker/broker.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/base/log.h"

enum { TICK_MS = 100 };
#define DRIVER_CALL_MAX_NS 5000000000ull

uint64_t pc_broker_new_id(struct pc_broker *b)
{
    return b->epoch << 32 | ++b->next_id;
}

/* The run directory with its lock: one poolcapd at a time. */
static enum pc_status open_directory(struct pc_broker *b, struct pc_error *err)
{
    char path[PC_PATH_MAX + 16];
    const char *dir = b->config.run_directory;
    if (mkdir(dir, 0711) < 0 && errno != EEXIST)
        return pc_error_errno(err, errno, "cannot make the run directory %.200s; make it, or give --run-directory",
                              dir);
    snprintf(path, sizeof path, "%s/lock", dir);
    b->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (b->lock_fd < 0)
        return pc_error_errno(err, errno, "the run directory %.200s is not writable; run as its owner", dir);
    if (flock(b->lock_fd, LOCK_EX | LOCK_NB) < 0)
        return pc_error_set(err, PC_ERR_EXISTS, errno, "another poolcapd uses %.200s; stop it first", dir);
    snprintf(path, sizeof path, "%s/grants", dir);
    if (mkdir(path, 0711) < 0 && errno != EEXIST)
        return pc_error_errno(err, errno, "cannot make %.200s", path);
    return PC_OK;
}

static enum pc_status open_gpus(struct pc_broker *b, struct pc_error *err)
{
    const char *cuda = b->config.cuda_library[0] != '\0' ? b->config.cuda_library : NULL;
    const char *nvml = b->config.nvml_library[0] != '\0' ? b->config.nvml_library : NULL;
    struct pc_error first = {.text = ""};
    enum pc_status status = pc_cuda_load(cuda, &b->cuda, err);
    if (status != PC_OK)
        return status;
    b->has_nvml = pc_nvml_load(nvml, &b->nvml, &first) == PC_OK && b->nvml.nvmlInit() == PC_NVML_SUCCESS;
    if (!b->has_nvml)
        pc_log_warn("broker", "no NVML (%s): the third line of the cap is missing", first.text);
    status = pc_devices_create(&b->cuda, &b->devices, err);
    for (int i = 0; status == PC_OK && i < pc_devices_count(b->devices) && b->gpus < PC_GPUS_MAX; i++) {
        struct pc_error why;
        if (pc_gpu_open(b, i, &why) != PC_OK) {
            pc_log_error("broker", "GPU %d is left out: %s", i, why.text);
            first = why;
        }
    }
    if (status == PC_OK && b->gpus == 0)
        status = pc_error_set(err, PC_ERR_DEVICE, 0, "no GPU can be used: %.400s", first.text);
    return status;
}

static enum pc_status make_grants(struct pc_broker *b, struct pc_error *err)
{
    char path[PC_PATH_MAX + 16];
    unsigned count = 0;
    snprintf(path, sizeof path, "%s/books", b->config.run_directory);
    enum pc_status status = pc_books_open(path, &b->books, &b->epoch, err);
    if (status != PC_OK)
        return status;
    struct pc_book_record **old = pc_books_list(b->books, &count);
    for (unsigned i = 0; status == PC_OK && i < b->config.grants; i++) {
        struct pc_grant *g;
        status = pc_grant_make(b, &b->config.grant[i], true, &g, err);
        if (status != PC_OK)
            pc_error_prefix(err, "%.120s:%u", b->config.file, b->config.grant[i].line);
    }
    if (status == PC_OK)
        status = pc_inherit(b, old, count, err);
    free(old);
    struct pc_grant *g;
    pc_list_each(g, &b->grants, link)
        if (status == PC_OK && !g->dropping)
            status = pc_grant_listen(g, err);
    return status;
}

static void on_signal(struct pc_loop *loop, int number, void *arg)
{
    (void)arg;
    pc_log_info("broker", "signal %d: stopping; tenants keep their memory", number);
    pc_loop_stop(loop);
}

/* Looks for a driver call that hangs, and stands in for the watch where there is no NVML. */
static void on_tick(struct pc_loop *loop, void *arg)
{
    (void)loop;
    struct pc_broker *b = arg;
    for (unsigned i = 0; i < b->gpus; i++) {
        uint64_t since = pc_worker_running_since(b->gpu[i]->worker);
        if (since != 0 && pc_loop_now_ns() > since + DRIVER_CALL_MAX_NS)
            pc_gpu_mark_faulty(b->gpu[i], "a driver call hangs");
    }
    if (b->watcher == NULL) {
        struct pc_snapshot *blind = calloc(1, sizeof *blind + b->gpus * sizeof blind->card[0]);
        if (blind == NULL)
            return;
        blind->cards = b->gpus;
        blind->started_ns = pc_loop_now_ns();
        pc_watch_snapshot(blind, b);
        pc_snapshot_free(blind);
    }
}

static enum pc_status start_watch(struct pc_broker *b, struct pc_error *err)
{
    enum pc_status status = PC_OK;
    if (b->has_nvml)
        status = pc_watcher_create(b->loop, &b->nvml, b->uuids, b->gpus, pc_watch_snapshot, b, &b->watcher, err);
    if (status == PC_OK)
        status = pc_timer_create(b->loop, on_tick, b, &b->tick, err);
    if (status == PC_OK)
        pc_timer_start(b->tick, TICK_MS, TICK_MS);
    return status;
}

enum pc_status pc_broker_start(struct pc_broker *b, struct pc_error *err)
{
    b->lock_fd = b->admin_fd = -1;
    pc_list_init(&b->tenants);
    pc_list_init(&b->grants);
    pc_list_init(&b->sessions);
    pc_list_init(&b->admins);
    b->arena = malloc(sizeof *b->arena);
    if (b->arena == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no memory for messages");
    enum pc_status status = open_directory(b, err);
    if (status == PC_OK)
        status = pc_loop_create(&b->loop, err);
    if (status == PC_OK)
        status = pc_loop_signal(b->loop, SIGTERM, on_signal, b, err);
    if (status == PC_OK)
        status = pc_loop_signal(b->loop, SIGINT, on_signal, b, err);
    if (status == PC_OK)
        status = pc_ledger_create(&b->ledger, err);
    if (status == PC_OK)
        status = open_gpus(b, err);
    if (status == PC_OK)
        status = make_grants(b, err);
    if (status == PC_OK)
        status = start_watch(b, err);
    if (status == PC_OK)
        status = pc_admin_open(b, err);
    return status;
}

/*
 * An orderly stop is like being killed, but said on the pages: the books stay, pools are not drained, and the process's
 * end frees what nobody imports.
 */
void pc_broker_stop(struct pc_broker *b)
{
    struct pc_grant *g;
    if (b->grants.next != NULL)
        pc_list_each(g, &b->grants, link)
            if (g->page != NULL)
                pc_page_set_alive(g->page, false);
    if (b->admins.next != NULL)
        pc_admin_close(b);
    pc_watcher_stop(b->watcher, 1000);
    for (unsigned i = 0; i < b->gpus; i++)
        pc_worker_stop(b->gpu[i]->worker, 1000);
}
