#include "tests/plugin/fake_kubelet.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* ---- waiting ---- */

enum { LOOK_MS = 1, LIMIT_MS = 60000 };

struct wait {
    bool (*holds)(void *arg);
    void *arg;
    bool held, over;
};

static void on_look(struct pc_loop *loop, void *arg)
{
    struct wait *wait = arg;
    wait->held = wait->holds(wait->arg);
    if (wait->held)
        pc_loop_stop(loop);
}

static void on_limit(struct pc_loop *loop, void *arg)
{
    struct wait *wait = arg;
    wait->over = true;
    pc_loop_stop(loop);
}

void fake_wait(struct pc_loop *loop, bool (*holds)(void *arg), void *arg, const char *what)
{
    struct wait wait = {.holds = holds, .arg = arg};
    struct pc_timer *look, *limit;
    assert_int_equal(pc_timer_create(loop, on_look, &wait, &look, NULL), PC_OK);
    assert_int_equal(pc_timer_create(loop, on_limit, &wait, &limit, NULL), PC_OK);
    pc_timer_start(look, 0, LOOK_MS);
    pc_timer_start(limit, LIMIT_MS, 0);
    assert_int_equal(pc_loop_run(loop, NULL), PC_OK);
    pc_timer_free(look);
    pc_timer_free(limit);
    if (!wait.held)
        fail_msg("not seen within a minute: %s", what);
}

/* ---- endpoints ---- */

struct fake_endpoint *fake_kubelet_current(struct fake_kubelet *k)
{
    return k->endpoints > 0 ? &k->endpoint[k->endpoints - 1] : NULL;
}

void fake_endpoint_drop(struct fake_endpoint *e)
{
    struct pc_rpc_channel *channel = e->channel;
    e->channel = NULL;
    pc_rpc_channel_close(channel);
}

static void on_drop(struct pc_loop *loop, void *arg)
{
    (void)loop;
    fake_endpoint_drop(arg);
}

/* Not from inside of the call that the channel carries. */
static void drop_soon(struct fake_endpoint *e)
{
    assert_int_equal(pc_loop_post(e->kubelet->loop, on_drop, e, NULL), PC_OK);
}

static void on_list(void *arg, const ProtobufCMessage *message)
{
    struct fake_endpoint *e = arg;
    const V1beta1__ListAndWatchResponse *list = (const V1beta1__ListAndWatchResponse *)message;
    e->lists++;
    e->devices = list->n_devices;
    e->unhealthy = 0;
    for (size_t i = 0; i < list->n_devices; i++)
        e->unhealthy += strcmp(list->devices[i]->health, "Healthy") != 0;
    if (list->n_devices > 0)
        snprintf(e->first_id, sizeof e->first_id, "%s", list->devices[0]->id);
    if (e->kubelet->drop_streams > 0) {
        e->kubelet->drop_streams--;
        drop_soon(e);
    }
}

static void on_stream_end(void *arg, enum pc_status status, const ProtobufCMessage *reply, const struct pc_error *err)
{
    (void)status;
    (void)reply;
    (void)err;
    struct fake_endpoint *e = arg;
    struct fake_endpoint *current = fake_kubelet_current(e->kubelet);
    e->stream_open = false;
    if (current != e && current->stream_open && e->channel != NULL)
        drop_soon(current); /* the trap: found by the resource's name */
}

static void open_stream(struct fake_endpoint *e)
{
    V1beta1__Empty empty = V1BETA1__EMPTY__INIT;
    if (e->kubelet->no_stream > 0) {
        e->kubelet->no_stream--;
        return;
    }
    e->stream_open = true;
    pc_rpc_call_stream(e->channel, "/v1beta1.DevicePlugin/ListAndWatch", &empty.base,
                       &v1beta1__list_and_watch_response__descriptor, on_list, on_stream_end, e);
}

static void on_options(void *arg, enum pc_status status, const ProtobufCMessage *reply, const struct pc_error *err)
{
    struct fake_endpoint *e = arg;
    struct pc_rpc_call *call = e->registering;
    const V1beta1__DevicePluginOptions *options = (const V1beta1__DevicePluginOptions *)reply;
    V1beta1__Empty empty = V1BETA1__EMPTY__INIT;
    if (call == NULL)
        return; /* the plugin did not wait, or the kubelet was stopped */
    e->registering = NULL;
    if (status != PC_OK) {
        pc_rpc_fail(call, 2, err->text);
        return;
    }
    e->pre_start_required = options->pre_start_required;
    e->preferred_available = options->get_preferred_allocation_available;
    if (e->kubelet->stream_first)
        open_stream(e);
    pc_rpc_reply(call, &empty.base);
    if (!e->kubelet->stream_first)
        open_stream(e);
}

