#include "plugin/kubelet/registration.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "alloc/base/log.h"
#include "proto/device_plugin.pb-c.h"

enum {
    /* A kubelet.sock that was just made has a name before anybody listens at it: bind and listen are two calls, and the
     * watch tells of the first. So the first tries there come quicker, and quieter. */
    NEW_SOCKET_FIRST_MS = 5,
    BACK_OFF_FIRST_MS = 100,
    BACK_OFF_MOST_MS = 5000,
    /* Inside Register the kubelet dials back, for up to 10 s, and then asks for our options (facts). */
    REGISTER_MS = 20000,
    STREAM_MS = 10000,
};
/* A stream that lived as long was a registration that worked. One that ends sooner is made again at once too, but only
 * the first time: the kubelet may be refusing what is in it, and the two would go round without a pause. */
#define STEADY_NS (5ull * 1000000000u)

enum state {
    WAITING,    /* for its time */
    ASKING,     /* Register is under way */
    AWAITING,   /* the kubelet said yes; its stream is not open yet */
    REGISTERED, /* and it is */
};

/* Which kubelet.sock. The time is part of it: file systems give a freed inode's number to the next file. */
struct identity {
    dev_t device;
    ino_t inode;
    struct timespec changed;
};

struct pc_registration {
    struct pc_rpc *rpc;
    const struct pc_registration_ops *ops;
    void *arg;
    enum state state;
    struct pc_timer *timer;
    uint64_t delay_ms; /* before the next try */
    uint64_t first_ms; /* the delay after one that was 0 */
    struct pc_rpc_channel *channel;
    struct identity tried; /* all zero: there was none */
    const void *stream;    /* this registration's; NULL: not open, or none is waited for */
    bool brief;            /* the last one did not live for STEADY_NS */
    uint64_t since_ns;     /* registered since */
    bool said;             /* so that an outage is one line in the log */
    uint64_t registrations, failures;
    char *resource;
    char socket[]; /* kubelet.sock's path */
};

/* ---- states ---- */

static void wait_for_next(struct pc_registration *r)
{
    r->state = WAITING;
    r->stream = NULL;
    pc_timer_start(r->timer, r->delay_ms, 0);
    r->delay_ms = r->delay_ms == 0 ? r->first_ms : r->delay_ms * 2;
    if (r->delay_ms > BACK_OFF_MOST_MS)
        r->delay_ms = BACK_OFF_MOST_MS;
}

static void leave(struct pc_registration *r)
{
    bool was = r->state == REGISTERED;
    wait_for_next(r);
    if (was)
        r->ops->changed(r->arg, false);
}

static void fail(struct pc_registration *r, const char *why)
{
    bool quiet = r->said || r->delay_ms < BACK_OFF_FIRST_MS;
    r->failures++;
    pc_log(quiet ? PC_LOG_DEBUG : PC_LOG_WARN, "kubelet", "cannot register %s, trying on: %s", r->resource, why);
    r->said = r->said || !quiet;
    leave(r);
}

static void succeed(struct pc_registration *r)
{
    r->state = REGISTERED;
    r->since_ns = pc_loop_now_ns();
    r->said = false;
    r->first_ms = BACK_OFF_FIRST_MS;
    if (!r->brief)
        r->delay_ms = 0;
    pc_timer_start(r->timer, 0, 0); /* which closes the channel: not here, in its own answer */
    pc_log_debug("kubelet", "registered %s at %s", r->resource, r->socket);
    r->ops->changed(r->arg, true);
}

/* ---- the call ---- */

static void on_answer(void *arg, enum pc_status status, const ProtobufCMessage *reply, const struct pc_error *err)
{
    (void)reply;
    struct pc_registration *r = arg;
    if (r->state != ASKING)
        return; /* given up meanwhile */
    if (status != PC_OK) {
        fail(r, err->text);
        return;
    }
    r->registrations++;
    if (r->stream != NULL) {
        succeed(r);
    } else {
        r->state = AWAITING;
        pc_timer_start(r->timer, STREAM_MS, 0);
    }
}

static void ask(struct pc_registration *r, const char *endpoint)
{
    V1beta1__DevicePluginOptions options = V1BETA1__DEVICE_PLUGIN_OPTIONS__INIT;
    V1beta1__RegisterRequest request = V1BETA1__REGISTER_REQUEST__INIT;
    options.pre_start_required = true;
    options.get_preferred_allocation_available = true;
    request.version = (char *)(uintptr_t) "v1beta1";
    request.endpoint = (char *)(uintptr_t)endpoint;
    request.resource_name = r->resource;
    request.options = &options;
    r->stream = NULL;
    r->state = ASKING;
    pc_rpc_call(r->channel, "/v1beta1.Registration/Register", &request.base, &v1beta1__empty__descriptor, REGISTER_MS,
                on_answer, r);
}

static struct identity identify(const struct pc_registration *r)
{
    struct stat st;
    if (lstat(r->socket, &st) < 0 || !S_ISSOCK(st.st_mode))
        return (struct identity){.inode = 0};
    return (struct identity){.device = st.st_dev, .inode = st.st_ino, .changed = st.st_ctim};
}

