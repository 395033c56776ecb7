/* The shim against a poolcapd that is wrong, old, or ends in the middle: it fails closed, leaks nothing, and recovers.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "alloc/base/bytes.h"
#include "alloc/shim/poolcap.h"
#include "alloc/shim/state.h"
#include "tests/unit/fake_broker.h"

/* Each test runs in a child: the library has one state, and CUDA does not live through a fork. */
#define CHECK(what)                                                                                          \
    do {                                                                                                     \
        if (!(what)) {                                                                                       \
            fprintf(stderr, "%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #what, poolcap_last_error()); \
            _exit(1);                                                                                        \
        }                                                                                                    \
    } while (0)

static char uuid[PC_UUID_TEXT];

static void read_uuid(void)
{
    static struct pc_cuda cu;
    struct pc_cu_uuid raw;
    CHECK(pc_cuda_load(NULL, &cu, NULL) == PC_OK && cu.cuInit(0) == 0 && cu.cuDeviceGetUuid(&raw, 0) == 0);
    pc_uuid_format(&raw, uuid);
}

static void run(void (*body)(void))
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        alarm(60);
        read_uuid();
        fake_broker.epoch = 7;
        fake_broker.uuid = uuid;
        fake_broker_start();
        setenv("POOLCAP_SOCKET", fake_broker.path, 1);
        body();
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (status != 0)
        fail_msg("the child ended with status %#x; its message stands above", (unsigned)status);
}

static unsigned open_fds(void)
{
    unsigned count = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

static poolcap_status one(void)
{
    poolcap_ptr ptr;
    return poolcap_alloc(&ptr, 1000, NULL, 0);
}

static void nap_ms(long ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

static char *text_of(const char *text)
{
    return (char *)(uintptr_t)text;
}

/* --- greetings --- */

static _Atomic int what; /* is wrong: the number of a case below */

static bool bad_greeting(const Poolcap__Request *request, Poolcap__Reply *reply, int *fds, unsigned *nfds)
{
    (void)fds;
    if (request->body_case != POOLCAP__REQUEST__BODY_HELLO)
        return true;
    fake_broker.page->magic = what == 4 ? 5 : PC_PAGE_MAGIC;
    switch (what) {
    case 0:
        return false;
    case 1:
        *nfds = 0; /* no page */
        return true;
    case 2:
        reply->sequence += 5;
        return true;
    case 3:
        reply->status = PC_ERR_DENIED;
        reply->text = text_of("you are of another pod");
        return true;
    case 4:
        return true; /* a page of another kind */
    case 5:
        reply->sequence = 0;
        reply->status = PC_ERR_PROTOCOL;
        reply->text = text_of("no protocol version in common");
        return true;
    default:
        reply->hello->gpus[0]->uuid = text_of("GPU-of-somebody-else");
        return true;
    }
}

static void body_greetings(void)
{
    char text[300];
    fake_broker.hook = bad_greeting;
    CHECK(one() == POOLCAP_UNREACHABLE);
    nap_ms(100);
    unsigned fds = open_fds();
    for (what = 1; what < 6; what++) {
        nap_ms(1020);
        CHECK(one() == POOLCAP_UNREACHABLE); /* fails closed */
        if (what == 3)
            CHECK(strstr(poolcap_last_error(), "another pod") != NULL);
        if (what == 5)
            CHECK(strstr(poolcap_last_error(), "no protocol version") != NULL);
    }
    nap_ms(100);
    CHECK(open_fds() <= fds); /* nothing that was sent along stays open */
    nap_ms(1020);
    CHECK(one() == POOLCAP_UNAVAILABLE); /* well greeted, with nothing granted that is here */
    CHECK(poolcap_describe(text, sizeof text) == POOLCAP_UNAVAILABLE && strstr(text, "capped: no") == text);
}

/* --- memory --- */

static bool bad_memory(const Poolcap__Request *request, Poolcap__Reply *reply, int *fds, unsigned *nfds)
{
    static uint8_t data[64];
    if (request->body_case != POOLCAP__REQUEST__BODY_ALLOCATE)
        return true;
    Poolcap__AllocateReply *got = reply->allocate;
    got->block = (7ull << 32) + 1;
    got->bytes = request->allocate->bytes;
    got->generation = (7ull << 32) + 2;
    got->export_data.len = 64;
    got->export_data.data = data;
    switch (what) {
    case 0:
        got->export_data.len = 63;
        return true;
    case 1:
        got->bytes = 4096;
        return true;
    case 2:
        got->new_generation = true; /* and no descriptor */
        return true;
    case 3:
        return true; /* a generation that was never sent */
    case 4:
        got->new_generation = true; /* a descriptor that is no pool */
        fds[0] = STDERR_FILENO;
        *nfds = 1;
        return true;
    default:
        return false;
    }
}

static void body_memory(void)
{
    poolcap_memory memory;
    fake_broker.hook = bad_memory;
    CHECK(poolcap_info(&memory) == POOLCAP_OK);
    CHECK(memory.total == PC_GIB && memory.charged == 64 * PC_MIB && memory.free == PC_GIB - 64 * PC_MIB);
    unsigned fds = open_fds();
    for (what = 0; what < 5; what++) {
        CHECK(one() != POOLCAP_OK);
        CHECK(poolcap_info(&memory) == POOLCAP_OK && memory.held == 0);
    }
    CHECK(open_fds() == fds);
    /* What could not be used went back, and the generation with it, so that it is sent again. */
    CHECK(fake_broker.freed_count == 2 && fake_broker.freed[0] == (7ull << 32) + 1);
    CHECK(fake_broker.dropped_count == 2 && fake_broker.dropped[0] == (7ull << 32) + 2);
    /* A connection that ends in the request: once more on a new one, then no. */
    int before = fake_broker.connections;
    CHECK(one() == POOLCAP_UNREACHABLE);
    CHECK(fake_broker.connections == before + 1);
}

static bool no_room(const Poolcap__Request *request, Poolcap__Reply *reply, int *fds, unsigned *nfds)
{
    (void)fds, (void)nfds;
    if (request->body_case == POOLCAP__REQUEST__BODY_ALLOCATE || request->body_case == POOLCAP__REQUEST__BODY_RESERVE) {
        reply->status = PC_ERR_OUT_OF_MEMORY;
        reply->text = text_of("over the cap of 1Gi");
    }
    return true;
}

static void body_refusals(void)
{
    poolcap_ptr ptr;
    fake_broker.hook = no_room;
    CHECK(poolcap_alloc(&ptr, 200 * PC_MIB, NULL, 0) == POOLCAP_OUT_OF_MEMORY);
    CHECK(strstr(poolcap_last_error(), "over the cap of 1Gi") != NULL);
    CHECK(fake_broker.allocates == 2); /* once, and once more after all idle slabs were given back */
    CHECK(poolcap_alloc(&ptr, 1000, NULL, 0) == POOLCAP_OUT_OF_MEMORY);
    CHECK(poolcap_alloc(&ptr, 1000, NULL, POOLCAP_DIRECT) == POOLCAP_OUT_OF_MEMORY);
    CHECK(fake_broker.reserves == 1 && fake_broker.releases == 0);
    CHECK(fake_broker.connections == 1 && fake_broker.attaches == 1);
}

/* The driver refuses what was reserved: the charge goes back. */
static pc_cu_result no_memory(pc_cu_deviceptr *ptr, size_t bytes)
{
    (void)ptr, (void)bytes;
    return PC_CU_ERROR_OUT_OF_MEMORY;
}

static void body_direct_refused_by_the_driver(void)
{
    poolcap_ptr ptr;
    poolcap_memory memory;
    CHECK(poolcap_info(&memory) == POOLCAP_OK);
    shim.cu.cuMemAlloc = no_memory;
    CHECK(poolcap_alloc(&ptr, 1000, NULL, POOLCAP_DIRECT) == POOLCAP_OUT_OF_MEMORY);
    CHECK(fake_broker.reserves == 1 && fake_broker.releases == 1);
    CHECK(poolcap_info(&memory) == POOLCAP_OK && memory.direct == 0);
}

/* --- the page --- */

static void body_page(void)
{
    poolcap_memory memory;
    struct pc_page_gpu *gpu = &fake_broker.page->gpu[0];
    CHECK(poolcap_info(&memory) == POOLCAP_OK);
    /* Its writer died in the middle: as last read. */
    atomic_fetch_add(&gpu->sequence, 1);
    gpu->cap = 5;
    CHECK(poolcap_info(&memory) == POOLCAP_OK && memory.total == PC_GIB);
    atomic_fetch_add(&gpu->sequence, 1);
    /* The cap fell under what is charged: nothing is free, and nothing is negative. */
    pc_page_write(gpu, &(struct pc_page_figures){.cap = PC_MIB, .charged = PC_GIB, .room = 0});
    CHECK(poolcap_info(&memory) == POOLCAP_OK);
    CHECK(memory.total == PC_MIB && memory.free == 0 && memory.charged == PC_GIB);
    pc_page_write(gpu, &(struct pc_page_figures){.cap = PC_MIB, .room = UINT64_MAX});
    CHECK(poolcap_info(&memory) == POOLCAP_OK && memory.free == PC_MIB);
    CHECK(fake_broker.connections == 1); /* and nobody was asked */
}

/* An orderly end shows in the page: the next need goes to the next poolcapd at once, and not to the one that stops. */
static void body_goodbye(void)
{
    poolcap_memory memory;
    fake_broker.hook = no_room;
    CHECK(poolcap_info(&memory) == POOLCAP_OK);
    fake_broker.page->alive = 0;
    CHECK(one() == POOLCAP_UNREACHABLE && strstr(poolcap_last_error(), "about to stop") != NULL);
    CHECK(fake_broker.connections >= 2);
    fake_broker.page->alive = 1;
    nap_ms(300);
    CHECK(one() == POOLCAP_OUT_OF_MEMORY);
}

/* Attaching is refused (the grant is smaller than one context): no context is made, and the text says why. */
static bool no_attach(const Poolcap__Request *request, Poolcap__Reply *reply, int *fds, unsigned *nfds)
{
    (void)fds, (void)nfds;
    if (request->body_case == POOLCAP__REQUEST__BODY_ATTACH) {
        reply->status = PC_ERR_OUT_OF_MEMORY;
        reply->text = text_of("no room for a context");
    }
    return true;
}

static void body_attach_refused(void)
{
    pc_cu_context ctx = NULL;
    fake_broker.hook = no_attach;
    CHECK(one() == POOLCAP_OUT_OF_MEMORY && strstr(poolcap_last_error(), "no room for a context") != NULL);
    CHECK(shim.cu.cuCtxGetCurrent(&ctx) == 0 && ctx == NULL);
}

#define TEST(name)                 \
    static void name(void **state) \
    {                              \
        (void)state;               \
        run(body_##name);          \
    }
TEST(greetings)
TEST(memory)
TEST(refusals)
TEST(direct_refused_by_the_driver)
TEST(page)
TEST(goodbye)
TEST(attach_refused)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greetings),      cmocka_unit_test(memory),
        cmocka_unit_test(refusals),       cmocka_unit_test(direct_refused_by_the_driver),
        cmocka_unit_test(page),           cmocka_unit_test(goodbye),
        cmocka_unit_test(attach_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
