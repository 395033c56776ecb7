/*
 * Errors: one status, one code of the layer below, one text for people.
 *
 * A function that can fail returns enum pc_status and takes `struct pc_error *err` last. The error
 * is made once, where it happened, passed up unchanged, and printed once. The object belongs to
 * the caller, lives on its stack, and holds its text inline: nothing is allocated, so the same
 * convention serves poolcapd and the shim. `err` may be NULL when only the status matters.
 * Outputs are written on success only.
 */
#ifndef PC_BASE_ERROR_H
#define PC_BASE_ERROR_H

#include <stdarg.h>

/* Values travel in the protocol (proto/poolcap.proto, Reply.status): append, never renumber. */
enum pc_status {
    PC_OK = 0,
    PC_ERR_INVALID = 1,         /* bad argument or bad input; the text names the fix */
    PC_ERR_OUT_OF_MEMORY = 2,   /* device memory: over a cap, or the card is full */
    PC_ERR_NOT_INITIALISED = 3, /* the driver library is missing, too old, or cuInit failed */
    PC_ERR_DEVICE = 4,          /* no such GPU, its context cannot be made, or it is broken */
    PC_ERR_POOL_CREATE = 5,
    PC_ERR_SET_ATTRIBUTE = 6,
    PC_ERR_DRIVER = 7, /* any other driver call failed; code is the CUresult */
    PC_ERR_NOT_SUPPORTED = 8,
    PC_ERR_CAPTURE = 9,      /* cannot be done while a stream is being captured */
    PC_ERR_HOST_MEMORY = 10, /* malloc or mmap of host memory failed */
    PC_ERR_IO = 11,          /* a system call failed; code is errno */
    PC_ERR_PROTOCOL = 12,    /* the peer broke the protocol */
    PC_ERR_DENIED = 13,      /* the peer is not who it has to be, or may not do this */
    PC_ERR_EXISTS = 14,
    PC_ERR_NOT_FOUND = 15,
    PC_ERR_UNREACHABLE = 16, /* poolcapd cannot be reached; new requests fail closed */
    PC_ERR_BUSY = 17,        /* later may work: still in use, or being cleaned up */
};

enum { PC_ERROR_TEXT = 512 };

struct pc_error {
    enum pc_status status;
    int code; /* CUresult, nvmlReturn_t or errno of the layer below; 0 where there is none */
    char text[PC_ERROR_TEXT];
};

/* Fills *err (which may be NULL) and returns status, so that callers write `return pc_error_set(...)`. */
enum pc_status pc_error_set(struct pc_error *err, enum pc_status status, int code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* As pc_error_set with PC_ERR_IO and errno's value; strerror's text is appended. */
enum pc_status pc_error_errno(struct pc_error *err, int errnum, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts "prefix: " before the text of *err; for a caller that knows the file or the grant. Returns err's status. */
enum pc_status pc_error_prefix(struct pc_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Short name of a status for logs and metrics ("out_of_memory"). Never NULL. */
const char *pc_status_name(enum pc_status status);

#endif
