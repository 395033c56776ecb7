/*
 * Failures and delays on demand.
 *   POOLCAP_SIM_FAIL=name:which:code,...   which: n the nth call of that name in this process, n+ from it on, * all
 *   POOLCAP_SIM_DELAY=name:microseconds,...
 * Both are read from the environment once, and as lines of the same form from the state directory's file `inject`
 * whenever that file changes; its calls are counted from the change on. Names are the tables' (cuMemAlloc, not
 * cuMemAlloc_v2).
 */
#include "tests/sim/sim.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { RULES = 64 };

struct rule {
    enum sim_call_id call;
    uint64_t first, last; /* calls, counted from 1 */
    uint64_t seen;
    unsigned int code;
    unsigned int delay_us;
    bool from_file;
};

static const char *const names[] = {
#define NAME(need, name, symbol, args) #name,
    PC_CUDA_TABLE(NAME) PC_NVML_TABLE(NAME)
#undef NAME
};

static struct {
    pthread_mutex_t mutex;
    bool env_read;
    const char *path;
    struct stat read; /* the file as it was read last */
    struct rule rules[RULES];
    size_t count;
} injected = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static bool parse_rule(const char *text, bool fail, struct rule *rule)
{
    const char *colon = strchr(text, ':');
    if (colon == NULL)
        return false;
    size_t length = (size_t)(colon - text);
    unsigned int call = 0;
    while (call < SIM_CALLS && (strlen(names[call]) != length || memcmp(names[call], text, length) != 0))
        call++;
    if (call == SIM_CALLS)
        return false;
    *rule = (struct rule){.call = call, .first = 1, .last = UINT64_MAX};
    char *end = NULL;
    if (!fail) {
        rule->delay_us = (unsigned int)strtoul(colon + 1, &end, 10);
        return end != colon + 1 && *end == '\0';
    }
    if (colon[1] == '*') {
        end = (char *)(uintptr_t)colon + 2;
    } else {
        rule->first = strtoull(colon + 1, &end, 10);
        if (*end == '+')
            end++;
        else
            rule->last = rule->first;
    }
    if (rule->first == 0 || *end != ':')
        return false;
    rule->code = (unsigned int)strtoul(end + 1, &end, 10);
    return rule->code != 0 && *end == '\0';
}

static void add_rules(const char *list, bool fail, bool from_file)
{
    pc_auto_free char *copy = strdup(list);
    char *save = NULL;
    for (char *word = strtok_r(copy, ",", &save); word != NULL; word = strtok_r(NULL, ",", &save)) {
        struct rule rule;
        if (!parse_rule(word, fail, &rule) || injected.count == RULES) {
            fprintf(stderr, "simulated driver: cannot inject \"%s\"\n", word);
            continue;
        }
        rule.from_file = from_file;
        injected.rules[injected.count++] = rule;
    }
}

static void add_line(const char *line, bool from_file)
{
    static const char fail[] = "POOLCAP_SIM_FAIL=", delay[] = "POOLCAP_SIM_DELAY=";
    if (strncmp(line, fail, sizeof fail - 1) == 0)
        add_rules(line + sizeof fail - 1, true, from_file);
    else if (strncmp(line, delay, sizeof delay - 1) == 0)
        add_rules(line + sizeof delay - 1, false, from_file);
}

static void read_env(void)
{
    const char *fail = getenv("POOLCAP_SIM_FAIL"), *delay = getenv("POOLCAP_SIM_DELAY");
    injected.env_read = true;
    if (fail != NULL)
        add_rules(fail, true, false);
    if (delay != NULL)
        add_rules(delay, false, false);
}

static void forget_file(void)
{
    size_t kept = 0;
    for (size_t i = 0; i < injected.count; i++) {
        if (!injected.rules[i].from_file)
            injected.rules[kept++] = injected.rules[i];
    }
    injected.count = kept;
}

static void read_file(void)
{
    struct stat st = {0};
    if (injected.path == NULL)
        return;
    bool there = stat(injected.path, &st) == 0;
    if (!there)
        st = (struct stat){0};
    const struct stat *old = &injected.read;
    if (st.st_ino == old->st_ino && st.st_size == old->st_size && st.st_mtim.tv_sec == old->st_mtim.tv_sec &&
        st.st_mtim.tv_nsec == old->st_mtim.tv_nsec)
        return;
    forget_file();
    injected.read = st;
    pc_auto_file FILE *f = there ? fopen(injected.path, "re") : NULL;
    char line[1024];
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        add_line(line, true);
    }
}

void sim_inject_file(const char *path)
{
    pthread_mutex_lock(&injected.mutex);
    injected.path = path;
    pthread_mutex_unlock(&injected.mutex);
}

unsigned int sim_inject(enum sim_call_id call)
{
    unsigned int code = 0, delay_us = 0;
    pthread_mutex_lock(&injected.mutex);
    if (!injected.env_read)
        read_env();
    read_file();
    for (size_t i = 0; i < injected.count; i++) {
        struct rule *rule = &injected.rules[i];
        if (rule->call != call)
            continue;
        rule->seen++;
        if (rule->seen < rule->first || rule->seen > rule->last)
            continue;
        delay_us += rule->delay_us;
        if (rule->code != 0)
            code = rule->code;
    }
    pthread_mutex_unlock(&injected.mutex);
    if (delay_us > 0)
        nanosleep(&(struct timespec){delay_us / 1000000, (long)(delay_us % 1000000) * 1000}, NULL);
    return code;
}
