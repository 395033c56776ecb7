#include "alloc/broker/want.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/bytes.h"
#include "alloc/base/log.h"
#include "alloc/broker/evict.h"
#include "alloc/broker/large.h"
#include "alloc/broker/pooled.h"

#define MS 1000000ull
#define SIBLINGS_NS (50 * MS) /* for their idle slabs */
#define CARD_NS (600 * MS)    /* for memory that is on its way back */
#define LAG_NS (200 * MS)     /* for the driver to have what the books admit */
#define LAG_PAUSE_NS (10 * MS)

struct pc_want {
    struct pc_list link; /* tenant->wants */
    struct pc_seat *seat;
    struct pc_tenant *tenant;
    enum pc_want_kind kind;
    uint64_t bytes;
    uint64_t arrived_ns;
    pc_want_fn done; /* NULL: answered, or nobody waits */
    void *arg;
    struct pc_timer *timer;
    bool running;         /* a job is under way for it */
    bool short_of;        /* a cap refused it: err says which */
    uint64_t deadline_ns; /* for what it is short of */
    uint64_t lagging_ns;  /* since when the driver has not had what the books admit; 0: it has */
    uint64_t again_ns;    /* not to be tried before */
    struct pc_error err;
};

/* What a try came to. */
enum outcome { ANSWERED, RUNNING, NOT_YET, SHORT };

/* ---- answers ---- */

/* done may end the session, which cancels what its seats still want; so the want is gone before done is called. */
static void free_want(struct pc_want *want)
{
    pc_timer_free(want->timer);
    pc_list_remove(&want->link);
    free(want);
}

/* What the driver need not be asked for would only hide what the others wait for. */
static void take_time(const struct pc_want *want)
{
    if (want->kind == PC_WANT_POOLED || want->kind == PC_WANT_LARGE)
        pc_latency_add(&want->tenant->gpu->latency, pc_loop_now_ns() - want->arrived_ns);
}

static enum outcome succeed(struct pc_want *want, const struct pc_want_result *result)
{
    take_time(want);
    pc_want_fn done = want->done;
    void *arg = want->arg;
    pc_tenant_publish(want->tenant);
    free_want(want);
    done(result, arg);
    return ANSWERED;
}

static void fail(struct pc_want *want)
{
    take_time(want);
    struct pc_error err = want->err;
    struct pc_want_result result = {.status = err.status, .err = &err, .pool_fd = -1, .memory_fd = -1};
    pc_want_fn done = want->done;
    void *arg = want->arg;
    pc_tenant_publish(want->tenant);
    want->done = NULL;
    if (!want->running)
        free_want(want);
    done(&result, arg);
}

static enum outcome refuse_now(struct pc_want *want)
{
    fail(want);
    return ANSWERED;
}

/* Whether an error is one that other memory coming free may cure. */
static enum outcome by_status(struct pc_want *want, enum pc_status status)
{
    want->err.status = status;
    return status == PC_ERR_OUT_OF_MEMORY ? SHORT : refuse_now(want);
}

static void on_timer(struct pc_loop *loop, void *arg)
{
    (void)loop;
    pc_want_retry(arg);
}

static void wake_at(struct pc_want *want, uint64_t when)
{
    uint64_t now = pc_loop_now_ns();
    struct pc_tenant *tenant = want->tenant;
    if (want->timer == NULL &&
        pc_timer_create(tenant->gpu->broker->loop, on_timer, tenant, &want->timer, NULL) != PC_OK)
        return; /* the broker's tick comes by */
    pc_timer_start(want->timer, when > now ? (when - now + MS - 1) / MS : 0, 0);
}

static void job_begins(struct pc_want *want)
{
    want->running = true;
    want->seat->jobs++;
    want->tenant->busy = true;
    pc_gpu_change_begins(want->tenant->gpu);
}

static void job_ends(struct pc_want *want)
{
    want->running = false;
    want->seat->jobs--;
    want->tenant->busy = false;
    pc_gpu_change_ends(want->tenant->gpu);
    pc_broker_changed(want->tenant->gpu->broker);
}

/*
 * A job failed; its bookings are undone. The driver's "out of memory" is tried again for a while, anything else is
 * answered as it is.
 */
