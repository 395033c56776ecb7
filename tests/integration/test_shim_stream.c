/*
 * Streams: who may have freed memory, and when. On the simulator work is done when it is queued, so the tests replace
 * the driver's answers in the shim's own table: events and streams pass when the test says so, and calls are counted.
 */
#include "tests/integration/shim_harness.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/shim/gpu.h"
#include "alloc/shim/map.h"
#include "alloc/shim/state.h"
#include "alloc/shim/stream.h"

static struct pc_cuda real;
static bool busy; /* no work is done */
static int records, queries, waits, imports;

static pc_cu_result fake_event_query(pc_cu_event event)
{
    queries++;
    return busy ? PC_CU_ERROR_NOT_READY : real.cuEventQuery(event);
}

static pc_cu_result fake_stream_query(pc_cu_stream stream)
{
    queries++;
    return busy ? PC_CU_ERROR_NOT_READY : real.cuStreamQuery(stream);
}

static pc_cu_result fake_record(pc_cu_event event, pc_cu_stream stream)
{
    records++;
    return real.cuEventRecord(event, stream);
}

/* A wait ends the work. */
static pc_cu_result fake_event_wait(pc_cu_event event)
{
    waits++;
    busy = false;
    return real.cuEventSynchronize(event);
}

static pc_cu_result fake_stream_wait(pc_cu_stream stream)
{
    waits++;
    busy = false;
    return real.cuStreamSynchronize(stream);
}

static pc_cu_result fake_import(pc_cu_deviceptr *ptr, pc_cu_mempool pool, pc_cu_ptr_export_t *data)
{
    imports++;
    return real.cuMemPoolImportPointer(ptr, pool, data);
}

static pc_cu_stream stream[4];

/* Starts the library, takes the driver's table over, makes streams. */
static void start(void)
{
    info();
    real = shim.cu;
    shim.cu.cuEventQuery = fake_event_query;
    shim.cu.cuStreamQuery = fake_stream_query;
    shim.cu.cuEventRecord = fake_record;
    shim.cu.cuEventSynchronize = fake_event_wait;
    shim.cu.cuStreamSynchronize = fake_stream_wait;
    shim.cu.cuMemPoolImportPointer = fake_import;
    for (unsigned i = 0; i < 4; i++)
        CHECK(real.cuStreamCreate(&stream[i], PC_CU_STREAM_NON_BLOCKING) == 0);
}

static int calls(void)
{
    return records + queries + waits + imports;
}

static void audit(void)
{
    static struct shim_owner *owners[4096];
    unsigned count = 0;
    for (struct shim_stream *s = shim_gpu_at(0)->streams; s != NULL; s = s->next)
        owners[count++] = &s->own;
    const char *wrong = shim_heap_audit(&shim_gpu_at(0)->heap, owners, count);
    if (wrong != NULL)
        check_failed(__FILE__, __LINE__, wrong);
}

static void body_own_stream_at_once(void)
{
    start();
    busy = true;
    poolcap_ptr a = take(PC_MIB, stream[0]);
    int before = calls();
    give(a, stream[0]);
    CHECK(take(PC_MIB, stream[0]) == a);
    CHECK(calls() == before); /* nothing was asked of the driver */
}

/* Fills what is held so that only the freed block could serve the next request. */
static void fill_up(pc_cu_stream on)
{
    poolcap_ptr ptr;
    int before = imports;
    for (;;) {
        uint64_t held = info().held;
        ptr = take(PC_MIB, on);
        if (info().held != held || imports != before)
            break;
    }
    give(ptr, on);
    CHECK_OK(poolcap_stream_gone(on)); /* clean, so that it goes back */
    busy = false;
    CHECK_OK(poolcap_trim(0, NULL));
}

static void body_other_stream_after_the_event(void)
{
    start();
    poolcap_ptr a = take(PC_MIB, stream[0]);
    fill_up(stream[2]);
    busy = true;
    give(a, stream[0]);
    int before = waits;
    poolcap_ptr b = take(PC_MIB, stream[1]);
    CHECK(b != a && waits == before); /* it grew rather than waited */
    CHECK(records > 0);               /* and noted the work that the block waits for */
    busy = false;
    poolcap_ptr c = 0;
    for (unsigned i = 0; i < 64 && c != a; i++)
        c = take(PC_MIB, stream[1]);
    CHECK(c == a);
    audit();
}

