/*
 * The node: this machine's units and grants, and what the kubelet, the API server and poolcapd say about them.
 * It answers Allocate from what it has in memory; everything else is brought about by a turn (turn.c) that compares
 * what should be with what is, and repeats itself until they are the same.
 *
 * Thread rules: the loop's thread only.
 */
#ifndef PC_PLUGIN_NODE_H
#define PC_PLUGIN_NODE_H

#include <stdbool.h>
#include <stdint.h>

#include "alloc/base/error.h"
#include "alloc/base/loop.h"
#include "plugin/api/api.h"
#include "plugin/config.h"
#include "plugin/rpc/rpc.h"

struct pc_node;

/*
 * Reads the records, makes the grants' directories again, connects to poolcapd, and registers with the kubelet when
 * poolcapd has named its GPUs. api is NULL where there is no API server to talk to: caps are then the units, and
 * nothing is shown. Errors: PC_ERR_INVALID (living grants of another unit; a shim directory that tenants could not use
 * or could change), PC_ERR_BUSY (a second instance), PC_ERR_IO, PC_ERR_HOST_MEMORY.
 */
enum pc_status pc_node_start(struct pc_loop *loop, struct pc_rpc *rpc, struct pc_api *api,
                             const struct pc_plugin_config *config, struct pc_node **out, struct pc_error *err);
/* What went wrong later and stopped the loop (a list that is too long, no lock); PC_OK: nothing. */
const struct pc_error *pc_node_failure(const struct pc_node *node);
/* Ends the registration; grants stay as they are. NULL is allowed. */
void pc_node_stop(struct pc_node *node);

/* Ready: registered, and poolcapd answers. *why is set where it is not ready; it is constant. */
bool pc_node_ready(const struct pc_node *node, const char **why);

/* The metrics in Prometheus' text format; the caller frees it. NULL: no host memory. */
char *pc_node_metrics(struct pc_node *node, size_t *length);

#endif
