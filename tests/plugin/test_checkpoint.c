/* The kubelet's checkpoint: what it looks like, what it may be instead, and every beginning of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "alloc/base/cleanup.h"
#include "plugin/kubelet/base64.h"
#include "plugin/kubelet/pod_resources.h"
#include "plugin/text/text.h"

#define RESOURCE "poolcap.dev/gpu-memory"

/* ContainerAllocateResponse: one env, mounts of /run/poolcap/grants/5b1e0c7d and /var/lib/poolcap/shim/0.1.0, one CDI
 * device. Made by another program than the one under test. */
#define ANSWER                                                                                                         \
    "CisKDlBPT0xDQVBfU09DS0VUEhkvcnVuL3Bvb2xjYXAvcG9vbGNhcC5zb2NrEi4KDC9ydW4vcG9vbGNhcBIcL3J1bi9wb29sY2FwL2dyYW50cy81" \
    "YjFlMGM3ZBgBEjEKEC91c3IvbGliL3Bvb2xjYXASGy92YXIvbGliL3Bvb2xjYXAvc2hpbS8wLjEuMBgBKh0KG252aWRpYS5jb20vZ3B1PUdQVS04" \
    "ZWYwOGM4NQ=="
/* One mount, of /run/poolcap/grants/77aa01fe. */
#define ANSWER2 "Ei4KDC9ydW4vcG9vbGNhcBIcL3J1bi9wb29sY2FwL2dyYW50cy83N2FhMDFmZRgB"

#define ENTRY(uid, container, resource, devices, answer)                                       \
    "{\"PodUID\":\"" uid "\",\"ContainerName\":\"" container "\",\"ResourceName\":\"" resource \
    "\",\"DeviceIDs\":" devices ",\"AllocResp\":" answer "}"
#define FRAME(entries)                                                               \
    "{\"Data\":{\"PodDeviceEntries\":" entries ",\"RegisteredDevices\":{\"" RESOURCE \
    "\":[\"8ef08c85-0000\",\"8ef08c85-0001\"]}},\"Checksum\":4215389172}"
#define GOOD ENTRY("f6b9", "good", RESOURCE, "{\"-1\":[\"8ef08c85-0009\"]}", "null")

#define UID1 "0e2f9c3a-6a8e-4a55-9a41-0d6a5cf0e1b7"
static const char real[] = FRAME("[" ENTRY(
    UID1, "app", RESOURCE, "{\"-1\":[\"8ef08c85-0002\",\"8ef08c85-0000\",\"8ef08c85-0001\"]}",
    "\"" ANSWER
    "\"") "," ENTRY(UID1, "app", "nvidia.com/gpu", "{\"0\":[\"GPU-1\"]}",
                    "\"\"") "," ENTRY("77b0", "init", RESOURCE,
                                      "{\"0\":[\"8ef08c85-0005\"],\"1\":[\"8ef08c85-0004\",\"8ef08c85-0005\"]}",
                                      "\"" ANSWER2 "\"") "]");

static struct pc_claims *parse(const char *text, size_t *skipped)
{
    struct pc_claims *claims = NULL;
    struct pc_error err = {.text = ""};
    if (pc_checkpoint_parse(text, strlen(text), RESOURCE, &claims, skipped, &err) != PC_OK)
        fail_msg("refused: %s", err.text);
    assert_non_null(claims);
    return claims;
}

static void refused(const char *text, enum pc_status status, const char *says)
{
    struct pc_claims *claims = (struct pc_claims *)(uintptr_t)4711;
    size_t skipped = 4711;
    struct pc_error err = {.text = ""};
    assert_int_equal(pc_checkpoint_parse(text, strlen(text), RESOURCE, &claims, &skipped, &err), status);
    assert_int_equal(err.status, status);
    assert_non_null(strstr(err.text, says));
    assert_ptr_equal(claims, (struct pc_claims *)(uintptr_t)4711);
    assert_int_equal(skipped, 4711);
}

/* entries has one that makes no sense, beside a good one. */
static void leaves_one_out(const char *entries)
{
    size_t skipped = 0;
    struct pc_claims *claims = parse(entries, &skipped);
    assert_int_equal(skipped, 1);
    assert_int_equal(claims->count, 1);
    assert_string_equal(claims->claim[0].container, "good");
    pc_claims_free(claims);
}

