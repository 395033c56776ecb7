/* The kubelet's directory: its lock, what an earlier life left there, and that it comes and goes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/base/log.h"
#include "plugin/kubelet/directory_watch.h"
#include "tests/plugin/device_fixture.h"

/* ---- the lock, and what an earlier life left ---- */

static void test_second_instance(void **state)
{
    struct fixture *f = *state;
    struct pc_device_plugin *second = NULL;
    struct pc_error err = {.text = ""};
    char pid[32];
    fixture_register(f);
    enum pc_status status = fixture_start_at(f, f->directory, "poolcap", &second, &err);
    pc_device_plugin_stop(second);
    assert_int_equal(status, PC_ERR_BUSY);
    snprintf(pid, sizeof pid, "pid %ld,", (long)getpid());
    assert_non_null(strstr(err.text, pid));
    assert_null(second);
    assert_true(fixture_is_registered(f));
    pc_device_plugin_changed(f->plugin);
    assert_int_equal(f->kubelet->registers, 1);
}

static void test_earlier_life(void **state)
{
    struct fixture *f = *state;
    static const char *const stale[] = {"poolcap-999-1.sock", "poolcap-1-77.sock"};
    static const char *const others[] = {"poolcap-mig-1.sock", "poolcap-1-1.sock.d", "poolcap-1.sock", "nvidia.sock"};
    char path[PATH_ROOM];
    for (size_t i = 0; i < sizeof stale / sizeof stale[0]; i++) {
        fixture_path_in(f, stale[i], path);
        fake_stale_socket(path);
    }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        fixture_path_in(f, others[i], path);
        fake_stale_socket(path);
    }
    fixture_path_in(f, "poolcap-5-5.sock", path);
    close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600)); /* no socket: not ours to remove */
    fixture_start_plugin(f);
    for (size_t i = 0; i < sizeof stale / sizeof stale[0]; i++)
        assert_false(fixture_exists(f, stale[i]));
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        assert_true(fixture_exists(f, others[i]));
    assert_true(fixture_exists(f, "poolcap-5-5.sock"));
    fixture_start_kubelet(f);
    fixture_wait_registered(f);
}

static void test_bad_configuration(void **state)
{
    struct fixture *f = *state;
    struct pc_error err = {.text = ""};
    char lengthy[PATH_ROOM], *at;
    snprintf(lengthy, sizeof lengthy, "%s/", f->directory);
    for (at = lengthy + strlen(lengthy); at < lengthy + 100; at++)
        *at = 'x';
    *at = '\0';
    assert_int_equal(fixture_start_at(f, lengthy, "poolcap", &f->plugin, &err), PC_ERR_INVALID);
    assert_non_null(strstr(err.text, "107 are allowed"));
    assert_int_equal(fixture_start_at(f, "device-plugins", "poolcap", &f->plugin, &err), PC_ERR_INVALID);
    assert_non_null(strstr(err.text, "absolute"));
    assert_null(f->plugin);
}

/* ---- the directory ---- */

static void look(void *arg)
{
    struct fixture *f = arg;
    f->looks++;
}

static bool looked(void *arg)
{
    struct fixture *f = arg;
    return f->looks > 0;
}

static void wait_look(struct fixture *f, const char *what)
{
    fake_wait(f->loop, looked, f, what);
    f->looks = 0;
}

static void make_file(const char *path)
{
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    close(fd);
}

