#include "tests/demo/puppet.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/driver/driver.h"
#include "alloc/shim/poolcap.h"

/* ---- the child ---- */

enum { HOLD_MAX = 65536, CHUNK = 4 * 1024 * 1024 };

struct holding {
    struct pc_cuda cu;
    struct {
        poolcap_ptr ptr;
        size_t bytes;
    } * held;
    unsigned count;
};

static void say_status(const char *word, poolcap_status status)
{
    printf("%s %s\n", status == POOLCAP_OUT_OF_MEMORY ? "oom" : word,
           *poolcap_last_error() != '\0' ? poolcap_last_error() : poolcap_status_text(status));
}

static poolcap_status take(struct holding *h, size_t bytes)
{
    poolcap_ptr ptr;
    if (h->count == HOLD_MAX)
        return POOLCAP_INVALID;
    poolcap_status status = poolcap_alloc(&ptr, bytes, NULL, POOLCAP_POOLED);
    if (status != POOLCAP_OK)
        return status;
    h->held[h->count].ptr = ptr;
    h->held[h->count++].bytes = bytes;
    return POOLCAP_OK;
}

static void do_alloc(struct holding *h, size_t bytes)
{
    poolcap_status status = take(h, bytes);
    if (status == POOLCAP_OK)
        printf("ok %llu\n", (unsigned long long)h->held[h->count - 1].ptr);
    else
        say_status("error", status);
}

static void do_fill(struct holding *h, size_t bytes)
{
    unsigned before = h->count;
    poolcap_status status;
    while ((status = take(h, bytes)) == POOLCAP_OK)
        ;
    printf(status == POOLCAP_OUT_OF_MEMORY ? "ok %u why %s\n" : "error %u %s\n", h->count - before,
           poolcap_last_error());
}

static void do_free(struct holding *h)
{
    uint64_t bytes = 0;
    for (unsigned i = 0; i < h->count; i++) {
        poolcap_status status = poolcap_free(h->held[i].ptr, NULL);
        if (status != POOLCAP_OK) {
            say_status("error", status);
            return;
        }
        bytes += h->held[i].bytes;
    }
    h->count = 0;
    poolcap_status status = poolcap_trim(0, NULL);
    if (status == POOLCAP_OK)
        printf("ok %llu\n", (unsigned long long)bytes);
    else
        say_status("error", status);
}

static void do_write(struct holding *h, unsigned value)
{
    uint64_t bytes = 0;
    for (unsigned i = 0; i < h->count; i++) {
        if (h->cu.cuMemsetD8(h->held[i].ptr, (unsigned char)value, h->held[i].bytes) != 0) {
            printf("error memset of allocation %u\n", i);
            return;
        }
        bytes += h->held[i].bytes;
    }
    if (h->cu.cuCtxSynchronize() != 0)
        printf("error synchronize\n");
    else
        printf("ok %llu\n", (unsigned long long)bytes);
}

/* Copies all that is held to the host, a chunk at a time, and counts bytes that are not `value`. */
static bool count_other(struct holding *h, unsigned char value, uint64_t *other, uint64_t *bytes)
{
    static unsigned char chunk[CHUNK];
    *other = *bytes = 0;
    for (unsigned i = 0; i < h->count; i++) {
        for (size_t at = 0; at < h->held[i].bytes; at += CHUNK) {
            size_t n = h->held[i].bytes - at < CHUNK ? h->held[i].bytes - at : CHUNK;
            if (h->cu.cuMemcpyDtoH(chunk, h->held[i].ptr + at, n) != 0)
                return false;
            /* Equal neighbours and the right first byte: one memcmp for the common case. */
            if (chunk[0] != value || memcmp(chunk, chunk + 1, n - 1) != 0)
                for (size_t k = 0; k < n; k++)
                    *other += chunk[k] != value;
            *bytes += n;
        }
    }
    return true;
}

static void do_check(struct holding *h, unsigned value, bool count_only)
{
    uint64_t other, bytes;
    if (!count_other(h, (unsigned char)value, &other, &bytes))
        printf("error cannot read the memory\n");
    else if (count_only)
        printf("ok %llu\n", (unsigned long long)other);
    else
        printf(other == 0 ? "ok %llu\n" : "bad %llu\n", (unsigned long long)(other == 0 ? bytes : other));
}