static void test_real(void **state)
{
    (void)state;
    size_t skipped = 4711;
    struct pc_claims *claims = parse(real, &skipped);
    assert_int_equal(skipped, 0);
    assert_int_equal(claims->count, 2);
    const struct pc_claim *app = &claims->claim[0], *init = &claims->claim[1];
    assert_string_equal(app->pod_uid, UID1);
    assert_string_equal(app->container, "app");
    assert_string_equal(app->pod_namespace, "");
    assert_string_equal(app->pod_name, "");
    assert_int_equal(app->count, 3);
    assert_string_equal(app->ids[0], "8ef08c85-0000");
    assert_string_equal(app->ids[2], "8ef08c85-0002");
    assert_int_equal(app->mounts, 2);
    assert_string_equal(app->mount_host_paths[0], "/run/poolcap/grants/5b1e0c7d");
    assert_string_equal(app->mount_host_paths[1], "/var/lib/poolcap/shim/0.1.0");
    assert_int_equal(init->count, 2); /* named by two NUMA nodes, counted once */
    assert_string_equal(init->ids[0], "8ef08c85-0004");
    assert_string_equal(init->ids[1], "8ef08c85-0005");
    assert_int_equal(init->mounts, 1);
    assert_string_equal(init->mount_host_paths[0], "/run/poolcap/grants/77aa01fe");
    pc_claims_free(claims);
    pc_claims_free(NULL);
}

static void test_other_shapes(void **state)
{
    (void)state;
    size_t skipped = 4711;
    struct pc_claims *claims = parse(FRAME("null"), &skipped);
    assert_int_equal(claims->count + skipped, 0);
    pc_claims_free(claims);
    claims = parse("{\"Checksum\":0,\"Data\":{\"RegisteredDevices\":null}}", &skipped);
    assert_int_equal(claims->count + skipped, 0);
    pc_claims_free(claims);
    claims = parse(FRAME("[" ENTRY("u", "c", RESOURCE, "[\"a\",\"b\"]", "null") "]"), &skipped); /* before 1.20 */
    assert_int_equal(claims->count, 1);
    assert_int_equal(claims->claim[0].count, 2);
    assert_int_equal(claims->claim[0].mounts, 0);
    pc_claims_free(claims);
    claims = parse("{\"New\":18446744073709551616,\"Data\":{\"PodDeviceEntries\":[{\"PodUID\":\"u\",\"Extra\":[{}],"
                   "\"ContainerName\":\"c\",\"ResourceName\":\"" RESOURCE "\",\"DeviceIDs\":{\"-1\":[\"a\"]}}]},"
                   "\"Checksum\":4294967295}",
                   &skipped); /* keys that we do not know, and no answer */
    assert_int_equal(claims->count, 1);
    assert_int_equal(skipped, 0);
    pc_claims_free(claims);
    claims = parse(FRAME("[" ENTRY("u", "c", RESOURCE, "{}", "null") "]"), &skipped); /* no devices, no claim */
    assert_int_equal(claims->count + skipped, 0);
    pc_claims_free(claims);
}

static void test_refused(void **state)
{
    (void)state;
    static const char json[] = "no JSON";
    refused("", PC_ERR_PROTOCOL, json);
    refused("nonsense", PC_ERR_PROTOCOL, json);
    refused(FRAME("[]") "x", PC_ERR_PROTOCOL, json);
    refused("{\"Data\":{\"a\":\"\xc3\x28\"},\"Checksum\":1}", PC_ERR_PROTOCOL, json);
    refused("[]", PC_ERR_PROTOCOL, "Data");
    refused("7", PC_ERR_PROTOCOL, json);
    refused("{\"Data\":[],\"Checksum\":1}", PC_ERR_PROTOCOL, "Data");
    refused("{\"Checksum\":1}", PC_ERR_PROTOCOL, "Data");
    refused("{\"Data\":{}}", PC_ERR_PROTOCOL, "Checksum");
    refused("{\"Data\":{},\"Checksum\":\"1\"}", PC_ERR_PROTOCOL, "Checksum");
    refused("{\"Data\":{},\"Checksum\":-1}", PC_ERR_PROTOCOL, "Checksum");
    refused("{\"Data\":{},\"Checksum\":1.5}", PC_ERR_PROTOCOL, "Checksum");
    refused("{\"Data\":{},\"Checksum\":4294967296}", PC_ERR_PROTOCOL, "Checksum");
    refused("{\"Data\":{\"PodDeviceEntries\":{}},\"Checksum\":1}", PC_ERR_PROTOCOL, "PodDeviceEntries");
}

