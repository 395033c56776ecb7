#include "plugin/node/node.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "alloc/base/bytes.h"
#include "alloc/base/log.h"
#include "plugin/kubelet/lock_file.h"
#include "plugin/node/state.h"

enum { SILENCE_MS = 10000 };

/* ---- grants ---- */

struct pc_node_grant *pc_node_find(struct pc_node *node, const char *name)
{
    for (struct pc_node_grant *grant = node->grant; grant != NULL; grant = grant->next)
        if (strcmp(grant->record.name, name) == 0)
            return grant;
    return NULL;
}

uint64_t pc_node_granted(const struct pc_node *node, const struct pc_node_grant *grant)
{
    return grant->record.units.count * node->units.unit_bytes;
}

uint64_t pc_node_least(const struct pc_node *node)
{
    uint64_t least = 0;
    if (!pc_round_up(node->context_bytes, PC_POOL_GRANULE, &least))
        return node->context_bytes;
    return least + PC_POOL_GRANULE;
}

/* 0711: a tenant of any user can reach the socket in it, and list nothing. */
static enum pc_status make_directory(const char *path, struct pc_error *err)
{
    if (mkdir(path, 0711) < 0 && errno != EEXIST)
        return pc_error_errno(err, errno, "cannot make the directory %.300s", path);
    if (chmod(path, 0711) < 0)
        return pc_error_errno(err, errno, "cannot set the mode of %.300s", path);
    return PC_OK;
}

static enum pc_status make_grant_directory(const struct pc_node *node, const char *name, struct pc_error *err)
{
    char path[PC_NODE_PATH_MAX + PC_RECORD_NAME_MAX];
    enum pc_status status = make_directory(node->config->run_directory, err);
    if (status == PC_OK)
        status = make_directory(node->grants, err);
    snprintf(path, sizeof path, "%s/%s", node->grants, name);
    return status == PC_OK ? make_directory(path, err) : status;
}

enum pc_status pc_node_add_grant(struct pc_node *node, struct pc_record *record, struct pc_node_grant **out,
                                 struct pc_error *err)
{
    struct pc_node_grant *grant = calloc(1, sizeof *grant);
    enum pc_status status = grant == NULL ? pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no host memory for a grant")
                                          : make_grant_directory(node, record->name, err);
    if (status == PC_OK)
        status = pc_units_hold(&node->units, &record->units, err);
    if (status != PC_OK) {
        pc_record_remove(node->records, record->name, NULL);
        pc_unit_set_free(&record->units);
        free(grant);
        return status;
    }
    grant->record = *record;
    grant->born_ns = pc_loop_now_ns();
    grant->cap = pc_node_granted(node, grant);
    grant->next = node->grant;
    node->grant = grant;
    if (out != NULL)
        *out = grant;
    return PC_OK;
}

static void unlink_grant(struct pc_node *node, const struct pc_node_grant *grant)
{
    struct pc_node_grant **at = &node->grant;
    while (*at != grant)
        at = &(*at)->next;
    *at = grant->next;
}

/* poolcapd removed the directory with its socket; where it never made the grant, the directory is ours to remove. */
void pc_node_remove_grant(struct pc_node *node, struct pc_node_grant *grant)
{
    char path[PC_NODE_PATH_MAX + PC_RECORD_NAME_MAX];
    struct pc_error err = {.text = ""};
    snprintf(path, sizeof path, "%s/%s", node->grants, grant->record.name);
    if (pc_record_remove(node->records, grant->record.name, &err) != PC_OK)
        pc_log_error("node", "%s", err.text);
    if (rmdir(path) < 0 && errno != ENOENT)
        pc_log_warn("node", "cannot remove the directory %s: %s", path, strerror(errno));
    pc_log_info("node", "grant %s of pod %s/%s ended", grant->record.name, grant->record.pod_namespace,
                grant->record.pod_name);
    unlink_grant(node, grant);
    pc_units_drop(&node->units, &grant->record.units);
    pc_unit_set_free(&grant->record.units);
    free(grant);
}

/* ---- poolcapd's GPUs, and the registration ---- */

static void fail(struct pc_node *node, const struct pc_error *err)
{
    node->failure = *err;
    pc_loop_stop(node->loop);
}

