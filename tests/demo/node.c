#include "tests/demo/node.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "proto/wire.h"

static void die(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static void nap(long ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

/* The folder of the build: given, or two levels above this program (build/tests/demo). */
static void find_build(struct node *n)
{
    const char *given = getenv("POOLCAP_BUILD");
    if (given != NULL) {
        snprintf(n->build, sizeof n->build, "%s", given);
        return;
    }
    char self[200];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length < 0)
        die("readlink /proc/self/exe", strerror(errno));
    self[length] = '\0';
    for (int i = 0; i < 3; i++) {
        char *slash = strrchr(self, '/');
        if (slash != NULL)
            *slash = '\0';
    }
    snprintf(n->build, sizeof n->build, "%s", self);
}

void node_open(struct node *n)
{
    struct pc_error err;
    memset(n, 0, sizeof *n);
    find_build(n);
    if (pc_nvml_load(NULL, &n->nvml, &err) != PC_OK)
        die("NVML", err.text);
    if (n->nvml.nvmlInit() != 0 || n->nvml.nvmlDeviceGetHandleByIndex(0, &n->device) != 0)
        die("NVML", "no GPU");
    n->nvml.nvmlSystemGetDriverVersion(n->driver, sizeof n->driver);
    n->simulated = strncmp(n->driver, "simulated", 9) == 0;
    snprintf(n->gpu_name, sizeof n->gpu_name, "%s", n->simulated ? "Simulated GPU" : "GPU 0");
    pc_nvml_memory_t memory = {.version = PC_NVML_MEMORY_VERSION};
    n->nvml.nvmlDeviceGetMemoryInfo(n->device, &memory);
    n->total = memory.total;
    struct pc_cuda cu;
    char name[96];
    pc_cu_device device;
    if (pc_cuda_load(NULL, &cu, &err) != PC_OK)
        die("CUDA", err.text);
    if (cu.cuInit(0) == 0 && cu.cuDeviceGet(&device, 0) == 0 && cu.cuDeviceGetName(name, sizeof name, device) == 0)
        snprintf(n->gpu_name, sizeof n->gpu_name, "%s", name);
    snprintf(n->dir, sizeof n->dir, "/tmp/poolcap-XXXXXX");
    if (mkdtemp(n->dir) == NULL)
        die("mkdtemp", strerror(errno));
    snprintf(n->config, sizeof n->config, "%s/config.yaml", n->dir);
}

void node_configure(struct node *n, const char *grants_yaml)
{
    FILE *f = fopen(n->config, "w");
    if (f == NULL)
        die(n->config, strerror(errno));
    fprintf(f, "runDirectory: %s\nlogLevel: %s\nsimulated: %s\n%s", n->dir,
            getenv("POOLCAP_DEMO_LOG") != NULL ? getenv("POOLCAP_DEMO_LOG") : "error", n->simulated ? "true" : "false",
            grants_yaml);
    fclose(f);
}

static bool serves(struct node *n)
{
    char path[256];
    int fd;
    snprintf(path, sizeof path, "%s/admin.sock", n->dir);
    if (pc_wire_connect(path, &fd, NULL) != PC_OK)
        return false;
    close(fd);
    return true;
}

void node_start(struct node *n)
{
    n->daemon = fork();
    if (n->daemon < 0)
        die("fork", strerror(errno));
    if (n->daemon == 0) {
        char program[300];
        snprintf(program, sizeof program, "%s/bin/poolcapd", n->build);
        execl(program, "poolcapd", "--config", n->config, (char *)NULL);
        fprintf(stderr, "cannot start %s: %s\n", program, strerror(errno));
        _exit(127);
    }
    for (int i = 0; i < 600; i++) {
        int status;
        if (serves(n))
            return;
        if (waitpid(n->daemon, &status, WNOHANG) == n->daemon)
            die("poolcapd", "ended at once; its message stands above");
        nap(50);
    }
    die("poolcapd", "does not serve after 30 s");
}

void node_kill(struct node *n)
{
    kill(n->daemon, SIGKILL);
    waitpid(n->daemon, NULL, 0);
    n->daemon = 0;
}

static void remove_tree(const char *dir)
{
    pid_t pid = fork();
    if (pid == 0) {
        execlp("rm", "rm", "-rf", dir, (char *)NULL);
        _exit(127);
    }
    waitpid(pid, NULL, 0);
}

void node_close(struct node *n)
{
    if (n->daemon > 0) {
        kill(n->daemon, SIGTERM);
        waitpid(n->daemon, NULL, 0);
    }
    remove_tree(n->dir);
}

uint64_t node_used(struct node *n)
{
    pc_nvml_memory_t memory = {.version = PC_NVML_MEMORY_VERSION};
    if (n->nvml.nvmlDeviceGetMemoryInfo(n->device, &memory) != 0)
        die("NVML", "cannot read the card's memory");
    return memory.used;
}

uint64_t node_used_falls_to(struct node *n, uint64_t bytes)
{
    uint64_t used = node_used(n);
    for (int i = 0; i < 250 && used > bytes + NODE_SLACK; i++) {
        nap(20);
        used = node_used(n);
    }
    return used;
}

uint64_t node_process_bytes(struct node *n, pid_t pid)
{
    static pc_nvml_process_t list[1024];
    unsigned count = 1024;
    if (n->nvml.nvmlDeviceGetComputeRunningProcesses(n->device, &count, list) != 0)
        return 0;
    for (unsigned i = 0; i < count; i++)
        if (list[i].pid == (unsigned)pid && list[i].used != PC_NVML_NOT_AVAILABLE)
            return list[i].used;
    return 0;
}

void node_socket(const struct node *n, const char *grant, char out[256])
{
    snprintf(out, 256, "%s/grants/%s/poolcap.sock", n->dir, grant);
}
