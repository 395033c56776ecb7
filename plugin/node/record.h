/*
 * Grants' records: files that outlive the plugin, poolcapd and a reboot. A record is there before the kubelet hears
 * that its units are given, and goes after poolcapd has let go of its memory; so whatever dies in between, no unit is
 * given twice and nothing is lost.
 */
#ifndef PC_PLUGIN_NODE_RECORD_H
#define PC_PLUGIN_NODE_RECORD_H

#include "plugin/placement/units.h"

enum {
    PC_RECORD_VERSION = 1,
    PC_RECORD_NAME_MAX = 32,
    PC_POD_UID_TEXT = 64,  /* 36 for a UID, 32 for a config hash */
    PC_DNS_LABEL_MAX = 64, /* a namespace's, a container's name */
    PC_POD_NAME_MAX = 254,
};

struct pc_record {
    char name[PC_RECORD_NAME_MAX];
    uint64_t unit_bytes;
    uint64_t created; /* seconds since 1970 */
    char pod_uid[PC_POD_UID_TEXT];
    char pod_namespace[PC_DNS_LABEL_MAX], pod_name[PC_POD_NAME_MAX], container[PC_DNS_LABEL_MAX];
    struct pc_unit_set units; /* the record's own */
};

/* A new name that no grant has had: "g" and 64 random bits. */
void pc_record_name(char out[PC_RECORD_NAME_MAX]);

/* Writes DIRECTORY/NAME whole or not at all. Errors: PC_ERR_IO (the text names the file), PC_ERR_HOST_MEMORY. */
enum pc_status pc_record_write(const char *directory, const struct pc_units *units, const struct pc_record *record,
                               struct pc_error *err);
/* Removes it; that it is gone already is no error. Errors: PC_ERR_IO. */
enum pc_status pc_record_remove(const char *directory, const char *name, struct pc_error *err);

/* record becomes the callee's (record->units to be freed). Another answer than PC_OK ends the reading. */
typedef enum pc_status (*pc_record_each)(void *arg, struct pc_record *record, struct pc_error *err);
/*
 * Makes the directory where it is not there, and reads every record in it; GPUs that poolcapd has not named are added
 * to units. What cannot be read as a record is left where it is and logged, and *bad counts it: its units are not
 * known, so a person has to look. Half-written files of a plugin that died are removed. Errors: PC_ERR_IO, and what
 * each answers.
 */
enum pc_status pc_record_read_all(const char *directory, struct pc_units *units, pc_record_each each, void *arg,
                                  unsigned *bad, struct pc_error *err);

#endif
