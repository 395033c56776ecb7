/*
 * What the files of rpc/ share. gRPC core's completions are taken by one thread, which puts them in a list and wakes
 * the loop; the loop calls them. Each batch of operations has a tag; a tag's owner lives until its tags have come back.
 */
#ifndef PC_PLUGIN_RPC_INTERNAL_H
#define PC_PLUGIN_RPC_INTERNAL_H

#include <stdbool.h>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/grpc_posix.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/time.h>
#pragma GCC diagnostic pop

#include "plugin/rpc/rpc.h"

enum { PC_RPC_MESSAGE_MAX = 16 * 1024 * 1024 };

struct pc_rpc_tag {
    struct pc_rpc_tag *next;
    void (*done)(void *owner, bool ok);
    void *owner;
    bool ok;
    unsigned armed; /* the hand-over to gRPC's thread, for the thread sanitizer, which cannot see core's own locks */
};

/* ---- core.c ---- */
grpc_completion_queue *pc_rpc_queue(struct pc_rpc *rpc);
struct pc_loop *pc_rpc_loop(struct pc_rpc *rpc);
/* Readies a tag for one operation and counts it; done is called on the loop's thread. Returns the tag. */
void *pc_rpc_tag(struct pc_rpc *rpc, struct pc_rpc_tag *tag, void (*done)(void *owner, bool ok), void *owner);
/* The operation did not start after all: the tag does not come. */
void pc_rpc_untag(struct pc_rpc *rpc);
/* Starts a batch with a tag; false: core refused it, and no tag comes. */
bool pc_rpc_batch(struct pc_rpc *rpc, grpc_call *call, const grpc_op *ops, size_t count, struct pc_rpc_tag *tag,
                  void (*done)(void *owner, bool ok), void *owner);

/* ---- bytes.c ---- */
/* NULL: no host memory. */
grpc_byte_buffer *pc_rpc_pack(const ProtobufCMessage *message);
/* Unpacks and checks all text in it. NULL: not such a message; free with protobuf_c_message_free_unpacked. */
ProtobufCMessage *pc_rpc_unpack(grpc_byte_buffer *buffer, const ProtobufCMessageDescriptor *type);
/* Whether every string of the message, also in messages within it, is UTF-8 without NUL bytes: protobuf-c itself takes
 * the rest silently, and ends a string at a NUL. Also refuses nesting deeper than any message of ours. */
bool pc_rpc_text_ok(const ProtobufCMessageDescriptor *type, const uint8_t *bytes, size_t length);

#endif
