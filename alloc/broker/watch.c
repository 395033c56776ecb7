/* The third line: what NVML shows is compared with what is booked, and pending bytes end when the card shows it. */
#include <stdlib.h>
#include <unistd.h>

#include "alloc/base/log.h"
#include "alloc/broker/broker.h"

enum { PACE_IDLE_MS = 1000, PACE_BUSY_MS = 10 };
#define PER_PROCESS_SLACK (8 * PC_MIB) /* a context costs 5 MiB of the card beyond what its list entry says (H200) */
#define CARD_SLACK (16 * PC_MIB)
#define SESSION_SLACK (2 * PC_MIB)
#define SETTLE_WITHOUT_NVML_NS 1000000000ull

/* Said once per growth: memory that a process took beside poolcap. Ending such processes comes later, by policy. */
static void report_outside(const struct pc_session *s, unsigned share, uint64_t before, uint64_t now)
{
    if (now > before)
        pc_log_warn("watch", "grant %s, process %d: %llu MiB on GPU %s outside its quota, charged", s->grant->name,
                    (int)s->peer.pid, (unsigned long long)(now / PC_MIB),
                    s->grant->share[share].tenant->gpu->info.uuid);
}

static void settle_session(struct pc_session *s, unsigned share, const struct pc_ledger_session_view *view,
                           uint64_t shown, uint64_t started_ns)
{
    struct pc_holding *holding = &s->holding[share];
    uint64_t kept = view->kinds[PC_CHARGE_CONTEXT] + view->kinds[PC_CHARGE_LARGE] + view->kinds[PC_CHARGE_DIRECT];
    if (view->kinds[PC_CHARGE_PENDING] == 0 || started_ns <= holding->moved_ns || shown > kept + SESSION_SLACK)
        return;
    pc_ledger_release(holding->ledger, PC_CHARGE_PENDING, view->kinds[PC_CHARGE_PENDING], NULL);
    pc_session_record(s);
    pc_tenant_changed(s->grant->share[share].tenant);
}

static void true_up_context(struct pc_session *s, unsigned share, uint64_t shown)
{
    struct pc_holding *holding = &s->holding[share];
    struct pc_gpu *gpu = s->grant->share[share].tenant->gpu;
    struct pc_ledger_session_view view;
    pc_ledger_session_read(holding->ledger, &view);
    uint64_t others = view.kinds[PC_CHARGE_LARGE] + view.kinds[PC_CHARGE_DIRECT] + view.kinds[PC_CHARGE_PENDING];
    uint64_t context = shown > others ? shown - others : 0;
    if (context < gpu->context_bytes)
        context = gpu->context_bytes;
    uint64_t outside = context - gpu->context_bytes;
    outside = outside > 64 * PC_MIB ? outside : 0; /* contexts differ: modules, stacks, libraries' workspaces */
    report_outside(s, share, holding->outside, outside);
    holding->outside = outside;
    if (context == view.kinds[PC_CHARGE_CONTEXT])
        return;
    pc_ledger_true_up(holding->ledger, PC_CHARGE_CONTEXT, context);
    pc_session_record(s);
    pc_tenant_publish(s->grant->share[share].tenant);
}

static void look_at_session(struct pc_session *s, const struct pc_snapshot *snapshot)
{
    for (unsigned i = 0; i < s->grant->shares && s->dead_ns == 0; i++) {
        if (s->holding[i].ledger == NULL)
            continue;
        const struct pc_card_view *card = &snapshot->card[s->grant->share[i].tenant->gpu->index];
        const struct pc_nvml_process *entry = card->list_valid ? pc_card_process(card, s->peer.pid) : NULL;
        struct pc_ledger_session_view view;
        pc_ledger_session_read(s->holding[i].ledger, &view);
        if (entry != NULL && entry->used != PC_NVML_NOT_AVAILABLE) {
            settle_session(s, i, &view, entry->used, snapshot->started_ns);
            true_up_context(s, i, entry->used);
        } else if (!card->list_valid && snapshot->started_ns > s->holding[i].moved_ns + SETTLE_WITHOUT_NVML_NS) {
            settle_session(s, i, &view, 0, snapshot->started_ns);
        }
    }
}

