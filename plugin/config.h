/*
 * poolcap-plugin's configuration: a YAML file, environment, flags (flag > env > file). Every key is a row of one table
 * in config.c; --help and docs/config.md come from it.
 */
#ifndef PC_PLUGIN_CONFIG_H
#define PC_PLUGIN_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "alloc/base/error.h"
#include "alloc/base/log.h"
#include "alloc/options/options.h"

enum { PC_PLUGIN_PATH_MAX = 256 };

enum pc_device_strategy { PC_DEVICES_CDI, PC_DEVICES_ENVVAR, PC_DEVICES_NODES, PC_DEVICES_NONE };

struct pc_plugin_config {
    char resource_name[PC_PLUGIN_PATH_MAX]; /* "poolcap.dev/gpu-memory" */
    uint64_t unit;                          /* bytes, a multiple of 32 MiB */
    enum pc_device_strategy device_list_strategy;
    char cdi_kind[PC_PLUGIN_PATH_MAX];           /* "nvidia.com/gpu": the device is KIND=UUID */
    char nvidia_driver_root[PC_PLUGIN_PATH_MAX]; /* where /dev of the GPUs is found on the host: "/" */
    bool fragmentation_guard, multi_gpu;
    char node_name[PC_PLUGIN_PATH_MAX];
    char kubeconfig[PC_PLUGIN_PATH_MAX]; /* "": in the cluster */
    bool api_server;                     /* false: talk to none */
    char kubelet_directory[PC_PLUGIN_PATH_MAX], device_plugin_directory[PC_PLUGIN_PATH_MAX];
    char run_directory[PC_PLUGIN_PATH_MAX], state_directory[PC_PLUGIN_PATH_MAX], shim_directory[PC_PLUGIN_PATH_MAX];
    char metrics_address[PC_PLUGIN_PATH_MAX]; /* "ADDRESS:PORT" or ":PORT"; "": no server */
    enum pc_log_level log_level;
};

/* Errors: PC_ERR_INVALID; the text names the flag, the variable, or the file, line and column, and the fix. */
enum pc_status pc_plugin_config_load(int argc, char **argv, struct pc_plugin_config *out, enum pc_option_action *action,
                                     struct pc_error *err);
void pc_plugin_config_usage(void);
void pc_plugin_config_docs(void); /* the table in Markdown */

#endif
