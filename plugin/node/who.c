/*
 * Whose is a grant? Allocate does not say (facts), so it is found out afterwards:
 *  - the kubelet's checkpoint names, for each container, the answer that Allocate once gave; the mount in it is the
 *    grant's own directory. Exact, but not an interface that the kubelet promises: a hint where it can be read.
 *  - pod-resources names each active pod's containers and their ids. No UID in it: that is the pod watch's. Plain init
 *    containers are never in it, but their ids are found again in their pod's later containers; where ONLY an init
 *    container has units, nothing is, and the checkpoint alone knows.
 */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "alloc/base/log.h"
#include "plugin/node/state.h"

/* ---- the checkpoint, read again where it changed ---- */

static void forget(struct pc_node *node)
{
    pc_claims_free(node->kept_checkpoint);
    node->kept_checkpoint = NULL;
    node->checkpoint_stamp = (struct pc_file_stamp){.inode = 0};
}

const struct pc_claims *pc_node_checkpoint(struct pc_node *node)
{
    struct stat st;
    struct pc_error err = {.text = ""};
    size_t skipped = 0;
    if (stat(node->checkpoint, &st) < 0) {
        forget(node);
        return NULL;
    }
    struct pc_file_stamp stamp = {.inode = st.st_ino,
                                  .size = (uint64_t)st.st_size,
                                  .seconds = (uint64_t)st.st_mtim.tv_sec,
                                  .nanoseconds = (uint64_t)st.st_mtim.tv_nsec};
    if (node->kept_checkpoint != NULL && memcmp(&stamp, &node->checkpoint_stamp, sizeof stamp) == 0)
        return node->kept_checkpoint;
    forget(node);
    if (pc_checkpoint_read(node->checkpoint, node->config->resource_name, &node->kept_checkpoint, &skipped, &err) !=
        PC_OK) {
        node->stats.kubelet_errors++;
        pc_log_debug("node", "the kubelet's checkpoint says nothing: %s", err.text);
        return NULL;
    }
    node->checkpoint_stamp = stamp;
    return node->kept_checkpoint;
}

static bool mounts(const struct pc_claim *claim, const char *directory)
{
    for (size_t i = 0; i < claim->mounts; i++)
        if (strcmp(claim->mount_host_paths[i], directory) == 0)
            return true;
    return false;
}

/* ---- claims and units ---- */

static bool has_id(const struct pc_claim *claim, const char *id)
{
    size_t low = 0, high = claim->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        int order = strcmp(claim->ids[middle], id);
        if (order == 0)
            return true;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return false;
}

/* How many of the grant's units the claim has. */
static size_t common(const struct pc_node *node, const struct pc_node_grant *grant, const struct pc_claim *claim)
{
    char id[PC_UNIT_ID_MAX];
    size_t count = 0;
    for (size_t i = 0; i < grant->record.units.count; i++)
        count += has_id(claim, pc_unit_id(&node->units, grant->record.units.unit[i], id));
    return count;
}

static bool equal(const struct pc_node *node, const struct pc_node_grant *grant, const struct pc_claim *claim)
{
    return claim->count == grant->record.units.count && common(node, grant, claim) == claim->count;
}

static void copy(char *out, size_t size, const char *from)
{
    snprintf(out, size, "%s", from);
}

/* The name that the cgroup says: a static pod's is its config hash, not the UID of its mirror. */
static const char *kernel_name(const struct pc_pod *pod)
{
    return pod->config_hash[0] != '\0' ? pod->config_hash : pod->uid;
}

/* ---- the two sources ---- */

enum verdict { SILENT, OURS, ANOTHERS };

static enum verdict ask_checkpoint(struct pc_node *node, const struct pc_node_grant *grant, struct pc_who *out)
{
    char directory[PC_NODE_PATH_MAX + PC_RECORD_NAME_MAX];
    const struct pc_claims *claims = pc_node_checkpoint(node);
    enum verdict verdict = SILENT;
    snprintf(directory, sizeof directory, "%s/%s", node->grants, grant->record.name);
    for (size_t i = 0; claims != NULL && i < claims->count; i++) {
        const struct pc_claim *claim = &claims->claim[i];
        if (mounts(claim, directory)) {
            copy(out->pod_uid, sizeof out->pod_uid, claim->pod_uid);
            copy(out->container, sizeof out->container, claim->container);
            return OURS;
        }
        if (claim->mounts > 0 && equal(node, grant, claim))
            verdict =
                ANOTHERS; /* these units, but by another grant: this one's pod may have failed before it started */
    }
    return verdict;
}

/* The list's claim on these units: the equal one where there is one, else any that meets them. */
static const struct pc_claim *find_claim(const struct pc_node *node, const struct pc_node_grant *grant, bool *exact)
{
    const struct pc_claim *met = NULL;
    const struct pc_pod_list *list = node->pod_list;
    *exact = false;
    if (list == NULL || node->pod_list_asked_ns < grant->born_ns)
        return NULL; /* older than the grant: it would name the units' last holder */
    for (size_t i = 0; i < list->claims.count; i++) {
        const struct pc_claim *claim = &list->claims.claim[i];
        size_t units = common(node, grant, claim);
        if (units == 0)
            continue;
        met = claim;
        *exact = units == claim->count && units == grant->record.units.count;
        if (*exact)
            return claim;
    }
    return met;
}

