/* A grant and poolcapd: made when its pod is known, its cap kept as the annotation says, dropped when nobody uses it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/bytes.h"
#include "alloc/base/log.h"
#include "plugin/node/state.h"

/* A request about one grant, by name: the grant may be gone when the answer comes. */
struct about {
    struct pc_node *node;
    char name[PC_RECORD_NAME_MAX];
    uint64_t cap;
};

/* False where nothing was asked, for want of host memory: the next turn comes to it again. */
static bool ask(struct pc_node *node, const struct pc_node_grant *grant, const Poolcap__AdminRequest *request,
                pc_daemon_answer answer)
{
    struct about *a = calloc(1, sizeof *a);
    if (a == NULL)
        return false;
    a->node = node;
    a->cap = grant->cap;
    memcpy(a->name, grant->record.name, sizeof a->name);
    pc_daemon_ask(node->daemon, request, answer, a);
    return true;
}

/* The grant that an answer is about; frees what the question kept. */
static struct pc_node_grant *answered(struct about *a, struct pc_node **node, uint64_t *cap)
{
    struct pc_node_grant *grant = pc_node_find(a->node, a->name);
    *node = a->node;
    *cap = a->cap;
    free(a);
    return grant;
}

/* ---- binding ---- */

enum pc_status pc_node_bind(struct pc_node *node, struct pc_node_grant *grant, const struct pc_who *who,
                            struct pc_error *err)
{
    struct pc_record record = grant->record;
    snprintf(record.pod_uid, sizeof record.pod_uid, "%s", who->pod_uid);
    snprintf(record.pod_namespace, sizeof record.pod_namespace, "%s", who->pod_namespace);
    snprintf(record.pod_name, sizeof record.pod_name, "%s", who->pod_name);
    snprintf(record.container, sizeof record.container, "%s", who->container);
    enum pc_status status = pc_record_write(node->records, &node->units, &record, err);
    if (status != PC_OK)
        return status;
    grant->record = record;
    pc_log_info("node", "grant %s is of pod %s/%s (%s), container %s", record.name, record.pod_namespace,
                record.pod_name, record.pod_uid, record.container[0] != '\0' ? record.container : "not known");
    if (node->pod_list != NULL)
        pc_node_look_at_list(node);
    return PC_OK;
}

/* ---- caps ---- */

/* A grant on several GPUs has its cap on each in proportion, in whole granules. */
static uint64_t cap_on(const struct pc_node_grant *grant, unsigned gpu)
{
    uint64_t here = pc_unit_set_on(&grant->record.units, gpu), all = grant->record.units.count;
    if (here == all)
        return grant->cap;
    uint64_t granules = grant->cap / PC_POOL_GRANULE * here / all;
    return (granules > 0 ? granules : 1) * PC_POOL_GRANULE;
}

static void complain(struct pc_node *node, struct pc_node_grant *grant, const char *complaint)
{
    if (strcmp(grant->complaint, complaint) == 0)
        return;
    snprintf(grant->complaint, sizeof grant->complaint, "%s", complaint);
    if (complaint[0] == '\0')
        return;
    pc_log_warn("node", "pod %s/%s: %s", grant->record.pod_namespace, grant->record.pod_name, complaint);
    pc_node_report_event(node, grant, "Warning", "AnnotationIgnored", complaint);
}

static void decide_cap(struct pc_node *node, struct pc_node_grant *grant)
{
    struct pc_cap_answer answer;
    struct pc_cap_question question = {
        .container = grant->record.container,
        .listed = grant->listed,
        .alone = grant->alone,
        .granted = pc_node_granted(node, grant),
        .unit_bytes = node->units.unit_bytes,
        .least = pc_node_least(node),
    };
    const struct pc_pod *pod = pc_node_pod_of(node, grant);
    /* While the API server is away the cap stays what it was: a restart of ours must not raise anybody's. */
    if (pod == NULL && grant->cap_told > 0 && grant->cap_told <= question.granted) {
        grant->cap = grant->cap_told;
        return;
    }
    pc_cap_decide(pod, &question, &answer);
    grant->cap = answer.cap;
    complain(node, grant, answer.complaint);
}

