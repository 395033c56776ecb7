/* alloc/pool/pool: the cap, under failure and under threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/bytes.h"
#include "alloc/pool/pool.h"
#include "tests/unit/fake_cuda.h"

static const struct pc_cuda *real;
static struct pc_devices *devices;
static struct pc_leaks *leaks;
static struct pc_pool *pool;

/* 100 MiB: less than the 128 MiB that the driver would let through, so the host's line is what is tested. */
#define CAP (100 * PC_MIB)

static int setup(void **state)
{
    (void)state;
    struct pc_pool_config config = {.cap = CAP, .exported = true};
    real = fake_reset();
    if (pc_devices_create(real, &devices, NULL) != PC_OK || pc_leaks_create(&leaks, NULL) != PC_OK)
        return -1;
    config.leaks = leaks;
    return pc_pool_create(devices, &config, &pool, NULL) == PC_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    fake_fail(-1, 0, 0);
    pc_pool_destroy(pool);
    pc_leaks_free(leaks);
    pc_devices_free(devices);
    return fake.pools == 0 && fake.streams == 0 ? 0 : -1;
}

static uint64_t live(void)
{
    struct pc_pool_stats stats;
    assert_int_equal(pc_pool_stats(pool, &stats, NULL), PC_OK);
    return stats.live;
}

static uint64_t leaked(struct pc_leak *first)
{
    struct pc_leaks_snapshot *seen = malloc(sizeof *seen);
    pc_leaks_read(leaks, seen);
    uint64_t total = seen->total;
    if (total > 0 && first != NULL)
        *first = seen->kept[0];
    free(seen);
    return total;
}

static void test_exactly_the_cap(void **state)
{
    (void)state;
    pc_cu_deviceptr a = 0, b = 0, c = 0;
    struct pc_error err = {0};
    assert_int_equal(pc_pool_alloc(pool, CAP - 1, &a, NULL), PC_OK);
    assert_int_equal(pc_pool_alloc(pool, 2, &b, &err), PC_ERR_OUT_OF_MEMORY);
    assert_int_equal(b, 0);
    assert_int_equal(pc_pool_alloc(pool, 1, &c, NULL), PC_OK);
    assert_int_equal(live(), CAP);
    assert_int_equal(pc_pool_alloc(pool, 1, &b, NULL), PC_ERR_OUT_OF_MEMORY);
    assert_int_equal(fake.calls[FAKE_cuMemAllocFromPoolAsync], 2); /* refused before the driver was asked */
    assert_int_equal(pc_pool_free(pool, a, CAP - 1, NULL), PC_OK);
    assert_int_equal(pc_pool_free(pool, c, 1, NULL), PC_OK);
    assert_int_equal(live(), 0);
    assert_int_equal(fake.blocks, 0);
    assert_int_equal(leaked(NULL), 0);
}

static void test_text_of_out_of_memory(void **state)
{
    (void)state;
    pc_cu_deviceptr a;
    struct pc_error err = {0};
    assert_int_equal(pc_pool_alloc(pool, 64 * PC_MIB, &a, NULL), PC_OK);
    assert_int_equal(pc_pool_alloc(pool, 64 * PC_MIB + 1, &a, &err), PC_ERR_OUT_OF_MEMORY);
    assert_string_equal(err.text, "GPU 0: out of memory: requested 67108865 bytes (67108865), live 67108864 bytes "
                                  "(64Mi), cap 104857600 bytes (100Mi): over the cap");
    assert_int_equal(pc_pool_free(pool, a, 64 * PC_MIB, NULL), PC_OK);
    fake_fail(FAKE_cuMemAllocFromPoolAsync, 1, PC_CU_ERROR_OUT_OF_MEMORY);
    assert_int_equal(pc_pool_alloc(pool, PC_MIB, &a, &err), PC_ERR_OUT_OF_MEMORY);
    assert_int_equal(err.code, PC_CU_ERROR_OUT_OF_MEMORY);
    assert_non_null(strstr(err.text, "requested 1048576 bytes (1Mi), live "));
    assert_non_null(strstr(err.text, "CUDA_ERROR_OUT_OF_MEMORY (2)"));
}

