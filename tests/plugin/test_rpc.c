/* gRPC behind rpc.h: both ways, and everything that goes away at a bad moment. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "alloc/base/cleanup.h"
#include "plugin/rpc/internal.h"
#include "proto/device_plugin.pb-c.h"

#define ECHO "/v1beta1.DevicePlugin/PreStartContainer"
#define STREAM "/v1beta1.DevicePlugin/ListAndWatch"

struct fixture {
    struct pc_loop *loop;
    struct pc_rpc *rpc;
    struct pc_rpc_server *server;
    struct pc_rpc_channel *channel;
    char directory[64], path[100];
    bool hold; /* the handler does not answer */
    struct pc_rpc_call *held;
    uint64_t deadline;
    unsigned calls, gone, answers, messages;
    size_t ids, last_devices;
    enum pc_status status;
    struct pc_error why;
    bool late; /* time is up */
};

/* ---- the server ---- */

static void on_echo(struct pc_rpc_call *call, const ProtobufCMessage *message, void *arg)
{
    struct fixture *f = arg;
    const V1beta1__PreStartContainerRequest *request = (const V1beta1__PreStartContainerRequest *)message;
    V1beta1__PreStartContainerResponse reply = V1BETA1__PRE_START_CONTAINER_RESPONSE__INIT;
    f->calls++;
    f->ids = request->n_devices_ids;
    f->deadline = pc_rpc_call_deadline(call);
    if (f->hold)
        f->held = call;
    else if (f->ids > 0 && strcmp(request->devices_ids[0], "refuse") == 0)
        pc_rpc_fail(call, 2, "no such container");
    else
        pc_rpc_reply(call, &reply.base);
}

static void on_stream(struct pc_rpc_call *call, const ProtobufCMessage *message, void *arg)
{
    struct fixture *f = arg;
    (void)message;
    f->calls++;
    f->held = call;
}

static void on_gone(struct pc_rpc_call *call, void *arg)
{
    struct fixture *f = arg;
    assert_ptr_equal(call, f->held);
    f->held = NULL;
    f->gone++;
}

static const struct pc_rpc_method methods[] = {
    {ECHO, &v1beta1__pre_start_container_request__descriptor, on_echo, on_gone},
    {STREAM, &v1beta1__empty__descriptor, on_stream, on_gone},
};

/* ---- the client ---- */

static void on_answer(void *arg, enum pc_status status, const ProtobufCMessage *reply, const struct pc_error *err)
{
    struct fixture *f = arg;
    (void)reply;
    f->answers++;
    f->status = status;
    if (status != PC_OK)
        f->why = *err;
}

static void on_message(void *arg, const ProtobufCMessage *message)
{
    struct fixture *f = arg;
    f->messages++;
    f->last_devices = ((const V1beta1__ListAndWatchResponse *)message)->n_devices;
}

static void call_with(struct fixture *f, const char *path, char *id, uint64_t timeout_ms)
{
    V1beta1__PreStartContainerRequest request = V1BETA1__PRE_START_CONTAINER_REQUEST__INIT;
    request.devices_ids = &id;
    request.n_devices_ids = id != NULL;
    pc_rpc_call(f->channel, path, &request.base, &v1beta1__pre_start_container_response__descriptor, timeout_ms,
                on_answer, f);
}

static void call(struct fixture *f, char *id)
{
    call_with(f, ECHO, id, 60000);
}

static void open_stream(struct fixture *f)
{
    V1beta1__Empty empty = V1BETA1__EMPTY__INIT;
    pc_rpc_call_stream(f->channel, STREAM, &empty.base, &v1beta1__list_and_watch_response__descriptor, on_message,
                       on_answer, f);
}

static void send_list(struct fixture *f, size_t devices)
{
    static V1beta1__Device device[2000], *all[2000];
    V1beta1__ListAndWatchResponse list = V1BETA1__LIST_AND_WATCH_RESPONSE__INIT;
    for (size_t i = 0; i < devices; i++) {
        v1beta1__device__init(&device[i]);
        device[i].id = (char *)(uintptr_t) "8ef08c85-0017";
        all[i] = &device[i];
    }
    list.devices = all;
    list.n_devices = devices;
    pc_rpc_stream_send(f->held, &list.base);
}

/* ---- the loop, until something holds ---- */

static void on_late(struct pc_loop *loop, void *arg)
{
    struct fixture *f = arg;
    f->late = true;
    pc_loop_stop(loop);
}

