/* One call that a client made to a server of ours. */
#include <stdlib.h>
#include <string.h>

#include "alloc/base/log.h"
#include "plugin/rpc/server.h"

enum { CODE_INVALID_ARGUMENT = 3, CODE_UNIMPLEMENTED = 12 };

/*
 * Freed when it is over for its owner (answered, gone, or never handled) and every tag has come back. Until core has
 * given it (`call` is NULL) it is the one that the server expects.
 */
struct pc_rpc_call {
    struct pc_rpc *rpc;
    struct pc_rpc_server *server; /* NULL: the server was stopped */
    struct pc_rpc_call *next, *prev;
    const struct pc_rpc_method *method;
    grpc_call *call;
    grpc_call_details details;
    grpc_metadata_array metadata;
    grpc_byte_buffer *request, *sending, *waiting;
    int cancelled;
    struct pc_rpc_tag on_new, on_request, on_close, on_send, on_final;
    unsigned pending;
    bool handled;  /* the handler was called */
    bool over;     /* the owner has answered, or heard that the client is gone */
    bool closed;   /* core: the client's end */
    bool greeted;  /* initial metadata are sent */
    int fail_code; /* a failure that waits for the send under way; 0: none */
    grpc_slice fail_text;
    void *context;
};

/* ---- life ---- */

static void join(struct pc_rpc_call *call)
{
    call->next = call->server->calls;
    if (call->next != NULL)
        call->next->prev = call;
    call->server->calls = call;
}

static void leave(struct pc_rpc_call *call)
{
    if (call->server == NULL)
        return;
    if (call->prev != NULL)
        call->prev->next = call->next;
    else if (call->server->calls == call)
        call->server->calls = call->next;
    if (call->next != NULL)
        call->next->prev = call->prev;
    call->next = call->prev = NULL;
    call->server = NULL;
}

static void release(struct pc_rpc_call *call)
{
    if (call->pending > 0 || !call->over)
        return;
    leave(call);
    if (call->call != NULL)
        grpc_call_unref(call->call);
    grpc_call_details_destroy(&call->details);
    grpc_metadata_array_destroy(&call->metadata);
    if (call->request != NULL)
        grpc_byte_buffer_destroy(call->request);
    if (call->sending != NULL)
        grpc_byte_buffer_destroy(call->sending);
    if (call->waiting != NULL)
        grpc_byte_buffer_destroy(call->waiting);
    grpc_slice_unref(call->fail_text);
    free(call);
}

static bool start(struct pc_rpc_call *call, const grpc_op *ops, size_t count, struct pc_rpc_tag *tag,
                  void (*done)(void *owner, bool ok))
{
    if (!pc_rpc_batch(call->rpc, call->call, ops, count, tag, done, call))
        return false;
    call->pending++;
    return true;
}

/* ---- sending ---- */

static void on_final(void *owner, bool ok)
{
    struct pc_rpc_call *call = owner;
    (void)ok;
    call->pending--;
    release(call);
}

static size_t greet(struct pc_rpc_call *call, grpc_op *op)
{
    if (call->greeted)
        return 0;
    call->greeted = true;
    op->op = GRPC_OP_SEND_INITIAL_METADATA;
    return 1;
}

/* Ends the call for good, with a message before the status where there is one. */
static void finish(struct pc_rpc_call *call, grpc_byte_buffer *message, int code, grpc_slice *text)
{
    grpc_op ops[3] = {{.op = GRPC_OP_SEND_INITIAL_METADATA}};
    size_t n = greet(call, &ops[0]);
    if (message != NULL) {
        ops[n].op = GRPC_OP_SEND_MESSAGE;
        ops[n++].data.send_message.send_message = message;
    }
    ops[n].op = GRPC_OP_SEND_STATUS_FROM_SERVER;
    ops[n].data.send_status_from_server.status = (grpc_status_code)code;
    ops[n++].data.send_status_from_server.status_details = text;
    call->over = true;
    start(call, ops, n, &call->on_final, on_final);
    release(call);
}

static void send_waiting(struct pc_rpc_call *call);

static void on_send(void *owner, bool ok)
{
    struct pc_rpc_call *call = owner;
    (void)ok; /* a failed send means that the client is gone: on_close says so */
    call->pending--;
    grpc_byte_buffer_destroy(call->sending);
    call->sending = NULL;
    if (call->fail_code != 0)
        finish(call, NULL, call->fail_code, &call->fail_text);
    else if (!call->over)
        send_waiting(call);
    else
        release(call);
}

static void send_waiting(struct pc_rpc_call *call)
{
    grpc_op ops[2] = {{.op = GRPC_OP_SEND_INITIAL_METADATA}};
    if (call->waiting == NULL)
        return;
    size_t n = greet(call, &ops[0]);
    call->sending = call->waiting;
    call->waiting = NULL;
    ops[n].op = GRPC_OP_SEND_MESSAGE;
    ops[n++].data.send_message.send_message = call->sending;
    if (start(call, ops, n, &call->on_send, on_send))
        return;
    grpc_byte_buffer_destroy(call->sending);
    call->sending = NULL;
}

void pc_rpc_reply(struct pc_rpc_call *call, const ProtobufCMessage *reply)
{
    grpc_byte_buffer *message = pc_rpc_pack(reply);
    call->sending = message; /* freed with the call */
    finish(call, message, GRPC_STATUS_OK, NULL);
}

