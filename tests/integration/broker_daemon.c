#include "tests/integration/broker_daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "alloc/driver/driver.h"
#include "proto/wire.h"

static struct {
    char dir[128], config[160], build[256];
    const char *flag;
    pid_t pid;
    bool nvml_open;
    struct pc_nvml nvml;
    struct pc_arena arena;
} n;

static void die(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    exit(2);
}

void daemon_setup(void)
{
    const char *build = getenv("POOLCAP_BUILD");
    snprintf(n.build, sizeof n.build, "%s", build != NULL ? build : "build");
    setenv("POOLCAP_SIM_GPUS", "2", 1);
    setenv("POOLCAP_SIM_MEMORY", "4294967296", 1);
    setenv("POOLCAP_SIM_CONTEXT", "67108864", 1);
    setenv("POOLCAP_CHECK", "1", 1);
    signal(SIGPIPE, SIG_IGN);
}

void daemon_nap(unsigned ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000}, NULL);
}

/* ---- the daemon ---- */

void daemon_configure(const char *grants)
{
    FILE *f = fopen(n.config, "we");
    if (f == NULL)
        die(n.config, strerror(errno));
    const char *level = getenv("POOLCAP_TEST_LEVEL");
    fprintf(f, "runDirectory: %s\nlogLevel: %s\nsimulated: true\ngrants:\n%s", n.dir, level != NULL ? level : "warn",
            grants);
    fclose(f);
}

void daemon_run_with(const char *flag)
{
    n.flag = flag;
}

static pid_t spawn(int err)
{
    char program[300];
    snprintf(program, sizeof program, "%s/bin/poolcapd", n.build);
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nothing behind */
    if (err >= 0)
        dup2(err, 2);
    execl(program, "poolcapd", "--config", n.config, n.flag, (char *)NULL);
    _exit(127);
}

static bool serves(void)
{
    char path[256];
    int fd;
    snprintf(path, sizeof path, "%s/admin.sock", n.dir);
    if (pc_wire_connect(path, &fd, NULL) != PC_OK)
        return false;
    close(fd);
    return true;
}

void daemon_start(void)
{
    n.pid = spawn(-1);
    for (int i = 0; i < 3000; i++) {
        if (serves())
            return;
        if (waitpid(n.pid, NULL, WNOHANG) == n.pid)
            die("poolcapd", "ended at once");
        daemon_nap(10);
    }
    die("poolcapd", "does not serve");
}

