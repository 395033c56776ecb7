/* pod-resources' List against a stand-in server: what the kubelet sends, and what it should not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/cleanup.h"
#include "alloc/base/log.h"
#include "plugin/kubelet/claims.h"
#include "plugin/kubelet/pod_resources.h"
#include "proto/device_plugin.pb-c.h"
#include "proto/pod_resources.pb-c.h"
#include "tests/plugin/fake_kubelet.h"

#define RESOURCE "poolcap.dev/gpu-memory"

enum { PODS = 8, MANY_IDS = 40000 };

/* Pods as small as they can be said: one container each. */
struct fake_pod {
    V1__PodResources pod, *pod_at;
    V1__ContainerResources container, *container_at;
    V1__ContainerDevices *devices, **devices_at;
    char **id; /* one a ContainerDevices */
};

struct fixture {
    struct pc_loop *loop;
    struct pc_rpc *rpc;
    struct pc_rpc_server *server;
    struct pc_rpc_channel *channel;
    char directory[64], path[96];

    struct fake_pod pod[PODS];
    size_t pods;
    V1__PodResources *pod_at[PODS];
    const ProtobufCMessage *reply; /* instead of the pods */
    bool refuse, silent;
    unsigned asked;
    struct pc_rpc_call *held;

    unsigned answers;
    enum pc_status status;
    struct pc_pod_list *list;
    struct pc_error err;
};

/* ---- the server ---- */

static void on_list(struct pc_rpc_call *call, const ProtobufCMessage *request, void *arg)
{
    (void)request;
    struct fixture *f = arg;
    V1__ListPodResourcesResponse reply = V1__LIST_POD_RESOURCES_RESPONSE__INIT;
    f->asked++;
    reply.pod_resources = f->pod_at;
    reply.n_pod_resources = f->pods;
    if (f->silent)
        f->held = call;
    else if (f->refuse)
        pc_rpc_fail(call, 8, "rejected by rate limit");
    else
        pc_rpc_reply(call, f->reply != NULL ? f->reply : &reply.base);
}

static void on_gone(struct pc_rpc_call *call, void *arg)
{
    (void)call;
    struct fixture *f = arg;
    f->held = NULL;
}

static void serve(struct fixture *f)
{
    static const struct pc_rpc_method methods[] = {
        {"/v1.PodResourcesLister/List", &v1__list_pod_resources_request__descriptor, on_list, on_gone},
    };
    assert_int_equal(pc_rpc_server_start(f->rpc, f->path, methods, 1, f, &f->server, NULL), PC_OK);
}

static void add_pod(struct fixture *f, const char *pod_namespace, const char *name, const char *container,
                    const char *resource, size_t ids)
{
    struct fake_pod *p = &f->pod[f->pods];
    f->pod_at[f->pods++] = &p->pod;
    v1__pod_resources__init(&p->pod);
    v1__container_resources__init(&p->container);
    p->pod.namespace_ = (char *)(uintptr_t)pod_namespace;
    p->pod.name = (char *)(uintptr_t)name;
    p->container.name = (char *)(uintptr_t)container;
    p->container_at = &p->container;
    p->pod.containers = &p->container_at;
    p->pod.n_containers = 1;
    p->devices = calloc(ids + 1, sizeof *p->devices);
    p->devices_at = calloc(ids + 1, sizeof(V1__ContainerDevices *));
    p->id = calloc(ids + 1, sizeof(char *));
    for (size_t i = 0; i < ids; i++) {
        assert_true(asprintf(&p->id[i], "8ef08c85-%04zu", ids - 1 - i) > 0);
        v1__container_devices__init(&p->devices[i]);
        p->devices[i].resource_name = (char *)(uintptr_t)resource;
        p->devices[i].device_ids = &p->id[i];
        p->devices[i].n_device_ids = 1;
        p->devices_at[i] = &p->devices[i];
    }
    p->container.devices = p->devices_at;
    p->container.n_devices = ids;
}

static void free_pods(struct fixture *f)
{
    for (size_t i = 0; i < f->pods; i++) {
        struct fake_pod *p = &f->pod[i];
        for (size_t j = 0; p->id[j] != NULL; j++)
            free(p->id[j]);
        free(p->id);
        free(p->devices);
        free(p->devices_at);
    }
    f->pods = 0;
}

/* ---- the fixture ---- */

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    strcpy(f->directory, "/tmp/poolcap-podres.XXXXXX");
    assert_non_null(mkdtemp(f->directory));
    snprintf(f->path, sizeof f->path, "%s/kubelet.sock", f->directory);
    assert_int_equal(pc_loop_create(&f->loop, NULL), PC_OK);
    assert_int_equal(pc_rpc_create(f->loop, &f->rpc, NULL), PC_OK);
    assert_int_equal(pc_rpc_channel_open(f->rpc, f->path, &f->channel, NULL), PC_OK);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    pc_rpc_channel_close(f->channel);
    if (f->server != NULL)
        pc_rpc_server_stop(f->server);
    pc_rpc_free(f->rpc);
    pc_loop_free(f->loop);
    pc_pod_list_free(f->list);
    free_pods(f);
    unlink(f->path);
    rmdir(f->directory);
    free(f);
    return 0;
}

