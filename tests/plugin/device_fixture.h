/*
 * What the tests of plugin/kubelet/device_plugin.h share: a directory, a stand-in kubelet, a plugin, and an owner that
 * writes down what it was called for. All on one loop. A wait that is not met fails the test.
 */
#ifndef PC_TESTS_DEVICE_FIXTURE_H
#define PC_TESTS_DEVICE_FIXTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "plugin/kubelet/device_plugin.h"
#include "tests/plugin/fake_kubelet.h"

#define RESOURCE "poolcap.dev/gpu-memory"

enum { PATH_ROOM = 200 };

struct fixture {
    struct pc_loop *loop;
    struct pc_rpc *rpc;
    struct pc_device_plugin *plugin;
    struct fake_kubelet *kubelet;
    char directory[64];

    V1beta1__ListAndWatchResponse list;
    V1beta1__Device *device, **devices;
    char (*id)[32];

    unsigned said_yes, said_no; /* calls of registered */
    bool registered;
    unsigned allocates, preferreds, pre_starts, pre_starts_gone;
    char seen[256];           /* the ids of the last call */
    struct pc_rpc_call *held; /* a PreStartContainer that is not answered yet */
    bool hold;

    enum pc_status answer; /* of a call that the test made */
    struct pc_error why;
    unsigned answers;
    unsigned looks;
};

/* Healthy ones, in f->list. */
void fixture_make_devices(struct fixture *f, size_t count);
void fixture_free_devices(struct fixture *f);
int fixture_set_up(void **state);
int fixture_tear_down(void **state);
/* Any directory and socket_prefix; *out is the caller's. */
enum pc_status fixture_start_at(struct fixture *f, const char *directory, const char *prefix,
                                struct pc_device_plugin **out, struct pc_error *err);
/* f->plugin and f->kubelet, in f->directory. */
void fixture_start_plugin(struct fixture *f);
void fixture_start_kubelet(struct fixture *f);
struct pc_device_plugin_stats fixture_stats(const struct fixture *f);
void fixture_path_in(const struct fixture *f, const char *name, char out[PATH_ROOM]);
bool fixture_exists(const struct fixture *f, const char *name);

/* Conditions for fake_wait; arg is the fixture. */
bool fixture_is_registered(void *arg);
bool fixture_is_lost(void *arg);
bool fixture_has_failed(void *arg);
/* Waits for the kubelet's current endpoint to have the whole list. */
void fixture_wait_registered(struct fixture *f);
void fixture_register(struct fixture *f); /* starts both, and waits until the plugin is registered */

#endif
