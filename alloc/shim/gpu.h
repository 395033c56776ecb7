/*
 * One granted GPU in this process: its heap, its streams, and the generations of the pool that were imported.
 *
 * Thread rules: the heap and the streams are under heap.lock, the rest under shim.slow, where nothing else is said.
 */
#ifndef PC_SHIM_GPU_H
#define PC_SHIM_GPU_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "alloc/base/error.h"
#include "alloc/driver/driver.h"
#include "alloc/shim/heap.h"
#include "proto/page.h"

struct shim_stream;
struct shim_context;

enum { SHIM_GPUS = PC_PAGE_GPUS_MAX, SHIM_GENERATIONS = 64, SHIM_STREAM_CHAINS = 64 };

struct shim_generation {
    uint64_t id; /* 0: a free place */
    pc_cu_mempool pool;
    uint64_t slabs;
    uint32_t session; /* in which it was sent */
};

struct shim_gpu {
    struct shim_heap heap;
    struct shim_meta streams_free;
    struct shim_stream *streams, *chain[SHIM_STREAM_CHAINS];
    unsigned streams_count;
    uint64_t pass;

    char uuid[PC_UUID_TEXT]; /* empty: a free place */
    int ordinal;             /* of this process; the driver's device goes with it */
    pc_cu_device device;
    _Atomic int index; /* among what this session was granted; -1: not granted (any more) */
    bool attached;     /* this process's context is to be booked, in each new session again */
    struct shim_generation generations[SHIM_GENERATIONS];
    _Atomic uint64_t direct;        /* bytes charged outside slabs and large memory */
    struct pc_page_figures figures; /* as last read; under heap.lock */

    /* The idle rule, in nanoseconds; under heap.lock. */
    uint64_t gave_at;    /* when it last gave slabs back */
    uint64_t hold_until; /* till when it rests */
    uint64_t look_at;    /* when it looks again, after streams were found at work */
};

/* A new session: the GPU at `index` of its list. Finds the process's device, or says that there is none. */
void shim_gpus_regrant(void);
void shim_gpu_granted(const char *uuid, int index);
/* Marks everything got in earlier sessions; books the contexts again. Errors: those of attaching. */
enum pc_status shim_gpus_new_session(uint32_t session, struct pc_error *err);

/* The first granted GPU that this process can see; the one of a device. Connect if need be. Errors: those of
 * connecting; PC_ERR_NOT_FOUND. */
enum pc_status shim_gpu_first(struct shim_gpu **out, struct pc_error *err);
enum pc_status shim_gpu_of_device(pc_cu_device device, struct shim_gpu **out, struct pc_error *err);
struct shim_gpu *shim_gpu_of_ordinal(int ordinal);

/* Has this process's context booked, once a session. */
enum pc_status shim_gpu_attach(struct shim_gpu *gpu, struct pc_error *err);

/* The i-th place; with an empty uuid: nothing there. Any thread, without a lock, may walk for heaps. */
struct shim_gpu *shim_gpu_at(unsigned i);

/*
 * Gets a slab that a request of `bytes` fits in, as large as is sensible and possible, and adds it to the heap. The
 * context of the calling thread is the GPU's. Errors: PC_ERR_OUT_OF_MEMORY, PC_ERR_CAPTURE, those of connecting,
 * PC_ERR_DRIVER. large: as cuMemCreate memory, one mapping.
 */
enum pc_status shim_gpu_grow(struct shim_gpu *gpu, uint64_t bytes, bool large, struct pc_error *err);

/* A generation lost its last slab: drops the import and queues the word to poolcapd. */
void shim_gpu_generation_dropped(struct shim_generation *generation);

/* The figures in the page, or as last read. Under heap.lock. */
void shim_gpu_figures(struct shim_gpu *gpu, struct pc_page_figures *out);

/* Bytes that another process of the pod is short of. Any thread. */
bool shim_gpu_wanted(const struct shim_gpu *gpu);

/*
 * A context went away unsaid and its handle now means another: its streams' memory is clean, since the driver ends all
 * work of a context that it destroys. Takes the heap's lock.
 */
void shim_gpu_context_lost(struct shim_context *context);

#endif
