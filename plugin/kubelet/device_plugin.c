/*
 * The kubelet's side of the plugin, put together: the methods that it calls, its streams, and the registration
 * (registration.c) at the socket that the directory's watch tells of (directory_watch.c), with our own socket
 * (serving.c) made before.
 */
#include "plugin/kubelet/device_plugin.h"

#include <stdlib.h>
#include <string.h>

#include "alloc/base/cleanup.h"
#include "alloc/base/log.h"
#include "plugin/kubelet/directory_watch.h"
#include "plugin/kubelet/registration.h"
#include "plugin/kubelet/serving.h"
#include "plugin/text/text.h"

enum { CODE_INVALID_ARGUMENT = 3, CODE_RESOURCE_EXHAUSTED = 8, ID_MAX_BYTES = 1024 }; /* codes are gRPC's */

struct stream {
    struct stream *next, **link; /* link: what points at this one */
    struct pc_rpc_call *call;
};

struct pc_device_plugin {
    const struct pc_device_ops *ops;
    void *arg;
    struct pc_serving *serving;
    struct pc_registration *registration;
    struct pc_directory_watch *watch;
    struct stream *streams; /* newest first; several at once where an older registration's lives on */
    uint64_t lists_sent;
};

/* ---- what the kubelet calls ---- */

static void on_options(struct pc_rpc_call *call, const ProtobufCMessage *request, void *arg)
{
    (void)request;
    (void)arg;
    V1beta1__DevicePluginOptions options = V1BETA1__DEVICE_PLUGIN_OPTIONS__INIT;
    options.pre_start_required = true;
    options.get_preferred_allocation_available = true;
    pc_rpc_reply(call, &options.base);
}

static void on_list_and_watch(struct pc_rpc_call *call, const ProtobufCMessage *request, void *arg)
{
    (void)request;
    struct pc_device_plugin *p = arg;
    struct stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL) {
        pc_rpc_fail(call, CODE_RESOURCE_EXHAUSTED, "no host memory for another ListAndWatch stream");
        return;
    }
    stream->call = call;
    stream->next = p->streams;
    stream->link = &p->streams;
    if (stream->next != NULL)
        stream->next->link = &stream->next;
    p->streams = stream;
    pc_rpc_call_set_context(call, stream);
    pc_rpc_stream_send(call, &p->ops->list(p->arg)->base);
    p->lists_sent++;
    pc_registration_stream_began(p->registration, stream);
}

static void on_list_and_watch_gone(struct pc_rpc_call *call, void *arg)
{
    struct pc_device_plugin *p = arg;
    struct stream *stream = pc_rpc_call_context(call);
    if (stream == NULL)
        return; /* refused above */
    *stream->link = stream->next;
    if (stream->next != NULL)
        stream->next->link = stream->link;
    if (p->registration != NULL)
        pc_registration_stream_ended(p->registration, stream);
    free(stream);
}

/* protobuf-c takes any bytes for a string, so it is looked at here. */
static bool texts_ok(struct pc_rpc_call *call, char *const *ids, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (pc_text_ok(ids[i], ID_MAX_BYTES))
            continue;
        pc_rpc_fail(call, CODE_INVALID_ARGUMENT, "a device id is empty, too long, or no text");
        return false;
    }
    return true;
}

static bool ids_ok(struct pc_rpc_call *call, char *const *ids, size_t count)
{
    if (count > 0)
        return texts_ok(call, ids, count);
    pc_rpc_fail(call, CODE_INVALID_ARGUMENT, "the request names no device");
    return false;
}

static void on_preferred(struct pc_rpc_call *call, const ProtobufCMessage *message, void *arg)
{
    struct pc_device_plugin *p = arg;
    const V1beta1__PreferredAllocationRequest *request = (const V1beta1__PreferredAllocationRequest *)message;
    for (size_t i = 0; i < request->n_container_requests; i++) {
        const V1beta1__ContainerPreferredAllocationRequest *one = request->container_requests[i];
        if (!texts_ok(call, one->available_deviceids, one->n_available_deviceids) ||
            !texts_ok(call, one->must_include_deviceids, one->n_must_include_deviceids))
            return;
    }
    p->ops->preferred(p->arg, call, request);
}

static void on_allocate(struct pc_rpc_call *call, const ProtobufCMessage *message, void *arg)
{
    struct pc_device_plugin *p = arg;
    const V1beta1__AllocateRequest *request = (const V1beta1__AllocateRequest *)message;
    if (request->n_container_requests == 0) {
        pc_rpc_fail(call, CODE_INVALID_ARGUMENT, "the request names no container");
        return;
    }
    for (size_t i = 0; i < request->n_container_requests; i++)
        if (!ids_ok(call, request->container_requests[i]->devices_ids, request->container_requests[i]->n_devices_ids))
            return;
    p->ops->allocate(p->arg, call, request);
}

static void on_pre_start(struct pc_rpc_call *call, const ProtobufCMessage *message, void *arg)
{
    struct pc_device_plugin *p = arg;
    const V1beta1__PreStartContainerRequest *request = (const V1beta1__PreStartContainerRequest *)message;
    if (ids_ok(call, request->devices_ids, request->n_devices_ids))
        p->ops->pre_start(p->arg, call, request->devices_ids, request->n_devices_ids);
}

