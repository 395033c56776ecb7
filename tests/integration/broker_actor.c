#include "tests/integration/broker_actor.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/base/cleanup.h"
#include "alloc/pool/device.h"
#include "alloc/pool/import.h"
#include "alloc/pool/large.h"
#include "proto/page.h"
#include "proto/wire.h"

enum { BLOCKS = 1024, POOLS = 64 };

struct held {
    uint64_t id, bytes, generation;
    pc_cu_deviceptr ptr;
    int gpu;
};

struct pool {
    uint64_t id;
    int gpu, fd; /* fd: not imported yet */
    pc_cu_mempool handle;
};

static struct {
    struct pc_cuda cu;
    struct pc_devices *devices;
    struct pc_device *device[PC_PAGE_GPUS_MAX]; /* these three by the index in the grant, which is not the driver's */
    char uuid[PC_PAGE_GPUS_MAX][PC_UUID_TEXT];
    int ordinal[PC_PAGE_GPUS_MAX];
    pc_cu_stream stream;
    int fd, page_fd;
    const struct pc_page *page;
    uint32_t sequence;
    struct held held[BLOCKS];
    struct pool pools[POOLS];
    pc_cu_deviceptr direct;
    struct pc_arena arena;
    int fds[PC_WIRE_FDS_MAX];
    unsigned nfds;
} me = {.fd = -1, .page_fd = -1};

static void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    putchar('\n');
    fflush(stdout);
}

static void say_error(const struct pc_error *err)
{
    say("err %d %s", (int)err->status, err->text);
}

/* ---- driver ---- */

/* The driver's number of a GPU that the grant has; without a grant the number is the driver's already. */
static enum pc_status find_ordinal(int gpu, struct pc_error *err)
{
    struct pc_device_info info;
    me.ordinal[gpu] = gpu;
    if (me.uuid[gpu][0] == '\0')
        return PC_OK;
    for (int i = 0; i < pc_devices_count(me.devices); i++) {
        if (pc_devices_info(me.devices, i, &info, NULL) != PC_OK || strcmp(info.uuid, me.uuid[gpu]) != 0)
            continue;
        me.ordinal[gpu] = i;
        return PC_OK;
    }
    return pc_error_set(err, PC_ERR_DEVICE, 0, "the driver has no GPU %s", me.uuid[gpu]);
}

static enum pc_status make_context(int gpu, struct pc_error *err)
{
    enum pc_status status = PC_OK;
    if (me.devices == NULL) {
        status = pc_cuda_load(NULL, &me.cu, err);
        if (status == PC_OK)
            status = pc_devices_create(&me.cu, &me.devices, err);
    }
    if (status == PC_OK)
        status = find_ordinal(gpu, err);
    if (status == PC_OK)
        status = pc_devices_get(me.devices, me.ordinal[gpu], &me.device[gpu], err);
    if (status == PC_OK)
        status = pc_device_bind(me.device[gpu], err);
    if (status == PC_OK && me.stream == NULL)
        me.cu.cuStreamCreate(&me.stream, PC_CU_STREAM_NON_BLOCKING);
    return status;
}

static struct held *find(uint64_t id)
{
    for (int i = 0; i < BLOCKS; i++)
        if (me.held[i].id == id)
            return &me.held[i];
    return NULL;
}

static struct pool *find_pool(uint64_t id)
{
    for (int i = 0; i < POOLS; i++)
        if (me.pools[i].id == id)
            return &me.pools[i];
    return NULL;
}

/* ---- the protocol ---- */

static enum pc_status receive(Poolcap__Reply **out, struct pc_error *err)
{
    ProtobufCMessage *message = NULL;
    enum pc_status status =
        pc_wire_receive(me.fd, &poolcap__reply__descriptor, &me.arena, &message, me.fds, &me.nfds, err);
    if (status == PC_OK && message == NULL)
        status = pc_error_set(err, PC_ERR_UNREACHABLE, 0, "the session is closed");
    if (status != PC_OK)
        return status;
    *out = (Poolcap__Reply *)message;
    if ((*out)->status != PC_OK)
        return pc_error_set(err, (enum pc_status)(*out)->status, (*out)->code, "%s%s",
                            (*out)->sequence == 0 ? "ended: " : "", (*out)->text);
    return PC_OK;
}

