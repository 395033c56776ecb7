/*
 * Allocate and GetPreferredAllocation. Allocate waits for nobody: a record on the disk, a directory, the books in
 * memory. Its failure is final for the pod and a storm for its Deployment, so it fails only where the grant could never
 * work.
 * That a request names a container, and each container a unit, its caller sees to (device_plugin.h).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "alloc/base/bytes.h"
#include "alloc/base/log.h"
#include "plugin/node/answer.h"
#include "plugin/placement/prefer.h"

enum { CODE_UNKNOWN = 2 }; /* gRPC's */

/* "GPU-a: 4Gi free, GPU-b: 512Mi free": where a smaller container could go. */
static void describe_free(const struct pc_node *node, char *out, size_t size)
{
    char bytes[PC_BYTES_TEXT];
    size_t used = 0;
    out[0] = '\0';
    for (unsigned g = 0; g < node->units.gpus && used < size; g++) {
        const struct pc_unit_gpu *gpu = &node->units.gpu[g];
        if (gpu->present)
            used += (size_t)snprintf(out + used, size - used, "%s%s: %s free", used > 0 ? ", " : "", gpu->uuid,
                                     pc_bytes_format(gpu->free * node->units.unit_bytes, bytes));
    }
}

static enum pc_status check_spread(const struct pc_node *node, const struct pc_unit_set *set, struct pc_error *err)
{
    char where[300];
    if (node->config->multi_gpu || pc_unit_set_on(set, set->unit[0].gpu) == set->count)
        return PC_OK;
    describe_free(node, where, sizeof where);
    return pc_error_set(err, PC_ERR_INVALID, 0,
                        "the %zu units that the kubelet chose are on several GPUs and no container may span them "
                        "(multiGpu is off); %s",
                        set->count, where);
}

/* A grant that has no room for one context would refuse its process's first call: said here, where it is seen. */
static enum pc_status check_least(const struct pc_node *node, const struct pc_unit_set *set, struct pc_error *err)
{
    uint64_t least = pc_node_least(node), unit = node->units.unit_bytes;
    for (unsigned g = 0; g < node->units.gpus; g++) {
        uint64_t here = pc_unit_set_on(set, g) * unit;
        if (here == 0 || here >= least)
            continue;
        return pc_error_set(err, PC_ERR_INVALID, 0,
                            "%llu units of %llu MiB cannot hold one CUDA context; ask for at least %llu of %s",
                            (unsigned long long)(here / unit), (unsigned long long)(unit / PC_MIB),
                            (unsigned long long)((least + unit - 1) / unit), node->config->resource_name);
    }
    return PC_OK;
}

static enum pc_status give(struct pc_node *node, const V1beta1__ContainerAllocateRequest *request,
                           struct pc_node_grant **out, struct pc_error *err)
{
    struct pc_record record = {.unit_bytes = node->units.unit_bytes, .created = (uint64_t)time(NULL)};
    enum pc_status status =
        pc_unit_set_parse(&node->units, request->devices_ids, request->n_devices_ids, &record.units, err);
    if (status != PC_OK)
        return status;
    status = check_spread(node, &record.units, err);
    if (status == PC_OK)
        status = check_least(node, &record.units, err);
    pc_record_name(record.name);
    if (status == PC_OK)
        status = pc_record_write(node->records, &node->units, &record, err);
    if (status == PC_OK)
        return pc_node_add_grant(node, &record, out, err);
    pc_unit_set_free(&record.units);
    return status;
}

struct giving {
    size_t count;
    struct pc_node_grant **grant;
    struct pc_answer **answer;
    V1beta1__ContainerAllocateResponse **response;
};

static void end_giving(struct giving *g)
{
    for (size_t i = 0; g->answer != NULL && i < g->count; i++)
        pc_answer_free(g->answer[i]);
    free(g->answer);
    free(g->grant);
    free(g->response);
}