void pc_node_units_changed(struct pc_node *node)
{
    if (pc_node_list_make(node) && node->plugin != NULL)
        pc_device_plugin_changed(node->plugin);
}

static void see_gpu(void *arg, const Poolcap__AdminGpu *seen)
{
    struct pc_node *node = arg;
    struct pc_error err = {.text = ""};
    unsigned index;
    enum pc_status status = pc_units_gpu(&node->units, seen->uuid, &index, &err);
    if (status == PC_OK)
        status = pc_units_resize(&node->units, index, seen->capacity / node->units.unit_bytes, &err);
    if (status != PC_OK) {
        pc_log_error("node", "a GPU is left out: %s", err.text);
        return;
    }
    node->units.gpu[index].present = true;
    if (node->units.gpu[index].faulty != (seen->fault[0] != '\0'))
        pc_log_warn("node", "GPU %s is %s", seen->uuid, seen->fault[0] != '\0' ? seen->fault : "in service again");
    node->units.gpu[index].faulty = seen->fault[0] != '\0';
    if (seen->context_bytes > node->context_bytes)
        node->context_bytes = seen->context_bytes;
}

/* The kubelet drops a plugin whose list is over 4 MiB, without telling it (facts). */
static enum pc_status check_list(const struct pc_node *node, struct pc_error *err)
{
    uint64_t count = 0, unit = node->units.unit_bytes, bytes = 0;
    for (unsigned g = 0; g < node->units.gpus; g++)
        count += node->units.gpu[g].units;
    bytes = pc_device_list_bytes(count, PC_UNIT_ID_MAX - 1);
    if (bytes <= PC_DEVICE_LIST_MAX)
        return PC_OK;
    uint64_t fits = unit, memory = count * unit;
    while (pc_device_list_bytes(memory / fits, PC_UNIT_ID_MAX - 1) > PC_DEVICE_LIST_MAX)
        fits += PC_POOL_GRANULE;
    return pc_error_set(err, PC_ERR_INVALID, 0,
                        "%llu units of %llu MiB make a list of %llu bytes, and the kubelet takes %llu safely; the "
                        "smallest unit that fits is %llu MiB",
                        (unsigned long long)count, (unsigned long long)(unit / PC_MIB), (unsigned long long)bytes,
                        (unsigned long long)PC_DEVICE_LIST_MAX, (unsigned long long)(fits / PC_MIB));
}

static const V1beta1__ListAndWatchResponse *give_list(void *arg)
{
    return pc_node_list_get(arg);
}

static void on_registered(void *arg, bool registered)
{
    struct pc_node *node = arg;
    if (registered && !node->registered)
        pc_log_info("node", "registered %s with the kubelet", node->config->resource_name);
    node->registered = registered;
    node->registered_ns = pc_loop_now_ns();
    if (registered)
        pc_node_turn_kick(node);
}

static enum pc_status begin_plugin(struct pc_node *node, struct pc_error *err)
{
    static const struct pc_device_ops ops = {
        .list = give_list,
        .preferred = pc_node_preferred,
        .allocate = pc_node_allocate,
        .pre_start = pc_node_pre_start,
        .pre_start_gone = pc_node_pre_start_gone,
        .registered = on_registered,
    };
    const struct pc_device_plugin_config config = {
        .directory = node->config->device_plugin_directory,
        .socket_prefix = "poolcap",
        .resource = node->config->resource_name,
    };
    enum pc_status status = check_list(node, err);
    if (status != PC_OK)
        return status;
    return pc_device_plugin_start(node->loop, node->rpc, &config, &ops, node, &node->plugin, err);
}

void pc_node_see_gpus(struct pc_node *node)
{
    for (unsigned g = 0; g < node->units.gpus; g++)
        node->units.gpu[g].present = false;
    pc_node_snapshot_gpus(node, see_gpu, node);
    pc_timer_stop(node->silence);
    node->daemon_silent = false;
}

void pc_node_offer(struct pc_node *node)
{
    struct pc_error err = {.text = ""};
    pc_node_units_changed(node);
    if (node->plugin == NULL && node->list != NULL && begin_plugin(node, &err) != PC_OK)
        fail(node, &err);
    pc_node_report_labels(node);
}

