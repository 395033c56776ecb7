/* poolcapd's configuration: good files, and bad ones with the place and the fix that the message must name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "alloc/base/bytes.h"
#include "alloc/base/cleanup.h"
#include "alloc/broker/config.h"

/* argv is not const in C, string literals are here. */
#define ARG(text) ((char *)(uintptr_t)(text))

static enum pc_status parse(const char *text, struct pc_config *config, struct pc_error *err)
{
    return pc_config_parse("f.yaml", text, strlen(text), config, err);
}

static void test_defaults(void **state)
{
    (void)state;
    struct pc_config config;
    assert_int_equal(parse("", &config, NULL), PC_OK);
    assert_string_equal(config.run_directory, "/run/poolcap");
    assert_int_equal(config.grants, 0);
    assert_int_equal(config.log_level, PC_LOG_INFO);
    pc_config_clear(&config);
    assert_int_equal(parse("grants:\n", &config, NULL), PC_OK);
    pc_config_clear(&config);
}

static void test_grants(void **state)
{
    (void)state;
    struct pc_config config;
    struct pc_error err;
    const char *text = "runDirectory: /tmp/x\nreserve: 1Gi\nlogLevel: debug\nsimulated: true\n"
                       "grants:\n"
                       "- name: alice\n  memory: 4Gi\n  cap: 3500Mi\n"
                       "- {name: bob, tenant: team, podUid: 0a-1, gpus: [{gpu: 1, memory: 1Gi}, "
                       "{gpu: GPU-x, memory: 2Gi, cap: 1Gi}]}\n";
    assert_int_equal(parse(text, &config, &err), PC_OK);
    assert_int_equal(config.reserve, PC_GIB);
    assert_true(config.simulated);
    assert_int_equal(config.grants, 2);
    assert_string_equal(config.grant[0].tenant, "alice");
    assert_string_equal(config.grant[0].share[0].gpu, "0");
    assert_int_equal(config.grant[0].share[0].granted, 4 * PC_GIB);
    assert_int_equal(config.grant[0].share[0].cap, 3500 * PC_MIB);
    assert_int_equal(config.grant[1].shares, 2);
    assert_string_equal(config.grant[1].tenant, "team");
    assert_string_equal(config.grant[1].pod_uid, "0a-1");
    assert_int_equal(config.grant[1].share[0].cap, PC_GIB);
    assert_string_equal(config.grant[1].share[1].gpu, "GPU-x");
    pc_config_clear(&config);
}

/* Each bad file, where the message must point, and a part of the fix that it must name. */
static const struct {
    const char *text, *place, *says;
} bad[] = {
    {"nonsense: 1\n", "f.yaml:1:1:", "unknown key \"nonsense\""},
    {"grants:\n- name: a\n  memory: 1Gi\n  memroy: 2Gi\n", "f.yaml:4:3:", "known are name"},
    {"grants:\n- name: a\n  memory: [1]\n", "f.yaml:3:11:", "must be a single value"},
    {"grants: 5\n", "f.yaml:1:9:", "must be a list"},
    {"grants:\n- 7\n", "f.yaml:2:3:", "must be a mapping"},
    {"- a\n", "f.yaml:1:1:", "must be a mapping"},
    {"grants:\n- name: a\n", "f.yaml:2:3:", "memory is missing"},
    {"grants:\n- memory: 1Gi\n", "f.yaml:2:3:", "without a name"},
    {"grants:\n- name: a\n  memory: 0\n", "f.yaml:3:11:", "is 0"},
    {"grants:\n- name: a\n  memory: -1Gi\n", "f.yaml:3:11:", "negative"},
    {"grants:\n- name: a\n  memory: 4GiB\n", "f.yaml:3:11:", "write a Kubernetes quantity such as 4Gi"},
    {"grants:\n- name: a\n  memory: 100Mi\n", "f.yaml:2:3:", "write 128Mi"},
    {"grants:\n- name: a\n  memory: 18446744073709551616\n", "f.yaml:3:11:", "too large"},
    {"grants:\n- name: a\n  memory: 1Gi\n  cap: 2Gi\n", "f.yaml:2:3:", "a cap only lowers"},
    {"grants:\n- name: a\n  memory: 1Gi\n- name: a\n  memory: 1Gi\n", "f.yaml:4:3:", "first in line 2"},
    {"grants:\n- name: ../etc\n  memory: 1Gi\n", "f.yaml:2:9:", "is no name"},
    {"grants:\n- name: a\n  memory: 1Gi\n  memory: 2Gi\n", "f.yaml:4:3:", "twice"},
    {"grants:\n- name: a\n  memory: 1Gi\n  gpus: [{memory: 1Gi}]\n", "f.yaml:2:3:", "use one form"},
    {"grants:\n- name: a\n  gpus: [{gpu: 0, memory: 1Gi}, {gpu: 0, memory: 1Gi}]\n", "f.yaml:3:33:", "twice"},
    {"grants:\n- name: a\n  gpus: {gpu: 0}\n", "f.yaml:3:9:", "must be a list"},
    {"runDirectory: relative/path\n", "f.yaml:1:15:", "absolute"},
    {"logLevel: loud\n", "f.yaml:1:11:", "error, warn, info, debug"},
    {"simulated: yes\n", "f.yaml:1:12:", "neither true nor false"},
    {"reserve: lots\n", "f.yaml:1:10:", "not an amount of memory"},
    {"a: [\n", "f.yaml:", ""},
    {"a: b: c\n", "f.yaml:1:", "mapping values"},
};

