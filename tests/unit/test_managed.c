/* alloc/pool/managed: charged before the driver is asked, and given back exactly. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/bytes.h"
#include "alloc/pool/managed.h"
#include "tests/unit/fake_cuda.h"

struct books {
    uint64_t cap;
    _Atomic uint64_t charged;
};

static struct books books;
static struct pc_leaks *leaks;
static struct pc_charge charge;
static struct pc_managed_env env;

static enum pc_status books_reserve(void *ctx, int ordinal, uint64_t bytes, struct pc_error *err)
{
    struct books *b = ctx;
    uint64_t now = atomic_load(&b->charged);
    do {
        if (bytes > b->cap - now)
            return pc_error_set(err, PC_ERR_OUT_OF_MEMORY, 0, "the books say no to GPU %d", ordinal);
    } while (!atomic_compare_exchange_weak(&b->charged, &now, now + bytes));
    return PC_OK;
}

static void books_release(void *ctx, int ordinal, uint64_t bytes)
{
    struct books *b = ctx;
    (void)ordinal;
    if (atomic_fetch_sub(&b->charged, bytes) < bytes)
        abort();
}

static int setup(void **state)
{
    (void)state;
    const struct pc_cuda *cu = fake_reset();
    books = (struct books){.cap = 100 * PC_MIB};
    charge = (struct pc_charge){.reserve = books_reserve, .release = books_release, .ctx = &books};
    cu->cuCtxSetCurrent((pc_cu_context)(uintptr_t)0x1000);
    if (pc_leaks_create(&leaks, NULL) != PC_OK)
        return -1;
    env = (struct pc_managed_env){.cu = cu, .charge = &charge, .leaks = leaks};
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    pc_leaks_free(leaks);
    return 0;
}

static struct pc_managed *make(int ordinal)
{
    struct pc_managed *buffer = NULL;
    struct pc_error err;
    if (pc_managed_alloc(&env, ordinal, PC_MIB, &buffer, &err) != PC_OK)
        fail_msg("%s", err.text);
    return buffer;
}

static void test_alloc_and_free(void **state)
{
    (void)state;
    struct pc_managed *buffer = make(1);
    assert_int_equal(books.charged, PC_MIB);
    assert_int_equal(pc_managed_bytes(buffer), PC_MIB);
    assert_int_not_equal(pc_managed_ptr(buffer), 0);
    assert_int_equal(fake.managed, 1);
    assert_int_equal(pc_managed_free(buffer, NULL), PC_OK);
    assert_int_equal(books.charged, 0);
    assert_int_equal(fake.managed, 0);
    assert_int_equal(pc_managed_free(NULL, NULL), PC_OK);
}

static void test_refused(void **state)
{
    (void)state;
    struct pc_managed *buffer = NULL;
    struct pc_error err;
    assert_int_equal(pc_managed_alloc(&env, 0, 0, &buffer, &err), PC_ERR_INVALID);
    assert_int_equal(pc_managed_alloc(&env, 1, 100 * PC_MIB + 1, &buffer, &err), PC_ERR_OUT_OF_MEMORY);
    assert_string_equal(err.text, "the books say no to GPU 1");
    assert_int_equal(fake.calls[FAKE_cuMemAllocManaged], 0); /* charged before the driver is asked */
    fake_fail(FAKE_cuMemAllocManaged, 1, PC_CU_ERROR_OUT_OF_MEMORY);
    assert_int_equal(pc_managed_alloc(&env, 0, PC_MIB, &buffer, &err), PC_ERR_OUT_OF_MEMORY);
    fake_fail(FAKE_cuMemAllocManaged, 1, PC_CU_ERROR_NOT_SUPPORTED);
    assert_int_equal(pc_managed_alloc(&env, 0, PC_MIB, &buffer, &err), PC_ERR_DRIVER);
    assert_int_equal(err.code, PC_CU_ERROR_NOT_SUPPORTED);
    assert_int_equal(books.charged, 0);
    assert_null(buffer);
}

static void test_failed_free_stays_charged(void **state)
{
    (void)state;
    struct pc_leaks_snapshot *seen = malloc(sizeof *seen);
    struct pc_managed *buffer = make(0);
    pc_cu_deviceptr ptr = pc_managed_ptr(buffer);
    fake_fail(FAKE_cuMemFree, 1, PC_CU_ERROR_ILLEGAL_ADDRESS);
    assert_int_equal(pc_managed_free(buffer, NULL), PC_ERR_DRIVER);
    assert_int_equal(books.charged, PC_MIB);
    pc_leaks_read(leaks, seen);
    assert_int_equal(seen->total, 1);
    assert_int_equal(seen->kept[0].address, ptr);
    assert_int_equal(seen->kept[0].bytes, PC_MIB);
    assert_int_equal(seen->kept[0].code, PC_CU_ERROR_ILLEGAL_ADDRESS);
    free(seen);
    env.leaks = NULL;
    buffer = make(0);
    fake_fail(FAKE_cuMemFree, 1, PC_CU_ERROR_ILLEGAL_ADDRESS);
    assert_int_equal(pc_managed_free(buffer, NULL), PC_ERR_DRIVER);
}

