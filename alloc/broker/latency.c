#include "alloc/broker/latency.h"

#define US 1000ull
#define MS (1000 * US)

/*
 * Memory that is used again takes 27 us, 400 us where it is 1 GiB; memory new to the pool up to 8 ms (facts, H200). A
 * request that is short of it waits 50 ms for its siblings or 600 ms for the card; after 5 s a driver is taken to hang.
 */
const uint64_t pc_latency_bounds_ns[PC_LATENCY_BOUNDS] = {
    10 * US, 25 * US, 50 * US, 100 * US, 250 * US, 500 * US, 1 * MS,    2500 * US,
    5 * MS,  10 * MS, 25 * MS, 50 * MS,  100 * MS, 250 * MS, 1000 * MS, 5000 * MS,
};

void pc_latency_add(struct pc_latency *latency, uint64_t ns)
{
    unsigned at = 0;
    while (at < PC_LATENCY_BOUNDS && ns > pc_latency_bounds_ns[at])
        at++;
    latency->buckets[at]++;
    latency->sum_ns += ns;
}
