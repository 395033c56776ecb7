/*
 * What a pod's annotations mean for one container's grant (docs/reference.md):
 *   poolcap.dev/memory.<container>   that container's cap
 *   poolcap.dev/memory               the cap of the only container of the pod that has units; never an init container's
 * It lowers the cap, never raises it. What it cannot mean leaves the granted cap, with a text for an Event.
 */
#ifndef PC_PLUGIN_NODE_CAP_H
#define PC_PLUGIN_NODE_CAP_H

#include <stdbool.h>
#include <stdint.h>

#include "plugin/api/api.h"

#define PC_ANNOTATION_MEMORY "poolcap.dev/memory"

struct pc_cap_question {
    const char *container; /* "": not known, so only the pod's own annotation can be meant */
    bool listed;           /* the kubelet names it among the pod's containers: it is no plain init container */
    bool alone;            /* no other listed container of the pod has units */
    uint64_t granted;      /* bytes of its units */
    uint64_t unit_bytes;
    uint64_t least; /* bytes that one process needs at all: a context and a granule */
};

struct pc_cap_answer {
    uint64_t cap;        /* bytes, a whole number of granules of 32 MiB, at most granted */
    bool annotated;      /* an annotation of ours is meant for this container */
    char complaint[320]; /* why an annotation was not followed, quoting it; "": it was */
};

/* pod may be NULL (not known yet): then the cap is what was granted. */
void pc_cap_decide(const struct pc_pod *pod, const struct pc_cap_question *question, struct pc_cap_answer *out);

#endif
