/*
 * A stand-in for the kubelet's device manager, as the facts describe it (kubernetes-apis.md): it deletes every socket
 * in its directory when it starts, serves kubelet.sock, and inside of Register dials back and asks for the options;
 * then it opens ListAndWatch. A registration of the same resource replaces the endpoint but leaves the old stream open,
 * and the end of ANY stream disconnects whoever is registered by then (the overlap trap).
 *
 * It runs on the test's own loop. Every field may be read; those under "how it behaves" may be set at any time.
 */
#ifndef PC_TESTS_FAKE_KUBELET_H
#define PC_TESTS_FAKE_KUBELET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/base/loop.h"
#include "plugin/rpc/rpc.h"
#include "proto/device_plugin.pb-c.h"

enum { FAKE_ENDPOINTS = 32, FAKE_NAME = 128 };

/* One registration: the client that the kubelet dialled back with. */
struct fake_endpoint {
    struct fake_kubelet *kubelet;
    char name[FAKE_NAME]; /* the endpoint's, as Register said it */
    struct pc_rpc_channel *channel;
    struct pc_rpc_call *registering; /* Register, not answered yet */
    bool pre_start_required, preferred_available;
    bool stream_open;
    unsigned lists;            /* messages of its stream */
    size_t devices, unhealthy; /* in the last one */
    char first_id[FAKE_NAME];
};

struct fake_kubelet {
    struct pc_loop *loop;
    struct pc_rpc *rpc;
    char directory[FAKE_NAME];
    struct pc_rpc_server *server;
    struct fake_endpoint endpoint[FAKE_ENDPOINTS]; /* in the order of their registrations; the last one is current */
    unsigned endpoints;
    unsigned registers, refused, at_once; /* calls of Register; refused ones; the most under way at a time */
    char version[FAKE_NAME], resource[FAKE_NAME];

    /* How it behaves. */
    unsigned refuse;       /* so many of the next Registers are refused */
    bool stream_first;     /* ListAndWatch is opened before Register is answered */
    unsigned no_stream;    /* so many of the next registrations get no ListAndWatch */
    unsigned drop_streams; /* so many of the next streams are ended at their first list */
};

/* Starts it as a new process would be: without memory of what was. */
void fake_kubelet_start(struct fake_kubelet *kubelet, struct pc_loop *loop, struct pc_rpc *rpc, const char *directory);
/* As kill -9: every connection ends. leave_socket: kubelet.sock stays on the disk, with nobody behind it. */
void fake_kubelet_stop(struct fake_kubelet *kubelet, bool leave_socket);
/* The registered endpoint; NULL before the first. */
struct fake_endpoint *fake_kubelet_current(struct fake_kubelet *kubelet);
/* Hangs up on one endpoint. The trap is the caller's to spring. */
void fake_endpoint_drop(struct fake_endpoint *endpoint);

/* Makes a socket at path that nobody listens at. */
void fake_stale_socket(const char *path);

/* Runs the loop until holds(arg); fails the test after a minute. */
void fake_wait(struct pc_loop *loop, bool (*holds)(void *arg), void *arg, const char *what);

#endif
