/* Losing poolcapd and finding it again, forks, and processes that poolcap has nothing to do with. */
#include "tests/integration/shim_harness.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/shim/client.h"
#include "alloc/shim/gpu.h"
#include "alloc/shim/map.h"
#include "alloc/shim/state.h"

static uint64_t now_ms(void)
{
    return shim_now() / 1000000;
}

static struct shim_slab *slab_of(poolcap_ptr ptr)
{
    return shim_map_find(ptr);
}

static unsigned generations(void)
{
    unsigned count = 0;
    for (unsigned i = 0; i < SHIM_GENERATIONS; i++)
        count += shim_gpu_at(0)->generations[i].id != 0;
    return count;
}

static void charged_falls_to(uint64_t bytes)
{
    for (unsigned i = 0; i < 300 && info().charged > bytes; i++)
        nap_ms(20);
    CHECK(info().charged <= bytes);
}

/* --- poolcapd dies --- */

static void body_killed(void)
{
    poolcap_ptr none, a = take(20 * PC_MIB, NULL);
    poolcap_memory before = info();
    fill(a, 20 * PC_MIB, 0x5a);
    uint64_t old_generation = slab_of(a)->generation->id;
    node_kill(&node);

    poolcap_ptr b = take(5 * PC_MIB, NULL); /* out of the slab that is held */
    CHECK(holds(a, 20 * PC_MIB, 0x5a));
    uint64_t began = now_ms();
    CHECK(poolcap_alloc(&none, 100 * PC_MIB, NULL, 0) == POOLCAP_UNREACHABLE);
    CHECK(now_ms() - began < 400);
    CHECK(poolcap_to_curesult(POOLCAP_UNREACHABLE) == PC_CU_ERROR_OUT_OF_MEMORY);
    began = now_ms();
    for (unsigned i = 0; i < 100; i++)
        CHECK(poolcap_alloc(&none, 100 * PC_MIB, NULL, 0) == POOLCAP_UNREACHABLE);
    CHECK(now_ms() - began < 100);
    CHECK(info().charged == before.charged && info().total == before.total); /* as last known */

    node_start(&node);
    nap_ms(1100);
    poolcap_ptr c = take(100 * PC_MIB, NULL);
    CHECK(slab_of(a)->old && !slab_of(c)->old);
    CHECK(slab_of(c)->generation->id != old_generation && generations() == 2);
    CHECK(holds(a, 20 * PC_MIB, 0x5a));
    poolcap_ptr d = take(5 * PC_MIB, NULL); /* old slabs go on being carved */
    CHECK(slab_of(d) == slab_of(a));
    give(a, NULL);
    give(b, NULL);
    CHECK(generations() == 2);
    give(d, NULL); /* the last of it: given back whatever the idle rule says, and the import dropped */
    CHECK(generations() == 1);
    charged_falls_to(before.charged - 32 * PC_MIB + slab_of(c)->region.bytes);
    fill(c, 100 * PC_MIB, 1);
    give(c, NULL);
}

/* A process that only frees goes back to the new poolcapd too, or it would hold what the old one left for ever. */
static void body_killed_and_then_only_frees(void)
{
    poolcap_ptr a = take(20 * PC_MIB, NULL), b = take(1000, NULL), none;
    uint64_t left = slab_of(a)->generation->id;
    node_kill(&node);
    CHECK(poolcap_alloc(&none, 100 * PC_MIB, NULL, 0) == POOLCAP_UNREACHABLE); /* notices */
    give(a, NULL);
    node_start(&node);
    nap_ms(1100);
    give(b, NULL); /* the slab is idle now */
    CHECK(shim_gpu_at(0)->heap.held == 0);
    for (unsigned i = 0; i < SHIM_GENERATIONS; i++)
        CHECK(shim_gpu_at(0)->generations[i].id != left);
}

/* The pool that the dead poolcapd left is wholly idle when the new one comes. */
static void body_killed_while_idle(void)
{
    poolcap_ptr a = take(20 * PC_MIB, NULL);
    give(a, NULL);
    node_kill(&node);
    a = take(20 * PC_MIB, NULL);
    give(a, NULL);
    node_start(&node);
    poolcap_ptr b = take(60 * PC_MIB, NULL);
    give(b, NULL);
    CHECK(generations() == 1);
}

