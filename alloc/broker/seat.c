#include "alloc/broker/seat.h"

#include <stdlib.h>
#include <string.h>

#include "alloc/base/log.h"
#include "alloc/broker/generation.h"

/* ---- opening and closing ---- */

static enum pc_status make(struct pc_share *share, struct pc_books_seat *record, uint64_t process, struct pc_seat **out,
                           struct pc_error *err)
{
    struct pc_seat *seat = calloc(1, sizeof *seat);
    if (seat == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no memory for a process");
    enum pc_status status = pc_ledger_session_add(share->ledger, &seat->ledger, err);
    if (status != PC_OK) {
        free(seat);
        return status;
    }
    seat->tenant = share->tenant;
    seat->share = share;
    seat->record = record;
    seat->pid = (pid_t)record->pid;
    seat->starttime = record->starttime;
    seat->process = process;
    pc_list_init(&seat->blocks);
    pc_list_init(&seat->imports);
    pc_list_append(&seat->tenant->seats, &seat->link);
    *out = seat;
    return PC_OK;
}

enum pc_status pc_seat_open(struct pc_share *share, const struct pc_peer *peer, uint64_t process, const char *grant,
                            struct pc_seat **out, struct pc_error *err)
{
    void *place;
    enum pc_status status = pc_books_new(share->tenant->gpu->broker->books, PC_BOOKS_SEATS, &place, err);
    if (status != PC_OK)
        return status;
    struct pc_books_seat *record = place;
    record->pid = (uint64_t)peer->pid;
    record->starttime = peer->starttime;
    memcpy(record->grant, grant, strlen(grant) + 1);
    memcpy(record->gpu, share->tenant->gpu->info.uuid, sizeof record->gpu);
    status = make(share, record, process, out, err);
    if (status == PC_OK)
        pc_books_commit(record, PC_BOOKS_USED);
    return status;
}

enum pc_status pc_seat_adopt(struct pc_share *share, struct pc_books_seat *record, uint64_t process,
                             struct pc_seat **out, struct pc_error *err)
{
    struct pc_seat *seat;
    enum pc_status status = make(share, record, process, &seat, err);
    if (status != PC_OK)
        return status;
    pc_ledger_true_up(seat->ledger, PC_CHARGE_CONTEXT, pc_books_get(&record->context));
    pc_ledger_true_up(seat->ledger, PC_CHARGE_DIRECT, pc_books_get(&record->direct));
    pc_ledger_true_up(seat->ledger, PC_CHARGE_PENDING, pc_books_get(&record->pending));
    seat->attached = pc_books_get(&record->context) > 0;
    seat->pending_ns = pc_loop_now_ns();
    *out = seat;
    return PC_OK;
}

void pc_seat_close(struct pc_seat *seat)
{
    struct pc_tenant *tenant = seat->tenant;
    struct pc_ledger_session_view view;
    struct pc_error err;
    while (!pc_list_empty(&seat->blocks))
        pc_block_take_back(pc_list_first(&seat->blocks, struct pc_block, link), true);
    while (!pc_list_empty(&seat->imports))
        pc_import_close(pc_list_first(&seat->imports, struct pc_import, in_seat));
    pc_ledger_session_read(seat->ledger, &view);
    for (unsigned kind = 0; kind < PC_CHARGE_KINDS; kind++)
        pc_ledger_release(seat->ledger, (enum pc_charge_kind)kind, view.kinds[kind], NULL);
    pc_books_end(seat->record);
    if (pc_ledger_session_remove(seat->ledger, &err) != PC_OK)
        pc_log_error("seat", "process %d: %s", (int)seat->pid, err.text);
    pc_list_remove(&seat->link);
    free(seat);
    pc_tenant_publish(tenant);
    pc_broker_changed(tenant->gpu->broker);
}

/* ---- charges ---- */

static uint64_t booked(const struct pc_seat *seat, enum pc_charge_kind kind)
{
    struct pc_ledger_session_view view;
    pc_ledger_session_read(seat->ledger, &view);
    return view.kinds[kind];
}

static void record_kind(struct pc_seat *seat, enum pc_charge_kind kind)
{
    uint64_t bytes = booked(seat, kind);
    if (kind == PC_CHARGE_CONTEXT)
        pc_books_set(&seat->record->context, bytes);
    else if (kind == PC_CHARGE_DIRECT)
        pc_books_set(&seat->record->direct, bytes);
    else if (kind == PC_CHARGE_PENDING)
        pc_books_set(&seat->record->pending, bytes);
}

/* A process has one primary context on a GPU, however many of its libraries have connected. */
static bool context_is_booked(const struct pc_seat *seat)
{
    const struct pc_seat *other;
    pc_list_each(other, &seat->tenant->seats, link)
        if (other != seat && other->attached && other->pid == seat->pid && other->starttime == seat->starttime)
            return true;
    return false;
}

enum pc_status pc_seat_book_context(struct pc_seat *seat, struct pc_error *err)
{
    uint64_t least = seat->tenant->gpu->probe.context_bytes;
    uint64_t now = booked(seat, PC_CHARGE_CONTEXT);
    if (!seat->attached && now < least && !context_is_booked(seat)) {
        enum pc_status status = pc_ledger_book(seat->ledger, PC_CHARGE_CONTEXT, least - now, err);
        if (status != PC_OK)
            return status;
        record_kind(seat, PC_CHARGE_CONTEXT);
    }
    seat->attached = true;
    return PC_OK;
}

enum pc_status pc_seat_book_direct(struct pc_seat *seat, uint64_t bytes, struct pc_error *err)
{
    enum pc_status status = pc_ledger_book(seat->ledger, PC_CHARGE_DIRECT, bytes, err);
    if (status == PC_OK)
        record_kind(seat, PC_CHARGE_DIRECT);
    return status;
}

enum pc_status pc_seat_release_direct(struct pc_seat *seat, uint64_t bytes, struct pc_error *err)
{
    uint64_t has = booked(seat, PC_CHARGE_DIRECT);
    if (bytes > has)
        return pc_error_set(err, PC_ERR_INVALID, 0, "a release of %llu bytes where %llu are reserved",
                            (unsigned long long)bytes, (unsigned long long)has);
    enum pc_status status = pc_ledger_move(seat->ledger, PC_CHARGE_DIRECT, PC_CHARGE_PENDING, bytes, err);
    record_kind(seat, PC_CHARGE_PENDING); /* the receiver first: never charged less than it has */
    record_kind(seat, PC_CHARGE_DIRECT);
    seat->pending_ns = pc_loop_now_ns();
    return status;
}

void pc_seat_large_freed(struct pc_seat *seat, uint64_t bytes)
{
    pc_ledger_move(seat->ledger, PC_CHARGE_LARGE, PC_CHARGE_PENDING, bytes, NULL);
    record_kind(seat, PC_CHARGE_PENDING);
    seat->pending_ns = pc_loop_now_ns();
}

void pc_seat_set_context(struct pc_seat *seat, uint64_t bytes)
{
    if (bytes == booked(seat, PC_CHARGE_CONTEXT))
        return;
    pc_ledger_true_up(seat->ledger, PC_CHARGE_CONTEXT, bytes);
    record_kind(seat, PC_CHARGE_CONTEXT);
    pc_tenant_publish(seat->tenant);
    pc_broker_changed(seat->tenant->gpu->broker);
}

void pc_seat_set_pending(struct pc_seat *seat, uint64_t bytes)
{
    uint64_t now = booked(seat, PC_CHARGE_PENDING);
    if (bytes >= now)
        return;
    pc_ledger_release(seat->ledger, PC_CHARGE_PENDING, now - bytes, NULL);
    record_kind(seat, PC_CHARGE_PENDING);
    pc_tenant_publish(seat->tenant);
    pc_broker_changed(seat->tenant->gpu->broker);
}

/* ---- imports ---- */

struct pc_import *pc_import_find(const struct pc_seat *seat, uint64_t generation)
{
    struct pc_import *import;
    pc_list_each(import, &seat->imports, in_seat)
        if (import->generation->id == generation)
            return import;
    return NULL;
}

enum pc_status pc_import_adopt(struct pc_seat *seat, struct pc_generation *generation, struct pc_books_import *record,
                               struct pc_error *err)
{
    struct pc_import *import = calloc(1, sizeof *import);
    if (import == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no memory for an import");
    import->seat = seat;
    import->generation = generation;
    import->record = record;
    import->said_dropped = pc_books_get(&record->state) == PC_BOOKS_SAID;
    pc_list_append(&seat->imports, &import->in_seat);
    pc_list_append(&generation->imports, &import->in_generation);
    return PC_OK;
}

enum pc_status pc_import_open(struct pc_seat *seat, struct pc_generation *generation, struct pc_import **out,
                              struct pc_error *err)
{
    struct pc_import *import = pc_import_find(seat, generation->id);
    void *place;
    if (import == NULL) {
        enum pc_status status = pc_books_new(seat->tenant->gpu->broker->books, PC_BOOKS_IMPORTS, &place, err);
        if (status != PC_OK)
            return status;
        struct pc_books_import *record = place;
        record->generation = generation->id;
        record->pid = (uint64_t)seat->pid;
        record->starttime = seat->starttime;
        status = pc_import_adopt(seat, generation, record, err);
        if (status != PC_OK)
            return status;
        import = pc_import_find(seat, generation->id);
    }
    pc_books_commit(import->record, PC_BOOKS_USED);
    import->said_dropped = false;
    *out = import;
    return PC_OK;
}

void pc_import_say_dropped(struct pc_import *import)
{
    pc_books_commit(import->record, PC_BOOKS_SAID);
    import->said_dropped = true;
    import->has_fd = false;
}

void pc_import_close(struct pc_import *import)
{
    pc_books_end(import->record);
    pc_list_remove(&import->in_seat);
    pc_list_remove(&import->in_generation);
    free(import);
}