static void test_huge_requests_do_not_wrap(void **state)
{
    (void)state;
    static const uint64_t huge[] = {UINT64_MAX, UINT64_MAX - PC_MIB + 1, UINT64_MAX - PC_MIB, 1ull << 63, CAP + 1};
    pc_cu_deviceptr a, b = 0;
    assert_int_equal(pc_pool_alloc(pool, PC_MIB, &a, NULL), PC_OK);
    for (size_t i = 0; i < sizeof huge / sizeof huge[0]; i++) {
        struct pc_error err;
        assert_int_equal(pc_pool_alloc(pool, huge[i], &b, &err), PC_ERR_OUT_OF_MEMORY);
        assert_int_equal(live(), PC_MIB);
    }
    assert_int_equal(b, 0);
    assert_int_equal(pc_pool_alloc(pool, 0, &b, NULL), PC_ERR_INVALID);
    assert_int_equal(pc_pool_free(pool, a, PC_MIB, NULL), PC_OK);
}

/* Each driver call of an allocation fails once: nothing is reserved, nothing allocated. */
static void test_alloc_fails_everywhere(void **state)
{
    (void)state;
    int failures = 0;
    for (int nth = 1;; nth++) {
        pc_cu_deviceptr ptr = 0;
        struct pc_error err = {0};
        fake_fail(-1, nth, PC_CU_ERROR_LAUNCH_FAILED);
        enum pc_status status = pc_pool_alloc(pool, CAP, &ptr, &err);
        bool failed = fake_failed();
        fake_fail(-1, 0, 0);
        if (!failed) {
            assert_int_equal(status, PC_OK);
            assert_int_equal(pc_pool_free(pool, ptr, CAP, NULL), PC_OK);
            break;
        }
        assert_true(status == PC_ERR_DRIVER || status == PC_ERR_DEVICE);
        assert_int_equal(err.code, PC_CU_ERROR_LAUNCH_FAILED);
        assert_int_equal(ptr, 0);
        assert_int_equal(live(), 0);
        assert_int_equal(fake.blocks, 0);
        failures++;
    }
    assert_int_equal(failures, 3);
    assert_int_equal(leaked(NULL), 0);
}

/* The one exception: memory that came, cannot be used and cannot be freed stays charged, and is on record. */
static void test_stuck_memory_stays_charged(void **state)
{
    (void)state;
    pc_cu_deviceptr ptr = 0;
    struct pc_leak leak = {0};
    fake_fail(FAKE_cuStreamSynchronize, 1, PC_CU_ERROR_LAUNCH_FAILED);
    fake.fail_all = true;
    assert_int_equal(pc_pool_alloc(pool, PC_MIB, &ptr, NULL), PC_ERR_DRIVER);
    fake.fail_all = false;
    assert_int_equal(live(), PC_MIB);
    assert_int_equal(leaked(&leak), 1);
    assert_int_equal(leak.bytes, PC_MIB);
    assert_int_equal(leak.code, PC_CU_ERROR_LAUNCH_FAILED);
}

static void test_failed_free(void **state)
{
    (void)state;
    static const int calls[] = {FAKE_cuCtxSetCurrent, FAKE_cuMemFreeAsync, FAKE_cuStreamSynchronize};
    pc_cu_deviceptr ptr;
    struct pc_leak leak;
    struct pc_error err;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pc_pool_alloc(pool, PC_MIB, &ptr, NULL), PC_OK);
        fake_fail(calls[i], 1, PC_CU_ERROR_OUT_OF_MEMORY); /* an odd code: it must not read as a full cap */
        assert_int_equal(pc_pool_free(pool, ptr, PC_MIB, &err), PC_ERR_DRIVER);
        assert_int_equal(err.code, PC_CU_ERROR_OUT_OF_MEMORY);
        assert_int_equal(live(), (uint64_t)(i + 1) * PC_MIB);
        assert_int_equal(leaked(&leak), i + 1);
        assert_int_equal(leak.code, PC_CU_ERROR_OUT_OF_MEMORY);
    }
    assert_int_equal(pc_pool_free(pool, 0xdead, PC_MIB, NULL), PC_ERR_DRIVER);
    assert_int_equal(leaked(NULL), 4);
    assert_int_equal(live(), 3 * PC_MIB);
}

