/*
 * Pools across processes, on the driver that is there (the simulator, or a real one).
 *
 * CUDA refuses a child forked after cuInit, so the test process itself never touches the driver:
 * each test forks an exporter and an importer, joined by a socket pair, and looks at how they end.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "alloc/base/bytes.h"
#include "alloc/pool/import.h"
#include "alloc/pool/large.h"
#include "alloc/pool/pool.h"

/* In the forked roles cmocka's assertions would return into the parent's test: say where, and end. */
#define CHECK(what)                                                                   \
    do {                                                                              \
        if (!(what)) {                                                                \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #what, said.text); \
            _exit(1);                                                                 \
        }                                                                             \
    } while (0)

static struct pc_error said; /* the last error of this process */
static struct pc_cuda cu;
static struct pc_devices *devices;
static struct pc_device *device;

static void start_cuda(void)
{
    CHECK(pc_cuda_load(NULL, &cu, &said) == PC_OK);
    CHECK(pc_devices_create(&cu, &devices, &said) == PC_OK);
    CHECK(pc_devices_get(devices, 0, &device, &said) == PC_OK);
    CHECK(pc_device_bind(device, &said) == PC_OK);
}

/* --- messages --- */

struct message {
    uint64_t bytes;
    struct pc_cu_ptr_export data;
};

/* Sends *m, with fd where it is not -1; the fd is closed, as poolcapd does at once (trap 2). */
static void send_message(int sock, const struct message *m, int fd)
{
    char control[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec part = {.iov_base = (void *)(uintptr_t)m, .iov_len = sizeof *m};
    struct msghdr head = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd >= 0) {
        head.msg_control = control;
        head.msg_controllen = sizeof control;
        struct cmsghdr *c = CMSG_FIRSTHDR(&head);
        *c = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd)};
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    CHECK(sendmsg(sock, &head, 0) == (ssize_t)sizeof *m);
    if (fd >= 0)
        close(fd);
}

/* Waits for a message; returns its fd or -1. */
static int receive_message(int sock, struct message *m)
{
    char control[CMSG_SPACE(sizeof(int))];
    int fd = -1;
    struct iovec part = {.iov_base = m, .iov_len = sizeof *m};
    struct msghdr head = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    CHECK(recvmsg(sock, &head, MSG_CMSG_CLOEXEC) == (ssize_t)sizeof *m);
    struct cmsghdr *c = CMSG_FIRSTHDR(&head);
    if (c != NULL && c->cmsg_type == SCM_RIGHTS)
        memcpy(&fd, CMSG_DATA(c), sizeof fd);
    return fd;
}

static void say(int sock)
{
    send_message(sock, &(struct message){0}, -1);
}

static void hear(int sock)
{
    struct message m;
    receive_message(sock, &m);
}

/* --- roles --- */

typedef void role(int sock);

static pid_t start(role *what, int mine, int other)
{
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    close(other);
    alarm(120);
    start_cuda();
    what(mine);
    _exit(0);
}

/* Runs both; the importer's pid reaches the exporter, which may kill it, through a first message. */
static void run_pair(role *exporter, role *importer, int importer_ends)
{
    int pair[2], status;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    pid_t tenant = start(importer, pair[1], pair[0]);
    assert_true(tenant > 0);
    struct message first = {.bytes = (uint64_t)tenant};
    assert_int_equal(send(pair[1], &first, sizeof first, 0), sizeof first);
    pid_t owner = start(exporter, pair[0], pair[1]);
    assert_true(owner > 0);
    close(pair[0]);
    close(pair[1]);
    assert_int_equal(waitpid(owner, &status, 0), owner);
    if (status != 0)
        kill(tenant, SIGKILL);
    int tenant_status;
    assert_int_equal(waitpid(tenant, &tenant_status, 0), tenant);
    assert_int_equal(status, 0);
    assert_int_equal(tenant_status, importer_ends);
}

