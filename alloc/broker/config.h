/*
 * poolcapd's configuration: a YAML file, environment, flags (flag > env > file), and the static grants, which stand in
 * the file only (config_grants.c). Every other key is a row of one table in config.c: see alloc/options/options.h.
 */
#ifndef PC_BROKER_CONFIG_H
#define PC_BROKER_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/base/error.h"
#include "alloc/base/log.h"
#include "alloc/options/options.h"
#include "proto/page.h"

enum { PC_NAME_MAX = 64, PC_GPU_REF_MAX = 64, PC_PATH_MAX = 256 };

struct pc_config_share {
    char gpu[PC_GPU_REF_MAX]; /* UUID or ordinal, as written */
    uint64_t granted;         /* bytes; a multiple of 32 MiB */
    uint64_t cap;             /* bytes; <= granted */
    uint64_t shared;          /* bytes of granted that earlier grants of the tenant hold: see tenant.h; 0 in a file */
};

struct pc_config_grant {
    char name[PC_NAME_MAX];
    char tenant[PC_NAME_MAX];  /* the name where the file gives none */
    char pod_uid[PC_NAME_MAX]; /* empty: any process that can open the socket */
    unsigned shares;
    struct pc_config_share share[PC_PAGE_GPUS_MAX];
    unsigned line; /* in the file, for messages; 0 from elsewhere */
};

struct pc_config {
    char file[PC_PATH_MAX];          /* where it was read from; empty: none */
    char run_directory[PC_PATH_MAX]; /* default /run/poolcap: admin.sock, books, grants/NAME/poolcap.sock */
    char cuda_library[PC_PATH_MAX];  /* empty: the standard places */
    char nvml_library[PC_PATH_MAX];
    uint64_t reserve; /* bytes kept back on each GPU */
    enum pc_log_level log_level;
    bool simulated; /* the simulated driver is meant: without it, poolcapd refuses to run on one */
    unsigned grants;
    struct pc_config_grant *grant;
};

/*
 * Reads the file (NULL or "": none) into *out and checks it whole: unknown keys, wrong types, bad quantities, two
 * grants of one name. Errors are PC_ERR_INVALID and begin with "file:line:column:". On error *out is empty.
 */
enum pc_status pc_config_read(const char *file, struct pc_config *out, struct pc_error *err);

/* The same from memory; name stands for the file in messages. For tests and fuzzing. */
enum pc_status pc_config_parse(const char *name, const char *text, size_t length, struct pc_config *out,
                               struct pc_error *err);

/*
 * Command line and environment over the file that --config (or POOLCAP_CONFIG) names.
 * *action tells what the flags asked for. Errors: PC_ERR_INVALID; the text names the flag or the variable.
 */
enum pc_status pc_config_load(int argc, char **argv, struct pc_config *out, enum pc_option_action *action,
                              struct pc_error *err);

void pc_config_usage(void); /* --help */
void pc_config_docs(void);  /* --docs */

/* Whether a name may be a grant's: 1 to 63 of [A-Za-z0-9._-], not beginning with a dot. */
bool pc_config_name_ok(const char *name);

void pc_config_clear(struct pc_config *config);

#endif