/* An event recorded before a free says nothing about it. */
static void body_event_covers_what_was_freed_before_it(void)
{
    start();
    poolcap_ptr a = take(PC_MIB, stream[0]), b = take(PC_MIB, stream[0]);
    struct shim_stream *s;
    struct pc_error err;
    busy = true;
    give(a, stream[0]);
    CHECK(shim_stream_open(stream[0], &s, &err) == PC_OK);
    shim_stream_cover(s);
    uint64_t covered = s->own.batch - 1;
    shim_lock_give(&shim_stream_heap(s)->lock);
    give(b, stream[0]);
    CHECK(s->own.newest == covered + 1);
    struct shim_block *block = shim_slab_block_of(shim_map_find(b), b);
    CHECK(block->stamp == covered + 1);
    s->own.done = covered; /* the event passed */
    shim_lock_take(&shim_stream_heap(s)->lock);
    shim_heap_sweep(shim_stream_heap(s), &s->own);
    CHECK(shim_slab_block_of(shim_map_find(b), b)->owner == &s->own);
    CHECK(shim_slab_block_of(shim_map_find(a), a)->owner == &shim_gpu_at(0)->heap.clean);
    shim_lock_give(&shim_stream_heap(s)->lock);
    audit();
}

static void body_waits_before_it_says_no(void)
{
    start();
    uint64_t bytes = info().free / (32 * PC_MIB) * (32 * PC_MIB);
    poolcap_ptr all = take(bytes, stream[0]);
    busy = true;
    give(all, stream[0]);
    CHECK(info().held == bytes); /* still at work: not given back, whatever the idle rule says */
    int before = waits;
    poolcap_ptr again = take(bytes / 2, stream[1]);
    CHECK(waits > before);
    give(again, stream[1]);
    audit();
}

static void body_gone_stream(void)
{
    start();
    poolcap_ptr a = take(20 * PC_MIB, stream[0]);
    busy = true;
    give(a, stream[0]);
    int before = waits;
    CHECK_OK(poolcap_stream_gone(stream[0]));
    CHECK(waits == before + 1);
    busy = true;
    CHECK(real.cuStreamDestroy(stream[0]) == 0);
    before = records;
    CHECK(take(20 * PC_MIB, stream[1]) == a); /* anybody's, without a look at the stream that is no more */
    CHECK(records == before);
    CHECK_OK(poolcap_stream_gone(stream[3])); /* never used */
    audit();
}

static void body_gone_context(void)
{
    start();
    poolcap_ptr a = take(20 * PC_MIB, stream[0]);
    pc_cu_context ctx;
    busy = true;
    give(a, stream[0]);
    CHECK(real.cuCtxGetCurrent(&ctx) == 0);
    CHECK_OK(poolcap_context_gone(ctx));
    CHECK(shim_gpu_at(0)->streams == NULL);
    CHECK_OK(poolcap_context_gone((void *)(uintptr_t)0x40));
    CHECK(take(20 * PC_MIB, stream[1]) == a); /* the same context, known anew */
    audit();
}

static void body_many_streams(void)
{
    start();
    for (unsigned i = 0; i < 2000; i++) {
        pc_cu_stream one;
        CHECK(real.cuStreamCreate(&one, PC_CU_STREAM_NON_BLOCKING) == 0);
        poolcap_ptr ptr = take(1000, one);
        give(ptr, one);
        CHECK_OK(poolcap_stream_gone(one));
        CHECK(real.cuStreamDestroy(one) == 0);
    }
    CHECK(shim_gpu_at(0)->streams_count < 300);
    CHECK(info().held <= 32 * PC_MIB);
    for (unsigned i = 0; i < 2000; i++) { /* and programs that never say so */
        pc_cu_stream one;
        CHECK(real.cuStreamCreate(&one, PC_CU_STREAM_NON_BLOCKING) == 0);
        poolcap_ptr ptr = take(300 * PC_KIB, one);
        give(ptr, one);
    }
    CHECK(info().held <= 256 * PC_MIB);
    audit();
}

