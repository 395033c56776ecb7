/*
 * Streams, events, capture and graphs. Work is done when it is queued, so everything is always complete. Of a capture
 * only memsets are kept, and the per-thread default stream cannot be captured here.
 */
#include "tests/sim/sim_cuda.h"

#include <stdlib.h>

enum { NODES = 32 };

struct nodes { /* the memsets of a capture */
    size_t count;
    struct {
        uint64_t addr, size;
        uint32_t value;
    } set[NODES];
};

struct pc_cu_stream_st {
    struct pc_cu_stream_st *next;
    unsigned long long id;
    unsigned int flags;
    struct pc_cu_stream_st *origin; /* of the capture it takes part in; itself where it was begun; NULL: none */
    bool spoilt;                    /* origin only */
    unsigned int mode;              /* origin only */
    const void *thread;             /* origin only: who began it */
    struct nodes nodes;             /* origin only */
};

struct pc_cu_event_st {
    struct pc_cu_event_st *next;
    struct pc_cu_stream_st *origin; /* recorded into this capture */
};

struct pc_cu_graph_st {
    struct nodes nodes;
};

struct pc_cu_graphexec_st {
    struct nodes nodes;
};

enum { CAPTURED_EVENT = 907, CAPTURE_IMPLICIT = 906, CAPTURE_WRONG_THREAD = 908 };

static struct pc_cu_stream_st *streams;
static struct pc_cu_event_st *events;
static __thread unsigned long long per_thread_id;
static __thread pc_cu_capture_mode thread_mode; /* PC_CU_CAPTURE_GLOBAL is 0 */

/* --- what may be done --- */

static bool is_legacy(pc_cu_stream stream)
{
    return stream == NULL || (uintptr_t)stream == PC_CU_STREAM_LEGACY_VALUE;
}

static bool is_default(pc_cu_stream stream)
{
    return is_legacy(stream) || (uintptr_t)stream == PC_CU_STREAM_PER_THREAD_VALUE;
}

static bool is_stream(pc_cu_stream stream)
{
    struct pc_cu_stream_st *s = streams;
    while (s != NULL && s != stream)
        s = s->next;
    return s != NULL;
}

static bool is_event(pc_cu_event event)
{
    struct pc_cu_event_st *e = events;
    while (e != NULL && e != event)
        e = e->next;
    return e != NULL;
}

