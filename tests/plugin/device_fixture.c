#include "tests/plugin/device_fixture.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the owner ---- */

void fixture_make_devices(struct fixture *f, size_t count)
{
    f->device = calloc(count, sizeof *f->device);
    f->devices = calloc(count, sizeof *f->devices);
    f->id = calloc(count, sizeof *f->id);
    for (size_t i = 0; i < count; i++) {
        v1beta1__device__init(&f->device[i]);
        snprintf(f->id[i], sizeof f->id[i], "8ef08c85-%04zu", i);
        f->device[i].id = f->id[i];
        f->device[i].health = (char *)(uintptr_t) "Healthy";
        f->devices[i] = &f->device[i];
    }
    v1beta1__list_and_watch_response__init(&f->list);
    f->list.n_devices = count;
    f->list.devices = f->devices;
}

void fixture_free_devices(struct fixture *f)
{
    free(f->device);
    free(f->devices);
    free(f->id);
}

static const V1beta1__ListAndWatchResponse *give_list(void *arg)
{
    struct fixture *f = arg;
    return &f->list;
}

static void see(struct fixture *f, char *const *ids, size_t count)
{
    size_t used = 0;
    f->seen[0] = '\0';
    for (size_t i = 0; i < count && used < sizeof f->seen; i++)
        used += (size_t)snprintf(f->seen + used, sizeof f->seen - used, "%s,", ids[i]);
}

static void preferred(void *arg, struct pc_rpc_call *call, const V1beta1__PreferredAllocationRequest *request)
{
    struct fixture *f = arg;
    V1beta1__PreferredAllocationResponse reply = V1BETA1__PREFERRED_ALLOCATION_RESPONSE__INIT;
    f->preferreds++;
    see(f, request->container_requests[0]->available_deviceids, request->container_requests[0]->n_available_deviceids);
    pc_rpc_reply(call, &reply.base);
}

static void allocate(void *arg, struct pc_rpc_call *call, const V1beta1__AllocateRequest *request)
{
    struct fixture *f = arg;
    V1beta1__AllocateResponse reply = V1BETA1__ALLOCATE_RESPONSE__INIT;
    f->allocates++;
    see(f, request->container_requests[0]->devices_ids, request->container_requests[0]->n_devices_ids);
    pc_rpc_reply(call, &reply.base);
}

static void pre_start(void *arg, struct pc_rpc_call *call, char *const *ids, size_t count)
{
    struct fixture *f = arg;
    V1beta1__PreStartContainerResponse reply = V1BETA1__PRE_START_CONTAINER_RESPONSE__INIT;
    f->pre_starts++;
    see(f, ids, count);
    if (f->hold)
        f->held = call;
    else
        pc_rpc_reply(call, &reply.base);
}

static void pre_start_gone(void *arg, struct pc_rpc_call *call)
{
    struct fixture *f = arg;
    f->pre_starts_gone++;
    assert_ptr_equal(call, f->held);
    f->held = NULL;
}

static void registered(void *arg, bool yes)
{
    struct fixture *f = arg;
    f->said_yes += yes;
    f->said_no += !yes;
    f->registered = yes;
}

static const struct pc_device_ops ops = {
    .list = give_list,
    .preferred = preferred,
    .allocate = allocate,
    .pre_start = pre_start,
    .pre_start_gone = pre_start_gone,
    .registered = registered,
};

/* ---- the fixture ---- */

int fixture_set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    f->kubelet = calloc(1, sizeof *f->kubelet);
    strcpy(f->directory, "/tmp/poolcap-kubelet.XXXXXX");
    assert_non_null(mkdtemp(f->directory));
    assert_int_equal(pc_loop_create(&f->loop, NULL), PC_OK);
    assert_int_equal(pc_rpc_create(f->loop, &f->rpc, NULL), PC_OK);
    fixture_make_devices(f, 4);
    *state = f;
    return 0;
}

int fixture_tear_down(void **state)
{
    struct fixture *f = *state;
    char command[PATH_ROOM];
    pc_device_plugin_stop(f->plugin);
    fake_kubelet_stop(f->kubelet, false);
    pc_rpc_free(f->rpc);
    pc_loop_free(f->loop);
    fixture_free_devices(f);
    snprintf(command, sizeof command, "rm -rf %s", f->directory);
    assert_int_equal(system(command), 0);
    free(f->kubelet);
    free(f);
    return 0;
}

enum pc_status fixture_start_at(struct fixture *f, const char *directory, const char *prefix,
                                struct pc_device_plugin **out, struct pc_error *err)
{
    const struct pc_device_plugin_config config = {
        .directory = directory, .socket_prefix = prefix, .resource = RESOURCE};
    return pc_device_plugin_start(f->loop, f->rpc, &config, &ops, f, out, err);
}

void fixture_start_plugin(struct fixture *f)
{
    struct pc_error err = {.text = ""};
    if (fixture_start_at(f, f->directory, "poolcap", &f->plugin, &err) != PC_OK)
        fail_msg("%s", err.text);
}

void fixture_start_kubelet(struct fixture *f)
{
    fake_kubelet_start(f->kubelet, f->loop, f->rpc, f->directory);
}

struct pc_device_plugin_stats fixture_stats(const struct fixture *f)
{
    struct pc_device_plugin_stats stats;
    pc_device_plugin_read(f->plugin, &stats);
    return stats;
}

void fixture_path_in(const struct fixture *f, const char *name, char out[PATH_ROOM])
{
    snprintf(out, PATH_ROOM, "%s/%s", f->directory, name);
}

bool fixture_exists(const struct fixture *f, const char *name)
{
    char path[PATH_ROOM];
    fixture_path_in(f, name, path);
    return access(path, F_OK) == 0;
}

/* What a registered plugin's kubelet has: its list, after as many registrations as it remembers. */
bool fixture_is_registered(void *arg)
{
    struct fixture *f = arg;
    const struct fake_endpoint *e = fake_kubelet_current(f->kubelet);
    return f->registered && e != NULL && e->stream_open && e->lists > 0;
}

void fixture_wait_registered(struct fixture *f)
{
    fake_wait(f->loop, fixture_is_registered, f, "a registration");
    assert_true(fixture_stats(f).registered);
    assert_int_equal(fake_kubelet_current(f->kubelet)->devices, f->list.n_devices);
}

void fixture_register(struct fixture *f)
{
    fixture_start_kubelet(f);
    fixture_start_plugin(f);
    fixture_wait_registered(f);
}

bool fixture_is_lost(void *arg)
{
    struct fixture *f = arg;
    return !f->registered;
}

bool fixture_has_failed(void *arg)
{
    struct fixture *f = arg;
    return fixture_stats(f).registration_failures > 0;
}