static enum pc_status ask(Poolcap__Request *request, Poolcap__Reply **out, struct pc_error *err)
{
    request->sequence = ++me.sequence;
    me.nfds = 0;
    enum pc_status status = pc_wire_send(me.fd, &request->base, NULL, 0, err);
    return status == PC_OK ? receive(out, err) : status;
}

static void do_connect(const char *path)
{
    struct pc_error err;
    Poolcap__Reply *reply;
    Poolcap__Hello hello = POOLCAP__HELLO__INIT;
    Poolcap__Request request = POOLCAP__REQUEST__INIT;
    hello.version_min = 1;
    hello.version_max = 1;
    hello.client = (char *)(uintptr_t) "actor";
    request.body_case = POOLCAP__REQUEST__BODY_HELLO;
    request.hello = &hello;
    if (me.fd >= 0)
        close(me.fd);
    me.fd = -1;
    if (pc_wire_connect(path, &me.fd, &err) != PC_OK || ask(&request, &reply, &err) != PC_OK) {
        say_error(&err);
        return;
    }
    if (me.page_fd >= 0)
        close(me.page_fd);
    me.page_fd = me.fds[0];
    me.page = mmap(NULL, PC_PAGE_BYTES, PROT_READ, MAP_SHARED, me.page_fd, 0);
    for (size_t i = 0; i < reply->hello->n_gpus && i < PC_PAGE_GPUS_MAX; i++)
        snprintf(me.uuid[i], sizeof me.uuid[i], "%s", reply->hello->gpus[i]->uuid);
    say("ok %llu %zu", (unsigned long long)reply->hello->epoch, reply->hello->n_gpus);
}

static void do_attach(int gpu, bool context)
{
    struct pc_error err;
    Poolcap__Reply *reply;
    Poolcap__Attach attach = POOLCAP__ATTACH__INIT;
    Poolcap__Request request = POOLCAP__REQUEST__INIT;
    attach.gpu = (uint32_t)gpu;
    request.body_case = POOLCAP__REQUEST__BODY_ATTACH;
    request.attach = &attach;
    if (ask(&request, &reply, &err) != PC_OK) {
        say_error(&err);
        return;
    }
    uint64_t bytes = reply->attach->context_bytes;
    if (context && make_context(gpu, &err) != PC_OK)
        say_error(&err);
    else
        say("ok %llu", (unsigned long long)bytes);
}

/* The driver is asked only when a block of it is mapped: `take` makes no driver call. */
static void keep_pool(const Poolcap__AllocateReply *got, int gpu)
{
    struct pool *pool = find_pool(0);
    if (!got->new_generation)
        return;
    *pool = (struct pool){.id = got->generation, .gpu = gpu, .fd = me.fds[0]};
}

static enum pc_status import_pool(struct pool *pool, struct pc_error *err)
{
    if (pool->handle != NULL)
        return PC_OK;
    enum pc_status status = pc_import_pool(&me.cu, me.ordinal[pool->gpu], pool->fd, &pool->handle, err);
    close(pool->fd);
    return status;
}

static enum pc_status map_block(const Poolcap__AllocateReply *got, struct held *held, struct pc_error *err)
{
    struct pc_cu_ptr_export data;
    if (got->generation == 0) {
        enum pc_status status = pc_large_map(&me.cu, me.ordinal[held->gpu], me.fds[0], got->bytes, &held->ptr, err);
        close(me.fds[0]);
        return status;
    }
    struct pool *pool = find_pool(got->generation);
    enum pc_status status = import_pool(pool, err);
    memcpy(data.bytes, got->export_data.data, sizeof data.bytes);
    return status == PC_OK ? pc_import_block(&me.cu, pool->handle, &data, &held->ptr, err) : status;
}

static void do_alloc(int gpu, uint64_t bytes, bool large, bool import)
{
    struct pc_error err;
    Poolcap__Reply *reply;
    Poolcap__Allocate allocate = POOLCAP__ALLOCATE__INIT;
    Poolcap__Request request = POOLCAP__REQUEST__INIT;
    allocate.gpu = (uint32_t)gpu;
    allocate.bytes = bytes;
    allocate.large = large;
    request.body_case = POOLCAP__REQUEST__BODY_ALLOCATE;
    request.allocate = &allocate;
    enum pc_status status = ask(&request, &reply, &err);
    const Poolcap__AllocateReply *got = status == PC_OK ? reply->allocate : NULL;
    struct held *held = find(0);
    if (status == PC_OK && import && me.device[gpu] != NULL)
        status = pc_device_bind(me.device[gpu], &err);
    if (status == PC_OK) {
        *held = (struct held){.id = got->block, .bytes = got->bytes, .generation = got->generation, .gpu = gpu};
        keep_pool(got, gpu);
    }
    if (status == PC_OK && import)
        status = map_block(got, held, &err);
    if (status != PC_OK)
        say_error(&err);
    else
        say("ok %llu %llu %llu %d", (unsigned long long)got->block, (unsigned long long)got->bytes,
            (unsigned long long)got->generation, got->new_generation);
}

