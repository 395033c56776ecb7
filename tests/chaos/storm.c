/*
 * The kill storm: TENANTS processes, at most 8 at once, each killed by SIGKILL at a point of its life that is chosen by
 * turns: while it attaches, allocates, imports, writes, frees, and while a kernel of its runs. A sampler reads the
 * card's used bytes all the while: never above the caps' sum and poolcapd's own context; back to the start once the
 * grants are dropped.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "alloc/base/bytes.h"
#include "alloc/base/cleanup.h"
#include "alloc/shim/poolcap.h"
#include "proto/wire.h"
#include "tests/demo/node.h"

enum { SLOTS = 8, HELD = 24 };

enum phase { ATTACH, ALLOCATE, WRITE, FREE, IMPORT, KERNEL, PHASES };
static const char *const phases[PHASES] = {"attach", "allocate", "write", "free", "import", "kernel"};

/* ---- a tenant ---- */

static const char scribble_ptx[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
                                   ".visible .entry scribble(.param .u64 base, .param .u64 rounds)\n{\n"
                                   ".reg .pred %again;\n.reg .b32 %v;\n.reg .b64 %a, %i, %n, %o;\n"
                                   "ld.param.u64 %a, [base];\nld.param.u64 %n, [rounds];\n"
                                   "cvta.to.global.u64 %a, %a;\nmov.u64 %i, 0;\nmov.u32 %v, 0x5a5a5a5a;\n"
                                   "LOOP:\nand.b64 %o, %i, 262143;\nshl.b64 %o, %o, 2;\nadd.u64 %o, %a, %o;\n"
                                   "st.global.u32 [%o], %v;\nadd.u64 %i, %i, 1;\nsetp.lt.u64 %again, %i, %n;\n"
                                   "@%again bra LOOP;\nret;\n}\n";

struct tenant {
    struct pc_cuda cu;
    poolcap_ptr held[HELD];
    size_t bytes[HELD];
};

/* Says which phase begins; the parent kills at one of these. */
static void announce(enum phase phase)
{
    char c = (char)('0' + phase);
    if (write(STDOUT_FILENO, &c, 1) != 1)
        _exit(1);
}

static void fill(struct tenant *t, unsigned *seed)
{
    for (int i = 0; i < HELD; i++) {
        size_t bytes = (size_t)1 << (12 + rand_r(seed) % 17); /* 4 KiB to 256 MiB */
        if (t->held[i] == 0 && poolcap_alloc(&t->held[i], bytes, NULL, POOLCAP_POOLED) == POOLCAP_OK)
            t->bytes[i] = bytes;
    }
}

/* Nothing else for some ms: poolcapd has memory to give, so most of the time is the import's (0.2 ms of 0.3 on an
 * H200). */
static void import(void)
{
    poolcap_ptr ptr;
    for (int i = 0; i < 16 && poolcap_alloc(&ptr, 256 * PC_MIB, NULL, POOLCAP_POOLED) == POOLCAP_OK; i++) {
        poolcap_free(ptr, NULL);
        poolcap_trim(0, NULL);
    }
}

static void run_kernel(struct tenant *t)
{
    pc_cu_module module;
    pc_cu_function function;
    if (t->held[0] == 0 && poolcap_alloc(&t->held[0], 4 << 20, NULL, POOLCAP_POOLED) != POOLCAP_OK)
        return;
    if (t->cu.cuModuleLoadData(&module, scribble_ptx) != 0 ||
        t->cu.cuModuleGetFunction(&function, module, "scribble") != 0)
        return; /* the simulated driver runs no kernels: the kill then comes between calls */
    uint64_t base = t->held[0], rounds = 10000000; /* some 0.5 s on an H200 */
    void *params[] = {&base, &rounds};
    t->cu.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL);
    announce(KERNEL);
    t->cu.cuCtxSynchronize();
}

static int tenant_main(unsigned seed)
{
    static struct tenant t;
    struct pc_error err;
    pc_cu_device device;
    pc_cu_context context;
    if (pc_cuda_load(NULL, &t.cu, &err) != PC_OK || t.cu.cuInit(0) != 0 || t.cu.cuDeviceGet(&device, 0) != 0)
        return 1;
    announce(ATTACH);
    poolcap_memory memory;
    if (t.cu.cuDevicePrimaryCtxRetain(&context, device) != 0 || t.cu.cuCtxSetCurrent(context) != 0)
        return 1;
    poolcap_info(&memory);
    for (;;) {
        announce(ALLOCATE);
        fill(&t, &seed);
        announce(WRITE);
        for (int i = 0; i < HELD; i++)
            if (t.held[i] != 0)
                t.cu.cuMemsetD8(t.held[i], 0x5a, t.bytes[i]);
        run_kernel(&t);
        announce(FREE);
        for (int i = 0; i < HELD; i++)
            if (t.held[i] != 0 && rand_r(&seed) % 4 != 0) {
                poolcap_free(t.held[i], NULL);
                t.held[i] = 0;
            }
        poolcap_trim(0, NULL);
        announce(IMPORT);
        import();
        announce(KERNEL);
    }
}

