#include "plugin/node/answer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/cleanup.h"
#include "plugin/node/devices.h"

enum { ENVS = 2, MOUNTS = 2, NODES = PC_UNITS_GPUS_MAX + 8, NODE_PATH = 320 };
#define IN_POD_DIRECTORY "/run/poolcap"
#define IN_POD_SOCKET "/run/poolcap/poolcap.sock"
#define IN_POD_SHIM "/usr/lib/poolcap"

struct pc_answer {
    V1beta1__ContainerAllocateResponse message;
    V1beta1__ContainerAllocateResponse__EnvsEntry env[ENVS], *envs[ENVS];
    V1beta1__Mount mount[MOUNTS], *mounts[MOUNTS];
    V1beta1__CDIDevice cdi[PC_UNITS_GPUS_MAX], *cdis[PC_UNITS_GPUS_MAX];
    V1beta1__DeviceSpec node[NODES], *nodes[NODES];
    char directory[PC_NODE_PATH_MAX + PC_RECORD_NAME_MAX];
    char uuids[PC_UNITS_GPUS_MAX * PC_UNIT_UUID_MAX];
    char cdi_name[PC_UNITS_GPUS_MAX][PC_PLUGIN_PATH_MAX + PC_UNIT_UUID_MAX];
    char node_path[NODES][NODE_PATH], host_path[NODES][NODE_PATH];
};

static char *text(const char *s)
{
    return (char *)(uintptr_t)s;
}

static void add_env(struct pc_answer *a, const char *key, const char *value)
{
    size_t n = a->message.n_envs++;
    v1beta1__container_allocate_response__envs_entry__init(&a->env[n]);
    a->env[n].key = text(key);
    a->env[n].value = text(value);
    a->envs[n] = &a->env[n];
}

static void add_mount(struct pc_answer *a, const char *container, const char *host)
{
    size_t n = a->message.n_mounts++;
    v1beta1__mount__init(&a->mount[n]);
    a->mount[n].container_path = text(container);
    a->mount[n].host_path = text(host);
    a->mount[n].read_only = 1;
    a->mounts[n] = &a->mount[n];
}

static void add_cdi(struct pc_answer *a, const char *kind, const char *uuid)
{
    size_t n = a->message.n_cdi_devices++;
    snprintf(a->cdi_name[n], sizeof a->cdi_name[n], "%s=%s", kind, uuid);
    v1beta1__cdidevice__init(&a->cdi[n]);
    a->cdi[n].name = a->cdi_name[n];
    a->cdis[n] = &a->cdi[n];
}

static void add_uuid(struct pc_answer *a, const char *uuid)
{
    size_t used = strlen(a->uuids);
    snprintf(a->uuids + used, sizeof a->uuids - used, "%s%s", used > 0 ? "," : "", uuid);
}

static void add_node(struct pc_answer *a, const char *root, const char *name)
{
    size_t n = a->message.n_devices++;
    const char *base = strcmp(root, "/") == 0 ? "" : root;
    snprintf(a->node_path[n], NODE_PATH, "/dev/%s", name);
    snprintf(a->host_path[n], NODE_PATH, "%s/dev/%s", base, name);
    v1beta1__device_spec__init(&a->node[n]);
    a->node[n].container_path = a->node_path[n];
    a->node[n].host_path = a->host_path[n];
    a->node[n].permissions = text("rw");
    a->nodes[n] = &a->node[n];
}

static enum pc_status add_nodes(struct pc_answer *a, const struct pc_plugin_config *config, const char *uuid,
                                struct pc_error *err)
{
    static const char *const common[] = {"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"};
    char name[32];
    unsigned minor;
    enum pc_status status = pc_gpu_minor("/proc", uuid, &minor, err);
    if (status != PC_OK)
        return status;
    for (size_t i = 0; a->message.n_devices == 0 && i < PC_ARRAY_LEN(common); i++)
        add_node(a, config->nvidia_driver_root, common[i]);
    snprintf(name, sizeof name, "nvidia%u", minor);
    add_node(a, config->nvidia_driver_root, name);
    return PC_OK;
}

static enum pc_status add_gpu(struct pc_answer *a, const struct pc_plugin_config *config, const char *uuid,
                              struct pc_error *err)
{
    switch (config->device_list_strategy) {
    case PC_DEVICES_CDI:
        add_cdi(a, config->cdi_kind, uuid);
        break;
    case PC_DEVICES_ENVVAR:
        add_uuid(a, uuid);
        break;
    case PC_DEVICES_NODES:
        return add_nodes(a, config, uuid, err);
    case PC_DEVICES_NONE:
        break;
    }
    return PC_OK;
}

static void finish(struct pc_answer *a)
{
    if (a->uuids[0] != '\0')
        add_env(a, "NVIDIA_VISIBLE_DEVICES", a->uuids);
    a->message.envs = a->envs;
    a->message.mounts = a->mounts;
    a->message.cdi_devices = a->cdis;
    a->message.devices = a->nodes;
}

enum pc_status pc_answer_make(const struct pc_node *node, const struct pc_node_grant *grant, struct pc_answer **out,
                              struct pc_error *err)
{
    struct pc_answer *a = calloc(1, sizeof *a);
    enum pc_status status = PC_OK;
    if (a == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no host memory for the answer");
    v1beta1__container_allocate_response__init(&a->message);
    snprintf(a->directory, sizeof a->directory, "%s/%s", node->grants, grant->record.name);
    add_mount(a, IN_POD_DIRECTORY, a->directory);
    add_mount(a, IN_POD_SHIM, node->config->shim_directory);
    add_env(a, "POOLCAP_SOCKET", IN_POD_SOCKET);
    for (unsigned g = 0; g < node->units.gpus && status == PC_OK; g++)
        if (pc_unit_set_on(&grant->record.units, g) > 0)
            status = add_gpu(a, node->config, node->units.gpu[g].uuid, err);
    if (status != PC_OK) {
        pc_answer_free(a);
        return status;
    }
    finish(a);
    *out = a;
    return PC_OK;
}

V1beta1__ContainerAllocateResponse *pc_answer_message(struct pc_answer *answer)
{
    return &answer->message;
}

void pc_answer_free(struct pc_answer *answer)
{
    free(answer);
}