static void on_daemon_up(void *arg, bool up)
{
    struct pc_node *node = arg;
    if (up) {
        pc_log_info("node", "poolcapd answers");
        pc_node_turn_kick(node);
    } else {
        for (struct pc_node_grant *grant = node->grant; grant != NULL; grant = grant->next)
            grant->asking = false;
        pc_timer_start(node->silence, SILENCE_MS, 0);
    }
}

static void on_silence(struct pc_loop *loop, void *arg)
{
    (void)loop;
    struct pc_node *node = arg;
    node->daemon_silent = true;
    pc_log_warn("node", "poolcapd has been away for 10 s: free units are not offered until it is back");
    pc_node_units_changed(node);
}

/* ---- pods ---- */

static void on_pod_changed(void *arg, const struct pc_pod *pod)
{
    struct pc_node *node = arg;
    bool ours = false;
    for (struct pc_node_grant *grant = node->grant; grant != NULL; grant = grant->next) {
        if (strcmp(grant->record.pod_uid, pod->uid) != 0 && strcmp(grant->record.pod_uid, pod->config_hash) != 0)
            continue;
        ours = true;
        if (grant->made)
            pc_node_apply_cap(node, grant);
    }
    if (!ours)
        pc_node_prestart_step(node);
    else
        pc_node_report(node);
}

static void on_pod_removed(void *arg, const struct pc_pod *pod)
{
    struct pc_node *node = arg;
    (void)pod;
    pc_node_turn_kick(node);
}

static void on_pods_healthy(void *arg, bool healthy)
{
    struct pc_node *node = arg;
    if (healthy)
        pc_node_turn_kick(node);
}

static enum pc_status watch_pods(struct pc_node *node, struct pc_error *err)
{
    static const struct pc_pod_watch_ops ops = {
        .changed = on_pod_changed,
        .removed = on_pod_removed,
        .healthy = on_pods_healthy,
    };
    if (node->api == NULL)
        return PC_OK;
    return pc_pod_watch_start(node->api, node->config->node_name, &ops, node, &node->pods, err);
}

/* ---- start ---- */

/* What a tenant mounts must be whole, root's, and may execute: a library on a noexec file system is ignored by the
 * loader with a line on stderr, and the pod would run uncapped (facts). */
static enum pc_status check_shim(const char *directory, struct pc_error *err)
{
    char path[PC_NODE_PATH_MAX];
    struct stat st;
    struct statvfs fs;
    snprintf(path, sizeof path, "%s/libpoolcap.so", directory);
    if (stat(directory, &st) < 0 || statvfs(directory, &fs) < 0)
        return pc_error_errno(err, errno, "the shim directory %.200s cannot be used; install the shim there first",
                              directory);
    if (!S_ISDIR(st.st_mode) || st.st_uid != 0 || (st.st_mode & 07777) != 0755)
        return pc_error_set(err, PC_ERR_INVALID, 0,
                            "the shim directory %.200s must be root's with mode 0755; chown root and chmod 0755 it",
                            directory);
    if ((fs.f_flag & ST_NOEXEC) != 0)
        return pc_error_set(err, PC_ERR_INVALID, 0,
                            "the shim directory %.200s is on a file system mounted noexec; choose another", directory);
    if (stat(path, &st) < 0 || !S_ISREG(st.st_mode) || st.st_uid != 0 || (st.st_mode & 0022) != 0 ||
        (st.st_mode & 0444) != 0444)
        return pc_error_set(err, PC_ERR_INVALID, 0,
                            "%.300s must be there, root's, readable by all and writable by root alone", path);
    return PC_OK;
}

static enum pc_status lock_state(struct pc_node *node, struct pc_error *err)
{
    char path[PC_NODE_PATH_MAX];
    snprintf(path, sizeof path, "%s/plugin.lock", node->config->state_directory);
    if (mkdir(node->config->state_directory, 0755) < 0 && errno != EEXIST)
        return pc_error_errno(err, errno, "cannot make the state directory %.200s", node->config->state_directory);
    return pc_lock_file_take(path, &node->lock, err);
}

static enum pc_status adopt(void *arg, struct pc_record *record, struct pc_error *err)
{
    struct pc_node *node = arg;
    if (record->unit_bytes == node->units.unit_bytes)
        return pc_node_add_grant(node, record, NULL, err);
    pc_error_set(err, PC_ERR_INVALID, 0,
                 "grant %s of pod %.60s/%.60s is counted in units of %llu MiB, not %llu MiB: drain the node before "
                 "changing the unit, or use another resource name",
                 record->name, record->pod_namespace, record->pod_name,
                 (unsigned long long)(record->unit_bytes / PC_MIB),
                 (unsigned long long)(node->units.unit_bytes / PC_MIB));
    pc_unit_set_free(&record->units);
    return err->status;
}

