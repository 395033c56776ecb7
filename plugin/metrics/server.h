/*
 * /metrics, /healthz and /readyz, by libmicrohttpd on our loop. GET and HEAD alone; at most 32 connections, each ended
 * after 10 s of silence.
 *
 * Thread rules: the loop's thread only; the answers are made on it.
 */
#ifndef PC_PLUGIN_METRICS_SERVER_H
#define PC_PLUGIN_METRICS_SERVER_H

#include <stdbool.h>
#include <stddef.h>

#include "alloc/base/error.h"
#include "alloc/base/loop.h"

struct pc_metrics_server;

struct pc_metrics_ops {
    char *(*metrics)(void *arg, size_t *length); /* malloc'd text; NULL: no host memory */
    bool (*ready)(void *arg, const char **why);  /* why: constant text where it is not */
};

/* address: "HOST:PORT" with an IPv4 address or [IPv6], or ":PORT" for all. Errors: PC_ERR_INVALID (the address; the
 * text says how to write it), PC_ERR_IO (cannot listen there). */
enum pc_status pc_metrics_start(struct pc_loop *loop, const char *address, const struct pc_metrics_ops *ops, void *arg,
                                struct pc_metrics_server **out, struct pc_error *err);
void pc_metrics_stop(struct pc_metrics_server *server); /* NULL is allowed */

#endif
