#include "alloc/broker/inherit.h"

#include <inttypes.h>
#include <stdlib.h>
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

/* By the order of their making, so that each finds those whose units it shares. */
static int by_order(const void *a, const void *b)
{
    const struct pc_books_grant *const *first = a, *const *second = b;
    if ((*first)->order != (*second)->order)
        return (*first)->order < (*second)->order ? -1 : 1;
    return *first < *second ? -1 : 1;
}

/* Returns the count; 0 too without host memory. */
static size_t grants_in_order(struct pc_broker *b, struct pc_books_grant ***out)
{
    size_t count = 0, filled = 0;
    unsigned at = 0;
    void *record;
    while (pc_books_next(b->books, PC_BOOKS_GRANTS, &at) != NULL)
        count++;
    struct pc_books_grant **all = calloc(count + 1, sizeof *all);
    if (all == NULL) {
        pc_log_error("inherit", "no memory for the %zu grants of an earlier poolcapd", count);
        return 0;
    }
    at = 0;
    while ((record = pc_books_next(b->books, PC_BOOKS_GRANTS, &at)) != NULL)
        all[filled++] = record;
    qsort(all, filled, sizeof(struct pc_books_grant *), by_order);
    *out = all;
    return filled;
}

/* The first of the tenant's shares on this GPU whose grant was made after the one of this record; NULL: none. */
static struct pc_share *first_after(struct pc_broker *b, const struct pc_books_grant *record, const char *uuid)
{
    struct pc_tenant *tenant;
    struct pc_share *share;
    pc_list_each(tenant, &b->tenants, link) {
        if (strcmp(tenant->name, record->tenant) != 0 || strcmp(tenant->gpu->info.uuid, uuid) != 0)
            continue;
        pc_list_each(share, &tenant->shares, link)
            if (share->record->order > record->order)
                return share;
    }
    return NULL;
}

/* A grant that had ended when poolcapd was killed, before all that shared its units had heard of it. */
static void finish_leaving(struct pc_broker *b, struct pc_books_grant *record)
{
    for (unsigned i = 0; i < record->shares && i < PC_PAGE_GPUS_MAX; i++) {
        struct pc_share *share = first_after(b, record, record->gpu[i]);
        if (share != NULL)
            pc_tenant_restore_promise(share->tenant, share, record->promise[i]);
    }
    pc_books_end(record);
}

static void adopt_grants(struct pc_broker *b)
{
    pc_auto_free struct pc_books_grant **grants = NULL;
    size_t count = grants_in_order(b, &grants);
    for (size_t i = 0; i < count; i++)
        if (pc_books_get(&grants[i]->state) != PC_BOOKS_LEAVING)
            adopt_grant(b, grants[i]);
    for (size_t i = 0; i < count; i++)
        if (pc_books_get(&grants[i]->state) == PC_BOOKS_LEAVING)
            finish_leaving(b, grants[i]);
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
    adopt_grants(b);
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
