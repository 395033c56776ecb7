/* Runs the checks: each in a process group of its own with a time limit, those that may, four at a time. */
#include "tests/conformance/conformance.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SIDE_BY_SIDE = 4, LIMIT_S = 120, EXIT_SKIP = 77, EXIT_FAIL = 1, CHECKS = 256 };

struct run {
    const struct check *check;
    int number;
    pid_t pid; /* 0: not running */
    int out;   /* what the check says */
    double started;
    bool timed_out;
};

static struct check checks[CHECKS];
static size_t count;
static int passed, failed, skipped;
static bool with_notes;
static const char *only;

/* --- in the check's process --- */

static void say(const char *mark, const char *fmt, va_list args)
{
    char line[1024];
    int n = snprintf(line, sizeof line, "%s", mark);
    vsnprintf(line + n, sizeof line - (size_t)n, fmt, args);
    dprintf(STDOUT_FILENO, "%s\n", line);
}

void fail(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    say("", fmt, args);
    va_end(args);
    _exit(EXIT_FAIL);
}

void unexpected(const char *file, int line, const char *condition, const char *fmt, ...)
{
    char mark[512];
    const char *base = strrchr(file, '/');
    va_list args;
    snprintf(mark, sizeof mark, "%s:%d: not so: %s", base != NULL ? base + 1 : file, line, condition);
    va_start(args, fmt);
    say(mark, fmt, args);
    va_end(args);
    _exit(EXIT_FAIL);
}

void skip(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    say("", fmt, args);
    va_end(args);
    _exit(EXIT_SKIP);
}

void note(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    say("note: ", fmt, args);
    va_end(args);
}

/* --- in the runner --- */

double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

void pause_ms(int ms)
{
    nanosleep(&(struct timespec){ms / 1000, (long)(ms % 1000) * 1000000}, NULL);
}

static void collect(const struct check *table)
{
    for (; table->name != NULL && count < CHECKS; table++)
        checks[count++] = *table;
}

static bool selected(const struct check *check)
{
    if (only != NULL)
        return strstr(check->name, only) != NULL;
    return with_notes || (check->flags & NOTE) == 0;
}

/*
 * Waits until what the check before left on the card is gone: a killed process's memory follows within tens of ms, that
 * of a card filled to its end within seconds. In a child of its own, since it may not be the one that makes CUDA calls.
 */
static void settle_card(void)
{
    struct actor watcher = actor_start(0);
    uint64_t last = card_used(&watcher);
    for (int calm = 0, i = 0; calm < 10 && i < 300; i++) {
        pause_ms(20);
        uint64_t now = card_used(&watcher);
        calm = now == last ? calm + 1 : 0;
        last = now;
    }
    actor_kill(&watcher);
}

static void start(struct run *run, const struct check *check, int number)
{
    int ends[2];
    fflush(stdout);
    if (pipe(ends) != 0)
        abort();
    *run = (struct run){.check = check, .number = number, .out = ends[0], .started = now_us()};
    run->pid = fork();
    if (run->pid < 0)
        abort();
    if (run->pid > 0) {
        setpgid(run->pid, run->pid);
        close(ends[1]);
        return;
    }
    setpgid(0, 0);
    signal(SIGSEGV, SIG_DFL); /* a sanitizer's handler would hide what the driver did */
    signal(SIGPIPE, SIG_IGN);
    dup2(ends[1], STDOUT_FILENO);
    close(ends[0]);
    close(ends[1]);
    if ((check->flags & ALONE) != 0)
        settle_card();
    check->run();
    _exit(0);
}

/* Prints the check's notes, and gives back what else it said: the reason. */
static void split(char *text, char reason[1024])
{
    char *save = NULL;
    reason[0] = '\0';
    for (char *line = strtok_r(text, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save)) {
        if (strncmp(line, "note: ", 6) == 0)
            printf("%s\n", line);
        else
            snprintf(reason, 1024, "%s", line);
    }
}

