/* The device plugin against a stand-in kubelet: registration in every order, streams, calls, the lock, the directory.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/base/cleanup.h"
#include "alloc/base/log.h"
#include "plugin/kubelet/device_plugin.h"
#include "plugin/kubelet/directory_watch.h"
#include "tests/plugin/fake_kubelet.h"

#define RESOURCE "poolcap.dev/gpu-memory"

enum { MANY_DEVICES = 40000, PATH_ROOM = 200 };

struct fixture {
    struct pc_loop *loop;
    struct pc_rpc *rpc;
    struct pc_device_plugin *plugin;
    struct fake_kubelet *kubelet, *other;
    char directory[64];

    V1beta1__ListAndWatchResponse list;
    V1beta1__Device *device, **devices;
    char (*id)[32];

    unsigned said_yes, said_no; /* calls of registered */
    bool registered;
    unsigned allocates, preferreds, pre_starts, pre_starts_gone;
    char seen[256];           /* the ids of the last call */
    struct pc_rpc_call *held; /* a PreStartContainer that is not answered yet */
    bool hold;

    enum pc_status answer; /* of a call that the test made */
    struct pc_error why;
    unsigned answers;
    unsigned looks;
};

/* ---- the owner ---- */

static void make_devices(struct fixture *f, size_t count)
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

static void free_devices(struct fixture *f)
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

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    f->kubelet = calloc(1, sizeof *f->kubelet);
    f->other = calloc(1, sizeof *f->other);
    strcpy(f->directory, "/tmp/poolcap-kubelet.XXXXXX");
    assert_non_null(mkdtemp(f->directory));
    assert_int_equal(pc_loop_create(&f->loop, NULL), PC_OK);
    assert_int_equal(pc_rpc_create(f->loop, &f->rpc, NULL), PC_OK);
    make_devices(f, 4);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    char command[PATH_ROOM];
    pc_device_plugin_stop(f->plugin);
    fake_kubelet_stop(f->kubelet, false);
    fake_kubelet_stop(f->other, false);
    pc_rpc_free(f->rpc);
    pc_loop_free(f->loop);
    free_devices(f);
    snprintf(command, sizeof command, "rm -rf %s", f->directory);
    assert_int_equal(system(command), 0);
    free(f->kubelet);
    free(f->other);
    free(f);
    return 0;
}

static enum pc_status start_at(struct fixture *f, const char *directory, struct pc_device_plugin **out,
                               struct pc_error *err)
{
    const struct pc_device_plugin_config config = {
        .directory = directory, .socket_prefix = "poolcap", .resource = RESOURCE};
    return pc_device_plugin_start(f->loop, f->rpc, &config, &ops, f, out, err);
}

static void start_plugin(struct fixture *f)
{
    struct pc_error err = {.text = ""};
    if (start_at(f, f->directory, &f->plugin, &err) != PC_OK)
        fail_msg("%s", err.text);
}

static void start_kubelet(struct fixture *f)
{
    fake_kubelet_start(f->kubelet, f->loop, f->rpc, f->directory);
}

static struct pc_device_plugin_stats stats(const struct fixture *f)
{
    struct pc_device_plugin_stats stats;
    pc_device_plugin_read(f->plugin, &stats);
    return stats;
}

static void path_in(const struct fixture *f, const char *name, char out[PATH_ROOM])
{
    snprintf(out, PATH_ROOM, "%s/%s", f->directory, name);
}

static bool exists(const struct fixture *f, const char *name)
{
    char path[PATH_ROOM];
    path_in(f, name, path);
    return access(path, F_OK) == 0;
}

/* What a registered plugin's kubelet has: its list, after as many registrations as it remembers. */
static bool is_registered(void *arg)
{
    struct fixture *f = arg;
    const struct fake_endpoint *e = fake_kubelet_current(f->kubelet);
    return f->registered && e != NULL && e->stream_open && e->lists > 0;
}

static void wait_registered(struct fixture *f)
{
    fake_wait(f->loop, is_registered, f, "a registration");
    assert_true(stats(f).registered);
    assert_int_equal(fake_kubelet_current(f->kubelet)->devices, f->list.n_devices);
}

