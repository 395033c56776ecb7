/* The device plugin registers with a stand-in kubelet: in every order, after every end, and never twice at a time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/log.h"
#include "tests/plugin/device_fixture.h"

/* ---- registration ---- */

static void test_registers(void **state)
{
    struct fixture *f = *state;
    char expected[64];
    fixture_start_kubelet(f);
    fixture_start_plugin(f);
    assert_false(fixture_stats(f).registered);
    fixture_wait_registered(f);
    const struct fake_endpoint *e = fake_kubelet_current(f->kubelet);
    snprintf(expected, sizeof expected, "poolcap-%ld-1.sock", (long)getpid());
    assert_string_equal(e->name, expected);
    assert_string_equal(f->kubelet->version, "v1beta1");
    assert_string_equal(f->kubelet->resource, RESOURCE);
    assert_true(e->pre_start_required && e->preferred_available);
    assert_string_equal(e->first_id, "8ef08c85-0000");
    assert_int_equal(f->said_yes, 1);
    assert_int_equal(f->said_no, 0);
    assert_int_equal(fixture_stats(f).registrations, 1);
    assert_int_equal(fixture_stats(f).registration_failures, 0);
    assert_int_equal(fixture_stats(f).lists_sent, 1);
    assert_int_equal(f->kubelet->registers, 1);
}

static void test_stream_before_answer(void **state)
{
    struct fixture *f = *state;
    fixture_start_kubelet(f);
    f->kubelet->stream_first = true;
    fixture_start_plugin(f);
    fixture_wait_registered(f);
    assert_int_equal(f->said_yes, 1);
    assert_int_equal(f->kubelet->registers, 1);
}

static void test_kubelet_comes_later(void **state)
{
    struct fixture *f = *state;
    fixture_start_plugin(f);  /* serves already, and is waiting */
    fixture_start_kubelet(f); /* which deletes that socket */
    fixture_wait_registered(f);
    assert_int_equal(fixture_stats(f).registration_failures, 0);
    assert_true(fixture_exists(f, fake_kubelet_current(f->kubelet)->name));
}

static void test_kubelet_restarts(void **state)
{
    struct fixture *f = *state;
    char first[FAKE_NAME];
    fixture_register(f);
    strcpy(first, fake_kubelet_current(f->kubelet)->name);
    for (unsigned i = 2; i < 6; i++) {
        fake_kubelet_stop(f->kubelet, false);
        fixture_start_kubelet(f);
        f->registered = false; /* only the new one's counts */
        fixture_wait_registered(f);
        assert_string_not_equal(fake_kubelet_current(f->kubelet)->name, first);
        assert_int_equal(f->said_yes, i);
        assert_int_equal(f->said_no, i - 1);
        assert_int_equal(f->kubelet->registers, 1);
        assert_false(fixture_exists(f, first));
    }
}

/* At a stop the kubelet leaves its socket; the plugin then knocks at a door that nobody opens. */
static void test_stale_socket(void **state)
{
    struct fixture *f = *state;
    fixture_register(f);
    fake_kubelet_stop(f->kubelet, true);
    fake_wait(f->loop, fixture_is_lost, f, "the end of the registration");
    fake_wait(f->loop, fixture_has_failed, f, "a registration that fails");
    fixture_start_kubelet(f);
    fixture_wait_registered(f);
    assert_int_equal(f->said_yes, 2);
    assert_int_equal(f->said_no, 1);
    assert_int_equal(f->kubelet->registers, 1);
}

static void test_refused(void **state)
{
    struct fixture *f = *state;
    fixture_start_kubelet(f);
    f->kubelet->refuse = 3;
    fixture_start_plugin(f);
    fixture_wait_registered(f);
    assert_int_equal(f->kubelet->refused, 3);
    assert_int_equal(f->kubelet->registers, 4);
    assert_int_equal(f->kubelet->at_once, 1);
    assert_int_equal(fixture_stats(f).registration_failures, 3);
    assert_int_equal(fixture_stats(f).registrations, 1);
    assert_int_equal(f->said_yes, 1);
}

