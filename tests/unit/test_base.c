/* alloc/base: errors, amounts of memory, cleanup. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "alloc/base/bytes.h"
#include "alloc/base/cleanup.h"
#include "alloc/base/error.h"
#include "alloc/base/log.h"

/* --- quantities --- */

static const struct {
    const char *text;
    uint64_t bytes;
} good[] = {
    {"0", 0},
    {"1", 1},
    {"0.0", 0},
    {"0Gi", 0},
    {"1023", 1023},
    {"1k", 1000},
    {"1Ki", 1024},
    {"1M", 1000000},
    {"1Mi", PC_MIB},
    {"1500Mi", 1500 * PC_MIB},
    {"1G", 1000000000},
    {"4Gi", 4 * PC_GIB},
    {"04Gi", 4 * PC_GIB},
    {"000000000000000000000000000000000000000000004Gi", 4 * PC_GIB},
    {"1.5Gi", 3 * PC_GIB / 2},
    {"1.50Gi", 3 * PC_GIB / 2},
    {"1.500000000000000000000000000000Gi", 3 * PC_GIB / 2},
    {".5Gi", PC_GIB / 2},
    {"4.Gi", 4 * PC_GIB},
    {"4.0", 4},
    {"0.001k", 1},
    {"1.001k", 1001},
    {"0.0009765625Ki", 1},
    {"0.125Ki", 128},
    {"0.000000000000000001E", 1},
    {"1T", 1000000000000},
    {"1Ti", 1ull << 40},
    {"1P", 1000000000000000},
    {"1Pi", 1ull << 50},
    {"18E", 18000000000000000000ull},
    {"15Ei", 15ull << 60},
    {"15.9375Ei", 0xffull << 56},
    {"18446744073709551615", UINT64_MAX},
    {"18446744073709551615.0", UINT64_MAX},
    {"18014398509481983Ki", 18014398509481983ull * 1024},
};

static void test_good_quantities(void **state)
{
    (void)state;
    for (size_t i = 0; i < PC_ARRAY_LEN(good); i++) {
        struct pc_error err = {0};
        uint64_t out = 7;
        if (pc_bytes_parse("cap", good[i].text, &out, &err) != PC_OK)
            fail_msg("\"%s\" was refused: %s", good[i].text, err.text);
        if (out != good[i].bytes)
            fail_msg("\"%s\" is %llu, expected %llu", good[i].text, (unsigned long long)out,
                     (unsigned long long)good[i].bytes);
    }
}

static const struct {
    const char *text;
    const char *says;
} bad[] = {
    {"", "not an amount"},
    {" ", "not an amount"},
    {".", "not an amount"},
    {"Gi", "not an amount"},
    {".Gi", "not an amount"},
    {"four", "not an amount"},
    {"+4Gi", "not an amount"},
    {" 4Gi", "not an amount"},
    {"-1", "negative"},
    {"-1Gi", "negative"},
    {"-0", "negative"},
    {"4GiB", "suffix"},
    {"4GB", "suffix"},
    {"4gi", "suffix"},
    {"4g", "suffix"},
    {"4K", "suffix"},
    {"4ki", "suffix"},
    {"4m", "suffix"},
    {"1500m", "suffix"},
    {"4u", "suffix"},
    {"4n", "suffix"},
    {"4 Gi", "suffix"},
    {"4Gi ", "suffix"},
    {"4Gi\n", "suffix"},
    {"4,5Gi", "suffix"},
    {"4..5Gi", "suffix"},
    {"4.5.6Gi", "suffix"},
    {"1e3", "suffix"},
    {"1E3", "suffix"},
    {"0x10", "suffix"},
    {"4Gi4", "suffix"},
    {"4Zi", "suffix"},
    {"4i", "suffix"},
    {"1.5", "whole number"},
    {"0.5", "whole number"},
    {"0.1Gi", "whole number"},
    {"0.0001k", "whole number"},
    {"1.0000000000000000001E", "whole number"},
    {"1.00000000000000000000000000000000000001E", "whole number"},
    {"1.10000000000000000000000000000000000000E", "decimals"},
    {"18446744073709551616", "too large"},
    {"18446744073709551615.5", "whole number"},
    {"18014398509481984Ki", "too large"},
    {"16Ei", "too large"},
    {"15.99999999999999999999Ei", "whole number"},
    {"19E", "too large"},
    {"295147905179352825856Ei", "too large"}, /* 2^68 * 2^60 wraps to 0 in 128 bits */
    {"18.5E", "too large"},
    {"99999999999999999999999999999999999999999999", "too large"},
    {"340282366920938463463374607431768211456", "too large"},
    {"340282366920938463463374607431768211457Ei", "too large"},
};

