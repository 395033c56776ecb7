/*
 * gRPC over unix sockets, as much as the kubelet's APIs need: unary methods and server streams, served and called, with
 * protobuf-c messages. The only file that knows grpc.h is rpc.c's folder; everything else is written against this.
 *
 * gRPC core's completions are taken by one thread of ours, which does nothing but post them to the loop: every callback
 * here runs on the loop's thread, and every call here is made on it.
 *
 * Thread rules: the loop's thread only. pc_rpc_create starts core's threads, so signals are blocked before it, and no
 * fork without exec comes after it.
 */
#ifndef PC_PLUGIN_RPC_H
#define PC_PLUGIN_RPC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

#include "alloc/base/error.h"
#include "alloc/base/loop.h"

struct pc_rpc;         /* gRPC core itself, one a process */
struct pc_rpc_server;  /* one socket */
struct pc_rpc_call;    /* one call that a client made to a server of ours */
struct pc_rpc_channel; /* a connection to somebody else's server */

/* Errors: PC_ERR_HOST_MEMORY, PC_ERR_IO (no thread). */
enum pc_status pc_rpc_create(struct pc_loop *loop, struct pc_rpc **out, struct pc_error *err);
/* All servers and channels are gone before. Waits for core's threads. NULL is allowed. */
void pc_rpc_free(struct pc_rpc *rpc);

/* ---- serving ---- */

/*
 * A call came; request is valid until this returns. Answer with pc_rpc_reply or pc_rpc_fail, now or later; a stream
 * with pc_rpc_stream_send any number of times. call stays valid until the answer is given or `gone` was called,
 * whichever comes first.
 */
typedef void (*pc_rpc_handler)(struct pc_rpc_call *call, const ProtobufCMessage *request, void *arg);
/* The client hung up, the deadline passed, or the server is being stopped; also the regular end of a stream. */
typedef void (*pc_rpc_gone)(struct pc_rpc_call *call, void *arg);

struct pc_rpc_method {
    const char *path; /* "/v1beta1.DevicePlugin/Allocate" */
    const ProtobufCMessageDescriptor *request;
    pc_rpc_handler handler;
    pc_rpc_gone gone; /* may be NULL for a method whose handler always answers at once */
};

/*
 * Serves the methods (which outlive the server) at socket_path, at most 107 bytes. A stale socket there is replaced;
 * the caller holds a lock file against a second live instance (core would take the path silently). Requests over 16 MiB
 * are refused by core (GetPreferredAllocation names every free id). Errors: PC_ERR_INVALID (path too long), PC_ERR_IO.
 */
enum pc_status pc_rpc_server_start(struct pc_rpc *rpc, const char *socket_path, const struct pc_rpc_method *methods,
                                   size_t count, void *arg, struct pc_rpc_server **out, struct pc_error *err);
/* Cancels every call (their `gone` runs before this returns), closes and unlinks the socket if it is still its own. */
void pc_rpc_server_stop(struct pc_rpc_server *server);
/* Whether the socket at its path is still the one that it made: the kubelet deletes sockets, and others make theirs. */
bool pc_rpc_server_there(const struct pc_rpc_server *server);

/* Ends a unary call. reply is packed before this returns. */
void pc_rpc_reply(struct pc_rpc_call *call, const ProtobufCMessage *reply);
/* Ends a call, unary or stream, with UNKNOWN or another status code of gRPC (its number) and a text for people. */
void pc_rpc_fail(struct pc_rpc_call *call, int code, const char *text);
/*
 * Sends a message on a stream. One is under way at a time; of those that wait only the newest is kept, since each
 * message of ListAndWatch is the whole list.
 */
void pc_rpc_stream_send(struct pc_rpc_call *call, const ProtobufCMessage *message);
/* For the caller's own use; NULL at first. */
void pc_rpc_call_set_context(struct pc_rpc_call *call, void *context);
void *pc_rpc_call_context(const struct pc_rpc_call *call);
/* ns on pc_loop_now_ns's clock by which the client wants its answer; UINT64_MAX: it set no deadline. */
uint64_t pc_rpc_call_deadline(const struct pc_rpc_call *call);

/* ---- calling ---- */

/* Connects lazily. The authority is "localhost", as the kubelet's own clients say. Errors: PC_ERR_INVALID. */
enum pc_status pc_rpc_channel_open(struct pc_rpc *rpc, const char *socket_path, struct pc_rpc_channel **out,
                                   struct pc_error *err);
/* Calls under way end with PC_ERR_UNREACHABLE before this returns. NULL is allowed. */
void pc_rpc_channel_close(struct pc_rpc_channel *channel);

/*
 * Called once. reply is NULL unless status is PC_OK, and valid until this returns. PC_ERR_UNREACHABLE: no answer (not
 * listening, deadline); PC_ERR_PROTOCOL: an answer that is no such message; PC_ERR_DENIED: the server's own refusal;
 * err->code is gRPC's status code and err->text quotes the server.
 */
typedef void (*pc_rpc_answer)(void *arg, enum pc_status status, const ProtobufCMessage *reply,
                              const struct pc_error *err);

/* One unary call, with a deadline; answers are taken up to 16 MiB. Never fails itself: the answer says so. */
void pc_rpc_call(struct pc_rpc_channel *channel, const char *path, const ProtobufCMessage *request,
                 const ProtobufCMessageDescriptor *reply, uint64_t timeout_ms, pc_rpc_answer answer, void *arg);

/* A server stream: `each` for every message, then `answer` once (reply NULL). For the stand-in kubelet of the tests. */
typedef void (*pc_rpc_each)(void *arg, const ProtobufCMessage *message);
void pc_rpc_call_stream(struct pc_rpc_channel *channel, const char *path, const ProtobufCMessage *request,
                        const ProtobufCMessageDescriptor *reply, pc_rpc_each each, pc_rpc_answer answer, void *arg);

#endif