static bool same(const struct identity *a, const struct identity *b)
{
    return a->device == b->device && a->inode == b->inode && a->changed.tv_sec == b->changed.tv_sec &&
           a->changed.tv_nsec == b->changed.tv_nsec;
}

/* A channel for each try: gRPC's own has a back-off of its own, which knows nothing of a socket that was made anew. */
static enum pc_status open_channel(struct pc_registration *r, struct pc_error *err)
{
    pc_rpc_channel_close(r->channel);
    r->channel = NULL;
    return pc_rpc_channel_open(r->rpc, r->socket, &r->channel, err);
}

/* Nobody is there to register with. The watch is quicker than the timer, which is for file systems that do not tell. */
static void wait_for_socket(struct pc_registration *r)
{
    if (!r->said)
        pc_log_info("kubelet", "waiting for %s", r->socket);
    r->said = true;
    wait_for_next(r);
}

static void try_now(struct pc_registration *r)
{
    const char *endpoint = NULL;
    struct pc_error err = {.text = ""};
    r->tried = identify(r);
    enum pc_status status = r->ops->serve(r->arg, &endpoint, &err);
    if (status == PC_ERR_NOT_FOUND || (status == PC_OK && r->tried.inode == 0)) {
        wait_for_socket(r);
        return;
    }
    if (status == PC_OK)
        status = open_channel(r, &err);
    if (status == PC_OK)
        ask(r, endpoint);
    else
        fail(r, err.text);
}

static void on_timer(struct pc_loop *loop, void *arg)
{
    (void)loop;
    struct pc_registration *r = arg;
    switch (r->state) {
    case WAITING:
        try_now(r);
        break;
    case AWAITING:
        fail(r, "the kubelet agreed, but has not opened its stream for 10 s");
        break;
    case REGISTERED:
        pc_rpc_channel_close(r->channel);
        r->channel = NULL;
        break;
    case ASKING:
        break; /* has a deadline of its own */
    }
}

/* ---- what happens around it ---- */

void pc_registration_begin(struct pc_registration *r)
{
    wait_for_next(r);
}

void pc_registration_look(struct pc_registration *r)
{
    struct identity now = identify(r);
    if (same(&now, &r->tried))
        return;
    if (now.inode == 0) {
        r->tried = now; /* what comes next is new, whatever its number; until then nothing is to be done */
        return;
    }
    r->delay_ms = 0;
    r->first_ms = NEW_SOCKET_FIRST_MS;
    r->brief = false;
    leave(r);
}

void pc_registration_stream_began(struct pc_registration *r, const void *stream)
{
    if (r->stream != NULL || (r->state != ASKING && r->state != AWAITING))
        return;
    r->stream = stream;
    if (r->state == AWAITING)
        succeed(r);
}

void pc_registration_stream_ended(struct pc_registration *r, const void *stream)
{
    if (r->stream != stream)
        return;
    r->stream = NULL;
    if (r->state == ASKING) {
        fail(r, "the kubelet ended its stream at once");
        return;
    }
    r->brief = pc_loop_now_ns() - r->since_ns < STEADY_NS;
    if (!r->brief)
        r->delay_ms = 0;
    pc_log_debug("kubelet", "the kubelet's stream of %s ended; registering again", r->resource);
    leave(r);
}

void pc_registration_read(const struct pc_registration *r, struct pc_registration_stats *out)
{
    *out = (struct pc_registration_stats){
        .registrations = r->registrations, .failures = r->failures, .registered = r->state == REGISTERED};
}

/* ---- life ---- */

enum pc_status pc_registration_create(struct pc_loop *loop, struct pc_rpc *rpc, const char *directory,
                                      const char *resource, const struct pc_registration_ops *ops, void *arg,
                                      struct pc_registration **out, struct pc_error *err)
{
    static const char name[] = "/kubelet.sock";
    size_t size = strlen(directory) + sizeof name;
    enum pc_status status = PC_OK;
    struct pc_registration *r = calloc(1, sizeof *r + size);
    if (r != NULL)
        r->resource = strdup(resource);
    if (r == NULL || r->resource == NULL)
        status = pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no host memory to register with the kubelet");
    if (status == PC_OK)
        status = pc_timer_create(loop, on_timer, r, &r->timer, err);
    if (status != PC_OK) {
        pc_registration_free(r);
        return status;
    }
    snprintf(r->socket, size, "%s%s", directory, name);
    r->rpc = rpc;
    r->ops = ops;
    r->arg = arg;
    r->first_ms = BACK_OFF_FIRST_MS;
    *out = r;
    return PC_OK;
}

void pc_registration_free(struct pc_registration *r)
{
    if (r == NULL)
        return;
    r->state = WAITING; /* so that the answer of a call under way is not heard */
    pc_rpc_channel_close(r->channel);
    pc_timer_free(r->timer);
    free(r->resource);
    free(r);
}
