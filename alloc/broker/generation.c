#include "alloc/broker/generation.h"

#include <stdlib.h>
#include <string.h>

#include "alloc/base/bytes.h"
#include "alloc/base/log.h"

#define GROW_STEP (256 * PC_MIB)

/* ---- generations ---- */

static struct pc_generation *make(struct pc_tenant *tenant, struct pc_books_generation *record, struct pc_error *err)
{
    struct pc_generation *generation = calloc(1, sizeof *generation);
    if (generation == NULL) {
        pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no memory for a pool");
        return NULL;
    }
    generation->tenant = tenant;
    generation->record = record;
    pc_list_init(&generation->parked);
    pc_list_init(&generation->imports);
    pc_list_init(&generation->turn);
    return generation;
}

enum pc_status pc_generation_open(struct pc_tenant *tenant, struct pc_generation **out, struct pc_error *err)
{
    struct pc_broker *b = tenant->gpu->broker;
    uint64_t max = pc_ledger_generation_room(tenant->ledger);
    void *place;
    enum pc_status status = pc_books_new(b->books, PC_BOOKS_GENERATIONS, &place, err);
    if (status != PC_OK)
        return status;
    struct pc_generation *generation = make(tenant, place, err);
    if (generation == NULL)
        return PC_ERR_HOST_MEMORY;
    status = pc_ledger_generation_add(tenant->ledger, max, &generation->ledger, err);
    if (status != PC_OK) {
        free(generation);
        return status;
    }
    generation->id = pc_broker_new_id(b);
    generation->max = max;
    struct pc_books_generation *record = generation->record;
    record->id = generation->id;
    record->max = max;
    memcpy(record->tenant, tenant->name, sizeof record->tenant);
    memcpy(record->gpu, tenant->gpu->info.uuid, sizeof record->gpu);
    pc_books_commit(record, PC_BOOKS_USED);
    pc_list_append(&tenant->generations, &generation->link);
    *out = generation;
    return PC_OK;
}

enum pc_status pc_generation_adopt(struct pc_tenant *tenant, struct pc_books_generation *record,
                                   struct pc_generation **out, struct pc_error *err)
{
    struct pc_generation *generation = make(tenant, record, err);
    if (generation == NULL)
        return PC_ERR_HOST_MEMORY;
    generation->charge = pc_books_get(&record->reserved);
    enum pc_status status = pc_ledger_inherit(tenant->ledger, generation->charge, err);
    if (status != PC_OK) {
        free(generation);
        return status;
    }
    generation->state = PC_GENERATION_INHERITED;
    generation->id = record->id;
    generation->max = record->max;
    pc_list_append(&tenant->generations, &generation->link);
    *out = generation;
    return PC_OK;
}

void pc_generation_free(struct pc_generation *generation)
{
    while (!pc_list_empty(&generation->imports))
        pc_import_close(pc_list_first(&generation->imports, struct pc_import, in_generation));
    pc_books_end(generation->record);
    pc_list_remove(&generation->turn);
    pc_list_remove(&generation->link);
    free(generation);
}

struct pc_generation *pc_generation_find(const struct pc_tenant *tenant, uint64_t id)
{
    struct pc_generation *generation;
    pc_list_each(generation, &tenant->generations, link)
        if (generation->id == id)
            return generation;
    return NULL;
}

unsigned pc_generation_importers(const struct pc_generation *generation)
{
    const struct pc_import *import;
    unsigned count = 0;
    pc_list_each(import, &generation->imports, in_generation)
        count += !import->said_dropped;
    return count;
}

void pc_generation_record(struct pc_generation *generation)
{
    struct pc_ledger_generation_view view;
    pc_ledger_generation_read(generation->ledger, &view);
    pc_books_set(&generation->record->reserved, view.reserved);
}

/* ---- blocks ---- */

static struct pc_block **bucket(const struct pc_broker *b, uint64_t id)
{
    return (struct pc_block **)&b->blocks[id % PC_BLOCK_BUCKETS];
}

