/*
 * A poolcapd that answers whatever a test wants: for the client's side of the protocol against a peer that is wrong,
 * old or dying. It serves a socket in a thread of the test's own process and has no GPU; what needs memory that works
 * runs against the real poolcapd (tests/integration).
 */
#ifndef PC_TESTS_FAKE_BROKER_H
#define PC_TESTS_FAKE_BROKER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/page.h"
#include "proto/poolcap.pb-c.h"

struct fake_broker {
    char path[108];
    struct pc_page *page; /* the page that it sends, writable */
    uint64_t epoch;
    const char *uuid; /* of the one GPU that it grants */

    /*
     * Called for each request with the answer that it would get: an empty one of the right kind, for Hello the whole
     * greeting. May change it; fds and *nfds are what goes with it. False: the connection is closed without an answer.
     */
    bool (*hook)(const Poolcap__Request *request, Poolcap__Reply *reply, int *fds, unsigned *nfds);

    _Atomic int connections, attaches, allocates, frees, reserves, releases;
    _Atomic uint64_t freed[64], dropped[64]; /* ids, in the order they came */
    _Atomic unsigned freed_count, dropped_count;
};
extern struct fake_broker fake_broker;

/* Serves fake_broker.path, a new one in TMPDIR, until the process ends. */
void fake_broker_start(void);

#endif
