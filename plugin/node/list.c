/* What ListAndWatch says: every unit of every GPU, and whether it may be given. */
#include <stdlib.h>
#include <string.h>

#include "plugin/node/state.h"
#include "plugin/placement/guard.h"

#define HEALTHY "Healthy"
#define UNHEALTHY "Unhealthy"

struct pc_node_list {
    V1beta1__ListAndWatchResponse message;
    size_t count;
    V1beta1__Device *device;
    V1beta1__Device **devices;
    char (*id)[PC_UNIT_ID_MAX];
};

static void free_list(struct pc_node_list *list)
{
    if (list == NULL)
        return;
    free(list->device);
    free(list->devices);
    free(list->id);
    free(list);
}

static struct pc_node_list *make_list(size_t count)
{
    struct pc_node_list *list = calloc(1, sizeof *list);
    if (list == NULL)
        return NULL;
    list->count = count;
    list->device = calloc(count + 1, sizeof *list->device);
    list->devices = calloc(count + 1, sizeof *list->devices);
    list->id = calloc(count + 1, sizeof *list->id);
    if (list->device == NULL || list->devices == NULL || list->id == NULL) {
        free_list(list);
        return NULL;
    }
    return list;
}

/*
 * A unit that a grant holds stays healthy while poolcapd is away: its pod runs on. A free one is offered where it can
 * become a working grant, and on the GPU that the guard leaves open.
 */
static const char *health(const struct pc_node *node, unsigned open, struct pc_unit unit)
{
    const struct pc_unit_gpu *gpu = &node->units.gpu[unit.gpu];
    if (!gpu->present || gpu->faulty)
        return UNHEALTHY;
    if (gpu->holders[unit.number] > 0)
        return HEALTHY;
    if (node->daemon_silent)
        return UNHEALTHY;
    bool guarded = node->config->fragmentation_guard && !node->config->multi_gpu;
    return !guarded || unit.gpu == open ? HEALTHY : UNHEALTHY;
}

static void fill(const struct pc_node *node, struct pc_node_list *list)
{
    size_t n = 0;
    unsigned open = pc_guard_open(&node->units);
    for (unsigned g = 0; g < node->units.gpus; g++) {
        for (uint32_t i = 0; i < node->units.gpu[g].units; i++, n++) {
            struct pc_unit unit = {.gpu = g, .number = i};
            v1beta1__device__init(&list->device[n]);
            list->device[n].id = pc_unit_id(&node->units, unit, list->id[n]);
            list->device[n].health = (char *)(uintptr_t)health(node, open, unit);
            list->devices[n] = &list->device[n];
        }
    }
    v1beta1__list_and_watch_response__init(&list->message);
    list->message.n_devices = n;
    list->message.devices = list->devices;
}

static bool same(const struct pc_node_list *a, const struct pc_node_list *b)
{
    if (a == NULL || a->count != b->count)
        return false;
    for (size_t i = 0; i < a->count; i++)
        if (a->device[i].health != b->device[i].health || strcmp(a->id[i], b->id[i]) != 0)
            return false;
    return true;
}

bool pc_node_list_make(struct pc_node *node)
{
    size_t count = 0;
    for (unsigned g = 0; g < node->units.gpus; g++)
        count += node->units.gpu[g].units;
    struct pc_node_list *list = make_list(count);
    if (list == NULL)
        return false;
    fill(node, list);
    if (same(node->list, list)) {
        free_list(list);
        return false;
    }
    free_list(node->list);
    node->list = list;
    return true;
}

const V1beta1__ListAndWatchResponse *pc_node_list_get(struct pc_node *node)
{
    return &node->list->message;
}

void pc_node_list_free(struct pc_node *node)
{
    free_list(node->list);
    node->list = NULL;
}
