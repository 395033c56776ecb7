/*
 * protobuf-c messages over SOCK_SEQPACKET, with file descriptors. All that the two sides share besides alloc/base.
 *
 * Unpacking uses an arena that the caller owns: a hostile packet can exhaust the arena, never the process. What was
 * unpacked lives in the arena and is gone when the arena is used again; nothing is freed piece by piece.
 *
 * Thread rules: a socket and an arena serve one thread at a time.
 */
#ifndef PC_PROTO_WIRE_H
#define PC_PROTO_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/base/error.h"
#include "proto/admin.pb-c.h"
#include "proto/poolcap.pb-c.h"

enum {
    PC_WIRE_PACKET_MAX = 64 * 1024,
    PC_WIRE_FDS_MAX = 4,
    PC_WIRE_VERSION_MIN = 1, /* protocol versions this build speaks */
    PC_WIRE_VERSION_MAX = 1,
    PC_WIRE_FREE_MAX = 512, /* ids in one Free, blocks and generations together */
};

struct pc_arena {
    size_t used;
    _Alignas(16) char memory[96 * 1024];
};

/*
 * Sends one message as one packet, with nfds descriptors, which stay the caller's. Does not block when the socket is
 * non-blocking: PC_ERR_BUSY when the send buffer is full.
 * Errors: PC_ERR_INVALID (message over PC_WIRE_PACKET_MAX), PC_ERR_UNREACHABLE (peer gone), PC_ERR_IO, PC_ERR_BUSY.
 */
enum pc_status pc_wire_send(int fd, const ProtobufCMessage *message, const int *fds, unsigned nfds,
                            struct pc_error *err);

/*
 * Receives one packet and unpacks it as type into the arena (which it resets first). *out is NULL at end-of-file.
 * fds: where received descriptors go (O_CLOEXEC, the caller's from then on), room for PC_WIRE_FDS_MAX; NULL: the packet
 * is read without a control buffer, so the kernel drops whatever the peer attached.
 * Errors: PC_ERR_BUSY (non-blocking and nothing there), PC_ERR_PROTOCOL (too long, not such a message, more
 * descriptors than allowed; no descriptor stays open), PC_ERR_UNREACHABLE (connection reset), PC_ERR_IO.
 */
enum pc_status pc_wire_receive(int fd, const ProtobufCMessageDescriptor *type, struct pc_arena *arena,
                               ProtobufCMessage **out, int *fds, unsigned *nfds, struct pc_error *err);

/* Fills a sockaddr for path. PC_ERR_INVALID where it is longer than 107 bytes; the text says by how much. */
struct sockaddr_un;
enum pc_status pc_wire_address(const char *path, struct sockaddr_un *out, struct pc_error *err);

/* Connects a blocking SOCK_SEQPACKET (O_CLOEXEC) to path. Errors: PC_ERR_INVALID, PC_ERR_UNREACHABLE. */
enum pc_status pc_wire_connect(const char *path, int *out, struct pc_error *err);

/*
 * Listens at path, non-blocking, replacing a stale socket there (never another kind of file); mode as chmod.
 * Errors: PC_ERR_INVALID, PC_ERR_EXISTS (something that is no socket, or a live server), PC_ERR_IO.
 */
enum pc_status pc_wire_listen(const char *path, unsigned mode, int *out, struct pc_error *err);

#endif
