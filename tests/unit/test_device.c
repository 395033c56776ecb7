/* alloc/pool/device: contexts are made once, by whichever thread comes first, and nothing is left of a failure. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "alloc/pool/device.h"
#include "tests/unit/fake_cuda.h"

static const struct pc_cuda *cu;

static int setup(void **state)
{
    (void)state;
    cu = fake_reset();
    return 0;
}

static struct pc_devices *make_devices(void)
{
    struct pc_devices *devices = NULL;
    struct pc_error err = {0};
    if (pc_devices_create(cu, &devices, &err) != PC_OK)
        fail_msg("%s", err.text);
    return devices;
}

static void test_create_makes_no_context(void **state)
{
    (void)state;
    struct pc_devices *devices = make_devices();
    assert_int_equal(pc_devices_count(devices), FAKE_GPUS);
    assert_int_equal(fake.calls[FAKE_cuInit], 1);
    assert_int_equal(fake.calls[FAKE_cuDevicePrimaryCtxRetain], 0);
    pc_devices_free(devices);
    pc_devices_free(NULL);
}

static void test_create_fails(void **state)
{
    (void)state;
    static const int calls[] = {FAKE_cuInit, FAKE_cuDriverGetVersion, FAKE_cuDeviceGetCount};
    struct pc_devices *devices = NULL;
    struct pc_error err;
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        fake_fail(calls[i], 1, PC_CU_ERROR_OUT_OF_MEMORY);
        assert_int_equal(pc_devices_create(cu, &devices, &err), PC_ERR_NOT_INITIALISED);
        assert_int_equal(err.status, PC_ERR_NOT_INITIALISED);
        assert_int_equal(err.code, PC_CU_ERROR_OUT_OF_MEMORY);
        assert_null(devices);
    }
    fake.version = 12010;
    assert_int_equal(pc_devices_create(cu, &devices, &err), PC_ERR_NOT_INITIALISED);
    assert_non_null(strstr(err.text, "CUDA 12.1,"));
    assert_non_null(strstr(err.text, "12.2"));
    fake.version = PC_CUDA_VERSION_MIN;
    assert_int_equal(pc_devices_create(cu, &devices, NULL), PC_OK);
    pc_devices_free(devices);
}

static void test_info(void **state)
{
    (void)state;
    struct pc_devices *devices = make_devices();
    struct pc_device_info info = {0};
    assert_int_equal(pc_devices_info(devices, 1, &info, NULL), PC_OK);
    assert_int_equal(info.ordinal, 1);
    assert_string_equal(info.name, "Fake GPU 1");
    assert_string_equal(info.uuid, "GPU-a1a1a1a1-a1a1-a1a1-a1a1-a1a1a1a1a1a1");
    assert_int_equal(info.total, 16ull << 30);
    assert_true(info.pools && info.concurrent_managed);
    fake.pools_supported = false;
    fake.concurrent_managed = false;
    assert_int_equal(pc_devices_info(devices, 1, &info, NULL), PC_OK);
    assert_false(info.pools || info.concurrent_managed);
    assert_int_equal(fake.calls[FAKE_cuDevicePrimaryCtxRetain], 0);
    pc_devices_free(devices);
}

static void test_wrong_ordinals(void **state)
{
    (void)state;
    static const int wrong[] = {-1, FAKE_GPUS, 1 << 30, -(1 << 30)};
    struct pc_devices *devices = make_devices();
    struct pc_device *device = NULL;
    struct pc_device_info info;
    struct pc_error err;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(pc_devices_get(devices, wrong[i], &device, &err), PC_ERR_INVALID);
        assert_non_null(strstr(err.text, "this process sees 2 GPUs"));
        assert_int_equal(pc_devices_info(devices, wrong[i], &info, &err), PC_ERR_INVALID);
    }
    assert_null(device);
    pc_devices_free(devices);
}

static void test_get_once(void **state)
{
    (void)state;
    struct pc_devices *devices = make_devices();
    struct pc_device *first = NULL, *again = NULL, *other = NULL;
    assert_int_equal(pc_devices_get(devices, 0, &first, NULL), PC_OK);
    assert_int_equal(pc_devices_get(devices, 0, &again, NULL), PC_OK);
    assert_int_equal(pc_devices_get(devices, 1, &other, NULL), PC_OK);
    assert_ptr_equal(first, again);
    assert_ptr_not_equal(first, other);
    assert_int_equal(fake.calls[FAKE_cuDevicePrimaryCtxRetain], 2);
    assert_int_equal(pc_device_get_info(other)->ordinal, 1);
    assert_ptr_equal(pc_device_cuda(other), cu);
    assert_int_equal((uintptr_t)pc_device_context(other), 0x1001);
    assert_int_equal(pc_device_bind(other, NULL), PC_OK);
    pc_devices_free(devices);
    assert_int_equal(fake.contexts[0], 0);
    assert_int_equal(fake.contexts[1], 0);
}

/* Each driver call of a first get fails once: an error that names GPU and call, no retain left, and the next get works.
 */
