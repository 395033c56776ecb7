#include "tests/integration/shim_harness.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "alloc/shim/state.h"

struct node node;

void check_failed(const char *file, int line, const char *what)
{
    fprintf(stderr, "%s:%d: %s; last error: %s\n", file, line, what, poolcap_last_error());
    if (node.daemon > 0)
        node_close(&node);
    _exit(1);
}

static void wait_for(pid_t pid)
{
    int status;
    if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_msg("the child ended with status %#x; its message stands above", (unsigned)status);
}

static void serve_and_run(void (*body)(void), const char *yaml)
{
    char path[256];
    alarm(240);
    node_open(&node);
    node_configure(&node, yaml);
    node_start(&node);
    node_socket(&node, "a", path);
    setenv("POOLCAP_SOCKET", path, 1);
    body();
    node_close(&node);
    _exit(0);
}

void run_on_node(void (*body)(void), uint64_t memory)
{
    char yaml[200];
    pid_t pid = fork();
    if (pid != 0) {
        wait_for(pid);
        return;
    }
    snprintf(yaml, sizeof yaml, "grants:\n- name: a\n  memory: %llu\n", (unsigned long long)memory);
    serve_and_run(body, yaml);
}

void run_on_two_gpus(void (*body)(void), int granted)
{
    char dir[256];
    const char *before = getenv("POOLCAP_SIM_DIR");
    pid_t pid = fork();
    if (pid != 0) {
        wait_for(pid);
        return;
    }
    if (before == NULL) /* a real machine has the GPUs that it has */
        _exit(0);
    snprintf(dir, sizeof dir, "%s-two", before); /* how many there are is written when the directory is made */
    setenv("POOLCAP_SIM_DIR", dir, 1);
    setenv("POOLCAP_SIM_GPUS", "2", 1);
    serve_and_run(body, granted == 2 ? "grants:\n- name: a\n  gpus: [{gpu: 0, memory: 1Gi}, {gpu: 1, memory: 512Mi}]\n"
                                     : "grants:\n- name: a\n  gpus: [{gpu: 0, memory: 1Gi}]\n");
}

void run_alone(void (*body)(void))
{
    pid_t pid = fork();
    if (pid != 0) {
        wait_for(pid);
        return;
    }
    alarm(60);
    unsetenv("POOLCAP_SOCKET");
    body();
    _exit(0);
}

const struct pc_cuda *driver(void)
{
    return &shim.cu;
}

poolcap_ptr take(size_t bytes, poolcap_stream stream)
{
    poolcap_ptr ptr = 0;
    CHECK_OK(poolcap_alloc(&ptr, bytes, stream, POOLCAP_POOLED));
    CHECK(ptr != 0);
    return ptr;
}

void give(poolcap_ptr ptr, poolcap_stream stream)
{
    CHECK_OK(poolcap_free(ptr, stream));
}

void fill(poolcap_ptr ptr, size_t bytes, unsigned char with)
{
    CHECK(shim.cu.cuMemsetD8(ptr, with, bytes) == 0);
}

int holds(poolcap_ptr ptr, size_t bytes, unsigned char what)
{
    unsigned char *copy = malloc(bytes);
    CHECK(copy != NULL && shim.cu.cuMemcpyDtoH(copy, ptr, bytes) == 0);
    size_t i = 0;
    while (i < bytes && copy[i] == what)
        i++;
    free(copy);
    return i == bytes;
}

poolcap_memory info(void)
{
    poolcap_memory memory;
    CHECK_OK(poolcap_info(&memory));
    return memory;
}

void nap_ms(unsigned ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

int run_self(const char *argument)
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        execl("/proc/self/exe", "test", argument, (char *)NULL);
        _exit(127);
    }
    if (waitpid(pid, &status, 0) != pid)
        return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}