static void test_bad_files(void **state)
{
    (void)state;
    for (size_t i = 0; i < PC_ARRAY_LEN(bad); i++) {
        struct pc_config config;
        struct pc_error err = {.text = ""};
        assert_int_equal(parse(bad[i].text, &config, &err), PC_ERR_INVALID);
        if (strncmp(err.text, bad[i].place, strlen(bad[i].place)) != 0 || strstr(err.text, bad[i].says) == NULL)
            fail_msg("%s\ngave: %s\nwanted: %s ... %s", bad[i].text, err.text, bad[i].place, bad[i].says);
        assert_null(config.grant);
    }
}

static void test_precedence(void **state)
{
    (void)state;
    char file[] = "/tmp/poolcap-config-XXXXXX";
    pc_auto_fd int fd = mkstemp(file);
    const char *text = "reserve: 1Gi\nrunDirectory: /file\nlogLevel: warn\n";
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    setenv("POOLCAP_RESERVE", "2Gi", 1);
    setenv("POOLCAP_RUN_DIRECTORY", "/env", 1);
    struct pc_config config;
    struct pc_error err;
    enum pc_option_action action;
    char *argv[] = {ARG("poolcapd"), ARG("--config"), file, ARG("--run-directory=/flag"), ARG("--simulated"), NULL};
    assert_int_equal(pc_config_load(5, argv, &config, &action, &err), PC_OK);
    assert_string_equal(config.run_directory, "/flag");
    assert_int_equal(config.reserve, 2 * PC_GIB);
    assert_int_equal(config.log_level, PC_LOG_WARN);
    assert_true(config.simulated);
    assert_int_equal(action, PC_OPTIONS_RUN);
    pc_config_clear(&config);

    setenv("POOLCAP_RESERVE", "much", 1);
    assert_int_equal(pc_config_load(3, argv, &config, &action, &err), PC_ERR_INVALID);
    assert_non_null(strstr(err.text, "POOLCAP_RESERVE"));
    unsetenv("POOLCAP_RESERVE");
    unsetenv("POOLCAP_RUN_DIRECTORY");
    unlink(file);
}

static void test_bad_flags(void **state)
{
    (void)state;
    struct pc_config config;
    struct pc_error err;
    enum pc_option_action action;
    char *unknown[] = {ARG("poolcapd"), ARG("--confg=x"), NULL};
    assert_int_equal(pc_config_load(2, unknown, &config, &action, &err), PC_ERR_INVALID);
    assert_non_null(strstr(err.text, "--help"));
    char *missing[] = {ARG("poolcapd"), ARG("--reserve"), NULL};
    assert_int_equal(pc_config_load(2, missing, &config, &action, &err), PC_ERR_INVALID);
    char *nofile[] = {ARG("poolcapd"), ARG("--config=/nonexistent/x.yaml"), NULL};
    assert_int_equal(pc_config_load(2, nofile, &config, &action, &err), PC_ERR_INVALID);
    assert_non_null(strstr(err.text, "/nonexistent/x.yaml"));
    char *help[] = {ARG("poolcapd"), ARG("--help"), NULL};
    assert_int_equal(pc_config_load(2, help, &config, &action, &err), PC_OK);
    assert_int_equal(action, PC_OPTIONS_HELP);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),   cmocka_unit_test(test_grants),    cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_precedence), cmocka_unit_test(test_bad_flags),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