static enum pc_status begin_giving(struct giving *g, size_t count, struct pc_error *err)
{
    g->count = count;
    g->grant = calloc(count, sizeof(struct pc_node_grant *));
    g->answer = calloc(count, sizeof(struct pc_answer *));
    g->response = calloc(count, sizeof(V1beta1__ContainerAllocateResponse *));
    if (g->grant == NULL || g->answer == NULL || g->response == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no host memory for the answer");
    return PC_OK;
}

/* All containers of the request or none: what was given is taken back where a later one fails. */
static enum pc_status give_all(struct pc_node *node, const V1beta1__AllocateRequest *request, struct giving *g,
                               struct pc_error *err)
{
    enum pc_status status = PC_OK;
    for (size_t i = 0; i < g->count && status == PC_OK; i++) {
        status = give(node, request->container_requests[i], &g->grant[i], err);
        if (status == PC_OK)
            status = pc_answer_make(node, g->grant[i], &g->answer[i], err);
        if (status == PC_OK)
            g->response[i] = pc_answer_message(g->answer[i]);
    }
    for (size_t i = 0; i < g->count && status != PC_OK; i++)
        if (g->grant[i] != NULL)
            pc_node_remove_grant(node, g->grant[i]);
    return status;
}

void pc_node_allocate(void *arg, struct pc_rpc_call *call, const V1beta1__AllocateRequest *request)
{
    struct pc_node *node = arg;
    struct pc_error err = {.text = ""};
    struct giving g = {.count = 0};
    V1beta1__AllocateResponse reply = V1BETA1__ALLOCATE_RESPONSE__INIT;
    enum pc_status status = begin_giving(&g, request->n_container_requests, &err);
    if (status == PC_OK)
        status = give_all(node, request, &g, &err);
    if (status == PC_OK) {
        reply.n_container_responses = g.count;
        reply.container_responses = g.response;
        node->stats.allocations++;
        pc_rpc_reply(call, &reply.base);
    } else {
        node->stats.allocation_failures++;
        pc_log_warn("node", "Allocate is refused: %s", err.text);
        pc_rpc_fail(call, CODE_UNKNOWN, err.text);
    }
    end_giving(&g);
    pc_node_units_changed(node);
    pc_node_turn_kick(node);
}

/* ---- GetPreferredAllocation ---- */

static size_t write_ids(const struct pc_node *node, const struct pc_unit_set *set, char (**text)[PC_UNIT_ID_MAX],
                        char ***ids)
{
    *text = calloc(set->count + 1, sizeof **text);
    *ids = calloc(set->count + 1, sizeof **ids);
    if (*text == NULL || *ids == NULL)
        return 0;
    for (size_t i = 0; i < set->count; i++)
        (*ids)[i] = pc_unit_id(&node->units, set->unit[i], (*text)[i]);
    return set->count;
}

static enum pc_status prefer_one(const struct pc_node *node,
                                 const V1beta1__ContainerPreferredAllocationRequest *request, struct pc_unit_set *out,
                                 struct pc_error *err)
{
    struct pc_unit_set available = {.count = 0}, must = {.count = 0};
    enum pc_status status =
        pc_unit_set_parse(&node->units, request->available_deviceids, request->n_available_deviceids, &available, err);
    if (status == PC_OK)
        status = pc_unit_set_parse(&node->units, request->must_include_deviceids, request->n_must_include_deviceids,
                                   &must, err);
    if (status == PC_OK)
        status = pc_prefer(&node->units, &available, &must,
                           request->allocation_size > 0 ? (size_t)request->allocation_size : 0, out, err);
    pc_unit_set_free(&available);
    pc_unit_set_free(&must);
    return status;
}

/* The kubelet sends one container a call (facts); an error would reject the pod, and this is only advice: so where it
 * cannot be worked out the answer is empty, and the kubelet chooses. */
void pc_node_preferred(void *arg, struct pc_rpc_call *call, const V1beta1__PreferredAllocationRequest *request)
{
    struct pc_node *node = arg;
    struct pc_error err = {.text = ""};
    struct pc_unit_set chosen = {.count = 0};
    char(*text)[PC_UNIT_ID_MAX] = NULL, **ids = NULL;
    V1beta1__ContainerPreferredAllocationResponse one = V1BETA1__CONTAINER_PREFERRED_ALLOCATION_RESPONSE__INIT,
                                                  *list[] = {&one};
    V1beta1__PreferredAllocationResponse reply = V1BETA1__PREFERRED_ALLOCATION_RESPONSE__INIT;
    if (request->n_container_requests > 0) {
        if (prefer_one(node, request->container_requests[0], &chosen, &err) == PC_OK)
            one.n_deviceids = write_ids(node, &chosen, &text, &ids);
        else
            pc_log_warn("node", "no preference is given: %s", err.text);
        one.deviceids = ids;
        reply.n_container_responses = 1;
        reply.container_responses = list;
    }
    pc_rpc_reply(call, &reply.base);
    pc_unit_set_free(&chosen);
    free(text);
    free(ids);
}
