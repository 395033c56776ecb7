#include "tests/bench/bench.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

uint64_t bench_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

uint64_t bench_percentile(uint64_t *values, size_t count, double p)
{
    if (count == 0)
        return 0;
    qsort(values, count, sizeof *values, compare);
    size_t at = (size_t)(p / 100.0 * (double)count);
    return values[at < count ? at : count - 1];
}

void bench_report(const char *name, const char *side, uint64_t size, uint64_t *values, size_t count)
{
    printf("{\"name\":\"%s\",\"side\":\"%s\",\"size\":%" PRIu64 ",\"n\":%zu,\"p50_ns\":%" PRIu64 ",\"p99_ns\":%" PRIu64
           ",\"max_ns\":%" PRIu64 "}\n",
           name, side, size, count, bench_percentile(values, count, 50), bench_percentile(values, count, 99),
           bench_percentile(values, count, 100));
    fflush(stdout);
}

uint64_t bench_flag(int argc, char **argv, const char *flag, uint64_t otherwise)
{
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], flag) == 0)
            return strtoull(argv[i + 1], NULL, 10);
    return otherwise;
}

int bench_has(int argc, char **argv, const char *flag)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], flag) == 0)
            return 1;
    return 0;
}
