#include "plugin/placement/units.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void pc_units_free(struct pc_units *units)
{
    for (unsigned i = 0; i < units->gpus; i++)
        free(units->gpu[i].holders);
    units->gpus = 0;
}

/* FNV-1a, 32 bits. UUIDs of one maker may share any part of their text (the simulated ones do), so all of it counts. */
static void make_tag(const char *uuid, char out[PC_UNIT_TAG + 1])
{
    uint32_t hash = 2166136261u;
    for (const unsigned char *p = (const unsigned char *)uuid; *p != 0; p++)
        hash = (hash ^ *p) * 16777619u;
    snprintf(out, PC_UNIT_TAG + 1, "%08x", hash);
}

static enum pc_status add_gpu(struct pc_units *units, const char *uuid, unsigned *out, struct pc_error *err)
{
    struct pc_unit_gpu *gpu = &units->gpu[units->gpus];
    if (units->gpus == PC_UNITS_GPUS_MAX)
        return pc_error_set(err, PC_ERR_INVALID, 0, "a node has at most %d GPUs here; %.63s is one more",
                            PC_UNITS_GPUS_MAX, uuid);
    if (uuid[0] == '\0' || strlen(uuid) >= sizeof gpu->uuid)
        return pc_error_set(err, PC_ERR_INVALID, 0, "\"%.80s\" is no UUID of a GPU", uuid);
    memset(gpu, 0, sizeof *gpu);
    memcpy(gpu->uuid, uuid, strlen(uuid));
    make_tag(uuid, gpu->tag);
    for (unsigned i = 0; i < units->gpus; i++)
        if (strcmp(units->gpu[i].tag, gpu->tag) == 0)
            return pc_error_set(err, PC_ERR_INVALID, 0, "GPUs %s and %s would have the same device ids (%s-...)",
                                units->gpu[i].uuid, uuid, gpu->tag);
    *out = units->gpus++;
    return PC_OK;
}

enum pc_status pc_units_gpu(struct pc_units *units, const char *uuid, unsigned *out, struct pc_error *err)
{
    for (unsigned i = 0; i < units->gpus; i++) {
        if (strcmp(units->gpu[i].uuid, uuid) == 0) {
            *out = i;
            return PC_OK;
        }
    }
    return add_gpu(units, uuid, out, err);
}

static enum pc_status make_room(struct pc_unit_gpu *gpu, uint32_t room, struct pc_error *err)
{
    if (room <= gpu->room)
        return PC_OK;
    uint16_t *grown = realloc(gpu->holders, room * sizeof *grown);
    if (grown == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no host memory for %u units", room);
    memset(grown + gpu->room, 0, (room - gpu->room) * sizeof *grown);
    gpu->holders = grown;
    gpu->room = room;
    return PC_OK;
}

enum pc_status pc_units_resize(struct pc_units *units, unsigned index, uint64_t count, struct pc_error *err)
{
    struct pc_unit_gpu *gpu = &units->gpu[index];
    if (count > PC_UNITS_PER_GPU)
        return pc_error_set(err, PC_ERR_INVALID, 0, "GPU %s would have %llu units, more than %d; make the unit larger",
                            gpu->uuid, (unsigned long long)count, PC_UNITS_PER_GPU);
    enum pc_status status = make_room(gpu, (uint32_t)count, err);
    if (status != PC_OK)
        return status;
    gpu->units = (uint32_t)count;
    gpu->free = 0;
    for (uint32_t i = 0; i < gpu->units; i++)
        gpu->free += gpu->holders[i] == 0;
    return PC_OK;
}

char *pc_unit_id(const struct pc_units *units, struct pc_unit unit, char out[PC_UNIT_ID_MAX])
{
    snprintf(out, PC_UNIT_ID_MAX, "%s-%u", units->gpu[unit.gpu].tag, unit.number);
    return out;
}

/* A decimal number as pc_unit_id writes it: no sign, no leading zero. */
static bool parse_number(const char *text, uint32_t *out)
{
    uint32_t value = 0;
    if (text[0] == '\0' || (text[0] == '0' && text[1] != '\0'))
        return false;
    for (; *text != '\0'; text++) {
        if (*text < '0' || *text > '9' || value > PC_UNITS_PER_GPU)
            return false;
        value = value * 10 + (uint32_t)(*text - '0');
    }
    *out = value;
    return true;
}

enum pc_status pc_unit_parse(const struct pc_units *units, const char *id, struct pc_unit *out, struct pc_error *err)
{
    uint32_t number;
    size_t length = strlen(id);
    if (length <= PC_UNIT_TAG + 1 || id[PC_UNIT_TAG] != '-' || !parse_number(id + PC_UNIT_TAG + 1, &number))
        return pc_error_set(err, PC_ERR_INVALID, 0, "\"%.40s\" is no device id of ours", id);
    for (unsigned i = 0; i < units->gpus; i++) {
        if (memcmp(units->gpu[i].tag, id, PC_UNIT_TAG) != 0)
            continue;
        if (number >= units->gpu[i].room)
            break;
        *out = (struct pc_unit){.gpu = i, .number = number};
        return PC_OK;
    }
    return pc_error_set(err, PC_ERR_INVALID, 0, "this node has no unit \"%.40s\"", id);
}

enum pc_status pc_units_hold(struct pc_units *units, const struct pc_unit_set *set, struct pc_error *err)
{
    for (size_t i = 0; i < set->count; i++) {
        enum pc_status status = make_room(&units->gpu[set->unit[i].gpu], set->unit[i].number + 1, err);
        if (status != PC_OK)
            return status;
    }
    for (size_t i = 0; i < set->count; i++) {
        struct pc_unit_gpu *gpu = &units->gpu[set->unit[i].gpu];
        if (gpu->holders[set->unit[i].number]++ == 0 && set->unit[i].number < gpu->units)
            gpu->free--;
    }
    return PC_OK;
}

void pc_units_drop(struct pc_units *units, const struct pc_unit_set *set)
{
    for (size_t i = 0; i < set->count; i++) {
        struct pc_unit_gpu *gpu = &units->gpu[set->unit[i].gpu];
        if (--gpu->holders[set->unit[i].number] == 0 && set->unit[i].number < gpu->units)
            gpu->free++;
    }
}
