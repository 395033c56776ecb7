/*
 * Start-up from the books of the poolcapd before: grants are made again, each process that lives (or is still in NVML's
 * list) keeps its charges, and each generation that one of them may have imported is charged WHOLE to its tenant,
 * whatever anybody claims: one import pins all that was ever exported (trap 13).
 */
#include <stdlib.h>
#include <string.h>

#include "alloc/base/log.h"
#include "alloc/broker/broker.h"

static void inherit_grant(struct pc_broker *b, struct pc_book_record *record)
{
    const struct pc_book_grant *r = &record->grant;
    struct pc_config_grant want = {.shares = r->shares};
    struct pc_grant *g = NULL;
    struct pc_error err;
    if (pc_grant_find(b, r->name) == NULL) {
        memcpy(want.name, r->name, sizeof want.name);
        memcpy(want.tenant, r->tenant, sizeof want.tenant);
        memcpy(want.pod_uid, r->pod_uid, sizeof want.pod_uid);
        for (unsigned i = 0; i < r->shares; i++) {
            memcpy(want.share[i].gpu, r->uuid[i], PC_BOOK_UUID);
            want.share[i].granted = r->granted[i];
            want.share[i].cap = r->cap[i];
        }
        if (pc_grant_make(b, &want, r->is_static != 0, &g, &err) != PC_OK)
            pc_log_error("inherit", "grant %s cannot be made again: %s", r->name, err.text);
        else if (r->is_static != 0)
            pc_grant_drop(g); /* no longer in the configuration: it ends with its last process */
    }
    pc_book_end(record);
}

static struct pc_tenant *find_tenant(struct pc_broker *b, const char *name, const char *uuid)
{
    struct pc_tenant *t;
    pc_list_each(t, &b->tenants, link)
        if (strcmp(t->name, name) == 0 && strcmp(t->gpu->info.uuid, uuid) == 0)
            return t;
    return NULL;
}

static struct pc_session *same_process(struct pc_broker *b, const struct pc_grant *g, const struct pc_peer *peer)
{
    struct pc_session *s;
    pc_list_each(s, &b->sessions, link)
        if (s->grant == g && pc_peer_same(&s->peer, peer))
            return s;
    return NULL;
}

static void book_again(struct pc_session *s, const struct pc_book_session *r)
{
    for (unsigned i = 0; i < s->grant->shares; i++) {
        if (r->attached[i] == 0 ||
            pc_ledger_session_add(s->grant->share[i].ledger, &s->holding[i].ledger, NULL) != PC_OK)
            continue;
        /* Not refused: it is on the card. Large memory is booked with its own records. */
        pc_ledger_true_up(s->holding[i].ledger, PC_CHARGE_CONTEXT, r->context[i]);
        pc_ledger_true_up(s->holding[i].ledger, PC_CHARGE_DIRECT, r->direct[i]);
        pc_ledger_true_up(s->holding[i].ledger, PC_CHARGE_PENDING, r->pending[i]);
        s->holding[i].moved_ns = pc_loop_now_ns();
    }
    for (unsigned i = 0; i < PC_IMPORTS_MAX; i++) {
        s->imports[i] = r->imports[i];
        s->record->session.imports[i] = r->imports[i];
    }
    pc_session_record(s);
}

/* Returns the session that now stands for the record; NULL where its grant is gone. */
static struct pc_session *inherit_session(struct pc_broker *b, struct pc_book_record *record)
{
    const struct pc_book_session *r = &record->session;
    struct pc_grant *g = pc_grant_find(b, r->grant);
    struct pc_peer peer = {.pidfd = -1};
    struct pc_session *s = NULL;
    struct pc_error err;
    pc_peer_of_pid((pid_t)r->pid, r->starttime, &peer);
    if (g != NULL && (s = same_process(b, g, &peer)) != NULL) {
        pc_peer_close(&peer);
    } else if (g == NULL || pc_session_create(g, &peer, &s, &err) != PC_OK) {
        pc_log_error("inherit", "process %lld of grant %s is not in the books any more", (long long)r->pid, r->grant);
        pc_peer_close(&peer);
        s = NULL;
    } else {
        s->dead_ns = s->dead ? pc_loop_now_ns() : 0; /* the witness still looks for it in NVML's list */
        book_again(s, r);
    }
    return s;
}

static void inherit_large(struct pc_session *s, struct pc_book_record *record)
{
    unsigned share = (unsigned)record->large.share;
    struct pc_block *block = calloc(1, sizeof *block);
    if (block == NULL || share >= s->grant->shares || s->holding[share].ledger == NULL) {
        free(block);
        pc_book_end(record);
        return;
    }
    struct pc_ledger_session_view view;
    pc_ledger_session_read(s->holding[share].ledger, &view);
    pc_ledger_true_up(s->holding[share].ledger, PC_CHARGE_LARGE, view.kinds[PC_CHARGE_LARGE] + record->large.bytes);
    block->id = record->large.block;
    block->bytes = record->large.bytes;
    block->share = share;
    block->owner = s->id;
    block->record = record;
    pc_list_init(&block->link);
    pc_list_append(&s->blocks, &block->link);
    pc_book_set(&record->large.session, s->id);
    pc_session_record(s);
}

