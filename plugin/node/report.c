/*
 * What kubectl shows: a status annotation and a condition on each pod with grants, Events, and the node's labels.
 * Written at a change of state, and for the peak at most once a minute; never on Allocate's path.
 */
#include <ctype.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "alloc/base/bytes.h"
#include "alloc/base/log.h"
#include "plugin/node/state.h"

#define CONDITION "poolcap.dev/Capped"
#define ANNOTATION "poolcap.dev/status"
#define MINUTE_NS (60ull * 1000000000u)

/* What is known of a pod, summed over its grants; one for each pod, as long as it has a grant. */
struct pc_pod_report {
    struct pc_pod_report *next;
    char uid[PC_POD_UID_TEXT];
    bool seen, made, over;     /* this time */
    uint64_t cap, peak;        /* this time */
    uint64_t refused, outside; /* the last time; Events are for a rise */
    bool counted;              /* there was a last time */
    char told[256];            /* the state that was last written */
    uint64_t told_peak, told_ns;
    bool asking;
};

static struct pc_pod_report *find_report(struct pc_node *node, const char *uid)
{
    for (struct pc_pod_report *r = node->report; r != NULL; r = r->next)
        if (strcmp(r->uid, uid) == 0)
            return r;
    struct pc_pod_report *r = calloc(1, sizeof *r);
    if (r == NULL)
        return NULL;
    snprintf(r->uid, sizeof r->uid, "%s", uid);
    r->next = node->report;
    node->report = r;
    return r;
}

/* ---- Events ---- */

void pc_node_report_event(struct pc_node *node, const struct pc_node_grant *grant, const char *type, const char *reason,
                          const char *message)
{
    const struct pc_pod *pod = pc_node_pod_of(node, grant);
    if (node->api == NULL || pod == NULL)
        return;
    const struct pc_api_event event = {
        .pod_namespace = pod->pod_namespace,
        .pod_name = pod->name,
        .pod_uid = pod->uid,
        .type = type,
        .reason = reason,
        .message = message,
        .node = node->config->node_name,
    };
    pc_api_event(node->api, &event);
}

static void tell_rises(struct pc_node *node, const struct pc_node_grant *grant, struct pc_pod_report *r)
{
    char text[256], cap[PC_BYTES_TEXT], bytes[PC_BYTES_TEXT];
    if (r->counted && r->refused == 0 && grant->seen.refused > 0) {
        snprintf(text, sizeof text,
                 "GPU memory beyond the cap of %s was refused (container %.63s); the program saw "
                 "CUDA_ERROR_OUT_OF_MEMORY",
                 pc_bytes_format(grant->cap, cap), grant->record.container);
        pc_node_report_event(node, grant, "Warning", "MemoryRefused", text);
    }
    if (r->counted && r->outside == 0 && grant->seen.outside > 0) {
        snprintf(text, sizeof text, "container %.63s holds %s of GPU memory outside its quota; it is charged",
                 grant->record.container, pc_bytes_format(grant->seen.outside, bytes));
        pc_node_report_event(node, grant, "Warning", "MemoryOutsideQuota", text);
    }
}

/* ---- the status annotation and the condition ---- */

struct written {
    struct pc_node *node;
    char uid[PC_POD_UID_TEXT];
};

static void on_written(void *arg, enum pc_status status, const struct pc_error *err)
{
    struct written *w = arg;
    for (struct pc_pod_report *r = w->node->report; r != NULL; r = r->next) {
        if (strcmp(r->uid, w->uid) != 0)
            continue;
        r->asking = false;
        if (status != PC_OK)
            r->told[0] = '\0'; /* again with the next turn */
    }
    if (status != PC_OK && status != PC_ERR_NOT_FOUND)
        pc_log_debug("node", "a pod's status could not be written: %s", err->text);
    free(w);
}

static const char *state_of(const struct pc_pod_report *r)
{
    return !r->made ? "waiting" : r->over ? "over" : "capped";
}

static const char *message_of(const struct pc_pod_report *r)
{
    return !r->made  ? "poolcapd has not made the pool yet"
           : r->over ? "the pod holds more than its cap: nothing is taken away, nothing more is given"
                     : "GPU memory is capped";
}

static json_t *condition(const struct pc_pod_report *r)
{
    char now[32];
    time_t seconds = time(NULL);
    struct tm tm;
    gmtime_r(&seconds, &tm);
    strftime(now, sizeof now, "%Y-%m-%dT%H:%M:%SZ", &tm);
    return json_pack("{s:s, s:s, s:s, s:s, s:s}", "type", CONDITION, "status", r->made ? "True" : "False", "reason",
                     !r->made  ? "Waiting"
                     : r->over ? "OverCap"
                               : "Capped",
                     "message", message_of(r), "lastTransitionTime", now);
}

static char *status_patch(const struct pc_pod_report *r, const struct pc_pod *pod)
{
    char cap[PC_BYTES_TEXT], peak[PC_BYTES_TEXT];
    json_t *status = json_pack("{s:s, s:s, s:s}", "cap", pc_bytes_format(r->cap, cap), "state", state_of(r), "peak",
                               pc_bytes_format(r->peak, peak));
    char *value = status != NULL ? json_dumps(status, JSON_COMPACT) : NULL;
    json_t *patch = value != NULL ? json_pack("{s:{s:s, s:{s:s}}, s:{s:[o]}}", "metadata", "uid", pod->uid,
                                              "annotations", ANNOTATION, value, "status", "conditions", condition(r))
                                  : NULL;
    char *text = patch != NULL ? json_dumps(patch, JSON_COMPACT) : NULL;
    json_decref(status);
    json_decref(patch);
    free(value);
    return text;
}