static void body_killed_with_large_and_direct(void)
{
    poolcap_ptr direct;
    poolcap_ptr large = take(5 * PC_GIB, NULL);
    CHECK_OK(poolcap_alloc(&direct, 4 * PC_MIB, NULL, POOLCAP_DIRECT));
    node_kill(&node);
    node_start(&node);
    poolcap_ptr small = take(1000, NULL); /* connects */
    uint64_t charged = info().charged;
    CHECK(charged > 5 * PC_GIB);
    give(large, NULL);
    CHECK_OK(poolcap_trim(0, NULL));
    give(direct, NULL);
    charged_falls_to(charged - 5 * PC_GIB - 4 * PC_MIB);
    give(small, NULL);
}

static void body_back_within_the_patience(void)
{
    take(1000, NULL);
    node_kill(&node);
    pid_t late = fork();
    if (late == 0) {
        nap_ms(30);
        char program[300];
        snprintf(program, sizeof program, "%s/bin/poolcapd", node.build);
        execl(program, "poolcapd", "--config", node.config, (char *)NULL);
        _exit(127);
    }
    node.daemon = late;
    poolcap_ptr ptr;
    poolcap_status status = POOLCAP_UNREACHABLE;
    for (unsigned i = 0; i < 100 && status != POOLCAP_OK; i++)
        if ((status = poolcap_alloc(&ptr, 50 * PC_MIB, NULL, 0)) != POOLCAP_OK)
            nap_ms(20);
    CHECK(status == POOLCAP_OK);
}

/* --- the same poolcapd again --- */

static int session_socket(void)
{
    for (int fd = 3; fd < 256; fd++) {
        struct sockaddr_un address = {.sun_path = ""};
        socklen_t length = sizeof address;
        if (getpeername(fd, (struct sockaddr *)&address, &length) == 0 && address.sun_family == AF_UNIX &&
            strstr(address.sun_path, "poolcap.sock") != NULL)
            return fd;
    }
    return -1;
}

static void body_connection_lost(void)
{
    poolcap_ptr a = take(20 * PC_MIB, NULL);
    uint64_t charged = info().charged;
    CHECK(shutdown(session_socket(), SHUT_RDWR) == 0);
    nap_ms(50);
    poolcap_ptr b = take(100 * PC_MIB, NULL);
    CHECK(!slab_of(a)->old && generations() == 1); /* poolcapd knows this process, and what it holds */
    CHECK(info().charged == charged + slab_of(b)->region.bytes);
    give(a, NULL);
    give(b, NULL);
    CHECK_OK(poolcap_trim(0, NULL));
    CHECK(info().held == 0);
    take(1000, NULL);
}

static void body_one_line_an_outage(void)
{
    char log[200], text[4096] = "";
    poolcap_ptr none;
    take(1000, NULL);
    snprintf(log, sizeof log, "%s/stderr", node.dir);
    int saved = dup(2), fd = open(log, O_CREAT | O_RDWR | O_TRUNC, 0600);
    dup2(fd, 2);
    for (unsigned round = 0; round < 2; round++) {
        node_kill(&node);
        for (unsigned i = 0; i < 5; i++) {
            CHECK(poolcap_alloc(&none, 100 * PC_MIB, NULL, 0) == POOLCAP_UNREACHABLE);
            nap_ms(30);
        }
        node_start(&node);
        nap_ms(1100);
        give(take(100 * PC_MIB, NULL), NULL);
    }
    dup2(saved, 2);
    CHECK(pread(fd, text, sizeof text - 1, 0) > 0);
    unsigned lines = 0;
    for (const char *at = text; (at = strstr(at, "shim: no new GPU memory")) != NULL; at++)
        lines++;
    CHECK(lines == 2);
}

/* --- forks --- */

static void body_forked_child(void)
{
    poolcap_ptr a = take(PC_MIB, NULL), none;
    fill(a, PC_MIB, 1);
    int sock = session_socket(), status;
    pid_t pid = fork();
    if (pid == 0) {
        char text[100];
        poolcap_memory memory;
        bool good = poolcap_alloc(&none, 100, NULL, 0) == POOLCAP_FORKED && poolcap_free(a, NULL) == POOLCAP_FORKED &&
                    poolcap_alloc(&none, 100, NULL, POOLCAP_DIRECT) == POOLCAP_FORKED &&
                    poolcap_info(&memory) == POOLCAP_FORKED && poolcap_trim(0, NULL) == POOLCAP_FORKED &&
                    poolcap_describe(text, sizeof text) == POOLCAP_FORKED &&
                    poolcap_stream_gone(NULL) == POOLCAP_FORKED && poolcap_last_error()[0] != '\0';
        good = good && fcntl(sock, F_GETFD) == FD_CLOEXEC; /* open, and not passed on */
        _exit(good ? 0 : 1);
    }
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    CHECK(holds(a, PC_MIB, 1));
    give(take(100 * PC_MIB, NULL), NULL); /* the parent's session goes on */
    give(a, NULL);
}

