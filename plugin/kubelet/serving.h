/*
 * The socket that the kubelet calls us at: <directory>/<prefix>-<pid>-<n>.sock, n counted up at each start, because a
 * server that ends late may remove the path of the next (facts e). It is held by <directory>/<prefix>.lock.
 *
 * Thread rules: the loop's thread only.
 */
#ifndef PC_PLUGIN_KUBELET_SERVING_H
#define PC_PLUGIN_KUBELET_SERVING_H

#include "alloc/base/error.h"
#include "plugin/rpc/rpc.h"

struct pc_serving;

/* methods and arg are the server's, and outlive it. Errors: PC_ERR_INVALID (path too long), PC_ERR_HOST_MEMORY. */
enum pc_status pc_serving_create(struct pc_rpc *rpc, const char *directory, const char *prefix,
                                 const struct pc_rpc_method *methods, size_t count, void *arg, struct pc_serving **out,
                                 struct pc_error *err);
/*
 * Sees to it that the lock is held and the socket is there; does nothing where both are. Where the socket is gone (the
 * kubelet deletes every socket in its directory when it starts) a server is started anew and the old one is stopped:
 * `gone` runs for its calls. Errors: PC_ERR_NOT_FOUND (no directory), PC_ERR_BUSY (another instance, with its pid),
 * PC_ERR_IO.
 */
enum pc_status pc_serving_renew(struct pc_serving *serving, struct pc_error *err);
/* The socket's name in the directory, after a renew that was PC_OK. */
const char *pc_serving_endpoint(const struct pc_serving *serving);
/* Stops the server and gives the lock up. NULL is allowed. */
void pc_serving_free(struct pc_serving *serving);

#endif