static void test_over_release(void **state)
{
    (void)state;
    pc_cu_deviceptr ptr;
    struct pc_error err;
    assert_int_equal(pc_pool_alloc(pool, PC_MIB, &ptr, NULL), PC_OK);
    assert_int_equal(pc_pool_free(pool, ptr, PC_MIB + 7, &err), PC_ERR_INVALID);
    assert_non_null(strstr(err.text, "over-release"));
    assert_non_null(strstr(err.text, "1048583"));
    assert_non_null(strstr(err.text, " 7 more"));
    assert_int_equal(live(), 0);
    assert_int_equal(pc_pool_alloc(pool, CAP, &ptr, NULL), PC_OK); /* the cap has not grown or shrunk */
    assert_int_equal(pc_pool_free(pool, ptr, CAP, NULL), PC_OK);
}

static void test_stats_tell_the_truth(void **state)
{
    (void)state;
    struct pc_pool_stats stats;
    struct pc_error err;
    pc_cu_deviceptr ptr;
    assert_int_equal(pc_pool_alloc(pool, PC_MIB, &ptr, NULL), PC_OK);
    assert_int_equal(pc_pool_stats(pool, &stats, NULL), PC_OK);
    assert_int_equal(stats.requested_cap, CAP);
    assert_int_equal(stats.effective_cap, 128 * PC_MIB);
    assert_int_equal(stats.live, PC_MIB);
    assert_int_equal(stats.used, PC_MIB);
    assert_int_equal(stats.reserved, PC_MIB);
    stats.live = 123;
    fake_fail(FAKE_cuMemPoolGetAttribute, 2, PC_CU_ERROR_UNKNOWN);
    assert_int_equal(pc_pool_stats(pool, &stats, &err), PC_ERR_DRIVER);
    assert_int_equal(stats.live, 123);
    assert_int_equal(pc_pool_free(pool, ptr, PC_MIB, NULL), PC_OK);
}

static pc_cu_result ask_too_much(pc_cu_deviceptr *out, size_t bytes, pc_cu_mempool handle, pc_cu_stream stream)
{
    return real->cuMemAllocFromPoolAsync(out, bytes + PC_GIB, handle, stream);
}

/* A request that the driver refuses still grows RESERVED up to the cap (facts): the figures must say so. */
static void test_refusal_grows_reserved(void **state)
{
    (void)state;
    struct pc_pool_stats stats;
    struct pc_pool *own = NULL;
    struct pc_devices *with_wrapper = NULL;
    struct pc_cuda wrapped = *real;
    pc_cu_deviceptr ptr = 0;
    wrapped.cuMemAllocFromPoolAsync = ask_too_much;
    assert_int_equal(pc_devices_create(&wrapped, &with_wrapper, NULL), PC_OK);
    assert_int_equal(pc_pool_create(with_wrapper, &(struct pc_pool_config){.cap = 96 * PC_MIB}, &own, NULL), PC_OK);
    assert_int_equal(pc_pool_alloc(own, PC_MIB, &ptr, NULL), PC_ERR_OUT_OF_MEMORY);
    assert_int_equal(pc_pool_stats(own, &stats, NULL), PC_OK);
    assert_int_equal(stats.live, 0);
    assert_int_equal(stats.used, 0);
    assert_int_equal(stats.reserved, 96 * PC_MIB);
    pc_pool_destroy(own);
    pc_devices_free(with_wrapper);
}

static void test_zero(void **state)
{
    (void)state;
    pc_cu_deviceptr ptr;
    assert_int_equal(pc_pool_alloc(pool, PC_MIB, &ptr, NULL), PC_OK);
    fake_trace_start();
    assert_int_equal(pc_pool_zero(pool, ptr, PC_MIB, NULL), PC_OK);
    assert_string_equal(fake_trace(), "cuCtxSetCurrent cuMemsetD8Async cuStreamSynchronize");
    fake_fail(FAKE_cuMemsetD8Async, 1, PC_CU_ERROR_INVALID_VALUE);
    assert_int_equal(pc_pool_zero(pool, ptr, PC_MIB, NULL), PC_ERR_DRIVER);
    fake_fail(FAKE_cuStreamSynchronize, 1, PC_CU_ERROR_LAUNCH_FAILED);
    assert_int_equal(pc_pool_zero(pool, ptr, PC_MIB, NULL), PC_ERR_DRIVER);
    assert_int_equal(pc_pool_free(pool, ptr, PC_MIB, NULL), PC_OK);
}