static void unhash(const struct pc_broker *b, struct pc_block *block)
{
    struct pc_block **at = bucket(b, block->id);
    while (*at != NULL && *at != block)
        at = &(*at)->next;
    if (*at != NULL)
        *at = block->next;
    block->next = NULL;
}

struct pc_block *pc_block_find(const struct pc_broker *b, uint64_t id)
{
    struct pc_block *block = *bucket(b, id);
    while (block != NULL && block->id != id)
        block = block->next;
    return block;
}

struct pc_block *pc_block_new(struct pc_broker *b, uint64_t bytes)
{
    struct pc_block *block = calloc(1, sizeof *block);
    if (block == NULL)
        return NULL;
    block->id = pc_broker_new_id(b);
    block->bytes = bytes;
    pc_list_init(&block->link);
    return block;
}

void pc_block_forget(struct pc_broker *b, struct pc_block *block)
{
    if (block == NULL)
        return;
    unhash(b, block);
    pc_list_remove(&block->link);
    free(block);
}

void pc_block_give(struct pc_block *block, struct pc_seat *seat)
{
    struct pc_broker *b = seat->tenant->gpu->broker;
    unhash(b, block);
    if (block->record == NULL) /* large memory has had its id in the books since before it was made */
        block->id = pc_broker_new_id(b);
    block->next = *bucket(b, block->id);
    *bucket(b, block->id) = block;
    block->seat = seat;
    block->process = seat->process;
    pc_list_remove(&block->link);
    pc_list_append(&seat->blocks, &block->link);
    if (block->generation == NULL)
        return;
    block->generation->live++;
    pc_import_find(seat, block->generation->id)->blocks++;
}

static void take_back_large(struct pc_block *block, bool dead)
{
    struct pc_seat *seat = block->seat;
    if (dead)
        pc_ledger_release(seat->ledger, PC_CHARGE_LARGE, block->bytes, NULL);
    else
        pc_seat_large_freed(seat, block->bytes);
    pc_books_end(block->record);
    pc_block_forget(seat->tenant->gpu->broker, block);
}

void pc_block_take_back(struct pc_block *block, bool dead)
{
    struct pc_seat *seat = block->seat;
    struct pc_generation *generation = block->generation;
    if (generation == NULL) {
        take_back_large(block, dead);
        return;
    }
    pc_ledger_block_release(seat->ledger, generation->ledger, block->bytes, NULL);
    pc_import_find(seat, generation->id)->blocks--;
    generation->live--;
    unhash(seat->tenant->gpu->broker, block);
    block->seat = NULL;
    pc_generation_park(generation, block);
}

void pc_generation_park(struct pc_generation *generation, struct pc_block *block)
{
    pc_list_remove(&block->link);
    pc_list_append(&generation->parked, &block->link);
    generation->parked_bytes += block->bytes;
}

void pc_generation_park_bad(struct pc_generation *generation, pc_cu_deviceptr ptr, uint64_t bytes)
{
    struct pc_block *block = pc_block_new(generation->tenant->gpu->broker, bytes);
    if (block == NULL) /* then it is found as stuck */
        return;
    block->generation = generation;
    block->process = PC_MANY_PROCESSES;
    block->ptr = ptr;
    block->bad = true;
    pc_generation_park(generation, block);
}

static void take_out(struct pc_generation *generation, struct pc_block *block)
{
    pc_list_remove(&block->link);
    generation->parked_bytes -= block->bytes;
}

struct pc_block *pc_generation_unpark(struct pc_generation *generation, uint64_t bytes, uint64_t process)
{
    struct pc_block *block, *best = NULL;
    pc_list_each(block, &generation->parked, link)
        if (!block->bad && block->bytes == bytes &&
            (best == NULL || (block->process == process && best->process != process)))
            best = block;
    if (best != NULL)
        take_out(generation, best);
    return best;
}

/* ---- booking and planning ---- */

enum pc_status pc_generation_book(struct pc_generation *generation, struct pc_seat *seat, uint64_t bytes,
                                  uint64_t *growth, struct pc_error *err)
{
    enum pc_status status = pc_ledger_block_book(seat->ledger, generation->ledger, bytes, growth, err);
    if (status == PC_OK)
        pc_generation_record(generation);
    return status;
}