static void test_left_out(void **state)
{
    (void)state;
    leaves_one_out(FRAME("[null," GOOD "]"));
    leaves_one_out(FRAME("[7," GOOD "]"));
    leaves_one_out(FRAME("[{}," GOOD "]"));
    leaves_one_out(FRAME("[" GOOD "," ENTRY("", "c", RESOURCE, "{\"-1\":[\"a\"]}", "null") "]"));
    leaves_one_out(FRAME("[" GOOD "," ENTRY("u", "", RESOURCE, "{\"-1\":[\"a\"]}", "null") "]"));
    leaves_one_out(FRAME("[" ENTRY("u", "c", "", "{\"-1\":[\"a\"]}", "null") "," GOOD "]"));
    leaves_one_out(FRAME("[" ENTRY("u", "c", RESOURCE, "null", "null") "," GOOD "]"));
    leaves_one_out(FRAME("[" ENTRY("u", "c", RESOURCE, "{\"-1\":\"a\"}", "null") "," GOOD "]"));
    leaves_one_out(FRAME("[" ENTRY("u", "c", RESOURCE, "{\"-1\":[\"a\",7]}", "null") "," GOOD "]"));
    leaves_one_out(FRAME("[" ENTRY("u", "c", RESOURCE, "{\"-1\":[\"a\",\"\"]}", "null") "," GOOD "]"));
    leaves_one_out(FRAME("[" ENTRY("u", "c", RESOURCE, "{\"-1\":[\"a\\u0007\"]}", "null") "," GOOD "]"));
    leaves_one_out(FRAME("[" ENTRY("u", "c", RESOURCE, "{\"-1\":[\"a\"]}", "7") "," GOOD "]"));
    leaves_one_out(FRAME("[" ENTRY("u", "c", RESOURCE, "{\"-1\":[\"a\"]}", "\"Ei4\"") "," GOOD "]"));
    leaves_one_out(FRAME("[" ENTRY("u", "c", RESOURCE, "{\"-1\":[\"a\"]}", "\"!!!!\"") "," GOOD "]"));
    leaves_one_out(FRAME("[" ENTRY("u", "c", RESOURCE, "{\"-1\":[\"a\"]}", "\"Ei4K\"") "," GOOD "]")); /* cut short */
    leaves_one_out(
        FRAME("[" ENTRY("u", "c", RESOURCE, "{\"-1\":[\"a\"]}", "\"EgA=\"") "," GOOD "]")); /* no host path */
}

static void test_every_beginning(void **state)
{
    (void)state;
    size_t skipped;
    for (size_t length = 0; length < sizeof real - 1; length++) {
        struct pc_claims *claims = NULL;
        struct pc_error err = {.text = ""};
        pc_auto_free char *copy = malloc(length + 1); /* its own size, so that a sanitizer sees what reads beyond */
        memcpy(copy, real, length);
        assert_int_equal(pc_checkpoint_parse(copy, length, RESOURCE, &claims, &skipped, &err), PC_ERR_PROTOCOL);
        assert_null(claims);
    }
}

/* Any one byte changed: an answer or a refusal, never anything else. */
static void test_every_byte(void **state)
{
    (void)state;
    static const char put[] = {'\0', '"', '{', ']', '9', '=', (char)0xff};
    for (size_t at = 0; at < sizeof real - 1; at++) {
        for (size_t i = 0; i < sizeof put; i++) {
            struct pc_claims *claims = NULL;
            struct pc_error err = {.text = ""};
            size_t skipped = 0;
            char copy[sizeof real];
            memcpy(copy, real, sizeof real);
            copy[at] = put[i];
            enum pc_status status = pc_checkpoint_parse(copy, sizeof real - 1, RESOURCE, &claims, &skipped, &err);
            assert_true(status == PC_OK || status == PC_ERR_PROTOCOL);
            assert_true((status == PC_OK) == (claims != NULL));
            assert_true(claims == NULL || claims->count <= 2);
            pc_claims_free(claims);
        }
    }
}

static void test_many(void **state)
{
    (void)state;
    enum { IDS = 40000 };
    char *text = NULL;
    size_t size = 0, skipped = 0;
    FILE *f = open_memstream(&text, &size);
    fputs("{\"Data\":{\"PodDeviceEntries\":[{\"PodUID\":\"u\",\"ContainerName\":\"c\",\"ResourceName\":\"" RESOURCE
          "\",\"AllocResp\":null,\"DeviceIDs\":{\"-1\":[\"x\"",
          f);
    for (int i = IDS - 1; i >= 0; i--)
        fprintf(f, ",\"8ef08c85-%05d\"", i);
    fputs("]}}]},\"Checksum\":1}", f);
    fclose(f);
    struct pc_claims *claims = parse(text, &skipped);
    assert_int_equal(claims->count, 1);
    assert_int_equal(claims->claim[0].count, IDS + 1);
    assert_string_equal(claims->claim[0].ids[0], "8ef08c85-00000");
    assert_string_equal(claims->claim[0].ids[IDS - 1], "8ef08c85-39999");
    assert_string_equal(claims->claim[0].ids[IDS], "x");
    pc_claims_free(claims);
    free(text);
}