static void job_failed(struct pc_want *want, enum pc_status status, const struct pc_error *err, bool broken)
{
    struct pc_gpu *gpu = want->tenant->gpu;
    uint64_t now = pc_loop_now_ns();
    if (err->code == PC_CU_ERROR_OUT_OF_MEMORY) /* whichever call it was that had none */
        status = PC_ERR_OUT_OF_MEMORY;
    want->err = *err;
    want->err.status = status;
    if (broken)
        pc_gpu_mark_faulty(gpu, err->text);
    if (want->done == NULL) {
        free_want(want);
        return;
    }
    if (want->lagging_ns == 0)
        want->lagging_ns = now;
    if (status == PC_ERR_OUT_OF_MEMORY && now < want->lagging_ns + LAG_NS) {
        want->again_ns = now + LAG_PAUSE_NS;
        wake_at(want, want->again_ns);
        return;
    }
    if (status == PC_ERR_OUT_OF_MEMORY) {
        gpu->broken_promises++;
        pc_log_error("want", "a broken promise: tenant %s was granted memory that GPU %s does not have: %s",
                     want->tenant->name, gpu->info.uuid, err->text);
    }
    fail(want);
}

/* ---- contexts and direct memory: the books alone ---- */

static enum outcome try_books(struct pc_want *want)
{
    struct pc_want_result result = {.status = PC_OK, .pool_fd = -1, .memory_fd = -1};
    enum pc_status status = want->kind == PC_WANT_CONTEXT ? pc_seat_book_context(want->seat, &want->err)
                                                          : pc_seat_book_direct(want->seat, want->bytes, &want->err);
    return status == PC_OK ? succeed(want, &result) : by_status(want, status);
}

/* ---- large memory ---- */

struct large_job {
    struct pc_large large;
    struct pc_block *block;
};

static void undo_large(struct pc_seat *seat, struct pc_block *block)
{
    pc_ledger_release(seat->ledger, PC_CHARGE_LARGE, block->bytes, NULL);
    pc_books_end(block->record);
    pc_block_forget(seat->tenant->gpu->broker, block);
}

static void large_done(struct pc_large *large)
{
    struct large_job *job = pc_container_of(large, struct large_job, large);
    struct pc_want *want = large->arg;
    struct pc_want_result result = {.status = PC_OK, .block = job->block, .pool_fd = -1, .memory_fd = large->fd};
    job_ends(want);
    if (large->status == PC_OK && want->done != NULL) {
        pc_block_give(job->block, want->seat);
        succeed(want, &result);
    } else { /* a descriptor that nobody gets is closed below, and the memory is free */
        undo_large(want->seat, job->block);
        job_failed(want, large->status, &large->err, large->broken);
    }
    if (large->fd >= 0)
        close(large->fd);
    free(job);
}

static enum pc_status book_large(struct pc_want *want, struct pc_block *block)
{
    struct pc_seat *seat = want->seat;
    void *place;
    enum pc_status status = pc_books_new(want->tenant->gpu->broker->books, PC_BOOKS_LARGES, &place, &want->err);
    if (status == PC_OK)
        status = pc_ledger_book(seat->ledger, PC_CHARGE_LARGE, want->bytes, &want->err);
    if (status != PC_OK)
        return status;
    struct pc_books_large *record = block->record = place;
    record->id = block->id;
    record->bytes = block->bytes;
    record->pid = (uint64_t)seat->pid;
    record->starttime = seat->starttime;
    memcpy(record->grant, seat->record->grant, sizeof record->grant);
    memcpy(record->gpu, seat->record->gpu, sizeof record->gpu);
    pc_books_commit(record, PC_BOOKS_USED);
    return PC_OK;
}

static enum outcome try_large(struct pc_want *want)
{
    struct pc_tenant *tenant = want->tenant;
    if (tenant->busy)
        return NOT_YET;
    struct pc_block *block = pc_block_new(tenant->gpu->broker, want->bytes);
    struct large_job *job = calloc(1, sizeof *job);
    enum pc_status status = block != NULL && job != NULL
                                ? book_large(want, block)
                                : pc_error_set(&want->err, PC_ERR_HOST_MEMORY, 0, "no host memory for a request");
    if (status != PC_OK) {
        free(job);
        pc_block_forget(tenant->gpu->broker, block);
        return by_status(want, status);
    }
    job->block = block;
    job->large = (struct pc_large){.done = large_done, .arg = want, .gpu = tenant->gpu, .bytes = want->bytes};
    job_begins(want);
    pc_large_submit(tenant->account, &job->large);
    return RUNNING;
}

