#include "alloc/broker/broker.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/base/log.h"
#include "alloc/broker/admin.h"
#include "alloc/broker/death.h"
#include "alloc/broker/evict.h"
#include "alloc/broker/inherit.h"
#include "alloc/broker/static.h"
#include "alloc/broker/want.h"
#include "alloc/broker/watch.h"

enum { TICK_MS = 100, FAST_MS = 10, WAITING_MS = 50, SLOW_MS = 1000, STOP_MS = 1000 };
#define HURRY_NS 2000000000ull
#define DRIVER_CALL_MAX_NS 5000000000ull

/* ---- what follows from changes ---- */

static void check_books(struct pc_broker *b)
{
    struct pc_error err = {.text = "more was given back than was booked"};
    if (!b->check || (pc_ledger_check(b->ledger, &err) == PC_OK && pc_ledger_over_releases(b->ledger) == 0))
        return;
    pc_log_error("broker", "the books do not add up: %s", err.text);
    abort();
}

static void end_dropped(struct pc_broker *b)
{
    struct pc_grant *grant;
    pc_list_each(grant, &b->grants, link) {
        if (!grant->dropping || !pc_grant_ended(grant))
            continue;
        char name[PC_NAME_MAX];
        memcpy(name, grant->name, sizeof name);
        pc_log_info("grant", "%s ended", name);
        pc_grant_free(grant);
        pc_admin_grant_ended(b, name); /* whoever waits finds the directory gone, too */
    }
}

static void settle(struct pc_broker *b)
{
    struct pc_tenant *tenant;
    pc_death_sweep(b);
    pc_list_each(tenant, &b->tenants, link) {
        if (tenant->outlived) { /* pools that nobody uses are all that keeps it up */
            pc_evict_unused(tenant);
            pc_tenant_settle(tenant);
        }
        if (!pc_list_empty(&tenant->wants))
            pc_want_retry(tenant);
    }
    end_dropped(b);
    check_books(b);
}

static void on_settle(struct pc_loop *loop, void *arg)
{
    (void)loop;
    struct pc_broker *b = arg;
    b->settle_posted = false;
    settle(b);
}

/* Posted functions run after the events of the batch. Without host memory for the post, the next tick does it. */
void pc_broker_changed(struct pc_broker *b)
{
    if (!b->settle_posted)
        b->settle_posted = pc_loop_post(b->loop, on_settle, b, NULL) == PC_OK;
}

/* ---- snapshots and time ---- */

void pc_broker_hurry(struct pc_broker *b)
{
    b->urgent_until = pc_loop_now_ns() + HURRY_NS;
    if (b->watcher != NULL)
        pc_watcher_set_interval(b->watcher, FAST_MS);
}

static void set_pace(struct pc_broker *b)
{
    unsigned ms = b->dying > 0 ? WAITING_MS : SLOW_MS;
    if (pc_loop_now_ns() < b->urgent_until)
        ms = FAST_MS;
    if (b->watcher != NULL)
        pc_watcher_set_interval(b->watcher, ms);
}

static void on_snapshot(const struct pc_snapshot *snapshot, void *arg)
{
    struct pc_broker *b = arg;
    for (unsigned i = 0; i < b->gpus; i++)
        if (snapshot->card[i].memory_valid)
            b->gpu[i]->card_used = snapshot->card[i].used;
    pc_death_look(b, snapshot);
    pc_watch_look(b, snapshot, NULL);
    pc_evict_look(b, snapshot);
    set_pace(b);
    pc_broker_changed(b);
}

/* Without NVML: a snapshot in which nothing is known but the time. */
static void look_blindly(struct pc_broker *b)
{
    struct pc_snapshot *blind = calloc(1, sizeof *blind + b->gpus * sizeof blind->card[0]);
    if (blind == NULL)
        return;
    blind->cards = b->gpus;
    blind->started_ns = pc_loop_now_ns();
    on_snapshot(blind, b);
    pc_snapshot_free(blind);
}

static void on_tick(struct pc_loop *loop, void *arg)
{
    (void)loop;
    struct pc_broker *b = arg;
    for (unsigned i = 0; i < b->gpus; i++) {
        struct pc_gpu *gpu = b->gpu[i];
        uint64_t since = gpu->worker != NULL ? pc_worker_running_since(gpu->worker) : 0;
        if (since != 0 && pc_loop_now_ns() > since + DRIVER_CALL_MAX_NS)
            pc_gpu_mark_faulty(gpu, "a driver call has not come back for 5 s");
    }
    if (b->watcher == NULL)
        look_blindly(b);
    pc_broker_changed(b);
}

static void on_signal(struct pc_loop *loop, int number, void *arg)
{
    (void)arg;
    pc_log_info("broker", "stopping on signal %d; tenants keep the memory that they have", number);
    pc_loop_stop(loop);
}

/* ---- start ---- */

static enum pc_status make_directory(const char *path, struct pc_error *err)
{
    if (mkdir(path, 0711) == 0 || errno == EEXIST)
        return PC_OK;
    return pc_error_errno(err, errno, "cannot make %.200s; make it, or choose another with --run-directory", path);
}