static enum pc_status read_file(const char *path, struct pc_claims **claims, struct pc_error *err)
{
    size_t skipped = 0;
    return pc_checkpoint_read(path, RESOURCE, claims, &skipped, err);
}

static void test_file(void **state)
{
    (void)state;
    char directory[] = "/tmp/poolcap-checkpoint.XXXXXX", path[64], fifo[64];
    struct pc_claims *claims = NULL;
    struct pc_error err = {.text = ""};
    assert_non_null(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/kubelet_internal_checkpoint", directory);
    snprintf(fifo, sizeof fifo, "%s/fifo", directory);
    assert_int_equal(read_file(path, &claims, &err), PC_ERR_NOT_FOUND);
    assert_non_null(strstr(err.text, path));
    assert_int_equal(read_file(directory, &claims, &err), PC_ERR_PROTOCOL);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(read_file(fifo, &claims, &err), PC_ERR_PROTOCOL); /* and does not wait for a writer */
    FILE *f = fopen(path, "we");
    fputs("{\"Data\"", f);
    fclose(f);
    assert_int_equal(read_file(path, &claims, &err), PC_ERR_PROTOCOL);
    assert_non_null(strstr(err.text, path));
    assert_null(claims);
    f = fopen(path, "we");
    fputs(real, f);
    fclose(f);
    assert_int_equal(read_file(path, &claims, &err), PC_OK);
    assert_int_equal(claims->count, 2);
    pc_claims_free(claims);
    unlink(path);
    unlink(fifo);
    rmdir(directory);
}

static void decodes(const char *text, const char *to)
{
    uint8_t out[64];
    size_t length = 4711;
    bool ok = pc_base64_decode(text, strlen(text), out, &length);
    assert_int_equal(ok, to != NULL);
    if (to == NULL) {
        assert_int_equal(length, 4711);
        return;
    }
    assert_int_equal(length, strlen(to));
    assert_memory_equal(out, to, length);
}

/* RFC 4648's own examples, and what no encoder writes. */
static void test_base64(void **state)
{
    (void)state;
    decodes("", "");
    decodes("Zg==", "f");
    decodes("Zm8=", "fo");
    decodes("Zm9v", "foo");
    decodes("Zm9vYg==", "foob");
    decodes("Zm9vYmE=", "fooba");
    decodes("Zm9vYmFy", "foobar");
    decodes("+/+/", "\xfb\xff\xbf");
    static const char *const bad[] = {"Z",    "Zg",   "Zg=",  "Zm9vY", "Zh==",  "Zm9=",     "====",     "Z===",
                                      "=Zg=", "Zg=a", "Z g=", "-_-_",  "Zm9\n", "Zg==Zg==", "Zm9vZ===", "\xc3\xa4=="};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        decodes(bad[i], NULL);
}

static void test_text(void **state)
{
    (void)state;
    static const char *const good[] = {"a",
                                       "8ef08c85-0001",
                                       "\xc3\xa4",
                                       "\xe2\x82\xac",
                                       "\xf0\x9f\x98\x80",
                                       "\xf4\x8f\xbf\xbf",
                                       "\xed\x9f\xbf",
                                       "\xee\x80\x80",
                                       "a b"};
    static const char *const bad[] = {"",
                                      "\n",
                                      "a\x7f",
                                      "\x80",
                                      "\xc3",
                                      "\xc3z",
                                      "\xc0\xaf",
                                      "\xc1\xbf",
                                      "\xe0\x9f\xbf",
                                      "\xed\xa0\x80",
                                      "\xe2\x82",
                                      "\xf0\x8f\xbf\xbf",
                                      "\xf4\x90\x80\x80",
                                      "\xf5\x80\x80\x80",
                                      "\xff",
                                      "\xc2\x85",
                                      "123456789"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        assert_true(pc_text_ok(good[i], 16));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(pc_text_ok(bad[i], 8));
    assert_false(pc_text_ok(NULL, 8));
    assert_true(pc_text_ok("12345678", 8));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_real),
        cmocka_unit_test(test_other_shapes),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_left_out),
        cmocka_unit_test(test_every_beginning),
        cmocka_unit_test(test_every_byte),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_file),
        cmocka_unit_test(test_base64),
        cmocka_unit_test(test_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
