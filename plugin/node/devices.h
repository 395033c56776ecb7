/* What of a GPU a container has to be given: by CDI name, by variable, or by device files. */
#ifndef PC_PLUGIN_NODE_DEVICES_H
#define PC_PLUGIN_NODE_DEVICES_H

#include "alloc/base/error.h"

/*
 * The minor number of a GPU's device file, from the driver's own list under proc_root ("/proc"). Errors:
 * PC_ERR_NOT_FOUND (no such GPU there; the text says where was looked).
 */
enum pc_status pc_gpu_minor(const char *proc_root, const char *uuid, unsigned *out, struct pc_error *err);

#endif
