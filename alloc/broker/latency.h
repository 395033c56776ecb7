/* How long requests for memory take from their arrival to their answer: a histogram a GPU, for the admin socket. */
#ifndef PC_BROKER_LATENCY_H
#define PC_BROKER_LATENCY_H

#include <stdint.h>

enum { PC_LATENCY_BOUNDS = 16 };

/* Upper bounds, inclusive, in ns, rising. */
extern const uint64_t pc_latency_bounds_ns[PC_LATENCY_BOUNDS];

struct pc_latency {
    uint64_t
        buckets[PC_LATENCY_BOUNDS + 1]; /* counts, not cumulative; the last is for what is longer than all bounds */
    uint64_t sum_ns;
};

void pc_latency_add(struct pc_latency *latency, uint64_t ns);

#endif