static enum pc_status tell_free(uint64_t block, uint64_t dropped, struct pc_error *err)
{
    Poolcap__Reply *reply;
    Poolcap__Free body = POOLCAP__FREE__INIT;
    Poolcap__Request request = POOLCAP__REQUEST__INIT;
    body.n_blocks = block != 0;
    body.blocks = &block;
    body.n_dropped = dropped != 0;
    body.dropped = &dropped;
    request.body_case = POOLCAP__REQUEST__BODY_FREE;
    request.free = &body;
    return ask(&request, &reply, err);
}

static void do_free(uint64_t id, bool honest)
{
    struct pc_error err;
    struct held *held = find(id);
    enum pc_status status = PC_OK;
    if (honest && held != NULL && held->ptr != 0) {
        pc_device_bind(me.device[held->gpu], NULL);
        status = held->generation == 0 ? pc_large_unmap(&me.cu, held->ptr, held->bytes, &err)
                                       : pc_import_block_free(&me.cu, held->ptr, me.stream, &err);
    }
    if (status == PC_OK)
        status = tell_free(id, 0, &err);
    if (status == PC_OK && held != NULL && honest)
        held->id = 0;
    if (status == PC_OK)
        say("ok");
    else
        say_error(&err);
}

static void do_drop(uint64_t id, bool honest)
{
    struct pc_error err;
    struct pool *pool = find_pool(id);
    enum pc_status status = PC_OK;
    if (honest && pool != NULL) {
        pc_device_bind(me.device[pool->gpu], NULL);
        if (pool->handle != NULL)
            status = pc_import_pool_drop(&me.cu, pool->handle, &err);
        else
            close(pool->fd);
        *pool = (struct pool){.id = 0};
    }
    if (status == PC_OK)
        status = tell_free(0, id, &err);
    if (status == PC_OK)
        say("ok");
    else
        say_error(&err);
}

static void do_direct_charge(int gpu, uint64_t bytes, bool reserve)
{
    struct pc_error err;
    Poolcap__Reply *reply;
    Poolcap__Reserve r = POOLCAP__RESERVE__INIT;
    Poolcap__Release l = POOLCAP__RELEASE__INIT;
    Poolcap__Request request = POOLCAP__REQUEST__INIT;
    r.gpu = l.gpu = (uint32_t)gpu;
    r.bytes = l.bytes = bytes;
    request.body_case = reserve ? POOLCAP__REQUEST__BODY_RESERVE : POOLCAP__REQUEST__BODY_RELEASE;
    if (reserve)
        request.reserve = &r;
    else
        request.release = &l;
    if (ask(&request, &reply, &err) == PC_OK)
        say("ok");
    else
        say_error(&err);
}

static Poolcap__Request info_request(void)
{
    static Poolcap__Info info = POOLCAP__INFO__INIT;
    Poolcap__Request request = POOLCAP__REQUEST__INIT;
    request.body_case = POOLCAP__REQUEST__BODY_INFO;
    request.info = &info;
    return request;
}

static void do_info(int gpu)
{
    struct pc_error err;
    Poolcap__Reply *reply;
    Poolcap__Request request = info_request();
    if (ask(&request, &reply, &err) != PC_OK) {
        say_error(&err);
        return;
    }
    const Poolcap__GpuInfo *g = reply->info->gpus[gpu];
    say("ok %llu %llu %llu %llu %llu %llu %llu %llu %llu %llu %u", (unsigned long long)g->cap,
        (unsigned long long)g->charged, (unsigned long long)g->tenant_charged, (unsigned long long)g->pool_reserved,
        (unsigned long long)g->pool_used, (unsigned long long)g->large, (unsigned long long)g->direct,
        (unsigned long long)g->context, (unsigned long long)g->pending, (unsigned long long)g->inherited, g->sessions);
}

