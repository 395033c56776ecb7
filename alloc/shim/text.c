/* What the caller is told: names of statuses, and the text behind the last one of a thread. */
#include <stdarg.h>
#include <stdio.h>

#include "alloc/shim/state.h"

/* The only thing kept for each thread: small, so that a late dlopen of the library finds room for it. */
enum { LAST_ERROR = 256 };
static __thread char last_error[LAST_ERROR];

#define API __attribute__((visibility("default")))

API const char *poolcap_last_error(void)
{
    return last_error;
}

API const char *poolcap_status_text(poolcap_status status)
{
    switch (status) {
    case POOLCAP_OK:
        return "ok";
    case POOLCAP_INVALID:
        return "invalid argument";
    case POOLCAP_OUT_OF_MEMORY:
        return "out of memory under this pod's cap";
    case POOLCAP_UNAVAILABLE:
        return "not under poolcap: no driver, no GPU or no socket";
    case POOLCAP_UNREACHABLE:
        return "poolcapd cannot be reached; new memory is refused";
    case POOLCAP_CAPTURE:
        return "a stream is being captured and no memory already held fits";
    case POOLCAP_DRIVER:
        return "a driver call failed";
    case POOLCAP_FORKED:
        return "called in a forked child";
    case POOLCAP_UNSUPPORTED:
        return "not supported by this driver or GPU";
    }
    return "unknown status";
}

API unsigned int poolcap_to_curesult(poolcap_status status)
{
    switch (status) {
    case POOLCAP_OK:
        return PC_CU_SUCCESS;
    case POOLCAP_INVALID:
        return PC_CU_ERROR_INVALID_VALUE;
    case POOLCAP_OUT_OF_MEMORY:
    case POOLCAP_UNREACHABLE: /* frameworks know what to do about this one: free something, try again, or stop */
        return PC_CU_ERROR_OUT_OF_MEMORY;
    case POOLCAP_UNAVAILABLE:
    case POOLCAP_FORKED: /* as CUDA itself says in a forked child */
        return PC_CU_ERROR_NOT_INITIALIZED;
    case POOLCAP_CAPTURE:
        return PC_CU_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    case POOLCAP_UNSUPPORTED:
        return PC_CU_ERROR_NOT_SUPPORTED;
    case POOLCAP_DRIVER:
        return PC_CU_ERROR_UNKNOWN;
    }
    return PC_CU_ERROR_UNKNOWN;
}

poolcap_status shim_fail(poolcap_status status, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(last_error, sizeof last_error, fmt, ap);
    va_end(ap);
    return status;
}

/* What a status of the layers below, or of poolcapd, means to a program. Whatever is not sure fails closed. */
static poolcap_status status_of(enum pc_status status)
{
    switch (status) {
    case PC_OK:
        return POOLCAP_OK;
    case PC_ERR_INVALID:
        return POOLCAP_INVALID;
    case PC_ERR_OUT_OF_MEMORY:
    case PC_ERR_HOST_MEMORY:
        return POOLCAP_OUT_OF_MEMORY;
    case PC_ERR_NOT_INITIALISED:
    case PC_ERR_NOT_FOUND: /* no socket, or a GPU that was not granted */
        return POOLCAP_UNAVAILABLE;
    case PC_ERR_UNREACHABLE:
    case PC_ERR_IO:
    case PC_ERR_PROTOCOL:
    case PC_ERR_DENIED:
    case PC_ERR_BUSY:
        return POOLCAP_UNREACHABLE;
    case PC_ERR_CAPTURE:
        return POOLCAP_CAPTURE;
    case PC_ERR_NOT_SUPPORTED:
        return POOLCAP_UNSUPPORTED;
    default:
        return POOLCAP_DRIVER;
    }
}

poolcap_status shim_fail_error(const struct pc_error *err)
{
    return shim_fail(status_of(err->status), "%.*s", LAST_ERROR - 1, err->text);
}

poolcap_status shim_begin(void)
{
    struct pc_error err;
    bool forked;
    if (shim_alive() || shim_start(&forked, &err) == PC_OK)
        return POOLCAP_OK;
    if (forked)
        return shim_fail(POOLCAP_FORKED, "%s", err.text);
    return shim_fail_error(&err);
}
