#include "plugin/placement/guard.h"

unsigned pc_guard_open(const struct pc_units *units)
{
    unsigned open = PC_UNITS_GPUS_MAX;
    for (unsigned i = 0; i < units->gpus; i++) {
        const struct pc_unit_gpu *gpu = &units->gpu[i];
        if (!gpu->present || gpu->faulty || gpu->free == 0)
            continue;
        if (open == PC_UNITS_GPUS_MAX || gpu->free > units->gpu[open].free)
            open = i;
    }
    return open;
}