static void do_page(int gpu)
{
    struct pc_page_figures f = {0};
    pc_page_read(&me.page->gpu[gpu], &f);
    say("ok %llu %llu %llu %u %u", (unsigned long long)f.cap, (unsigned long long)f.charged, (unsigned long long)f.room,
        atomic_load(&me.page->gpu[gpu].wanted), atomic_load(&me.page->alive));
}

/* ---- what no honest client does ---- */

static void do_raw(size_t bytes)
{
    struct pc_error err;
    Poolcap__Reply *reply;
    pc_auto_free char *packet = malloc(bytes);
    int size = 1 << 20;
    setsockopt(me.fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    memset(packet, 0xff, bytes);
    if (send(me.fd, packet, bytes, MSG_NOSIGNAL) < 0)
        say("err %d %s", errno, strerror(errno));
    else if (receive(&reply, &err) != PC_OK)
        say_error(&err);
    else
        say("ok");
}

static void do_fds(void)
{
    struct pc_error err;
    Poolcap__Reply *reply;
    Poolcap__Request request = info_request();
    int fds[4] = {0, 1, 2, me.page_fd};
    request.sequence = ++me.sequence;
    if (pc_wire_send(me.fd, &request.base, fds, 4, &err) != PC_OK || receive(&reply, &err) != PC_OK)
        say_error(&err);
    else
        say("ok");
}

static void do_twice(void)
{
    struct pc_error err;
    Poolcap__Reply *reply;
    Poolcap__Request request = info_request();
    int answers = 0;
    for (int i = 0; i < 2; i++) {
        request.sequence = ++me.sequence;
        if (pc_wire_send(me.fd, &request.base, NULL, 0, &err) != PC_OK) {
            say_error(&err);
            return;
        }
    }
    while (answers < 2 && receive(&reply, &err) == PC_OK)
        answers++;
    say("ok %d", answers);
}

static void do_mapwrite(void)
{
    void *map = mmap(NULL, PC_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, me.page_fd, 0);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", me.page_fd);
    int again = open(path, O_RDWR | O_CLOEXEC); /* a tenant that is root may open it again; the seals still hold */
    void *second = again >= 0 ? mmap(NULL, PC_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0) : MAP_FAILED;
    bool shrunk = again >= 0 && ftruncate(again, 0) == 0;
    if (map == MAP_FAILED && second == MAP_FAILED && !shrunk)
        say("err 0 refused");
    else
        say("ok");
}

/* ---- device memory ---- */

static void do_write(uint64_t id, int byte)
{
    const struct held *held = find(id);
    pc_device_bind(me.device[held->gpu], NULL);
    pc_cu_result r = me.cu.cuMemsetD8(held->ptr, (unsigned char)byte, held->bytes);
    say(r == 0 ? "ok" : "err %u cuMemsetD8", r);
}

static void do_check(uint64_t id, int byte)
{
    static unsigned char buffer[1 << 20];
    const struct held *held = find(id);
    pc_device_bind(me.device[held->gpu], NULL);
    for (uint64_t at = 0; at < held->bytes; at += sizeof buffer) {
        if (me.cu.cuMemcpyDtoH(buffer, held->ptr + at, sizeof buffer) != 0) {
            say("err 0 cuMemcpyDtoH");
            return;
        }
        for (size_t i = 0; i < sizeof buffer; i++)
            if (buffer[i] != byte) {
                say("bad %llu %u", (unsigned long long)(at + i), buffer[i]);
                return;
            }
    }
    say("ok");
}

static void do_direct(uint64_t bytes)
{
    pc_cu_result r = bytes > 0 ? me.cu.cuMemAlloc(&me.direct, bytes) : me.cu.cuMemFree(me.direct);
    say(r == 0 ? "ok" : "err %u cuMemAlloc", r);
}

static void do_fork(void)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        sleep(60);
        _exit(0);
    }
    say("ok %d", (int)pid);
}

/* ---- commands ---- */

