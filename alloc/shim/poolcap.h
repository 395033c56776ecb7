/*
 * libpoolcap: GPU memory under this pod's cap.
 *
 * Memory comes from pools that the node's poolcapd owns and caps. The library holds slabs of them and carves them up,
 * so in the steady state an allocation makes no system call and no round trip.
 *
 * Needs libc only. CUDA is opened at run time with the program's first call; a program without a GPU, without CUDA or
 * without a socket gets POOLCAP_UNAVAILABLE and is otherwise left alone. The library has no constructor and starts no
 * thread.
 *
 * Where it connects: the socket named by POOLCAP_SOCKET, else /run/poolcap/poolcap.sock (where a grant's directory is
 * mounted in a pod).
 *
 * Units are bytes. Thread-safe throughout. After fork() the child must not use CUDA, nor this library (CUDA's own
 * rule): every call answers POOLCAP_FORKED there.
 *
 * Contexts: calls that take a stream work on the CUDA context that is current on the calling thread, as the driver's
 * own calls do; where none is current, the primary context of the first granted GPU is made current.
 */
#ifndef POOLCAP_H
#define POOLCAP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define POOLCAP_VERSION_MAJOR 0
#define POOLCAP_VERSION_MINOR 1

/* What a call answers. Values are stable. */
typedef enum poolcap_status {
    POOLCAP_OK = 0,
    POOLCAP_INVALID = 1,       /* bad argument: null, zero bytes, unknown pointer */
    POOLCAP_OUT_OF_MEMORY = 2, /* over the cap, or the pool of another process of this pod holds the rest */
    POOLCAP_UNAVAILABLE = 3,   /* no driver, no GPU, or no socket in this process: not capped by poolcap */
    POOLCAP_UNREACHABLE = 4,   /* poolcapd is away: what is held works on, new memory is refused (fails closed) */
    POOLCAP_CAPTURE = 5,       /* a stream is being captured and no memory already held fits */
    POOLCAP_DRIVER = 6,        /* a driver call failed; poolcap_last_error() names it */
    POOLCAP_FORKED = 7,        /* called in a forked child */
    POOLCAP_UNSUPPORTED = 8    /* this driver or GPU cannot do it */
} poolcap_status;

/* The CUresult that a program expects for a status (2 for OUT_OF_MEMORY and for UNREACHABLE, 999 never for either). */
unsigned int poolcap_to_curesult(poolcap_status status);

/* A device address, as CUdeviceptr; a stream, as CUstream (NULL, 1 and 2 have CUDA's meaning). */
typedef uint64_t poolcap_ptr;
typedef void *poolcap_stream;

enum {
    POOLCAP_POOLED = 0, /* the rule: capped by ledger, driver and watch */
    POOLCAP_DIRECT = 1  /* the process's own cuMemAlloc, charged in pieces of 2 MiB: for buffers that are exported,
                           RDMA-registered or dma-buf'd, which pool memory cannot be */
};

/*
 * Allocates bytes (> 0), aligned to 256 or more (512 like cuMemAlloc). The memory may be used at once by work on
 * `stream`; by other streams once they are ordered behind it, as with cuMemAllocAsync. Memory that other processes of
 * the pod used before reads zero; memory that this process freed keeps its bytes. Over 4064 MiB the memory is a mapping
 * of its own. *out is written on POOLCAP_OK only.
 */
poolcap_status poolcap_alloc(poolcap_ptr *out, size_t bytes, poolcap_stream stream, unsigned int flags);

/*
 * Frees in stream order: work already queued on `stream` may still use the memory. It is reusable at once by
 * allocations on the same stream, by others after the work queued so far. The stream must outlive the memory's reuse:
 * say poolcap_stream_gone before cuStreamDestroy. A null pointer is POOLCAP_OK.
 *
 * While a stream is being captured, memory already held is handed out and nothing is asked of the driver. What is freed
 * on it stays that stream's own until the capture has ended, and is free for all after that: a graph that is launched
 * later still uses its addresses, so memory of a graph is freed when the graph is destroyed, not inside the capture;
 * and a graph's launch has to be ordered behind the work that was queued on the stream when it was captured.
 */
poolcap_status poolcap_free(poolcap_ptr ptr, poolcap_stream stream);

/*
 * A stream (or a context with all its streams) is about to be destroyed. Waits for its work and makes what was freed on
 * it free for all.
 */
poolcap_status poolcap_stream_gone(poolcap_stream stream);
poolcap_status poolcap_context_gone(void *context);

/* Gives idle slabs back to the pod's pool, keeping at most `keep` bytes idle on each GPU. *given (may be NULL): bytes.
 */
poolcap_status poolcap_trim(size_t keep, size_t *given);

/* Figures of the GPU of the current context, without a round trip: what cuMemGetInfo should say under the cap. */
typedef struct poolcap_memory {
    uint64_t total;   /* the grant's cap */
    uint64_t free;    /* what this process could still get: room in the cap and its own idle slabs */
    uint64_t charged; /* to the grant, all its processes */
    uint64_t held;    /* slabs and large memory of this process */
    uint64_t live;    /* of that, handed out to the program */
    uint64_t direct;  /* charged direct and managed memory of this process */
} poolcap_memory;
poolcap_status poolcap_info(poolcap_memory *out);

/*
 * One line for people: "capped: yes, 4Gi on GPU-..., 1.2Gi charged" or "capped: no, because ...". Writes at most size
 * bytes with the final 0; connects if that has not happened yet.
 */
poolcap_status poolcap_describe(char *text, size_t size);

const char *poolcap_status_text(poolcap_status status);

/* The text behind the last status of this thread other than POOLCAP_OK; "" where there is none. Valid till the next
 * call. */
const char *poolcap_last_error(void);

/* Managed (unified) memory, charged in full against the cap. */
typedef struct poolcap_managed poolcap_managed;
enum { POOLCAP_OWN_GPU = -1, POOLCAP_HOST = -2 }; /* or a CUDA ordinal */
typedef enum poolcap_advice {
    POOLCAP_READ_MOSTLY = 0,
    POOLCAP_PREFERRED_LOCATION = 1,
    POOLCAP_ACCESSED_BY = 2
} poolcap_advice;
poolcap_status poolcap_managed_alloc(poolcap_managed **out, size_t bytes);
poolcap_status poolcap_managed_free(poolcap_managed *buffer);
poolcap_ptr poolcap_managed_ptr(const poolcap_managed *buffer);
poolcap_status poolcap_managed_prefetch(poolcap_managed *buffer, int where, poolcap_stream stream);
poolcap_status poolcap_managed_advise(poolcap_managed *buffer, poolcap_advice advice, int set, int where);

#ifdef __cplusplus
}
#endif

#endif