static void on_cap(void *arg, enum pc_status status, const Poolcap__AdminReply *reply, const struct pc_error *err)
{
    struct pc_node *node;
    uint64_t cap;
    struct pc_node_grant *grant = answered(arg, &node, &cap);
    (void)reply;
    if (grant == NULL)
        return;
    if (status == PC_OK) {
        pc_log_info("node", "grant %s of pod %s/%s is capped at %llu MiB now", grant->record.name,
                    grant->record.pod_namespace, grant->record.pod_name, (unsigned long long)(cap / PC_MIB));
        return;
    }
    grant->cap_told = 0; /* the next turn says it again */
    pc_log_warn("node", "grant %s: its cap could not be set: %s", grant->record.name, err->text);
}

static void tell_cap(struct pc_node *node, struct pc_node_grant *grant)
{
    grant->cap_told = grant->cap;
    for (unsigned g = 0; g < node->units.gpus; g++) {
        Poolcap__AdminSetCap set = POOLCAP__ADMIN_SET_CAP__INIT;
        Poolcap__AdminRequest request = POOLCAP__ADMIN_REQUEST__INIT;
        if (pc_unit_set_on(&grant->record.units, g) == 0)
            continue;
        set.grant = grant->record.name;
        set.gpu = node->units.gpu[g].uuid;
        set.cap = cap_on(grant, g);
        request.body_case = POOLCAP__ADMIN_REQUEST__BODY_SET_CAP;
        request.set_cap = &set;
        if (!ask(node, grant, &request, on_cap))
            grant->cap_told = 0;
    }
}

void pc_node_apply_cap(struct pc_node *node, struct pc_node_grant *grant)
{
    decide_cap(node, grant);
    if (grant->made && !grant->dropping && grant->cap != grant->cap_told && pc_daemon_is_up(node->daemon))
        tell_cap(node, grant);
}

/* ---- making ---- */

/* The bytes of this grant's units on a GPU that its pod's other grants at poolcapd hold already: they count once. */
static uint64_t shared_on(const struct pc_node *node, const struct pc_node_grant *grant, unsigned gpu)
{
    uint64_t count = 0;
    for (size_t i = 0; i < grant->record.units.count; i++) {
        struct pc_unit unit = grant->record.units.unit[i];
        bool held = false;
        for (const struct pc_node_grant *other = node->grant; other != NULL && !held; other = other->next)
            held = unit.gpu == gpu && other != grant && (other->made || other->asking) && !other->dropping &&
                   strcmp(other->record.pod_uid, grant->record.pod_uid) == 0 &&
                   pc_unit_set_has(&other->record.units, unit);
        count += held;
    }
    return count * node->units.unit_bytes;
}

static void on_made(void *arg, enum pc_status status, const Poolcap__AdminReply *reply, const struct pc_error *err)
{
    struct pc_node *node;
    uint64_t cap;
    struct pc_node_grant *grant = answered(arg, &node, &cap);
    (void)reply;
    if (grant == NULL)
        return;
    grant->asking = false;
    grant->failure = (struct pc_error){.status = PC_OK};
    if (status == PC_OK || status == PC_ERR_EXISTS) {
        grant->made = true;
        grant->cap_told = status == PC_OK ? cap : 0;
        pc_node_apply_cap(node, grant);
    } else {
        grant->failure = *err;
        pc_log_warn("node", "poolcapd does not make grant %s of pod %s/%s: %s", grant->record.name,
                    grant->record.pod_namespace, grant->record.pod_name, err->text);
    }
    pc_node_prestart_step(node);
}

