#include "alloc/broker/evict.h"

#include <stdlib.h>

#include "alloc/base/bytes.h"
#include "alloc/base/log.h"

#define WATCH_NS 1000000000ull
#define GIVE_UP_NS 5000000000ull /* also where no clean snapshot came */

enum { SEEN_ENOUGH = 2 }; /* two snapshots: the two NVML calls of one are not one moment */

/* ---- the end of a charge ---- */

/* pinned: importers may have kept it until now, so that it was in no process's entry. */
static void settle(struct pc_generation *generation, bool pinned)
{
    struct pc_tenant *tenant = generation->tenant;
    struct pc_gpu *gpu = tenant->gpu;
    if (generation->state == PC_GENERATION_INHERITED)
        pc_ledger_disinherit(tenant->ledger, generation->charge, NULL);
    else
        pc_ledger_tenant_settle(tenant->ledger, generation->charge, NULL);
    if (gpu->watched == generation)
        gpu->watched = NULL;
    else if (pinned &&
             gpu->watched != NULL) /* these bytes leave the card too, and must not be taken for the watched ones */
        gpu->leftover -= (int64_t)generation->charge;
    pc_log_info("evict", "tenant %s: %llu MiB of a pool are back on the card", tenant->name,
                generation->charge / PC_MIB);
    pc_generation_free(generation);
    pc_tenant_publish(tenant);
    pc_broker_changed(gpu->broker);
}

/* ---- destroying ---- */

struct destroy {
    struct pc_job job;
    struct pc_generation *generation;
    bool failed; /* a free did, so the memory outlives the pool */
};

static enum pc_step destroy_step(struct pc_job *job)
{
    struct destroy *destroy = pc_container_of(job, struct destroy, job);
    struct pc_generation *generation = destroy->generation;
    if (!pc_list_empty(&generation->parked)) { /* one free a step: this account has a small share */
        struct pc_block *block = pc_list_first(&generation->parked, struct pc_block, link);
        pc_list_remove(&block->link);
        destroy->failed |= pc_pool_free(generation->pool, block->ptr, block->bytes, NULL) != PC_OK;
        free(block);
        return PC_STEP_MORE;
    }
    pc_pool_destroy(generation->pool);
    return PC_STEP_DONE;
}

static void destroy_done(struct pc_job *job)
{
    struct destroy *destroy = pc_container_of(job, struct destroy, job);
    struct pc_generation *generation = destroy->generation;
    struct pc_tenant *tenant = generation->tenant;
    struct pc_ledger_generation_view view;
    struct pc_error err;
    generation->lost = destroy->failed || generation->stuck > 0;
    free(destroy);
    pc_gpu_change_ends(tenant->gpu);
    generation->pool = NULL;
    pc_ledger_generation_read(generation->ledger, &view);
    bool doubtful = !pc_list_empty(&generation->imports);
    if (generation->lost)
        pc_log_error("evict",
                     "tenant %s: the driver kept memory of a pool; it stays charged until poolcapd is started "
                     "again",
                     tenant->name);
    generation->charge = view.reserved;
    generation->state = PC_GENERATION_CLAIMED;
    generation->watched_ns = pc_loop_now_ns();
    if (pc_ledger_generation_remove(generation->ledger, true, &err) != PC_OK)
        pc_log_error("evict", "tenant %s: %s", tenant->name, err.text);
    generation->ledger = NULL;
    if (!doubtful && !generation->lost)
        settle(generation, false);
    pc_broker_hurry(tenant->gpu->broker);
    pc_broker_changed(tenant->gpu->broker);
}

static bool start_destroy(struct pc_generation *generation)
{
    struct pc_gpu *gpu = generation->tenant->gpu;
    struct destroy *destroy = calloc(1, sizeof *destroy);
    if (destroy == NULL)
        return false;
    pc_gpu_change_begins(gpu);
    destroy->generation = generation;
    destroy->job.step = destroy_step;
    destroy->job.done = destroy_done;
    pc_list_init(&destroy->job.link);
    pc_worker_submit(gpu->cleanup, &destroy->job);
    return true;
}

/* The next one that is destroyed and watched. */
static void next_turn(struct pc_gpu *gpu)
{
    while (gpu->watched == NULL && !pc_list_empty(&gpu->evictions)) {
        struct pc_generation *generation = pc_list_first(&gpu->evictions, struct pc_generation, turn);
        pc_list_remove(&generation->turn);
        generation->seen_gone = 0;
        if (start_destroy(generation))
            gpu->watched = generation;
        else
            generation->state = PC_GENERATION_OPEN;
    }
}

static bool unused(const struct pc_generation *generation)
{
    return generation->state == PC_GENERATION_OPEN && generation->live == 0 && pc_generation_importers(generation) == 0;
}

bool pc_evict_unused(struct pc_tenant *tenant)
{
    struct pc_generation *generation;
    struct pc_gpu *gpu = tenant->gpu;
    bool any = false;
    pc_list_each(generation, &tenant->generations, link) {
        if (generation->state == PC_GENERATION_CLOSING)
            any = true;
        if (!unused(generation) || gpu->fault[0] != '\0')
            continue;
        any = true;
        if (!pc_list_empty(&generation->imports)) {
            generation->state = PC_GENERATION_CLOSING;
            pc_list_append(&gpu->evictions, &generation->turn);
        } else if (start_destroy(generation)) {
            generation->state = PC_GENERATION_CLOSING;
        }
    }
    next_turn(gpu);
    return any;
}

