/*
 * The device plugin towards the kubelet: serves v1beta1.DevicePlugin, registers at kubelet.sock, and registers again
 * whenever kubelet.sock is made anew (inotify) or the own ListAndWatch stream ends (facts, "overlap trap").
 * What the devices are and what Allocate means is the owner's: struct pc_device_ops.
 *
 * Thread rules: the loop's thread only.
 */
#ifndef PC_PLUGIN_KUBELET_DEVICE_PLUGIN_H
#define PC_PLUGIN_KUBELET_DEVICE_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>

#include "alloc/base/error.h"
#include "alloc/base/loop.h"
#include "plugin/rpc/rpc.h"
#include "proto/device_plugin.pb-c.h"

struct pc_device_plugin;

/*
 * Called for each call of the kubelet's. ids are checked to be there and to be text (no NUL, UTF-8); whether they are
 * the owner's is the owner's to say. The owner answers with pc_rpc_reply / pc_rpc_fail: preferred and allocate before
 * they return (nobody tells them that the kubelet is gone), pre_start at once or later, but not after pre_start_gone.
 * The context of a call (pc_rpc_call_set_context) is the owner's. None of these may stop the plugin.
 */
struct pc_device_ops {
    /* The whole list, as it is now; filled in by the owner, who keeps it until the next call of this or the end. */
    const V1beta1__ListAndWatchResponse *(*list)(void *arg);
    void (*preferred)(void *arg, struct pc_rpc_call *call, const V1beta1__PreferredAllocationRequest *request);
    void (*allocate)(void *arg, struct pc_rpc_call *call, const V1beta1__AllocateRequest *request);
    void (*pre_start)(void *arg, struct pc_rpc_call *call, char *const *ids, size_t count);
    void (*pre_start_gone)(void *arg, struct pc_rpc_call *call); /* the kubelet waits for it no longer */
    /* For readiness. True after every registration: the kubelet said yes and has our stream open. False when that
     * stream ends or kubelet.sock was made anew. Not called by pc_device_plugin_stop. */
    void (*registered)(void *arg, bool registered);
};

struct pc_device_plugin_config {
    const char *directory;     /* "/var/lib/kubelet/device-plugins": kubelet.sock and our own socket */
    const char *socket_prefix; /* our socket: <prefix>-<pid>-<n>.sock, a new name for each start (facts e) */
    const char *resource;      /* "poolcap.dev/gpu-memory" */
};

/*
 * Takes the lock file <directory>/<prefix>.lock (PC_ERR_BUSY names the live instance's pid), removes sockets that an
 * earlier life of ours left there, begins to watch the directory, serves, and registers as soon as there is a
 * kubelet.sock. Serves before it registers, always. A directory that is not there is waited for, also later.
 * The kubelet deletes every socket in the directory when it starts: ours is made again before registering.
 * A registration that fails is tried again after 100 ms, doubling to 5 s; at once when kubelet.sock is made anew, and
 * then after 5 ms, doubling.
 * So is one whose stream ends, which begins with no wait, unless the one before ended within 5 s too.
 * Texts of config are copied; ops and arg outlive the plugin.
 * Errors: PC_ERR_INVALID (path relative or too long), PC_ERR_BUSY, PC_ERR_IO, PC_ERR_HOST_MEMORY.
 */
enum pc_status pc_device_plugin_start(struct pc_loop *loop, struct pc_rpc *rpc,
                                      const struct pc_device_plugin_config *config, const struct pc_device_ops *ops,
                                      void *arg, struct pc_device_plugin **out, struct pc_error *err);
/* The list changed: sent to every stream, at once. */
void pc_device_plugin_changed(struct pc_device_plugin *plugin);
/* Ends the streams and the server; the kubelet sees the devices as gone. pre_start_gone is called for each call that
 * is not answered, before this returns. NULL is allowed. */
void pc_device_plugin_stop(struct pc_device_plugin *plugin);

struct pc_device_plugin_stats {
    uint64_t registrations, registration_failures, lists_sent;
    bool registered; /* as registered was last called */
};
void pc_device_plugin_read(const struct pc_device_plugin *plugin, struct pc_device_plugin_stats *out);

/* Bytes of a list of count devices with ids of id_length bytes, none of them healthier than "Unhealthy": the most that
 * the list can have. The kubelet drops a plugin whose message is over 4 MiB; we keep to 3 MiB. */
uint64_t pc_device_list_bytes(uint64_t count, unsigned id_length);
#define PC_DEVICE_LIST_MAX (3ull * 1024 * 1024)

#endif