/* ---- Registration ---- */

static unsigned under_way(const struct fake_kubelet *k)
{
    unsigned count = 0;
    for (unsigned i = 0; i < k->endpoints; i++)
        count += k->endpoint[i].registering != NULL;
    return count;
}

static void on_register(struct pc_rpc_call *call, const ProtobufCMessage *message, void *arg)
{
    struct fake_kubelet *k = arg;
    char path[2 * FAKE_NAME];
    const V1beta1__RegisterRequest *request = (const V1beta1__RegisterRequest *)message;
    V1beta1__Empty empty = V1BETA1__EMPTY__INIT;
    k->registers++;
    snprintf(k->version, sizeof k->version, "%s", request->version);
    snprintf(k->resource, sizeof k->resource, "%s", request->resource_name);
    if (k->refuse > 0) {
        k->refuse--;
        k->refused++;
        pc_rpc_fail(call, 2, "the ResourceName is not to the kubelet's liking");
        return;
    }
    assert_true(k->endpoints < FAKE_ENDPOINTS);
    struct fake_endpoint *e = &k->endpoint[k->endpoints++];
    *e = (struct fake_endpoint){.kubelet = k, .registering = call};
    snprintf(e->name, sizeof e->name, "%s", request->endpoint);
    pc_rpc_call_set_context(call, e);
    if (under_way(k) > k->at_once)
        k->at_once = under_way(k);
    snprintf(path, sizeof path, "%s/%s", k->directory, e->name);
    assert_int_equal(pc_rpc_channel_open(k->rpc, path, &e->channel, NULL), PC_OK);
    pc_rpc_call(e->channel, "/v1beta1.DevicePlugin/GetDevicePluginOptions", &empty.base,
                &v1beta1__device_plugin_options__descriptor, 10000, on_options, e);
}

static void on_register_gone(struct pc_rpc_call *call, void *arg)
{
    (void)arg;
    struct fake_endpoint *e = pc_rpc_call_context(call);
    if (e != NULL)
        e->registering = NULL;
}

/* ---- life ---- */

static void remove_sockets(const char *directory)
{
    const struct dirent *entry;
    struct stat st;
    DIR *dir = opendir(directory);
    assert_non_null(dir);
    while ((entry = readdir(dir)) != NULL)
        if (fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISSOCK(st.st_mode))
            unlinkat(dirfd(dir), entry->d_name, 0);
    closedir(dir);
}

void fake_kubelet_start(struct fake_kubelet *k, struct pc_loop *loop, struct pc_rpc *rpc, const char *directory)
{
    static const struct pc_rpc_method methods[] = {
        {"/v1beta1.Registration/Register", &v1beta1__register_request__descriptor, on_register, on_register_gone},
    };
    char path[2 * FAKE_NAME];
    struct pc_error err = {.text = ""};
    *k = (struct fake_kubelet){.loop = loop, .rpc = rpc};
    snprintf(k->directory, sizeof k->directory, "%s", directory);
    snprintf(path, sizeof path, "%s/kubelet.sock", directory);
    remove_sockets(directory);
    if (pc_rpc_server_start(rpc, path, methods, 1, k, &k->server, &err) != PC_OK)
        fail_msg("%s", err.text);
}

void fake_stale_socket(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(strlen(path) < sizeof address.sun_path);
    strcpy(address.sun_path, path);
    assert_int_equal(bind(fd, (const struct sockaddr *)&address, sizeof address), 0);
    close(fd);
}

void fake_kubelet_stop(struct fake_kubelet *k, bool leave_socket)
{
    char path[2 * FAKE_NAME];
    if (k->server == NULL)
        return;
    pc_rpc_server_stop(k->server);
    k->server = NULL;
    for (unsigned i = 0; i < k->endpoints; i++)
        fake_endpoint_drop(&k->endpoint[i]);
    if (!leave_socket)
        return;
    snprintf(path, sizeof path, "%s/kubelet.sock", k->directory);
    fake_stale_socket(path);
}
