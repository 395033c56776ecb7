/*
 * The fragmentation guard. The scheduler sees one sum for the node; a pod that fits the sum but no single GPU would be
 * admitted and then fail for good. So only the free units of the GPU with the largest hole are offered: what is
 * allocatable is what one GPU can give (seen working on a real cluster; facts, last line).
 */
#ifndef PC_PLUGIN_PLACEMENT_GUARD_H
#define PC_PLUGIN_PLACEMENT_GUARD_H

#include "plugin/placement/units.h"

/* The GPU whose free units are offered: the one with the most, the first of equals; PC_UNITS_GPUS_MAX: there is none.
 * A faulty or absent GPU offers nothing. */
unsigned pc_guard_open(const struct pc_units *units);

#endif
