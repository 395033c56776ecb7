/* Calls to somebody else's server. Unary calls and streams are one thing: messages, then the status. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/log.h"
#include "plugin/rpc/internal.h"

struct client_call {
    struct pc_rpc *rpc;
    struct pc_rpc_channel *channel; /* NULL: closed, or answered */
    struct client_call *next, *prev;
    grpc_call *call;
    const ProtobufCMessageDescriptor *type;
    pc_rpc_each each; /* NULL: unary */
    pc_rpc_answer answer;
    void *arg;
    grpc_byte_buffer *request, *message, *reply; /* reply: a unary call's only message */
    grpc_metadata_array initial, trailing;
    grpc_status_code code;
    grpc_slice details;
    struct pc_rpc_tag on_begun, on_message, on_status;
    unsigned pending;
    bool status_came, message_pending, answered;
};

struct pc_rpc_channel {
    struct pc_rpc *rpc;
    grpc_channel *channel;
    struct client_call *calls;
};

/* ---- channels ---- */

enum pc_status pc_rpc_channel_open(struct pc_rpc *rpc, const char *socket_path, struct pc_rpc_channel **out,
                                   struct pc_error *err)
{
    char target[160];
    /* The kubelet may be away for a moment and must be found again at once, not after core's 20 s. */
    const struct {
        const char *key;
        int value;
    } numbers[] = {
        {GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, PC_RPC_MESSAGE_MAX},
        {GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100},
        {GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100},
        {GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500},
    };
    enum { NUMBERS = sizeof numbers / sizeof numbers[0] };
    grpc_arg arg[NUMBERS + 1];
    if (strlen(socket_path) > 107)
        return pc_error_set(err, PC_ERR_INVALID, 0, "a socket's path has at most 107 bytes, this one %zu: %.200s",
                            strlen(socket_path), socket_path);
    for (size_t i = 0; i < NUMBERS; i++) {
        arg[i] = (grpc_arg){.type = GRPC_ARG_INTEGER, .key = (char *)(uintptr_t)numbers[i].key};
        arg[i].value.integer = numbers[i].value;
    }
    arg[NUMBERS] = (grpc_arg){.type = GRPC_ARG_STRING, .key = (char *)(uintptr_t)GRPC_ARG_DEFAULT_AUTHORITY};
    arg[NUMBERS].value.string = (char *)(uintptr_t) "localhost";
    const grpc_channel_args args = {.num_args = NUMBERS + 1, .args = arg};
    struct pc_rpc_channel *channel = calloc(1, sizeof *channel);
    if (channel == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no host memory for a channel");
    snprintf(target, sizeof target, "unix:%s", socket_path);
    grpc_channel_credentials *credentials = grpc_insecure_credentials_create();
    channel->rpc = rpc;
    channel->channel = grpc_channel_create(target, credentials, &args);
    grpc_channel_credentials_release(credentials);
    *out = channel;
    return PC_OK;
}

static void join(struct client_call *call)
{
    call->next = call->channel->calls;
    if (call->next != NULL)
        call->next->prev = call;
    call->channel->calls = call;
}

static void leave(struct client_call *call)
{
    if (call->channel == NULL)
        return;
    if (call->prev != NULL)
        call->prev->next = call->next;
    else
        call->channel->calls = call->next;
    if (call->next != NULL)
        call->next->prev = call->prev;
    call->channel = NULL;
}

/* ---- a call's end ---- */

static void release(struct client_call *call)
{
    if (call->pending > 0 || !call->answered)
        return;
    leave(call);
    if (call->call != NULL)
        grpc_call_unref(call->call);
    grpc_byte_buffer *buffers[] = {call->request, call->message, call->reply};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        if (buffers[i] != NULL)
            grpc_byte_buffer_destroy(buffers[i]);
    grpc_metadata_array_destroy(&call->initial);
    grpc_metadata_array_destroy(&call->trailing);
    grpc_slice_unref(call->details);
    free(call);
}

static void tell(struct client_call *call, enum pc_status status, const ProtobufCMessage *reply,
                 const struct pc_error *err)
{
    leave(call);
    call->answered = true;
    call->answer(call->arg, status, reply, err);
}

/* Core refuses an answer over the limit with the same code that a server's rate limit has. */
static bool over_limit(const struct pc_error *err)
{
    return strstr(err->text, "larger than max") != NULL;
}

/* gRPC's codes, by what they mean to us: nobody there, not such an answer, or the server's own no. */
static enum pc_status meaning(grpc_status_code code, const struct pc_error *err)
{
    switch (code) {
    case GRPC_STATUS_CANCELLED:
    case GRPC_STATUS_DEADLINE_EXCEEDED:
    case GRPC_STATUS_UNAVAILABLE:
        return PC_ERR_UNREACHABLE;
    case GRPC_STATUS_RESOURCE_EXHAUSTED:
        return over_limit(err) ? PC_ERR_PROTOCOL : PC_ERR_DENIED;
    case GRPC_STATUS_INTERNAL:
        return PC_ERR_PROTOCOL;
    default:
        return PC_ERR_DENIED;
    }
}

static void tell_failure(struct client_call *call)
{
    struct pc_error err;
    pc_error_set(&err, PC_ERR_DENIED, (int)call->code, "%.*s", (int)GRPC_SLICE_LENGTH(call->details),
                 (const char *)GRPC_SLICE_START_PTR(call->details));
    err.status = meaning(call->code, &err);
    tell(call, err.status, NULL, &err);
}

static void tell_reply(struct client_call *call)
{
    struct pc_error err = {.text = ""};
    ProtobufCMessage *reply = pc_rpc_unpack(call->reply, call->type);
    if (reply == NULL) {
        pc_error_set(&err, PC_ERR_PROTOCOL, 0, "the answer is no %s, or has text that is not UTF-8", call->type->name);
        tell(call, PC_ERR_PROTOCOL, NULL, &err);
        return;
    }
    tell(call, PC_OK, reply, &err);
    protobuf_c_message_free_unpacked(reply, NULL);
}

/* The status may come before the last message is delivered; the answer is given behind both. */
static void maybe_answer(struct client_call *call)
{
    struct pc_error none = {.text = ""};
    if (!call->status_came || call->message_pending || call->answered)
        return;
    if (call->code != GRPC_STATUS_OK)
        tell_failure(call);
    else if (call->each != NULL)
        tell(call, PC_OK, NULL, &none);
    else
        tell_reply(call);
}

/* ---- a call's way ---- */

static void expect_message(struct client_call *call);

static bool start(struct client_call *call, const grpc_op *ops, size_t count, struct pc_rpc_tag *tag,
                  void (*done)(void *owner, bool ok))
{
    if (!pc_rpc_batch(call->rpc, call->call, ops, count, tag, done, call))
        return false;
    call->pending++;
    return true;
}

static void deliver(struct client_call *call)
{
    ProtobufCMessage *message = pc_rpc_unpack(call->message, call->type);
    grpc_byte_buffer_destroy(call->message);
    call->message = NULL;
    if (message == NULL) {
        grpc_call_cancel_with_status(call->call, GRPC_STATUS_INTERNAL, "a message that is none", NULL);
        return;
    }
    call->each(call->arg, message);
    protobuf_c_message_free_unpacked(message, NULL);
}

static void on_message(void *owner, bool ok)
{
    struct client_call *call = owner;
    call->message_pending = false;
    if (ok && call->message != NULL && !call->answered) {
        if (call->each == NULL) {
            call->reply = call->message;
            call->message = NULL;
        } else {
            deliver(call);
            if (!call->answered)
                expect_message(call);
        }
    }
    call->pending--;
    maybe_answer(call);
    release(call);
}

static void expect_message(struct client_call *call)
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
    op.data.recv_message.recv_message = &call->message;
    call->message_pending = start(call, &op, 1, &call->on_message, on_message);
}

