/* What text from outside must be before it goes into our books, logs and messages. */
#ifndef PC_PLUGIN_TEXT_H
#define PC_PLUGIN_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* True for UTF-8 (RFC 3629: shortest form, no surrogates, at most U+10FFFF) without NUL bytes; also for no bytes. */
bool pc_utf8_ok(const uint8_t *bytes, size_t length);

/*
 * True for 1 to max bytes of it without control characters. protobuf-c takes any bytes for a string (facts f). text may
 * be NULL, which is not text.
 */
bool pc_text_ok(const char *text, size_t max);

#endif