static void on_answer(void *arg, enum pc_status status, struct pc_pod_list *list, const struct pc_error *err)
{
    struct fixture *f = arg;
    f->answers++;
    f->status = status;
    f->list = list;
    f->err = (struct pc_error){.text = ""};
    assert_true((status == PC_OK) == (list != NULL));
    if (status != PC_OK)
        f->err = *err;
}

static bool answered(void *arg)
{
    struct fixture *f = arg;
    return f->answers > 0;
}

static void begin(struct fixture *f)
{
    pc_pod_list_free(f->list);
    f->list = NULL;
    f->answers = 0;
    pc_pod_resources_list(f->channel, RESOURCE, on_answer, f);
}

static enum pc_status list(struct fixture *f)
{
    begin(f);
    fake_wait(f->loop, answered, f, "the answer");
    assert_int_equal(f->answers, 1);
    return f->status;
}

/* ---- what it sends ---- */

static void test_list(void **state)
{
    struct fixture *f = *state;
    serve(f);
    add_pod(f, "default", "web", "app", "", 0);
    add_pod(f, "ml", "train", "main", RESOURCE, 3);
    add_pod(f, "ml", "other", "main", "nvidia.com/gpu", 2);
    add_pod(f, "ml", "mixed", "main", RESOURCE, 2);
    f->pod[3].devices[0].resource_name = (char *)(uintptr_t) "nvidia.com/gpu";
    assert_int_equal(list(f), PC_OK);
    assert_int_equal(f->list->pods, 4);
    assert_string_equal(f->list->pod[0].pod_namespace, "default");
    assert_string_equal(f->list->pod[0].pod_name, "web");
    assert_string_equal(f->list->pod[3].pod_name, "mixed");
    assert_int_equal(f->list->claims.count, 2);
    const struct pc_claim *train = &f->list->claims.claim[0], *mixed = &f->list->claims.claim[1];
    assert_string_equal(train->pod_namespace, "ml");
    assert_string_equal(train->pod_name, "train");
    assert_string_equal(train->pod_uid, "");
    assert_string_equal(train->container, "main");
    assert_int_equal(train->count, 3); /* one entry an id, sent in another order */
    assert_string_equal(train->ids[0], "8ef08c85-0000");
    assert_string_equal(train->ids[1], "8ef08c85-0001");
    assert_string_equal(train->ids[2], "8ef08c85-0002");
    assert_int_equal(train->mounts, 0);
    assert_int_equal(mixed->count, 1);
    assert_string_equal(mixed->ids[0], "8ef08c85-0000");
}

static void test_one_entry_with_all(void **state)
{
    struct fixture *f = *state;
    char a[] = "b", b[] = "a", c[] = "b", *ids[] = {a, b, c};
    serve(f);
    add_pod(f, "ml", "train", "main", RESOURCE, 1);
    f->pod[0].devices[0].device_ids = ids;
    f->pod[0].devices[0].n_device_ids = 3;
    assert_int_equal(list(f), PC_OK);
    assert_int_equal(f->list->claims.claim[0].count, 2);
    assert_string_equal(f->list->claims.claim[0].ids[0], "a");
    assert_string_equal(f->list->claims.claim[0].ids[1], "b");
}

static void test_nobody(void **state)
{
    struct fixture *f = *state;
    serve(f);
    assert_int_equal(list(f), PC_OK);
    assert_int_equal(f->list->pods, 0);
    assert_int_equal(f->list->claims.count, 0);
    pc_pod_list_free(NULL);
}

static void test_many(void **state)
{
    struct fixture *f = *state;
    serve(f);
    add_pod(f, "ml", "huge", "main", RESOURCE, MANY_IDS);
    assert_int_equal(list(f), PC_OK);
    assert_int_equal(f->list->claims.count, 1);
    assert_int_equal(f->list->claims.claim[0].count, MANY_IDS);
    for (size_t i = 1; i < MANY_IDS; i++)
        assert_true(strcmp(f->list->claims.claim[0].ids[i - 1], f->list->claims.claim[0].ids[i]) < 0);
}

/* ---- what it should not ---- */

static void refused(struct fixture *f, const char *says)
{
    assert_int_equal(list(f), PC_ERR_PROTOCOL);
    assert_int_equal(f->err.status, PC_ERR_PROTOCOL);
    assert_non_null(strstr(f->err.text, says));
}