static void test_bad_quantities(void **state)
{
    (void)state;
    for (size_t i = 0; i < PC_ARRAY_LEN(bad); i++) {
        struct pc_error err = {0};
        uint64_t out = 7;
        if (pc_bytes_parse("cap", bad[i].text, &out, &err) != PC_ERR_INVALID)
            fail_msg("\"%s\" was taken as %llu", bad[i].text, (unsigned long long)out);
        assert_int_equal(out, 7);
        assert_int_equal(err.status, PC_ERR_INVALID);
        if (strstr(err.text, bad[i].says) == NULL || strncmp(err.text, "cap \"", 5) != 0 ||
            strstr(err.text, "4Gi or 1500Mi") == NULL)
            fail_msg("\"%s\": the text does not help: %s", bad[i].text, err.text);
        assert_int_equal(pc_bytes_parse("cap", bad[i].text, &out, NULL), PC_ERR_INVALID);
    }
}

static void test_long_garbage_is_cut(void **state)
{
    (void)state;
    char text[4096];
    struct pc_error err;
    uint64_t out;
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    assert_int_equal(pc_bytes_parse("cap", text, &out, &err), PC_ERR_INVALID);
    assert_non_null(strstr(err.text, "write a Kubernetes quantity"));
}

static void check_format(uint64_t bytes, const char *expected)
{
    char text[PC_BYTES_TEXT];
    uint64_t back = ~bytes;
    assert_ptr_equal(pc_bytes_format(bytes, text), text);
    if (expected != NULL)
        assert_string_equal(text, expected);
    assert_int_equal(pc_bytes_parse("back", text, &back, NULL), PC_OK);
    assert_true(back == bytes);
}

static void test_format_reads_back(void **state)
{
    (void)state;
    check_format(0, "0");
    check_format(1023, "1023");
    check_format(1024, "1Ki");
    check_format(1000 * PC_MIB, "1000Mi");
    check_format(4 * PC_GIB, "4Gi");
    check_format(PC_POOL_ALLOC_MAX, "4064Mi");
    check_format(15ull << 60, "15Ei");
    check_format(UINT64_MAX, "18446744073709551615");
    uint64_t n = 88172645463325252ull; /* xorshift: the same numbers each time */
    for (int i = 0; i < 20000; i++) {
        n ^= n << 13, n ^= n >> 7, n ^= n << 17;
        check_format(n >> (n % 64), NULL);
        check_format(n << (n % 64), NULL);
    }
}

static void test_add_and_round(void **state)
{
    (void)state;
    uint64_t out = 5;
    assert_true(pc_add(UINT64_MAX - 1, 1, &out) && out == UINT64_MAX);
    out = 5;
    assert_false(pc_add(UINT64_MAX, 1, &out));
    assert_false(pc_round_up(UINT64_MAX, PC_POOL_GRANULE, &out));
    assert_false(pc_round_up(UINT64_MAX - PC_POOL_GRANULE + 2, PC_POOL_GRANULE, &out));
    assert_int_equal(out, 5);
    assert_true(pc_round_up(0, 32, &out) && out == 0);
    assert_true(pc_round_up(1, 32, &out) && out == 32);
    assert_true(pc_round_up(32, 32, &out) && out == 32);
    assert_true(pc_round_up(33, 32, &out) && out == 64);
    assert_true(pc_round_up(UINT64_MAX - PC_POOL_GRANULE + 1, PC_POOL_GRANULE, &out));
}

/* --- errors --- */

static void test_error_texts(void **state)
{
    (void)state;
    struct pc_error err;
    assert_int_equal(pc_error_set(&err, PC_ERR_DRIVER, 719, "call %d", 5), PC_ERR_DRIVER);
    assert_int_equal(err.status, PC_ERR_DRIVER);
    assert_int_equal(err.code, 719);
    assert_string_equal(err.text, "call 5");
    assert_int_equal(pc_error_prefix(&err, "GPU %d", 1), PC_ERR_DRIVER);
    assert_string_equal(err.text, "GPU 1: call 5");
    assert_int_equal(err.code, 719);
    assert_int_equal(pc_error_errno(&err, ENOENT, "open %s", "/x"), PC_ERR_IO);
    assert_int_equal(err.code, ENOENT);
    assert_string_equal(err.text, "open /x: No such file or directory");
    assert_int_equal(pc_error_set(NULL, PC_ERR_BUSY, 0, "x"), PC_ERR_BUSY);
    assert_int_equal(pc_error_errno(NULL, EIO, "x"), PC_ERR_IO);
    pc_error_prefix(NULL, "x");
}