static bool is_lost(void *arg)
{
    struct fixture *f = arg;
    return !f->registered;
}

static bool has_failed(void *arg)
{
    struct fixture *f = arg;
    return stats(f).registration_failures > 0;
}

/* ---- registration ---- */

static void test_registers(void **state)
{
    struct fixture *f = *state;
    char expected[64];
    start_kubelet(f);
    start_plugin(f);
    assert_false(stats(f).registered);
    wait_registered(f);
    const struct fake_endpoint *e = fake_kubelet_current(f->kubelet);
    snprintf(expected, sizeof expected, "poolcap-%ld-1.sock", (long)getpid());
    assert_string_equal(e->name, expected);
    assert_string_equal(f->kubelet->version, "v1beta1");
    assert_string_equal(f->kubelet->resource, RESOURCE);
    assert_true(e->pre_start_required && e->preferred_available);
    assert_string_equal(e->first_id, "8ef08c85-0000");
    assert_int_equal(f->said_yes, 1);
    assert_int_equal(f->said_no, 0);
    assert_int_equal(stats(f).registrations, 1);
    assert_int_equal(stats(f).registration_failures, 0);
    assert_int_equal(stats(f).lists_sent, 1);
    assert_int_equal(f->kubelet->registers, 1);
}

static void test_stream_before_answer(void **state)
{
    struct fixture *f = *state;
    start_kubelet(f);
    f->kubelet->stream_first = true;
    start_plugin(f);
    wait_registered(f);
    assert_int_equal(f->said_yes, 1);
    assert_int_equal(f->kubelet->registers, 1);
}

static void test_kubelet_comes_later(void **state)
{
    struct fixture *f = *state;
    start_plugin(f);  /* serves already, and is waiting */
    start_kubelet(f); /* which deletes that socket */
    wait_registered(f);
    assert_int_equal(stats(f).registration_failures, 0);
    assert_true(exists(f, fake_kubelet_current(f->kubelet)->name));
}

static void test_kubelet_restarts(void **state)
{
    struct fixture *f = *state;
    char first[FAKE_NAME];
    start_kubelet(f);
    start_plugin(f);
    wait_registered(f);
    strcpy(first, fake_kubelet_current(f->kubelet)->name);
    for (unsigned i = 2; i < 6; i++) {
        fake_kubelet_stop(f->kubelet, false);
        start_kubelet(f);
        f->registered = false; /* only the new one's counts */
        wait_registered(f);
        assert_string_not_equal(fake_kubelet_current(f->kubelet)->name, first);
        assert_int_equal(f->said_yes, i);
        assert_int_equal(f->said_no, i - 1);
        assert_int_equal(f->kubelet->registers, 1);
        assert_false(exists(f, first));
    }
}

/* At a stop the kubelet leaves its socket; the plugin then knocks at a door that nobody opens. */
static void test_stale_socket(void **state)
{
    struct fixture *f = *state;
    start_kubelet(f);
    start_plugin(f);
    wait_registered(f);
    fake_kubelet_stop(f->kubelet, true);
    fake_wait(f->loop, is_lost, f, "the end of the registration");
    fake_wait(f->loop, has_failed, f, "a registration that fails");
    start_kubelet(f);
    wait_registered(f);
    assert_int_equal(f->said_yes, 2);
    assert_int_equal(f->said_no, 1);
    assert_int_equal(f->kubelet->registers, 1);
}

static void test_refused(void **state)
{
    struct fixture *f = *state;
    start_kubelet(f);
    f->kubelet->refuse = 3;
    start_plugin(f);
    wait_registered(f);
    assert_int_equal(f->kubelet->refused, 3);
    assert_int_equal(f->kubelet->registers, 4);
    assert_int_equal(f->kubelet->at_once, 1);
    assert_int_equal(stats(f).registration_failures, 3);
    assert_int_equal(stats(f).registrations, 1);
    assert_int_equal(f->said_yes, 1);
}

