#include "plugin/config.h"

#include <string.h>
#include <unistd.h>

#include "alloc/base/bytes.h"
#include "alloc/base/cleanup.h"

static const char *const strategies[] = {[PC_DEVICES_CDI] = "cdi",
                                         [PC_DEVICES_ENVVAR] = "envvar",
                                         [PC_DEVICES_NODES] = "device-nodes",
                                         [PC_DEVICES_NONE] = "none",
                                         NULL};
#define ROW(member, key, kind, value, text) PC_OPTION(struct pc_plugin_config, member, key, kind, value, text)
#define CHOICE(member, key, list, value, text) PC_OPTION_OF(struct pc_plugin_config, member, key, list, value, text)

static const struct pc_option rows[] = {
    ROW(resource_name, "resourceName", TEXT, "poolcap.dev/gpu-memory",
        "extended resource that is advertised; one unit a name in the whole cluster"),
    ROW(unit, "unit", BYTES, "256Mi", "bytes behind one unit, a multiple of 32Mi"),
    CHOICE(device_list_strategy, "deviceListStrategy", strategies, "cdi",
           "how a container is given its GPU; none is for the simulated driver"),
    ROW(cdi_kind, "cdiKind", TEXT, "nvidia.com/gpu", "vendor and class of the CDI devices, which are named by UUID"),
    ROW(nvidia_driver_root, "nvidiaDriverRoot", PATH, "/", "where the host's /dev/nvidia* are, for device-nodes"),
    ROW(fragmentation_guard, "fragmentationGuard", BOOL, "true",
        "offer the free units of the GPU with the largest hole alone, so that what fits the node fits a GPU"),
    ROW(multi_gpu, "multiGpu", BOOL, "false", "let a container's units span GPUs; turns the guard off"),
    ROW(node_name, "nodeName", TEXT, "", "this node's name in the cluster"),
    ROW(api_server, "apiServer", BOOL, "true", "false: annotations do not lower caps and nothing is shown in kubectl"),
    ROW(kubeconfig, "kubeconfig", PATH, "", "for use outside a cluster; none: the pod's service account"),
    ROW(kubelet_directory, "kubeletDirectory", PATH, "/var/lib/kubelet",
        "the kubelet's --root-dir; pod-resources/kubelet.sock is below it"),
    ROW(device_plugin_directory, "devicePluginDirectory", PATH, "/var/lib/kubelet/device-plugins",
        "where the kubelet registers device plugins; it does not follow --root-dir"),
    ROW(run_directory, "runDirectory", PATH, "/run/poolcap", "poolcapd's run directory"),
    ROW(state_directory, "stateDirectory", PATH, "/var/lib/poolcap", "the grants' records; must outlive reboots"),
    ROW(shim_directory, "shimDirectory", PATH, "/var/lib/poolcap/shim/" POOLCAP_VERSION,
        "libpoolcap.so as the tenants mount it; root's, 0755, on a file system that may execute"),
    ROW(metrics_address, "metricsAddress", TEXT, ":9400", "where /metrics, /healthz and /readyz are served; none: not"),
    CHOICE(log_level, "logLevel", pc_option_levels, "info", "least severe lines that are logged"),
};

static const struct pc_option_table table = {
    .program = "poolcap-plugin",
    .summary = "Advertises GPU memory quotas to the kubelet and binds pods to their capped pools.",
    .option = rows,
    .options = PC_ARRAY_LEN(rows),
};

/* What is wrong with values that are each fine. */
static enum pc_status check(struct pc_plugin_config *c, struct pc_error *err)
{
    if (c->unit == 0 || c->unit % PC_POOL_GRANULE != 0)
        return pc_error_set(err, PC_ERR_INVALID, 0, "unit is %llu bytes; it has to be a multiple of 32Mi, e.g. 256Mi",
                            (unsigned long long)c->unit);
    if (strchr(c->resource_name, '/') == NULL)
        return pc_error_set(err, PC_ERR_INVALID, 0,
                            "resourceName \"%.100s\" has no domain; write for example poolcap.dev/gpu-memory",
                            c->resource_name);
    if (c->node_name[0] == '\0' && gethostname(c->node_name, sizeof c->node_name - 1) < 0)
        return pc_error_set(err, PC_ERR_INVALID, 0, "nodeName is not given, and the host has no name");
    return PC_OK;
}

enum pc_status pc_plugin_config_load(int argc, char **argv, struct pc_plugin_config *out, enum pc_option_action *action,
                                     struct pc_error *err)
{
    const char *file;
    memset(out, 0, sizeof *out);
    enum pc_status status = pc_options_load(&table, argc, argv, out, &file, action, err);
    if (status == PC_OK && (*action == PC_OPTIONS_RUN || *action == PC_OPTIONS_CHECK))
        status = check(out, err);
    return status;
}

void pc_plugin_config_usage(void)
{
    pc_options_usage(&table);
}

void pc_plugin_config_docs(void)
{
    pc_options_docs(&table);
}