bool daemon_start_fails(char *text, size_t size)
{
    int out[2], status = 0;
    if (pipe2(out, O_CLOEXEC) < 0)
        die("pipe", strerror(errno));
    pid_t pid = spawn(out[1]);
    close(out[1]);
    size_t used = 0;
    ssize_t got;
    while (used < size - 1 && (got = read(out[0], text + used, size - 1 - used)) > 0)
        used += (size_t)got;
    text[used] = '\0';
    close(out[0]);
    waitpid(pid, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 1;
}

void daemon_begin(const char *grants)
{
    snprintf(n.dir, sizeof n.dir, "%s/run-XXXXXX", getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp");
    if (mkdtemp(n.dir) == NULL)
        die("mkdtemp", strerror(errno));
    snprintf(n.config, sizeof n.config, "%s/config.yaml", n.dir);
    n.flag = NULL;
    daemon_configure(grants);
    daemon_start();
}

void daemon_kill(void)
{
    kill(n.pid, SIGKILL);
    waitpid(n.pid, NULL, 0);
    n.pid = 0;
}

void daemon_stop(void)
{
    int status = 0;
    kill(n.pid, SIGTERM);
    waitpid(n.pid, &status, 0);
    n.pid = 0;
    assert_int_equal(status, 0);
}

void daemon_end(void)
{
    daemon_inject(NULL);
    if (n.pid > 0)
        daemon_stop();
    pid_t pid = fork();
    if (pid == 0) {
        execlp("rm", "rm", "-rf", n.dir, (char *)NULL);
        _exit(127);
    }
    waitpid(pid, NULL, 0);
}

pid_t daemon_pid(void)
{
    return n.pid;
}

const char *daemon_directory(void)
{
    return n.dir;
}

const char *daemon_socket(const char *grant)
{
    static char paths[4][256];
    static unsigned next;
    char *path = paths[next++ % 4];
    snprintf(path, 256, "%s/grants/%s/poolcap.sock", n.dir, grant);
    return path;
}

void daemon_actor(struct actor *a, const char *grant)
{
    actor_start(a);
    assert_ok(a, "connect %s", daemon_socket(grant));
    assert_ok(a, "attach 0");
}

/* ---- the simulator ---- */

static void write_inject(const char *kind, const char *rules)
{
    char path[300], fresh[320];
    snprintf(path, sizeof path, "%s/inject", getenv("POOLCAP_SIM_DIR"));
    snprintf(fresh, sizeof fresh, "%s.new", path);
    FILE *f = fopen(fresh, "we");
    if (f == NULL)
        die(fresh, strerror(errno));
    if (rules != NULL)
        fprintf(f, "%s=%s\n", kind, rules);
    fclose(f);
    if (rename(fresh, path) < 0)
        die(path, strerror(errno));
}

void daemon_inject(const char *fail)
{
    write_inject("POOLCAP_SIM_FAIL", fail);
}

void daemon_delay(const char *delay)
{
    write_inject("POOLCAP_SIM_DELAY", delay);
}

static pc_nvml_device card(unsigned gpu)
{
    struct pc_error err;
    pc_nvml_device device;
    if (!n.nvml_open && (pc_nvml_load(NULL, &n.nvml, &err) != PC_OK || n.nvml.nvmlInit() != 0))
        die("NVML", err.text);
    n.nvml_open = true;
    if (n.nvml.nvmlDeviceGetHandleByIndex(gpu, &device) != 0)
        die("NVML", "no such GPU");
    return device;
}

uint64_t daemon_card_used(unsigned gpu)
{
    pc_nvml_memory_t memory = {.version = PC_NVML_MEMORY_VERSION};
    pc_nvml_device device = card(gpu);
    if (n.nvml.nvmlDeviceGetMemoryInfo(device, &memory) != 0)
        die("NVML", "no memory figures");
    return memory.used;
}

uint64_t daemon_process_bytes(unsigned gpu, pid_t pid)
{
    static pc_nvml_process_t list[1024];
    unsigned count = 1024;
    pc_nvml_device device = card(gpu);
    if (n.nvml.nvmlDeviceGetComputeRunningProcesses(device, &count, list) != 0)
        die("NVML", "no list of processes");
    for (unsigned i = 0; i < count; i++)
        if (list[i].pid == (unsigned)pid)
            return list[i].used;
    return 0;
}

/* ---- the admin socket ---- */

static int admin_connect(void)
{
    char path[256];
    int fd;
    struct pc_error err;
    snprintf(path, sizeof path, "%s/admin.sock", n.dir);
    if (pc_wire_connect(path, &fd, &err) != PC_OK)
        die("admin.sock", err.text);
    return fd;
}

static Poolcap__AdminReply *admin(Poolcap__AdminRequest *request)
{
    struct pc_error err;
    ProtobufCMessage *message = NULL;
    int fd = admin_connect();
    if (pc_wire_send(fd, &request->base, NULL, 0, &err) != PC_OK ||
        pc_wire_receive(fd, &poolcap__admin_reply__descriptor, &n.arena, &message, NULL, NULL, &err) != PC_OK ||
        message == NULL)
        die("admin.sock", "no answer");
    close(fd);
    return (Poolcap__AdminReply *)message;
}

static int told(Poolcap__AdminRequest *request, char text[512])
{
    Poolcap__AdminReply *reply = admin(request);
    if (text != NULL)
        snprintf(text, 512, "%s", reply->text);
    return (int)reply->status;
}

static Poolcap__AdminListReply *list_page(const char *after)
{
    Poolcap__AdminList list = POOLCAP__ADMIN_LIST__INIT;
    Poolcap__AdminRequest request = POOLCAP__ADMIN_REQUEST__INIT;
    list.after = (char *)(uintptr_t)after;
    request.body_case = POOLCAP__ADMIN_REQUEST__BODY_LIST;
    request.list = &list;
    return admin(&request)->list;
}

struct daemon_figures daemon_figures(const char *grant)
{
    char after[128] = "";
    struct daemon_figures out = {0};
    for (bool more = true; more && !out.found;) {
        const Poolcap__AdminListReply *list = list_page(after);
        for (size_t i = 0; i < list->n_grants; i++) {
            const Poolcap__AdminGrant *g = list->grants[i];
            const Poolcap__AdminGrantGpu *s = g->gpus[0];
            snprintf(after, sizeof after, "%s", g->name);
            if (strcmp(g->name, grant) == 0) {
                out = (struct daemon_figures){.granted = s->granted,
                                              .cap = s->cap,
                                              .charged = s->charged,
                                              .tenant_charged = s->tenant_charged,
                                              .pool_reserved = s->pool_reserved,
                                              .pool_used = s->pool_used,
                                              .large = s->large,
                                              .direct = s->direct,
                                              .context = s->context,
                                              .pending = s->pending,
                                              .inherited = s->inherited,
                                              .outside = s->outside,
                                              .refused = s->refused,
                                              .shared = s->shared,
                                              .sessions = g->sessions,
                                              .found = true,
                                              .dropping = g->dropping};
                snprintf(out.pod_uid, sizeof out.pod_uid, "%s", g->pod_uid);
            }
        }
        more = list->more;
    }
    return out;
}

struct daemon_gpu daemon_gpu(unsigned index)
{
    const Poolcap__AdminGpu *g = list_page("")->gpus[index];
    struct daemon_gpu out = {.capacity = g->capacity,
                             .granted = g->granted,
                             .charged = g->charged,
                             .broken_promises = g->broken_promises,
                             .failed_frees = g->failed_frees,
                             .pool_reserved = g->pool_reserved,
                             .latency_sum_ns = g->latency_sum_ns};
    out.histogram_whole = g->n_latency_buckets == g->n_latency_bounds_ns + 1 && g->n_latency_bounds_ns > 0;
    for (size_t i = 1; i < g->n_latency_bounds_ns; i++)
        out.histogram_whole &= g->latency_bounds_ns[i - 1] < g->latency_bounds_ns[i];
    for (size_t i = 0; i < g->n_latency_buckets; i++)
        out.requests += g->latency_buckets[i];
    snprintf(out.fault, sizeof out.fault, "%s", g->fault);
    return out;
}

uint64_t daemon_epoch(void)
{
    return list_page("")->epoch;
}

static char *or_empty(const char *text, const char *otherwise)
{
    return (char *)(uintptr_t)(text != NULL ? text : otherwise);
}

int daemon_make_with(const struct daemon_want *want, char text[512])
{
    Poolcap__AdminGpuShare share = POOLCAP__ADMIN_GPU_SHARE__INIT, *shares[] = {&share};
    Poolcap__AdminMakeGrant make = POOLCAP__ADMIN_MAKE_GRANT__INIT;
    Poolcap__AdminRequest request = POOLCAP__ADMIN_REQUEST__INIT;
    share.gpu = or_empty(want->gpu, "0");
    share.granted = want->granted;
    share.cap = want->cap;
    share.shared = want->shared;
    make.name = or_empty(want->name, "");
    make.tenant = or_empty(want->tenant, "");
    make.pod_uid = or_empty(want->pod_uid, "");
    make.n_gpus = 1;
    make.gpus = shares;
    request.body_case = POOLCAP__ADMIN_REQUEST__BODY_MAKE_GRANT;
    request.make_grant = &make;
    return told(&request, text);
}

int daemon_make(const char *name, const char *tenant, const char *gpu, uint64_t granted, uint64_t cap, char text[512])
{
    struct daemon_want want = {.name = name, .tenant = tenant, .gpu = gpu, .granted = granted, .cap = cap};
    return daemon_make_with(&want, text);
}

int daemon_set_cap(const char *grant, uint64_t cap, char text[512])
{
    Poolcap__AdminSetCap set = POOLCAP__ADMIN_SET_CAP__INIT;
    Poolcap__AdminRequest request = POOLCAP__ADMIN_REQUEST__INIT;
    set.grant = (char *)(uintptr_t)grant;
    set.cap = cap;
    request.body_case = POOLCAP__ADMIN_REQUEST__BODY_SET_CAP;
    request.set_cap = &set;
    return told(&request, text);
}

int daemon_bind(const char *grant, const char *uid, char text[512])
{
    Poolcap__AdminBind bind = POOLCAP__ADMIN_BIND__INIT;
    Poolcap__AdminRequest request = POOLCAP__ADMIN_REQUEST__INIT;
    bind.grant = (char *)(uintptr_t)grant;
    bind.pod_uid = (char *)(uintptr_t)uid;
    request.body_case = POOLCAP__ADMIN_REQUEST__BODY_BIND;
    request.bind = &bind;
    return told(&request, text);
}

static int drop_grant(const char *grant, bool wait, bool if_unused, char text[512])
{
    Poolcap__AdminDropGrant drop = POOLCAP__ADMIN_DROP_GRANT__INIT;
    Poolcap__AdminRequest request = POOLCAP__ADMIN_REQUEST__INIT;
    drop.grant = (char *)(uintptr_t)grant;
    drop.wait = wait;
    drop.if_unused = if_unused;
    request.body_case = POOLCAP__ADMIN_REQUEST__BODY_DROP_GRANT;
    request.drop_grant = &drop;
    return told(&request, text);
}

int daemon_drop(const char *grant, bool wait, char text[512])
{
    return drop_grant(grant, wait, false, text);
}

int daemon_drop_unused(const char *grant, char text[512])
{
    return drop_grant(grant, false, true, text);
}

int daemon_reload(char text[512])
{
    Poolcap__AdminReload reload = POOLCAP__ADMIN_RELOAD__INIT;
    Poolcap__AdminRequest request = POOLCAP__ADMIN_REQUEST__INIT;
    request.body_case = POOLCAP__ADMIN_REQUEST__BODY_RELOAD;
    request.reload = &reload;
    return told(&request, text);
}

bool daemon_books_equal_card(void)
{
    for (int i = 0; i < 150; i++) {
        uint64_t charged = daemon_gpu(0).charged;
        if (daemon_card_used(0) == charged + CONTEXT && daemon_gpu(0).charged == charged)
            return true;
        daemon_nap(20);
    }
    fprintf(stderr, "charged %llu MiB, on the card %llu MiB beside poolcapd\n",
            (unsigned long long)(daemon_gpu(0).charged / PC_MIB),
            (unsigned long long)((daemon_card_used(0) - CONTEXT) / PC_MIB));
    return false;
}