/* It had waited long for a kubelet that refuses; a new one is registered at without that wait. */
static void test_new_socket_ends_back_off(void **state)
{
    struct fixture *f = *state;
    start_kubelet(f);
    f->kubelet->refuse = 1000;
    start_plugin(f);
    fake_wait(f->loop, has_failed, f, "a refused registration");
    fake_kubelet_stop(f->kubelet, false);
    start_kubelet(f);
    wait_registered(f);
    assert_int_equal(f->kubelet->registers, 1);
}

static void test_stream_ends(void **state)
{
    struct fixture *f = *state;
    char first[FAKE_NAME];
    start_kubelet(f);
    start_plugin(f);
    wait_registered(f);
    strcpy(first, fake_kubelet_current(f->kubelet)->name);
    fake_endpoint_drop(fake_kubelet_current(f->kubelet));
    fake_wait(f->loop, is_lost, f, "the end of the registration");
    wait_registered(f);
    assert_string_equal(fake_kubelet_current(f->kubelet)->name, first); /* the socket is there, so it is kept */
    assert_int_equal(f->kubelet->registers, 2);
    assert_int_equal(stats(f).registrations, 2);
    assert_int_equal(f->said_yes, 2);
    assert_int_equal(f->said_no, 1);
    assert_int_equal(f->kubelet->at_once, 1);
}

static bool all_dropped(void *arg)
{
    struct fixture *f = arg;
    return f->kubelet->drop_streams == 0 && is_registered(f);
}

/* As it does with a list over 4 MiB, but it comes to its senses. */
static void test_streams_end_at_once(void **state)
{
    struct fixture *f = *state;
    start_kubelet(f);
    f->kubelet->drop_streams = 3;
    start_plugin(f);
    fake_wait(f->loop, all_dropped, f, "a registration that stays");
    fake_wait(f->loop, is_registered, f, "a registration that stays");
    assert_int_equal(f->kubelet->registers, 4);
    assert_int_equal(f->kubelet->at_once, 1);
}

static void test_no_stream(void **state)
{
    struct fixture *f = *state;
    start_kubelet(f);
    f->kubelet->no_stream = 1;
    start_plugin(f);
    wait_registered(f);
    assert_int_equal(f->kubelet->registers, 2);
    assert_int_equal(stats(f).registration_failures, 1);
    assert_int_equal(f->said_yes, 1);
}

/* kubelet.sock under its name again is a new one to whoever looks. */
static void move_socket(struct fixture *f)
{
    char from[PATH_ROOM], to[PATH_ROOM];
    path_in(f, "kubelet.sock", from);
    path_in(f, "away", to);
    assert_int_equal(rename(from, to), 0);
    assert_int_equal(rename(to, from), 0);
}

static bool twice(void *arg)
{
    struct fixture *f = arg;
    return f->kubelet->endpoints == 2 && is_registered(f);
}

static bool both_have_three(void *arg)
{
    struct fixture *f = arg;
    return f->kubelet->endpoint[0].devices == 3 && f->kubelet->endpoint[1].devices == 3;
}

static bool second_has_two(void *arg)
{
    struct fixture *f = arg;
    return f->kubelet->endpoint[1].devices == 2;
}

/* The kubelet keeps the stream of an older registration; both get the list, and only the newer one's end matters. */
static void test_two_streams(void **state)
{
    struct fixture *f = *state;
    start_kubelet(f);
    start_plugin(f);
    wait_registered(f);
    move_socket(f);
    f->registered = false;
    fake_wait(f->loop, twice, f, "a second registration");
    assert_true(f->kubelet->endpoint[0].stream_open);
    f->list.n_devices = 3;
    pc_device_plugin_changed(f->plugin);
    fake_wait(f->loop, both_have_three, f, "the list on both streams");
    fake_endpoint_drop(&f->kubelet->endpoint[0]);
    f->list.n_devices = 2;
    pc_device_plugin_changed(f->plugin);
    fake_wait(f->loop, second_has_two, f, "the list on the newer stream");
    assert_true(f->registered);
    assert_int_equal(f->kubelet->registers, 2);
    fake_endpoint_drop(&f->kubelet->endpoint[1]);
    fake_wait(f->loop, is_lost, f, "the end of the registration");
    wait_registered(f);
    assert_int_equal(f->kubelet->registers, 3);
}