/* --- threads --- */

enum { THREADS = 8, ROUNDS = 2000, HELD = 4 };
static atomic_long refused, broken;

static void *churn(void *arg)
{
    unsigned seed = (unsigned)(uintptr_t)arg;
    pc_cu_deviceptr ptr[HELD] = {0};
    uint64_t bytes[HELD] = {0};
    for (int i = 0; i < ROUNDS + HELD; i++) {
        int k = i % HELD;
        if (bytes[k] != 0 && pc_pool_free(pool, ptr[k], bytes[k], NULL) != PC_OK)
            atomic_fetch_add(&broken, 1);
        bytes[k] = 0;
        if (i >= ROUNDS)
            continue;
        /* Four held by one thread already pass the cap now and then, however the threads are scheduled. */
        uint64_t want = 1 + (uint64_t)rand_r(&seed) % (CAP / 2);
        enum pc_status status = pc_pool_alloc(pool, want, &ptr[k], NULL);
        if (status == PC_OK)
            bytes[k] = want;
        else
            atomic_fetch_add(status == PC_ERR_OUT_OF_MEMORY ? &refused : &broken, 1);
    }
    return NULL;
}

static void *watch(void *arg)
{
    struct pc_pool_stats stats;
    while (!atomic_load((atomic_bool *)arg))
        if (pc_pool_stats(pool, &stats, NULL) != PC_OK || stats.live > CAP || stats.used > CAP)
            atomic_fetch_add(&broken, 1);
    return NULL;
}

static void test_threads_never_pass_the_cap(void **state)
{
    (void)state;
    pthread_t threads[THREADS], watcher;
    atomic_bool done = false;
    assert_int_equal(pthread_create(&watcher, NULL, watch, &done), 0);
    for (uintptr_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, churn, (void *)(i + 1)), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    atomic_store(&done, true);
    pthread_join(watcher, NULL);
    assert_int_equal(atomic_load(&broken), 0);
    assert_true(atomic_load(&refused) > 0); /* else the cap was never reached and nothing was tested */
    assert_true(fake.used_high <= CAP);
    assert_true(fake.used_high > CAP / 2);
    assert_int_equal(live(), 0);
    assert_int_equal(fake.used, 0);
}

/* All threads ask for the last piece at once: one gets it. */
static atomic_int winners, ready;

static void *grab(void *arg)
{
    pc_cu_deviceptr ptr;
    atomic_fetch_add(&ready, 1);
    while (atomic_load(&ready) < THREADS)
        ;
    if (pc_pool_alloc(pool, CAP / 2 + 1, &ptr, NULL) == PC_OK) {
        atomic_fetch_add(&winners, 1);
        *(pc_cu_deviceptr *)arg = ptr;
    }
    return NULL;
}

static void test_one_wins_the_last_piece(void **state)
{
    (void)state;
    for (int round = 0; round < 50; round++) {
        pthread_t threads[THREADS];
        pc_cu_deviceptr ptr = 0;
        atomic_store(&ready, 0);
        atomic_store(&winners, 0);
        for (int i = 0; i < THREADS; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, grab, &ptr), 0);
        for (int i = 0; i < THREADS; i++)
            pthread_join(threads[i], NULL);
        assert_int_equal(atomic_load(&winners), 1);
        assert_int_equal(pc_pool_free(pool, ptr, CAP / 2 + 1, NULL), PC_OK);
    }
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_exactly_the_cap),
        T(test_text_of_out_of_memory),
        T(test_huge_requests_do_not_wrap),
        T(test_alloc_fails_everywhere),
        T(test_stuck_memory_stays_charged),
        T(test_failed_free),
        T(test_over_release),
        T(test_stats_tell_the_truth),
        T(test_refusal_grows_reserved),
        T(test_zero),
        T(test_threads_never_pass_the_cap),
        T(test_one_wins_the_last_piece),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
