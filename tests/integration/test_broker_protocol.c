/* Peers that break the protocol, and who may speak at all. poolcapd lives through all of it. */
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/broker/peer.h"
#include "proto/wire.h"
#include "tests/integration/broker_daemon.h"

static int end(void **state)
{
    (void)state;
    daemon_end();
    return 0;
}

static unsigned daemon_fds(void)
{
    char path[64];
    unsigned count = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)daemon_pid());
    DIR *dir = opendir(path);
    while (dir != NULL && readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

/* The session ends with a reason, and the next one is served. */
static void assert_ended(struct actor *a, const char *why)
{
    if (strstr(a->answer, "ended: ") == NULL || strstr(a->answer, why) == NULL)
        fail_msg("not ended with \"%s\": %s", why, a->answer);
    assert_ok(a, "connect %s", daemon_socket("a"));
    assert_ok(a, "attach 0");
}

static void test_broken_packets(void **state)
{
    (void)state;
    struct actor a;
    daemon_begin("- name: a\n  memory: 256Mi\n");
    daemon_actor(&a, "a");
    assert_false(actor_say(&a, "raw 1"));
    assert_ended(&a, "no valid");
    assert_false(actor_say(&a, "raw 60000"));
    assert_ended(&a, "no valid");
    assert_false(actor_say(&a, "raw 70000"));
    assert_ended(&a, "over 65536 bytes");
    assert_false(actor_say(&a, "free 12345"));
    assert_ended(&a, "does not hold");
    assert_false(actor_say(&a, "drop 999"));
    assert_ended(&a, "never had");
    assert_ok(&a, "alloc 0 1");
    uint64_t block = actor_number(&a, 0), generation = actor_number(&a, 2);
    assert_false(actor_say(&a, "liedrop %llu", (unsigned long long)generation));
    assert_ended(&a, "holds blocks of");
    assert_ok(&a, "lie %llu", (unsigned long long)block);
    assert_false(actor_say(&a, "lie %llu", (unsigned long long)block));
    assert_ended(&a, "does not hold");
    actor_end(&a);
}

/* Another session's block is not its own, whatever it knows of its name. */
static void test_stolen_names(void **state)
{
    (void)state;
    struct actor a, b;
    daemon_begin("- name: a\n  memory: 256Mi\n");
    daemon_actor(&a, "a");
    daemon_actor(&b, "a");
    assert_ok(&a, "alloc 0 1");
    assert_false(actor_say(&b, "lie %llu", (unsigned long long)actor_number(&a, 0)));
    assert_ended(&b, "does not hold");
    assert_false(actor_say(&b, "liedrop %llu", (unsigned long long)actor_number(&a, 2)));
    assert_ended(&b, "never had");
    assert_ok(&a, "free %llu", (unsigned long long)actor_number(&a, 0));
    actor_end(&a);
    actor_end(&b);
}

static void test_order(void **state)
{
    (void)state;
    struct pc_error err;
    struct pc_arena arena;
    ProtobufCMessage *message = NULL;
    int fd;
    daemon_begin("- name: a\n  memory: 256Mi\n");
    Poolcap__Info info = POOLCAP__INFO__INIT;
    Poolcap__Request request = POOLCAP__REQUEST__INIT;
    request.sequence = 5;
    request.body_case = POOLCAP__REQUEST__BODY_INFO;
    request.info = &info;
    assert_int_equal(pc_wire_connect(daemon_socket("a"), &fd, &err), PC_OK);
    assert_int_equal(pc_wire_send(fd, &request.base, NULL, 0, &err), PC_OK);
    assert_int_equal(pc_wire_receive(fd, &poolcap__reply__descriptor, &arena, &message, NULL, NULL, &err), PC_OK);
    const Poolcap__Reply *reply = (const Poolcap__Reply *)message;
    assert_int_equal(reply->sequence, 0);
    assert_int_equal(reply->status, PC_ERR_PROTOCOL);
    assert_non_null(strstr(reply->text, "hello"));
    close(fd);
    /* A version that nobody speaks. */
    Poolcap__Hello hello = POOLCAP__HELLO__INIT;
    hello.version_min = hello.version_max = 99;
    request.body_case = POOLCAP__REQUEST__BODY_HELLO;
    request.hello = &hello;
    assert_int_equal(pc_wire_connect(daemon_socket("a"), &fd, &err), PC_OK);
    assert_int_equal(pc_wire_send(fd, &request.base, NULL, 0, &err), PC_OK);
    assert_int_equal(pc_wire_receive(fd, &poolcap__reply__descriptor, &arena, &message, NULL, NULL, &err), PC_OK);
    assert_non_null(strstr(((const Poolcap__Reply *)message)->text, "version"));
    close(fd);
    /* Too many ids in one Free. */
    static uint64_t ids[PC_WIRE_FREE_MAX + 1];
    Poolcap__Free body = POOLCAP__FREE__INIT;
    body.n_blocks = PC_WIRE_FREE_MAX + 1;
    body.blocks = ids;
    hello.version_min = hello.version_max = 1;
    assert_int_equal(pc_wire_connect(daemon_socket("a"), &fd, &err), PC_OK);
    assert_int_equal(pc_wire_send(fd, &request.base, NULL, 0, &err), PC_OK);
    assert_int_equal(pc_wire_receive(fd, &poolcap__reply__descriptor, &arena, &message, NULL, NULL, &err), PC_OK);
    request.body_case = POOLCAP__REQUEST__BODY_FREE;
    request.free = &body;
    assert_int_equal(pc_wire_send(fd, &request.base, NULL, 0, &err), PC_OK);
    assert_int_equal(pc_wire_receive(fd, &poolcap__reply__descriptor, &arena, &message, NULL, NULL, &err), PC_OK);
    assert_non_null(strstr(((const Poolcap__Reply *)message)->text, "too many"));
    close(fd);
}

/* Two requests at once: the second is read when the first is answered. */
static void test_pipelined(void **state)
{
    (void)state;
    struct actor a;
    daemon_begin("- name: a\n  memory: 256Mi\n");
    daemon_actor(&a, "a");
    assert_ok(&a, "twice");
    assert_int_equal(actor_number(&a, 0), 2);
    actor_end(&a);
}

static void test_descriptors_are_dropped(void **state)
{
    (void)state;
    struct actor a;
    daemon_begin("- name: a\n  memory: 256Mi\n");
    daemon_actor(&a, "a");
    unsigned before = daemon_fds();
    for (int i = 0; i < 100; i++)
        assert_ok(&a, "fds");
    assert_int_equal(daemon_fds(), before);
    for (int i = 0; i < 20; i++) { /* its own pool fds are closed as soon as they are sent */
        assert_ok(&a, "alloc 0 1");
        uint64_t generation = actor_number(&a, 2);
        assert_ok(&a, "free %llu", (unsigned long long)actor_number(&a, 0));
        assert_ok(&a, "drop %llu", (unsigned long long)generation);
        assert_ok(&a, "large 0 1");
        assert_ok(&a, "free %llu", (unsigned long long)actor_number(&a, 0));
    }
    assert_int_equal(daemon_fds(), before);
    actor_end(&a);
}

static void test_page_cannot_be_written(void **state)
{
    (void)state;
    struct actor a;
    daemon_begin("- name: a\n  memory: 256Mi\n");
    daemon_actor(&a, "a");
    assert_false(actor_say(&a, "mapwrite"));
    assert_ok(&a, "page 0");
    assert_int_equal(actor_number(&a, 4), 1);
    daemon_stop();
    assert_ok(&a, "page 0");
    assert_int_equal(actor_number(&a, 4), 0); /* an orderly stop is said on the page */
    actor_end(&a);
}

/* A client that never reads: the session ends when its buffer is full, and nobody else waits for it. */
static void test_deaf_client(void **state)
{
    (void)state;
    struct actor a;
    struct pc_error err;
    int fd, answered = 0;
    daemon_begin("- name: a\n  memory: 256Mi\n");
    daemon_actor(&a, "a");
    Poolcap__Hello hello = POOLCAP__HELLO__INIT;
    Poolcap__Info info = POOLCAP__INFO__INIT;
    Poolcap__Request request = POOLCAP__REQUEST__INIT;
    hello.version_min = hello.version_max = 1;
    request.body_case = POOLCAP__REQUEST__BODY_HELLO;
    request.hello = &hello;
    assert_int_equal(pc_wire_connect(daemon_socket("a"), &fd, &err), PC_OK);
    assert_int_equal(pc_wire_send(fd, &request.base, NULL, 0, &err), PC_OK);
    request.body_case = POOLCAP__REQUEST__BODY_INFO;
    request.info = &info;
    for (answered = 0; answered < 100000; answered++)
        if (pc_wire_send(fd, &request.base, NULL, 0, &err) != PC_OK)
            break;
    assert_true(answered < 100000);
    assert_ok(&a, "alloc 0 1");
    close(fd);
    actor_end(&a);
}

/* ---- who ---- */

static void test_pod_of_line(void **state)
{
    (void)state;
    static const struct {
        const char *line, *uid;
    } lines[] = {
        {"0::/kubepods/burstable/pod8f5ab2c1-9d0e-4b6a-8c11-0123456789ab/abcdef\n",
         "8f5ab2c1-9d0e-4b6a-8c11-0123456789ab"},
        {"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod8f5ab2c1_9d0e_4b6a_8c11_0123456789ab.slice/"
         "cri-containerd-00.scope\n",
         "8f5ab2c1-9d0e-4b6a-8c11-0123456789ab"},
        {"4:memory:/kubepods.slice/kubepods-pod11_22.slice/crio-33.scope", "11-22"},
        {"11:cpu,cpuacct:/kubepods/pod0123456789abcdef0123456789abcdef/x", "0123456789abcdef0123456789abcdef"},
        {"0::/kubepods/pod1-2/inner/pod9-9/x", "1-2"}, /* the first one is the kubelet's, what is inside is the pod's */
        {"0::/../../kubepods/besteffort/pod7-7/c", "7-7"},
        {"0::/", NULL},
        {"0::/system.slice/ssh.service", NULL},
        {"0::/kubepods/pod", NULL},
        {"nonsense", NULL},
    };
    char uid[PC_POD_UID_MAX];
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        bool found = pc_peer_pod_of_line(lines[i].line, uid);
        if (found != (lines[i].uid != NULL) || (found && strcmp(uid, lines[i].uid) != 0))
            fail_msg("%s: %s", lines[i].line, found ? uid : "none");
    }
}

