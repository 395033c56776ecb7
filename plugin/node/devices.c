#include "plugin/node/devices.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "alloc/base/cleanup.h"

/*
 * /proc/driver/nvidia/gpus/<pci address>/information has a line a property: "GPU UUID:  \t GPU-..." and
 * "Device Minor: \t 0".
 */
static bool read_information(const char *path, const char *uuid, unsigned *minor)
{
    char line[256], value[128];
    bool ours = false, known = false;
    pc_auto_file FILE *f = fopen(path, "re");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        if (sscanf(line, "GPU UUID: %127s", value) == 1)
            ours = strcmp(value, uuid) == 0;
        if (sscanf(line, "Device Minor: %u", minor) == 1)
            known = true;
    }
    return ours && known;
}

enum pc_status pc_gpu_minor(const char *proc_root, const char *uuid, unsigned *out, struct pc_error *err)
{
    char path[512];
    const struct dirent *entry;
    bool found = false;
    unsigned minor = 0;
    snprintf(path, sizeof path, "%.120s/driver/nvidia/gpus", proc_root);
    DIR *dir = opendir(path);
    while (dir != NULL && !found && (entry = readdir(dir)) != NULL) {
        snprintf(path, sizeof path, "%.120s/driver/nvidia/gpus/%.100s/information", proc_root, entry->d_name);
        found = entry->d_name[0] != '.' && read_information(path, uuid, &minor);
    }
    if (dir != NULL)
        closedir(dir);
    if (!found)
        return pc_error_set(err, PC_ERR_NOT_FOUND, 0,
                            "GPU %s is not below %.120s/driver/nvidia/gpus; use deviceListStrategy cdi or envvar", uuid,
                            proc_root);
    *out = minor;
    return PC_OK;
}