static void obey(const char *command, const char *text, uint64_t a, uint64_t b)
{
    struct pc_error err;
    int gpu = (int)a;
    if (strcmp(command, "connect") == 0)
        do_connect(text);
    else if (strcmp(command, "attach") == 0 || strcmp(command, "book") == 0)
        do_attach(gpu, command[0] == 'a');
    else if (strcmp(command, "context") == 0)
        say("%s", make_context(gpu, &err) == PC_OK ? "ok" : "err 0 context");
    else if (strcmp(command, "alloc") == 0 || strcmp(command, "large") == 0 || strcmp(command, "take") == 0)
        do_alloc(gpu, b, command[0] == 'l', command[0] != 't');
    else if (strcmp(command, "free") == 0 || strcmp(command, "lie") == 0)
        do_free(a, command[0] == 'f');
    else if (strcmp(command, "drop") == 0 || strcmp(command, "liedrop") == 0)
        do_drop(a, command[0] == 'd');
    else if (strcmp(command, "write") == 0)
        do_write(a, (int)b);
    else if (strcmp(command, "check") == 0)
        do_check(a, (int)b);
    else if (strcmp(command, "reserve") == 0 || strcmp(command, "release") == 0)
        do_direct_charge(gpu, b, strcmp(command, "reserve") == 0);
    else if (strcmp(command, "direct") == 0 || strcmp(command, "undirect") == 0)
        do_direct(command[0] == 'd' ? a : 0);
    else if (strcmp(command, "info") == 0)
        do_info(gpu);
    else if (strcmp(command, "page") == 0)
        do_page(gpu);
    else if (strcmp(command, "raw") == 0)
        do_raw((size_t)a);
    else if (strcmp(command, "fds") == 0)
        do_fds();
    else if (strcmp(command, "twice") == 0)
        do_twice();
    else if (strcmp(command, "mapwrite") == 0)
        do_mapwrite();
    else if (strcmp(command, "fork") == 0)
        do_fork();
    else if (strcmp(command, "close") == 0) {
        close(me.fd);
        me.fd = -1;
        say("ok");
    } else
        say("err 0 unknown command %s", command);
}

int actor_main(void)
{
    char line[512];
    while (fgets(line, sizeof line, stdin) != NULL) {
        char command[32] = "", text[400] = "";
        unsigned long long a = 0, b = 0;
        sscanf(line, "%31s %399s", command, text);
        sscanf(line, "%*s %llu %llu", &a, &b);
        obey(command, text, a, b);
    }
    return 0;
}

/* ---- the test's side ---- */

static void die(const char *what)
{
    fprintf(stderr, "actor: %s: %s\n", what, strerror(errno));
    exit(2);
}

void actor_start(struct actor *a)
{
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) < 0 || pipe2(out, O_CLOEXEC) < 0)
        die("pipe");
    memset(a, 0, sizeof *a);
    a->pid = fork();
    if (a->pid < 0)
        die("fork");
    if (a->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(in[0], 0);
        dup2(out[1], 1);
        execl("/proc/self/exe", "actor", "actor", (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    a->in = in[1];
    a->out = out[0];
}

static void tell(struct actor *a, const char *fmt, va_list ap)
{
    char line[512];
    int n = vsnprintf(line, sizeof line - 1, fmt, ap);
    line[n] = '\n';
    if (write(a->in, line, (size_t)n + 1) != n + 1)
        die("write");
}

void actor_tell(struct actor *a, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    tell(a, fmt, ap);
    va_end(ap);
}

bool actor_hear(struct actor *a)
{
    size_t n = 0;
    memset(a->answer, 0, sizeof a->answer);
    while (n < sizeof a->answer - 1 && read(a->out, a->answer + n, 1) == 1 && a->answer[n] != '\n')
        n++;
    a->answer[n] = '\0';
    return strncmp(a->answer, "ok", 2) == 0;
}

bool actor_say(struct actor *a, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    tell(a, fmt, ap);
    va_end(ap);
    return actor_hear(a);
}

uint64_t actor_number(const struct actor *a, int n)
{
    const char *at = a->answer;
    for (int i = 0; i <= n && at != NULL; i++) {
        at = strchr(at, ' ');
        at = at != NULL ? at + 1 : NULL;
    }
    return at != NULL ? strtoull(at, NULL, 10) : 0;
}

static void reap(struct actor *a)
{
    waitpid(a->pid, NULL, 0);
    close(a->in);
    close(a->out);
    a->pid = 0;
}

void actor_kill(struct actor *a)
{
    kill(a->pid, SIGKILL);
    reap(a);
}

void actor_end(struct actor *a)
{
    close(a->in);
    a->in = open("/dev/null", O_RDONLY | O_CLOEXEC);
    reap(a);
}
