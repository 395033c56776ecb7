/*
 * One allocation and its free, 512 B to 2 MiB and a few larger: poolcap_alloc + poolcap_free against the driver's own
 * cuMemAllocAsync + cuMemFreeAsync from a warm default pool, in one run, in turns.
 *
 *   bench_shim_pair [--rounds N] [--stream]    JSON lines; the first 100 rounds of each are left out
 *   bench_shim_pair --pairs N [--size B] --quiet   only N pairs of ours, and nothing printed: for strace and callgrind
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/bytes.h"
#include "alloc/driver/driver.h"
#include "alloc/shim/poolcap.h"
#include "tests/bench/bench.h"

enum { WARM_UP = 100 };

static struct pc_cuda cu;
static pc_cu_stream stream; /* NULL: the legacy one */

static void die(const char *what)
{
    fprintf(stderr, "bench_shim_pair: %s: %s\n", what, poolcap_last_error());
    exit(1);
}

static void ours(uint64_t bytes)
{
    poolcap_ptr ptr;
    if (poolcap_alloc(&ptr, bytes, stream, POOLCAP_POOLED) != POOLCAP_OK || poolcap_free(ptr, stream) != POOLCAP_OK)
        die("a pair of ours");
}

static void native(uint64_t bytes)
{
    pc_cu_deviceptr ptr;
    if (cu.cuMemAllocAsync(&ptr, bytes, stream) != 0 || cu.cuMemFreeAsync(ptr, stream) != 0)
        die("a pair of the driver's");
}

/*
 * What another process of the pod or the idle rule may cost stays in: the pool of the driver is warm by the program's
 * own release threshold, ours by the idle rule alone.
 */
static void measure(void (*pair)(uint64_t), const char *side, uint64_t bytes, size_t rounds)
{
    uint64_t *times = calloc(rounds, sizeof *times);
    if (times == NULL)
        die("no memory");
    for (size_t i = 0; i < WARM_UP; i++)
        pair(bytes);
    for (size_t i = 0; i < rounds; i++) {
        uint64_t before = bench_now();
        pair(bytes);
        times[i] = bench_now() - before;
    }
    bench_report("alloc_free_pair", side, bytes, times, rounds);
    free(times);
}

/* cuMemAllocAsync's own pool: kept warm as a program that cares would, by holding a block of it. */
static void warm_native_pool(void)
{
    pc_cu_deviceptr kept;
    if (cu.cuMemAllocAsync(&kept, 64 * PC_MIB, stream) != 0)
        die("the driver's pool");
}

int main(int argc, char **argv)
{
    static const uint64_t sizes[] = {512,          4 * PC_KIB, 64 * PC_KIB, 256 * PC_KIB,
                                     512 * PC_KIB, 2 * PC_MIB, 64 * PC_MIB, 256 * PC_MIB};
    struct pc_error err;
    poolcap_memory memory;
    if (pc_cuda_load(NULL, &cu, &err) != PC_OK || poolcap_info(&memory) != POOLCAP_OK) /* makes a context current */
        die("start");
    if (bench_has(argc, argv, "--stream") && cu.cuStreamCreate(&stream, PC_CU_STREAM_NON_BLOCKING) != 0)
        die("cuStreamCreate");
    uint64_t pairs = bench_flag(argc, argv, "--pairs", 0);
    uint64_t size = bench_flag(argc, argv, "--size", 4096);
    for (uint64_t i = 0; i < pairs; i++)
        ours(size);
    if (pairs > 0 || bench_has(argc, argv, "--quiet"))
        return 0;
    size_t rounds = bench_flag(argc, argv, "--rounds", 20000);
    warm_native_pool();
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        measure(native, "native", sizes[i], rounds);
        measure(ours, "ours", sizes[i], rounds);
    }
    return 0;
}
