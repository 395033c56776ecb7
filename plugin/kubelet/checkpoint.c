/*
 * The kubelet's own books of devices, device-plugins/kubelet_internal_checkpoint (facts, kubernetes-apis.md,
 * "Checkpoint file"):
 *
 *   {"Data": {"PodDeviceEntries": [{"PodUID", "ContainerName", "ResourceName", "DeviceIDs": {"<numa node or -1>":
 * [id]}, "AllocResp": base64 of a ContainerAllocateResponse}], "RegisteredDevices": {...}}, "Checksum": number}
 *
 * Before Kubernetes 1.20 DeviceIDs was the list of ids itself. Entries of pods that are gone stay for a while. It is
 * nobody's interface, so it serves as a hint: what is not understood is left out, never guessed.
 *
 * The checksum is NOT verified. It is FNV-1a (32 bits) of what a Go library prints for the structure held in memory:
 * the names of Go's types and fields, which the file does not have and which are free to change with every release. In
 * its place stands structure: the file must be whole JSON with nothing behind it, Data must be an
 * object and Checksum a number of its size. The kubelet replaces the file by rename, so a half-written one is not to be
 * expected. It is root's, mode 0600: who can forge it can do worse.
 */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <string.h>
#include <sys/stat.h>

#include "alloc/base/bytes.h"
#include "alloc/base/cleanup.h"
#include "plugin/kubelet/base64.h"
#include "plugin/kubelet/claims.h"
#include "plugin/kubelet/pod_resources.h"
#include "plugin/text/text.h"
#include "proto/device_plugin.pb-c.h"

/* 40,000 ids make 3.3 MB (facts); what is over this is no checkpoint. */
#define FILE_MAX (64 * PC_MIB)

enum { NAME_MAX_BYTES = 253, ID_MAX_BYTES = 1024, HOST_PATH_MAX = 4095 };

struct reading {
    struct pc_claims_builder *builder;
    const char *resource;
    size_t skipped;
};

/* ---- one entry ---- */

static const char *text_of(const json_t *object, const char *key, size_t max)
{
    const char *text = json_string_value(json_object_get(object, key));
    return pc_text_ok(text, max) ? text : NULL;
}

static bool add_ids(struct reading *r, const json_t *ids)
{
    size_t i;
    json_t *id;
    if (!json_is_array(ids))
        return false;
    json_array_foreach(ids, i, id)
    {
        const char *text = json_string_value(id);
        if (!pc_text_ok(text, ID_MAX_BYTES))
            return false;
        pc_claims_add_id(r->builder, text);
    }
    return true;
}

static bool add_devices(struct reading *r, json_t *devices)
{
    const char *node;
    json_t *ids;
    if (json_is_array(devices)) /* before 1.20 */
        return add_ids(r, devices);
    if (!json_is_object(devices))
        return false;
    json_object_foreach(devices, node, ids)
    {
        if (!add_ids(r, ids))
            return false;
    }
    return true;
}

static bool add_mounts(struct reading *r, const uint8_t *bytes, size_t length)
{
    V1beta1__ContainerAllocateResponse *answer = v1beta1__container_allocate_response__unpack(NULL, length, bytes);
    if (answer == NULL)
        return false;
    bool ok = true;
    for (size_t i = 0; i < answer->n_mounts && ok; i++) {
        ok = pc_text_ok(answer->mounts[i]->host_path, HOST_PATH_MAX);
        if (ok)
            pc_claims_add_mount(r->builder, answer->mounts[i]->host_path);
    }
    v1beta1__container_allocate_response__free_unpacked(answer, NULL);
    return ok;
}

/* Nothing there: the kubelet wrote an entry before it had an answer, or a plugin gave an empty one. */
static bool add_answer(struct reading *r, const json_t *base64)
{
    size_t length = 0, text_length = json_string_length(base64);
    if (base64 == NULL || json_is_null(base64))
        return true;
    if (!json_is_string(base64))
        return false;
    pc_auto_free uint8_t *bytes = malloc(pc_base64_room(text_length) + 1);
    return bytes != NULL && pc_base64_decode(json_string_value(base64), text_length, bytes, &length) &&
           add_mounts(r, bytes, length);
}

static void add_entry(struct reading *r, json_t *entry)
{
    const char *resource = text_of(entry, "ResourceName", NAME_MAX_BYTES);
    if (resource != NULL && strcmp(resource, r->resource) != 0)
        return;
    struct pc_claim who = {
        .pod_namespace = "",
        .pod_name = "",
        .pod_uid = text_of(entry, "PodUID", NAME_MAX_BYTES),
        .container = text_of(entry, "ContainerName", NAME_MAX_BYTES),
    };
    if (resource == NULL || who.pod_uid == NULL || who.container == NULL) {
        r->skipped++;
        return;
    }
    pc_claims_begin(r->builder, &who);
    if (add_devices(r, json_object_get(entry, "DeviceIDs")) && add_answer(r, json_object_get(entry, "AllocResp"))) {
        pc_claims_end(r->builder);
    } else {
        pc_claims_cancel(r->builder);
        r->skipped++;
    }
}