static bool anybody_imports(struct pc_broker *b, uint64_t id)
{
    struct pc_session *s;
    pc_list_each(s, &b->sessions, link)
        if (pc_session_imports(s, id))
            return true;
    return false;
}

static void inherit_generation(struct pc_broker *b, struct pc_book_record *record)
{
    const struct pc_book_generation *r = &record->generation;
    struct pc_tenant *t = find_tenant(b, r->tenant, r->uuid);
    struct pc_inherited *i = anybody_imports(b, r->id) && t != NULL ? calloc(1, sizeof *i) : NULL;
    if (i == NULL) { /* nobody can hold it: the driver took it back with its exporter */
        pc_book_end(record);
        return;
    }
    i->tenant = t;
    i->id = r->id;
    i->bytes = r->reserved;
    i->record = record;
    pc_list_init(&i->link);
    pc_list_append(&t->inherited, &i->link);
    pc_ledger_inherit(t->ledger, i->bytes, NULL);
    struct pc_gpu *gpu = t->gpu;
    gpu->base_used = gpu->base_used > i->bytes ? gpu->base_used - i->bytes : 0;
    pc_log_info("inherit", "tenant %s: %llu MiB of an earlier poolcapd's pool", t->name,
                (unsigned long long)(i->bytes / PC_MIB));
}

/* A session's old id and what stands for it now. */
struct renamed {
    uint64_t old_id;
    struct pc_session *session;
};

static void inherit_larges(struct pc_book_record **list, unsigned count, const struct renamed *names, unsigned named)
{
    for (unsigned i = 0; i < count; i++) {
        if (list[i]->kind != PC_BOOK_LARGE)
            continue;
        struct pc_session *s = NULL;
        for (unsigned k = 0; k < named && s == NULL; k++)
            if (names[k].old_id == list[i]->large.session)
                s = names[k].session;
        if (s != NULL)
            inherit_large(s, list[i]);
        else
            pc_book_end(list[i]);
    }
}

enum pc_status pc_inherit(struct pc_broker *b, struct pc_book_record **list, unsigned count, struct pc_error *err)
{
    struct renamed *names = calloc(count + 1, sizeof *names);
    unsigned named = 0;
    if (names == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no memory to read the books");
    for (unsigned i = 0; i < count; i++)
        if (list[i]->kind == PC_BOOK_GRANT)
            inherit_grant(b, list[i]);
    for (unsigned i = 0; i < count; i++) {
        if (list[i]->kind != PC_BOOK_SESSION)
            continue;
        names[named].old_id = list[i]->session.id;
        names[named++].session = inherit_session(b, list[i]);
        pc_book_end(list[i]);
    }
    inherit_larges(list, count, names, named);
    for (unsigned i = 0; i < count; i++)
        if (list[i]->kind == PC_BOOK_GENERATION)
            inherit_generation(b, list[i]);
    free(names);
    return PC_OK;
}

/* A living process says that it dropped an inherited generation: believed when the card shows it. */
void pc_inherited_drop(struct pc_broker *b, struct pc_session *s, uint64_t id)
{
    for (unsigned k = 0; k < s->grant->shares; k++) {
        struct pc_inherited *i;
        pc_list_each(i, &s->grant->share[k].tenant->inherited, link)
            if (i->id == id)
                i->claimed_ns = pc_loop_now_ns();
    }
    pc_watch_pace(b);
}

uint64_t pc_inherited_bytes(struct pc_broker *b, const struct pc_gpu *gpu)
{
    struct pc_tenant *t;
    uint64_t sum = 0;
    pc_list_each(t, &b->tenants, link) {
        struct pc_ledger_tenant_view view;
        pc_ledger_tenant_read(t->ledger, &view);
        sum += t->gpu == gpu ? view.inherited : 0;
    }
    return sum;
}

static bool gone(struct pc_broker *b, const struct pc_inherited *i, const struct pc_snapshot *snapshot)
{
    struct pc_ledger_tenant_view view;
    if (anybody_imports(b, i->id))
        return false;
    pc_ledger_tenant_read(i->tenant->ledger, &view);
    if (i->claimed_ns == 0 || view.sessions == 0)
        return true; /* its importers died, and the witness saw it */
    return snapshot->started_ns > i->claimed_ns &&
           pc_watch_card_adds_up(i->tenant->gpu, snapshot, pc_inherited_bytes(b, i->tenant->gpu) - i->bytes);
}

void pc_inherited_sweep(struct pc_broker *b, const struct pc_snapshot *snapshot)
{
    struct pc_tenant *t;
    pc_list_each(t, &b->tenants, link) {
        struct pc_inherited *i;
        bool any = false;
        pc_list_each(i, &t->inherited, link) {
            if (!gone(b, i, snapshot))
                continue;
            pc_ledger_disinherit(t->ledger, i->bytes, NULL);
            pc_book_end(i->record);
            pc_list_remove(&i->link);
            free(i);
            any = true;
        }
        if (any)
            pc_tenant_changed(t);
    }
}