/* ---- blocks of a pool ---- */

struct pooled_job {
    struct pc_pooled pooled;
    struct pc_import *import;
    bool import_is_new; /* no fd of it was ever made: it goes again if the job fails */
    bool was_parked;
};

static void give_pooled(struct pc_want *want, struct pooled_job *job)
{
    struct pc_pooled *p = &job->pooled;
    struct pc_want_result result = {
        .status = PC_OK, .block = p->block, .import = job->import, .pool_fd = p->fd, .memory_fd = -1};
    pc_block_give(p->block, want->seat);
    succeed(want, &result);
}

/* Memory that was taken and that nobody gets: a parked block goes back, fresh memory was freed by the job. */
static void undo_pooled(struct pc_want *want, struct pooled_job *job)
{
    struct pc_pooled *p = &job->pooled;
    struct pc_generation *generation = p->generation;
    pc_ledger_block_release(want->seat->ledger, generation->ledger, p->block->bytes, NULL);
    while (!pc_list_empty(&p->plan.free_first))
        pc_generation_park(generation, pc_list_first(&p->plan.free_first, struct pc_block, link));
    if (job->was_parked || p->status == PC_OK)
        pc_generation_park(generation, p->block);
    else
        pc_block_forget(want->tenant->gpu->broker, p->block);
    if (job->import_is_new)
        pc_import_close(job->import);
}

static void pooled_done(struct pc_pooled *p)
{
    struct pooled_job *job = pc_container_of(p, struct pooled_job, pooled);
    struct pc_want *want = p->arg;
    struct pc_generation *generation = p->generation;
    bool given = p->status == PC_OK && want->done != NULL;
    generation->live--;
    for (unsigned i = 0; i < p->failures; i++)
        pc_generation_park_bad(generation, p->failed[i].ptr, p->failed[i].bytes);
    if (!given)
        undo_pooled(want, job);
    if (p->has_stats || generation->pool == NULL)
        pc_generation_verify(generation, &p->stats, p->status == PC_OK);
    job_ends(want);
    if (given)
        give_pooled(want, job);
    else
        job_failed(want, p->status, &p->err, p->broken);
    if (p->fd >= 0)
        close(p->fd);
    free(job);
}

/* How dear a generation is for a request: the lower the better. */
enum price { OWN_PARKED, PARKED, NO_GROWTH, GROWTH, NONE };

static enum price price_of(const struct pc_generation *generation, uint64_t bytes, uint64_t process)
{
    uint64_t growth;
    enum price best = NONE;
    const struct pc_block *block;
    if (generation->state != PC_GENERATION_OPEN || !pc_ledger_generation_fits(generation->ledger, bytes, &growth))
        return NONE;
    pc_list_each(block, &generation->parked, link)
        if (!block->bad && block->bytes == bytes && best != OWN_PARKED)
            best = block->process == process ? OWN_PARKED : PARKED;
    if (best != NONE)
        return best;
    return growth == 0 ? NO_GROWTH : GROWTH;
}

static struct pc_generation *choose(const struct pc_want *want)
{
    struct pc_generation *generation, *best = NULL;
    enum price least = NONE;
    pc_list_each(generation, &want->tenant->generations, link) {
        enum price price = price_of(generation, want->bytes, want->seat->process);
        if (price < least) {
            least = price;
            best = generation;
        }
    }
    return best;
}

static enum pc_status no_generation(struct pc_want *want)
{
    char cap[PC_BYTES_TEXT], charged[PC_BYTES_TEXT], asked[PC_BYTES_TEXT];
    struct pc_ledger_tenant_view view;
    pc_ledger_tenant_read(want->tenant->ledger, &view);
    return pc_error_set(&want->err, PC_ERR_OUT_OF_MEMORY, 0,
                        "tenant %s: cap %s, charged %s, requested %s: no single pool of it has that much room",
                        want->tenant->name, pc_bytes_format(view.cap, cap), pc_bytes_format(view.charged, charged),
                        pc_bytes_format(want->bytes, asked));
}