static void test_error_texts_are_cut(void **state)
{
    (void)state;
    struct {
        struct pc_error err;
        char after[8];
    } box = {.after = "intact"};
    char text[2 * PC_ERROR_TEXT];
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    pc_error_set(&box.err, PC_ERR_IO, 0, "%s", text);
    assert_int_equal(strlen(box.err.text), PC_ERROR_TEXT - 1);
    pc_error_prefix(&box.err, "who");
    assert_int_equal(strlen(box.err.text), PC_ERROR_TEXT - 1);
    assert_memory_equal(box.err.text, "who: aaaa", 9);
    for (size_t n = PC_ERROR_TEXT - 8; n < PC_ERROR_TEXT + 4; n++) { /* every way that the prefix just fits or not */
        pc_error_set(&box.err, PC_ERR_IO, 0, "old text");
        pc_error_prefix(&box.err, "%.*s", (int)n, text);
        assert_true(strlen(box.err.text) < PC_ERROR_TEXT);
        pc_error_errno(&box.err, ENOENT, "%.*s", (int)n, text);
        assert_true(strlen(box.err.text) < PC_ERROR_TEXT);
    }
    assert_string_equal(box.after, "intact");
}

static void test_status_names(void **state)
{
    (void)state;
    for (int i = PC_OK; i <= PC_ERR_BUSY; i++) {
        assert_string_not_equal(pc_status_name(i), "unknown");
        assert_true(strlen(pc_status_name(i)) > 0);
    }
    assert_string_equal(pc_status_name(PC_ERR_OUT_OF_MEMORY), "out_of_memory");
    assert_string_equal(pc_status_name((enum pc_status)(PC_ERR_BUSY + 1)), "unknown");
    assert_string_equal(pc_status_name((enum pc_status) - 1), "unknown");
}

/* --- cleanup --- */

static void test_cleanup_closes(void **state)
{
    (void)state;
    int seen, kept;
    {
        pc_auto_fd int fd = open("/dev/null", O_RDONLY);
        pc_auto_fd int none = -1;
        pc_auto_fd int given = open("/dev/null", O_RDONLY);
        seen = fd;
        kept = pc_steal_fd(&given);
        assert_int_equal(given, -1);
        assert_int_equal(none, -1);
    }
    assert_int_equal(fcntl(seen, F_GETFD), -1);
    assert_true(fcntl(kept, F_GETFD) >= 0);
    close(kept);
}

static char *take(void)
{
    pc_auto_free char *text = strdup("kept");
    pc_auto_free char *lost = strdup("freed: the address sanitizer says so where it is not");
    assert_non_null(lost);
    return pc_steal(&text);
}

static void test_cleanup_steals(void **state)
{
    (void)state;
    char *text = take();
    assert_string_equal(text, "kept");
    free(text);
}

static void test_log_levels(void **state)
{
    (void)state;
    enum pc_log_level level = PC_LOG_INFO;
    assert_int_equal(pc_log_parse_level("debug", &level), 0);
    assert_int_equal(level, PC_LOG_DEBUG);
    assert_int_equal(pc_log_parse_level("loud", &level), -1);
    assert_int_equal(level, PC_LOG_DEBUG);
}

/* Runs one log call with stderr in a pipe and returns what came out. */
static ssize_t logged(const char *text, char *buf, size_t size)
{
    int pipes[2], old = dup(STDERR_FILENO);
    assert_int_equal(pipe(pipes), 0);
    dup2(pipes[1], STDERR_FILENO);
    close(pipes[1]);
    pc_log_warn("test", "%s", text);
    pc_log_debug("test", "not printed at the default level");
    dup2(old, STDERR_FILENO);
    close(old);
    ssize_t n = read(pipes[0], buf, size);
    close(pipes[0]);
    return n;
}

static void test_log_line(void **state)
{
    (void)state;
    char line[4096], text[2000];
    ssize_t n = logged("hello", line, sizeof line);
    assert_int_equal(n, strlen("2026-12-01T01:02:03.456Z warn test: hello\n"));
    assert_memory_equal(line + 24, " warn test: hello\n", 18);
    memset(text, 'b', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    n = logged(text, line, sizeof line);
    assert_true(n > 1000 && n <= 1024);
    assert_memory_equal(line + n - 2, "b\n", 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good_quantities),     cmocka_unit_test(test_bad_quantities),
        cmocka_unit_test(test_long_garbage_is_cut), cmocka_unit_test(test_format_reads_back),
        cmocka_unit_test(test_add_and_round),       cmocka_unit_test(test_error_texts),
        cmocka_unit_test(test_error_texts_are_cut), cmocka_unit_test(test_status_names),
        cmocka_unit_test(test_cleanup_closes),      cmocka_unit_test(test_cleanup_steals),
        cmocka_unit_test(test_log_levels),          cmocka_unit_test(test_log_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