/* --- per-thread streams --- */

#define PER_THREAD ((pc_cu_stream)(uintptr_t)PC_CU_STREAM_PER_THREAD_VALUE)

static void *free_on_own_stream(void *ptr)
{
    pc_cu_context ctx;
    CHECK(real.cuDevicePrimaryCtxRetain(&ctx, 0) == 0 && real.cuCtxSetCurrent(ctx) == 0);
    give((poolcap_ptr)(uintptr_t)ptr, PER_THREAD);
    return NULL;
}

static void body_per_thread(void)
{
    start();
    poolcap_ptr a = take(20 * PC_MIB, PER_THREAD);
    pthread_t thread;
    busy = true;
    int before = records;
    CHECK(pthread_create(&thread, NULL, free_on_own_stream, (void *)(uintptr_t)a) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(records == before + 1); /* at once: nobody else can name that stream, and its thread is gone now */
    CHECK(take(20 * PC_MIB, PER_THREAD) != a);
    CHECK(records == before + 1);
    busy = false;
    poolcap_ptr b = take(20 * PC_MIB, stream[0]);
    CHECK(b == a);
    audit();
}

/* --- captures --- */

static void body_capture(void)
{
    start();
    poolcap_ptr a = take(PC_MIB, stream[0]), b = take(20 * PC_MIB, stream[1]), c = 0;
    give(a, stream[0]);
    give(b, stream[1]);
    CHECK(real.cuStreamBeginCapture(stream[0], PC_CU_CAPTURE_GLOBAL) == 0);
    int before = calls();
    CHECK(take(PC_MIB, stream[0]) == a);
    poolcap_ptr d = take(5 * PC_MIB, stream[0]); /* cut from what is held */
    CHECK(poolcap_alloc(&c, 200 * PC_MIB, stream[0], 0) == POOLCAP_CAPTURE);
    CHECK(poolcap_alloc(&c, PC_MIB, stream[0], POOLCAP_DIRECT) == POOLCAP_CAPTURE);
    CHECK(poolcap_to_curesult(POOLCAP_CAPTURE) == PC_CU_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    give(d, stream[0]);
    CHECK(poolcap_stream_gone(stream[0]) == POOLCAP_CAPTURE);
    CHECK(calls() == before); /* nothing recorded, queried, waited for or imported */
    /* What was freed in the capture is that stream's alone. */
    busy = true;
    CHECK(take(5 * PC_MIB, stream[2]) != d);
    CHECK(take(5 * PC_MIB, stream[0]) == d);
    give(d, stream[0]);
    busy = false;
    /* Another stream grows meanwhile, which spoils nothing. */
    poolcap_ptr e = take(100 * PC_MIB, stream[2]);
    give(e, stream[2]);
    CHECK_OK(poolcap_trim(0, NULL));
    CHECK(shim_slab_block_of(shim_map_find(d), d)->owner != &shim_gpu_at(0)->heap.clean);
    pc_cu_graph graph;
    CHECK(real.cuStreamEndCapture(stream[0], &graph) == 0);
    give(a, stream[0]);
    CHECK_OK(poolcap_trim(0, NULL));
    audit();
}

static void body_capture_and_the_null_stream(void)
{
    pc_cu_stream blocking;
    start();
    poolcap_ptr a = take(PC_MIB, NULL);
    CHECK(real.cuStreamCreate(&blocking, PC_CU_STREAM_DEFAULT) == 0);
    poolcap_ptr b = take(PC_MIB, blocking);
    CHECK(real.cuStreamBeginCapture(blocking, PC_CU_CAPTURE_RELAXED) == 0);
    give(a, NULL);
    CHECK(take(PC_MIB, NULL) == a);
    give(b, blocking);
    pc_cu_graph graph;
    CHECK(real.cuStreamEndCapture(blocking, &graph) == 0);
    audit();
}

static void body_no_context_current(void)
{
    pc_cu_context ctx = NULL;
    poolcap_ptr a = take(1000, NULL); /* the library's first call, in a thread without a context */
    CHECK(shim.cu.cuCtxGetCurrent(&ctx) == 0 && ctx != NULL);
    CHECK(shim.cu.cuCtxSetCurrent(NULL) == 0);
    give(a, NULL);
    CHECK(take(1000, NULL) == a);
}

/* --- several GPUs --- */

static pc_cu_context context_of(int ordinal)
{
    pc_cu_context ctx;
    CHECK(shim.cu.cuDevicePrimaryCtxRetain(&ctx, ordinal) == 0);
    return ctx;
}

static void body_two_gpus(void)
{
    start();
    pc_cu_context first = context_of(0), second = context_of(1);
    pc_cu_stream on_second;
    poolcap_ptr a = take(PC_MIB, stream[0]);
    CHECK(info().total == PC_GIB);
    CHECK(shim.cu.cuCtxSetCurrent(second) == 0 && shim.cu.cuStreamCreate(&on_second, PC_CU_STREAM_NON_BLOCKING) == 0);
    CHECK(info().total == 512 * PC_MIB && info().live == 0);
    poolcap_ptr b = take(PC_MIB, on_second);
    CHECK(info().live == PC_MIB);
    CHECK(shim_map_find(a)->heap != shim_map_find(b)->heap);
    /* Freed on a stream of the other GPU: waited for, then anybody's. */
    int before = waits;
    give(a, on_second);
    CHECK(waits == before + 1);
    CHECK(poolcap_free(a, on_second) == POOLCAP_INVALID);
    CHECK(shim.cu.cuCtxSetCurrent(first) == 0);
    CHECK(info().live == 0);
    give(take(PC_MIB, stream[1]), stream[1]);
    CHECK_OK(poolcap_trim(0, NULL)); /* both GPUs, from a thread whose context is of one */
    CHECK(info().held == 0);
    give(b, stream[0]);
    size_t given;
    CHECK_OK(poolcap_trim(0, &given));
    CHECK(given == 32 * PC_MIB);
    CHECK(shim_gpu_at(0)->heap.held == 0 && shim_gpu_at(1)->heap.held == 0);
}

static void body_gpu_not_granted(void)
{
    start();
    pc_cu_context first = context_of(0);
    poolcap_ptr a = take(PC_MIB, stream[0]), none;
    CHECK(shim.cu.cuCtxSetCurrent(context_of(1)) == 0);
    CHECK(poolcap_alloc(&none, PC_MIB, NULL, 0) == POOLCAP_UNAVAILABLE);
    CHECK(strstr(poolcap_last_error(), "is not granted to this container") != NULL);
    give(a, NULL); /* all the same */
    CHECK(shim.cu.cuCtxSetCurrent(first) == 0);
    CHECK(info().live == 0);
    audit();
}

static void two_gpus(void **state)
{
    (void)state;
    run_on_two_gpus(body_two_gpus, 2);
}

static void gpu_not_granted(void **state)
{
    (void)state;
    run_on_two_gpus(body_gpu_not_granted, 1);
}

#define TEST(name)                        \
    static void name(void **state)        \
    {                                     \
        (void)state;                      \
        run_on_node(body_##name, PC_GIB); \
    }
TEST(own_stream_at_once)
TEST(other_stream_after_the_event)
TEST(event_covers_what_was_freed_before_it)
TEST(waits_before_it_says_no)
TEST(gone_stream)
TEST(gone_context)
TEST(many_streams)
TEST(per_thread)
TEST(capture)
TEST(capture_and_the_null_stream)
TEST(no_context_current)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_stream_at_once),
        cmocka_unit_test(other_stream_after_the_event),
        cmocka_unit_test(event_covers_what_was_freed_before_it),
        cmocka_unit_test(waits_before_it_says_no),
        cmocka_unit_test(gone_stream),
        cmocka_unit_test(gone_context),
        cmocka_unit_test(many_streams),
        cmocka_unit_test(per_thread),
        cmocka_unit_test(capture),
        cmocka_unit_test(capture_and_the_null_stream),
        cmocka_unit_test(no_context_current),
        cmocka_unit_test(two_gpus),
        cmocka_unit_test(gpu_not_granted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
