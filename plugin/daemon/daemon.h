/*
 * The plugin's end of poolcapd's admin socket: requests in a queue, one under way at a time, answers by callback.
 * Connects by itself, again and again (100 ms, doubling to 1 s); what was under way when poolcapd went is answered with
 * PC_ERR_UNREACHABLE and may or may not have happened, so callers say again what they want and look at the list.
 *
 * Thread rules: the loop's thread only; every callback runs on it, none from inside pc_daemon_ask.
 */
#ifndef PC_PLUGIN_DAEMON_H
#define PC_PLUGIN_DAEMON_H

#include <stdbool.h>
#include <stdint.h>

#include "alloc/base/error.h"
#include "alloc/base/loop.h"
#include "proto/admin.pb-c.h"

struct pc_daemon;

/* The connection is open, or was lost. */
typedef void (*pc_daemon_up)(void *arg, bool up);

/* Errors: PC_ERR_INVALID (path too long), PC_ERR_HOST_MEMORY. */
enum pc_status pc_daemon_create(struct pc_loop *loop, const char *socket_path, pc_daemon_up up, void *arg,
                                struct pc_daemon **out, struct pc_error *err);
void pc_daemon_free(struct pc_daemon *daemon); /* requests under way end without a call; NULL is allowed */
bool pc_daemon_is_up(const struct pc_daemon *daemon);

/*
 * Called once, with poolcapd's own status and text, or PC_ERR_UNREACHABLE (away, also when it is not there at the time
 * of asking, or no answer in 10 s). reply is NULL unless status is PC_OK, and valid until this returns.
 */
typedef void (*pc_daemon_answer)(void *arg, enum pc_status status, const Poolcap__AdminReply *reply,
                                 const struct pc_error *err);
/* The request is copied before this returns. */
void pc_daemon_ask(struct pc_daemon *daemon, const Poolcap__AdminRequest *request, pc_daemon_answer answer, void *arg);

/* A message that lives on its own (protobuf_c_message_free_unpacked ends it); NULL: no host memory. */
ProtobufCMessage *pc_daemon_copy(const ProtobufCMessage *message);

#endif
