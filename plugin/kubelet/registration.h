/*
 * The registration of one resource at <directory>/kubelet.sock: made at once when that socket is made anew and when the
 * stream of the last registration ends, tried again with a back-off, and never made twice at a time.
 *
 * Registered means both: the kubelet has said yes, and has a stream of ours open. The first stream that opens after
 * Register was sent is that registration's. A stream of an earlier one may live on; its end says nothing, and it is not
 * closed, since a kubelet that sees it end disconnects whoever is registered by then (facts, "overlap trap").
 *
 * Thread rules: the loop's thread only.
 */
#ifndef PC_PLUGIN_KUBELET_REGISTRATION_H
#define PC_PLUGIN_KUBELET_REGISTRATION_H

#include <stdbool.h>
#include <stdint.h>

#include "alloc/base/error.h"
#include "alloc/base/loop.h"
#include "plugin/rpc/rpc.h"

struct pc_registration;

struct pc_registration_ops {
    /* Before each: serves; *endpoint is the socket's file name. The old streams may end inside of it. */
    enum pc_status (*serve)(void *arg, const char **endpoint, struct pc_error *err);
    void (*changed)(void *arg, bool registered);
};

struct pc_registration_stats {
    uint64_t registrations, failures;
    bool registered;
};

/* Nothing happens before pc_registration_begin. Texts are copied. Errors: PC_ERR_HOST_MEMORY. */
enum pc_status pc_registration_create(struct pc_loop *loop, struct pc_rpc *rpc, const char *directory,
                                      const char *resource, const struct pc_registration_ops *ops, void *arg,
                                      struct pc_registration **out, struct pc_error *err);
/* No call comes after it. NULL is allowed. */
void pc_registration_free(struct pc_registration *registration);

void pc_registration_begin(struct pc_registration *registration);
/* kubelet.sock may have changed: if it has, it is registered at. */
void pc_registration_look(struct pc_registration *registration);
/* The kubelet opened a stream, one ended; stream is only a name for it. */
void pc_registration_stream_began(struct pc_registration *registration, const void *stream);
void pc_registration_stream_ended(struct pc_registration *registration, const void *stream);
void pc_registration_read(const struct pc_registration *registration, struct pc_registration_stats *out);

#endif
