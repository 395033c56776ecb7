/* alloc/driver: loading, and how errors and UUIDs are written. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/driver/driver.h"
#include "tests/unit/fake_cuda.h"

static void test_no_such_library(void **state)
{
    (void)state;
    struct pc_cuda cu = {.handle = &cu};
    struct pc_nvml nvml = {.handle = &nvml};
    struct pc_error err = {0};
    assert_int_equal(pc_cuda_load("/nonexistent/libcuda.so.1", &cu, &err), PC_ERR_NOT_INITIALISED);
    assert_int_equal(err.status, PC_ERR_NOT_INITIALISED);
    assert_non_null(strstr(err.text, "/nonexistent/libcuda.so.1"));
    assert_non_null(strstr(err.text, "12.2"));
    assert_ptr_equal(cu.handle, &cu); /* outputs are written on success only */
    assert_int_equal(pc_nvml_load("/nonexistent/libnvidia-ml.so.1", &nvml, &err), PC_ERR_NOT_INITIALISED);
    assert_non_null(strstr(err.text, "/nonexistent/libnvidia-ml.so.1"));
    assert_ptr_equal(nvml.handle, &nvml);
    assert_int_equal(pc_cuda_load("/nonexistent/libcuda.so.1", &cu, NULL), PC_ERR_NOT_INITIALISED);
}

/* A library that is no driver: what is missing is named. */
static void test_missing_symbol(void **state)
{
    (void)state;
    struct pc_cuda cu = {.handle = &cu};
    struct pc_nvml nvml = {.handle = &nvml};
    struct pc_error err = {0};
    assert_int_equal(pc_cuda_load("libm.so.6", &cu, &err), PC_ERR_NOT_INITIALISED);
    assert_non_null(strstr(err.text, "no cuInit"));
    assert_non_null(strstr(err.text, "update the NVIDIA driver"));
    assert_ptr_equal(cu.handle, &cu);
    assert_int_equal(pc_nvml_load("libm.so.6", &nvml, &err), PC_ERR_NOT_INITIALISED);
    assert_non_null(strstr(err.text, "no nvmlInit_v2"));
    assert_ptr_equal(nvml.handle, &nvml);
}

static void test_loads_the_simulator(void **state)
{
    (void)state;
    if (getenv("POOLCAP_SIM_DIR") == NULL)
        skip();
    struct pc_cuda cu = {0};
    struct pc_nvml nvml = {0};
    struct pc_error err = {0};
    if (pc_cuda_load(NULL, &cu, &err) != PC_OK || pc_nvml_load(NULL, &nvml, &err) != PC_OK)
        fail_msg("%s", err.text);
    assert_non_null(cu.handle);
    assert_non_null(nvml.handle);
#define REQUIRED 1
#define OPTIONAL 0
#define TESTING 0
#define THERE(need, name, symbol, args) assert_true(!(need) || cu.name != NULL);
    PC_CUDA_TABLE(THERE)
}

static void test_error_text(void **state)
{
    (void)state;
    const struct pc_cuda *cu = fake_reset();
    struct pc_error err = {.text = "untouched"};
    assert_int_equal(pc_cuda_error(cu, PC_CU_SUCCESS, PC_ERR_DRIVER, "x", &err), PC_OK);
    assert_string_equal(err.text, "untouched");
    assert_int_equal(pc_cuda_error(cu, PC_CU_ERROR_OUT_OF_MEMORY, PC_ERR_DRIVER, "cuMemCreate", &err),
                     PC_ERR_OUT_OF_MEMORY);
    assert_string_equal(err.text, "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory");
    assert_int_equal(err.code, 2);
    assert_int_equal(pc_cuda_error(cu, 719, PC_ERR_DEVICE, "cuStreamSynchronize", &err), PC_ERR_DEVICE);
    assert_string_equal(err.text, "cuStreamSynchronize: CUDA_ERROR_FAKE (719): made up");
    assert_int_equal(pc_cuda_error(cu, 719, PC_ERR_DEVICE, "x", NULL), PC_ERR_DEVICE);
}

static pc_cu_result no_text(pc_cu_result code, const char **out)
{
    (void)code;
    (void)out;
    return PC_CU_ERROR_INVALID_VALUE;
}

/* A driver that does not know its own code leaves the pointers alone. */
static void test_error_text_of_an_unknown_code(void **state)
{
    (void)state;
    struct pc_cuda cu = *fake_reset();
    struct pc_error err;
    cu.cuGetErrorName = no_text;
    cu.cuGetErrorString = no_text;
    assert_int_equal(pc_cuda_error(&cu, 12345, PC_ERR_DRIVER, "call", &err), PC_ERR_DRIVER);
    assert_string_equal(err.text, "call: CUDA error (12345): no description");
}

static void test_uuid(void **state)
{
    (void)state;
    struct pc_cu_uuid uuid;
    char text[PC_UUID_TEXT];
    for (int i = 0; i < 16; i++)
        uuid.bytes[i] = (char)(i * 0x11);
    assert_ptr_equal(pc_uuid_format(&uuid, text), text);
    assert_string_equal(text, "GPU-00112233-4455-6677-8899-aabbccddeeff");
    memset(&uuid, 0xff, sizeof uuid);
    assert_string_equal(pc_uuid_format(&uuid, text), "GPU-ffffffff-ffff-ffff-ffff-ffffffffffff");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_such_library),
        cmocka_unit_test(test_missing_symbol),
        cmocka_unit_test(test_loads_the_simulator),
        cmocka_unit_test(test_error_text),
        cmocka_unit_test(test_error_text_of_an_unknown_code),
        cmocka_unit_test(test_uuid),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