static bool both_registered(void *arg)
{
    struct fixture *f = arg;
    return f->said_yes == 2 && f->kubelet->endpoints == 2 && is_registered(f);
}

static bool third_registered(void *arg)
{
    struct fixture *f = arg;
    return f->kubelet->endpoints == 3 && is_registered(f);
}

/* An older instance under another name ends after we have registered: the kubelet then hangs up on us. */
static void test_overlap_trap(void **state)
{
    struct fixture *f = *state;
    struct pc_device_plugin *older;
    const struct pc_device_plugin_config config = {
        .directory = f->directory, .socket_prefix = "older", .resource = RESOURCE};
    start_kubelet(f);
    assert_int_equal(pc_device_plugin_start(f->loop, f->rpc, &config, &ops, f, &older, NULL), PC_OK);
    fake_wait(f->loop, is_registered, f, "the older instance");
    start_plugin(f);
    fake_wait(f->loop, both_registered, f, "the second instance");
    assert_true(f->kubelet->endpoint[0].stream_open);
    pc_device_plugin_stop(older);
    fake_wait(f->loop, third_registered, f, "a registration after the trap");
    assert_false(f->kubelet->endpoint[1].stream_open);
    assert_string_equal(f->kubelet->endpoint[2].name, f->kubelet->endpoint[1].name);
    assert_int_equal(f->said_no, 1);
}

/* Only our socket was deleted, as by a clean-up: it is made again when the next registration needs it. */
static void test_own_socket_deleted(void **state)
{
    struct fixture *f = *state;
    char path[PATH_ROOM];
    start_kubelet(f);
    start_plugin(f);
    wait_registered(f);
    path_in(f, fake_kubelet_current(f->kubelet)->name, path);
    assert_int_equal(unlink(path), 0);
    fake_endpoint_drop(fake_kubelet_current(f->kubelet));
    fake_wait(f->loop, is_lost, f, "the end of the registration");
    wait_registered(f);
    assert_string_not_equal(f->kubelet->endpoint[0].name, fake_kubelet_current(f->kubelet)->name);
    assert_true(exists(f, fake_kubelet_current(f->kubelet)->name));
}

static bool stream_ended(void *arg)
{
    struct fixture *f = arg;
    return !fake_kubelet_current(f->kubelet)->stream_open;
}

static void test_stop(void **state)
{
    struct fixture *f = *state;
    start_kubelet(f);
    start_plugin(f);
    wait_registered(f);
    unsigned no = f->said_no;
    pc_device_plugin_stop(f->plugin);
    f->plugin = NULL;
    assert_false(exists(f, fake_kubelet_current(f->kubelet)->name));
    fake_wait(f->loop, stream_ended, f, "the end of the stream");
    assert_int_equal(f->said_no, no); /* the owner knows */
    start_plugin(f);                  /* the lock is free again */
    f->registered = false;
    wait_registered(f);
}

/* ---- the list ---- */

static bool has_unhealthy(void *arg)
{
    struct fixture *f = arg;
    return fake_kubelet_current(f->kubelet)->unhealthy == 1;
}

static void test_changed(void **state)
{
    struct fixture *f = *state;
    start_kubelet(f);
    start_plugin(f);
    pc_device_plugin_changed(f->plugin); /* nobody is there */
    assert_int_equal(stats(f).lists_sent, 0);
    wait_registered(f);
    f->device[1].health = (char *)(uintptr_t) "Unhealthy";
    pc_device_plugin_changed(f->plugin);
    fake_wait(f->loop, has_unhealthy, f, "the changed list");
    assert_int_equal(stats(f).lists_sent, 2);
}

