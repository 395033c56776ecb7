/* alloc/pool/pool: making and unmaking; nothing is left of a failure. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

#include "alloc/base/bytes.h"
#include "alloc/pool/pool.h"
#include "tests/unit/fake_cuda.h"

static struct pc_devices *devices;

static int setup(void **state)
{
    (void)state;
    return pc_devices_create(fake_reset(), &devices, NULL) == PC_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    fake_fail(-1, 0, 0);
    pc_devices_free(devices);
    return fake.contexts[0] == 0 && fake.contexts[1] == 0 && fake_alive() == 0 ? 0 : -1;
}

static void test_what_is_made(void **state)
{
    (void)state;
    struct pc_pool *pool = NULL;
    struct pc_pool_config config = {.ordinal = 1, .cap = 100 * PC_MIB, .exported = true, .release_threshold = 5};
    assert_int_equal(pc_pool_create(devices, &config, &pool, NULL), PC_OK);
    assert_int_equal(fake.pools, 1);
    assert_int_equal(fake.streams, 1);
    assert_int_equal(fake.props.alloc_type, PC_CU_MEM_ALLOCATION_TYPE_PINNED);
    assert_int_equal(fake.props.handle_types, PC_CU_MEM_HANDLE_TYPE_POSIX_FD);
    assert_int_equal(fake.props.location.type, PC_CU_MEM_LOCATION_TYPE_DEVICE);
    assert_int_equal(fake.props.location.id, 1);
    assert_int_equal(fake.props.max_size, 128 * PC_MIB);
    assert_int_equal(fake.access.flags, PC_CU_MEM_ACCESS_READWRITE);
    assert_int_equal(fake.access.location.type, PC_CU_MEM_LOCATION_TYPE_DEVICE);
    assert_int_equal(fake.access.location.id, 1);
    assert_int_equal(fake.stream_flags, PC_CU_STREAM_NON_BLOCKING);
    assert_true(fake.threshold == UINT64_MAX); /* never 5: an exported pool does not shrink (trap 1) */
    fake_trace_start();
    pc_pool_destroy(pool);
    assert_string_equal(fake_trace(), "cuCtxSetCurrent cuStreamSynchronize cuMemPoolDestroy cuStreamDestroy");
    pc_pool_destroy(NULL);
}

static void test_not_exported(void **state)
{
    (void)state;
    struct pc_pool *pool = NULL;
    struct pc_pool_config config = {.cap = PC_GIB, .release_threshold = 5};
    struct pc_error err;
    fake.pools_supported = false; /* only export needs it */
    assert_int_equal(pc_pool_create(devices, &config, &pool, NULL), PC_OK);
    assert_int_equal(fake.props.handle_types, PC_CU_MEM_HANDLE_TYPE_NONE);
    assert_int_equal(fake.threshold, 5);
    assert_int_equal(pc_pool_set_release_threshold(pool, 77, NULL), PC_OK);
    assert_int_equal(fake.threshold, 77);
    fake_fail(FAKE_cuMemPoolSetAttribute, 1, PC_CU_ERROR_UNKNOWN);
    assert_int_equal(pc_pool_set_release_threshold(pool, 78, &err), PC_ERR_SET_ATTRIBUTE);
    assert_int_equal(err.code, PC_CU_ERROR_UNKNOWN);
    pc_pool_destroy(pool);
}

static void test_exported_threshold_is_fixed(void **state)
{
    (void)state;
    struct pc_pool *pool = NULL;
    struct pc_error err;
    assert_int_equal(pc_pool_create(devices, &(struct pc_pool_config){.cap = 1, .exported = true}, &pool, NULL), PC_OK);
    assert_int_equal(pc_pool_set_release_threshold(pool, 0, &err), PC_ERR_NOT_SUPPORTED);
    assert_non_null(strstr(err.text, "leaves the pool's books but not the device"));
    assert_true(fake.threshold == UINT64_MAX);
    pc_pool_destroy(pool);
}

