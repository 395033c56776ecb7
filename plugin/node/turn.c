/*
 * The turn: asks the kubelet who is there and poolcapd what it has, and brings the grants to where they should be. It
 * repeats itself every second while anything is on its way, every five otherwise, and at once when kicked.
 */
#include <stdlib.h>
#include <string.h>

#include "alloc/base/log.h"
#include "plugin/node/state.h"

enum { SOON_MS = 1000, LATER_MS = 5000 };
#define UNNAMED_NS (60ull * 1000000000u)

struct pc_turn {
    struct pc_timer *timer;
    bool busy, again;
    bool kubelet_said; /* so that an outage is one line in the log */
};

static void begin(struct pc_node *node);

/* ---- what the two said ---- */

static void unmake(struct pc_node *node)
{
    for (struct pc_node_grant *grant = node->grant; grant != NULL; grant = grant->next)
        grant->made = false;
}

static void see_grant(void *arg, const Poolcap__AdminGrant *seen)
{
    struct pc_node *node = arg;
    struct pc_node_grant *grant = pc_node_find(node, seen->name);
    if (grant == NULL)
        return; /* made by hand, or by the configuration */
    uint64_t cap = 0;
    struct pc_seen sum = {.sessions = seen->sessions};
    for (size_t i = 0; i < seen->n_gpus; i++) {
        cap += seen->gpus[i]->cap;
        sum.charged += seen->gpus[i]->charged;
        sum.peak += seen->gpus[i]->peak;
        sum.refused += seen->gpus[i]->refused;
        sum.outside += seen->gpus[i]->outside;
    }
    grant->made = true;
    grant->dropping = grant->dropping || seen->dropping;
    grant->seen = sum;
    if (!grant->asking)
        grant->cap_told = cap;
    if (seen->pod_uid[0] == '\0' && grant->record.pod_uid[0] != '\0')
        grant->unbound_there = true;
}

/* ---- what follows for each grant ---- */

static void bind_when_known(struct pc_node *node, struct pc_node_grant *grant)
{
    struct pc_who who;
    struct pc_error err = {.text = ""};
    uint64_t now = pc_loop_now_ns();
    if (pc_node_who(node, grant, &who)) {
        grant->unnamed_ns = 0;
        if (who.pod_uid[0] != '\0' && pc_node_bind(node, grant, &who, &err) != PC_OK)
            pc_log_warn("node", "grant %s: %s", grant->record.name, err.text);
        return;
    }
    if (!node->pod_list_good)
        return;
    if (grant->unnamed_ns == 0)
        grant->unnamed_ns = now;
    if (now - grant->unnamed_ns < UNNAMED_NS || grant->seen.sessions > 0)
        return;
    pc_log_info("node", "grant %s was never used by a pod; it ends", grant->record.name);
    if (grant->made)
        pc_node_drop(node, grant);
    else
        grant->dropping = true;
}

static void consider(struct pc_node *node, struct pc_node_grant *grant)
{
    if (grant->record.pod_uid[0] == '\0')
        bind_when_known(node, grant);
    if (grant->asking || grant->record.pod_uid[0] == '\0')
        return;
    if (pc_node_given_up(node, grant)) {
        if (grant->made)
            pc_node_drop(node, grant);
        else
            grant->dropping = true;
    } else if (!grant->made) {
        pc_node_make(node, grant);
    } else {
        if (grant->unbound_there)
            pc_node_bind_there(node, grant);
        pc_node_apply_cap(node, grant);
    }
}

static bool on_its_way(const struct pc_node *node, const struct pc_node_grant *grant)
{
    return grant->dropping || !grant->made || grant->asking || grant->missing > 0 || pc_node_given_up(node, grant);
}

static void consider_all(struct pc_node *node)
{
    struct pc_node_grant *next;
    for (struct pc_node_grant *grant = node->grant; grant != NULL; grant = next) {
        next = grant->next;
        if (!grant->dropping)
            consider(node, grant);
        if (grant->dropping && !grant->made && !grant->asking)
            pc_node_remove_grant(node, grant);
    }
}

/* ---- the turn itself ---- */

static void finish(struct pc_node *node)
{
    struct pc_turn *turn = node->turn;
    bool moving = !node->pod_list_good || !pc_daemon_is_up(node->daemon);
    turn->busy = false;
    node->stats.turns++;
    for (const struct pc_node_grant *grant = node->grant; grant != NULL && !moving; grant = grant->next)
        moving = on_its_way(node, grant);
    pc_timer_start(turn->timer, turn->again ? 0 : moving ? SOON_MS : LATER_MS, 0);
    turn->again = false;
}

static void on_snapshot(struct pc_node *node, bool whole)
{
    if (whole) {
        unmake(node);
        pc_node_snapshot_grants(node, see_grant, node);
        pc_node_see_gpus(node);
        consider_all(node);
        pc_node_offer(node);
        pc_node_report(node);
    }
    pc_node_prestart_step(node);
    finish(node);
}

static void on_pod_list(void *arg, enum pc_status status, struct pc_pod_list *list, const struct pc_error *err)
{
    struct pc_node *node = arg;
    node->pod_list_good = status == PC_OK;
    if (status == PC_OK) {
        pc_pod_list_free(node->pod_list);
        node->pod_list = list;
        node->pod_list_asked_ns = node->turn_began_ns;
        pc_node_look_at_list(node);
    } else {
        node->stats.kubelet_errors++;
        if (!node->turn->kubelet_said)
            pc_log_warn("node", "pod-resources does not answer, trying on: %s", err->text);
    }
    node->turn->kubelet_said = status != PC_OK;
    if (pc_daemon_is_up(node->daemon) && !pc_node_snapshot_busy(node)) {
        pc_node_snapshot_begin(node, on_snapshot);
        return;
    }
    pc_node_prestart_step(node);
    finish(node);
}

static void begin(struct pc_node *node)
{
    node->turn->busy = true;
    node->turn_began_ns = pc_loop_now_ns();
    pc_pod_resources_list(node->pod_resources, node->config->resource_name, on_pod_list, node);
}

static void on_timer(struct pc_loop *loop, void *arg)
{
    (void)loop;
    struct pc_node *node = arg;
    if (!node->turn->busy)
        begin(node);
}

void pc_node_turn_kick(struct pc_node *node)
{
    if (node->turn->busy)
        node->turn->again = true;
    else
        pc_timer_start(node->turn->timer, 0, 0);
}

enum pc_status pc_node_turn_create(struct pc_node *node, struct pc_error *err)
{
    node->turn = calloc(1, sizeof *node->turn);
    if (node->turn == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no host memory for the turns");
    return pc_timer_create(node->loop, on_timer, node, &node->turn->timer, err);
}

void pc_node_turn_free(struct pc_node *node)
{
    if (node->turn == NULL)
        return;
    pc_timer_free(node->turn->timer);
    free(node->turn);
    node->turn = NULL;
}
