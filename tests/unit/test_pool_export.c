/* Exports of a pool, and the importer's half (alloc/pool/import). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/bytes.h"
#include "alloc/pool/import.h"
#include "alloc/pool/pool.h"
#include "tests/unit/fake_cuda.h"

static const struct pc_cuda *cu;
static struct pc_devices *devices;
static struct pc_pool *pool;

static int make(bool exported)
{
    cu = fake_reset();
    struct pc_pool_config config = {.cap = 8 * PC_GIB, .exported = exported};
    return pc_devices_create(cu, &devices, NULL) == PC_OK && pc_pool_create(devices, &config, &pool, NULL) == PC_OK
               ? 0
               : -1;
}

static int setup(void **state)
{
    (void)state;
    return make(true);
}

static int setup_private(void **state)
{
    (void)state;
    return make(false);
}

static int teardown(void **state)
{
    (void)state;
    fake_fail(-1, 0, 0);
    pc_pool_destroy(pool);
    pc_devices_free(devices);
    return fake.pools + fake.streams + fake.imports == 0 ? 0 : -1;
}

static int lowest_free_fd(void)
{
    int fd = open("/dev/null", O_RDONLY);
    close(fd);
    return fd;
}

static void test_fd(void **state)
{
    (void)state;
    int a = -1, b = -1;
    struct pc_error err;
    assert_int_equal(pc_pool_export_fd(pool, &a, NULL), PC_OK);
    assert_int_equal(pc_pool_export_fd(pool, &b, NULL), PC_OK);
    assert_int_not_equal(a, b);
    assert_int_equal(fcntl(a, F_GETFD), FD_CLOEXEC);
    close(a);
    close(b);
    a = -5;
    fake_fail(FAKE_cuMemPoolExportToShareableHandle, 1, PC_CU_ERROR_OUT_OF_MEMORY);
    assert_int_equal(pc_pool_export_fd(pool, &a, &err), PC_ERR_DRIVER);
    assert_int_equal(a, -5);
}

/* The first export of a block exports the pool too, and keeps no fd open (trap 2); later ones do not. */
static void test_block(void **state)
{
    (void)state;
    pc_cu_deviceptr ptr;
    struct pc_cu_ptr_export data;
    int before = lowest_free_fd();
    assert_int_equal(pc_pool_alloc(pool, PC_MIB, &ptr, NULL), PC_OK);
    assert_int_equal(pc_pool_export_block(pool, ptr, PC_MIB, &data, NULL), PC_OK);
    assert_int_equal(pc_pool_export_block(pool, ptr, PC_MIB, &data, NULL), PC_OK);
    assert_int_equal(fake.calls[FAKE_cuMemPoolExportToShareableHandle], 1);
    assert_int_equal(lowest_free_fd(), before);
    assert_memory_equal(&data, &ptr, sizeof ptr);
    assert_int_equal(pc_pool_free(pool, ptr, PC_MIB, NULL), PC_OK);
}

static void test_block_after_fd(void **state)
{
    (void)state;
    int fd;
    pc_cu_deviceptr ptr;
    struct pc_cu_ptr_export data;
    assert_int_equal(pc_pool_export_fd(pool, &fd, NULL), PC_OK);
    close(fd);
    assert_int_equal(pc_pool_alloc(pool, PC_MIB, &ptr, NULL), PC_OK);
    assert_int_equal(pc_pool_export_block(pool, ptr, PC_MIB, &data, NULL), PC_OK);
    assert_int_equal(fake.calls[FAKE_cuMemPoolExportToShareableHandle], 1);
    assert_int_equal(pc_pool_free(pool, ptr, PC_MIB, NULL), PC_OK);
}

static void test_block_fails(void **state)
{
    (void)state;
    struct pc_cu_ptr_export data, old;
    struct pc_error err;
    memset(&data, 'x', sizeof data);
    old = data;
    fake_fail(FAKE_cuMemPoolExportToShareableHandle, 1, PC_CU_ERROR_UNKNOWN);
    assert_int_equal(pc_pool_export_block(pool, 1, PC_MIB, &data, &err), PC_ERR_DRIVER);
    fake_fail(FAKE_cuMemPoolExportPointer, 1, PC_CU_ERROR_UNKNOWN);
    assert_int_equal(pc_pool_export_block(pool, 1, PC_MIB, &data, &err), PC_ERR_DRIVER);
    assert_non_null(strstr(err.text, "cuMemPoolExportPointer"));
    assert_memory_equal(&data, &old, sizeof data);
}

