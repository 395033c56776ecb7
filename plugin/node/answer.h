/* Allocate's answer for one container, under construction. */
#ifndef PC_PLUGIN_NODE_ANSWER_H
#define PC_PLUGIN_NODE_ANSWER_H

#include "plugin/node/state.h"

struct pc_answer;

/*
 * The grant's directory and the shim's mounted, the socket's name in the environment, and the GPUs by the configured
 * strategy. Errors: PC_ERR_HOST_MEMORY, PC_ERR_NOT_FOUND (strategy device-nodes: no such device file).
 */
enum pc_status pc_answer_make(const struct pc_node *node, const struct pc_node_grant *grant, struct pc_answer **out,
                              struct pc_error *err);
V1beta1__ContainerAllocateResponse *pc_answer_message(struct pc_answer *answer);
void pc_answer_free(struct pc_answer *answer); /* NULL is allowed */

#endif