/* The generation that serves it, opened where none does and there is room for one more. */
static enum pc_status find_generation(struct pc_want *want, struct pc_generation **out)
{
    *out = choose(want);
    if (*out != NULL)
        return PC_OK;
    if (pc_ledger_generation_room(want->tenant->ledger) < want->bytes)
        return no_generation(want);
    return pc_generation_open(want->tenant, out, &want->err);
}

/* A block that is parked: at once where nothing has to be done about it, else by a job that zeroes it or exports the
 * fd. */
static enum outcome start_pooled(struct pc_want *want, struct pc_generation *generation, struct pc_block *parked,
                                 uint64_t growth, struct pooled_job *job)
{
    struct pc_seat *seat = want->seat;
    struct pc_pooled *p = &job->pooled;
    job->was_parked = parked != NULL;
    p->done = pooled_done;
    p->arg = want;
    p->generation = generation;
    p->block = parked;
    p->want_fd = !job->import->has_fd;
    p->fd = -1;
    pc_list_init(&p->plan.free_first);
    if (parked != NULL)
        p->plan.zero = parked->process != seat->process;
    else if (!pc_generation_plan(generation, want->bytes, growth, seat->process, &p->plan)) {
        pc_error_set(&want->err, PC_ERR_OUT_OF_MEMORY, 0,
                     "tenant %s: memory that the driver failed to free is in the way", want->tenant->name);
        return SHORT;
    }
    if (parked != NULL && !p->plan.zero && !p->want_fd) {
        give_pooled(want, job);
        return ANSWERED;
    }
    if (parked == NULL) {
        p->block = pc_block_new(want->tenant->gpu->broker, want->bytes);
        if (p->block == NULL) {
            pc_error_set(&want->err, PC_ERR_HOST_MEMORY, 0, "no host memory for a block");
            return SHORT;
        }
        p->block->generation = generation;
        p->block->process = seat->process;
    }
    generation->live++;
    job_begins(want);
    pc_pooled_submit(p);
    return RUNNING;
}

/* Books a block and starts what is to be done for it. Booked in the file, the import too, before the driver is asked.
 */
static enum outcome book_pooled(struct pc_want *want, struct pc_generation *generation, struct pooled_job *job)
{
    struct pc_seat *seat = want->seat;
    uint64_t growth = 0;
    enum pc_status status = pc_generation_book(generation, seat, want->bytes, &growth, &want->err);
    if (status != PC_OK)
        return by_status(want, status == PC_ERR_BUSY ? PC_ERR_OUT_OF_MEMORY : status);
    job->import_is_new = pc_import_find(seat, generation->id) == NULL;
    status = pc_import_open(seat, generation, &job->import, &want->err);
    struct pc_block *parked = NULL;
    enum outcome outcome = SHORT;
    if (status == PC_OK) {
        parked = pc_generation_unpark(generation, want->bytes, seat->process);
        outcome = start_pooled(want, generation, parked, growth, job);
    }
    if (outcome != SHORT)
        return outcome;
    if (parked != NULL)
        pc_generation_park(generation, parked);
    if (status == PC_OK && job->import_is_new)
        pc_import_close(job->import);
    pc_generation_unbook(generation, seat, want->bytes, growth);
    return by_status(want, status == PC_OK ? want->err.status : status);
}

static enum outcome try_pooled(struct pc_want *want)
{
    struct pc_generation *generation = NULL;
    if (want->tenant->busy)
        return NOT_YET;
    enum pc_status status = find_generation(want, &generation);
    if (status != PC_OK)
        return by_status(want, status);
    struct pooled_job *job = calloc(1, sizeof *job);
    if (job == NULL)
        return by_status(want, pc_error_set(&want->err, PC_ERR_HOST_MEMORY, 0, "no host memory for a request"));
    enum outcome outcome = book_pooled(want, generation, job);
    if (outcome != RUNNING)
        free(job);
    return outcome;
}

/* ---- trying and waiting ---- */

static enum outcome attempt(struct pc_want *want)
{
    if (pc_gpu_check(want->tenant->gpu, &want->err) != PC_OK)
        return refuse_now(want);
    switch (want->kind) {
    case PC_WANT_POOLED:
        return try_pooled(want);
    case PC_WANT_LARGE:
        return try_large(want);
    default:
        return try_books(want);
    }
}