static enum pc_status open_run_directory(struct pc_broker *b, struct pc_error *err)
{
    char path[PC_PATH_MAX + 16];
    const char *run = b->config.run_directory;
    enum pc_status status = make_directory(run, err);
    if (status != PC_OK)
        return status;
    snprintf(path, sizeof path, "%s/lock", run);
    b->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (b->lock_fd < 0)
        return pc_error_errno(err, errno,
                              "cannot write in the run directory %.200s; run as its owner, or choose another with "
                              "--run-directory",
                              run);
    if (flock(b->lock_fd, LOCK_EX | LOCK_NB) < 0)
        return pc_error_set(err, PC_ERR_EXISTS, errno,
                            "another poolcapd runs with %.200s; stop it, or choose another with --run-directory", run);
    snprintf(path, sizeof path, "%s/grants", run);
    status = make_directory(path, err);
    if (status == PC_OK)
        status = pc_books_open(run, &b->books, err);
    if (status == PC_OK)
        b->epoch = pc_books_epoch(b->books);
    return status;
}

static enum pc_status open_driver(struct pc_broker *b, struct pc_error *err)
{
    const char *cuda = b->config.cuda_library[0] != '\0' ? b->config.cuda_library : NULL;
    const char *nvml = b->config.nvml_library[0] != '\0' ? b->config.nvml_library : NULL;
    struct pc_error why = {.text = "nvmlInit failed"};
    enum pc_status status = pc_cuda_load(cuda, &b->cuda, err);
    if (status != PC_OK)
        return status;
    b->has_nvml = pc_nvml_load(nvml, &b->nvml, &why) == PC_OK && b->nvml.nvmlInit() == PC_NVML_SUCCESS;
    if (!b->has_nvml)
        pc_log_warn("broker", "no NVML (%s): what processes take beside poolcap is not seen", why.text);
    return pc_devices_create(&b->cuda, &b->devices, err);
}

static enum pc_status open_gpus(struct pc_broker *b, struct pc_error *err)
{
    enum pc_status status = open_driver(b, err);
    unsigned usable = 0;
    int count = status == PC_OK ? pc_devices_count(b->devices) : 0;
    if (count > PC_GPUS_MAX) {
        pc_log_warn("broker", "of %d GPUs the first %d are used", count, PC_GPUS_MAX);
        count = PC_GPUS_MAX;
    }
    for (int i = 0; i < count && status == PC_OK; i++) {
        status = pc_gpu_open(b, i, err);
        usable += status == PC_OK && b->gpu[i]->fault[0] == '\0';
    }
    if (status == PC_OK && usable == 0)
        status = pc_error_set(err, PC_ERR_DEVICE, 0, "no GPU can be used%s%.400s", count > 0 ? ": " : "",
                              count > 0 ? b->gpu[0]->fault : "");
    return status;
}

/*
 * Promises of the poolcapd before come first: they fitted then. A grant of the configuration that does not fit is an
 * error at a first start; at a later one the node must not stay without poolcapd for it.
 */
static enum pc_status make_grants(struct pc_broker *b, struct pc_error *err)
{
    char text[PC_STATIC_TEXT];
    pc_inherit(b);
    bool first = pc_list_empty(&b->grants);
    pc_static_drop_missing(b, &b->config);
    enum pc_status status = pc_static_apply(b, &b->config, text, err);
    if (status != PC_OK && !first) {
        pc_log_error("broker", "the configuration is not applied further: %s", err->text);
        status = PC_OK;
    }
    return status == PC_OK ? pc_static_listen(b, err) : status;
}

static enum pc_status start_watch(struct pc_broker *b, struct pc_error *err)
{
    enum pc_status status = PC_OK;
    if (b->has_nvml)
        status = pc_watcher_create(b->loop, &b->nvml, b->uuid, b->gpus, on_snapshot, b, &b->watcher, err);
    if (status == PC_OK)
        status = pc_timer_create(b->loop, on_tick, b, &b->tick, err);
    if (status == PC_OK) {
        pc_timer_start(b->tick, TICK_MS, TICK_MS);
        pc_broker_hurry(b);
    }
    return status;
}

static enum pc_status start_loop(struct pc_broker *b, struct pc_error *err)
{
    enum pc_status status = pc_loop_create(&b->loop, err);
    if (status == PC_OK)
        status = pc_loop_signal(b->loop, SIGTERM, on_signal, b, err);
    if (status == PC_OK)
        status = pc_loop_signal(b->loop, SIGINT, on_signal, b, err);
    return status;
}

/* Two descriptors a session, for 256 sessions a grant. */
static void raise_limits(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static bool wants_checks(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return true;
#else
    return getenv("POOLCAP_CHECK") != NULL;
#endif
}

enum pc_status pc_broker_start(struct pc_broker *b, struct pc_error *err)
{
    b->lock_fd = b->admin_fd = -1;
    b->check = wants_checks();
    pc_list_init(&b->tenants);
    pc_list_init(&b->grants);
    pc_list_init(&b->admins);
    pc_list_init(&b->refusals);
    raise_limits();
    b->arena = malloc(sizeof *b->arena);
    if (b->arena == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no memory for messages");
    enum pc_status status = open_run_directory(b, err);
    if (status == PC_OK)
        status = start_loop(b, err);
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

/* ---- stop ---- */

static void say_away(struct pc_broker *b)
{
    struct pc_grant *grant;
    pc_list_each(grant, &b->grants, link)
        if (grant->page != NULL)
            pc_page_set_alive(grant->page, false);
}

/* The accounts, records and blocks end with the process; the records in the file must stay as they are. */
void pc_broker_stop(struct pc_broker *b)
{
    if (b->grants.next != NULL) {
        say_away(b);
        pc_admin_close(b);
    }
    pc_watcher_stop(b->watcher, STOP_MS);
    for (unsigned i = 0; i < b->gpus; i++)
        if (b->gpu[i]->worker != NULL)
            pc_worker_stop(b->gpu[i]->worker, STOP_MS);
    pc_timer_free(b->tick);
    pc_books_close(b->books);
    free(b->arena);
    pc_config_clear(&b->config);
}
