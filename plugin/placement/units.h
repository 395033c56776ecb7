/*
 * Units: what is advertised to the kubelet. A unit is a number on a GPU; its device id is "<tag>-<number>", the tag 8
 * hex digits made from the GPU's UUID, so ids are short, name their GPU, and are the same after every restart.
 *
 * Here too: how many living grants hold each unit. Ids are not exclusive in time (facts, "who is it"): an app container
 * gets the ids of its pod's init containers again, and a pod removed by force may still run while its ids are given
 * anew.
 *
 * Thread rules: none of its own; one thread at a time.
 */
#ifndef PC_PLUGIN_PLACEMENT_UNITS_H
#define PC_PLUGIN_PLACEMENT_UNITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/base/error.h"

enum {
    PC_UNITS_GPUS_MAX = 16,
    PC_UNIT_UUID_MAX = 64,
    PC_UNIT_TAG = 8,
    PC_UNIT_ID_MAX = 20,
    PC_UNITS_PER_GPU = 1 << 20
};

struct pc_unit {
    uint32_t gpu; /* index in struct pc_units */
    uint32_t number;
};

/* Sorted by GPU and number, each unit once. A zeroed one is empty. */
struct pc_unit_set {
    size_t count;
    struct pc_unit *unit;
};

struct pc_unit_gpu {
    char uuid[PC_UNIT_UUID_MAX];
    char tag[PC_UNIT_TAG + 1];
    uint32_t units;    /* advertised: 0 .. units-1 */
    uint32_t free;     /* of these, held by no grant */
    bool present;      /* poolcapd has it now */
    bool faulty;       /* poolcapd says that it is out of service */
    uint32_t room;     /* of holders */
    uint16_t *holders; /* grants that hold the unit; may reach beyond units, for grants of a larger past */
};

struct pc_units {
    uint64_t unit_bytes;
    unsigned gpus; /* only grows: an index means the same GPU for the life of the process */
    struct pc_unit_gpu gpu[PC_UNITS_GPUS_MAX];
};

void pc_units_free(struct pc_units *units); /* what it holds; not the struct */

/*
 * Finds a GPU by UUID, or adds it with no units. Errors: PC_ERR_INVALID (more than PC_UNITS_GPUS_MAX, UUID too long, or
 * two GPUs of one tag, which names both), PC_ERR_HOST_MEMORY.
 */
enum pc_status pc_units_gpu(struct pc_units *units, const char *uuid, unsigned *out, struct pc_error *err);
/* Sets how many units a GPU has. Errors: PC_ERR_INVALID (over PC_UNITS_PER_GPU), PC_ERR_HOST_MEMORY. */
enum pc_status pc_units_resize(struct pc_units *units, unsigned gpu, uint64_t count, struct pc_error *err);

/* Writes the id. Returns out. */
char *pc_unit_id(const struct pc_units *units, struct pc_unit unit, char out[PC_UNIT_ID_MAX]);
/* Errors: PC_ERR_INVALID: not an id, no such GPU, or a number that was never advertised. */
enum pc_status pc_unit_parse(const struct pc_units *units, const char *id, struct pc_unit *out, struct pc_error *err);

/* Counts a grant's units in or out. Errors of hold: PC_ERR_HOST_MEMORY; nothing has changed then. */
enum pc_status pc_units_hold(struct pc_units *units, const struct pc_unit_set *set, struct pc_error *err);
void pc_units_drop(struct pc_units *units, const struct pc_unit_set *set);

/* ---- sets ---- */

/* Parses ids; one named twice is PC_ERR_INVALID. *out is the caller's (pc_unit_set_free). */
enum pc_status pc_unit_set_parse(const struct pc_units *units, char *const *ids, size_t count, struct pc_unit_set *out,
                                 struct pc_error *err);
/* Makes room for count units, uninitialised. Errors: PC_ERR_HOST_MEMORY. */
enum pc_status pc_unit_set_make(size_t count, struct pc_unit_set *out, struct pc_error *err);
void pc_unit_set_sort(struct pc_unit_set *set);
void pc_unit_set_free(struct pc_unit_set *set);
bool pc_unit_set_equal(const struct pc_unit_set *a, const struct pc_unit_set *b);
bool pc_unit_set_meets(const struct pc_unit_set *a, const struct pc_unit_set *b);
bool pc_unit_set_has(const struct pc_unit_set *set, struct pc_unit unit);
size_t pc_unit_set_on(const struct pc_unit_set *set, unsigned gpu); /* how many are on that GPU */

#endif