static void test_many_devices(void **state)
{
    struct fixture *f = *state;
    free_devices(f);
    make_devices(f, MANY_DEVICES);
    start_kubelet(f);
    start_plugin(f);
    wait_registered(f);
    assert_int_equal(fake_kubelet_current(f->kubelet)->devices, MANY_DEVICES);
    for (int i = 0; i < 20; i++) { /* faster than they can be sent: the newest must come */
        f->device[i].health = (char *)(uintptr_t) "Unhealthy";
        if (i > 0)
            f->device[i - 1].health = (char *)(uintptr_t) "Healthy";
        pc_device_plugin_changed(f->plugin);
    }
    f->list.n_devices = 3;
    f->device[19].health = (char *)(uintptr_t) "Healthy";
    f->device[0].health = (char *)(uintptr_t) "Unhealthy";
    pc_device_plugin_changed(f->plugin);
    fake_wait(f->loop, has_unhealthy, f, "the newest list");
}

static void test_list_bytes(void **state)
{
    struct fixture *f = *state;
    static const unsigned lengths[] = {1, 13, 31, 113, 114, 115, 127, 128, 300};
    char id[301];
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        memset(id, 'x', lengths[i]);
        id[lengths[i]] = '\0';
        for (size_t d = 0; d < f->list.n_devices; d++) {
            f->device[d].id = id;
            f->device[d].health = (char *)(uintptr_t) "Unhealthy";
        }
        assert_int_equal(pc_device_list_bytes(f->list.n_devices, lengths[i]),
                         v1beta1__list_and_watch_response__get_packed_size(&f->list));
    }
    assert_int_equal(pc_device_list_bytes(0, 13), 0);
    assert_true(pc_device_list_bytes(UINT64_MAX, 13) == UINT64_MAX);
    /* 40,000 ids of 80 bytes went through, 50,000 did not (facts). */
    assert_true(pc_device_list_bytes(50000, 80) > PC_DEVICE_LIST_MAX);
}

/* ---- calls ---- */

static void on_answer(void *arg, enum pc_status status, const ProtobufCMessage *reply, const struct pc_error *err)
{
    (void)reply;
    struct fixture *f = arg;
    f->answer = status;
    f->answers++;
    if (status != PC_OK)
        f->why = *err;
}

static bool answered(void *arg)
{
    struct fixture *f = arg;
    return f->answers > 0;
}

static enum pc_status call(struct fixture *f, const char *method, const ProtobufCMessage *request,
                           const ProtobufCMessageDescriptor *reply)
{
    char path[96];
    snprintf(path, sizeof path, "/v1beta1.DevicePlugin/%s", method);
    f->answers = 0;
    pc_rpc_call(fake_kubelet_current(f->kubelet)->channel, path, request, reply, 30000, on_answer, f);
    fake_wait(f->loop, answered, f, method);
    return f->answer;
}

static enum pc_status call_allocate(struct fixture *f, char **ids, size_t count)
{
    V1beta1__ContainerAllocateRequest one = V1BETA1__CONTAINER_ALLOCATE_REQUEST__INIT, *list[] = {&one};
    V1beta1__AllocateRequest request = V1BETA1__ALLOCATE_REQUEST__INIT;
    one.devices_ids = ids;
    one.n_devices_ids = count;
    request.container_requests = list;
    request.n_container_requests = 1;
    return call(f, "Allocate", &request.base, &v1beta1__allocate_response__descriptor);
}

static enum pc_status call_preferred(struct fixture *f, char **ids, size_t count)
{
    V1beta1__ContainerPreferredAllocationRequest one = V1BETA1__CONTAINER_PREFERRED_ALLOCATION_REQUEST__INIT,
                                                 *list[] = {&one};
    V1beta1__PreferredAllocationRequest request = V1BETA1__PREFERRED_ALLOCATION_REQUEST__INIT;
    one.available_deviceids = ids;
    one.n_available_deviceids = count;
    one.allocation_size = 1;
    request.container_requests = list;
    request.n_container_requests = 1;
    return call(f, "GetPreferredAllocation", &request.base, &v1beta1__preferred_allocation_response__descriptor);
}

static enum pc_status call_pre_start(struct fixture *f, char **ids, size_t count)
{
    V1beta1__PreStartContainerRequest request = V1BETA1__PRE_START_CONTAINER_REQUEST__INIT;
    request.devices_ids = ids;
    request.n_devices_ids = count;
    return call(f, "PreStartContainer", &request.base, &v1beta1__pre_start_container_response__descriptor);
}