void pc_rpc_fail(struct pc_rpc_call *call, int code, const char *text)
{
    grpc_slice_unref(call->fail_text);
    call->fail_text = grpc_slice_from_copied_string(text);
    if (call->sending == NULL) {
        finish(call, NULL, code, &call->fail_text);
        return;
    }
    call->fail_code = code; /* behind the message that is under way */
    call->over = true;
}

void pc_rpc_stream_send(struct pc_rpc_call *call, const ProtobufCMessage *message)
{
    if (call->waiting != NULL)
        grpc_byte_buffer_destroy(call->waiting);
    call->waiting = pc_rpc_pack(message);
    if (call->sending == NULL)
        send_waiting(call);
}

/* ---- receiving ---- */

static void tell_gone(struct pc_rpc_call *call, void *arg)
{
    if (call->over)
        return;
    call->over = true;
    if (call->handled && call->method->gone != NULL)
        call->method->gone(call, arg);
}

static void on_close(void *owner, bool ok)
{
    struct pc_rpc_call *call = owner;
    (void)ok;
    call->pending--;
    call->closed = true;
    if (call->server != NULL)
        tell_gone(call, call->server->arg);
    release(call);
}

static void on_request(void *owner, bool ok)
{
    struct pc_rpc_call *call = owner;
    call->pending--;
    if (!ok || call->request == NULL || call->closed || call->server == NULL || call->over) {
        if (call->closed || call->server == NULL)
            call->over = true;
        release(call); /* else on_close ends it */
        return;
    }
    ProtobufCMessage *request = pc_rpc_unpack(call->request, call->method->request);
    if (request == NULL) {
        pc_rpc_fail(call, CODE_INVALID_ARGUMENT, "the request is no such message, or has text that is not UTF-8");
        return;
    }
    call->handled = true;
    call->pending++; /* the handler may answer, and so end the call, before it returns */
    call->method->handler(call, request, call->server->arg);
    protobuf_c_message_free_unpacked(request, NULL);
    call->pending--;
    release(call);
}

static const struct pc_rpc_method *find_method(const struct pc_rpc_server *server, const grpc_slice *path)
{
    for (size_t i = 0; i < server->count; i++)
        if (grpc_slice_str_cmp(*path, server->methods[i].path) == 0)
            return &server->methods[i];
    return NULL;
}

static void begin(struct pc_rpc_call *call)
{
    grpc_op close_op = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER}, message_op = {.op = GRPC_OP_RECV_MESSAGE};
    close_op.data.recv_close_on_server.cancelled = &call->cancelled;
    message_op.data.recv_message.recv_message = &call->request;
    call->method = find_method(call->server, &call->details.method);
    start(call, &close_op, 1, &call->on_close, on_close); /* else a client's leaving is never seen */
    if (call->method == NULL)
        pc_rpc_fail(call, CODE_UNIMPLEMENTED, "there is no such method here");
    else
        start(call, &message_op, 1, &call->on_request, on_request);
}

static void on_new(void *owner, bool ok)
{
    struct pc_rpc_call *call = owner;
    struct pc_rpc_server *server = call->server;
    call->pending--;
    if (!ok || server == NULL) { /* the server stops */
        if (ok)
            grpc_call_cancel(call->call, NULL);
        call->over = true;
        release(call);
        return;
    }
    pc_rpc_call_expect(server);
    begin(call);
}

void pc_rpc_call_expect(struct pc_rpc_server *server)
{
    struct pc_rpc_call *call = calloc(1, sizeof *call);
    if (call == NULL) {
        pc_log_error("rpc", "no host memory: no more calls are taken at %s", server->path);
        return;
    }
    call->rpc = server->rpc;
    call->server = server;
    call->fail_text = grpc_empty_slice();
    grpc_call_details_init(&call->details);
    grpc_metadata_array_init(&call->metadata);
    join(call);
    call->pending++;
    grpc_call_error error = grpc_server_request_call(server->server, &call->call, &call->details, &call->metadata,
                                                     pc_rpc_queue(server->rpc), pc_rpc_queue(server->rpc),
                                                     pc_rpc_tag(server->rpc, &call->on_new, on_new, call));
    if (error == GRPC_CALL_OK)
        return;
    pc_rpc_untag(server->rpc);
    call->pending--;
    call->over = true;
    release(call);
}

void pc_rpc_call_abandon(struct pc_rpc_call *call)
{
    void *arg = call->server->arg;
    leave(call);
    if (call->call != NULL)
        grpc_call_cancel(call->call, NULL);
    tell_gone(call, arg);
    release(call);
}

void pc_rpc_call_set_context(struct pc_rpc_call *call, void *context)
{
    call->context = context;
}

void *pc_rpc_call_context(const struct pc_rpc_call *call)
{
    return call->context;
}

uint64_t pc_rpc_call_deadline(const struct pc_rpc_call *call)
{
    gpr_timespec infinite = gpr_inf_future(call->details.deadline.clock_type);
    if (gpr_time_cmp(call->details.deadline, infinite) >= 0)
        return UINT64_MAX;
    gpr_timespec left = gpr_time_sub(call->details.deadline, gpr_now(call->details.deadline.clock_type));
    int64_t ns = left.tv_sec * 1000000000 + left.tv_nsec;
    return pc_loop_now_ns() + (ns > 0 ? (uint64_t)ns : 0);
}