/* Without the registration's own slow timer beside it. */
static void test_directory_watch(void **state)
{
    struct fixture *f = *state;
    char below[PATH_ROOM], directory[PATH_ROOM], file[2 * PATH_ROOM], other[2 * PATH_ROOM], away[PATH_ROOM];
    struct pc_directory_watch *watch;
    fixture_path_in(f, "kubelet", below);
    fixture_path_in(f, "away", away);
    snprintf(directory, sizeof directory, "%s/kubelet/device-plugins", f->directory);
    snprintf(file, sizeof file, "%s/kubelet.sock", directory);
    snprintf(other, sizeof other, "%s/checkpoint", directory);
    assert_int_equal(pc_directory_watch_create(f->loop, directory, "kubelet.sock", look, f, &watch, NULL), PC_OK);
    for (int round = 0; round < 2; round++) {
        assert_int_equal(mkdir(below, 0700), 0);
        wait_look(f, "its parent");
        assert_int_equal(mkdir(directory, 0700), 0);
        wait_look(f, "the directory");
        make_file(other); /* nobody's business: only the next one is seen */
        make_file(file);
        wait_look(f, "the file made");
        assert_int_equal(rename(file, other), 0);
        assert_int_equal(rename(other, file), 0);
        wait_look(f, "the file moved there");
        assert_int_equal(unlink(file), 0);
        assert_int_equal(rmdir(directory), 0);
        wait_look(f, "the directory removed");
        assert_int_equal(rmdir(below), 0);
        wait_look(f, "its parent removed");
    }
    assert_int_equal(mkdir(below, 0700), 0);
    assert_int_equal(mkdir(directory, 0700), 0); /* both before the loop sees the first */
    wait_look(f, "both");
    make_file(file);
    wait_look(f, "the file");
    assert_int_equal(rename(directory, away), 0);
    wait_look(f, "the directory moved away");
    assert_int_equal(mkdir(directory, 0700), 0);
    wait_look(f, "another directory in its place");
    make_file(file);
    wait_look(f, "the file in it");
    pc_directory_watch_free(watch);
}

static void test_directory_comes_and_goes(void **state)
{
    struct fixture *f = *state;
    char directory[PATH_ROOM], command[2 * PATH_ROOM];
    snprintf(directory, sizeof directory, "%s/kubelet/device-plugins", f->directory);
    assert_int_equal(fixture_start_at(f, directory, "poolcap", &f->plugin, NULL), PC_OK);
    for (unsigned round = 1; round < 4; round++) {
        snprintf(command, sizeof command, "mkdir -p %s", directory);
        assert_int_equal(system(command), 0);
        fake_kubelet_start(f->kubelet, f->loop, f->rpc, directory);
        f->registered = false;
        fixture_wait_registered(f);
        assert_int_equal(f->said_yes, round);
        fake_kubelet_stop(f->kubelet, round % 2 == 0);
        snprintf(command, sizeof command, "rm -rf %s/kubelet", f->directory);
        assert_int_equal(system(command), 0);
    }
}

/* Where the directory was made anew, the lock is too: two instances must not meet there. */
static void test_lock_in_new_directory(void **state)
{
    struct fixture *f = *state;
    struct pc_device_plugin *second = NULL;
    struct pc_error err = {.text = ""};
    char directory[PATH_ROOM], command[2 * PATH_ROOM];
    snprintf(directory, sizeof directory, "%s/device-plugins", f->directory);
    assert_int_equal(mkdir(directory, 0700), 0);
    assert_int_equal(fixture_start_at(f, directory, "poolcap", &f->plugin, NULL), PC_OK);
    snprintf(command, sizeof command, "rm -rf %s", directory);
    assert_int_equal(system(command), 0);
    assert_int_equal(mkdir(directory, 0700), 0);
    fake_kubelet_start(f->kubelet, f->loop, f->rpc, directory);
    fixture_wait_registered(f);
    enum pc_status status = fixture_start_at(f, directory, "poolcap", &second, &err);
    pc_device_plugin_stop(second);
    assert_int_equal(status, PC_ERR_BUSY);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_set_up, fixture_tear_down)

int main(void)
{
    pc_log_set_level(PC_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        TEST(test_second_instance),          TEST(test_earlier_life),
        TEST(test_bad_configuration),        TEST(test_directory_watch),
        TEST(test_directory_comes_and_goes), TEST(test_lock_in_new_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