void pc_node_make(struct pc_node *node, struct pc_node_grant *grant)
{
    Poolcap__AdminMakeGrant make = POOLCAP__ADMIN_MAKE_GRANT__INIT;
    Poolcap__AdminRequest request = POOLCAP__ADMIN_REQUEST__INIT;
    Poolcap__AdminGpuShare share[PC_UNITS_GPUS_MAX], *shares[PC_UNITS_GPUS_MAX];
    if (grant->made || grant->asking || grant->dropping || !pc_daemon_is_up(node->daemon))
        return;
    decide_cap(node, grant);
    for (unsigned g = 0; g < node->units.gpus; g++) {
        size_t count = pc_unit_set_on(&grant->record.units, g);
        if (count == 0)
            continue;
        Poolcap__AdminGpuShare *s = &share[make.n_gpus];
        poolcap__admin_gpu_share__init(s);
        s->gpu = node->units.gpu[g].uuid;
        s->granted = count * node->units.unit_bytes;
        s->cap = cap_on(grant, g);
        s->shared = shared_on(node, grant, g);
        shares[make.n_gpus++] = s;
    }
    make.name = grant->record.name;
    make.tenant = grant->record.pod_uid[0] != '\0' ? grant->record.pod_uid : grant->record.name;
    make.pod_uid = grant->record.pod_uid;
    make.gpus = shares;
    request.body_case = POOLCAP__ADMIN_REQUEST__BODY_MAKE_GRANT;
    request.make_grant = &make;
    grant->asking = ask(node, grant, &request, on_made);
}

/* ---- binding later what was made for nobody in particular ---- */

static void on_bound(void *arg, enum pc_status status, const Poolcap__AdminReply *reply, const struct pc_error *err)
{
    struct pc_node *node;
    uint64_t cap;
    struct pc_node_grant *grant = answered(arg, &node, &cap);
    (void)reply;
    if (grant != NULL && status != PC_OK)
        pc_log_warn("node", "poolcapd does not bind grant %s: %s", grant->record.name, err->text);
}

void pc_node_bind_there(struct pc_node *node, struct pc_node_grant *grant)
{
    Poolcap__AdminBind bind = POOLCAP__ADMIN_BIND__INIT;
    Poolcap__AdminRequest request = POOLCAP__ADMIN_REQUEST__INIT;
    grant->unbound_there = false;
    bind.grant = grant->record.name;
    bind.pod_uid = grant->record.pod_uid;
    request.body_case = POOLCAP__ADMIN_REQUEST__BODY_BIND;
    request.bind = &bind;
    ask(node, grant, &request, on_bound);
}

/* ---- dropping ---- */

static void on_dropped(void *arg, enum pc_status status, const Poolcap__AdminReply *reply, const struct pc_error *err)
{
    struct pc_node *node;
    uint64_t cap;
    struct pc_node_grant *grant = answered(arg, &node, &cap);
    (void)reply;
    if (grant == NULL)
        return;
    grant->asking = false;
    if (status == PC_OK || status == PC_ERR_NOT_FOUND) {
        grant->dropping = true;
        grant->made = status == PC_OK; /* until poolcapd's list is without it */
        pc_node_turn_kick(node);
    } else if (status != PC_ERR_BUSY && status != PC_ERR_UNREACHABLE) {
        pc_log_warn("node", "poolcapd does not drop grant %s: %s", grant->record.name, err->text);
    }
}

void pc_node_drop(struct pc_node *node, struct pc_node_grant *grant)
{
    Poolcap__AdminDropGrant drop = POOLCAP__ADMIN_DROP_GRANT__INIT;
    Poolcap__AdminRequest request = POOLCAP__ADMIN_REQUEST__INIT;
    if (grant->asking || grant->dropping || !pc_daemon_is_up(node->daemon))
        return;
    drop.grant = grant->record.name;
    drop.if_unused = 1;
    request.body_case = POOLCAP__ADMIN_REQUEST__BODY_DROP_GRANT;
    request.drop_grant = &drop;
    grant->asking = ask(node, grant, &request, on_dropped);
}