static void on_pre_start_gone(struct pc_rpc_call *call, void *arg)
{
    struct pc_device_plugin *p = arg;
    p->ops->pre_start_gone(p->arg, call);
}

static const struct pc_rpc_method methods[] = {
    {"/v1beta1.DevicePlugin/GetDevicePluginOptions", &v1beta1__empty__descriptor, on_options, NULL},
    {"/v1beta1.DevicePlugin/ListAndWatch", &v1beta1__empty__descriptor, on_list_and_watch, on_list_and_watch_gone},
    {"/v1beta1.DevicePlugin/GetPreferredAllocation", &v1beta1__preferred_allocation_request__descriptor, on_preferred,
     NULL},
    {"/v1beta1.DevicePlugin/Allocate", &v1beta1__allocate_request__descriptor, on_allocate, NULL},
    {"/v1beta1.DevicePlugin/PreStartContainer", &v1beta1__pre_start_container_request__descriptor, on_pre_start,
     on_pre_start_gone},
};

/* ---- what its parts ask of it ---- */

static enum pc_status serve(void *arg, const char **endpoint, struct pc_error *err)
{
    struct pc_device_plugin *p = arg;
    struct pc_error unwatched;
    if (pc_directory_watch_renew(p->watch, &unwatched) != PC_OK)
        pc_log_debug("kubelet", "%s", unwatched.text); /* the back-off's timer looks too, later */
    enum pc_status status = pc_serving_renew(p->serving, err);
    if (status == PC_OK)
        *endpoint = pc_serving_endpoint(p->serving);
    return status;
}

static void on_changed(void *arg, bool registered)
{
    struct pc_device_plugin *p = arg;
    p->ops->registered(p->arg, registered);
}

static void on_look(void *arg)
{
    struct pc_device_plugin *p = arg;
    pc_registration_look(p->registration);
}

/* ---- life ---- */

static enum pc_status begin(struct pc_device_plugin *p, struct pc_loop *loop, struct pc_rpc *rpc,
                            const struct pc_device_plugin_config *config, struct pc_error *err)
{
    static const struct pc_registration_ops ops = {.serve = serve, .changed = on_changed};
    enum pc_status status = pc_serving_create(rpc, config->directory, config->socket_prefix, methods,
                                              PC_ARRAY_LEN(methods), p, &p->serving, err);
    if (status == PC_OK)
        status = pc_registration_create(loop, rpc, config->directory, config->resource, &ops, p, &p->registration, err);
    if (status == PC_OK)
        status = pc_directory_watch_create(loop, config->directory, "kubelet.sock", on_look, p, &p->watch, err);
    if (status == PC_OK)
        status = pc_serving_renew(p->serving, err);
    return status == PC_ERR_NOT_FOUND ? PC_OK : status; /* the directory is waited for */
}

enum pc_status pc_device_plugin_start(struct pc_loop *loop, struct pc_rpc *rpc,
                                      const struct pc_device_plugin_config *config, const struct pc_device_ops *ops,
                                      void *arg, struct pc_device_plugin **out, struct pc_error *err)
{
    struct pc_device_plugin *p = calloc(1, sizeof *p);
    if (p == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no host memory for the device plugin");
    p->ops = ops;
    p->arg = arg;
    enum pc_status status = begin(p, loop, rpc, config, err);
    if (status != PC_OK) {
        pc_device_plugin_stop(p);
        return status;
    }
    pc_registration_begin(p->registration);
    *out = p;
    return PC_OK;
}

void pc_device_plugin_changed(struct pc_device_plugin *p)
{
    const V1beta1__ListAndWatchResponse *list = p->ops->list(p->arg);
    for (struct stream *stream = p->streams; stream != NULL; stream = stream->next) {
        pc_rpc_stream_send(stream->call, &list->base);
        p->lists_sent++;
    }
}

void pc_device_plugin_stop(struct pc_device_plugin *p)
{
    if (p == NULL)
        return;
    pc_directory_watch_free(p->watch);
    pc_registration_free(p->registration);
    p->registration = NULL; /* the streams that end now are not its affair */
    pc_serving_free(p->serving);
    free(p);
}

void pc_device_plugin_read(const struct pc_device_plugin *p, struct pc_device_plugin_stats *out)
{
    struct pc_registration_stats stats;
    pc_registration_read(p->registration, &stats);
    *out = (struct pc_device_plugin_stats){
        .registrations = stats.registrations,
        .registration_failures = stats.failures,
        .lists_sent = p->lists_sent,
        .registered = stats.registered,
    };
}

/* ---- sizes ---- */

static uint64_t varint_bytes(uint64_t n)
{
    uint64_t bytes = 1;
    for (; n >= 0x80; n >>= 7)
        bytes++;
    return bytes;
}

uint64_t pc_device_list_bytes(uint64_t count, unsigned id_length)
{
    /* Device{ID, health} in devices: each of the three is a tag of one byte, a length, and so many bytes. */
    uint64_t device = 1 + varint_bytes(id_length) + id_length + 1 + 1 + strlen("Unhealthy");
    uint64_t each = 1 + varint_bytes(device) + device, bytes;
    return __builtin_mul_overflow(count, each, &bytes) ? UINT64_MAX : bytes;
}