/* It had waited long for a kubelet that refuses; a new one is registered at without that wait. */
static void test_new_socket_ends_back_off(void **state)
{
    struct fixture *f = *state;
    fixture_start_kubelet(f);
    f->kubelet->refuse = 1000;
    fixture_start_plugin(f);
    fake_wait(f->loop, fixture_has_failed, f, "a refused registration");
    fake_kubelet_stop(f->kubelet, false);
    fixture_start_kubelet(f);
    fixture_wait_registered(f);
    assert_int_equal(f->kubelet->registers, 1);
}

static void test_stream_ends(void **state)
{
    struct fixture *f = *state;
    char first[FAKE_NAME];
    fixture_register(f);
    strcpy(first, fake_kubelet_current(f->kubelet)->name);
    fake_endpoint_drop(fake_kubelet_current(f->kubelet));
    fake_wait(f->loop, fixture_is_lost, f, "the end of the registration");
    fixture_wait_registered(f);
    assert_string_equal(fake_kubelet_current(f->kubelet)->name, first); /* the socket is there, so it is kept */
    assert_int_equal(f->kubelet->registers, 2);
    assert_int_equal(fixture_stats(f).registrations, 2);
    assert_int_equal(f->said_yes, 2);
    assert_int_equal(f->said_no, 1);
    assert_int_equal(f->kubelet->at_once, 1);
}

static bool third(void *arg)
{
    struct fixture *f = arg;
    return f->kubelet->endpoints == 3 && fixture_is_registered(f);
}

static bool fourth(void *arg)
{
    struct fixture *f = arg;
    return f->kubelet->endpoints == 4 && fixture_is_registered(f);
}

/* As it does with a list over 4 MiB, but it comes to its senses. */
static void test_streams_end_at_once(void **state)
{
    struct fixture *f = *state;
    fixture_start_kubelet(f);
    f->kubelet->drop_streams = 3;
    fixture_start_plugin(f);
    fake_wait(f->loop, fourth, f, "a registration that stays");
    assert_int_equal(f->kubelet->registers, 4);
    assert_int_equal(f->kubelet->at_once, 1);
}

/* The same with the end on its way while the kubelet's yes is. */
static void test_stream_ends_before_answer(void **state)
{
    struct fixture *f = *state;
    fixture_start_kubelet(f);
    f->kubelet->stream_first = true;
    f->kubelet->drop_streams = 2;
    fixture_start_plugin(f);
    fake_wait(f->loop, third, f, "a registration that stays");
    assert_int_equal(f->kubelet->registers, 3);
}

static void test_no_stream(void **state)
{
    struct fixture *f = *state;
    fixture_start_kubelet(f);
    f->kubelet->no_stream = 1;
    fixture_start_plugin(f);
    fixture_wait_registered(f);
    assert_int_equal(f->kubelet->registers, 2);
    assert_int_equal(fixture_stats(f).registration_failures, 1);
    assert_int_equal(f->said_yes, 1);
}

/* kubelet.sock under its name again is a new one to whoever looks. */
static void move_socket(struct fixture *f)
{
    char from[PATH_ROOM], to[PATH_ROOM];
    fixture_path_in(f, "kubelet.sock", from);
    fixture_path_in(f, "away", to);
    assert_int_equal(rename(from, to), 0);
    assert_int_equal(rename(to, from), 0);
}

static bool is_asking(void *arg)
{
    struct fixture *f = arg;
    return f->kubelet->registers == 1;
}

/* The one before will never be answered; it is given up, and its end is not taken for the new one's. */
static void test_new_socket_while_registering(void **state)
{
    struct fixture *f = *state;
    fixture_start_kubelet(f);
    f->kubelet->silent = 1;
    fixture_start_plugin(f);
    fake_wait(f->loop, is_asking, f, "Register");
    move_socket(f);
    fixture_wait_registered(f);
    assert_int_equal(f->kubelet->registers, 2);
    assert_int_equal(fixture_stats(f).registrations, 1);
    assert_int_equal(fixture_stats(f).registration_failures, 0);
    assert_int_equal(f->said_yes, 1);
}

static bool twice(void *arg)
{
    struct fixture *f = arg;
    return f->kubelet->endpoints == 2 && fixture_is_registered(f);
}

static bool both_have_three(void *arg)
{
    struct fixture *f = arg;
    return f->kubelet->endpoint[0].devices == 3 && f->kubelet->endpoint[1].devices == 3;
}

static bool second_has_two(void *arg)
{
    struct fixture *f = arg;
    return f->kubelet->endpoint[1].devices == 2;
}

