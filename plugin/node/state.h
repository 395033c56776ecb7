/*
 * What the files of node/ share: its state. Each file's own header part stands under its name.
 *
 * A grant's stages, each left only forward:
 *   recorded   Allocate wrote its record and made its directory; whose it is is not known
 *   bound      the pod is known and in the record
 *   made       poolcapd has it: the socket exists (`made` is what poolcapd last said, so it can become false again)
 *   ended      poolcapd let it go; record and directory are removed, the units are free
 */
#ifndef PC_PLUGIN_NODE_STATE_H
#define PC_PLUGIN_NODE_STATE_H

#include "alloc/base/cleanup.h"
#include "plugin/daemon/daemon.h"
#include "plugin/kubelet/device_plugin.h"
#include "plugin/kubelet/pod_resources.h"
#include "plugin/node/cap.h"
#include "plugin/node/node.h"
#include "plugin/node/record.h"
#include "plugin/placement/units.h"

enum { PC_NODE_PATH_MAX = 384 };

/* What poolcapd last said of a grant, summed over its GPUs. */
struct pc_seen {
    uint64_t charged, peak, refused, outside;
    uint32_t sessions;
};

struct pc_node_grant {
    struct pc_node_grant *next;
    struct pc_record record;
    uint64_t born_ns;        /* on the loop's clock: when this process learned of it */
    bool made, asking;       /* asking: a request to poolcapd about it is under way */
    bool dropping;           /* poolcapd agreed to drop it; it is gone when its list does not have it any more */
    uint64_t cap;            /* wanted, over all its GPUs */
    uint64_t cap_told;       /* what poolcapd has; 0: not known */
    bool unbound_there;      /* poolcapd has it without the pod: made while the pod was not known */
    bool listed, alone;      /* see cap.h; from pod-resources */
    unsigned missing;        /* pod lists in a row without its pod */
    uint64_t unnamed_ns;     /* since when neither pod-resources nor the checkpoint names it; 0: one does */
    struct pc_error failure; /* why poolcapd did not make it; PC_OK: no failure */
    char complaint[320];     /* about its annotation, as the last Event said it */
    struct pc_seen seen;
};

struct pc_node_list;
struct pc_pod_report;
struct pc_prestart;
struct pc_snapshot;
struct pc_turn;

struct pc_node_stats {
    uint64_t turns, kubelet_errors, prestarts, prestart_failures, allocations, allocation_failures;
};

struct pc_node {
    struct pc_loop *loop;
    struct pc_rpc *rpc;
    struct pc_api *api; /* NULL: none */
    const struct pc_plugin_config *config;
    char records[PC_NODE_PATH_MAX], grants[PC_NODE_PATH_MAX], checkpoint[PC_NODE_PATH_MAX];
    struct pc_units units;
    struct pc_node_grant *grant; /* newest first */
    unsigned bad_records;

    struct pc_daemon *daemon;
    bool daemon_silent; /* away for so long that free units are not offered */
    struct pc_timer *silence;
    struct pc_snapshot *snapshot; /* poolcapd's last list */
    uint64_t context_bytes;       /* the dearest context of its GPUs */

    struct pc_device_plugin *plugin; /* NULL: not begun */
    bool registered;
    uint64_t registered_ns;
    struct pc_node_list *list; /* what ListAndWatch sends */

    struct pc_rpc_channel *pod_resources;
    struct pc_pod_list *pod_list; /* the last one; NULL: none yet */
    uint64_t turn_began_ns;
    uint64_t pod_list_asked_ns; /* when that one was asked for: what was given later may not be in it */
    bool pod_list_good;         /* the last time of asking gave one */
    struct pc_pod_watch *pods;  /* NULL: no API server */
    struct pc_claims *kept_checkpoint;
    struct pc_file_stamp {
        uint64_t inode, size, seconds, nanoseconds;
    } checkpoint_stamp;

    struct pc_prestart *prestart;
    struct pc_timer *prestart_timer;
    struct pc_turn *turn;
    struct pc_pod_report *report;
    char labels[160]; /* what the node's labels were last set to */
    bool labels_asking;
    int lock;                /* against a second instance */
    struct pc_error failure; /* what ended the node after its start; PC_OK: nothing */
    struct pc_node_stats stats;
};

/* ---- node.c ---- */

/* The state of the units changed: the list is made anew and sent where it differs. */
void pc_node_units_changed(struct pc_node *node);
/* poolcapd named its GPUs: their units follow. */
void pc_node_see_gpus(struct pc_node *node);
/* What it came to is offered to the kubelet, the first time by registering, and shown in the node's labels. */
void pc_node_offer(struct pc_node *node);
struct pc_node_grant *pc_node_find(struct pc_node *node, const char *name);
uint64_t pc_node_granted(const struct pc_node *node, const struct pc_node_grant *grant); /* bytes of its units */
uint64_t pc_node_least(const struct pc_node *node); /* bytes that one process needs */
/* Adds a grant to the books: holds its units, makes its directory. record becomes the node's. */
enum pc_status pc_node_add_grant(struct pc_node *node, struct pc_record *record, struct pc_node_grant **out,
                                 struct pc_error *err);
