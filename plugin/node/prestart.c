/*
 * PreStartContainer: the container starts when this is answered, so here its grant is bound to its pod and its socket
 * exists. The kubelet waits 30 s and tries again after an error (facts); we give up before, with the reason.
 *
 * Each call is a small wait that is looked at again whenever anything changes (and every 100 ms): nothing is remembered
 * between two looks but when it began, so whatever order things come in is a right one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/log.h"
#include "plugin/node/state.h"

enum { CODE_UNKNOWN = 2, LOOK_MS = 100 };
#define PATIENCE_NS (25ull * 1000000000u)
#define WATCH_NS (2ull * 1000000000u) /* how long the pod may take to appear in the watch */

struct pc_prestart {
    struct pc_prestart *next;
    struct pc_rpc_call *call;
    struct pc_unit_set ids;
    uint64_t began_ns;
    char waits_for[200]; /* what to say if it takes too long */
};

static void end(struct pc_node *node, struct pc_prestart *w)
{
    struct pc_prestart **at = &node->prestart;
    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
    pc_unit_set_free(&w->ids);
    free(w);
    if (node->prestart == NULL)
        pc_timer_stop(node->prestart_timer);
}

static void refuse(struct pc_node *node, struct pc_prestart *w, const char *text)
{
    node->stats.prestart_failures++;
    pc_log_warn("node", "PreStartContainer is refused: %s", text);
    pc_rpc_fail(w->call, CODE_UNKNOWN, text);
    end(node, w);
}

static uint64_t age(const struct pc_prestart *w)
{
    return pc_loop_now_ns() - w->began_ns;
}

/* The newest grant of exactly these units: the kubelet gave them last to this container's pod. */
static struct pc_node_grant *newest(const struct pc_node *node, const struct pc_unit_set *ids)
{
    for (struct pc_node_grant *grant = node->grant; grant != NULL; grant = grant->next)
        if (!grant->dropping && pc_unit_set_equal(&grant->record.units, ids))
            return grant;
    return NULL;
}

static bool bound(const struct pc_node_grant *grant)
{
    return grant->record.pod_uid[0] != '\0' || grant->record.pod_name[0] != '\0';
}

/*
 * Finds out whose it is. A healthy watch has the pod within moments; without one it is bound with what is known, under
 * its granted units. False: look again later.
 */
static bool find_owner(struct pc_node *node, struct pc_prestart *w, struct pc_node_grant *grant)
{
    struct pc_who who = {.pod_uid = ""};
    struct pc_error err = {.text = ""};
    bool patient = age(w) < WATCH_NS;
    bool known = pc_node_who(node, grant, &who);
    snprintf(w->waits_for, sizeof w->waits_for, "neither pod-resources nor the kubelet's checkpoint names its pod");
    if (patient && (node->pod_list_asked_ns < w->began_ns || !known))
        return false;
    bool watched = node->pods != NULL && pc_pod_watch_healthy(node->pods);
    if (patient && watched && (who.pod_uid[0] == '\0' || pc_pod_watch_find_uid(node->pods, who.pod_uid) == NULL))
        return false;
    if (!known)
        return age(w) > WATCH_NS; /* made for nobody in particular: the first that can open its socket */
    if (pc_node_bind(node, grant, &who, &err) == PC_OK)
        return true;
    snprintf(w->waits_for, sizeof w->waits_for, "%.190s", err.text);
    return false;
}

/* A living grant of another pod that has one of these units. Ids are not exclusive in time (facts). */
static struct pc_node_grant *holder(const struct pc_node *node, const struct pc_node_grant *ours)
{
    for (struct pc_node_grant *other = node->grant; other != NULL; other = other->next) {
        if (other == ours || !(other->made || other->asking) ||
            !pc_unit_set_meets(&other->record.units, &ours->record.units))
            continue;
        if (ours->record.pod_uid[0] == '\0' || strcmp(other->record.pod_uid, ours->record.pod_uid) != 0)
            return other;
    }
    return NULL;
}

