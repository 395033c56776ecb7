#include "alloc/broker/watch.h"

#include "alloc/base/bytes.h"
#include "alloc/base/log.h"

#define REPORT_STEP (64 * PC_MIB) /* contexts grow a little by themselves: modules, stacks, libraries' workspaces */
#define SETTLE_UNSEEN_NS 1000000000ull
#define ATTACH_GRACE_NS 1000000000ull /* some make their context first; and an attach may wait for another's end */

/* A process's seats with a tenant on a GPU, taken together: NVML knows only the process. Mostly it is one. */
struct process {
    struct pc_seat *first;
    uint64_t context, held, pending; /* booked; held: large and direct */
    uint64_t pending_ns, attaching_ns;
    bool attached;
};

static bool same(const struct pc_seat *a, const struct pc_seat *b)
{
    return a->pid == b->pid && a->starttime == b->starttime;
}

/* Adds the seats of the same process up; false where `seat` is not the first of them. */
static bool gather(struct pc_seat *seat, struct process *out)
{
    struct pc_seat *other;
    *out = (struct process){.first = NULL};
    pc_list_each(other, &seat->tenant->seats, link) {
        struct pc_ledger_session_view view;
        if (!same(other, seat))
            continue;
        if (out->first == NULL && other != seat)
            return false;
        out->first = seat;
        pc_ledger_session_read(other->ledger, &view);
        out->context += view.kinds[PC_CHARGE_CONTEXT];
        out->held += view.kinds[PC_CHARGE_LARGE] + view.kinds[PC_CHARGE_DIRECT];
        out->pending += view.kinds[PC_CHARGE_PENDING];
        out->attached |= other->attached;
        if (other->pending_ns > out->pending_ns)
            out->pending_ns = other->pending_ns;
        if (other->attaching_ns > out->attaching_ns)
            out->attaching_ns = other->attaching_ns;
    }
    return true;
}

/* Leaves as much pending as the process still has beyond what it should have. */
static void settle_pending(const struct process *process, uint64_t used)
{
    uint64_t kept = process->context + process->held;
    uint64_t excess = used > kept ? used - kept : 0;
    struct pc_seat *seat;
    pc_list_each(seat, &process->first->tenant->seats, link) {
        struct pc_ledger_session_view view;
        if (!same(seat, process->first))
            continue;
        pc_ledger_session_read(seat->ledger, &view);
        uint64_t pending = view.kinds[PC_CHARGE_PENDING];
        uint64_t stays = pending < excess ? pending : excess;
        excess -= stays;
        pc_seat_set_pending(seat, stays);
    }
}

static void log_outside(const struct pc_seat *seat, uint64_t bytes)
{
    pc_log_warn("watch",
                "tenant %s, process %d: %llu MiB on GPU %s beyond a context and what it was given; "
                "they are charged",
                seat->tenant->name, (int)seat->pid, bytes / PC_MIB, seat->tenant->gpu->info.uuid);
}

static void note_outside(struct pc_seat *seat, uint64_t outside, const struct pc_outside_report *report)
{
    seat->outside = outside;
    if (outside < seat->reported) {
        seat->reported = outside;
        return;
    }
    if (outside - seat->reported < REPORT_STEP)
        return;
    seat->reported = outside;
    if (report != NULL)
        report->report(seat, outside, report->arg);
    else
        log_outside(seat, outside);
}

/* What is more than it should have is charged as its context, which nobody can tell it from. */
static void true_up_context(const struct process *process, uint64_t used, const struct pc_outside_report *report)
{
    struct pc_seat *seat = process->first;
    struct pc_ledger_session_view view;
    uint64_t least = process->attached ? seat->tenant->gpu->probe.context_bytes : 0;
    uint64_t context = used > process->held ? used - process->held : 0;
    if (context < least)
        context = least;
    note_outside(seat, context - least, report);
    pc_ledger_session_read(seat->ledger, &view);
    uint64_t others = process->context - view.kinds[PC_CHARGE_CONTEXT];
    pc_seat_set_context(seat, context > others ? context - others : 0);
}

static void look_at(struct pc_seat *seat, const struct pc_card_view *card, uint64_t started_ns,
                    const struct pc_outside_report *report)
{
    struct process process;
    const struct pc_nvml_process *entry = pc_card_process(card, seat->pid);
    if (!gather(seat, &process))
        return;
    if (!card->list_valid || (entry != NULL && entry->used == PC_NVML_NOT_AVAILABLE)) {
        if (process.pending > 0 && started_ns > process.pending_ns + SETTLE_UNSEEN_NS)
            settle_pending(&process, 0);
        return;
    }
    uint64_t used = entry != NULL ? entry->used : 0;
    if (process.pending > 0 && started_ns > process.pending_ns)
        settle_pending(&process, used);
    else if (process.pending == 0 && entry != NULL &&
             (process.attached || started_ns > process.attaching_ns + ATTACH_GRACE_NS))
        true_up_context(&process, used, report);
}

/* A process that connected a while ago, did not attach, and has a context all the same: it is charged. */
static void seat_uninvited(struct pc_session *session, const struct pc_snapshot *snapshot)
{
    if (snapshot->started_ns < session->greeted_ns + ATTACH_GRACE_NS)
        return;
    for (unsigned i = 0; i < session->grant->shares && session->greeted && session->fd >= 0; i++) {
        struct pc_share *share = &session->grant->share[i];
        const struct pc_card_view *card = &snapshot->card[share->tenant->gpu->index];
        struct pc_error err;
        if (session->seat[i] != NULL || pc_card_process(card, session->peer.pid) == NULL)
            continue;
        if (pc_seat_open(share, &session->peer, session->process, session->grant->name, &session->seat[i], &err) !=
            PC_OK)
            pc_log_error("watch", "process %d: %s", (int)session->peer.pid, err.text);
    }
}

void pc_watch_look(struct pc_broker *b, const struct pc_snapshot *snapshot, const struct pc_outside_report *report)
{
    struct pc_grant *grant;
    struct pc_tenant *tenant;
    pc_list_each(grant, &b->grants, link) {
        struct pc_session *session;
        pc_list_each(session, &grant->sessions, link)
            seat_uninvited(session, snapshot);
    }
    pc_list_each(tenant, &b->tenants, link) {
        struct pc_seat *seat;
        pc_list_each(seat, &tenant->seats, link)
            look_at(seat, &snapshot->card[tenant->gpu->index], snapshot->started_ns, report);
    }
}
