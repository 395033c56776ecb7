#include "plugin/placement/prefer.h"

#include <string.h>

struct picture {
    const struct pc_units *units;
    size_t available[PC_UNITS_GPUS_MAX], must[PC_UNITS_GPUS_MAX];
    size_t must_all;
    bool used[PC_UNITS_GPUS_MAX];
};

static void look(struct picture *p, const struct pc_units *units, const struct pc_unit_set *available,
                 const struct pc_unit_set *must)
{
    memset(p, 0, sizeof *p);
    p->units = units;
    p->must_all = must->count;
    for (size_t i = 0; i < available->count; i++)
        p->available[available->unit[i].gpu]++;
    for (size_t i = 0; i < must->count; i++)
        p->must[must->unit[i].gpu]++;
}

/* The GPU that alone has enough, and has must whole; the tightest of them. */
static unsigned tightest(const struct picture *p, size_t size)
{
    unsigned best = PC_UNITS_GPUS_MAX;
    for (unsigned i = 0; i < p->units->gpus; i++) {
        if (p->available[i] < size || p->must[i] != p->must_all)
            continue;
        if (best == PC_UNITS_GPUS_MAX || p->available[i] < p->available[best])
            best = i;
    }
    return best;
}

/* Where to go on when it has to be spread: must's GPUs first, then the largest holes. */
static unsigned largest(const struct picture *p)
{
    unsigned best = PC_UNITS_GPUS_MAX;
    for (unsigned i = 0; i < p->units->gpus; i++) {
        if (p->used[i] || p->available[i] == 0)
            continue;
        if (best == PC_UNITS_GPUS_MAX || p->must[i] > p->must[best] ||
            (p->must[i] == p->must[best] && p->available[i] > p->available[best]))
            best = i;
    }
    return best;
}

/* Adds units of one GPU, lowest numbers first, until size are there. */
static void take(unsigned gpu, const struct pc_unit_set *available, const struct pc_unit_set *must, size_t size,
                 struct pc_unit_set *out)
{
    for (size_t i = 0; i < available->count && out->count < size; i++)
        if (available->unit[i].gpu == gpu && !pc_unit_set_has(must, available->unit[i]))
            out->unit[out->count++] = available->unit[i];
}

enum pc_status pc_prefer(const struct pc_units *units, const struct pc_unit_set *available,
                         const struct pc_unit_set *must, size_t size, struct pc_unit_set *out, struct pc_error *err)
{
    struct picture p;
    struct pc_unit_set chosen = {.count = 0};
    size_t room = size > must->count ? size : must->count;
    enum pc_status status = pc_unit_set_make(room, &chosen, err);
    if (status != PC_OK)
        return status;
    look(&p, units, available, must);
    if (must->count > 0)
        memcpy(chosen.unit, must->unit, must->count * sizeof *must->unit);
    chosen.count = must->count;
    unsigned gpu = tightest(&p, size);
    if (gpu == PC_UNITS_GPUS_MAX)
        gpu = largest(&p);
    while (gpu != PC_UNITS_GPUS_MAX && chosen.count < size) {
        take(gpu, available, must, size, &chosen);
        p.used[gpu] = true;
        gpu = largest(&p);
    }
    pc_unit_set_sort(&chosen);
    *out = chosen;
    return PC_OK;
}
