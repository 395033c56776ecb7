#include <stdlib.h>

#include "plugin/placement/units.h"

static int compare(const void *a, const void *b)
{
    const struct pc_unit *x = a, *y = b;
    if (x->gpu != y->gpu)
        return x->gpu < y->gpu ? -1 : 1;
    return (x->number > y->number) - (x->number < y->number);
}

enum pc_status pc_unit_set_make(size_t count, struct pc_unit_set *out, struct pc_error *err)
{
    struct pc_unit *unit = malloc(count > 0 ? count * sizeof *unit : 1);
    if (unit == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no host memory for %zu units", count);
    *out = (struct pc_unit_set){.count = count, .unit = unit};
    return PC_OK;
}

void pc_unit_set_sort(struct pc_unit_set *set)
{
    qsort(set->unit, set->count, sizeof *set->unit, compare);
}

void pc_unit_set_free(struct pc_unit_set *set)
{
    free(set->unit);
    *set = (struct pc_unit_set){.count = 0};
}

static enum pc_status check_once(const struct pc_units *units, const struct pc_unit_set *set, struct pc_error *err)
{
    char id[PC_UNIT_ID_MAX];
    for (size_t i = 1; i < set->count; i++)
        if (compare(&set->unit[i - 1], &set->unit[i]) == 0)
            return pc_error_set(err, PC_ERR_INVALID, 0, "unit %s is named twice", pc_unit_id(units, set->unit[i], id));
    return PC_OK;
}

enum pc_status pc_unit_set_parse(const struct pc_units *units, char *const *ids, size_t count, struct pc_unit_set *out,
                                 struct pc_error *err)
{
    struct pc_unit_set set = {.count = 0};
    enum pc_status status = pc_unit_set_make(count, &set, err);
    if (status != PC_OK)
        return status;
    for (size_t i = 0; i < count && status == PC_OK; i++)
        status = pc_unit_parse(units, ids[i], &set.unit[i], err);
    if (status == PC_OK) {
        pc_unit_set_sort(&set);
        status = check_once(units, &set, err);
    }
    if (status != PC_OK)
        pc_unit_set_free(&set);
    else
        *out = set;
    return status;
}

bool pc_unit_set_equal(const struct pc_unit_set *a, const struct pc_unit_set *b)
{
    if (a->count != b->count)
        return false;
    for (size_t i = 0; i < a->count; i++)
        if (compare(&a->unit[i], &b->unit[i]) != 0)
            return false;
    return true;
}

bool pc_unit_set_meets(const struct pc_unit_set *a, const struct pc_unit_set *b)
{
    for (size_t i = 0, k = 0; i < a->count && k < b->count;) {
        int order = compare(&a->unit[i], &b->unit[k]);
        if (order == 0)
            return true;
        if (order < 0)
            i++;
        else
            k++;
    }
    return false;
}

bool pc_unit_set_has(const struct pc_unit_set *set, struct pc_unit unit)
{
    return set->count > 0 && bsearch(&unit, set->unit, set->count, sizeof unit, compare) != NULL;
}

size_t pc_unit_set_on(const struct pc_unit_set *set, unsigned gpu)
{
    size_t count = 0;
    for (size_t i = 0; i < set->count; i++)
        count += set->unit[i].gpu == gpu;
    return count;
}
