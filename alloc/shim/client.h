/*
 * The session with poolcapd: one socket, one outstanding request.
 *
 * When poolcapd is gone, each new need tries to connect again: at first for up to 150 ms, then once in a while (10 ms,
 * doubling to 1 s), and in between fails at once. What is held goes on working meanwhile.
 *
 * Thread rules: all under shim.slow, where nothing else is said.
 */
#ifndef PC_SHIM_CLIENT_H
#define PC_SHIM_CLIENT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/base/error.h"
#include "proto/page.h"

struct shim_gpu;

/*
 * Connected, with the page mapped and the GPUs known, when it returns PC_OK. Errors: PC_ERR_NOT_FOUND (no socket where
 * none was promised: this process is not under poolcap), PC_ERR_UNREACHABLE (and the like: fails closed).
 */
enum pc_status shim_client_connect(struct pc_error *err);

/* While set, a connection that is lost is tried once and not waited for: a free needs nothing from poolcapd. */
void shim_client_hurry(bool hurry);

uint32_t shim_client_session(void); /* counts the poolcapds it was connected to, from 1: one that lives knows a process
                                       that connects again, and all that it holds */

/* The grant's page, or NULL before the first connection. It stays mapped for the process's life. Any thread. */
extern const struct pc_page *_Atomic shim_client_page;

/* Whether a connection that there was is lost, or poolcapd has said goodbye in the page. Any thread. */
extern _Atomic bool shim_client_gone;
static inline bool shim_client_away(void)
{
    const struct pc_page *page = atomic_load_explicit(&shim_client_page, memory_order_acquire);
    return atomic_load_explicit(&shim_client_gone, memory_order_relaxed) ||
           (page != NULL && atomic_load_explicit(&page->alive, memory_order_relaxed) == 0);
}

/* What Allocate got. The descriptors are the caller's, -1 where there is none. */
struct shim_taken {
    uint64_t block, bytes, generation;
    bool new_generation;
    unsigned char data[64];
    int pool_fd, memory_fd;
};

/* The requests. Errors: those of connecting; those that poolcapd answers, with its text; PC_ERR_NOT_FOUND (the GPU is
 * not granted any more). */
enum pc_status shim_client_attach(const struct shim_gpu *gpu, struct pc_error *err);
enum pc_status shim_client_allocate(const struct shim_gpu *gpu, uint64_t bytes, bool large, struct shim_taken *out,
                                    struct pc_error *err);
enum pc_status shim_client_reserve(const struct shim_gpu *gpu, uint64_t bytes, struct pc_error *err);
enum pc_status shim_client_release(const struct shim_gpu *gpu, uint64_t bytes, struct pc_error *err);

/*
 * What is to be told with the next Free. Words of a block of an earlier poolcapd's are left out: the new one counts by
 * generation there. Words that could not be delivered are kept for as long as they mean something.
 */
void shim_client_queue_block(uint64_t id, uint32_t session, bool large);
void shim_client_queue_dropped(uint64_t generation, uint32_t session);
enum pc_status shim_client_send_queued(struct pc_error *err);

#endif