/* The kubelet keeps the stream of an older registration; both get the list, and only the newer one's end matters. */
static void test_two_streams(void **state)
{
    struct fixture *f = *state;
    fixture_register(f);
    move_socket(f);
    f->registered = false;
    fake_wait(f->loop, twice, f, "a second registration");
    assert_true(f->kubelet->endpoint[0].stream_open);
    f->list.n_devices = 3;
    pc_device_plugin_changed(f->plugin);
    fake_wait(f->loop, both_have_three, f, "the list on both streams");
    fake_endpoint_drop(&f->kubelet->endpoint[0]);
    f->list.n_devices = 2;
    pc_device_plugin_changed(f->plugin);
    fake_wait(f->loop, second_has_two, f, "the list on the newer stream");
    assert_true(f->registered);
    assert_int_equal(f->kubelet->registers, 2);
    fake_endpoint_drop(&f->kubelet->endpoint[1]);
    fake_wait(f->loop, fixture_is_lost, f, "the end of the registration");
    fixture_wait_registered(f);
    assert_int_equal(f->kubelet->registers, 3);
}

static bool both_registered(void *arg)
{
    struct fixture *f = arg;
    return f->said_yes == 2 && f->kubelet->endpoints == 2 && fixture_is_registered(f);
}

/* An older instance under another name ends after we have registered: the kubelet then hangs up on us. */
static void test_overlap_trap(void **state)
{
    struct fixture *f = *state;
    struct pc_device_plugin *older;
    fixture_start_kubelet(f);
    assert_int_equal(fixture_start_at(f, f->directory, "older", &older, NULL), PC_OK);
    fake_wait(f->loop, fixture_is_registered, f, "the older instance");
    fixture_start_plugin(f);
    fake_wait(f->loop, both_registered, f, "the second instance");
    assert_true(f->kubelet->endpoint[0].stream_open);
    pc_device_plugin_stop(older);
    fake_wait(f->loop, third, f, "a registration after the trap");
    assert_false(f->kubelet->endpoint[1].stream_open);
    assert_string_equal(f->kubelet->endpoint[2].name, f->kubelet->endpoint[1].name);
    assert_int_equal(f->said_no, 1);
}

/* Only our socket was deleted, as by a clean-up: it is made again when the next registration needs it. */
static void test_own_socket_deleted(void **state)
{
    struct fixture *f = *state;
    char path[PATH_ROOM];
    fixture_register(f);
    fixture_path_in(f, fake_kubelet_current(f->kubelet)->name, path);
    assert_int_equal(unlink(path), 0);
    fake_endpoint_drop(fake_kubelet_current(f->kubelet));
    fake_wait(f->loop, fixture_is_lost, f, "the end of the registration");
    fixture_wait_registered(f);
    assert_string_not_equal(f->kubelet->endpoint[0].name, fake_kubelet_current(f->kubelet)->name);
    assert_true(fixture_exists(f, fake_kubelet_current(f->kubelet)->name));
}

static bool stream_ended(void *arg)
{
    struct fixture *f = arg;
    return !fake_kubelet_current(f->kubelet)->stream_open;
}

static void test_stop(void **state)
{
    struct fixture *f = *state;
    fixture_register(f);
    unsigned no = f->said_no;
    pc_device_plugin_stop(f->plugin);
    f->plugin = NULL;
    assert_false(fixture_exists(f, fake_kubelet_current(f->kubelet)->name));
    fake_wait(f->loop, stream_ended, f, "the end of the stream");
    assert_int_equal(f->said_no, no); /* the owner knows */
    fixture_start_plugin(f);          /* the lock is free again */
    f->registered = false;
    fixture_wait_registered(f);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_set_up, fixture_tear_down)

int main(void)
{
    pc_log_set_level(PC_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        TEST(test_registers),
        TEST(test_stream_before_answer),
        TEST(test_kubelet_comes_later),
        TEST(test_kubelet_restarts),
        TEST(test_stale_socket),
        TEST(test_refused),
        TEST(test_new_socket_ends_back_off),
        TEST(test_stream_ends),
        TEST(test_streams_end_at_once),
        TEST(test_stream_ends_before_answer),
        TEST(test_no_stream),
        TEST(test_new_socket_while_registering),
        TEST(test_two_streams),
        TEST(test_overlap_trap),
        TEST(test_own_socket_deleted),
        TEST(test_stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
