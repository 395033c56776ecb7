#include "alloc/broker/inherit.h"

#include <inttypes.h>
#include <string.h>

#include "alloc/base/bytes.h"
#include "alloc/base/log.h"
#include "alloc/broker/evict.h"
#include "alloc/broker/session.h"

static void adopt_grant(struct pc_broker *b, struct pc_books_grant *record)
{
    struct pc_grant *grant;
    struct pc_error err;
    if (pc_grant_adopt(b, record, &grant, &err) != PC_OK)
        pc_log_error("inherit", "an earlier grant is not kept, and what its processes hold is not charged: %s",
                     err.text);
}

static struct pc_share *find_share(struct pc_broker *b, const char *grant_name, const char *uuid)
{
    struct pc_grant *grant = pc_grant_find(b, grant_name);
    for (unsigned i = 0; grant != NULL && i < grant->shares; i++)
        if (strcmp(grant->share[i].tenant->gpu->info.uuid, uuid) == 0)
            return &grant->share[i];
    return NULL;
}

/* The session of a process that has no seat on this GPU yet, made where there is none. */
static struct pc_session *session_for(struct pc_grant *grant, unsigned index, const struct pc_books_seat *record)
{
    struct pc_session *session;
    struct pc_peer peer = {.pid = (pid_t)record->pid, .starttime = record->starttime};
    struct pc_error err;
    pc_list_each(session, &grant->sessions, link)
        if (pc_peer_same(&session->peer, &peer) && session->seat[index] == NULL)
            return session;
    pc_peer_of_pid((pid_t)record->pid, record->starttime, &peer);
    if (pc_session_adopt(grant, &peer, &session, &err) == PC_OK)
        return session;
    pc_peer_close(&peer);
    pc_log_error("inherit", "process %" PRIu64 ": %s", record->pid, err.text);
    return NULL;
}

static void adopt_seat(struct pc_broker *b, struct pc_books_seat *record)
{
    struct pc_share *share = find_share(b, record->grant, record->gpu);
    struct pc_session *session =
        share != NULL ? session_for(pc_grant_find(b, record->grant), share->index, record) : NULL;
    struct pc_error err = {.text = "its grant is not kept"};
    if (session == NULL || pc_seat_adopt(share, record, session->process, &session->seat[share->index], &err) != PC_OK)
        pc_log_error("inherit", "process %" PRIu64 " of grant %s is not charged any more: %s", record->pid,
                     record->grant, err.text);
}

static struct pc_seat *find_seat(const struct pc_tenant *tenant, uint64_t pid, uint64_t starttime, const char *grant)
{
    struct pc_seat *seat;
    pc_list_each(seat, &tenant->seats, link)
        if ((uint64_t)seat->pid == pid && seat->starttime == starttime &&
            (grant == NULL || strcmp(seat->record->grant, grant) == 0))
            return seat;
    return NULL;
}

/* Large memory keeps its id: the process will free it by that. */
static void adopt_large(struct pc_broker *b, struct pc_books_large *record)
{
    struct pc_share *share = find_share(b, record->grant, record->gpu);
    struct pc_seat *seat =
        share != NULL ? find_seat(share->tenant, record->pid, record->starttime, record->grant) : NULL;
    struct pc_block *block = seat != NULL ? pc_block_new(b, record->bytes) : NULL;
    struct pc_ledger_session_view view;
    if (block == NULL) { /* its process is gone with its seat */
        if (seat == NULL && share != NULL)
            pc_books_end(record);
        return;
    }
    block->id = record->id;
    block->record = record;
    pc_ledger_session_read(seat->ledger, &view);
    pc_ledger_true_up(seat->ledger, PC_CHARGE_LARGE, view.kinds[PC_CHARGE_LARGE] + record->bytes);
    pc_block_give(block, seat);
}

static void adopt_generation(struct pc_broker *b, struct pc_books_generation *record)
{
    struct pc_tenant *tenant;
    struct pc_generation *generation;
    struct pc_error err = {.text = "its tenant is not kept"};
    pc_list_each(tenant, &b->tenants, link) {
        if (strcmp(tenant->name, record->tenant) != 0 || strcmp(tenant->gpu->info.uuid, record->gpu) != 0)
            continue;
        if (pc_generation_adopt(tenant, record, &generation, &err) == PC_OK)
            return;
    }
    pc_log_error("inherit", "%llu MiB of tenant %s's pool are not charged any more: %s",
                 pc_books_get(&record->reserved) / PC_MIB, record->tenant, err.text);
}

static void adopt_import(struct pc_broker *b, struct pc_books_import *record)
{
    struct pc_tenant *tenant;
    struct pc_error err;
    pc_list_each(tenant, &b->tenants, link) {
        struct pc_generation *generation = pc_generation_find(tenant, record->generation);
        struct pc_seat *seat = generation != NULL ? find_seat(tenant, record->pid, record->starttime, NULL) : NULL;
        if (generation == NULL)
            continue;
        if (seat == NULL)
            pc_books_end(record);
        else if (pc_import_adopt(seat, generation, record, &err) != PC_OK)
            pc_log_error("inherit", "process %" PRIu64 ": %s", record->pid, err.text);
        return;
    }
}

/* What nobody imported the driver took back with its exporter. */
static void end_unimported(struct pc_broker *b)
{
    struct pc_tenant *tenant;
    pc_list_each(tenant, &b->tenants, link) {
        struct pc_generation *generation;
        pc_list_each(generation, &tenant->generations, link)
            pc_evict_importers_changed(generation);
    }
}

void pc_inherit(struct pc_broker *b)
{
    void *record;
    unsigned at[PC_BOOKS_TABLES] = {0};
    while ((record = pc_books_next(b->books, PC_BOOKS_GRANTS, &at[PC_BOOKS_GRANTS])) != NULL)
        adopt_grant(b, record);
    while ((record = pc_books_next(b->books, PC_BOOKS_SEATS, &at[PC_BOOKS_SEATS])) != NULL)
        adopt_seat(b, record);
    while ((record = pc_books_next(b->books, PC_BOOKS_LARGES, &at[PC_BOOKS_LARGES])) != NULL)
        adopt_large(b, record);
    while ((record = pc_books_next(b->books, PC_BOOKS_GENERATIONS, &at[PC_BOOKS_GENERATIONS])) != NULL)
        adopt_generation(b, record);
    while ((record = pc_books_next(b->books, PC_BOOKS_IMPORTS, &at[PC_BOOKS_IMPORTS])) != NULL)
        adopt_import(b, record);
    end_unimported(b);
}
