/*
 * A driver in 300 lines for the unit tests of alloc/pool: it counts what is alive, notes the order of
 * calls, checks that a context is bound, and fails exactly the call it is told to.
 *
 * It knows one process and no memory contents; whatever needs those runs on the simulator.
 */
#ifndef PC_TESTS_FAKE_CUDA_H
#define PC_TESTS_FAKE_CUDA_H

#include <stdbool.h>
#include <stdint.h>

#include "alloc/driver/driver.h"

#define FAKE_FN(need, name, symbol, args) FAKE_##name,
enum fake_fn { PC_CUDA_TABLE(FAKE_FN) FAKE_FN_COUNT };
#undef FAKE_FN

enum { FAKE_GPUS = 2, FAKE_TRACE = 512 };

struct fake_cuda {
    /* What the driver says of itself; a test sets them after fake_reset. */
    int version;
    int gpus;
    bool pools_supported;
    bool concurrent_managed;

    /* Failure: the fail_at-th call from now of any function, or of fail_fn only; 0 is none. */
    int fail_at;
    int fail_fn; /* an enum fake_fn, or -1 for any */
    pc_cu_result fail_code;
    bool fail_all; /* and every such call after it */

    /* What is alive. All 0 at the end of a test that cleaned up. */
    int contexts[FAKE_GPUS];
    int pools, streams, blocks, handles, ranges, mappings, managed, imports;
    uint64_t used, reserved;       /* bytes, of all pools */
    uint64_t used_high;            /* highest used */
    uint64_t threshold;            /* last RELEASE_THRESHOLD set */
    struct pc_cu_pool_props props; /* of the last pool */
    unsigned stream_flags;         /* of the last stream */
    bool pool_exported;            /* exported once as an fd */

    /* The last call of each that carries figures worth checking. */
    struct pc_cu_access access;
    struct pc_cu_location location;
    pc_cu_advice advice;
    int zeroed;

    int calls[FAKE_FN_COUNT];
    void (*hook)(enum fake_fn fn); /* called inside each call, before it does anything */
};

extern struct fake_cuda fake;

/* Makes everything new and returns the table; functions the fake does not have are NULL. */
const struct pc_cuda *fake_reset(void);

/* Fails the nth call (from 1, from now) of fn, or of any function with fn -1. */
void fake_fail(int fn, int nth, pc_cu_result code);

/* True when the failure that was asked for has happened. */
bool fake_failed(void);

/* The names of the calls since fake_trace_start, "a b c"; valid until the next call. */
void fake_trace_start(void);
const char *fake_trace(void);

/* Driver objects alive now, contexts left out. */
int fake_alive(void);

#endif