static void test_calls(void **state)
{
    struct fixture *f = *state;
    char a[] = "8ef08c85-0001", b[] = "8ef08c85-0003", *ids[] = {a, b};
    start_kubelet(f);
    start_plugin(f);
    wait_registered(f);
    assert_int_equal(call_allocate(f, ids, 2), PC_OK);
    assert_string_equal(f->seen, "8ef08c85-0001,8ef08c85-0003,");
    assert_int_equal(call_preferred(f, ids + 1, 1), PC_OK);
    assert_string_equal(f->seen, "8ef08c85-0003,");
    assert_int_equal(call_preferred(f, ids, 0), PC_OK); /* nothing is free: the owner says what then */
    assert_int_equal(call_pre_start(f, ids, 1), PC_OK);
    assert_string_equal(f->seen, "8ef08c85-0001,");
    assert_int_equal(f->allocates, 1);
    assert_int_equal(f->preferreds, 2);
    assert_int_equal(f->pre_starts, 1);
    assert_int_equal(f->pre_starts_gone, 0);
}

static void test_bad_calls(void **state)
{
    struct fixture *f = *state;
    char good[] = "8ef08c85-0001", empty[] = "", latin[] = "caf\xe9", bell[] = "a\ab", lengthy[1100];
    char *bad[] = {empty, latin, bell, lengthy};
    V1beta1__AllocateRequest nobody = V1BETA1__ALLOCATE_REQUEST__INIT;
    memset(lengthy, 'x', sizeof lengthy - 1);
    lengthy[sizeof lengthy - 1] = '\0';
    start_kubelet(f);
    start_plugin(f);
    wait_registered(f);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char *ids[] = {good, bad[i]};
        assert_int_equal(call_allocate(f, ids, 2), PC_ERR_DENIED);
        assert_int_equal(f->why.code, 3);
        assert_int_equal(call_preferred(f, ids, 2), PC_ERR_DENIED);
        assert_int_equal(call_pre_start(f, ids, 2), PC_ERR_DENIED);
    }
    assert_int_equal(call_allocate(f, bad, 0), PC_ERR_DENIED);
    assert_non_null(strstr(f->why.text, "names no device"));
    assert_int_equal(call_pre_start(f, bad, 0), PC_ERR_DENIED);
    assert_int_equal(call(f, "Allocate", &nobody.base, &v1beta1__allocate_response__descriptor), PC_ERR_DENIED);
    assert_non_null(strstr(f->why.text, "names no container"));
    assert_int_equal(f->allocates + f->preferreds + f->pre_starts, 0);
    assert_true(is_registered(f));
}

static bool is_held(void *arg)
{
    struct fixture *f = arg;
    return f->held != NULL;
}

static bool is_gone(void *arg)
{
    struct fixture *f = arg;
    return f->pre_starts_gone == 1;
}

static void begin_held(struct fixture *f)
{
    char a[] = "8ef08c85-0001", *ids[] = {a};
    V1beta1__PreStartContainerRequest request = V1BETA1__PRE_START_CONTAINER_REQUEST__INIT;
    request.devices_ids = ids;
    request.n_devices_ids = 1;
    f->hold = true;
    f->answers = 0;
    pc_rpc_call(fake_kubelet_current(f->kubelet)->channel, "/v1beta1.DevicePlugin/PreStartContainer", &request.base,
                &v1beta1__pre_start_container_response__descriptor, 60000, on_answer, f);
    fake_wait(f->loop, is_held, f, "PreStartContainer");
}

static void test_pre_start_later(void **state)
{
    struct fixture *f = *state;
    V1beta1__PreStartContainerResponse reply = V1BETA1__PRE_START_CONTAINER_RESPONSE__INIT;
    start_kubelet(f);
    start_plugin(f);
    wait_registered(f);
    begin_held(f);
    assert_int_equal(f->answers, 0);
    pc_rpc_reply(pc_steal(&f->held), &reply.base);
    fake_wait(f->loop, answered, f, "the late answer");
    assert_int_equal(f->answer, PC_OK);
    assert_int_equal(f->pre_starts_gone, 0);
    begin_held(f);
    fake_kubelet_stop(f->kubelet, false);
    fake_wait(f->loop, is_gone, f, "that the kubelet is gone");
    start_kubelet(f);
    f->registered = false;
    wait_registered(f);
    begin_held(f);
    pc_device_plugin_stop(f->plugin);
    f->plugin = NULL;
    assert_int_equal(f->pre_starts_gone, 2); /* before the stop returned */
}

