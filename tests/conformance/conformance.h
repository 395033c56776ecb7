/*
 * What poolcap relies on, as checks that run on the simulator and on a real GPU.
 *
 * A check runs in a process of its own, which never touches CUDA: it tells actors what to do. An actor is a forked
 * process with a context; a function of ops.c runs in it and answers. So a check reads as a script of several
 * processes, and any of them may be killed or hang.
 */
#ifndef CONFORMANCE_H
#define CONFORMANCE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "alloc/base/bytes.h"
#include "alloc/base/cleanup.h"
#include "alloc/driver/driver.h"

/* --- checks --- */

enum {
    ALONE = 1, /* looks at bytes of the whole card: nothing may run beside it */
    NOTE = 2,  /* measures and prints; never fails; only with --notes */
};

struct check {
    const char *name;
    void (*run)(void);
    int flags;
};

/* Each file of checks gives one table, ended by a NULL name. */
extern const struct check cap_checks[], share_checks[], pin_checks[], large_checks[], process_checks[], misc_checks[];
extern const struct check sim_checks[], note_checks[];

/* End the check. */
void fail(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
void skip(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
/* A line of information that goes out with the result. */
void note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* EXPECT(condition) or EXPECT(condition, format, ...): fails the check with the condition's text. */
void unexpected(const char *file, int line, const char *condition, const char *fmt, ...)
    __attribute__((format(printf, 4, 5), noreturn));
#define EXPECT(condition, ...)                                           \
    do {                                                                 \
        if (!(condition))                                                \
            unexpected(__FILE__, __LINE__, #condition, " " __VA_ARGS__); \
    } while (0)

/* --- actors --- */

struct actor {
    pid_t pid;
    int sock;
    int gpu;
};

struct question {
    uint64_t arg[6];
    struct pc_cu_ptr_export data;
    int fd; /* or -1; the actor's, closed after the answer */
};

struct answer {
    pc_cu_result code;
    uint64_t value[4];
    struct pc_cu_ptr_export data;
    int fd; /* or -1; the asker's */
    bool died;
    int status; /* of waitpid, when it died */
};

typedef void op(const struct question *q, struct answer *a);

/* Forks an actor; it makes its context at the first op that needs one. */
struct actor actor_start(int gpu);
/* Any answer, also a code or a death. timeout in seconds; a hang is answered as died with status -1, and killed. */
struct answer actor_ask(struct actor *actor, op *fn, const struct question *q, int timeout);
void actor_tell(struct actor *actor, op *fn, uint64_t arg); /* asks and does not wait: the actor is then only killed */
void actor_kill(struct actor *actor);                       /* SIGKILL, and waits for its end */
void actor_end(struct actor *actor);                        /* lets it leave of its own accord */

/* What fn answers, whatever it is. Numbers follow; `data` and `fd` by ask_with. */
#define ASK(actor, fn, ...) actor_ask(actor, fn, &(struct question){.arg = {__VA_ARGS__}, .fd = -1}, 60)
/* The same, but the check fails unless the driver said CUDA_SUCCESS. */
#define NEED(actor, fn, ...) must(ASK(actor, fn, __VA_ARGS__), #fn, __FILE__, __LINE__)
#define NEED_FD(actor, fn, passed, ...) \
    must(actor_ask(actor, fn, &(struct question){.arg = {__VA_ARGS__}, .fd = passed}, 60), #fn, __FILE__, __LINE__)
#define NEED_DATA(actor, fn, passed, ...)                                                                             \
    must(actor_ask(actor, fn, &(struct question){.arg = {__VA_ARGS__}, .data = passed, .fd = -1}, 60), #fn, __FILE__, \
         __LINE__)
#define ASK_DATA(actor, fn, passed, ...) \
    actor_ask(actor, fn, &(struct question){.arg = {__VA_ARGS__}, .data = passed, .fd = -1}, 60)
/* Refused, in whatever way: a code, or a process that did not live through it. */
static inline bool refused(struct answer a)
{
    return a.died || a.code != PC_CU_SUCCESS;
}
struct answer must(struct answer a, const char *what, const char *file, int line);

/* --- ops: what an actor can do. arguments -> values --- */

op begin;           /* makes the context -> pid */
op pool_create;     /* max size, exported, release threshold -> pool */
op pool_destroy;    /* pool */
op pool_alloc;      /* pool, bytes -> address */
op mem_free;        /* address (cuMemFree) */
op mem_free_async;  /* address (cuMemFreeAsync, then synchronised) */
op pool_get;        /* pool, attribute -> value */
op pool_set;        /* pool, attribute, value */
op pool_trim;       /* pool, bytes */
op pool_export;     /* pool -> fd, no other left open */
op pool_import;     /* fd -> pool, without access */
op pool_access;     /* pool: read and write for the actor's own GPU, or that of the second argument - 1 */
op export_pointer;  /* address -> data */
op import_pointer;  /* pool, data -> address */
op write_number;    /* address, number */
op read_number;     /* address -> number */
op fill;            /* address, bytes, byte */
op count_bytes;     /* address, bytes, byte -> how many bytes are that */
op direct_alloc;    /* bytes -> address */
op async_alloc;     /* bytes -> address */
op mem_info;        /* -> free, total */
op large_create;    /* bytes -> handle */
op large_export;    /* handle -> fd */
op large_import;    /* fd -> handle */
op large_release;   /* handle */
op address_reserve; /* bytes -> address */
op address_free;    /* address, bytes */
op large_map;       /* address, bytes, handle: with access */
op large_unmap;     /* address, bytes */
op pointer_get;     /* address, attribute -> value */
op address_range;   /* address -> base, size */
op fork_sleeper;    /* -> pid of a forked child that only sleeps */
op capture_begin;   /* mode: on the actor's stream */
op capture_status;  /* -> status */
op capture_end;     /* -> graph */
op start_writer;    /* address, bytes: a kernel that writes 0xa5 for ever. NOT_SUPPORTED where there are no kernels */
op touch_kernel;    /* address: one kernel that stores 77 there, and waits for it */

/* NVML, asked by an actor that makes no context. */
op card_memory;  /* -> total, reserved, used, free */
op process_used; /* pid -> there, bytes, sum of all processes */
op uuid_nvml;    /* data: the text */
op uuid_cuda;    /* data: the text */

/* --- scenes: what many checks begin with --- */

#define SLACK (64 * PC_MIB)
#define KEEP_ALL UINT64_MAX

struct scene {
    struct actor daemon, tenant, watcher;
    uint64_t pool;     /* the daemon's */
    uint64_t imported; /* the tenant's */
};

/* A daemon with an exported pool of max bytes that keeps all, a tenant that imported it, and an NVML watcher. */
struct scene scene_open(uint64_t max);
/* Takes bytes in the daemon and exports them. */
struct answer scene_export(struct scene *s, uint64_t bytes);
uint64_t import_into(struct actor *tenant, uint64_t pool, struct pc_cu_ptr_export data);
uint64_t import_pool_into(struct actor *daemon, uint64_t pool, struct actor *tenant);

uint64_t card_used(struct actor *watcher);
/* The card's figures lag by tens of ms: waits until used is within SLACK of expected, for 2 s. */
void expect_card(struct actor *watcher, uint64_t expected, const char *when);
/* Skips the check where the card has less than bytes free. */
void need_free(struct actor *watcher, uint64_t bytes);
uint64_t reserved_bytes(struct actor *daemon, uint64_t pool);
uint64_t used_bytes(struct actor *daemon, uint64_t pool);

void pause_ms(int ms);
double now_us(void);

extern struct pc_cuda cu;
extern struct pc_nvml nvml;
/* In an actor: its context, made on demand. */
pc_cu_result cuda_ready(void);
extern int actor_gpu;
extern pc_cu_stream actor_stream;

#endif