static void on_status(void *owner, bool ok)
{
    struct client_call *call = owner;
    (void)ok;
    call->pending--;
    call->status_came = true;
    maybe_answer(call);
    release(call);
}

static void on_begun(void *owner, bool ok)
{
    struct client_call *call = owner;
    (void)ok;
    call->pending--;
    release(call);
}

static void begin(struct client_call *call)
{
    grpc_op first[4] = {{.op = GRPC_OP_SEND_INITIAL_METADATA},
                        {.op = GRPC_OP_SEND_MESSAGE},
                        {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT},
                        {.op = GRPC_OP_RECV_INITIAL_METADATA}};
    grpc_op status = {.op = GRPC_OP_RECV_STATUS_ON_CLIENT};
    first[1].data.send_message.send_message = call->request;
    first[3].data.recv_initial_metadata.recv_initial_metadata = &call->initial;
    status.data.recv_status_on_client.trailing_metadata = &call->trailing;
    status.data.recv_status_on_client.status = &call->code;
    status.data.recv_status_on_client.status_details = &call->details;
    start(call, first, 4, &call->on_begun, on_begun);
    expect_message(call);
    start(call, &status, 1, &call->on_status, on_status);
}

static void call_method(struct pc_rpc_channel *channel, const char *path, const ProtobufCMessage *request,
                        gpr_timespec deadline, const struct client_call *how)
{
    struct client_call *call = malloc(sizeof *call);
    if (call == NULL)
        abort(); /* some 500 bytes: there is no going on without, and a restart loses nothing */
    *call = *how;
    call->rpc = channel->rpc;
    call->channel = channel;
    call->details = grpc_empty_slice();
    grpc_metadata_array_init(&call->initial);
    grpc_metadata_array_init(&call->trailing);
    call->request = pc_rpc_pack(request);
    grpc_slice method = grpc_slice_from_copied_string(path);
    call->call = grpc_channel_create_call(channel->channel, NULL, GRPC_PROPAGATE_DEFAULTS, pc_rpc_queue(channel->rpc),
                                          method, NULL, deadline, NULL);
    grpc_slice_unref(method);
    join(call);
    begin(call);
}