static void do_info(void)
{
    poolcap_memory m;
    poolcap_status status = poolcap_info(&m);
    if (status != POOLCAP_OK)
        say_status("error", status);
    else
        printf("ok %llu %llu %llu %llu %llu\n", (unsigned long long)m.total, (unsigned long long)m.free,
               (unsigned long long)m.charged, (unsigned long long)m.held, (unsigned long long)m.live);
}

static void do_describe(void)
{
    char text[512];
    poolcap_status status = poolcap_describe(text, sizeof text);
    printf("%s %s\n", status == POOLCAP_OK ? "ok" : "error", text);
}

static void obey(struct holding *h, char *line)
{
    char word[32] = "";
    unsigned long long n = 0;
    sscanf(line, "%31s %llu", word, &n);
    if (strcmp(word, "alloc") == 0)
        do_alloc(h, (size_t)n);
    else if (strcmp(word, "fill") == 0)
        do_fill(h, (size_t)n);
    else if (strcmp(word, "free") == 0)
        do_free(h);
    else if (strcmp(word, "write") == 0)
        do_write(h, (unsigned)n);
    else if (strcmp(word, "check") == 0)
        do_check(h, (unsigned)n, false);
    else if (strcmp(word, "nonzero") == 0)
        do_check(h, 0, true);
    else if (strcmp(word, "info") == 0)
        do_info();
    else if (strcmp(word, "describe") == 0)
        do_describe();
    else
        printf("error unknown command\n");
}

int puppet_main(void)
{
    struct holding h = {.count = 0};
    struct pc_error err;
    char line[256];
    setvbuf(stdout, NULL, _IOLBF, 0);
    h.held = calloc(HOLD_MAX, sizeof *h.held);
    pc_cu_device device;
    pc_cu_context context;
    if (h.held == NULL || pc_cuda_load(NULL, &h.cu, &err) != PC_OK || h.cu.cuInit(0) != 0 ||
        h.cu.cuDeviceGet(&device, 0) != 0 || h.cu.cuDevicePrimaryCtxRetain(&context, device) != 0 ||
        h.cu.cuCtxSetCurrent(context) != 0) {
        printf("error no GPU\n");
        return 1;
    }
    while (fgets(line, sizeof line, stdin) != NULL)
        obey(&h, line);
    return 0;
}

/* ---- the parent ---- */

static void die(const char *what)
{
    fprintf(stderr, "puppet: %s: %s\n", what, strerror(errno));
    exit(1);
}

void puppet_start(struct puppet *p, const char *socket)
{
    int to[2], from[2];
    if (pipe2(to, O_CLOEXEC) < 0 || pipe2(from, O_CLOEXEC) < 0)
        die("pipe");
    p->pid = fork();
    if (p->pid < 0)
        die("fork");
    if (p->pid == 0) {
        dup2(to[0], STDIN_FILENO);
        dup2(from[1], STDOUT_FILENO);
        setenv("POOLCAP_SOCKET", socket, 1);
        execl("/proc/self/exe", "poolcap-puppet", "puppet", (char *)NULL);
        _exit(127);
    }
    close(to[0]);
    close(from[1]);
    p->in = to[1];
    p->out = from[0];
}

bool puppet_say(struct puppet *p, const char *fmt, ...)
{
    char line[256];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof line - 1, fmt, ap);
    va_end(ap);
    line[n] = '\n';
    p->answer[0] = '\0';
    if (write(p->in, line, (size_t)n + 1) != n + 1)
        return false;
    size_t used = 0;
    while (used < sizeof p->answer - 1 && read(p->out, p->answer + used, 1) == 1 && p->answer[used] != '\n')
        used++;
    p->answer[used] = '\0';
    return strncmp(p->answer, "ok", 2) == 0;
}

uint64_t puppet_number(const struct puppet *p, int n)
{
    const char *at = p->answer;
    for (; n >= 0; n--) {
        at = strchr(at, ' ');
        if (at == NULL)
            return 0;
        at++;
    }
    return strtoull(at, NULL, 10);
}

static void reap(struct puppet *p)
{
    close(p->in);
    close(p->out);
    waitpid(p->pid, NULL, 0);
    p->pid = 0;
}

void puppet_kill(struct puppet *p)
{
    kill(p->pid, SIGKILL);
    reap(p);
}

void puppet_end(struct puppet *p)
{
    reap(p);
}
