/* What the kubelet calls, and the list that it is sent. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "alloc/base/cleanup.h"
#include "alloc/base/log.h"
#include "tests/plugin/device_fixture.h"

enum { MANY_DEVICES = 40000 };

/* ---- the list ---- */

static bool has_unhealthy(void *arg)
{
    struct fixture *f = arg;
    return fake_kubelet_current(f->kubelet)->unhealthy == 1;
}

static void test_changed(void **state)
{
    struct fixture *f = *state;
    fixture_start_kubelet(f);
    fixture_start_plugin(f);
    pc_device_plugin_changed(f->plugin); /* nobody is there */
    assert_int_equal(fixture_stats(f).lists_sent, 0);
    fixture_wait_registered(f);
    f->device[1].health = (char *)(uintptr_t) "Unhealthy";
    pc_device_plugin_changed(f->plugin);
    fake_wait(f->loop, has_unhealthy, f, "the changed list");
    assert_int_equal(fixture_stats(f).lists_sent, 2);
}

static void test_many_devices(void **state)
{
    struct fixture *f = *state;
    fixture_free_devices(f);
    fixture_make_devices(f, MANY_DEVICES);
    fixture_register(f);
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
    fixture_register(f);
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
    fixture_register(f);
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
    assert_true(fixture_is_registered(f));
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
    fixture_register(f);
    begin_held(f);
    assert_int_equal(f->answers, 0);
    pc_rpc_reply(pc_steal(&f->held), &reply.base);
    fake_wait(f->loop, answered, f, "the late answer");
    assert_int_equal(f->answer, PC_OK);
    assert_int_equal(f->pre_starts_gone, 0);
    begin_held(f);
    fake_kubelet_stop(f->kubelet, false);
    fake_wait(f->loop, is_gone, f, "that the kubelet is gone");
    fixture_start_kubelet(f);
    f->registered = false;
    fixture_wait_registered(f);
    begin_held(f);
    pc_device_plugin_stop(f->plugin);
    f->plugin = NULL;
    assert_int_equal(f->pre_starts_gone, 2); /* before the stop returned */
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_set_up, fixture_tear_down)

int main(void)
{
    pc_log_set_level(PC_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        TEST(test_changed), TEST(test_many_devices), TEST(test_list_bytes),
        TEST(test_calls),   TEST(test_bad_calls),    TEST(test_pre_start_later),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