/* ---- the sampler ---- */

struct sampler {
    struct node *node;
    _Atomic uint64_t highest;
    atomic_bool stop;
    atomic_ulong samples;
};

static void *sample(void *arg)
{
    struct sampler *s = arg;
    while (!atomic_load(&s->stop)) {
        uint64_t used = node_used(s->node);
        if (used > atomic_load(&s->highest))
            atomic_store(&s->highest, used);
        atomic_fetch_add(&s->samples, 1);
        struct timespec nap = {.tv_nsec = 2000000};
        nanosleep(&nap, NULL);
    }
    return NULL;
}

/* ---- the killer ---- */

struct slot {
    struct node *node;
    int index, tenants;
    unsigned killed[PHASES];
    unsigned early; /* ended before they could be killed */
};

static pid_t start_tenant(const struct slot *slot, unsigned seed, int *out)
{
    char socket[256], number[16], name[16];
    int pipe_fd[2];
    snprintf(name, sizeof name, "t%d", slot->index);
    node_socket(slot->node, name, socket);
    snprintf(number, sizeof number, "%u", seed);
    if (pipe2(pipe_fd, O_CLOEXEC) < 0)
        return -1;
    pid_t pid = fork();
    if (pid == 0) {
        dup2(pipe_fd[1], STDOUT_FILENO);
        setenv("POOLCAP_SOCKET", socket, 1);
        execl("/proc/self/exe", "poolcap-storm", "tenant", number, (char *)NULL);
        _exit(127);
    }
    close(pipe_fd[1]);
    *out = pipe_fd[0];
    return pid;
}

static void kill_one(struct slot *slot, int phase, unsigned *seed)
{
    int out = -1;
    pid_t pid = start_tenant(slot, (unsigned)rand_r(seed), &out);
    if (pid < 0)
        return;
    char c = 0;
    int rounds = 1 + rand_r(seed) % 2; /* in its first or second turn through the phases */
    while (rounds > 0 && read(out, &c, 1) == 1)
        if (c == '0' + phase)
            rounds = phase == 0 ? 0 : rounds - 1;
    struct timespec nap = {.tv_nsec = (long)(rand_r(seed) % 3000000)};
    nanosleep(&nap, NULL);
    kill(pid, SIGKILL);
    int status;
    waitpid(pid, &status, 0);
    close(out);
    if (WIFSIGNALED(status))
        slot->killed[phase]++;
    else
        slot->early++;
}

static void *slot_main(void *arg)
{
    struct slot *slot = arg;
    unsigned seed = 7919u * (unsigned)(slot->index + 1);
    for (int i = 0; i < slot->tenants; i++)
        kill_one(slot, (i + slot->index) % PHASES, &seed);
    return NULL;
}

/* ---- poolcapd's word ---- */

/* Drops every grant and waits until poolcapd has given all back. */
static unsigned drop_grants(const struct node *node, struct pc_error *err)
{
    static struct pc_arena arena;
    char path[256];
    unsigned dropped = 0;
    int fd;
    snprintf(path, sizeof path, "%s/admin.sock", node->dir);
    if (pc_wire_connect(path, &fd, err) != PC_OK)
        return 0;
    for (int i = 0; i < SLOTS; i++) {
        char name[16];
        snprintf(name, sizeof name, "t%d", i);
        Poolcap__AdminDropGrant drop = POOLCAP__ADMIN_DROP_GRANT__INIT;
        drop.grant = name;
        drop.wait = true;
        Poolcap__AdminRequest request = POOLCAP__ADMIN_REQUEST__INIT;
        request.body_case = POOLCAP__ADMIN_REQUEST__BODY_DROP_GRANT;
        request.drop_grant = &drop;
        ProtobufCMessage *reply = NULL;
        if (pc_wire_send(fd, &request.base, NULL, 0, err) != PC_OK ||
            pc_wire_receive(fd, &poolcap__admin_reply__descriptor, &arena, &reply, NULL, NULL, err) != PC_OK ||
            reply == NULL)
            break;
        Poolcap__AdminReply *answer = (Poolcap__AdminReply *)reply;
        if (answer->status == PC_OK)
            dropped++;
        else
            pc_error_set(err, (enum pc_status)answer->status, 0, "%s", answer->text);
    }
    close(fd);
    return dropped;
}

