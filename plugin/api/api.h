/*
 * The API server, as little of it as is needed: this node's pods by metadata (list and watch), patches of pods/status
 * and nodes/status, Events. libcurl's multi interface on our loop; protobuf both ways where the API has it.
 *
 * Thread rules: the loop's thread only. Every callback runs on it. Nothing here blocks.
 */
#ifndef PC_PLUGIN_API_H
#define PC_PLUGIN_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/base/error.h"
#include "alloc/base/loop.h"

struct pc_api;

/* ---- where it is and who we are ---- */

struct pc_api_config {
    /* A kubeconfig file (current-context: server, certificate-authority[-data], client-certificate[-data],
     * client-key[-data], token, tokenFile), for use outside a cluster. NULL or "": in the cluster, by
     * KUBERNETES_SERVICE_HOST and _PORT and the directory below. */
    const char *kubeconfig;
    const char *service_account; /* "/var/run/secrets/kubernetes.io/serviceaccount": token, ca.crt; NULL: that */
    const char *user_agent;      /* "poolcap-plugin/0.1.0" */
};
/* Reads them and sets curl up; connects nowhere yet. The token file is read again every minute and at a 401. The CA is
 * always checked. Errors: PC_ERR_INVALID (the file and line, what is missing), PC_ERR_IO, PC_ERR_HOST_MEMORY. */
enum pc_status pc_api_create(struct pc_loop *loop, const struct pc_api_config *config, struct pc_api **out,
                             struct pc_error *err);
void pc_api_free(struct pc_api *api); /* requests under way end without a call; NULL is allowed */

/* ---- this node's pods ---- */

struct pc_pod_annotation {
    const char *key, *value;
};
/* A pod's metadata; strings belong to the watch and live until its next change or removal was reported. */
struct pc_pod {
    const char *pod_namespace, *name, *uid;
    const char *config_hash; /* of a static pod's mirror (annotation kubernetes.io/config.hash), else "" */
    bool deleting;           /* metadata.deletionTimestamp is set */
    size_t annotations;
    const struct pc_pod_annotation *annotation;
};

struct pc_pod_watch;
struct pc_pod_watch_ops {
    void (*changed)(void *arg, const struct pc_pod *pod); /* new, or anything of the above changed */
    void (*removed)(void *arg, const struct pc_pod *pod); /* gone; also in a later list, where its end was missed */
    void (*healthy)(void *arg, bool healthy);             /* true: the whole list is known and the watch is open */
};
/*
 * List in pages of 500, then watch from its resourceVersion (bookmarks asked for); resumed where it ended; 410 (as a
 * status or as an event): list again, and what is no longer there is reported as removed. Back-off from 100 ms,
 * doubling to 10 s, with jitter. PartialObjectMetadata in protobuf (facts: 92 KB for what is 521 KB in JSON),
 * fieldSelector spec.nodeName. A frame over 8 MiB, or one that is not what it has to be, ends that watch, with a line
 * in the log.
 */
enum pc_status pc_pod_watch_start(struct pc_api *api, const char *node_name, const struct pc_pod_watch_ops *ops,
                                  void *arg, struct pc_pod_watch **out, struct pc_error *err);
void pc_pod_watch_stop(struct pc_pod_watch *watch); /* NULL is allowed */
bool pc_pod_watch_healthy(const struct pc_pod_watch *watch);
const struct pc_pod *pc_pod_watch_find(const struct pc_pod_watch *watch, const char *pod_namespace, const char *name);
const struct pc_pod *pc_pod_watch_find_uid(const struct pc_pod_watch *watch, const char *uid_or_config_hash);

/* ---- writing ---- */

/* Called once. Errors: PC_ERR_UNREACHABLE, PC_ERR_DENIED (401, 403), PC_ERR_NOT_FOUND (404), PC_ERR_PROTOCOL (the
 * rest); err->code is the HTTP status, err->text quotes the server's message. */
typedef void (*pc_api_answer)(void *arg, enum pc_status status, const struct pc_error *err);

/* Strategic merge patches (JSON text, built by the caller with jansson) of a subresource: conditions are a list, which
 * a plain merge patch would replace whole. Nothing is tried again by itself. At most 64 requests wait at once: the next
 * is PC_ERR_BUSY by way of the answer. */
void pc_api_patch_pod_status(struct pc_api *api, const char *pod_namespace, const char *name, const char *json,
                             pc_api_answer answer, void *arg);
void pc_api_patch_node_status(struct pc_api *api, const char *node, const char *json, pc_api_answer answer, void *arg);

struct pc_api_event {
    const char *pod_namespace, *pod_name, *pod_uid; /* the pod that it is about */
    const char *type;                               /* "Normal" or "Warning" */
    const char *reason;                             /* "MemoryRefused" */
    const char *message;                            /* at most 1024 bytes are kept */
    const char *node;                               /* source.host */
};
/* core/v1 Event, made anew each time (no counting up: the caller says a thing once). At most 10 a minute a pod; more
 * are dropped and counted. */
void pc_api_event(struct pc_api *api, const struct pc_api_event *event);

struct pc_api_stats {
    uint64_t requests, errors, watch_restarts, lists, events_dropped;
};
void pc_api_read(const struct pc_api *api, struct pc_api_stats *out);

#endif