/* Another grant of the same units makes it uncertain which of them the container has. */
static bool twin(const struct pc_node *node, const struct pc_node_grant *grant)
{
    for (const struct pc_node_grant *other = node->grant; other != NULL; other = other->next)
        if (other != grant && pc_unit_set_equal(&other->record.units, &grant->record.units))
            return true;
    return false;
}

static bool ask_list(struct pc_node *node, const struct pc_node_grant *grant, struct pc_who *out)
{
    bool exact;
    const struct pc_claim *claim = find_claim(node, grant, &exact);
    if (claim == NULL)
        return false;
    copy(out->pod_namespace, sizeof out->pod_namespace, claim->pod_namespace);
    copy(out->pod_name, sizeof out->pod_name, claim->pod_name);
    if (exact && !twin(node, grant) && out->container[0] == '\0')
        copy(out->container, sizeof out->container, claim->container);
    const struct pc_pod *pod =
        node->pods != NULL ? pc_pod_watch_find(node->pods, claim->pod_namespace, claim->pod_name) : NULL;
    if (pod != NULL && out->pod_uid[0] == '\0')
        copy(out->pod_uid, sizeof out->pod_uid, kernel_name(pod));
    return true;
}

bool pc_node_who(struct pc_node *node, const struct pc_node_grant *grant, struct pc_who *out)
{
    struct pc_who who = {.pod_uid = ""};
    enum verdict verdict = ask_checkpoint(node, grant, &who);
    if (verdict == ANOTHERS)
        return false;
    bool listed = ask_list(node, grant, &who);
    if (verdict != OURS && !listed)
        return false;
    const struct pc_pod *pod =
        node->pods != NULL && who.pod_uid[0] != '\0' ? pc_pod_watch_find_uid(node->pods, who.pod_uid) : NULL;
    if (pod != NULL) {
        copy(who.pod_namespace, sizeof who.pod_namespace, pod->pod_namespace);
        copy(who.pod_name, sizeof who.pod_name, pod->name);
    }
    *out = who;
    return true;
}

const struct pc_pod *pc_node_pod_of(const struct pc_node *node, const struct pc_node_grant *grant)
{
    if (node->pods == NULL || grant->record.pod_uid[0] == '\0')
        return NULL;
    return pc_pod_watch_find_uid(node->pods, grant->record.pod_uid);
}

/* ---- what a list says of known grants ---- */

static bool pod_listed(const struct pc_pod_list *list, const struct pc_record *record)
{
    for (size_t i = 0; i < list->pods; i++)
        if (strcmp(list->pod[i].pod_namespace, record->pod_namespace) == 0 &&
            strcmp(list->pod[i].pod_name, record->pod_name) == 0)
            return true;
    return false;
}

static void look_at(struct pc_node *node, struct pc_node_grant *grant)
{
    const struct pc_pod_list *list = node->pod_list;
    unsigned containers = 0;
    bool listed = false;
    for (size_t i = 0; i < list->claims.count; i++) {
        const struct pc_claim *claim = &list->claims.claim[i];
        if (strcmp(claim->pod_namespace, grant->record.pod_namespace) != 0 ||
            strcmp(claim->pod_name, grant->record.pod_name) != 0)
            continue;
        containers++;
        listed = listed || strcmp(claim->container, grant->record.container) == 0;
    }
    grant->missing = pod_listed(list, &grant->record) ? 0 : grant->missing + 1;
    grant->listed = listed;
    grant->alone = listed && containers == 1;
}

void pc_node_look_at_list(struct pc_node *node)
{
    for (struct pc_node_grant *grant = node->grant; grant != NULL; grant = grant->next)
        if (grant->record.pod_name[0] != '\0' && node->pod_list_asked_ns > grant->born_ns)
            look_at(node, grant);
}

enum { LISTS_WITHOUT = 3, LISTS_BLIND = 10 };
#define SETTLED_NS (30ull * 1000000000u) /* after a registration the kubelet may still be finding its pods */

/*
 * A pod is given up when it has left the kubelet's list and the API server; one that is still there but inactive (it
 * has completed) when several lists in a row are without it. Without a watch only the lists speak, and more of them
 * have to.
 */
bool pc_node_given_up(const struct pc_node *node, const struct pc_node_grant *grant)
{
    if (!node->pod_list_good || grant->record.pod_name[0] == '\0')
        return false;
    bool settled = node->registered && pc_loop_now_ns() - node->registered_ns > SETTLED_NS;
    if (node->pods == NULL || !pc_pod_watch_healthy(node->pods) || grant->record.pod_uid[0] == '\0')
        return settled && grant->missing >= LISTS_BLIND;
    if (pc_node_pod_of(node, grant) != NULL)
        return settled && grant->missing >= LISTS_WITHOUT;
    if (grant->missing > 0)
        return true;
    /* Its name is listed, but the API server does not know its UID: another pod has the name now, or none yet. */
    return pc_pod_watch_find(node->pods, grant->record.pod_namespace, grant->record.pod_name) != NULL;
}
