#include "plugin/node/cap.h"

#include <stdio.h>
#include <string.h>

#include "alloc/base/bytes.h"

static const char *find(const struct pc_pod *pod, const char *key)
{
    for (size_t i = 0; pod != NULL && i < pod->annotations; i++)
        if (strcmp(pod->annotation[i].key, key) == 0)
            return pod->annotation[i].value;
    return NULL;
}

static void complain(struct pc_cap_answer *out, const char *key, const char *value, const char *why)
{
    char cap[PC_BYTES_TEXT];
    snprintf(out->complaint, sizeof out->complaint, "annotation %.80s: \"%.40s\" %.110s; the cap stays %s", key, value,
             why, pc_bytes_format(out->cap, cap));
}

/* Fills out->cap from a value that is meant for this container. */
static void follow(const char *key, const char *value, const struct pc_cap_question *q, struct pc_cap_answer *out)
{
    struct pc_error err = {.text = ""};
    char text[PC_BYTES_TEXT], why[128];
    uint64_t bytes;
    uint64_t least = q->least > q->unit_bytes ? q->least : q->unit_bytes;
    out->annotated = true;
    if (pc_bytes_parse("it", value, &bytes, &err) != PC_OK) {
        complain(out, key, value, "is no amount of whole bytes; write for example 4Gi");
        return;
    }
    if (bytes < least && least <= q->granted) {
        snprintf(why, sizeof why, "is less than a process needs, %s (one unit, one CUDA context)",
                 pc_bytes_format(least, text));
        complain(out, key, value, why);
        return;
    }
    if (bytes > q->granted) {
        complain(out, key, value, "is more than the container's limit; a running pod's cap can only be lowered");
        return;
    }
    /* Down to whole granules: what the driver's pool can hold. */
    out->cap = bytes - bytes % PC_POOL_GRANULE;
}

void pc_cap_decide(const struct pc_pod *pod, const struct pc_cap_question *q, struct pc_cap_answer *out)
{
    char key[sizeof PC_ANNOTATION_MEMORY + 64];
    const char *value = NULL;
    *out = (struct pc_cap_answer){.cap = q->granted};
    snprintf(key, sizeof key, PC_ANNOTATION_MEMORY ".%s", q->container);
    if (q->container[0] != '\0')
        value = find(pod, key);
    if (value != NULL) {
        follow(key, value, q, out);
        return;
    }
    value = find(pod, PC_ANNOTATION_MEMORY);
    if (value == NULL || !q->listed)
        return;
    if (!q->alone) {
        out->annotated = true;
        complain(out, PC_ANNOTATION_MEMORY, value,
                 "names no container, and several have units; use poolcap.dev/memory.<name>");
        return;
    }
    follow(PC_ANNOTATION_MEMORY, value, q, out);
}