static void report(struct run *run, int status)
{
    static char text[1 << 16];
    char reason[1024];
    size_t n = 0;
    ssize_t got;
    /* Actors that outlive their check are killed first: they hold the pipe. */
    kill(-run->pid, SIGKILL);
    while (n < sizeof text - 1 && (got = read(run->out, text + n, sizeof text - 1 - n)) > 0)
        n += (size_t)got;
    text[n] = '\0';
    close(run->out);
    split(text, reason);
    int ms = (int)((now_us() - run->started) / 1000);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        passed++;
        printf("ok %d %s (%d ms)\n", run->number, run->check->name, ms);
    } else if (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SKIP) {
        skipped++;
        printf("skipped %d %s: %s\n", run->number, run->check->name, reason);
    } else {
        failed++;
        if (run->timed_out)
            snprintf(reason, sizeof reason, "not finished after %d s", LIMIT_S);
        else if (WIFSIGNALED(status))
            snprintf(reason, sizeof reason, "ended by signal %d", WTERMSIG(status));
        printf("FAILED %d %s: %s\n", run->number, run->check->name, reason);
    }
    fflush(stdout);
    run->pid = 0;
}

/* Waits until one of the runs has ended. */
static void finish_one(struct run *runs, size_t n)
{
    for (;;) {
        for (size_t i = 0; i < n; i++) {
            int status;
            if (runs[i].pid == 0)
                continue;
            if (now_us() - runs[i].started > LIMIT_S * 1e6 && !runs[i].timed_out) {
                runs[i].timed_out = true;
                kill(-runs[i].pid, SIGKILL);
            }
            if (waitpid(runs[i].pid, &status, WNOHANG) == runs[i].pid) {
                report(&runs[i], status);
                return;
            }
        }
        pause_ms(2);
    }
}

static void run_side_by_side(size_t room, bool alone)
{
    struct run runs[SIDE_BY_SIDE] = {0};
    size_t running = 0;
    for (size_t i = 0; i < count; i++) {
        if (!selected(&checks[i]) || ((checks[i].flags & ALONE) != 0) != alone)
            continue;
        if (running == room) {
            finish_one(runs, room);
            running--;
        }
        size_t free_run = 0;
        while (runs[free_run].pid != 0)
            free_run++;
        start(&runs[free_run], &checks[i], (int)i + 1);
        running++;
    }
    for (; running > 0; running--)
        finish_one(runs, room);
}

static int usage(const char *program)
{
    fprintf(stderr,
            "usage: %s [--list] [--notes] [--only TEXT]\n"
            "  --list       print the names of the checks\n"
            "  --notes      also measure what the design asks (never fails)\n"
            "  --only TEXT  run the checks, notes too, whose names contain TEXT\n",
            program);
    return 2;
}

int main(int argc, char **argv)
{
    const struct check *const tables[] = {cap_checks,     share_checks, pin_checks, large_checks,
                                          process_checks, misc_checks,  sim_checks, note_checks};
    struct pc_error err;
    bool list = false;
    for (size_t i = 0; i < PC_ARRAY_LEN(tables); i++)
        collect(tables[i]);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--list") == 0)
            list = true;
        else if (strcmp(argv[i], "--notes") == 0)
            with_notes = true;
        else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc)
            only = argv[++i];
        else
            return usage(argv[0]);
    }
    for (size_t i = 0; list && i < count; i++)
        printf("%s%s\n", checks[i].name, checks[i].flags & NOTE ? " (--notes)" : "");
    if (list)
        return 0;
    /* Loading makes no CUDA call, so the forked checks and actors can start from it. */
    if (pc_cuda_load(NULL, &cu, &err) != PC_OK || pc_nvml_load(NULL, &nvml, &err) != PC_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    run_side_by_side(SIDE_BY_SIDE, false);
    run_side_by_side(1, true);
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed > 0 || passed + skipped == 0;
}