static void write_status(struct pc_node *node, struct pc_pod_report *r, const struct pc_pod *pod, const char *state)
{
    struct written *w = calloc(1, sizeof *w);
    pc_auto_free char *patch = status_patch(r, pod);
    if (w == NULL || patch == NULL) {
        free(w);
        return;
    }
    w->node = node;
    memcpy(w->uid, r->uid, sizeof w->uid);
    snprintf(r->told, sizeof r->told, "%s", state);
    r->told_peak = r->peak;
    r->told_ns = pc_loop_now_ns();
    r->asking = true;
    pc_api_patch_pod_status(node->api, pod->pod_namespace, pod->name, patch, on_written, w);
}

static void tell_status(struct pc_node *node, struct pc_pod_report *r)
{
    char state[256];
    const struct pc_pod *pod = pc_pod_watch_find_uid(node->pods, r->uid);
    if (pod == NULL || pod->deleting || r->asking)
        return;
    snprintf(state, sizeof state, "%s %llu", state_of(r), (unsigned long long)r->cap);
    bool peak_due = r->peak > r->told_peak && pc_loop_now_ns() - r->told_ns > MINUTE_NS;
    if (strcmp(state, r->told) != 0 || peak_due)
        write_status(node, r, pod, state);
}

/* ---- all pods ---- */

static void add_grant(struct pc_node *node, const struct pc_node_grant *grant)
{
    struct pc_pod_report *r = find_report(node, grant->record.pod_uid);
    if (r == NULL)
        return;
    if (!r->seen) {
        r->seen = r->made = true;
        r->over = false;
        r->cap = r->peak = 0;
    }
    tell_rises(node, grant, r);
    r->made = r->made && grant->made;
    r->over = r->over || grant->seen.charged > grant->cap;
    r->cap += grant->cap; /* of all its containers; the tenant's, with shared units once, is in the metrics */
    r->peak = grant->seen.peak > r->peak ? grant->seen.peak : r->peak;
}

static void sum_rises(struct pc_node *node, struct pc_pod_report *r)
{
    r->refused = r->outside = 0;
    for (const struct pc_node_grant *grant = node->grant; grant != NULL; grant = grant->next) {
        if (strcmp(grant->record.pod_uid, r->uid) != 0)
            continue;
        r->refused += grant->seen.refused;
        r->outside += grant->seen.outside;
    }
    r->counted = true;
}

void pc_node_report(struct pc_node *node)
{
    if (node->api == NULL || node->pods == NULL)
        return;
    for (struct pc_pod_report *r = node->report; r != NULL; r = r->next)
        r->seen = false;
    for (const struct pc_node_grant *grant = node->grant; grant != NULL; grant = grant->next)
        if (grant->record.pod_uid[0] != '\0' && !grant->dropping)
            add_grant(node, grant);
    for (struct pc_pod_report **at = &node->report; *at != NULL;) {
        struct pc_pod_report *r = *at;
        if (!r->seen) {
            *at = r->next;
            free(r);
            continue;
        }
        sum_rises(node, r);
        tell_status(node, r);
        at = &r->next;
    }
}

void pc_node_report_free(struct pc_node *node)
{
    while (node->report != NULL) {
        struct pc_pod_report *r = node->report;
        node->report = r->next;
        free(r);
    }
}

/* ---- the node's labels ---- */

struct product {
    unsigned gpus;
    char name[64];
};

/* A label's value: letters, digits, '-', '_', '.', beginning and ending with a letter or digit. */
static void see_product(void *arg, const Poolcap__AdminGpu *gpu)
{
    struct product *p = arg;
    size_t n = 0;
    if (p->gpus++ > 0)
        return;
    for (const char *c = gpu->name; *c != '\0' && n < sizeof p->name - 1; c++)
        p->name[n++] = isalnum((unsigned char)*c) || *c == '.' || *c == '_' ? *c : '-';
    while (n > 0 && !isalnum((unsigned char)p->name[n - 1]))
        n--;
    p->name[n] = '\0';
}

static void on_labels(void *arg, enum pc_status status, const struct pc_error *err)
{
    struct pc_node *node = arg;
    node->labels_asking = false;
    if (status == PC_OK)
        return;
    node->labels[0] = '\0'; /* again with the next turn */
    pc_log_debug("node", "the node's labels could not be set: %s", err->text);
}

void pc_node_report_labels(struct pc_node *node)
{
    struct product product = {.gpus = 0};
    char unit[PC_BYTES_TEXT], count[16], labels[sizeof node->labels];
    if (node->api == NULL || node->labels_asking)
        return;
    pc_node_snapshot_gpus(node, see_product, &product);
    pc_bytes_format(node->units.unit_bytes, unit);
    snprintf(count, sizeof count, "%u", product.gpus);
    snprintf(labels, sizeof labels, "%s %s %s", unit, count, product.name);
    if (strcmp(labels, node->labels) == 0)
        return;
    json_t *patch = json_pack("{s:{s:{s:s, s:s, s:s}}}", "metadata", "labels", "poolcap.dev/unit", unit,
                              "poolcap.dev/gpus", count, "poolcap.dev/gpu-product", product.name);
    pc_auto_free char *text = patch != NULL ? json_dumps(patch, JSON_COMPACT) : NULL;
    json_decref(patch);
    if (text == NULL)
        return;
    memcpy(node->labels, labels, sizeof labels);
    node->labels_asking = true;
    pc_api_patch_node_status(node->api, node->config->node_name, text, on_labels, node);
}
