#include "alloc/base/error.h"

#include <stdio.h>
#include <string.h>

static enum pc_status set_text(struct pc_error *err, enum pc_status status, int code, const char *fmt, va_list ap)
{
    if (err == NULL)
        return status;
    err->status = status;
    err->code = code;
    vsnprintf(err->text, sizeof err->text, fmt, ap);
    return status;
}

enum pc_status pc_error_set(struct pc_error *err, enum pc_status status, int code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    set_text(err, status, code, fmt, ap);
    va_end(ap);
    return status;
}

enum pc_status pc_error_errno(struct pc_error *err, int errnum, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    set_text(err, PC_ERR_IO, errnum, fmt, ap);
    va_end(ap);
    if (err != NULL) {
        /* strerrordesc_np would be a newer glibc than the shim may ask for; strerror's race is harmless here. */
        size_t used = strlen(err->text);
        snprintf(err->text + used, sizeof err->text - used, ": %s", strerror(errnum));
    }
    return PC_ERR_IO;
}

enum pc_status pc_error_prefix(struct pc_error *err, const char *fmt, ...)
{
    if (err == NULL)
        return PC_OK;
    char old[PC_ERROR_TEXT];
    memcpy(old, err->text, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n + 3 < sizeof err->text)
        snprintf(err->text + n, sizeof err->text - (size_t)n, ": %.*s", (int)(sizeof old - (size_t)n - 3), old);
    return err->status;
}

const char *pc_status_name(enum pc_status status)
{
    static const char *const names[] = {
        [PC_OK] = "ok",
        [PC_ERR_INVALID] = "invalid",
        [PC_ERR_OUT_OF_MEMORY] = "out_of_memory",
        [PC_ERR_NOT_INITIALISED] = "not_initialised",
        [PC_ERR_DEVICE] = "device",
        [PC_ERR_POOL_CREATE] = "pool_create",
        [PC_ERR_SET_ATTRIBUTE] = "set_attribute",
        [PC_ERR_DRIVER] = "driver",
        [PC_ERR_NOT_SUPPORTED] = "not_supported",
        [PC_ERR_CAPTURE] = "capture",
        [PC_ERR_HOST_MEMORY] = "host_memory",
        [PC_ERR_IO] = "io",
        [PC_ERR_PROTOCOL] = "protocol",
        [PC_ERR_DENIED] = "denied",
        [PC_ERR_EXISTS] = "exists",
        [PC_ERR_NOT_FOUND] = "not_found",
        [PC_ERR_UNREACHABLE] = "unreachable",
        [PC_ERR_BUSY] = "busy",
    };
    if ((unsigned)status >= sizeof names / sizeof names[0])
        return "unknown";
    return names[status];
}
