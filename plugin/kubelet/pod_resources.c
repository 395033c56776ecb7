/*
 * pod-resources List, as the kubelet gives it (facts, kubernetes-apis.md, "Pod-resources"): every active pod, with one
 * ContainerDevices entry for each device id, no UID, and plain init containers never in it.
 */
#include "plugin/kubelet/pod_resources.h"

#include <stdlib.h>
#include <string.h>

#include "plugin/kubelet/claims.h"
#include "plugin/text/text.h"
#include "proto/pod_resources.pb-c.h"

enum {
    TIMEOUT_MS = 10000,
    /* Kubernetes' own limits are 63 for namespaces and containers, 253 for pods; a device's id has none. */
    NAME_MAX_BYTES = 253,
    ID_MAX_BYTES = 1024,
};

struct question {
    pc_pod_list_answer answer;
    void *arg;
    char resource[];
};

/* ---- one answer into one table ---- */

static enum pc_status refuse(struct pc_error *err, const char *what, size_t pod)
{
    return pc_error_set(err, PC_ERR_PROTOCOL, 0,
                        "pod-resources: %s of pod %zu of the list is missing, too long, or no text", what, pod + 1);
}

static enum pc_status add_container(struct pc_claims_builder *b, const V1__PodResources *pod, size_t number,
                                    const V1__ContainerResources *container, const char *resource, struct pc_error *err)
{
    const struct pc_claim who = {
        .pod_namespace = pod->namespace_, .pod_name = pod->name, .pod_uid = "", .container = container->name};
    if (!pc_text_ok(container->name, NAME_MAX_BYTES))
        return refuse(err, "the name of a container", number);
    pc_claims_begin(b, &who);
    for (size_t i = 0; i < container->n_devices; i++) {
        const V1__ContainerDevices *devices = container->devices[i];
        if (strcmp(devices->resource_name, resource) != 0)
            continue;
        for (size_t j = 0; j < devices->n_device_ids; j++) {
            if (!pc_text_ok(devices->device_ids[j], ID_MAX_BYTES))
                return refuse(err, "a device id", number);
            pc_claims_add_id(b, devices->device_ids[j]);
        }
    }
    pc_claims_end(b);
    return PC_OK;
}

static enum pc_status add_pod(struct pc_claims_builder *b, const V1__PodResources *pod, size_t number,
                              const char *resource, struct pc_pod_name *out, struct pc_error *err)
{
    enum pc_status status = PC_OK;
    if (!pc_text_ok(pod->name, NAME_MAX_BYTES))
        return refuse(err, "the name", number);
    if (!pc_text_ok(pod->namespace_, NAME_MAX_BYTES))
        return refuse(err, "the namespace", number);
    out->pod_namespace = pc_claims_text(b, pod->namespace_);
    out->pod_name = pc_claims_text(b, pod->name);
    for (size_t i = 0; i < pod->n_containers && status == PC_OK; i++)
        status = add_container(b, pod, number, pod->containers[i], resource, err);
    return status;
}

static enum pc_status fill(struct pc_claims_builder *b, const V1__ListPodResourcesResponse *reply, const char *resource,
                           struct pc_pod_list *list, struct pc_error *err)
{
    enum pc_status status = PC_OK;
    for (size_t i = 0; i < reply->n_pod_resources && status == PC_OK; i++)
        status = add_pod(b, reply->pod_resources[i], i, resource, &list->pod[i], err);
    return status == PC_OK ? pc_claims_build(b, &list->claims, err) : status;
}

static enum pc_status read_list(const V1__ListPodResourcesResponse *reply, const char *resource,
                                struct pc_pod_list **out, struct pc_error *err)
{
    struct pc_claims_builder *b = NULL;
    struct pc_pod_list *list = calloc(1, sizeof *list);
    if (list != NULL)
        list->pod = calloc(reply->n_pod_resources + 1, sizeof *list->pod);
    enum pc_status status = PC_OK;
    if (list == NULL || list->pod == NULL)
        status = pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no host memory for the kubelet's list of pods");
    if (status == PC_OK)
        status = pc_claims_builder_create(&b, err);
    if (status == PC_OK)
        status = fill(b, reply, resource, list, err);
    pc_claims_builder_free(b);
    if (status != PC_OK) {
        pc_pod_list_free(list);
        return status;
    }
    list->pods = reply->n_pod_resources;
    *out = list;
    return PC_OK;
}

/* ---- asking ---- */

static void on_answer(void *arg, enum pc_status status, const ProtobufCMessage *reply, const struct pc_error *err)
{
    struct question *question = arg;
    struct pc_pod_list *list = NULL;
    struct pc_error own = {.status = status};
    if (err != NULL)
        own = *err;
    if (status == PC_OK)
        status = read_list((const V1__ListPodResourcesResponse *)reply, question->resource, &list, &own);
    question->answer(question->arg, status, list, &own);
    free(question);
}

void pc_pod_resources_list(struct pc_rpc_channel *channel, const char *resource, pc_pod_list_answer answer, void *arg)
{
    V1__ListPodResourcesRequest request = V1__LIST_POD_RESOURCES_REQUEST__INIT;
    size_t size = strlen(resource) + 1;
    struct question *question = malloc(sizeof *question + size);
    if (question == NULL) {
        struct pc_error err;
        pc_error_set(&err, PC_ERR_HOST_MEMORY, 0, "no host memory to ask the kubelet for its pods");
        answer(arg, PC_ERR_HOST_MEMORY, NULL, &err);
        return;
    }
    question->answer = answer;
    question->arg = arg;
    memcpy(question->resource, resource, size);
    pc_rpc_call(channel, "/v1.PodResourcesLister/List", &request.base, &v1__list_pod_resources_response__descriptor,
                TIMEOUT_MS, on_answer, question);
}

void pc_pod_list_free(struct pc_pod_list *list)
{
    if (list == NULL)
        return;
    pc_claims_clear(&list->claims);
    free(list->pod);
    free(list);
}