static struct pc_pool *make_pool(uint64_t cap)
{
    struct pc_pool *pool = NULL;
    CHECK(pc_pool_create(devices, &(struct pc_pool_config){.cap = cap, .exported = true}, &pool, &said) == PC_OK);
    return pool;
}

static struct pc_pool_stats stats_of(struct pc_pool *pool)
{
    struct pc_pool_stats stats;
    CHECK(pc_pool_stats(pool, &stats, &said) == PC_OK);
    return stats;
}

static void send_block(int sock, struct pc_pool *pool, pc_cu_deviceptr ptr, uint64_t bytes)
{
    struct message m = {.bytes = bytes};
    int fd;
    CHECK(pc_pool_export_block(pool, ptr, bytes, &m.data, &said) == PC_OK);
    CHECK(pc_pool_export_fd(pool, &fd, &said) == PC_OK);
    send_message(sock, &m, fd);
}

static pc_cu_deviceptr receive_block(int sock, pc_cu_mempool *pool, uint64_t *bytes)
{
    struct message m;
    pc_cu_deviceptr ptr = 0;
    int fd = receive_message(sock, &m);
    CHECK(pc_import_pool(&cu, 0, fd, pool, &said) == PC_OK);
    close(fd);
    CHECK(pc_import_block(&cu, *pool, &m.data, &ptr, &said) == PC_OK);
    *bytes = m.bytes;
    return ptr;
}

static void write_at(pc_cu_deviceptr ptr, const char *text)
{
    CHECK(cu.cuMemcpyHtoD(ptr, text, 8) == PC_CU_SUCCESS);
}

static bool reads_at(pc_cu_deviceptr ptr, const char *text)
{
    char bytes[8];
    CHECK(cu.cuMemcpyDtoH(bytes, ptr, 8) == PC_CU_SUCCESS);
    return memcmp(bytes, text, 8) == 0;
}

/* --- one block there and back --- */

static void share_a_block(int sock)
{
    pc_cu_deviceptr ptr;
    struct pc_pool *pool = make_pool(128 * PC_MIB);
    hear(sock);
    CHECK(pc_pool_alloc(pool, 64 * PC_MIB, &ptr, &said) == PC_OK);
    write_at(ptr, "exporter");
    write_at(ptr + 64 * PC_MIB - 8, "the end!");
    send_block(sock, pool, ptr, 64 * PC_MIB);
    hear(sock);
    CHECK(reads_at(ptr, "importer"));
    CHECK(pc_pool_free(pool, ptr, 64 * PC_MIB, &said) == PC_OK);
    CHECK(stats_of(pool).live == 0 && stats_of(pool).used == 0);
    CHECK(stats_of(pool).reserved == 64 * PC_MIB); /* an exported pool keeps what it has (trap 16) */
    pc_pool_destroy(pool);
    pc_devices_free(devices);
}

static void use_a_block(int sock)
{
    pc_cu_mempool pool;
    pc_cu_stream stream;
    pc_cu_deviceptr other;
    uint64_t bytes;
    CHECK(cu.cuStreamCreate(&stream, PC_CU_STREAM_NON_BLOCKING) == PC_CU_SUCCESS);
    pc_cu_deviceptr ptr = receive_block(sock, &pool, &bytes);
    CHECK(reads_at(ptr, "exporter") && reads_at(ptr + bytes - 8, "the end!"));
    CHECK(cu.cuMemAllocFromPoolAsync(&other, PC_MIB, pool, stream) == PC_CU_ERROR_INVALID_VALUE);
    write_at(ptr, "importer");
    CHECK(pc_import_block_free(&cu, ptr, stream, &said) == PC_OK);
    CHECK(pc_import_pool_drop(&cu, pool, &said) == PC_OK);
    say(sock);
}

static void test_block_between_processes(void **state)
{
    (void)state;
    run_pair(share_a_block, use_a_block, 0);
}