pc_cu_result capture_check(void)
{
    pc_cu_result code = PC_CU_SUCCESS;
    for (struct pc_cu_stream_st *s = streams; s != NULL && thread_mode != PC_CU_CAPTURE_RELAXED; s = s->next) {
        if (s->origin != s || s->mode == PC_CU_CAPTURE_RELAXED)
            continue;
        bool others = s->mode == PC_CU_CAPTURE_GLOBAL && thread_mode == PC_CU_CAPTURE_GLOBAL;
        if (!others && s->thread != &per_thread_id)
            continue;
        s->spoilt = true;
        code = PC_CU_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return code;
}

/* The NULL stream waits for blocking streams, which a captured one cannot be waited for. */
static pc_cu_result legacy_check(void)
{
    for (struct pc_cu_stream_st *s = streams; s != NULL; s = s->next) {
        if (s->origin == NULL || (s->flags & PC_CU_STREAM_NON_BLOCKING) != 0)
            continue;
        s->origin->spoilt = true;
        return CAPTURE_IMPLICIT;
    }
    return PC_CU_SUCCESS;
}

pc_cu_result stream_check(pc_cu_stream stream)
{
    if (is_default(stream) && sim_current() == NULL)
        return PC_CU_ERROR_INVALID_CONTEXT;
    if (is_default(stream))
        return is_legacy(stream) ? legacy_check() : PC_CU_SUCCESS;
    if (!is_stream(stream))
        return PC_CU_ERROR_INVALID_HANDLE;
    return stream->origin != NULL && stream->origin->spoilt ? PC_CU_ERROR_STREAM_CAPTURE_INVALIDATED : PC_CU_SUCCESS;
}

pc_cu_result stream_set(pc_cu_stream stream, uint64_t addr, uint32_t value, uint64_t size)
{
    pc_cu_result code = stream_check(stream);
    if (code != PC_CU_SUCCESS)
        return code;
    if (is_default(stream) || stream->origin == NULL)
        return memory_set(addr, value, size);
    struct nodes *nodes = &stream->origin->nodes;
    if (nodes->count == NODES)
        return PC_CU_ERROR_NOT_SUPPORTED;
    nodes->set[nodes->count].addr = addr;
    nodes->set[nodes->count].size = size;
    nodes->set[nodes->count++].value = value;
    return PC_CU_SUCCESS;
}

/* A call that waits for, or asks about, work. A stream under capture has none that could be done. */
static pc_cu_result wait_check(pc_cu_stream stream)
{
    pc_cu_result code = stream_check(stream);
    if (code == PC_CU_SUCCESS && !is_default(stream) && stream->origin != NULL) {
        stream->origin->spoilt = true;
        code = PC_CU_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return code == PC_CU_SUCCESS ? capture_check() : code;
}

/* --- streams --- */

pc_cu_result cuStreamCreate(pc_cu_stream *stream, unsigned int flags)
{
    SIM_CALL(cuStreamCreate);
    if (stream == NULL || flags > PC_CU_STREAM_NON_BLOCKING)
        return PC_CU_ERROR_INVALID_VALUE;
    if (sim_current() == NULL)
        return PC_CU_ERROR_INVALID_CONTEXT;
    struct pc_cu_stream_st *made = calloc(1, sizeof *made);
    if (made == NULL)
        return PC_CU_ERROR_OUT_OF_MEMORY;
    SIM_GUARD;
    made->id = ++sim.last_id;
    made->flags = flags;
    made->next = streams;
    streams = made;
    *stream = made;
    return PC_CU_SUCCESS;
}

pc_cu_result cuStreamDestroy_v2(pc_cu_stream stream)
{
    SIM_CALL(cuStreamDestroy);
    SIM_GUARD;
    if (is_default(stream) || !is_stream(stream))
        return PC_CU_ERROR_INVALID_HANDLE;
    struct pc_cu_stream_st **link = &streams;
    while (*link != stream)
        link = &(*link)->next;
    *link = stream->next;
    for (struct pc_cu_stream_st *s = streams; s != NULL; s = s->next)
        s->origin = s->origin == stream ? NULL : s->origin;
    for (struct pc_cu_event_st *e = events; e != NULL; e = e->next)
        e->origin = e->origin == stream ? NULL : e->origin;
    free(stream);
    return PC_CU_SUCCESS;
}

pc_cu_result cuStreamSynchronize(pc_cu_stream stream)
{
    SIM_CALL(cuStreamSynchronize);
    SIM_GUARD;
    pc_cu_result code = wait_check(stream);
    if (code == PC_CU_SUCCESS)
        pools_synchronise();
    return code;
}

pc_cu_result cuStreamQuery(pc_cu_stream stream)
{
    SIM_CALL(cuStreamQuery);
    SIM_GUARD;
    return wait_check(stream);
}

pc_cu_result cuStreamGetId(pc_cu_stream stream, unsigned long long *id)
{
    SIM_CALL(cuStreamGetId);
    if (id == NULL)
        return PC_CU_ERROR_INVALID_VALUE;
    SIM_GUARD;
    if (is_default(stream) && sim_current() == NULL)
        return PC_CU_ERROR_INVALID_CONTEXT;
    if (!is_default(stream) && !is_stream(stream))
        return PC_CU_ERROR_INVALID_HANDLE;
    if (!is_default(stream))
        *id = stream->id;
    else if (is_legacy(stream))
        *id = sim_current()->legacy_id;
    else
        *id = per_thread_id != 0 ? per_thread_id : (per_thread_id = ++sim.last_id);
    return PC_CU_SUCCESS;
}

pc_cu_result cuStreamIsCapturing(pc_cu_stream stream, pc_cu_capture_status *status)
{
    SIM_CALL(cuStreamIsCapturing);
    if (status == NULL)
        return PC_CU_ERROR_INVALID_VALUE;
    SIM_GUARD;
    pc_cu_result code = stream_check(stream);
    if (code != PC_CU_SUCCESS && code != PC_CU_ERROR_STREAM_CAPTURE_INVALIDATED)
        return code;
    *status = PC_CU_CAPTURE_STATUS_NONE;
    if (!is_default(stream) && stream->origin != NULL)
        *status = stream->origin->spoilt ? PC_CU_CAPTURE_STATUS_INVALIDATED : PC_CU_CAPTURE_STATUS_ACTIVE;
    return PC_CU_SUCCESS;
}

pc_cu_result cuThreadExchangeStreamCaptureMode(pc_cu_capture_mode *mode)
{
    SIM_CALL(cuThreadExchangeStreamCaptureMode);
    if (mode == NULL || *mode > PC_CU_CAPTURE_RELAXED)
        return PC_CU_ERROR_INVALID_VALUE;
    pc_cu_capture_mode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return PC_CU_SUCCESS;
}

pc_cu_result cuCtxSynchronize(void)
{
    SIM_CALL(cuCtxSynchronize);
    SIM_GUARD;
    if (sim_current() == NULL)
        return PC_CU_ERROR_INVALID_CONTEXT;
    pc_cu_result code = capture_check();
    if (code == PC_CU_SUCCESS)
        pools_synchronise();
    return code;
}

/* --- events --- */

pc_cu_result cuEventCreate(pc_cu_event *event, unsigned int flags)
{
    SIM_CALL(cuEventCreate);
    if (event == NULL || flags > 7)
        return PC_CU_ERROR_INVALID_VALUE;
    if (sim_current() == NULL)
        return PC_CU_ERROR_INVALID_CONTEXT;
    struct pc_cu_event_st *made = calloc(1, sizeof *made);
    if (made == NULL)
        return PC_CU_ERROR_OUT_OF_MEMORY;
    SIM_GUARD;
    made->next = events;
    events = made;
    *event = made;
    return PC_CU_SUCCESS;
}

pc_cu_result cuEventDestroy_v2(pc_cu_event event)
{
    SIM_CALL(cuEventDestroy);
    SIM_GUARD;
    struct pc_cu_event_st **link = &events;
    while (*link != NULL && *link != event)
        link = &(*link)->next;
    if (*link == NULL)
        return PC_CU_ERROR_INVALID_HANDLE;
    *link = event->next;
    free(event);
    return PC_CU_SUCCESS;
}

pc_cu_result cuEventRecord(pc_cu_event event, pc_cu_stream stream)
{
    SIM_CALL(cuEventRecord);
    SIM_GUARD;
    if (!is_event(event))
        return PC_CU_ERROR_INVALID_HANDLE;
    pc_cu_result code = stream_check(stream);
    if (code == PC_CU_SUCCESS)
        event->origin = is_default(stream) ? NULL : stream->origin;
    return code;
}

pc_cu_result cuCtxRecordEvent(pc_cu_context ctx, pc_cu_event event)
{
    SIM_CALL(cuCtxRecordEvent);
    SIM_GUARD;
    if (ctx == NULL && sim_current() == NULL)
        return PC_CU_ERROR_INVALID_CONTEXT;
    if (!is_event(event))
        return PC_CU_ERROR_INVALID_HANDLE;
    pc_cu_result code = capture_check();
    if (code == PC_CU_SUCCESS)
        event->origin = NULL;
    return code;
}

static pc_cu_result event_check(pc_cu_event event)
{
    if (!is_event(event))
        return PC_CU_ERROR_INVALID_HANDLE;
    if (event->origin == NULL)
        return capture_check();
    event->origin->spoilt = true;
    return CAPTURED_EVENT;
}

pc_cu_result cuEventQuery(pc_cu_event event)
{
    SIM_CALL(cuEventQuery);
    SIM_GUARD;
    return event_check(event);
}

pc_cu_result cuEventSynchronize(pc_cu_event event)
{
    SIM_CALL(cuEventSynchronize);
    SIM_GUARD;
    pc_cu_result code = event_check(event);
    if (code == PC_CU_SUCCESS)
        pools_synchronise();
    return code;
}

/* A stream that waits for an event of a capture joins the capture. */
pc_cu_result cuStreamWaitEvent(pc_cu_stream stream, pc_cu_event event, unsigned int flags)
{
    SIM_CALL(cuStreamWaitEvent);
    (void)flags;
    SIM_GUARD;
    if (!is_event(event))
        return PC_CU_ERROR_INVALID_HANDLE;
    pc_cu_result code = stream_check(stream);
    if (code != PC_CU_SUCCESS || event->origin == NULL)
        return code;
    if (is_default(stream))
        return CAPTURE_IMPLICIT;
    if (stream->origin == NULL)
        stream->origin = event->origin;
    return PC_CU_SUCCESS;
}

/* --- capture --- */

pc_cu_result cuStreamBeginCapture_v2(pc_cu_stream stream, pc_cu_capture_mode mode)
{
    SIM_CALL(cuStreamBeginCapture);
    if (mode > PC_CU_CAPTURE_RELAXED)
        return PC_CU_ERROR_INVALID_VALUE;
    SIM_GUARD;
    if (is_default(stream))
        return PC_CU_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!is_stream(stream))
        return PC_CU_ERROR_INVALID_HANDLE;
    if (stream->origin != NULL)
        return PC_CU_ERROR_INVALID_VALUE;
    stream->origin = stream;
    stream->spoilt = false;
    stream->mode = mode;
    stream->thread = &per_thread_id;
    stream->nodes.count = 0;
    return PC_CU_SUCCESS;
}

static void end_capture(struct pc_cu_stream_st *origin)
{
    for (struct pc_cu_stream_st *s = streams; s != NULL; s = s->next)
        s->origin = s->origin == origin ? NULL : s->origin;
    for (struct pc_cu_event_st *e = events; e != NULL; e = e->next)
        e->origin = e->origin == origin ? NULL : e->origin;
}

pc_cu_result cuStreamEndCapture(pc_cu_stream stream, pc_cu_graph *graph)
{
    SIM_CALL(cuStreamEndCapture);
    if (graph == NULL)
        return PC_CU_ERROR_INVALID_VALUE;
    SIM_GUARD;
    if (is_default(stream) || !is_stream(stream))
        return PC_CU_ERROR_INVALID_HANDLE;
    if (stream->origin != stream)
        return PC_CU_ERROR_INVALID_VALUE;
    if (stream->mode != PC_CU_CAPTURE_RELAXED && stream->thread != &per_thread_id)
        return CAPTURE_WRONG_THREAD;
    bool spoilt = stream->spoilt;
    end_capture(stream);
    *graph = spoilt ? NULL : calloc(1, sizeof **graph);
    if (spoilt)
        return PC_CU_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (*graph == NULL)
        return PC_CU_ERROR_OUT_OF_MEMORY;
    (*graph)->nodes = stream->nodes;
    return PC_CU_SUCCESS;
}

pc_cu_result cuGraphInstantiateWithFlags(pc_cu_graphexec *exec, pc_cu_graph graph, unsigned long long flags)
{
    SIM_CALL(cuGraphInstantiate);
    (void)flags;
    if (exec == NULL || graph == NULL)
        return PC_CU_ERROR_INVALID_VALUE;
    *exec = calloc(1, sizeof **exec);
    if (*exec == NULL)
        return PC_CU_ERROR_OUT_OF_MEMORY;
    (*exec)->nodes = graph->nodes;
    return PC_CU_SUCCESS;
}

pc_cu_result cuGraphLaunch(pc_cu_graphexec exec, pc_cu_stream stream)
{
    SIM_CALL(cuGraphLaunch);
    SIM_GUARD;
    if (exec == NULL)
        return PC_CU_ERROR_INVALID_VALUE;
    pc_cu_result code = stream_check(stream);
    for (size_t i = 0; code == PC_CU_SUCCESS && i < exec->nodes.count; i++)
        code = memory_set(exec->nodes.set[i].addr, exec->nodes.set[i].value, exec->nodes.set[i].size);
    return code;
}

pc_cu_result cuGraphExecDestroy(pc_cu_graphexec exec)
{
    SIM_CALL(cuGraphExecDestroy);
    free(exec);
    return exec != NULL ? PC_CU_SUCCESS : PC_CU_ERROR_INVALID_VALUE;
}

pc_cu_result cuGraphDestroy(pc_cu_graph graph)
{
    SIM_CALL(cuGraphDestroy);
    free(graph);
    return graph != NULL ? PC_CU_SUCCESS : PC_CU_ERROR_INVALID_VALUE;
}

/* --- kernels: none --- */

pc_cu_result cuModuleLoadData(pc_cu_module *module, const void *image)
{
    SIM_CALL(cuModuleLoadData);
    (void)module;
    (void)image;
    return PC_CU_ERROR_NOT_SUPPORTED;
}

pc_cu_result cuModuleGetFunction(pc_cu_function *function, pc_cu_module module, const char *name)
{
    SIM_CALL(cuModuleGetFunction);
    (void)function;
    (void)module;
    (void)name;
    return PC_CU_ERROR_INVALID_HANDLE;
}

pc_cu_result cuLaunchKernel(pc_cu_function f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
                            unsigned int by, unsigned int bz, unsigned int shared, pc_cu_stream stream, void **params,
                            void **extra)
{
    SIM_CALL(cuLaunchKernel);
    (void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared;
    (void)stream, (void)params, (void)extra;
    return PC_CU_ERROR_INVALID_HANDLE;
}