static void test_get_fails_everywhere(void **state)
{
    (void)state;
    struct pc_devices *devices = make_devices();
    int failures = 0;
    for (int nth = 1;; nth++) {
        struct pc_device *device = NULL;
        struct pc_error err = {0};
        fake_fail(-1, nth, PC_CU_ERROR_OUT_OF_MEMORY);
        enum pc_status status = pc_devices_get(devices, 1, &device, &err);
        if (!fake_failed()) {
            assert_int_equal(status, PC_OK);
            break;
        }
        assert_int_equal(status, PC_ERR_DEVICE);
        assert_int_equal(err.status, PC_ERR_DEVICE);
        assert_int_equal(err.code, PC_CU_ERROR_OUT_OF_MEMORY);
        assert_memory_equal(err.text, "GPU 1: ", 7);
        assert_non_null(strstr(err.text, "cuDevice"));
        assert_null(device);
        assert_int_equal(fake.contexts[1], 0);
        failures++;
    }
    assert_true(failures >= 8);
    fake_fail(FAKE_cuDeviceGetUuid, 1, PC_CU_ERROR_UNKNOWN);
    struct pc_device_info info;
    struct pc_error err;
    assert_int_equal(pc_devices_info(devices, 0, &info, &err), PC_ERR_DEVICE);
    assert_non_null(strstr(err.text, "cuDeviceGetUuid"));
    pc_devices_free(devices);
    assert_int_equal(fake.contexts[1], 0);
}

static void test_bind_fails(void **state)
{
    (void)state;
    struct pc_devices *devices = make_devices();
    struct pc_device *device = NULL;
    struct pc_error err;
    assert_int_equal(pc_devices_get(devices, 0, &device, NULL), PC_OK);
    fake_fail(FAKE_cuCtxSetCurrent, 1, PC_CU_ERROR_CONTEXT_IS_DESTROYED);
    assert_int_equal(pc_device_bind(device, &err), PC_ERR_DEVICE);
    assert_int_equal(err.code, PC_CU_ERROR_CONTEXT_IS_DESTROYED);
    pc_devices_free(devices);
}

/* --- threads --- */

enum { THREADS = 8 };
static struct pc_devices *shared;
static atomic_int inside;
static atomic_bool alone;

/* Keeps every thread in the retain until all are in it: impossible if any of them holds the lock. */
static void wait_for_all(enum fake_fn fn)
{
    if (fn != FAKE_cuDevicePrimaryCtxRetain)
        return;
    atomic_fetch_add(&inside, 1);
    for (int ms = 0; atomic_load(&inside) < THREADS; ms++) {
        if (ms == 5000) {
            atomic_store(&alone, true);
            return;
        }
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

static void *get_zero(void *out)
{
    struct pc_device *device = NULL;
    if (pc_devices_get(shared, 0, &device, NULL) == PC_OK && pc_device_bind(device, NULL) == PC_OK)
        *(struct pc_device **)out = device;
    return NULL;
}

static void test_race(void **state)
{
    (void)state;
    pthread_t threads[THREADS];
    struct pc_device *got[THREADS] = {NULL};
    shared = make_devices();
    atomic_store(&inside, 0);
    atomic_store(&alone, false);
    fake.hook = wait_for_all;
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, get_zero, &got[i]), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    fake.hook = NULL;
    assert_false(atomic_load(&alone)); /* else a driver call was made under the lock */
    assert_non_null(got[0]);
    for (int i = 1; i < THREADS; i++)
        assert_ptr_equal(got[i], got[0]);
    assert_int_equal(fake.calls[FAKE_cuDevicePrimaryCtxRetain], THREADS);
    assert_int_equal(fake.contexts[0], 1);
    pc_devices_free(shared);
    assert_int_equal(fake.contexts[0], 0);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup(name, setup)
    const struct CMUnitTest tests[] = {
        T(test_create_makes_no_context), T(test_create_fails), T(test_info), T(test_wrong_ordinals), T(test_get_once),
        T(test_get_fails_everywhere),    T(test_bind_fails),   T(test_race),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
