/*
 * Log lines on stderr: "2026-12-01T01:02:03.456Z info broker: text". One write(2) a line, so lines
 * of several threads and processes do not mix. Thread-safe.
 */
#ifndef PC_BASE_LOG_H
#define PC_BASE_LOG_H

enum pc_log_level { PC_LOG_ERROR = 0, PC_LOG_WARN = 1, PC_LOG_INFO = 2, PC_LOG_DEBUG = 3 };

/* Sets what is printed in this process; the default is PC_LOG_INFO. Call before threads start. */
void pc_log_set_level(enum pc_log_level level);

/* Parses "error", "warn", "info" or "debug"; returns 0, or -1 for another word. */
int pc_log_parse_level(const char *word, enum pc_log_level *out);

/* Writes one line. area is the part of the program that speaks ("broker", "worker", "shim"). */
void pc_log(enum pc_log_level level, const char *area, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#define pc_log_error(area, ...) pc_log(PC_LOG_ERROR, area, __VA_ARGS__)
#define pc_log_warn(area, ...) pc_log(PC_LOG_WARN, area, __VA_ARGS__)
#define pc_log_info(area, ...) pc_log(PC_LOG_INFO, area, __VA_ARGS__)
#define pc_log_debug(area, ...) pc_log(PC_LOG_DEBUG, area, __VA_ARGS__)

#endif