static void test_lies(void **state)
{
    struct fixture *f = *state;
    char lengthy[2000], *none[] = {lengthy};
    static const char *const bad[] = {"", "caf\xe9", "two\nlines", "\xed\xa0\x80"};
    serve(f);
    memset(lengthy, 'x', sizeof lengthy - 1);
    lengthy[sizeof lengthy - 1] = '\0';
    add_pod(f, "ml", "good", "main", RESOURCE, 1);
    for (size_t i = 0; i < 5; i++) {
        const char *text = i < 4 ? bad[i] : lengthy;
        bool wire = i == 1 || i == 3; /* refused before it is looked at: rpc.h's word for it */
        free_pods(f);
        add_pod(f, "ml", "good", "main", RESOURCE, 1);
        add_pod(f, text, "name", "main", RESOURCE, 1);
        refused(f, wire ? "not UTF-8" : "the namespace of pod 2");
        free_pods(f);
        add_pod(f, "ml", text, "main", "", 0);
        refused(f, wire ? "not UTF-8" : "the name of pod 1");
        free_pods(f);
        add_pod(f, "ml", "name", text, RESOURCE, 1);
        refused(f, wire ? "not UTF-8" : "the name of a container of pod 1");
        free_pods(f);
        add_pod(f, "ml", "name", "main", RESOURCE, 2);
        none[0] = (char *)(uintptr_t)text;
        f->pod[0].devices[1].device_ids = none;
        refused(f, wire ? "not UTF-8" : "a device id of pod 1");
    }
    /* Of another's resource they are not ours to judge. */
    f->pod[0].devices[1].resource_name = (char *)(uintptr_t) "example.com/other";
    assert_int_equal(list(f), PC_OK);
    assert_int_equal(f->list->claims.claim[0].count, 1);
}

/* A message of another kind: field 1 is a number where the pods should be. */
static void test_wrong_message(void **state)
{
    struct fixture *f = *state;
    V1beta1__NUMANode number = V1BETA1__NUMANODE__INIT;
    serve(f);
    number.id = 4711;
    f->reply = &number.base;
    assert_int_equal(list(f), PC_ERR_PROTOCOL);
    assert_true(f->err.text[0] != '\0');
    f->reply = NULL;
    assert_int_equal(list(f), PC_OK); /* the channel has not suffered */
}

/* Every beginning of a pod, in an answer that is whole otherwise: some are pods themselves, of less. */
static void test_truncated(void **state)
{
    struct fixture *f = *state;
    uint8_t bytes[512];
    serve(f);
    add_pod(f, "ml", "train", "main", RESOURCE, 3);
    size_t size = v1__pod_resources__pack(&f->pod[0].pod, bytes);
    assert_true(size < sizeof bytes);
    unsigned refusals = 0;
    for (size_t length = 0; length < size; length++) {
        /* Sent as an unknown field of another message, so that protobuf-c puts the bytes there as they are. */
        ProtobufCMessageUnknownField field = {.tag = 1, .wire_type = PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED};
        uint8_t data[sizeof bytes + 2];
        size_t head = 0;
        data[head++] = (uint8_t)(length < 128 ? length : (length & 127) | 128);
        if (length >= 128)
            data[head++] = (uint8_t)(length >> 7);
        memcpy(data + head, bytes, length);
        field.data = data;
        field.len = head + length;
        V1beta1__Empty cut = V1BETA1__EMPTY__INIT;
        cut.base.n_unknown_fields = 1;
        cut.base.unknown_fields = &field;
        f->reply = &cut.base;
        enum pc_status status = list(f);
        assert_true(status == PC_OK || status == PC_ERR_PROTOCOL);
        refusals += status != PC_OK;
    }
    assert_true(refusals > size / 2);
}

static void test_refuses(void **state)
{
    struct fixture *f = *state;
    serve(f);
    f->refuse = true;
    assert_int_equal(list(f), PC_ERR_DENIED);
    assert_int_equal(f->err.code, 8);
    assert_non_null(strstr(f->err.text, "rate limit"));
}

static void test_not_there(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(list(f), PC_ERR_UNREACHABLE);
    assert_null(f->list);
}

static bool asked(void *arg)
{
    struct fixture *f = arg;
    return f->held != NULL;
}

static void test_channel_closed_meanwhile(void **state)
{
    struct fixture *f = *state;
    serve(f);
    f->silent = true;
    begin(f);
    fake_wait(f->loop, asked, f, "the question");
    assert_int_equal(f->answers, 0);
    pc_rpc_channel_close(pc_steal(&f->channel));
    assert_int_equal(f->answers, 1);
    assert_int_equal(f->status, PC_ERR_UNREACHABLE);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    pc_log_set_level(PC_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        TEST(test_list),      TEST(test_one_entry_with_all),
        TEST(test_nobody),    TEST(test_many),
        TEST(test_lies),      TEST(test_wrong_message),
        TEST(test_truncated), TEST(test_refuses),
        TEST(test_not_there), TEST(test_channel_closed_meanwhile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
