/*
 * Threads that allocate, write, check and free at once. Each block is filled with a byte of its own and checked before
 * it is freed: memory handed out twice shows. Meant for SANITIZER=thread as well.
 */
#include "tests/integration/shim_harness.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "alloc/shim/gpu.h"
#include "alloc/shim/state.h"
#include "alloc/shim/stream.h"

enum { THREADS = 2, STREAMS = 2, ROUNDS = 1200, HELD = 24 };

struct worker {
    pthread_t thread;
    unsigned seed;
    pc_cu_stream stream[STREAMS];
    unsigned refused;
};

struct held {
    poolcap_ptr ptr;
    size_t bytes;
    pc_cu_stream stream;
    unsigned char byte;
};

static unsigned next(struct worker *w, unsigned below)
{
    w->seed = w->seed * 1103515245u + 12345u;
    return (w->seed >> 12) % below;
}

static void bind(void)
{
    pc_cu_context ctx;
    CHECK(driver()->cuDevicePrimaryCtxRetain(&ctx, 0) == 0 && driver()->cuCtxSetCurrent(ctx) == 0);
}

static void drop(struct held *h)
{
    /* Its ends are enough to see somebody else's bytes, and quick enough to do often. */
    size_t end = h->bytes < 512 ? h->bytes : 512;
    CHECK(holds(h->ptr, end, h->byte) && holds(h->ptr + h->bytes - end, end, h->byte));
    give(h->ptr, h->stream);
    h->ptr = 0;
}

static size_t some_bytes(struct worker *w)
{
    unsigned kind = next(w, 10);
    if (kind < 5)
        return 1 + next(w, 8192);
    return kind < 9 ? 1 + next(w, 512 * 1024) : 1 + next(w, 40 * 1024 * 1024);
}

static void obtain(struct worker *w, struct held *h)
{
    h->stream = w->stream[next(w, STREAMS)];
    h->bytes = some_bytes(w);
    poolcap_status status = poolcap_alloc(&h->ptr, h->bytes, h->stream, POOLCAP_POOLED);
    if (status == POOLCAP_OUT_OF_MEMORY) {
        w->refused++;
        return;
    }
    CHECK(status == POOLCAP_OK);
    h->byte = (unsigned char)next(w, 256);
    fill(h->ptr, h->bytes, h->byte);
}

static void *hammer(void *arg)
{
    struct worker *w = arg;
    struct held held[HELD] = {{0}};
    bind();
    for (unsigned i = 0; i < ROUNDS; i++) {
        struct held *h = &held[next(w, HELD)];
        if (h->ptr == 0)
            obtain(w, h);
        else
            drop(h);
        if (i % 300 == 299)
            poolcap_trim(next(w, 3) * 32 * PC_MIB, NULL);
        if (i % 64 == 0)
            info();
    }
    for (unsigned i = 0; i < HELD; i++)
        if (held[i].ptr != 0)
            drop(&held[i]);
    return NULL;
}

static void finish(void)
{
    static struct shim_owner *owners[64];
    unsigned count = 0;
    for (struct shim_stream *s = shim_gpu_at(0)->streams; s != NULL; s = s->next)
        owners[count++] = &s->own;
    const char *wrong = shim_heap_audit(&shim_gpu_at(0)->heap, owners, count);
    if (wrong != NULL)
        check_failed(__FILE__, __LINE__, wrong);
    CHECK(info().live == 0);
    CHECK_OK(poolcap_trim(0, NULL));
    CHECK(info().held == 0);
}

static void hammer_with(bool shared)
{
    struct worker workers[THREADS] = {{0}};
    info();
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i].seed = i + 1;
        for (unsigned k = 0; k < STREAMS; k++)
            if (shared && i > 0)
                workers[i].stream[k] = workers[0].stream[k];
            else
                CHECK(driver()->cuStreamCreate(&workers[i].stream[k], PC_CU_STREAM_NON_BLOCKING) == 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        CHECK(pthread_create(&workers[i].thread, NULL, hammer, &workers[i]) == 0);
    for (unsigned i = 0; i < THREADS; i++)
        CHECK(pthread_join(workers[i].thread, NULL) == 0);
    finish();
}

static void body_own_streams(void)
{
    hammer_with(false);
}

static void body_shared_streams(void)
{
    hammer_with(true);
}

/* Starts in many threads at once: one connection, one context booked. */
static void *first_call(void *arg)
{
    *(poolcap_ptr *)arg = take(1000, NULL);
    return NULL;
}

static void body_first_calls_at_once(void)
{
    pthread_t threads[8];
    poolcap_ptr got[8];
    for (unsigned i = 0; i < 8; i++)
        CHECK(pthread_create(&threads[i], NULL, first_call, &got[i]) == 0);
    for (unsigned i = 0; i < 8; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    for (unsigned i = 0; i < 8; i++)
        for (unsigned k = 0; k < i; k++)
            CHECK(got[i] != got[k]);
    CHECK(info().held == 32 * PC_MIB);
}

/* While one thread hammers, poolcapd is killed and comes back: no call hangs, no memory is handed out twice. */
static void body_poolcapd_dies_meanwhile(void)
{
    static struct worker w = {.seed = 5};
    poolcap_ptr probe = take(1000, NULL);
    for (unsigned k = 0; k < STREAMS; k++)
        CHECK(driver()->cuStreamCreate(&w.stream[k], PC_CU_STREAM_NON_BLOCKING) == 0);
    struct held held[HELD] = {{0}};
    for (unsigned i = 0; i < 600; i++) {
        struct held *h = &held[next(&w, HELD)];
        if (i % 200 == 100)
            node_kill(&node);
        if (i % 200 == 140)
            node_start(&node);
        if (h->ptr != 0) {
            drop(h);
            continue;
        }
        h->stream = w.stream[next(&w, STREAMS)];
        h->bytes = some_bytes(&w);
        poolcap_status status = poolcap_alloc(&h->ptr, h->bytes, h->stream, POOLCAP_POOLED);
        CHECK(status == POOLCAP_OK || status == POOLCAP_UNREACHABLE || status == POOLCAP_OUT_OF_MEMORY);
        h->byte = (unsigned char)next(&w, 256);
        if (status == POOLCAP_OK)
            fill(h->ptr, h->bytes, h->byte);
    }
    for (unsigned i = 0; i < HELD; i++)
        if (held[i].ptr != 0)
            drop(&held[i]);
    give(probe, NULL);
    nap_ms(1100);
    finish();
}

#define TEST(name, memory)                \
    static void name(void **state)        \
    {                                     \
        (void)state;                      \
        run_on_node(body_##name, memory); \
    }
TEST(own_streams, 512 * PC_MIB)
TEST(shared_streams, 512 * PC_MIB)
TEST(first_calls_at_once, PC_GIB)
TEST(poolcapd_dies_meanwhile, PC_GIB)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_streams),
        cmocka_unit_test(shared_streams),
        cmocka_unit_test(first_calls_at_once),
        cmocka_unit_test(poolcapd_dies_meanwhile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
