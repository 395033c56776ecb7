/*
 * Which of the units that the kubelet has to spare a container should get: all on one GPU, and there where least is
 * left over (best fit), so that large holes stay for large pods.
 */
#ifndef PC_PLUGIN_PLACEMENT_PREFER_H
#define PC_PLUGIN_PLACEMENT_PREFER_H

#include "plugin/placement/units.h"

/*
 * Picks size units of available, those of must among them (must is part of available; it names what the pod's init
 * containers had). Where no GPU has enough, the fewest GPUs are used, those of must first, then the largest holes; it
 * is the caller's to refuse that. *out is the caller's, and smaller than size where available is. Errors:
 * PC_ERR_HOST_MEMORY.
 */
enum pc_status pc_prefer(const struct pc_units *units, const struct pc_unit_set *available,
                         const struct pc_unit_set *must, size_t size, struct pc_unit_set *out, struct pc_error *err);

#endif
