/* alloc/pool/large: one handle, one fd, one mapping; undone in reverse order wherever it fails. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/bytes.h"
#include "alloc/pool/large.h"
#include "tests/unit/fake_cuda.h"

static const struct pc_cuda *cu;
static struct pc_devices *devices;
static struct pc_device *device;

static int setup(void **state)
{
    (void)state;
    cu = fake_reset();
    return pc_devices_create(cu, &devices, NULL) == PC_OK && pc_devices_get(devices, 1, &device, NULL) == PC_OK ? 0
                                                                                                                : -1;
}

static int teardown(void **state)
{
    (void)state;
    fake_fail(-1, 0, 0);
    pc_devices_free(devices);
    return fake_alive() == 0 ? 0 : -1;
}

static int lowest_free_fd(void)
{
    int fd = open("/dev/null", O_RDONLY);
    close(fd);
    return fd;
}

static void test_create(void **state)
{
    (void)state;
    int fd = -1;
    fake_trace_start();
    assert_int_equal(pc_large_create(device, 8 * PC_GIB, &fd, NULL), PC_OK);
    assert_string_equal(fake_trace(), "cuCtxSetCurrent cuMemGetAllocationGranularity cuMemCreate "
                                      "cuMemExportToShareableHandle cuMemRelease");
    assert_int_equal(fake.props.handle_types, PC_CU_MEM_HANDLE_TYPE_POSIX_FD);
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    assert_int_equal(fake.handles, 0);
    close(fd);
}

static void test_sizes(void **state)
{
    (void)state;
    static const uint64_t wrong[] = {0, 1, 2 * PC_MIB - 1, 2 * PC_MIB + 1, UINT64_MAX};
    uint64_t granularity = 0;
    int fd = -5;
    struct pc_error err;
    assert_int_equal(pc_large_granularity(device, &granularity, NULL), PC_OK);
    assert_int_equal(granularity, 2 * PC_MIB);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(pc_large_create(device, wrong[i], &fd, &err), PC_ERR_INVALID);
        assert_non_null(strstr(err.text, "2097152"));
    }
    assert_int_equal(fd, -5);
    assert_int_equal(fake.calls[FAKE_cuMemCreate], 0);
}

static void test_create_fails_everywhere(void **state)
{
    (void)state;
    int before = lowest_free_fd();
    for (int nth = 1; nth <= 5; nth++) {
        int fd = -5;
        struct pc_error err;
        fake_fail(-1, nth, PC_CU_ERROR_UNKNOWN);
        assert_int_not_equal(pc_large_create(device, 2 * PC_MIB, &fd, &err), PC_OK);
        assert_true(fake_failed());
        assert_int_equal(fd, -5);
        assert_int_equal(lowest_free_fd(), before);
        /* A release that fails leaves the handle: there is nothing that could be done about it. */
        assert_int_equal(fake.handles, nth == 5 ? 1 : 0);
    }
    fake.handles = 0;
    int fd = -5;
    fake_fail(FAKE_cuMemCreate, 1, PC_CU_ERROR_OUT_OF_MEMORY);
    assert_int_equal(pc_large_create(device, 2 * PC_MIB, &fd, NULL), PC_ERR_OUT_OF_MEMORY);
}

static void test_map(void **state)
{
    (void)state;
    pc_cu_deviceptr ptr = 0;
    int fd = open("/dev/null", O_RDONLY);
    fake_trace_start();
    assert_int_equal(pc_large_map(cu, 1, fd, 2 * PC_MIB, &ptr, NULL), PC_OK);
    assert_string_equal(fake_trace(), "cuMemImportFromShareableHandle cuMemAddressReserve cuMemMap cuMemSetAccess "
                                      "cuMemRelease");
    assert_true(fcntl(fd, F_GETFD) >= 0);
    close(fd);
    assert_int_equal(fake.access.location.id, 1);
    assert_int_equal(fake.access.flags, PC_CU_MEM_ACCESS_READWRITE);
    assert_int_equal(fake.handles, 0); /* the mapping alone keeps the memory */
    assert_int_equal(fake.mappings, 1);
    fake_trace_start();
    assert_int_equal(pc_large_unmap(cu, ptr, 2 * PC_MIB, NULL), PC_OK);
    assert_string_equal(fake_trace(), "cuMemUnmap cuMemAddressFree");
}

static void test_map_fails_everywhere(void **state)
{
    (void)state;
    static const char *const traces[] = {
        "cuMemImportFromShareableHandle",
        "cuMemImportFromShareableHandle cuMemAddressReserve cuMemRelease",
        "cuMemImportFromShareableHandle cuMemAddressReserve cuMemMap cuMemAddressFree cuMemRelease",
        "cuMemImportFromShareableHandle cuMemAddressReserve cuMemMap cuMemSetAccess cuMemUnmap cuMemAddressFree "
        "cuMemRelease",
        "cuMemImportFromShareableHandle cuMemAddressReserve cuMemMap cuMemSetAccess cuMemRelease cuMemUnmap "
        "cuMemAddressFree",
    };
    int fd = open("/dev/null", O_RDONLY);
    for (int nth = 1; nth <= 5; nth++) {
        pc_cu_deviceptr ptr = 5;
        struct pc_error err;
        fake_fail(-1, nth, PC_CU_ERROR_OUT_OF_MEMORY);
        fake_trace_start();
        assert_int_equal(pc_large_map(cu, 1, fd, 2 * PC_MIB, &ptr, &err), PC_ERR_OUT_OF_MEMORY);
        assert_string_equal(fake_trace(), traces[nth - 1]);
        assert_int_equal(ptr, 5);
        assert_int_equal(fake.mappings + fake.ranges, 0);
        assert_int_equal(fake.handles, nth == 5 ? 1 : 0);
    }
    fake.handles = 0;
    close(fd);
}

/* A range that is still mapped must not be given back. */
static void test_unmap_fails(void **state)
{
    (void)state;
    pc_cu_deviceptr ptr = 0;
    int fd = open("/dev/null", O_RDONLY);
    assert_int_equal(pc_large_map(cu, 1, fd, 2 * PC_MIB, &ptr, NULL), PC_OK);
    close(fd);
    fake_fail(FAKE_cuMemUnmap, 1, PC_CU_ERROR_UNKNOWN);
    assert_int_equal(pc_large_unmap(cu, ptr, 2 * PC_MIB, NULL), PC_ERR_DRIVER);
    assert_int_equal(fake.ranges, 1);
    assert_int_equal(pc_large_unmap(cu, ptr, 2 * PC_MIB, NULL), PC_OK);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_create),      T(test_sizes), T(test_create_fails_everywhere), T(test_map), T(test_map_fails_everywhere),
        T(test_unmap_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
