#include "alloc/shim/gpu.h"

#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/log.h"
#include "alloc/shim/client.h"
#include "alloc/shim/give.h"
#include "alloc/shim/state.h"
#include "alloc/shim/stream.h"

static struct shim_gpu gpus[SHIM_GPUS];

struct shim_gpu *shim_gpu_at(unsigned i)
{
    return &gpus[i];
}

/* --- which GPUs there are --- */

void shim_gpus_regrant(void)
{
    for (unsigned i = 0; i < SHIM_GPUS; i++)
        atomic_store_explicit(&gpus[i].index, -1, memory_order_relaxed);
}

/* CUDA_VISIBLE_DEVICES may hide and renumber: only the UUID names a GPU. */
static bool find_device(const char *uuid, int *ordinal, pc_cu_device *device)
{
    int count = 0;
    struct pc_cu_uuid raw;
    char text[PC_UUID_TEXT];
    shim.cu.cuDeviceGetCount(&count);
    for (int i = 0; i < count; i++) {
        if (shim.cu.cuDeviceGet(device, i) != PC_CU_SUCCESS ||
            shim.cu.cuDeviceGetUuid(&raw, *device) != PC_CU_SUCCESS || strcmp(pc_uuid_format(&raw, text), uuid) != 0)
            continue;
        *ordinal = i;
        return true;
    }
    return false;
}

static struct shim_gpu *place_for(const char *uuid)
{
    struct shim_gpu *place = NULL;
    for (unsigned i = SHIM_GPUS; i-- > 0;) {
        if (strcmp(gpus[i].uuid, uuid) == 0)
            return &gpus[i];
        if (gpus[i].uuid[0] == '\0')
            place = &gpus[i];
    }
    return place;
}

void shim_gpu_granted(const char *uuid, int index)
{
    int ordinal;
    pc_cu_device device;
    struct shim_gpu *gpu = strlen(uuid) < PC_UUID_TEXT ? place_for(uuid) : NULL;
    if (gpu == NULL || !find_device(uuid, &ordinal, &device))
        return;
    if (gpu->uuid[0] == '\0') {
        memcpy(gpu->uuid, uuid, strlen(uuid) + 1);
        gpu->ordinal = ordinal;
        gpu->device = device;
        shim_heap_init(&gpu->heap);
    }
    atomic_store_explicit(&gpu->index, index, memory_order_release);
}

static bool is_granted(const struct shim_gpu *gpu)
{
    return gpu->uuid[0] != '\0' && atomic_load_explicit(&gpu->index, memory_order_relaxed) >= 0;
}

/* Slabs that pin what another poolcapd left, or that a session which is over has lost: carved on, but given back first.
 */
static void mark_old(struct shim_gpu *gpu, uint32_t session)
{
    shim_lock_take(&gpu->heap.lock);
    for (struct shim_slab *slab = gpu->heap.slabs; slab != NULL; slab = slab->next) {
        if (slab->old || slab->large || slab->session == session)
            continue;
        slab->old = true;
        gpu->heap.old++;
    }
    shim_lock_give(&gpu->heap.lock);
}

enum pc_status shim_gpus_new_session(uint32_t session, struct pc_error *err)
{
    enum pc_status status = PC_OK;
    for (unsigned i = 0; i < SHIM_GPUS; i++) {
        if (gpus[i].uuid[0] == '\0')
            continue;
        mark_old(&gpus[i], session);
        if (!gpus[i].attached || !is_granted(&gpus[i]))
            continue;
        enum pc_status one = shim_client_attach(&gpus[i], err);
        if (one == PC_OK)
            continue;
        gpus[i].attached = false; /* refused, say for want of room: asked again with the next context or growth */
        status = one;
    }
    return status;
}

enum pc_status shim_gpu_first(struct shim_gpu **out, struct pc_error *err)
{
    enum pc_status status = shim_client_connect(err);
    if (status != PC_OK)
        return status;
    struct shim_gpu *first = NULL;
    for (unsigned i = 0; i < SHIM_GPUS; i++)
        if (is_granted(&gpus[i]) && (first == NULL || atomic_load(&gpus[i].index) < atomic_load(&first->index)))
            first = &gpus[i];
    if (first == NULL)
        return pc_error_set(err, PC_ERR_NOT_FOUND, 0,
                            "none of the granted GPUs is visible to this process; check CUDA_VISIBLE_DEVICES");
    *out = first;
    return PC_OK;
}

struct shim_gpu *shim_gpu_of_ordinal(int ordinal)
{
    for (unsigned i = 0; i < SHIM_GPUS; i++)
        if (gpus[i].uuid[0] != '\0' && gpus[i].ordinal == ordinal)
            return &gpus[i];
    return NULL;
}

enum pc_status shim_gpu_of_device(pc_cu_device device, struct shim_gpu **out, struct pc_error *err)
{
    enum pc_status status = shim_client_connect(err);
    if (status != PC_OK)
        return status;
    for (unsigned i = 0; i < SHIM_GPUS; i++) {
        if (!is_granted(&gpus[i]) || gpus[i].device != device)
            continue;
        *out = &gpus[i];
        return PC_OK;
    }
    struct pc_cu_uuid raw = {{0}};
    char text[PC_UUID_TEXT];
    shim.cu.cuDeviceGetUuid(&raw, device);
    return pc_error_set(err, PC_ERR_NOT_FOUND, 0,
                        "%s is not granted to this container: its memory is not poolcap's to give",
                        pc_uuid_format(&raw, text));
}

enum pc_status shim_gpu_attach(struct shim_gpu *gpu, struct pc_error *err)
{
    if (gpu->attached)
        return PC_OK;
    enum pc_status status = shim_client_attach(gpu, err);
    gpu->attached = status == PC_OK;
    return status;
}

/* --- figures --- */

static const struct pc_page_gpu *page_of(const struct shim_gpu *gpu)
{
    const struct pc_page *page = atomic_load_explicit(&shim_client_page, memory_order_acquire);
    int index = atomic_load_explicit(&gpu->index, memory_order_relaxed);
    return page != NULL && index >= 0 ? &page->gpu[index] : NULL;
}

void shim_gpu_figures(struct shim_gpu *gpu, struct pc_page_figures *out)
{
    const struct pc_page_gpu *page = page_of(gpu);
    if (page != NULL)
        pc_page_read(page, &gpu->figures);
    *out = gpu->figures;
}

bool shim_gpu_wanted(const struct shim_gpu *gpu)
{
    const struct pc_page_gpu *page = page_of(gpu);
    return page != NULL && atomic_load_explicit(&page->wanted, memory_order_relaxed) != 0;
}

void shim_gpu_context_lost(struct shim_context *context)
{
    struct shim_gpu *gpu = atomic_load_explicit(&context->gpu, memory_order_relaxed);
    shim_lock_take(&gpu->heap.lock);
    context->events_count = 0; /* the driver destroyed them with the context */
    for (struct shim_stream *stream = gpu->streams, *next; stream != NULL; stream = next) {
        next = stream->next;
        if (stream->context != context)
            continue;
        stream->events_count = 0;
        shim_stream_forget(stream);
    }
    shim_lock_give(&gpu->heap.lock);
}
