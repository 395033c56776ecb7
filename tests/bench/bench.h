/* What the benchmarks share: a clock, percentiles, and one JSON line a result. */
#ifndef PC_TESTS_BENCH_H
#define PC_TESTS_BENCH_H

#include <stddef.h>
#include <stdint.h>

/* Nanoseconds of the monotonic clock. */
uint64_t bench_now(void);

/* The p-th percentile (0 to 100) of values, which are sorted on the way. 0 for none. */
uint64_t bench_percentile(uint64_t *values, size_t count, double p);

/*
 * Prints {"name":...,"side":...,"size":...,"n":...,"p50_ns":...,"p99_ns":...,"max_ns":...} on stdout. side is "native",
 * "ours" or "peer"; values are sorted on the way.
 */
void bench_report(const char *name, const char *side, uint64_t size, uint64_t *values, size_t count);

/* The number behind a flag ("--pairs 1000"), or otherwise. */
uint64_t bench_flag(int argc, char **argv, const char *flag, uint64_t otherwise);
int bench_has(int argc, char **argv, const char *flag);

#endif
