/* What annotations mean, value by value: the table of the facts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "alloc/base/bytes.h"
#include "alloc/base/cleanup.h"
#include "plugin/node/cap.h"

static const struct pc_cap_question app = {.container = "app",
                                           .listed = true,
                                           .alone = true,
                                           .granted = 16 * 256 * PC_MIB,
                                           .unit_bytes = 256 * PC_MIB,
                                           .least = 576 * PC_MIB};

static struct pc_cap_answer ask(const struct pc_cap_question *question, const char *key, const char *value)
{
    struct pc_pod_annotation annotation[] = {{"other", "1"}, {key, value}};
    struct pc_pod pod = {.annotations = 2, .annotation = annotation};
    struct pc_cap_answer answer;
    pc_cap_decide(&pod, question, &answer);
    return answer;
}

static void test_values(void **state)
{
    (void)state;
    static const struct {
        const char *value;
        uint64_t cap;          /* MiB */
        const char *complaint; /* NULL: none */
    } rows[] = {
        {"4Gi", 4096, NULL},
        {"3000Mi", 2976, NULL}, /* down to whole granules of 32 MiB */
        {"1.5Gi", 1536, NULL},
        {"576Mi", 576, NULL},
        {"575Mi", 4096, "less than a process needs, 576Mi"},
        {"0", 4096, "less than a process needs"},
        {"4", 4096, "less than a process needs"},
        {"5Gi", 4096, "more than the container's limit"},
        {"8Ei", 4096, "more than the container's limit"},
        {"lots", 4096, "\"lots\" is no amount of whole bytes"},
        {"4GiB", 4096, "\"4GiB\" is no amount"},
        {"1500m", 4096, "\"1500m\" is no amount"},
        {"-1Gi", 4096, "\"-1Gi\" is no amount"},
        {"", 4096, "is no amount"},
    };
    for (size_t i = 0; i < PC_ARRAY_LEN(rows); i++) {
        struct pc_cap_answer answer = ask(&app, "poolcap.dev/memory", rows[i].value);
        assert_true(answer.annotated);
        assert_int_equal(answer.cap / PC_MIB, rows[i].cap);
        if (rows[i].complaint == NULL)
            assert_string_equal(answer.complaint, "");
        else if (strstr(answer.complaint, rows[i].complaint) == NULL)
            fail_msg("\"%s\" says: %s", rows[i].value, answer.complaint);
    }
}

static void test_which_container(void **state)
{
    (void)state;
    struct pc_cap_question q = app;
    assert_int_equal(ask(&q, "poolcap.dev/memory.app", "1Gi").cap, PC_GIB);
    assert_int_equal(ask(&q, "poolcap.dev/memory.other", "1Gi").cap, q.granted);
    assert_false(ask(&q, "poolcap.dev/memory.other", "1Gi").annotated);
    q.alone = false; /* two containers have units: the pod's annotation names neither */
    assert_int_equal(ask(&q, "poolcap.dev/memory", "1Gi").cap, q.granted);
    assert_non_null(strstr(ask(&q, "poolcap.dev/memory", "1Gi").complaint, "poolcap.dev/memory.<name>"));
    assert_int_equal(ask(&q, "poolcap.dev/memory.app", "1Gi").cap, PC_GIB);
    q.listed = false; /* an init container: its own annotation only */
    assert_int_equal(ask(&q, "poolcap.dev/memory", "1Gi").cap, q.granted);
    assert_string_equal(ask(&q, "poolcap.dev/memory", "1Gi").complaint, "");
    assert_int_equal(ask(&q, "poolcap.dev/memory.app", "1Gi").cap, PC_GIB);
    q.container = ""; /* not known */
    assert_int_equal(ask(&q, "poolcap.dev/memory.", "1Gi").cap, q.granted);
}

static void test_no_pod(void **state)
{
    (void)state;
    struct pc_cap_answer answer;
    pc_cap_decide(NULL, &app, &answer);
    assert_int_equal(answer.cap, app.granted);
    assert_false(answer.annotated);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_which_container),
        cmocka_unit_test(test_no_pod),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