static void test_bound_grant(void **state)
{
    (void)state;
    struct actor a;
    char text[512];
    daemon_begin("- name: a\n  memory: 256Mi\n  podUid: 8f5ab2c1-9d0e-4b6a-8c11-0123456789ab\n");
    actor_start(&a);
    assert_refused(&a, PC_ERR_DENIED, "connect %s", daemon_socket("a")); /* we are in no pod */
    assert_int_equal(daemon_bind("a", "", text), PC_OK);
    assert_ok(&a, "connect %s", daemon_socket("a"));
    assert_int_equal(daemon_bind("a", "other", text), PC_OK); /* from then on */
    assert_ok(&a, "attach 0");
    assert_refused(&a, PC_ERR_DENIED, "connect %s", daemon_socket("a"));
    actor_end(&a);
}

static void test_modes(void **state)
{
    (void)state;
    struct stat st;
    char path[300];
    static const struct {
        const char *name;
        unsigned mode;
    } files[] = {{"", 0711},      {"/admin.sock", 0600}, {"/books", 0600},
                 {"/lock", 0600}, {"/grants/a", 0711},   {"/grants/a/poolcap.sock", 0666}};
    daemon_begin("- name: a\n  memory: 256Mi\n");
    for (size_t i = 1; i < sizeof files / sizeof files[0]; i++) { /* the run directory itself was mkdtemp's here */
        snprintf(path, sizeof path, "%s%s", daemon_directory(), files[i].name);
        assert_int_equal(stat(path, &st), 0);
        if ((st.st_mode & 07777) != files[i].mode)
            fail_msg("%s has mode %o", path, st.st_mode & 07777);
    }
}

