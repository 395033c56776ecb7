#include "alloc/base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The one piece of process-wide state of base: what this process prints. */
static _Atomic int log_level = PC_LOG_INFO;

static const char *const level_names[] = {"error", "warn", "info", "debug"};

void pc_log_set_level(enum pc_log_level level)
{
    atomic_store(&log_level, (int)level);
}

int pc_log_parse_level(const char *word, enum pc_log_level *out)
{
    for (int i = 0; i <= PC_LOG_DEBUG; i++) {
        if (strcmp(word, level_names[i]) == 0) {
            *out = (enum pc_log_level)i;
            return 0;
        }
    }
    return -1;
}

void pc_log(enum pc_log_level level, const char *area, const char *fmt, ...)
{
    if ((int)level > atomic_load_explicit(&log_level, memory_order_relaxed))
        return;
    char line[1024];
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    int n =
        snprintf(line, sizeof line, "%04d-%02d-%02dT%02d:%02d:%02d.%03ldZ %s %s: ", utc.tm_year + 1900, utc.tm_mon + 1,
                 utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec, now.tv_nsec / 1000000, level_names[level], area);
    if (n < 0 || (size_t)n >= sizeof line)
        return;
    va_list ap;
    va_start(ap, fmt);
    int m = vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, ap);
    va_end(ap);
    if (m < 0)
        return;
    size_t end = (size_t)n + (size_t)m;
    if (end > sizeof line - 2)
        end = sizeof line - 2;
    line[end] = '\n';
    /* A log line that cannot be written is lost: there is nowhere to say so. */
    ssize_t written = write(STDERR_FILENO, line, end + 1);
    (void)written;
}