/* --- not under poolcap --- */

static void body_no_socket(void)
{
    poolcap_ptr ptr;
    poolcap_memory memory;
    char text[200];
    CHECK(poolcap_alloc(&ptr, 1000, NULL, 0) == POOLCAP_UNAVAILABLE);
    CHECK(poolcap_info(&memory) == POOLCAP_UNAVAILABLE);
    CHECK(poolcap_describe(text, sizeof text) == POOLCAP_UNAVAILABLE);
    CHECK(strncmp(text, "capped: no, because cannot connect", 34) == 0);
    CHECK(poolcap_trim(0, NULL) == POOLCAP_OK);
    CHECK(poolcap_free(4096, NULL) == POOLCAP_INVALID);
    pc_cu_context ctx = NULL;
    CHECK(shim.cu.cuCtxGetCurrent(&ctx) == 0 && ctx == NULL); /* no context was made */
    CHECK(poolcap_to_curesult(POOLCAP_UNAVAILABLE) == PC_CU_ERROR_NOT_INITIALIZED);
}

static void body_promised_socket_missing(void)
{
    poolcap_ptr ptr;
    setenv("POOLCAP_SOCKET", "/nowhere/poolcap.sock", 1);
    CHECK(poolcap_alloc(&ptr, 1000, NULL, 0) == POOLCAP_UNREACHABLE); /* fails closed */
    CHECK(strstr(poolcap_last_error(), "/nowhere/poolcap.sock") != NULL);
}

static void body_no_driver(void)
{
    /* The loader has read LD_LIBRARY_PATH already: another program has to look. */
    setenv("LD_LIBRARY_PATH", "/nowhere", 1);
    CHECK(run_self("no-driver") == 0);
}

static int no_driver_main(void)
{
    poolcap_ptr ptr;
    if (access("/dev/nvidiactl", F_OK) == 0)
        return 0;
    if (poolcap_stream_gone(NULL) != POOLCAP_OK || poolcap_alloc(&ptr, 1, NULL, 0) != POOLCAP_UNAVAILABLE)
        return 1;
    return strstr(poolcap_last_error(), "libcuda.so.1") != NULL ? 0 : 2;
}

static void body_hidden_gpu(void)
{
    /* Granted, but not this process's to see. */
    static struct pc_cuda table;
    struct pc_error err;
    CHECK(pc_cuda_load(NULL, &table, &err) == PC_OK);
    shim_use_driver(&table);
    poolcap_ptr a = take(1000, NULL);
    give(a, NULL);
    CHECK(shim_gpu_at(0)->uuid[0] != '\0' && shim_gpu_at(1)->uuid[0] == '\0');
    atomic_store(&shim_gpu_at(0)->index, -1); /* as after a new greeting without it */
    poolcap_ptr b = take(1000, NULL);
    CHECK(b == a);
    CHECK(poolcap_alloc(&b, 100 * PC_MIB, NULL, 0) == POOLCAP_UNAVAILABLE);
    CHECK(strstr(poolcap_last_error(), "not granted") != NULL);
}

#define TEST(name, memory)                \
    static void name(void **state)        \
    {                                     \
        (void)state;                      \
        run_on_node(body_##name, memory); \
    }
#define TEST_ALONE(name)           \
    static void name(void **state) \
    {                              \
        (void)state;               \
        run_alone(body_##name);    \
    }
TEST(killed, PC_GIB)
TEST(killed_and_then_only_frees, PC_GIB)
TEST(killed_while_idle, PC_GIB)
TEST(killed_with_large_and_direct, 8 * PC_GIB)
TEST(back_within_the_patience, PC_GIB)
TEST(connection_lost, PC_GIB)
TEST(one_line_an_outage, PC_GIB)
TEST(forked_child, PC_GIB)
TEST(hidden_gpu, PC_GIB)
TEST_ALONE(no_socket)
TEST_ALONE(promised_socket_missing)
TEST_ALONE(no_driver)

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "no-driver") == 0)
        return no_driver_main();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed),
        cmocka_unit_test(killed_and_then_only_frees),
        cmocka_unit_test(killed_while_idle),
        cmocka_unit_test(killed_with_large_and_direct),
        cmocka_unit_test(back_within_the_patience),
        cmocka_unit_test(connection_lost),
        cmocka_unit_test(one_line_an_outage),
        cmocka_unit_test(forked_child),
        cmocka_unit_test(hidden_gpu),
        cmocka_unit_test(no_socket),
        cmocka_unit_test(promised_socket_missing),
        cmocka_unit_test(no_driver),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