/* What would kill the importer is not exported (trap 7); exactly the limit is. */
static void test_block_too_large(void **state)
{
    (void)state;
    pc_cu_deviceptr ptr;
    struct pc_cu_ptr_export data;
    struct pc_error err;
    assert_int_equal(pc_pool_alloc(pool, PC_POOL_ALLOC_MAX + 1, &ptr, NULL), PC_OK);
    assert_int_equal(pc_pool_export_block(pool, ptr, PC_POOL_ALLOC_MAX + 1, &data, &err), PC_ERR_INVALID);
    assert_non_null(strstr(err.text, "4064Mi"));
    assert_int_equal(fake.calls[FAKE_cuMemPoolExportPointer], 0);
    assert_int_equal(pc_pool_free(pool, ptr, PC_POOL_ALLOC_MAX + 1, NULL), PC_OK);
    assert_int_equal(pc_pool_alloc(pool, PC_POOL_ALLOC_MAX, &ptr, NULL), PC_OK);
    assert_int_equal(pc_pool_export_block(pool, ptr, PC_POOL_ALLOC_MAX, &data, NULL), PC_OK);
    assert_int_equal(pc_pool_free(pool, ptr, PC_POOL_ALLOC_MAX, NULL), PC_OK);
}

static void test_private_pool(void **state)
{
    (void)state;
    int fd = -5;
    struct pc_cu_ptr_export data;
    assert_int_equal(pc_pool_export_fd(pool, &fd, NULL), PC_ERR_NOT_SUPPORTED);
    assert_int_equal(pc_pool_export_block(pool, 1, 1, &data, NULL), PC_ERR_NOT_SUPPORTED);
    assert_int_equal(fd, -5);
    assert_int_equal(fake.calls[FAKE_cuMemPoolExportToShareableHandle], 0);
}

/* --- import --- */

static void test_import(void **state)
{
    (void)state;
    struct pc_cu_ptr_export data = {{0}};
    pc_cu_mempool imported = NULL;
    pc_cu_deviceptr ptr = 0;
    int fd = open("/dev/null", O_RDONLY);
    assert_int_equal(pc_import_pool(cu, 1, fd, &imported, NULL), PC_OK);
    assert_true(fcntl(fd, F_GETFD) >= 0); /* not consumed */
    close(fd);
    assert_int_equal(fake.access.location.id, 1);
    assert_int_equal(fake.access.flags, PC_CU_MEM_ACCESS_READWRITE);
    assert_int_equal(pc_import_block(cu, imported, &data, &ptr, NULL), PC_OK);
    assert_int_not_equal(ptr, 0);
    fake_trace_start();
    assert_int_equal(pc_import_block_free(cu, ptr, NULL, NULL), PC_OK);
    assert_string_equal(fake_trace(), "cuMemFreeAsync cuStreamSynchronize");
    assert_int_equal(pc_import_pool_drop(cu, imported, NULL), PC_OK);
    assert_int_equal(fake.imports, 0);
}

static void test_import_fails(void **state)
{
    (void)state;
    pc_cu_mempool imported = NULL;
    pc_cu_deviceptr ptr = 0;
    struct pc_cu_ptr_export data = {{0}};
    struct pc_error err;
    int fd = open("/dev/null", O_RDONLY);
    fake_fail(FAKE_cuMemPoolImportFromShareableHandle, 1, PC_CU_ERROR_INVALID_VALUE);
    assert_int_equal(pc_import_pool(cu, 0, fd, &imported, &err), PC_ERR_DRIVER);
    fake_fail(FAKE_cuMemPoolSetAccess, 1, PC_CU_ERROR_OUT_OF_MEMORY);
    assert_int_equal(pc_import_pool(cu, 0, fd, &imported, &err), PC_ERR_OUT_OF_MEMORY);
    assert_null(imported);
    assert_int_equal(fake.imports, 0);
    close(fd);
    static const pc_cu_result capture[] = {PC_CU_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                                           PC_CU_ERROR_STREAM_CAPTURE_INVALIDATED};
    for (int i = 0; i < 2; i++) {
        fake_fail(FAKE_cuMemPoolImportPointer, 1, capture[i]);
        assert_int_equal(pc_import_block(cu, NULL, &data, &ptr, &err), PC_ERR_CAPTURE);
    }
    fake_fail(FAKE_cuMemPoolImportPointer, 1, PC_CU_ERROR_INVALID_VALUE);
    assert_int_equal(pc_import_block(cu, NULL, &data, &ptr, &err), PC_ERR_DRIVER);
    assert_int_equal(ptr, 0);
    fake_fail(FAKE_cuMemFreeAsync, 1, PC_CU_ERROR_INVALID_VALUE);
    assert_int_equal(pc_import_block_free(cu, 1, NULL, &err), PC_ERR_DRIVER);
    fake_fail(FAKE_cuMemPoolDestroy, 1, PC_CU_ERROR_INVALID_VALUE);
    assert_int_equal(pc_import_pool_drop(cu, NULL, &err), PC_ERR_DRIVER);
}

int main(void)
{
#define T(name, before) cmocka_unit_test_setup_teardown(name, before, teardown)
    const struct CMUnitTest tests[] = {
        T(test_fd, setup),          T(test_block, setup),           T(test_block_after_fd, setup),
        T(test_block_fails, setup), T(test_block_too_large, setup), T(test_private_pool, setup_private),
        T(test_import, setup),      T(test_import_fails, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
