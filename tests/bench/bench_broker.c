/*
 * Requests that do reach poolcapd, against the driver's own cuMemAlloc, in one run:
 *
 *   bench_broker slab [--rounds N]           a 64 MiB slab from a warm pool: request to imported pointer
 *   bench_broker small DIRECTORY [--rounds N] 64 KiB, slabs off (all idle memory is given back between requests),
 * beside four neighbours that loop 1 GiB; DIRECTORY has their grants n1 to n4 bench_broker loop native|ours such a
 * neighbour, for ever; a byte on stdout when it runs
 *
 * JSON lines; the first 100 rounds of each are left out.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/base/bytes.h"
#include "alloc/base/cleanup.h"
#include "alloc/driver/driver.h"
#include "alloc/shim/poolcap.h"
#include "tests/bench/bench.h"

enum { WARM_UP = 100, NEIGHBOURS = 4 };

struct side {
    const char *name;
    void (*take)(uint64_t bytes, uint64_t *ptr);
    void (*give)(uint64_t ptr); /* all the way: nothing of it stays with this process */
};

static struct pc_cuda cu;
static const char *program;

static void die(const char *what)
{
    fprintf(stderr, "bench_broker: %s: %s\n", what, poolcap_last_error());
    exit(1);
}

static void start(void)
{
    struct pc_error err;
    poolcap_memory memory;
    if (pc_cuda_load(NULL, &cu, &err) != PC_OK || poolcap_info(&memory) != POOLCAP_OK) /* makes a context current */
        die("start");
}

static void ours_take(uint64_t bytes, uint64_t *ptr)
{
    if (poolcap_alloc(ptr, bytes, NULL, POOLCAP_POOLED) != POOLCAP_OK)
        die("poolcap_alloc");
}

static void ours_give(uint64_t ptr)
{
    if (poolcap_free(ptr, NULL) != POOLCAP_OK || poolcap_trim(0, NULL) != POOLCAP_OK)
        die("poolcap_free");
}

static void native_take(uint64_t bytes, uint64_t *ptr)
{
    pc_cu_deviceptr got;
    if (cu.cuMemAlloc(&got, bytes) != 0)
        die("cuMemAlloc");
    *ptr = got;
}

static void native_give(uint64_t ptr)
{
    if (cu.cuMemFree(ptr) != 0)
        die("cuMemFree");
}

static const struct side sides[] = {{"native", native_take, native_give}, {"ours", ours_take, ours_give}};

/* The time until memory can be used; giving it back is not in it. */
static void measure(const char *name, const struct side *side, uint64_t bytes, size_t rounds)
{
    uint64_t *times = calloc(rounds, sizeof *times);
    uint64_t ptr;
    if (times == NULL)
        die("no memory");
    for (size_t i = 0; i < WARM_UP + rounds; i++) {
        uint64_t before = bench_now();
        side->take(bytes, &ptr);
        if (i >= WARM_UP)
            times[i - WARM_UP] = bench_now() - before;
        side->give(ptr);
    }
    bench_report(name, side->name, bytes, times, rounds);
    fflush(stdout);
    free(times);
}

/* ---- neighbours ---- */

static int loop(const char *name)
{
    const struct side *side = &sides[strcmp(name, "ours") == 0];
    uint64_t ptr;
    start();
    for (uint64_t i = 0;; i++) {
        side->take(PC_GIB, &ptr);
        side->give(ptr);
        if (i == 0 && write(STDOUT_FILENO, "r", 1) != 1)
            return 1;
    }
}

struct neighbour {
    pid_t pid;
    int out;
};

static void neighbour_start(struct neighbour *n, const char *directory, unsigned number, const char *side)
{
    int out[2];
    char ready, socket[512];
    if (pipe(out) != 0 || (n->pid = fork()) < 0)
        die("a neighbour");
    if (n->pid == 0) {
        snprintf(socket, sizeof socket, "%s/grants/n%u/poolcap.sock", directory, number);
        setenv("POOLCAP_SOCKET", socket, 1);
        dup2(out[1], STDOUT_FILENO);
        close(out[0]);
        execl(program, program, "loop", side, (char *)NULL);
        _exit(127);
    }
    close(out[1]);
    n->out = out[0];
    if (read(n->out, &ready, 1) != 1)
        die("a neighbour did not start");
}

static void neighbour_stop(struct neighbour *n)
{
    kill(n->pid, SIGKILL);
    waitpid(n->pid, NULL, 0);
    close(n->out);
}

static void beside_neighbours(const char *directory, const struct side *side, size_t rounds)
{
    struct neighbour n[NEIGHBOURS];
    for (unsigned i = 0; i < NEIGHBOURS; i++) /* before this process has a context: what is forked keeps its files */
        neighbour_start(&n[i], directory, i + 1, side->name);
    start();
    measure("small_beside_four", side, 64 * PC_KIB, rounds);
    for (unsigned i = 0; i < NEIGHBOURS; i++)
        neighbour_stop(&n[i]);
}

/* Each side in a process of its own, since neighbours are to be started before there is a context. */
static int small(const char *directory, size_t rounds)
{
    for (unsigned i = 0; i < PC_ARRAY_LEN(sides); i++) {
        int status;
        pid_t pid = fork();
        if (pid == 0) {
            beside_neighbours(directory, &sides[i], rounds);
            return 0;
        }
        if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
            return 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    program = argv[0];
    size_t rounds = bench_flag(argc, argv, "--rounds", 5000);
    if (argc > 2 && strcmp(argv[1], "loop") == 0)
        return loop(argv[2]);
    if (argc > 2 && strcmp(argv[1], "small") == 0)
        return small(argv[2], rounds);
    if (argc < 2 || strcmp(argv[1], "slab") != 0) {
        fprintf(stderr, "usage: bench_broker slab | small DIRECTORY | loop native|ours\n");
        return 2;
    }
    start();
    for (unsigned i = 0; i < PC_ARRAY_LEN(sides); i++)
        measure("slab_from_warm_pool", &sides[i], 64 * PC_MIB, rounds);
    return 0;
}