static void test_too_many_sessions(void **state)
{
    (void)state;
    struct pc_error err;
    int fds[260];
    struct actor a;
    daemon_begin("- name: a\n  memory: 256Mi\n");
    for (int i = 0; i < 256; i++)
        assert_int_equal(pc_wire_connect(daemon_socket("a"), &fds[i], &err), PC_OK);
    actor_start(&a);
    assert_within(2000, daemon_figures("a").sessions == 256);
    assert_refused(&a, PC_ERR_BUSY, "connect %s", daemon_socket("a"));
    for (int i = 0; i < 256; i++)
        close(fds[i]);
    assert_within(2000, daemon_figures("a").sessions == 0);
    assert_ok(&a, "connect %s", daemon_socket("a"));
    actor_end(&a);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "actor") == 0)
        return actor_main();
    daemon_setup();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_broken_packets, end),
        cmocka_unit_test_teardown(test_stolen_names, end),
        cmocka_unit_test_teardown(test_order, end),
        cmocka_unit_test_teardown(test_pipelined, end),
        cmocka_unit_test_teardown(test_descriptors_are_dropped, end),
        cmocka_unit_test_teardown(test_page_cannot_be_written, end),
        cmocka_unit_test_teardown(test_deaf_client, end),
        cmocka_unit_test(test_pod_of_line),
        cmocka_unit_test_teardown(test_bound_grant, end),
        cmocka_unit_test_teardown(test_modes, end),
        cmocka_unit_test_teardown(test_too_many_sessions, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