static enum pc_status set_paths(struct pc_node *node, struct pc_error *err)
{
    const struct pc_plugin_config *c = node->config;
    snprintf(node->records, sizeof node->records, "%s/grants", c->state_directory);
    snprintf(node->grants, sizeof node->grants, "%s/grants", c->run_directory);
    snprintf(node->checkpoint, sizeof node->checkpoint, "%s/kubelet_internal_checkpoint", c->device_plugin_directory);
    node->units.unit_bytes = c->unit;
    return check_shim(c->shim_directory, err);
}

static enum pc_status connect_all(struct pc_node *node, struct pc_error *err)
{
    char path[PC_NODE_PATH_MAX];
    snprintf(path, sizeof path, "%s/admin.sock", node->config->run_directory);
    enum pc_status status = pc_daemon_create(node->loop, path, on_daemon_up, node, &node->daemon, err);
    snprintf(path, sizeof path, "%s/pod-resources/kubelet.sock", node->config->kubelet_directory);
    if (status == PC_OK)
        status = pc_rpc_channel_open(node->rpc, path, &node->pod_resources, err);
    if (status == PC_OK)
        status = watch_pods(node, err);
    return status;
}

static enum pc_status start(struct pc_node *node, struct pc_error *err)
{
    enum pc_status status = set_paths(node, err);
    if (status == PC_OK)
        status = lock_state(node, err);
    if (status == PC_OK)
        status = pc_node_snapshot_create(node, err);
    if (status == PC_OK)
        status = pc_node_turn_create(node, err);
    if (status == PC_OK)
        status = pc_node_prestart_create(node, err);
    if (status == PC_OK)
        status = pc_timer_create(node->loop, on_silence, node, &node->silence, err);
    if (status == PC_OK)
        status = pc_record_read_all(node->records, &node->units, adopt, node, &node->bad_records, err);
    if (status == PC_OK)
        status = connect_all(node, err);
    return status;
}

enum pc_status pc_node_start(struct pc_loop *loop, struct pc_rpc *rpc, struct pc_api *api,
                             const struct pc_plugin_config *config, struct pc_node **out, struct pc_error *err)
{
    struct pc_node *node = calloc(1, sizeof *node);
    if (node == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no host memory for the node");
    node->loop = loop;
    node->rpc = rpc;
    node->api = api;
    node->config = config;
    node->lock = -1;
    enum pc_status status = start(node, err);
    if (status != PC_OK) {
        pc_node_stop(node);
        return status;
    }
    pc_timer_start(node->silence, SILENCE_MS, 0);
    *out = node;
    return PC_OK;
}

static void free_grants(struct pc_node *node)
{
    while (node->grant != NULL) {
        struct pc_node_grant *grant = node->grant;
        node->grant = grant->next;
        pc_unit_set_free(&grant->record.units);
        free(grant);
    }
}

void pc_node_stop(struct pc_node *node)
{
    if (node == NULL)
        return;
    pc_device_plugin_stop(node->plugin);
    pc_node_prestart_stop(node);
    pc_pod_watch_stop(node->pods);
    pc_rpc_channel_close(node->pod_resources);
    pc_daemon_free(node->daemon);
    pc_node_turn_free(node);
    pc_node_snapshot_free(node);
    pc_node_report_free(node);
    pc_node_list_free(node);
    pc_pod_list_free(node->pod_list);
    pc_claims_free(node->kept_checkpoint);
    pc_timer_free(node->silence);
    free_grants(node);
    pc_units_free(&node->units);
    if (node->lock >= 0)
        close(node->lock);
    free(node);
}

const struct pc_error *pc_node_failure(const struct pc_node *node)
{
    return &node->failure;
}

bool pc_node_ready(const struct pc_node *node, const char **why)
{
    *why = !pc_daemon_is_up(node->daemon) ? "poolcapd does not answer"
           : !node->registered            ? "not registered with the kubelet"
                                          : NULL;
    return *why == NULL;
}