static bool wait_for_holder(struct pc_node *node, struct pc_prestart *w, const struct pc_node_grant *ours)
{
    struct pc_node_grant *other = holder(node, ours);
    if (other == NULL)
        return false;
    snprintf(w->waits_for, sizeof w->waits_for, "processes of pod %.60s/%.60s still run on its units",
             other->record.pod_namespace, other->record.pod_name);
    pc_node_drop(node, other);
    return true;
}

/* All of the pod's grants of these units (an init container and an app of one size have the same). */
static bool make_all(struct pc_node *node, struct pc_prestart *w, const struct pc_node_grant *first)
{
    bool all = true;
    for (struct pc_node_grant *grant = node->grant; grant != NULL; grant = grant->next) {
        if (grant != first && (grant->dropping || !pc_unit_set_equal(&grant->record.units, &w->ids) ||
                               strcmp(grant->record.pod_uid, first->record.pod_uid) != 0))
            continue;
        pc_node_make(node, grant);
        if (grant->made)
            continue;
        all = false;
        snprintf(w->waits_for, sizeof w->waits_for, "%.190s",
                 grant->failure.status != PC_OK ? grant->failure.text : "poolcapd has not answered");
    }
    return all;
}

static void look(struct pc_node *node, struct pc_prestart *w)
{
    char why[300];
    struct pc_node_grant *grant = newest(node, &w->ids);
    if (grant == NULL) {
        refuse(node, w, "no grant has these units: its record was lost; delete the pod");
        return;
    }
    bool ready =
        (bound(grant) || find_owner(node, w, grant)) && !wait_for_holder(node, w, grant) && make_all(node, w, grant);
    if (ready) {
        V1beta1__PreStartContainerResponse reply = V1BETA1__PRE_START_CONTAINER_RESPONSE__INIT;
        pc_rpc_reply(w->call, &reply.base);
        end(node, w);
    } else if (age(w) > PATIENCE_NS) {
        snprintf(why, sizeof why, "not ready after 25 s: %.220s", w->waits_for);
        refuse(node, w, why);
    }
}

void pc_node_prestart_step(struct pc_node *node)
{
    struct pc_prestart *next;
    for (struct pc_prestart *w = node->prestart; w != NULL; w = next) {
        next = w->next;
        look(node, w);
    }
}

static void on_look(struct pc_loop *loop, void *arg)
{
    (void)loop;
    struct pc_node *node = arg;
    pc_node_prestart_step(node);
    if (node->prestart != NULL)
        pc_node_turn_kick(node);
}

void pc_node_pre_start(void *arg, struct pc_rpc_call *call, char *const *ids, size_t count)
{
    struct pc_node *node = arg;
    struct pc_error err = {.text = ""};
    struct pc_prestart *w = calloc(1, sizeof *w);
    node->stats.prestarts++;
    if (w == NULL || pc_unit_set_parse(&node->units, ids, count, &w->ids, &err) != PC_OK) {
        node->stats.prestart_failures++;
        pc_rpc_fail(call, CODE_UNKNOWN, w == NULL ? "no host memory" : err.text);
        free(w);
        return;
    }
    w->call = call;
    w->began_ns = pc_loop_now_ns();
    w->next = node->prestart;
    node->prestart = w;
    pc_rpc_call_set_context(call, w);
    pc_timer_start(node->prestart_timer, LOOK_MS, LOOK_MS);
    pc_node_turn_kick(node);
    pc_node_prestart_step(node);
}

void pc_node_pre_start_gone(void *arg, struct pc_rpc_call *call)
{
    struct pc_node *node = arg;
    struct pc_prestart *w = pc_rpc_call_context(call);
    if (w != NULL)
        end(node, w);
}

enum pc_status pc_node_prestart_create(struct pc_node *node, struct pc_error *err)
{
    return pc_timer_create(node->loop, on_look, node, &node->prestart_timer, err);
}

/* The server is stopped before, so nobody waits any more. */
void pc_node_prestart_stop(struct pc_node *node)
{
    while (node->prestart != NULL)
        end(node, node->prestart);
    pc_timer_free(node->prestart_timer);
}