/* ---- seeing ---- */

void pc_evict_importers_changed(struct pc_generation *generation)
{
    bool charged = generation->state == PC_GENERATION_CLAIMED || generation->state == PC_GENERATION_INHERITED;
    struct pc_broker *b = generation->tenant->gpu->broker;
    if (charged && pc_list_empty(&generation->imports) && !generation->lost) {
        settle(generation, true);
    } else if (charged) {
        generation->watched_ns = pc_loop_now_ns();
        pc_broker_hurry(b);
    }
    pc_broker_changed(b);
}

bool pc_evict_pending(const struct pc_tenant *tenant)
{
    const struct pc_generation *generation;
    pc_list_each(generation, &tenant->generations, link)
        if (generation->state == PC_GENERATION_CLOSING || generation == tenant->gpu->watched ||
            (generation->state == PC_GENERATION_INHERITED && pc_generation_importers(generation) == 0 &&
             pc_loop_now_ns() < generation->watched_ns + WATCH_NS))
            return true;
    return false;
}

static void look_at_watched(struct pc_gpu *gpu, int64_t leftover, bool tells, bool clean, uint64_t now)
{
    struct pc_generation *generation = gpu->watched;
    if (generation == NULL || generation->state != PC_GENERATION_CLAIMED)
        return;
    if (!tells || generation->lost) { /* only the deaths of its importers will end it */
        gpu->watched = NULL;
        return;
    }
    bool gone = clean && leftover <= gpu->leftover + (int64_t)(generation->charge / 2);
    if (clean)
        generation->seen_gone = gone ? generation->seen_gone + 1 : 0;
    if (generation->seen_gone >= SEEN_ENOUGH) {
        settle(generation, false);
    } else if (now > generation->watched_ns + (clean && !gone ? WATCH_NS : GIVE_UP_NS)) {
        pc_log_warn("evict",
                    "tenant %s: a process says that it dropped a pool of %llu MiB, and the card still "
                    "holds it; it stays charged until the process ends",
                    generation->tenant->name, generation->charge / PC_MIB);
        gpu->watched = NULL;
    }
}

/* What a GPU has of generations whose bytes are in no entry. */
struct unlisted {
    bool claimed, inherited, said; /* there are such; said: inherited ones that all importers say to have dropped */
    int64_t kept;                  /* bytes of inherited ones that were not said to be dropped */
};

static void count_unlisted(const struct pc_gpu *gpu, struct unlisted *out)
{
    const struct pc_tenant *tenant;
    const struct pc_generation *generation;
    *out = (struct unlisted){.kept = 0};
    pc_list_each(tenant, &gpu->broker->tenants, link) {
        if (tenant->gpu != gpu)
            continue;
        pc_list_each(generation, &tenant->generations, link) {
            out->claimed |= generation->state == PC_GENERATION_CLAIMED;
            if (generation->state != PC_GENERATION_INHERITED)
                continue;
            out->inherited = true;
            if (pc_generation_importers(generation) == 0)
                out->said = true;
            else
                out->kept += (int64_t)generation->charge;
        }
    }
}

static void settle_said(struct pc_gpu *gpu)
{
    struct pc_tenant *tenant;
    pc_list_each(tenant, &gpu->broker->tenants, link) {
        struct pc_generation *generation;
        if (tenant->gpu != gpu)
            continue;
        pc_list_each(generation, &tenant->generations, link)
            if (generation->state == PC_GENERATION_INHERITED && pc_generation_importers(generation) == 0)
                settle(generation, true);
    }
}

/* While a destroyed pool may or may not be on the card, nothing can be said of the inherited ones. */
static void look_at_inherited(struct pc_gpu *gpu, int64_t leftover)
{
    struct unlisted unlisted;
    count_unlisted(gpu, &unlisted);
    if (unlisted.said && !unlisted.claimed && leftover <= gpu->floor + unlisted.kept + (int64_t)PC_POOL_GRANULE / 2)
        settle_said(gpu);
    if (!unlisted.claimed && !unlisted.inherited) {
        gpu->floor = leftover;
        pc_books_set(&gpu->record->floor, (uint64_t)leftover);
    }
}

static bool card_tells(const struct pc_card_view *card)
{
    if (!card->memory_valid || !card->list_valid)
        return false;
    for (unsigned i = 0; i < card->count; i++)
        if (card->process[i].used == PC_NVML_NOT_AVAILABLE)
            return false;
    return true;
}

static void look_at_gpu(struct pc_gpu *gpu, const struct pc_snapshot *snapshot)
{
    const struct pc_card_view *card = &snapshot->card[gpu->index];
    bool tells = card_tells(card);
    bool clean = tells && gpu->changing == 0 && snapshot->started_ns > gpu->changed_ns;
    int64_t leftover = tells ? pc_probe_leftover(card, gpu->probe.context_overhead) : 0;
    look_at_watched(gpu, leftover, tells, clean, snapshot->started_ns);
    if (clean)
        look_at_inherited(gpu, leftover);
    if (clean && gpu->watched == NULL)
        gpu->leftover = leftover;
    next_turn(gpu);
}

void pc_evict_look(struct pc_broker *b, const struct pc_snapshot *snapshot)
{
    for (unsigned i = 0; i < b->gpus; i++)
        look_at_gpu(b->gpu[i], snapshot);
}
