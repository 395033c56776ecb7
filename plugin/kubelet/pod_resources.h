/*
 * What the kubelet says about who has which device: pod-resources v1 (List, over gRPC) and, as a hint where that is
 * silent, its own checkpoint file. Both are read into one table of claims.
 *
 * Thread rules: the loop's thread only.
 */
#ifndef PC_PLUGIN_KUBELET_POD_RESOURCES_H
#define PC_PLUGIN_KUBELET_POD_RESOURCES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/base/error.h"
#include "plugin/rpc/rpc.h"

/* One container's devices of our resource. Strings belong to the table. */
struct pc_claim {
    const char *pod_namespace, *pod_name; /* from pod-resources; "" from the checkpoint */
    const char *pod_uid;                  /* from the checkpoint; "" from pod-resources */
    const char *container;
    const char *const *ids; /* sorted (strcmp) */
    size_t count;
    /* From the checkpoint: the host path of each mount of the answer that Allocate once gave (its cached
     * ContainerAllocateResponse), in its order; tells which grant this container has. */
    const char *const *mount_host_paths;
    size_t mounts;
};
struct pc_claims {
    struct pc_claim *claim;
    size_t count;
    /* Private: the memory of it all. */
    void *memory;
};
void pc_claims_free(struct pc_claims *claims); /* NULL is allowed */

/* pods: also every active pod without our devices, so that "the kubelet has given the pod up" can be seen. */
struct pc_pod_list {
    struct pc_claims claims;
    struct pc_pod_name {
        const char *pod_namespace, *pod_name;
    } * pod;
    size_t pods;
};

/* Called once; list is the caller's (pc_pod_list_free) and NULL unless status is PC_OK. */
typedef void (*pc_pod_list_answer)(void *arg, enum pc_status status, struct pc_pod_list *list,
                                   const struct pc_error *err);
/* Asks List, with a deadline of 10 s. Several device entries of one container and resource are put together (the
 * kubelet sends one an id). Strings are checked; a container without our resource gives no claim. */
void pc_pod_resources_list(struct pc_rpc_channel *channel, const char *resource, pc_pod_list_answer answer, void *arg);
void pc_pod_list_free(struct pc_pod_list *list); /* NULL is allowed */

/*
 * Reads kubelet_internal_checkpoint (JSON; jansson). Tolerant: unknown keys are skipped, entries that make no sense are
 * left out and counted in *skipped. The checksum must be there and is not verified (the .c says why); a file without
 * the structure of a checkpoint is PC_ERR_PROTOCOL. Errors: PC_ERR_NOT_FOUND, PC_ERR_IO, PC_ERR_PROTOCOL,
 * PC_ERR_HOST_MEMORY.
 */
enum pc_status pc_checkpoint_read(const char *path, const char *resource, struct pc_claims **out, size_t *skipped,
                                  struct pc_error *err);
enum pc_status pc_checkpoint_parse(const char *text, size_t length, const char *resource, struct pc_claims **out,
                                   size_t *skipped, struct pc_error *err);

#endif