/* ---- the lock, and what an earlier life left ---- */

static void test_second_instance(void **state)
{
    struct fixture *f = *state;
    struct pc_device_plugin *second = NULL;
    struct pc_error err = {.text = ""};
    char pid[32];
    start_kubelet(f);
    start_plugin(f);
    wait_registered(f);
    assert_int_equal(start_at(f, f->directory, &second, &err), PC_ERR_BUSY);
    snprintf(pid, sizeof pid, "pid %ld,", (long)getpid());
    assert_non_null(strstr(err.text, pid));
    assert_null(second);
    assert_true(is_registered(f));
    pc_device_plugin_changed(f->plugin);
    assert_int_equal(f->kubelet->registers, 1);
}

static void test_earlier_life(void **state)
{
    struct fixture *f = *state;
    static const char *const stale[] = {"poolcap-999-1.sock", "poolcap-1-77.sock"};
    static const char *const others[] = {"poolcap-mig-1.sock", "poolcap-1-1.sock.d", "poolcap-1.sock", "nvidia.sock"};
    char path[PATH_ROOM];
    for (size_t i = 0; i < sizeof stale / sizeof stale[0]; i++) {
        path_in(f, stale[i], path);
        fake_stale_socket(path);
    }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        path_in(f, others[i], path);
        fake_stale_socket(path);
    }
    path_in(f, "poolcap-5-5.sock", path);
    close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600)); /* no socket: not ours to remove */
    start_plugin(f);
    for (size_t i = 0; i < sizeof stale / sizeof stale[0]; i++)
        assert_false(exists(f, stale[i]));
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        assert_true(exists(f, others[i]));
    assert_true(exists(f, "poolcap-5-5.sock"));
    start_kubelet(f);
    wait_registered(f);
}

static void test_bad_configuration(void **state)
{
    struct fixture *f = *state;
    struct pc_error err = {.text = ""};
    char lengthy[PATH_ROOM], *at;
    snprintf(lengthy, sizeof lengthy, "%s/", f->directory);
    for (at = lengthy + strlen(lengthy); at < lengthy + 100; at++)
        *at = 'x';
    *at = '\0';
    assert_int_equal(start_at(f, lengthy, &f->plugin, &err), PC_ERR_INVALID);
    assert_non_null(strstr(err.text, "107 are allowed"));
    assert_int_equal(start_at(f, "device-plugins", &f->plugin, &err), PC_ERR_INVALID);
    assert_non_null(strstr(err.text, "absolute"));
    assert_null(f->plugin);
}

/* ---- the directory ---- */

static void look(void *arg)
{
    struct fixture *f = arg;
    f->looks++;
}

static bool looked(void *arg)
{
    struct fixture *f = arg;
    return f->looks > 0;
}

static void wait_look(struct fixture *f, const char *what)
{
    fake_wait(f->loop, looked, f, what);
    f->looks = 0;
}

static void make_file(const char *path)
{
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    close(fd);
}

