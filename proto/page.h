/*
 * The sealed page of a grant: its cap and charge, in memory that its processes map read-only, so that cuMemGetInfo and
 * the idle rule cost no call.
 *
 * A memfd of PC_PAGE_BYTES, written by poolcapd through a mapping made before F_SEAL_FUTURE_WRITE | SHRINK | GROW |
 * SEAL were set; sent to every session with HelloReply. One writer (poolcapd's loop thread), any number of readers.
 *
 * Each GPU's figures are guarded by a sequence lock: odd while being written. A poolcapd that is killed in between
 * leaves it odd for ever, so readers try a bounded number of times and then use what they last had.
 */
#ifndef PC_PROTO_PAGE_H
#define PC_PROTO_PAGE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { PC_PAGE_GPUS_MAX = 16, PC_PAGE_BYTES = 4096, PC_PAGE_VERSION = 1 };
#define PC_PAGE_MAGIC 0x70616363u /* "ccap" */

struct pc_page_gpu {
    _Atomic uint32_t sequence;
    _Atomic uint32_t wanted;  /* MiB that another process of the tenant is short of; 0: nothing */
    _Atomic uint64_t cap;     /* bytes: the grant's cap on this GPU */
    _Atomic uint64_t charged; /* bytes charged to the grant */
    _Atomic uint64_t room;    /* bytes that a request of this grant could still get (the smaller of grant and tenant) */
    uint64_t reserved[4];
};

struct pc_page {
    uint32_t magic;
    uint32_t version;
    uint64_t epoch;
    _Atomic uint32_t
        alive; /* 1 while poolcapd serves; 0 after an orderly stop. A killed one leaves 1: the socket tells */
    uint32_t gpus;
    uint64_t reserved[4];
    struct pc_page_gpu gpu[PC_PAGE_GPUS_MAX];
};
_Static_assert(sizeof(struct pc_page) <= PC_PAGE_BYTES, "the page fits");

struct pc_page_figures {
    uint64_t cap, charged, room;
};

/* Reads one GPU's figures. False, and *out untouched, when the writer was caught (or died) in the middle. */
static inline bool pc_page_read(const struct pc_page_gpu *gpu, struct pc_page_figures *out)
{
    for (int i = 0; i < 64; i++) {
        uint32_t before = atomic_load_explicit(&gpu->sequence, memory_order_acquire);
        struct pc_page_figures figures = {
            .cap = atomic_load_explicit(&gpu->cap, memory_order_relaxed),
            .charged = atomic_load_explicit(&gpu->charged, memory_order_relaxed),
            .room = atomic_load_explicit(&gpu->room, memory_order_relaxed),
        };
        atomic_thread_fence(memory_order_acquire);
        if ((before & 1) == 0 && atomic_load_explicit(&gpu->sequence, memory_order_relaxed) == before) {
            *out = figures;
            return true;
        }
    }
    return false;
}

/* Writes one GPU's figures; one writer only. */
static inline void pc_page_write(struct pc_page_gpu *gpu, const struct pc_page_figures *figures)
{
    uint32_t sequence = atomic_load_explicit(&gpu->sequence, memory_order_relaxed);
    atomic_store_explicit(&gpu->sequence, sequence + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&gpu->cap, figures->cap, memory_order_relaxed);
    atomic_store_explicit(&gpu->charged, figures->charged, memory_order_relaxed);
    atomic_store_explicit(&gpu->room, figures->room, memory_order_relaxed);
    atomic_store_explicit(&gpu->sequence, sequence + 2, memory_order_release);
}

#endif