/* Whether it pays to try again; a try that is refused counts as a refusal. */
static bool has_room(const struct pc_want *want)
{
    uint64_t room = want->kind == PC_WANT_POOLED ? pc_ledger_room(want->seat->share->ledger)
                                                 : pc_ledger_room_new(want->seat->share->ledger);
    return room >= want->bytes;
}

static bool siblings_hold(const struct pc_want *want)
{
    const struct pc_seat *seat;
    pc_list_each(seat, &want->tenant->seats, link)
        if (seat->process != want->seat->process && !pc_list_empty(&seat->blocks))
            return true;
    return false;
}

static bool recently_pending(const struct pc_tenant *tenant)
{
    const struct pc_seat *seat;
    pc_list_each(seat, &tenant->seats, link) {
        struct pc_ledger_session_view view;
        pc_ledger_session_read(seat->ledger, &view);
        if (view.kinds[PC_CHARGE_PENDING] > 0 && pc_loop_now_ns() < seat->pending_ns + 2 * CARD_NS)
            return true;
    }
    return false;
}

/* How long it pays to wait for what it is short of; 0: nothing will come. */
static uint64_t patience(struct pc_want *want)
{
    struct pc_tenant *tenant = want->tenant;
    if (pc_evict_unused(tenant) || pc_evict_pending(tenant) || recently_pending(tenant) ||
        tenant->gpu->broker->dying > 0)
        return CARD_NS;
    return siblings_hold(want) ? SIBLINGS_NS : 0;
}

/* It is short: waits, or is refused. */
static void handle_short(struct pc_want *want)
{
    uint64_t now = pc_loop_now_ns();
    if (!want->short_of) {
        want->short_of = true;
        want->deadline_ns = now + patience(want);
        pc_broker_hurry(want->tenant->gpu->broker);
    }
    if (now >= want->deadline_ns)
        fail(want);
    else
        wake_at(want, want->deadline_ns);
}

/* A process is asked for idle memory only while a sibling is short. */
static void update_wanted(struct pc_tenant *tenant)
{
    const struct pc_want *want;
    uint64_t most = 0;
    pc_list_each(want, &tenant->wants, link)
        if (want->short_of && want->bytes > most && siblings_hold(want))
            most = want->bytes;
    pc_tenant_set_wanted(tenant, most);
}

static void try(struct pc_want *want)
{
    if (attempt(want) == SHORT)
        handle_short(want);
}

enum pc_status pc_want_start(struct pc_seat *seat, enum pc_want_kind kind, uint64_t bytes, pc_want_fn done, void *arg,
                             struct pc_error *err)
{
    struct pc_want *want = calloc(1, sizeof *want);
    struct pc_tenant *tenant = seat->tenant;
    if (want == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no host memory for a request");
    want->seat = seat;
    want->tenant = tenant;
    want->kind = kind;
    want->bytes = bytes;
    want->arrived_ns = pc_loop_now_ns();
    want->done = done;
    want->arg = arg;
    pc_list_append(&tenant->wants, &want->link);
    try(want);
    update_wanted(tenant);
    return PC_OK;
}

void pc_want_cancel(struct pc_seat *seat)
{
    struct pc_want *want;
    pc_list_each(want, &seat->tenant->wants, link) {
        if (want->seat != seat)
            continue;
        want->done = NULL;
        if (!want->running)
            free_want(want);
    }
    update_wanted(seat->tenant);
}

static void retry(struct pc_want *want)
{
    uint64_t now = pc_loop_now_ns();
    bool faulty = pc_gpu_check(want->tenant->gpu, NULL) != PC_OK;
    if (want->running && faulty && want->done != NULL) { /* the call that hangs will end it later, or never */
        pc_gpu_check(want->tenant->gpu, &want->err);
        fail(want);
    }
    if (want->running || (now < want->again_ns && !faulty))
        return;
    if (want->short_of && !faulty && !has_room(want)) {
        handle_short(want);
        return;
    }
    try(want);
}

void pc_want_retry(struct pc_tenant *tenant)
{
    struct pc_want *want;
    pc_list_each(want, &tenant->wants, link)
        retry(want);
    update_wanted(tenant);
}