/* Without the registration's own slow timer beside it. */
static void test_directory_watch(void **state)
{
    struct fixture *f = *state;
    char below[PATH_ROOM], directory[PATH_ROOM], file[2 * PATH_ROOM], other[2 * PATH_ROOM], away[PATH_ROOM];
    struct pc_directory_watch *watch;
    path_in(f, "kubelet", below);
    path_in(f, "away", away);
    snprintf(directory, sizeof directory, "%s/kubelet/device-plugins", f->directory);
    snprintf(file, sizeof file, "%s/kubelet.sock", directory);
    snprintf(other, sizeof other, "%s/checkpoint", directory);
    assert_int_equal(pc_directory_watch_create(f->loop, directory, "kubelet.sock", look, f, &watch, NULL), PC_OK);
    for (int round = 0; round < 2; round++) {
        assert_int_equal(mkdir(below, 0700), 0);
        wait_look(f, "its parent");
        assert_int_equal(mkdir(directory, 0700), 0);
        wait_look(f, "the directory");
        make_file(other); /* nobody's business: only the next one is seen */
        make_file(file);
        wait_look(f, "the file made");
        assert_int_equal(rename(file, other), 0);
        assert_int_equal(rename(other, file), 0);
        wait_look(f, "the file moved there");
        assert_int_equal(unlink(file), 0);
        assert_int_equal(rmdir(directory), 0);
        wait_look(f, "the directory removed");
        assert_int_equal(rmdir(below), 0);
        wait_look(f, "its parent removed");
    }
    assert_int_equal(mkdir(below, 0700), 0);
    assert_int_equal(mkdir(directory, 0700), 0); /* both before the loop sees the first */
    wait_look(f, "both");
    make_file(file);
    wait_look(f, "the file");
    assert_int_equal(rename(directory, away), 0);
    wait_look(f, "the directory moved away");
    assert_int_equal(mkdir(directory, 0700), 0);
    wait_look(f, "another directory in its place");
    make_file(file);
    wait_look(f, "the file in it");
    pc_directory_watch_free(watch);
}

static void test_directory_comes_and_goes(void **state)
{
    struct fixture *f = *state;
    char directory[PATH_ROOM], command[2 * PATH_ROOM];
    snprintf(directory, sizeof directory, "%s/kubelet/device-plugins", f->directory);
    assert_int_equal(start_at(f, directory, &f->plugin, NULL), PC_OK);
    for (unsigned round = 1; round < 4; round++) {
        snprintf(command, sizeof command, "mkdir -p %s", directory);
        assert_int_equal(system(command), 0);
        fake_kubelet_start(f->kubelet, f->loop, f->rpc, directory);
        f->registered = false;
        wait_registered(f);
        assert_int_equal(f->said_yes, round);
        fake_kubelet_stop(f->kubelet, round % 2 == 0);
        snprintf(command, sizeof command, "rm -rf %s/kubelet", f->directory);
        assert_int_equal(system(command), 0);
    }
}

/* Where the directory was made anew, the lock is too: two instances must not meet there. */
static void test_lock_in_new_directory(void **state)
{
    struct fixture *f = *state;
    struct pc_device_plugin *second = NULL;
    struct pc_error err = {.text = ""};
    char directory[PATH_ROOM], command[2 * PATH_ROOM];
    snprintf(directory, sizeof directory, "%s/device-plugins", f->directory);
    assert_int_equal(mkdir(directory, 0700), 0);
    assert_int_equal(start_at(f, directory, &f->plugin, NULL), PC_OK);
    snprintf(command, sizeof command, "rm -rf %s", directory);
    assert_int_equal(system(command), 0);
    assert_int_equal(mkdir(directory, 0700), 0);
    fake_kubelet_start(f->kubelet, f->loop, f->rpc, directory);
    wait_registered(f);
    assert_int_equal(start_at(f, directory, &second, &err), PC_ERR_BUSY);
    assert_null(second);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    pc_log_set_level(PC_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        TEST(test_registers),
        TEST(test_stream_before_answer),
        TEST(test_kubelet_comes_later),
        TEST(test_kubelet_restarts),
        TEST(test_stale_socket),
        TEST(test_refused),
        TEST(test_new_socket_ends_back_off),
        TEST(test_stream_ends),
        TEST(test_streams_end_at_once),
        TEST(test_no_stream),
        TEST(test_two_streams),
        TEST(test_overlap_trap),
        TEST(test_own_socket_deleted),
        TEST(test_stop),
        TEST(test_changed),
        TEST(test_many_devices),
        TEST(test_list_bytes),
        TEST(test_calls),
        TEST(test_bad_calls),
        TEST(test_pre_start_later),
        TEST(test_second_instance),
        TEST(test_earlier_life),
        TEST(test_bad_configuration),
        TEST(test_directory_watch),
        TEST(test_directory_comes_and_goes),
        TEST(test_lock_in_new_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