static void test_prefetch(void **state)
{
    (void)state;
    struct pc_managed *buffer = make(1);
    struct pc_error err;
    assert_int_equal(pc_managed_prefetch(buffer, PC_MANAGED_OWN_GPU, NULL, NULL), PC_OK);
    assert_int_equal(fake.location.type, PC_CU_MEM_LOCATION_TYPE_DEVICE);
    assert_int_equal(fake.location.id, 1);
    assert_int_equal(pc_managed_prefetch(buffer, 0, NULL, NULL), PC_OK);
    assert_int_equal(fake.location.id, 0);
    assert_int_equal(pc_managed_prefetch(buffer, PC_MANAGED_HOST, NULL, NULL), PC_OK);
    assert_int_equal(fake.location.type, PC_CU_MEM_LOCATION_TYPE_HOST);
    assert_int_equal(fake.calls[FAKE_cuMemPrefetchAsync], 3);
    assert_int_equal(pc_managed_prefetch(buffer, FAKE_GPUS, NULL, &err), PC_ERR_INVALID);
    assert_non_null(strstr(err.text, "GPU 2"));
    assert_int_equal(pc_managed_prefetch(buffer, -3, NULL, NULL), PC_ERR_INVALID);
    assert_int_equal(fake.calls[FAKE_cuMemPrefetchAsync], 3);
    fake_fail(FAKE_cuMemPrefetchAsync, 1, PC_CU_ERROR_INVALID_VALUE);
    assert_int_equal(pc_managed_prefetch(buffer, 0, NULL, &err), PC_ERR_DRIVER);
    fake.concurrent_managed = false;
    assert_int_equal(pc_managed_prefetch(buffer, PC_MANAGED_HOST, NULL, NULL), PC_OK);
    assert_int_equal(fake.calls[FAKE_cuMemPrefetchAsync], 4); /* such a driver would refuse it */
    assert_int_equal(pc_managed_free(buffer, NULL), PC_OK);
}

static void test_advise(void **state)
{
    (void)state;
    static const struct {
        enum pc_managed_advice advice;
        int set;
        pc_cu_advice value;
    } rows[] = {
        {PC_MANAGED_READ_MOSTLY, 1, 1},        {PC_MANAGED_READ_MOSTLY, 0, 2}, {PC_MANAGED_PREFERRED_LOCATION, 1, 3},
        {PC_MANAGED_PREFERRED_LOCATION, 0, 4}, {PC_MANAGED_ACCESSED_BY, 7, 5}, {PC_MANAGED_ACCESSED_BY, 0, 6},
    };
    struct pc_managed *buffer = make(1);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(pc_managed_advise(buffer, rows[i].advice, rows[i].set, 0, NULL), PC_OK);
        assert_int_equal(fake.advice, rows[i].value);
        assert_int_equal(fake.location.id, rows[i].advice == PC_MANAGED_READ_MOSTLY ? 1 : 0);
    }
    assert_int_equal(pc_managed_advise(buffer, PC_MANAGED_READ_MOSTLY, 1, 99, NULL), PC_OK); /* where is ignored */
    assert_int_equal(pc_managed_advise(buffer, PC_MANAGED_ACCESSED_BY, 1, PC_MANAGED_HOST, NULL), PC_OK);
    assert_int_equal(fake.location.type, PC_CU_MEM_LOCATION_TYPE_HOST);
    int calls = fake.calls[FAKE_cuMemAdvise];
    assert_int_equal(pc_managed_advise(buffer, PC_MANAGED_ACCESSED_BY, 1, 99, NULL), PC_ERR_INVALID);
    assert_int_equal(pc_managed_advise(buffer, (enum pc_managed_advice)3, 1, 0, NULL), PC_ERR_INVALID);
    assert_int_equal(pc_managed_advise(buffer, (enum pc_managed_advice) - 1, 1, 0, NULL), PC_ERR_INVALID);
    assert_int_equal(fake.calls[FAKE_cuMemAdvise], calls);
    fake_fail(FAKE_cuMemAdvise, 1, PC_CU_ERROR_INVALID_DEVICE);
    assert_int_equal(pc_managed_advise(buffer, PC_MANAGED_ACCESSED_BY, 1, 0, NULL), PC_ERR_DRIVER);
    assert_int_equal(pc_managed_free(buffer, NULL), PC_OK);
}

/* --- threads --- */

enum { THREADS = 8, ROUNDS = 1000 };
static atomic_int broken;

static void *churn(void *shared)
{
    env.cu->cuCtxSetCurrent((pc_cu_context)(uintptr_t)0x1000);
    for (int i = 0; i < ROUNDS; i++) {
        struct pc_managed *mine = NULL;
        enum pc_status status = pc_managed_alloc(&env, 0, 30 * PC_MIB, &mine, NULL);
        bool odd = status != PC_OK && status != PC_ERR_OUT_OF_MEMORY;
        odd |= atomic_load(&books.charged) > books.cap;
        odd |= pc_managed_prefetch(shared, i % 2 == 0 ? PC_MANAGED_HOST : 0, NULL, NULL) != PC_OK;
        odd |= pc_managed_advise(shared, PC_MANAGED_READ_MOSTLY, i % 2, 0, NULL) != PC_OK;
        odd |= pc_managed_free(mine, NULL) != PC_OK;
        if (odd)
            atomic_fetch_add(&broken, 1);
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    pthread_t threads[THREADS];
    struct pc_managed *shared = make(0);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, churn, shared), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(atomic_load(&broken), 0);
    assert_int_equal(pc_managed_free(shared, NULL), PC_OK);
    assert_int_equal(books.charged, 0);
    assert_int_equal(fake.managed, 0);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_alloc_and_free), T(test_refused), T(test_failed_free_stays_charged),
        T(test_prefetch),       T(test_advise),  T(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