/* --- a tenant killed while it holds the whole cap; the next one sees zeros --- */

static void outlive_a_tenant(int sock)
{
    struct message first;
    pc_cu_deviceptr ptr, more;
    struct pc_pool *pool = make_pool(96 * PC_MIB);
    receive_message(sock, &first);
    CHECK(pc_pool_alloc(pool, 96 * PC_MIB, &ptr, &said) == PC_OK);
    send_block(sock, pool, ptr, 96 * PC_MIB);
    hear(sock);
    CHECK(reads_at(ptr, "a secret"));
    CHECK(kill((pid_t)first.bytes, SIGKILL) == 0);
    struct message none;
    CHECK(recv(sock, &none, sizeof none, 0) == 0); /* end of file: the tenant is gone */
    CHECK(pc_pool_alloc(pool, 1, &more, &said) == PC_ERR_OUT_OF_MEMORY);
    CHECK(pc_pool_free(pool, ptr, 96 * PC_MIB, &said) == PC_OK);
    CHECK(pc_pool_alloc(pool, 96 * PC_MIB, &ptr, &said) == PC_OK);
    CHECK(stats_of(pool).reserved == 96 * PC_MIB);
    CHECK(reads_at(ptr, "a secret")); /* reused memory is not cleared by the driver (trap 4) ... */
    CHECK(pc_pool_zero(pool, ptr, 96 * PC_MIB, &said) == PC_OK);
    CHECK(reads_at(ptr, "\0\0\0\0\0\0\0\0") && reads_at(ptr + 96 * PC_MIB - 8, "\0\0\0\0\0\0\0\0")); /* ... but by us */
    CHECK(pc_pool_free(pool, ptr, 96 * PC_MIB, &said) == PC_OK);
    pc_pool_destroy(pool);
}

static void hold_until_killed(int sock)
{
    pc_cu_mempool pool;
    uint64_t bytes;
    pc_cu_deviceptr ptr = receive_block(sock, &pool, &bytes);
    write_at(ptr, "a secret");
    write_at(ptr + bytes - 8, "a secret");
    say(sock);
    for (;;)
        pause();
}

static void test_killed_tenant(void **state)
{
    (void)state;
    run_pair(outlive_a_tenant, hold_until_killed, SIGKILL);
}

/* --- large memory --- */

static uint64_t free_on_card(void)
{
    size_t left, total;
    CHECK(cu.cuMemGetInfo(&left, &total) == PC_CU_SUCCESS);
    return left;
}

/* Larger than any exported pool allocation may be, where the card has the room. */
static uint64_t large_size(void)
{
    return free_on_card() > 6 * PC_GIB ? 5 * PC_GIB : 256 * PC_MIB;
}

/* The card's figure follows within tens of milliseconds (facts). */
static bool comes_back(uint64_t before)
{
    for (int i = 0; i < 100 && free_on_card() + 64 * PC_MIB <= before; i++)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    return free_on_card() + 64 * PC_MIB > before;
}

static void give_large(int sock)
{
    int fd;
    struct message m = {.bytes = large_size()};
    hear(sock);
    hear(sock); /* its context is made: it would count in what follows */
    uint64_t before = free_on_card();
    CHECK(pc_large_create(device, m.bytes, &fd, &said) == PC_OK);
    CHECK(before - free_on_card() >= m.bytes);
    send_message(sock, &m, fd);
    hear(sock);
    CHECK(before - free_on_card() >= m.bytes); /* we hold nothing: the tenant's mapping does */
    say(sock);
    hear(sock);
    CHECK(comes_back(before)); /* while the tenant still lives: its handle is dropped, its mapping gone */
    say(sock);
    /* An fd that nobody imports gives its memory back when it is closed. */
    CHECK(pc_large_create(device, m.bytes, &fd, &said) == PC_OK);
    close(fd);
    CHECK(comes_back(before));
}

