/* Which addresses this process may use, and what every call begins with. */
#include "tests/sim/sim_cuda.h"

#include <stdlib.h>
#include <string.h>

struct sim_process sim;

/* Addresses that only this process knows: reservations, and a pool's memory imported into its own exporter. */
#define PRIVATE_FIRST ((SIM_GPUS + 1ull) * SIM_SPACE)
#define PRIVATE_END (PRIVATE_FIRST + SIM_SPACE)

/* Each function must exist: a missing one is an undefined symbol here, and the library does not load. */
__attribute__((used)) static void *const every_function[] = {
#define FUNCTION(need, name, symbol, args) (void *)symbol,
    PC_CUDA_TABLE(FUNCTION)
#undef FUNCTION
};

pc_cu_result sim_call(enum sim_call_id call)
{
    /* Read without the lock, as a thread that races cuInit does at its own risk. */
    if (__atomic_load_n(&sim.forked, __ATOMIC_ACQUIRE))
        return PC_CU_ERROR_NOT_INITIALIZED;
    pc_cu_result code = sim_inject(call);
    if (code != PC_CU_SUCCESS)
        return code;
    return __atomic_load_n(&sim.initialised, __ATOMIC_ACQUIRE) ? PC_CU_SUCCESS : PC_CU_ERROR_NOT_INITIALIZED;
}

bool span_room(void)
{
    if (sim.count < sim.room)
        return true;
    size_t room = sim.room > 0 ? 2 * sim.room : 64;
    struct span *grown = realloc(sim.spans, room * sizeof *grown);
    if (grown == NULL)
        return false;
    sim.spans = grown;
    sim.room = room;
    return true;
}

size_t span_first(uint64_t addr)
{
    size_t low = 0, high = sim.count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (sim.spans[middle].addr < addr)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void span_add(const struct span *span)
{
    size_t i = span_first(span->addr);
    memmove(&sim.spans[i + 1], &sim.spans[i], (sim.count - i) * sizeof *span);
    sim.spans[i] = *span;
    sim.count++;
}

void span_remove(struct span *span)
{
    sim.count--;
    size_t i = (size_t)(span - sim.spans);
    memmove(span, span + 1, (sim.count - i) * sizeof *span);
}

struct span *span_base(uint64_t addr)
{
    size_t i = span_first(addr);
    return i < sim.count && sim.spans[i].addr == addr ? &sim.spans[i] : NULL;
}

/* Imports with forged data may overlap, so the nearest one below is not always the one; look on. */
struct span *span_find(uint64_t addr)
{
    for (size_t i = span_first(addr + 1); i > 0; i--) {
        struct span *span = &sim.spans[i - 1];
        if (addr - span->addr < span->size)
            return span;
        if (span->kind != SPAN_IMPORT)
            return NULL;
    }
    return NULL;
}

uint64_t span_free_address(uint64_t size, uint64_t align)
{
    static uint64_t next = PRIVATE_FIRST; /* never used twice in a process: 8 TiB are enough for a test */
    uint64_t at = sim_up(next, align);
    if (size > PRIVATE_END - at)
        return 0;
    next = at + size;
    return at;
}
