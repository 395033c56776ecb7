/*
 * Inside of the simulated libcuda: what one process knows. Everything here is under sim_lock.
 *
 *   state_cuda.c   spans: which addresses this process may use, and where their bytes are; contexts; calling in
 *   device_cuda.c  init, devices, contexts            stream_cuda.c  streams, events, capture
 *   pool_cuda.c    pools, export, import              vmm_cuda.c     cuMemCreate and what belongs to it
 *   memory_cuda.c  cuMemAlloc, managed memory, copies, questions about pointers
 */
#ifndef POOLCAP_SIM_CUDA_H
#define POOLCAP_SIM_CUDA_H

#include "tests/sim/sim.h"

/* The library exports exactly the table's functions, with the table's prototypes: another one does not compile. */
#define SIM_DECLARE(need, name, symbol, args) __attribute__((visibility("default"))) pc_cu_result symbol args;
PC_CUDA_TABLE(SIM_DECLARE)
#undef SIM_DECLARE

struct pc_cu_ctx_st {
    unsigned int gpu;
    unsigned int retained; /* 0: there is no such context */
    unsigned long long id;
    unsigned long long legacy_id; /* of its NULL stream */
};

enum span_kind {
    SPAN_DIRECT,  /* owner: the sim_range */
    SPAN_ASYNC,   /* the same, from the device's default pool */
    SPAN_BLOCK,   /* of a pool of this process; owner: the pool */
    SPAN_IMPORT,  /* owner: the imported pool */
    SPAN_MAP,     /* owner: the large memory */
    SPAN_MANAGED, /* host memory, at its own address */
};

struct span {
    uint64_t addr, size;
    uint64_t at; /* the storage address: what names the bytes in the GPU's file */
    enum span_kind kind;
    unsigned int gpu;
    unsigned int access; /* SPAN_MAP: PC_CU_MEM_ACCESS_* */
    void *owner;
};

struct pc_cu_pool_st {
    struct pc_cu_pool_st *next;
    struct sim_pool *shared; /* in the book; valid while this process exports or imports it */
    uint64_t id;
    bool imported, exportable;
    unsigned int gpu;
    unsigned int access[SIM_GPUS];
    size_t live; /* spans; a destroyed pool goes with its last (trap 6) */
    uint64_t used, used_high, reserved_high, threshold;
};

struct sim_process {
    bool initialised;
    bool forked; /* from an initialised process: nothing works here, as in CUDA */
    struct sim_proc *self;
    struct pc_cu_ctx_st contexts[SIM_GPUS];
    unsigned long long last_id; /* of streams and contexts */
    struct span *spans;         /* by address */
    size_t count, room;
    struct pc_cu_pool_st *pools;
};
extern struct sim_process sim;

/* First in every exported function: counts and injects; then refuses what came before cuInit or after a fork. */
#define SIM_CALL(name)                                \
    do {                                              \
        pc_cu_result sim_code = sim_call(SIM_##name); \
        if (sim_code != PC_CU_SUCCESS)                \
            return sim_code;                          \
    } while (0)
pc_cu_result sim_call(enum sim_call_id call);

/* The calling thread's context, or NULL. */
struct pc_cu_ctx_st *sim_current(void);

bool span_room(void); /* before work that ends in span_add, which cannot fail */
void span_add(const struct span *span);
struct span *span_find(uint64_t addr); /* the one that addr lies in */
struct span *span_base(uint64_t addr); /* the one that begins at addr */
void span_remove(struct span *span);
size_t span_first(uint64_t addr);                          /* index of the first span at or behind addr */
uint64_t span_free_address(uint64_t size, uint64_t align); /* of this process alone, for mappings; 0: none */

/* Whether the thread may make a call that is unsafe during a capture; if not, the capture is spoilt (trap 12). */
pc_cu_result capture_check(void);
/* Whether work may be queued on this stream: it exists, has a context, and its capture is not spoilt. */
pc_cu_result stream_check(pc_cu_stream stream);

pc_cu_result stream_set(pc_cu_stream stream, uint64_t addr, uint32_t value, uint64_t size); /* now, or when replayed */
pc_cu_result memory_set(uint64_t addr, uint32_t value, uint64_t size);

pc_cu_result pool_free_span(struct span *span);
void pools_synchronise(void); /* what a synchronising call does to pools over their release threshold */

void direct_drop(unsigned int gpu); /* the context went */
int sim_concurrent_managed(void);

#endif
