/* A poolcapd of its own on the simulated driver, for the tests of poolcapd: two GPUs of 4 GiB, 64 MiB a context. */
#ifndef PC_TESTS_BROKER_DAEMON_H
#define PC_TESTS_BROKER_DAEMON_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "alloc/base/bytes.h"
#include "tests/integration/broker_actor.h"

#define CONTEXT (64 * PC_MIB)
#define GRANULE PC_POOL_GRANULE

/* cmocka's assertion, with what the actor answered. */
#define assert_ok(actor, ...)                                  \
    do {                                                       \
        if (!actor_say(actor, __VA_ARGS__))                    \
            fail_msg("%s: %s", #__VA_ARGS__, (actor)->answer); \
    } while (0)
#define assert_refused(actor, status, ...)                                                         \
    do {                                                                                           \
        if (actor_say(actor, __VA_ARGS__) || actor_number(actor, 0) != (uint64_t)(status))         \
            fail_msg("%s: not refused with %d: %s", #__VA_ARGS__, (int)(status), (actor)->answer); \
    } while (0)
#define assert_within(ms, what)                                     \
    do {                                                            \
        for (int tries = 0; !(what); tries++) {                     \
            if (tries > (ms) / 10)                                  \
                fail_msg("not within %d ms: %s", (int)(ms), #what); \
            daemon_nap(10);                                         \
        }                                                           \
    } while (0)

/* Environment of the simulator; called once, before anything uses it. */
void daemon_setup(void);

/* Starts poolcapd with these grants (YAML, the lines under "grants:"), in a new run directory or in the last one. */
void daemon_begin(const char *grants);
void daemon_start(void);
bool daemon_start_fails(char *text, size_t size); /* whether it ends at once, and what it said */
void daemon_kill(void);                           /* SIGKILL */
void daemon_stop(void);                           /* SIGTERM; its exit status has to be 0 */
void daemon_end(void);                            /* stops it where it runs, and removes the run directory */
void daemon_configure(const char *grants);
void daemon_run_with(const char *flag); /* a further flag of the next start; NULL: none */
pid_t daemon_pid(void);
const char *daemon_directory(void);

/* Socket of a grant; the string is good until the next call but three. */
const char *daemon_socket(const char *grant);

/* An actor that is connected to a grant and attached to its first GPU. */
void daemon_actor(struct actor *a, const char *grant);

/* What the driver is to fail from now on ("cuMemCreate:1:2"), in every process; NULL: nothing. */
void daemon_inject(const char *fail);
void daemon_delay(const char *delay);

void daemon_nap(unsigned ms);
uint64_t daemon_card_used(unsigned gpu);
uint64_t daemon_process_bytes(unsigned gpu, pid_t pid);

/* Of the admin socket. */
struct daemon_figures {
    uint64_t granted, cap, charged, tenant_charged, pool_reserved, pool_used, large, direct, context, pending,
        inherited;
    uint64_t outside, refused, shared;
    char pod_uid[64];
    unsigned sessions;
    bool found, dropping;
};
struct daemon_gpu {
    uint64_t capacity, granted, charged, broken_promises, failed_frees, pool_reserved;
    uint64_t requests, latency_sum_ns; /* of the histogram */
    bool histogram_whole;              /* rising bounds, and one bucket more than them */
    char fault[256];
};
struct daemon_figures daemon_figures(const char *grant);
struct daemon_gpu daemon_gpu(unsigned index);
uint64_t daemon_epoch(void);
/* One request of poolcapctl's kind; the status, and the text in `text`. */
int daemon_make(const char *name, const char *tenant, const char *gpu, uint64_t granted, uint64_t cap, char text[512]);
struct daemon_want {
    const char *name, *tenant, *gpu, *pod_uid; /* NULL: empty; gpu: 0 */
    uint64_t granted, cap, shared;
};
int daemon_make_with(const struct daemon_want *want, char text[512]);
int daemon_drop_unused(const char *grant, char text[512]);
int daemon_set_cap(const char *grant, uint64_t cap, char text[512]);
int daemon_bind(const char *grant, const char *uid, char text[512]);
int daemon_drop(const char *grant, bool wait, char text[512]);
int daemon_reload(char text[512]);

/*
 * Whether what is charged on GPU 0 is what the card holds beside poolcapd: all charges of all grants, each tenant once.
 * Waits for it, 3 s at most. Only true where every process has made the context that it attached.
 */
bool daemon_books_equal_card(void);

#endif