/* ---- the whole ---- */

static enum pc_status check_frame(json_t *root, struct pc_error *err)
{
    const json_t *checksum = json_object_get(root, "Checksum"), *data = json_object_get(root, "Data");
    const json_t *entries = json_object_get(data, "PodDeviceEntries");
    double value = json_number_value(checksum);
    if (!json_is_object(data))
        return pc_error_set(err, PC_ERR_PROTOCOL, 0, "the kubelet's checkpoint has no object Data");
    if (!json_is_number(checksum) || value < 0 || value > UINT32_MAX || value != (double)(uint32_t)value)
        return pc_error_set(err, PC_ERR_PROTOCOL, 0, "the kubelet's checkpoint has no Checksum of 32 bits");
    if (entries != NULL && !json_is_null(entries) && !json_is_array(entries))
        return pc_error_set(err, PC_ERR_PROTOCOL, 0, "the kubelet's checkpoint: PodDeviceEntries is no list");
    return PC_OK;
}

static enum pc_status build(struct pc_claims_builder *builder, struct pc_claims **out, struct pc_error *err)
{
    struct pc_claims *claims = calloc(1, sizeof *claims);
    if (claims == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no host memory for the kubelet's checkpoint");
    enum pc_status status = pc_claims_build(builder, claims, err);
    if (status != PC_OK) {
        free(claims);
        return status;
    }
    *out = claims;
    return PC_OK;
}

static enum pc_status read_root(json_t *root, const char *resource, struct pc_claims **out, size_t *skipped,
                                struct pc_error *err)
{
    struct reading r = {.resource = resource};
    size_t i;
    json_t *entry;
    enum pc_status status = check_frame(root, err);
    if (status == PC_OK)
        status = pc_claims_builder_create(&r.builder, err);
    if (status != PC_OK)
        return status;
    json_array_foreach(json_object_get(json_object_get(root, "Data"), "PodDeviceEntries"), i, entry)
        add_entry(&r, entry);
    status = build(r.builder, out, err);
    if (status == PC_OK)
        *skipped = r.skipped;
    pc_claims_builder_free(r.builder);
    return status;
}

enum pc_status pc_checkpoint_parse(const char *text, size_t length, const char *resource, struct pc_claims **out,
                                   size_t *skipped, struct pc_error *err)
{
    json_error_t error;
    /* Integers as doubles: one over 63 bits, in a key that we skip, would else refuse the file. */
    json_t *root = json_loadb(text, length, JSON_DECODE_INT_AS_REAL, &error);
    if (root == NULL && json_error_code(&error) == json_error_out_of_memory)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no host memory for the kubelet's checkpoint");
    if (root == NULL)
        return pc_error_set(err, PC_ERR_PROTOCOL, 0, "the kubelet's checkpoint is no JSON: %.120s at byte %d",
                            error.text, error.position);
    enum pc_status status = read_root(root, resource, out, skipped, err);
    json_decref(root);
    return status;
}

/* ---- the file ---- */

static enum pc_status read_whole(int fd, char *buffer, size_t size, size_t *length, struct pc_error *err)
{
    size_t n = 0;
    while (n < size) {
        ssize_t got = read(fd, buffer + n, size - n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return pc_error_errno(err, errno, "cannot read the kubelet's checkpoint");
        if (got == 0)
            break;
        n += (size_t)got;
    }
    *length = n;
    return PC_OK;
}

enum pc_status pc_checkpoint_read(const char *path, const char *resource, struct pc_claims **out, size_t *skipped,
                                  struct pc_error *err)
{
    struct stat st;
    size_t length = 0;
    pc_auto_fd int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not hold the loop up */
    if (fd < 0 && errno == ENOENT)
        return pc_error_set(err, PC_ERR_NOT_FOUND, ENOENT, "there is no %.300s", path);
    if (fd < 0 || fstat(fd, &st) < 0)
        return pc_error_errno(err, errno, "cannot open %.300s", path);
    if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size > FILE_MAX)
        return pc_error_set(err, PC_ERR_PROTOCOL, 0, "%.300s is no file of at most %llu MiB", path,
                            (unsigned long long)(FILE_MAX / PC_MIB));
    pc_auto_free char *text = malloc((size_t)st.st_size + 1);
    if (text == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no host memory for %.300s", path);
    enum pc_status status = read_whole(fd, text, (size_t)st.st_size, &length, err);
    if (status == PC_OK)
        status = pc_checkpoint_parse(text, length, resource, out, skipped, err);
    return status == PC_OK ? PC_OK : pc_error_prefix(err, "%.200s", path);
}