static void take_large(int sock)
{
    struct message m;
    pc_cu_deviceptr ptr = 0;
    say(sock);
    int fd = receive_message(sock, &m);
    CHECK(pc_large_map(&cu, 0, fd, m.bytes, &ptr, &said) == PC_OK);
    close(fd);
    write_at(ptr, "at front");
    write_at(ptr + m.bytes - 8, "at back.");
    CHECK(reads_at(ptr, "at front") && reads_at(ptr + m.bytes - 8, "at back."));
    say(sock);
    hear(sock);
    CHECK(pc_large_unmap(&cu, ptr, m.bytes, &said) == PC_OK);
    say(sock);
    hear(sock);
}

static void test_large_between_processes(void **state)
{
    (void)state;
    run_pair(give_large, take_large, 0);
}

/* --- the cap under threads, on this driver --- */

enum { THREADS = 8, ROUNDS = 60 };
#define CAP (320 * PC_MIB)

static struct pc_pool *crowded;

static void *churn(void *arg)
{
    unsigned seed = (unsigned)(uintptr_t)arg;
    for (int i = 0; i < ROUNDS; i++) {
        pc_cu_deviceptr ptr;
        uint64_t bytes = (1 + (uint64_t)rand_r(&seed) % 4) * PC_POOL_GRANULE;
        enum pc_status status = pc_pool_alloc(crowded, bytes, &ptr, NULL);
        CHECK(status == PC_OK || status == PC_ERR_OUT_OF_MEMORY);
        struct pc_pool_stats stats = stats_of(crowded);
        CHECK(stats.live <= CAP && stats.used <= CAP && stats.reserved <= CAP);
        if (status != PC_OK)
            continue;
        sched_yield(); /* holds it while others ask */
        CHECK(pc_pool_free(crowded, ptr, bytes, NULL) == PC_OK);
    }
    return NULL;
}

static void crowd(int sock)
{
    pthread_t threads[THREADS];
    pc_cu_deviceptr ptr;
    hear(sock);
    crowded = make_pool(CAP);
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, churn, (void *)(i + 1)) == 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    CHECK(stats_of(crowded).live == 0 && stats_of(crowded).used == 0);
    CHECK(pc_pool_alloc(crowded, CAP, &ptr, &said) == PC_OK); /* nothing was lost on the way */
    CHECK(pc_pool_free(crowded, ptr, CAP, &said) == PC_OK);
    pc_pool_destroy(crowded);
}

static void idle(int sock)
{
    (void)sock;
}

static void test_crowd(void **state)
{
    (void)state;
    run_pair(crowd, idle, 0);
}

/* --- more than the card has: the driver refuses, and nothing stays booked --- */

static void ask_for_the_moon(int sock)
{
    struct pc_device_info info = *pc_device_get_info(device);
    struct pc_pool *pool = make_pool(4 * info.total);
    pc_cu_deviceptr ptr = 0;
    hear(sock);
    CHECK(pc_pool_alloc(pool, 2 * info.total, &ptr, &said) == PC_ERR_OUT_OF_MEMORY);
    CHECK(strstr(said.text, "cap") != NULL && strstr(said.text, "CUDA_ERROR_OUT_OF_MEMORY") != NULL);
    CHECK(stats_of(pool).live == 0 && stats_of(pool).used == 0);
    CHECK(stats_of(pool).reserved <= info.total);
    CHECK(pc_pool_alloc(pool, PC_POOL_GRANULE, &ptr, &said) == PC_OK);
    CHECK(pc_pool_free(pool, ptr, PC_POOL_GRANULE, &said) == PC_OK);
    pc_pool_destroy(pool);
}

static void test_card_is_full(void **state)
{
    (void)state;
    run_pair(ask_for_the_moon, idle, 0);
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_block_between_processes),
        cmocka_unit_test(test_killed_tenant),
        cmocka_unit_test(test_large_between_processes),
        cmocka_unit_test(test_crowd),
        cmocka_unit_test(test_card_is_full),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