static void test_refused(void **state)
{
    (void)state;
    struct pc_pool *pool = NULL;
    struct pc_error err;
    assert_int_equal(pc_pool_create(devices, &(struct pc_pool_config){.cap = 0}, &pool, &err), PC_ERR_INVALID);
    assert_non_null(strstr(err.text, "cap is 0"));
    assert_int_equal(pc_pool_create(devices, &(struct pc_pool_config){.cap = UINT64_MAX}, &pool, &err), PC_ERR_INVALID);
    assert_non_null(strstr(err.text, "too large"));
    assert_int_equal(pc_pool_create(devices, &(struct pc_pool_config){.cap = 1, .ordinal = 9}, &pool, &err),
                     PC_ERR_INVALID);
    assert_non_null(strstr(err.text, "GPU 9"));
    fake.pools_supported = false;
    assert_int_equal(pc_pool_create(devices, &(struct pc_pool_config){.cap = 1, .exported = true}, &pool, &err),
                     PC_ERR_NOT_SUPPORTED);
    assert_non_null(strstr(err.text, "Fake GPU 0"));
    assert_null(pool);
    assert_int_equal(fake_alive(), 0);
}

/* Each driver call of create fails once, with the context new and with it already made. */
static void fail_everywhere(pc_cu_result code, int at_least)
{
    for (int nth = 1;; nth++) {
        struct pc_pool *pool = NULL;
        struct pc_error err = {0};
        fake_fail(-1, nth, code);
        enum pc_status status =
            pc_pool_create(devices, &(struct pc_pool_config){.cap = 1, .exported = true}, &pool, &err);
        if (!fake_failed()) {
            fake_fail(-1, 0, 0);
            assert_int_equal(status, PC_OK);
            pc_pool_destroy(pool);
            assert_true(nth > at_least);
            return;
        }
        assert_true(status == PC_ERR_DEVICE || status == PC_ERR_POOL_CREATE || status == PC_ERR_SET_ATTRIBUTE);
        assert_int_equal(err.status, status);
        assert_int_equal(err.code, code);
        assert_null(pool);
        if (fake_alive() != 0)
            fail_msg("call %d left pools %d, streams %d: %s", nth, fake.pools, fake.streams, err.text);
    }
}

static void test_create_fails_everywhere(void **state)
{
    (void)state;
    fail_everywhere(PC_CU_ERROR_OUT_OF_MEMORY, 9);
    fail_everywhere(PC_CU_ERROR_UNKNOWN, 5);
}

static void test_status_of_each_failure(void **state)
{
    (void)state;
    static const struct {
        int fn;
        enum pc_status status;
    } rows[] = {
        {FAKE_cuDevicePrimaryCtxRetain, PC_ERR_DEVICE},     {FAKE_cuCtxSetCurrent, PC_ERR_DEVICE},
        {FAKE_cuMemPoolCreate, PC_ERR_POOL_CREATE},         {FAKE_cuMemPoolSetAccess, PC_ERR_SET_ATTRIBUTE},
        {FAKE_cuMemPoolSetAttribute, PC_ERR_SET_ATTRIBUTE}, {FAKE_cuStreamCreate, PC_ERR_POOL_CREATE},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct pc_pool *pool = NULL;
        fake_fail(rows[i].fn, 1, PC_CU_ERROR_OUT_OF_MEMORY);
        assert_int_equal(pc_pool_create(devices, &(struct pc_pool_config){.cap = 1}, &pool, NULL), rows[i].status);
        assert_true(fake_failed());
        assert_int_equal(fake_alive(), 0);
    }
}

/* A broken device must not keep destroy from trying everything. */
static void test_destroy_goes_on(void **state)
{
    (void)state;
    struct pc_pool *pool = NULL;
    assert_int_equal(pc_pool_create(devices, &(struct pc_pool_config){.cap = 1}, &pool, NULL), PC_OK);
    fake_fail(FAKE_cuStreamSynchronize, 1, PC_CU_ERROR_LAUNCH_FAILED);
    pc_pool_destroy(pool);
    assert_true(fake_failed());
    assert_int_equal(fake_alive(), 0);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_what_is_made),
        T(test_not_exported),
        T(test_exported_threshold_is_fixed),
        T(test_refused),
        T(test_create_fails_everywhere),
        T(test_status_of_each_failure),
        T(test_destroy_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