/* Out of the books, its directory and record removed. */
void pc_node_remove_grant(struct pc_node *node, struct pc_node_grant *grant);

/* ---- list.c: ListAndWatch ---- */
const V1beta1__ListAndWatchResponse *pc_node_list_get(struct pc_node *node);
/* Makes it anew; true where it differs from what it was. Errors: none: without memory the old one stays. */
bool pc_node_list_make(struct pc_node *node);
void pc_node_list_free(struct pc_node *node);

/* ---- allocate.c ---- */
void pc_node_allocate(void *arg, struct pc_rpc_call *call, const V1beta1__AllocateRequest *request);
void pc_node_preferred(void *arg, struct pc_rpc_call *call, const V1beta1__PreferredAllocationRequest *request);

/* ---- prestart.c ---- */
void pc_node_pre_start(void *arg, struct pc_rpc_call *call, char *const *ids, size_t count);
void pc_node_pre_start_gone(void *arg, struct pc_rpc_call *call);
/* Something changed that one of those who wait may wait for. */
void pc_node_prestart_step(struct pc_node *node);
enum pc_status pc_node_prestart_create(struct pc_node *node, struct pc_error *err);
void pc_node_prestart_stop(struct pc_node *node);

/* ---- who.c: whose is a grant ---- */
struct pc_who {
    char pod_uid[PC_POD_UID_TEXT]; /* "": not known (yet) */
    char pod_namespace[PC_DNS_LABEL_MAX], pod_name[PC_POD_NAME_MAX], container[PC_DNS_LABEL_MAX];
};
/* The kubelet's checkpoint, read again only where the file changed; NULL: not to be had. */
const struct pc_claims *pc_node_checkpoint(struct pc_node *node);
/* Answers from the last pod list and the checkpoint; false: neither names it. */
bool pc_node_who(struct pc_node *node, const struct pc_node_grant *grant, struct pc_who *out);
/* Updates what every grant knows from the last pod list: missing, listed, alone. */
void pc_node_look_at_list(struct pc_node *node);
/* Whether the kubelet has given up the pod of a bound grant. */
bool pc_node_given_up(const struct pc_node *node, const struct pc_node_grant *grant);
/* The pod of a grant in the watch, by UID or config hash; NULL. */
const struct pc_pod *pc_node_pod_of(const struct pc_node *node, const struct pc_node_grant *grant);

/* ---- bind.c: a grant and poolcapd ---- */
/* Writes the pod into the record. */
enum pc_status pc_node_bind(struct pc_node *node, struct pc_node_grant *grant, const struct pc_who *who,
                            struct pc_error *err);
/* Has poolcapd make a bound grant; a no-op while it is made or asked for. */
void pc_node_make(struct pc_node *node, struct pc_node_grant *grant);
/* Tells poolcapd the pod of a grant that it made without one. */
void pc_node_bind_there(struct pc_node *node, struct pc_node_grant *grant);
/* Works out the cap anew and tells poolcapd where it changed. */
void pc_node_apply_cap(struct pc_node *node, struct pc_node_grant *grant);
/* Has poolcapd drop a grant that nobody uses any more; the grant ends where it agrees. */
void pc_node_drop(struct pc_node *node, struct pc_node_grant *grant);

/* ---- turn.c ---- */
enum pc_status pc_node_turn_create(struct pc_node *node, struct pc_error *err);
/* Has a turn begin at once; while one is under way, another follows it. */
void pc_node_turn_kick(struct pc_node *node);
void pc_node_turn_free(struct pc_node *node);

/* ---- snapshot.c: poolcapd's list ---- */
typedef void (*pc_snapshot_done)(struct pc_node *node, bool whole);
/* Asks page after page; done is called with false where poolcapd went away. One at a time. */
void pc_node_snapshot_begin(struct pc_node *node, pc_snapshot_done done);
bool pc_node_snapshot_busy(const struct pc_node *node);
/* Walks what the last whole list said. */
typedef void (*pc_snapshot_gpu)(void *arg, const Poolcap__AdminGpu *gpu);
typedef void (*pc_snapshot_grant)(void *arg, const Poolcap__AdminGrant *grant);
void pc_node_snapshot_gpus(const struct pc_node *node, pc_snapshot_gpu each, void *arg);
void pc_node_snapshot_grants(const struct pc_node *node, pc_snapshot_grant each, void *arg);
enum pc_status pc_node_snapshot_create(struct pc_node *node, struct pc_error *err);
void pc_node_snapshot_free(struct pc_node *node);

/* ---- report.c: what kubectl shows ---- */
void pc_node_report(struct pc_node *node);
void pc_node_report_event(struct pc_node *node, const struct pc_node_grant *grant, const char *type, const char *reason,
                          const char *message);
void pc_node_report_labels(struct pc_node *node);
void pc_node_report_free(struct pc_node *node);

#endif
