/* Records: written whole, read back the same, and what is damaged is left alone and counted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "plugin/node/record.h"

#define UUID "GPU-8ef08c85-c347-a1e4-49c2-be5900000000"

static char directory[256];

struct seen {
    unsigned count;
    struct pc_record record; /* the last */
};

static enum pc_status each(void *arg, struct pc_record *record, struct pc_error *err)
{
    struct seen *seen = arg;
    (void)err;
    if (seen->count++ > 0)
        pc_unit_set_free(&seen->record.units);
    seen->record = *record;
    return PC_OK;
}

static struct seen read_all(struct pc_units *units, unsigned expected, unsigned expected_bad)
{
    struct seen seen = {.count = 0};
    unsigned bad = 0;
    assert_int_equal(pc_record_read_all(directory, units, each, &seen, &bad, NULL), PC_OK);
    assert_int_equal(seen.count, expected);
    assert_int_equal(bad, expected_bad);
    return seen;
}

static int begin(void **state)
{
    (void)state;
    snprintf(directory, sizeof directory, "%s/record-XXXXXX", getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp");
    return mkdtemp(directory) == NULL;
}

static void make(struct pc_units *units, struct pc_record *record)
{
    unsigned gpu;
    *units = (struct pc_units){.unit_bytes = 256ull << 20};
    assert_int_equal(pc_units_gpu(units, UUID, &gpu, NULL), PC_OK);
    *record = (struct pc_record){.name = "g0123456789abcdef",
                                 .unit_bytes = units->unit_bytes,
                                 .created = 7,
                                 .pod_uid = "u",
                                 .pod_namespace = "n",
                                 .pod_name = "p",
                                 .container = "c"};
    assert_int_equal(pc_unit_set_make(3, &record->units, NULL), PC_OK);
    for (uint32_t i = 0; i < 3; i++)
        record->units.unit[i] = (struct pc_unit){.gpu = gpu, .number = i * 5};
}

static void test_round(void **state)
{
    (void)state;
    struct pc_units units, fresh = {.unit_bytes = 1};
    struct pc_record record;
    make(&units, &record);
    assert_int_equal(pc_record_write(directory, &units, &record, NULL), PC_OK);
    struct seen seen = read_all(&fresh, 1, 0);
    assert_string_equal(fresh.gpu[0].uuid, UUID); /* added: poolcapd need not have named it */
    assert_true(pc_unit_set_equal(&seen.record.units, &record.units));
    pc_unit_set_free(&seen.record.units);
    memset(&seen.record.units, 0, sizeof seen.record.units);
    struct pc_record plain = record;
    memset(&plain.units, 0, sizeof plain.units);
    assert_memory_equal(&seen.record, &plain, sizeof plain);
    assert_int_equal(pc_record_remove(directory, record.name, NULL), PC_OK);
    assert_int_equal(pc_record_remove(directory, record.name, NULL), PC_OK);
    read_all(&fresh, 0, 0);
    pc_unit_set_free(&record.units);
}

/* Cut at any byte, a record is never taken for another one: it is the same, or it is counted as bad. */
static void test_torn(void **state)
{
    (void)state;
    struct pc_units units, fresh;
    struct pc_record record;
    char path[400];
    struct stat st;
    make(&units, &record);
    assert_int_equal(pc_record_write(directory, &units, &record, NULL), PC_OK);
    snprintf(path, sizeof path, "%s/%s", directory, record.name);
    assert_int_equal(stat(path, &st), 0);
    for (off_t size = st.st_size - 1; size >= 0; size--) {
        struct seen seen = {.count = 0};
        unsigned bad = 0;
        assert_int_equal(truncate(path, size), 0);
        fresh = (struct pc_units){.unit_bytes = 1};
        assert_int_equal(pc_record_read_all(directory, &fresh, each, &seen, &bad, NULL), PC_OK);
        assert_int_equal(seen.count + bad, 1);
        if (seen.count == 1) {
            assert_string_equal(seen.record.name, record.name);
            pc_unit_set_free(&seen.record.units);
        }
        assert_int_equal(access(path, F_OK), 0); /* left where it is */
    }
    unlink(path);
    pc_unit_set_free(&record.units);
}

static void test_half_written(void **state)
{
    (void)state;
    struct pc_units fresh = {.unit_bytes = 1};
    char path[400];
    snprintf(path, sizeof path, "%s/gffff.new", directory);
    fclose(fopen(path, "we"));
    read_all(&fresh, 0, 0);
    assert_int_equal(access(path, F_OK), -1);
}

static void test_no_room(void **state)
{
    (void)state;
    struct pc_units units;
    struct pc_record record;
    struct pc_error err;
    make(&units, &record);
    assert_int_equal(pc_record_write("/nonexistent", &units, &record, &err), PC_ERR_IO);
    assert_non_null(strstr(err.text, "/nonexistent/g0123456789abcdef"));
    pc_unit_set_free(&record.units);
}

static int end(void **state)
{
    (void)state;
    return rmdir(directory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round),
        cmocka_unit_test(test_torn),
        cmocka_unit_test(test_half_written),
        cmocka_unit_test(test_no_room),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
