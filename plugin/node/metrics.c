/*
 * The metrics, in Prometheus' text format, from poolcapd's last list and our own counts. Three tables: one of the GPUs'
 * series, one of the grants', one of the plugin's; a series is a row.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin/node/state.h"

/* A label's value: backslash, quote and line feed are escaped. */
static void label(FILE *out, const char *name, const char *value, const char *before)
{
    fprintf(out, "%s%s=\"", before, name);
    for (const char *c = value; *c != '\0'; c++) {
        if (*c == '\\' || *c == '"')
            fputc('\\', out);
        if (*c == '\n')
            fputs("\\n", out);
        else
            fputc(*c, out);
    }
    fputc('"', out);
}

static void head(FILE *out, const char *name, const char *type, const char *help)
{
    fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* ---- GPUs ---- */

struct gpu_row {
    const char *name, *type, *help;
    uint64_t (*value)(const struct pc_node *node, const Poolcap__AdminGpu *gpu);
};

static const struct pc_unit_gpu *units_of(const struct pc_node *node, const char *uuid)
{
    for (unsigned g = 0; g < node->units.gpus; g++)
        if (strcmp(node->units.gpu[g].uuid, uuid) == 0)
            return &node->units.gpu[g];
    return NULL;
}

static uint64_t advertised(const struct pc_node *node, const Poolcap__AdminGpu *gpu)
{
    const struct pc_unit_gpu *units = units_of(node, gpu->uuid);
    return units != NULL ? units->units * node->units.unit_bytes : 0;
}

static uint64_t unit_free(const struct pc_node *node, const Poolcap__AdminGpu *gpu)
{
    const struct pc_unit_gpu *units = units_of(node, gpu->uuid);
    return units != NULL ? units->free * node->units.unit_bytes : 0;
}

#define GPU_FIELD(function, field)                                                     \
    static uint64_t function(const struct pc_node *node, const Poolcap__AdminGpu *gpu) \
    {                                                                                  \
        (void)node;                                                                    \
        return gpu->field;                                                             \
    }
GPU_FIELD(gpu_total, total)
GPU_FIELD(gpu_granted, granted)
GPU_FIELD(gpu_charged, charged)
GPU_FIELD(gpu_reserved, pool_reserved)
GPU_FIELD(gpu_used, card_used)
GPU_FIELD(gpu_promises, broken_promises)
GPU_FIELD(gpu_frees, failed_frees)

static uint64_t healthy(const struct pc_node *node, const Poolcap__AdminGpu *gpu)
{
    (void)node;
    return gpu->fault[0] == '\0';
}

static const struct gpu_row gpu_rows[] = {
    {"poolcap_gpu_memory_total_bytes", "gauge", "Memory of the GPU.", gpu_total},
    {"poolcap_gpu_memory_advertised_bytes", "gauge", "Memory that is advertised to the kubelet in units.", advertised},
    {"poolcap_gpu_memory_granted_bytes", "gauge", "Memory that is promised to grants.", gpu_granted},
    {"poolcap_gpu_memory_charged_bytes", "gauge", "Memory that tenants are charged for.", gpu_charged},
    {"poolcap_gpu_memory_pool_reserved_bytes", "gauge", "Memory that the tenants' pools hold.", gpu_reserved},
    {"poolcap_gpu_memory_free_bytes", "gauge", "Units that no grant holds, in bytes.", unit_free},
    {"poolcap_gpu_memory_used_bytes", "gauge", "Used bytes of the card by NVML, of all programs.", gpu_used},
    {"poolcap_gpu_healthy", "gauge", "1 where poolcapd has the GPU in service.", healthy},
    {"poolcap_broken_promises_total", "counter", "Admitted requests that the driver could not fulfil.", gpu_promises},
    {"poolcap_failed_frees_total", "counter", "Driver frees that failed; what they held stays charged.", gpu_frees},
};

struct gpu_print {
    const struct pc_node *node;
    FILE *out;
    const struct gpu_row *row;
};

static void gpu_labels(FILE *out, const struct pc_node *node, const char *uuid)
{
    label(out, "node", node->config->node_name, "{");
    label(out, "gpu", uuid, ",");
}

static void print_gpu(void *arg, const Poolcap__AdminGpu *gpu)
{
    const struct gpu_print *p = arg;
    fputs(p->row->name, p->out);
    gpu_labels(p->out, p->node, gpu->uuid);
    fprintf(p->out, "} %llu\n", (unsigned long long)p->row->value(p->node, gpu));
}

static void print_latency(void *arg, const Poolcap__AdminGpu *gpu)
{
    static const char name[] = "poolcap_allocation_duration_seconds";
    const struct gpu_print *p = arg;
    uint64_t sum = 0;
    for (size_t i = 0; i < gpu->n_latency_buckets; i++) {
        sum += gpu->latency_buckets[i];
        fprintf(p->out, "%s_bucket", name);
        gpu_labels(p->out, p->node, gpu->uuid);
        if (i < gpu->n_latency_bounds_ns)
            fprintf(p->out, ",le=\"%g\"} %llu\n", (double)gpu->latency_bounds_ns[i] / 1e9, (unsigned long long)sum);
        else
            fprintf(p->out, ",le=\"+Inf\"} %llu\n", (unsigned long long)sum);
    }
    fprintf(p->out, "%s_sum", name);
    gpu_labels(p->out, p->node, gpu->uuid);
    fprintf(p->out, "} %g\n%s_count", (double)gpu->latency_sum_ns / 1e9, name);
    gpu_labels(p->out, p->node, gpu->uuid);
    fprintf(p->out, "} %llu\n", (unsigned long long)sum);
}

static void print_gpus(const struct pc_node *node, FILE *out)
{
    for (size_t i = 0; i < PC_ARRAY_LEN(gpu_rows); i++) {
        struct gpu_print p = {.node = node, .out = out, .row = &gpu_rows[i]};
        head(out, p.row->name, p.row->type, p.row->help);
        pc_node_snapshot_gpus(node, print_gpu, &p);
    }
    struct gpu_print p = {.node = node, .out = out};
    head(out, "poolcap_allocation_duration_seconds", "histogram", "Time that poolcapd took for requests for memory.");
    pc_node_snapshot_gpus(node, print_latency, &p);
}

/* ---- grants ---- */

struct grant_row {
    const char *name, *type, *help;
    size_t offset; /* in Poolcap__AdminGrantGpu, a uint64_t */
};

#define FIELD(field) offsetof(Poolcap__AdminGrantGpu, field)
static const struct grant_row grant_rows[] = {
    {"poolcap_grant_granted_bytes", "gauge", "Units of the container, in bytes.", FIELD(granted)},
    {"poolcap_grant_cap_bytes", "gauge", "Cap of the container.", FIELD(cap)},
    {"poolcap_grant_charged_bytes", "gauge", "What the container is charged for.", FIELD(charged)},
    {"poolcap_grant_refused_total", "counter", "Requests over a cap.", FIELD(refused)},
    {"poolcap_tenant_cap_bytes", "gauge", "Cap of the pod: each unit of its containers counted once.",
     FIELD(tenant_cap)},
    {"poolcap_tenant_charged_bytes", "gauge", "What the pod is charged for.", FIELD(tenant_charged)},
    {"poolcap_tenant_pool_reserved_bytes", "gauge", "What the pod's pool holds of the card.", FIELD(pool_reserved)},
    {"poolcap_tenant_pool_used_bytes", "gauge", "What of the pod's pool is in use.", FIELD(pool_used)},
    {"poolcap_tenant_large_bytes", "gauge", "Allocations over 4064 MiB, each of its own.", FIELD(large)},
    {"poolcap_tenant_direct_bytes", "gauge", "The processes' own driver allocations.", FIELD(direct)},
    {"poolcap_tenant_context_bytes", "gauge", "CUDA contexts of the pod's processes.", FIELD(context)},
    {"poolcap_tenant_pending_bytes", "gauge", "Freed by word, not yet seen free on the card.", FIELD(pending)},
    {"poolcap_tenant_inherited_bytes", "gauge", "Held from before poolcapd's last start.", FIELD(inherited)},
    {"poolcap_tenant_peak_bytes", "gauge", "The most that the pod was ever charged for.", FIELD(peak)},
    {"poolcap_tenant_outside_bytes", "gauge", "Seen on the card beyond what is booked.", FIELD(outside)},
};

struct grant_print {
    struct pc_node *node;
    FILE *out;
    const struct grant_row *row;
};

/* No text of a tenant's is in them: the names are the API server's, checked by it. */
static void grant_labels(FILE *out, struct pc_node *node, const Poolcap__AdminGrant *grant)
{
    const struct pc_node_grant *known = pc_node_find(node, grant->name);
    label(out, "node", node->config->node_name, "{");
    label(out, "grant", grant->name, ",");
    label(out, "namespace", known != NULL ? known->record.pod_namespace : "", ",");
    label(out, "pod", known != NULL ? known->record.pod_name : "", ",");
    label(out, "container", known != NULL ? known->record.container : "", ",");
}

static void print_grant(void *arg, const Poolcap__AdminGrant *grant)
{
    const struct grant_print *p = arg;
    for (size_t i = 0; i < grant->n_gpus; i++) {
        uint64_t value;
        memcpy(&value, (const char *)grant->gpus[i] + p->row->offset, sizeof value);
        fputs(p->row->name, p->out);
        grant_labels(p->out, p->node, grant);
        label(p->out, "gpu", grant->gpus[i]->uuid, ",");
        fprintf(p->out, "} %llu\n", (unsigned long long)value);
    }
}

static void print_sessions(void *arg, const Poolcap__AdminGrant *grant)
{
    const struct grant_print *p = arg;
    fputs("poolcap_grant_sessions", p->out);
    grant_labels(p->out, p->node, grant);
    fprintf(p->out, "} %u\n", grant->sessions);
}

static void print_grants(struct pc_node *node, FILE *out)
{
    struct grant_print p = {.node = node, .out = out};
    for (size_t i = 0; i < PC_ARRAY_LEN(grant_rows); i++) {
        p.row = &grant_rows[i];
        head(out, p.row->name, p.row->type, p.row->help);
        pc_node_snapshot_grants(node, print_grant, &p);
    }
    head(out, "poolcap_grant_sessions", "gauge", "Connected processes.");
    pc_node_snapshot_grants(node, print_sessions, &p);
}

/* ---- the plugin ---- */

static uint64_t count_grants(const struct pc_node *node)
{
    uint64_t count = 0;
    for (const struct pc_node_grant *grant = node->grant; grant != NULL; grant = grant->next)
        count++;
    return count;
}

static void print_plugin(const struct pc_node *node, FILE *out)
{
    struct pc_device_plugin_stats kubelet = {.registrations = 0};
    struct pc_api_stats api = {.requests = 0};
    if (node->plugin != NULL)
        pc_device_plugin_read(node->plugin, &kubelet);
    if (node->api != NULL)
        pc_api_read(node->api, &api);
    const struct {
        const char *name, *type, *help;
        uint64_t value;
    } rows[] = {
        {"poolcap_grants", "gauge", "Living grants.", count_grants(node)},
        {"poolcap_bad_records", "gauge", "Records of grants that could not be read.", node->bad_records},
        {"poolcap_registered", "gauge", "1 while registered with the kubelet.", node->registered},
        {"poolcap_daemon_up", "gauge", "1 while poolcapd answers.", pc_daemon_is_up(node->daemon)},
        {"poolcap_reconciles_total", "counter", "Comparisons of grants with kubelet and poolcapd.", node->stats.turns},
        {"poolcap_allocations_total", "counter", "Allocate calls answered.", node->stats.allocations},
        {"poolcap_allocation_failures_total", "counter", "Allocate calls refused.", node->stats.allocation_failures},
        {"poolcap_prestarts_total", "counter", "PreStartContainer calls.", node->stats.prestarts},
        {"poolcap_prestart_failures_total", "counter", "PreStartContainer calls refused.",
         node->stats.prestart_failures},
        {"poolcap_kubelet_registrations_total", "counter", "Registrations with the kubelet.", kubelet.registrations},
        {"poolcap_kubelet_errors_total", "counter", "Failed registrations, unusable answers.",
         kubelet.registration_failures + node->stats.kubelet_errors},
        {"poolcap_kubelet_lists_total", "counter", "Device lists sent.", kubelet.lists_sent},
        {"poolcap_api_requests_total", "counter", "Requests to the API server.", api.requests},
        {"poolcap_api_errors_total", "counter", "Requests to the API server that failed.", api.errors},
        {"poolcap_events_dropped_total", "counter", "Events over the limit of 10 a minute and pod.",
         api.events_dropped},
    };
    for (size_t i = 0; i < PC_ARRAY_LEN(rows); i++) {
        head(out, rows[i].name, rows[i].type, rows[i].help);
        fputs(rows[i].name, out);
        label(out, "node", node->config->node_name, "{");
        fprintf(out, "} %llu\n", (unsigned long long)rows[i].value);
    }
    head(out, "poolcap_build_info", "gauge", "1; the version is a label.");
    fputs("poolcap_build_info", out);
    label(out, "node", node->config->node_name, "{");
    label(out, "version", POOLCAP_VERSION, ",");
    fputs("} 1\n", out);
}

char *pc_node_metrics(struct pc_node *node, size_t *length)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, length);
    if (out == NULL)
        return NULL;
    print_gpus(node, out);
    print_grants(node, out);
    print_plugin(node, out);
    bool bad = ferror(out) != 0;
    if (fclose(out) != 0 || bad) {
        free(text);
        return NULL;
    }
    return text;
}