static void on_tick(struct pc_loop *loop, void *arg)
{
    (void)arg;
    pc_loop_stop(loop);
}

#define PUMP(f, condition)                                         \
    do {                                                           \
        struct pc_timer *limit, *tick;                             \
        (f)->late = false;                                         \
        pc_timer_create((f)->loop, on_late, (f), &limit, NULL);    \
        pc_timer_create((f)->loop, on_tick, (f), &tick, NULL);     \
        pc_timer_start(limit, 60000, 0);                           \
        pc_timer_start(tick, 1, 1);                                \
        while (!(condition) && !(f)->late)                         \
            assert_int_equal(pc_loop_run((f)->loop, NULL), PC_OK); \
        pc_timer_free(limit);                                      \
        pc_timer_free(tick);                                       \
        if ((f)->late)                                             \
            fail_msg("never: %s", #condition);                     \
    } while (0)

static int begin(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    *state = f;
    snprintf(f->directory, sizeof f->directory, "%.40s/rpc-XXXXXX",
             getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp");
    if (mkdtemp(f->directory) == NULL)
        return -1;
    snprintf(f->path, sizeof f->path, "%s/s", f->directory);
    assert_int_equal(pc_loop_create(&f->loop, NULL), PC_OK);
    assert_int_equal(pc_rpc_create(f->loop, &f->rpc, NULL), PC_OK);
    assert_int_equal(pc_rpc_server_start(f->rpc, f->path, methods, PC_ARRAY_LEN(methods), f, &f->server, NULL), PC_OK);
    assert_int_equal(pc_rpc_channel_open(f->rpc, f->path, &f->channel, NULL), PC_OK);
    return 0;
}

static int end(void **state)
{
    struct fixture *f = *state;
    pc_rpc_server_stop(f->server);
    pc_rpc_channel_close(f->channel);
    pc_rpc_free(f->rpc);
    pc_loop_free(f->loop);
    unlink(f->path);
    int rc = rmdir(f->directory);
    free(f);
    return rc;
}

/* ---- unary ---- */

static void test_unary(void **state)
{
    struct fixture *f = *state;
    call(f, (char *)(uintptr_t) "a");
    PUMP(f, f->answers == 1);
    assert_int_equal(f->status, PC_OK);
    assert_int_equal(f->ids, 1);
    assert_true(f->deadline > pc_loop_now_ns() && f->deadline < pc_loop_now_ns() + 61000000000ull);
    call(f, (char *)(uintptr_t) "refuse");
    PUMP(f, f->answers == 2);
    assert_int_equal(f->status, PC_ERR_DENIED);
    assert_int_equal(f->why.code, 2);
    assert_string_equal(f->why.text, "no such container");
    call_with(f, "/v1beta1.DevicePlugin/Unknown", NULL, 60000);
    PUMP(f, f->answers == 3);
    assert_int_equal(f->status, PC_ERR_DENIED);
    assert_int_equal(f->why.code, 12);
    assert_int_equal(f->gone, 0);
}

static void test_many(void **state)
{
    struct fixture *f = *state;
    for (unsigned i = 0; i < 2000; i++) {
        call(f, (char *)(uintptr_t) "a");
        if (i % 50 == 49)
            PUMP(f, f->answers == i + 1);
    }
    assert_int_equal(f->calls, 2000);
}

/* protobuf-c takes text that is no UTF-8, and ends it at a NUL; we take neither. */
static void test_bad_text(void **state)
{
    struct fixture *f = *state;
    static char *const bad[] = {(char *)(uintptr_t) "\xff", (char *)(uintptr_t) "\xc0\x80",
                                (char *)(uintptr_t) "\xed\xa0\x80", (char *)(uintptr_t) "a\xf4\x90\x80\x80"};
    for (unsigned i = 0; i < PC_ARRAY_LEN(bad); i++) {
        call(f, bad[i]);
        PUMP(f, f->answers == i + 1);
        assert_int_equal(f->status, PC_ERR_DENIED);
        assert_int_equal(f->why.code, 3);
    }
    assert_int_equal(f->calls, 0);
    call(f, (char *)(uintptr_t) "gr\xc3\xbc\xc3\x9f \xf0\x9f\x98\x80");
    PUMP(f, f->answers == PC_ARRAY_LEN(bad) + 1);
    assert_int_equal(f->status, PC_OK);
}

static void test_text_on_the_wire(void **state)
{
    (void)state;
    static const ProtobufCMessageDescriptor *const type = &v1beta1__pre_start_container_request__descriptor;
    static const struct {
        uint8_t bytes[16];
        size_t length;
        bool ok;
    } rows[] = {
        {{0x0a, 1, 'a'}, 3, true},
        {{0x0a, 3, 'a', 0, 'b'}, 5, false}, /* NUL */
        {{0x0a, 9, 'a'}, 3, false},         /* longer than the message */
        {{0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}, 11, false},
        {{0x12, 1, 0xff}, 3, true},              /* not a field of ours */
        {{0x0b}, 1, false},                      /* a group */
        {{0x80}, 1, false},                      /* cut */
        {{0x09, 1, 2, 3, 4, 5, 6, 7}, 8, false}, /* 64 bits cut */
        {{0x0d, 1, 2, 3, 4}, 5, true},
        {{0}, 0, true},
    };
    for (size_t i = 0; i < PC_ARRAY_LEN(rows); i++)
        if (pc_rpc_text_ok(type, rows[i].bytes, rows[i].length) != rows[i].ok)
            fail_msg("row %zu", i);
}

static void test_too_large(void **state)
{
    struct fixture *f = *state;
    char *id = malloc(PC_RPC_MESSAGE_MAX + 100);
    memset(id, 'a', PC_RPC_MESSAGE_MAX + 99);
    id[PC_RPC_MESSAGE_MAX + 99] = '\0';
    call(f, id);
    PUMP(f, f->answers == 1);
    assert_int_equal(f->status, PC_ERR_PROTOCOL);
    id[PC_RPC_MESSAGE_MAX / 2] = '\0';
    for (unsigned tries = 1; f->status != PC_OK && tries < 200; tries++) { /* core may have to connect again */
        call(f, id);
        PUMP(f, f->answers == tries + 1);
    }
    assert_int_equal(f->status, PC_OK);
    free(id);
}

/* ---- who goes away ---- */

static void test_deadline(void **state)
{
    struct fixture *f = *state;
    f->hold = true;
    call_with(f, ECHO, NULL, 300);
    PUMP(f, f->answers == 1 && f->gone == f->calls); /* on a slow machine it may pass before the handler is called */
    assert_int_equal(f->status, PC_ERR_UNREACHABLE);
    assert_null(f->held);
}

static void test_answer_later(void **state)
{
    struct fixture *f = *state;
    V1beta1__PreStartContainerResponse reply = V1BETA1__PRE_START_CONTAINER_RESPONSE__INIT;
    f->hold = true;
    call(f, NULL);
    PUMP(f, f->held != NULL);
    assert_int_equal(f->answers, 0);
    pc_rpc_reply(f->held, &reply.base);
    PUMP(f, f->answers == 1);
    assert_int_equal(f->status, PC_OK);
    assert_int_equal(f->gone, 0);
}

static void test_channel_closed(void **state)
{
    struct fixture *f = *state;
    f->hold = true;
    call(f, NULL);
    PUMP(f, f->held != NULL);
    pc_rpc_channel_close(f->channel);
    f->channel = NULL;
    assert_int_equal(f->answers, 1); /* before it returned */
    assert_int_equal(f->status, PC_ERR_UNREACHABLE);
    PUMP(f, f->gone == 1);
}

static void test_server_stopped(void **state)
{
    struct fixture *f = *state;
    struct stat st;
    f->hold = true;
    call(f, NULL);
    PUMP(f, f->held != NULL);
    pc_rpc_server_stop(f->server);
    f->server = NULL;
    assert_int_equal(f->gone, 1); /* before it returned */
    assert_int_equal(stat(f->path, &st), -1);
    PUMP(f, f->answers == 1);
    assert_int_equal(f->status, PC_ERR_UNREACHABLE);
    call(f, NULL);
    PUMP(f, f->answers == 2);
    assert_int_equal(f->status, PC_ERR_UNREACHABLE);
    /* Again at the same path; the client finds it by itself. */
    f->hold = false;
    assert_int_equal(pc_rpc_server_start(f->rpc, f->path, methods, PC_ARRAY_LEN(methods), f, &f->server, NULL), PC_OK);
    for (unsigned tries = 2; f->status != PC_OK && tries < 200; tries++) {
        call(f, NULL);
        PUMP(f, f->answers == tries + 1);
    }
    assert_int_equal(f->status, PC_OK);
    assert_int_equal(stat(f->path, &st), 0);
}

/* ---- streams ---- */

static void test_stream(void **state)
{
    struct fixture *f = *state;
    open_stream(f);
    PUMP(f, f->held != NULL);
    send_list(f, 3);
    PUMP(f, f->messages == 1);
    assert_int_equal(f->last_devices, 3);
    /* What is sent while one is under way is put together to the newest. */
    for (size_t i = 0; i < 1000; i++)
        send_list(f, i);
    send_list(f, 1999);
    PUMP(f, f->last_devices == 1999);
    assert_true(f->messages < 1000);
    pc_rpc_fail(f->held, 2, "enough");
    PUMP(f, f->answers == 1);
    assert_int_equal(f->status, PC_ERR_DENIED);
    assert_string_equal(f->why.text, "enough");
    assert_int_equal(f->gone, 0);
}

static void test_stream_fails_behind_a_message(void **state)
{
    struct fixture *f = *state;
    open_stream(f);
    PUMP(f, f->held != NULL);
    send_list(f, 7);
    pc_rpc_fail(f->held, 2, "enough");
    PUMP(f, f->answers == 1);
    assert_int_equal(f->messages, 1);
    assert_int_equal(f->last_devices, 7);
}

static void test_stream_client_leaves(void **state)
{
    struct fixture *f = *state;
    open_stream(f);
    PUMP(f, f->held != NULL);
    send_list(f, 1000);
    pc_rpc_channel_close(f->channel);
    f->channel = NULL;
    PUMP(f, f->gone == 1);
    assert_null(f->held);
}

static void test_stream_wrong_message(void **state)
{
    struct fixture *f = *state;
    V1beta1__Empty empty = V1BETA1__EMPTY__INIT;
    V1beta1__RegisterRequest wrong = V1BETA1__REGISTER_REQUEST__INIT; /* field 1 is text here, messages there */
    wrong.version = (char *)(uintptr_t) "\x0b\x0b\x0b";
    pc_rpc_call_stream(f->channel, STREAM, &empty.base, &v1beta1__list_and_watch_response__descriptor, on_message,
                       on_answer, f);
    PUMP(f, f->held != NULL);
    pc_rpc_stream_send(f->held, &wrong.base);
    PUMP(f, f->answers == 1);
    assert_int_equal(f->status, PC_ERR_PROTOCOL);
    assert_int_equal(f->messages, 0);
}

/* ---- the socket ---- */

static void test_paths(void **state)
{
    struct fixture *f = *state;
    struct pc_rpc_server *server;
    struct pc_rpc_channel *channel;
    struct pc_error err;
    char path[200];
    memset(path, 'x', sizeof path - 1);
    path[0] = '/';
    path[sizeof path - 1] = '\0';
    assert_int_equal(pc_rpc_server_start(f->rpc, path, methods, 1, f, &server, &err), PC_ERR_INVALID);
    assert_int_equal(pc_rpc_channel_open(f->rpc, path, &channel, &err), PC_ERR_INVALID);
    assert_int_equal(pc_rpc_server_start(f->rpc, "/nonexistent/s", methods, 1, f, &server, &err), PC_ERR_IO);
    snprintf(path, sizeof path, "%s/file", f->directory);
    fclose(fopen(path, "we"));
    assert_int_equal(pc_rpc_server_start(f->rpc, path, methods, 1, f, &server, &err), PC_ERR_IO);
    assert_non_null(strstr(err.text, "is no socket"));
    unlink(path);
}

/* A socket that somebody made in our place is not ours to remove. */
static void test_not_our_socket(void **state)
{
    struct fixture *f = *state;
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    struct stat st;
    unlink(f->path);
    snprintf(at.sun_path, sizeof at.sun_path, "%s", f->path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    pc_rpc_server_stop(f->server);
    f->server = NULL;
    assert_int_equal(stat(f->path, &st), 0);
    close(fd);
    /* A stale one is replaced. */
    assert_int_equal(pc_rpc_server_start(f->rpc, f->path, methods, PC_ARRAY_LEN(methods), f, &f->server, NULL), PC_OK);
    call(f, NULL);
    PUMP(f, f->answers == 1);
    assert_int_equal(f->status, PC_OK);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_unary),
        TEST(test_many),
        TEST(test_bad_text),
        TEST(test_text_on_the_wire),
        TEST(test_too_large),
        TEST(test_deadline),
        TEST(test_answer_later),
        TEST(test_channel_closed),
        TEST(test_server_stopped),
        TEST(test_stream),
        TEST(test_stream_fails_behind_a_message),
        TEST(test_stream_client_leaves),
        TEST(test_stream_wrong_message),
        TEST(test_paths),
        TEST(test_not_our_socket),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