/*
 * Whether the card holds nothing that nobody accounts for. NVML's list names poolcapd (its context and its pools) and
 * the tenants' processes; inherited pools and destroyed ones that somebody still imports are in nobody's entry.
 */
bool pc_watch_card_adds_up(const struct pc_gpu *gpu, const struct pc_snapshot *snapshot, uint64_t inherited)
{
    const struct pc_card_view *card = &snapshot->card[gpu->index];
    if (!card->memory_valid || !card->list_valid)
        return false;
    uint64_t known = gpu->base_used + inherited + CARD_SLACK + card->count * PER_PROCESS_SLACK;
    for (unsigned i = 0; i < card->count; i++) {
        if (card->process[i].used == PC_NVML_NOT_AVAILABLE)
            return false;
        known += card->process[i].used;
    }
    return card->used <= known;
}

static void settle_tenants(struct pc_broker *b, const struct pc_snapshot *snapshot)
{
    struct pc_tenant *t;
    pc_list_each(t, &b->tenants, link) {
        struct pc_ledger_tenant_view view;
        pc_ledger_tenant_read(t->ledger, &view);
        if (view.unsettled == 0 || snapshot->started_ns <= t->unsettled_since)
            continue;
        /* With its last process gone nobody can hold the memory any more. */
        if (view.sessions > 0 && !pc_watch_card_adds_up(t->gpu, snapshot, pc_inherited_bytes(b, t->gpu)))
            continue;
        pc_ledger_tenant_settle(t->ledger, view.unsettled, NULL);
        pc_tenant_changed(t);
    }
}

static void check_books(struct pc_broker *b)
{
    struct pc_error err;
    if (getenv("POOLCAP_CHECK") == NULL)
        return;
    if (pc_ledger_check(b->ledger, &err) != PC_OK || pc_ledger_over_releases(b->ledger) != 0) {
        pc_log_error("watch", "the books do not add up: %s, %llu over-releases", err.text,
                     (unsigned long long)pc_ledger_over_releases(b->ledger));
        abort();
    }
}

void pc_watch_snapshot(const struct pc_snapshot *snapshot, void *arg)
{
    struct pc_broker *b = arg;
    struct pc_session *s;
    for (unsigned i = 0; i < b->gpus; i++)
        if (snapshot->card[i].memory_valid)
            b->gpu[i]->card_used = snapshot->card[i].used;
    pc_list_each(s, &b->sessions, link)
        look_at_session(s, snapshot);
    pc_session_snapshot(b, snapshot);
    settle_tenants(b, snapshot);
    pc_inherited_sweep(b, snapshot);
    pc_grant_finish_drops(b);
    check_books(b);
    pc_watch_pace(b);
}

static bool something_to_wait_for(struct pc_broker *b)
{
    struct pc_session *s;
    struct pc_tenant *t;
    struct pc_grant *g;
    pc_list_each(s, &b->sessions, link)
        if (s->dead_ns != 0)
            return true;
    pc_list_each(g, &b->grants, link)
        if (g->dropping)
            return true;
    pc_list_each(t, &b->tenants, link) {
        struct pc_ledger_tenant_view view;
        pc_ledger_tenant_read(t->ledger, &view);
        if (view.kinds[PC_CHARGE_PENDING] > 0 || !pc_list_empty(&t->waiters))
            return true;
    }
    return false;
}

void pc_watch_pace(struct pc_broker *b)
{
    if (b->watcher != NULL)
        pc_watcher_set_interval(b->watcher, something_to_wait_for(b) ? PACE_BUSY_MS : PACE_IDLE_MS);
}