void pc_generation_unbook(struct pc_generation *generation, struct pc_seat *seat, uint64_t bytes, uint64_t growth)
{
    struct pc_ledger_generation_view view;
    pc_ledger_block_release(seat->ledger, generation->ledger, bytes, NULL);
    pc_ledger_generation_read(generation->ledger, &view);
    pc_ledger_generation_true_up(generation->ledger, view.reserved - growth);
    pc_generation_record(generation);
}

static struct pc_block *largest_parked(const struct pc_generation *generation)
{
    struct pc_block *block, *largest = NULL;
    pc_list_each(block, &generation->parked, link)
        if (largest == NULL || block->bytes > largest->bytes)
            largest = block;
    return largest;
}

static void note_freed(struct pc_generation *generation, uint64_t process)
{
    if (generation->freed_by == PC_NOBODY)
        generation->freed_by = process;
    else if (generation->freed_by != process)
        generation->freed_by = PC_MANY_PROCESSES;
}

/* Parked blocks go, the largest first, until what stays fits beside what is booked. */
static void free_parked_until(struct pc_generation *generation, uint64_t fits, struct pc_plan *plan)
{
    while (generation->parked_bytes > fits) {
        struct pc_block *block = largest_parked(generation);
        take_out(generation, block);
        note_freed(generation, block->process);
        pc_list_append(&plan->free_first, &block->link);
    }
}

bool pc_generation_plan(struct pc_generation *generation, uint64_t bytes, uint64_t booked_growth, uint64_t process,
                        struct pc_plan *out)
{
    struct pc_ledger_generation_view view;
    pc_ledger_generation_read(generation->ledger, &view);
    uint64_t idle = view.reserved - view.used; /* beside the new block */
    *out = (struct pc_plan){.slack = 0};
    pc_list_init(&out->free_first);
    if (generation->stuck > idle)
        return false;
    /* Nothing that was freed is left in the driver: what comes next is memory that nobody has used. */
    uint64_t before = view.reserved - booked_growth;
    if (view.used - bytes + generation->parked_bytes + generation->stuck >= before)
        generation->freed_by = PC_NOBODY;
    free_parked_until(generation, idle - generation->stuck, out);
    out->zero = booked_growth < bytes && generation->freed_by != PC_NOBODY && generation->freed_by != process;
    if (booked_growth > GROW_STEP) {
        out->growth = booked_growth;
        out->slack = bytes - booked_growth;
    }
    return true;
}

/* A free that failed may have freed all the same: what the driver does not have any more is not there. */
static void forget_bad(struct pc_generation *generation, uint64_t too_much)
{
    struct pc_block *block;
    pc_list_each(block, &generation->parked, link) {
        if (!block->bad || block->bytes > too_much)
            continue;
        too_much -= block->bytes;
        take_out(generation, block);
        pc_block_forget(generation->tenant->gpu->broker, block);
    }
}

void pc_generation_verify(struct pc_generation *generation, const struct pc_pool_stats *stats, bool success)
{
    struct pc_ledger_generation_view view;
    pc_ledger_generation_read(generation->ledger, &view);
    if (view.used + generation->parked_bytes > stats->used)
        forget_bad(generation, view.used + generation->parked_bytes - stats->used);
    uint64_t known = view.used + generation->parked_bytes;
    if (stats->used != known + generation->stuck)
        pc_log_error("generation", "tenant %s: the driver has %llu bytes allocated in a pool, %llu are known",
                     generation->tenant->name, (unsigned long long)stats->used, (unsigned long long)known);
    generation->stuck = stats->used > known ? stats->used - known : 0;
    if (!pc_ledger_generation_true_up(generation->ledger, stats->reserved) && success)
        pc_log_error("generation", "tenant %s: a pool holds %llu bytes of the card, %llu were booked",
                     generation->tenant->name, (unsigned long long)stats->reserved, (unsigned long long)view.reserved);
    pc_generation_record(generation);
}