static void configure(struct node *node, uint64_t cap)
{
    char yaml[SLOTS * 64 + 16];
    int n = snprintf(yaml, sizeof yaml, "grants:\n");
    for (int i = 0; i < SLOTS; i++)
        n += snprintf(yaml + n, sizeof yaml - (size_t)n, "- name: t%d\n  memory: %llu\n", i, (unsigned long long)cap);
    node_configure(node, yaml);
}

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "tenant") == 0)
        return tenant_main((unsigned)atoi(argv[2]));
    int tenants = argc > 1 ? atoi(argv[1]) : 200;
    static struct node node;
    node_open(&node);
    /* A cap of 2.5 GiB on a real card: a dying process's context beside its successor's, and a GiB of memory. */
    uint64_t cap = node.simulated ? 768 * PC_MIB : 2560 * PC_MIB;
    configure(&node, cap);
    uint64_t before = node_used(&node);
    node_start(&node);
    uint64_t daemon_bytes = node_used(&node) - before;
    uint64_t limit = before + daemon_bytes + SLOTS * cap;
    printf("kill storm on %s (driver %s): %d tenants, %d at once, cap %llu MiB each\n", node.gpu_name, node.driver,
           tenants, SLOTS, (unsigned long long)(cap / PC_MIB));

    struct sampler sampler = {.node = &node};
    struct slot slots[SLOTS];
    pthread_t threads[SLOTS], sampler_thread;
    pthread_create(&sampler_thread, NULL, sample, &sampler);
    for (int i = 0; i < SLOTS; i++) {
        slots[i] = (struct slot){.node = &node, .index = i, .tenants = tenants / SLOTS + (i < tenants % SLOTS)};
        pthread_create(&threads[i], NULL, slot_main, &slots[i]);
    }
    unsigned killed = 0, early = 0, by_phase[PHASES] = {0};
    for (int i = 0; i < SLOTS; i++) {
        pthread_join(threads[i], NULL);
        for (int p = 0; p < PHASES; p++) {
            by_phase[p] += slots[i].killed[p];
            killed += slots[i].killed[p];
        }
        early += slots[i].early;
    }
    struct pc_error err = {.text = ""};
    unsigned dropped = drop_grants(&node, &err);
    uint64_t back = node_used_falls_to(&node, before + daemon_bytes);
    atomic_store(&sampler.stop, true);
    pthread_join(sampler_thread, NULL);
    uint64_t highest = atomic_load(&sampler.highest);
    bool daemon_lives = waitpid(node.daemon, NULL, WNOHANG) == 0;
    node_close(&node);

    printf("  killed %u (", killed);
    for (int p = 0; p < PHASES; p++)
        printf("%s%s %u", p == 0 ? "" : ", ", phases[p], by_phase[p]);
    printf("), ended by themselves %u\n", early);
    printf("  card: %llu MiB before, poolcapd %llu MiB, highest of %lu samples %llu MiB, limit %llu MiB\n",
           (unsigned long long)(before / PC_MIB), (unsigned long long)(daemon_bytes / PC_MIB),
           atomic_load(&sampler.samples), (unsigned long long)(highest / PC_MIB), (unsigned long long)(limit / PC_MIB));
    printf("  grants dropped %u of %d %s; card then %llu MiB\n", dropped, SLOTS, err.text,
           (unsigned long long)(back / PC_MIB));
    bool ok[] = {killed + early == (unsigned)tenants && early == 0, highest <= limit + NODE_SLACK, dropped == SLOTS,
                 back <= before + daemon_bytes + NODE_SLACK, daemon_lives};
    static const char *const what[] = {"every tenant was killed while it worked", "the card stayed within the caps",
                                       "every grant ended", "the card is back to the start", "poolcapd lives"};
    unsigned failed = 0;
    for (size_t i = 0; i < PC_ARRAY_LEN(ok); i++) {
        printf("%s: %s\n", ok[i] ? "ok" : "FAILED", what[i]);
        failed += !ok[i];
    }
    printf("%zu passed, %u failed\n", PC_ARRAY_LEN(ok) - failed, failed);
    return failed == 0 ? 0 : 1;
}