void pc_rpc_call(struct pc_rpc_channel *channel, const char *path, const ProtobufCMessage *request,
                 const ProtobufCMessageDescriptor *reply, uint64_t timeout_ms, pc_rpc_answer answer, void *arg)
{
    const struct client_call how = {.type = reply, .answer = answer, .arg = arg};
    gpr_timespec limit = gpr_time_from_millis((int64_t)timeout_ms, GPR_TIMESPAN);
    call_method(channel, path, request, gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), limit), &how);
}

void pc_rpc_call_stream(struct pc_rpc_channel *channel, const char *path, const ProtobufCMessage *request,
                        const ProtobufCMessageDescriptor *reply, pc_rpc_each each, pc_rpc_answer answer, void *arg)
{
    const struct client_call how = {.type = reply, .each = each, .answer = answer, .arg = arg};
    call_method(channel, path, request, gpr_inf_future(GPR_CLOCK_MONOTONIC), &how);
}

void pc_rpc_channel_close(struct pc_rpc_channel *channel)
{
    struct pc_error err;
    if (channel == NULL)
        return;
    pc_error_set(&err, PC_ERR_UNREACHABLE, GRPC_STATUS_CANCELLED, "the connection is being closed");
    while (channel->calls != NULL) {
        struct client_call *call = channel->calls;
        grpc_call_cancel(call->call, NULL);
        call->pending++; /* it lives through its answer */
        tell(call, PC_ERR_UNREACHABLE, NULL, &err);
        call->pending--;
        release(call);
    }
    grpc_channel_destroy(channel->channel);
    free(channel);
}
