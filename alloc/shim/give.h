/*
 * Giving memory back to the pod's pool.
 *
 * A slab goes back whole, when nothing of it is used and the work behind its last uses is done. First the import is
 * freed and synchronised, then poolcapd is told (facts, traps 6 and 10); the imported pool of a generation goes with
 * its last slab, and poolcapd is told of that after it has gone.
 *
 * The idle rule: a process keeps at most max(64 MiB, 1/8 of its live bytes) idle, so that it does not starve its
 * siblings in the pod. A program that frees and allocates in a rhythm would pay for that in each round: after memory
 * that was given back has been asked for again within 100 ms the rule rests for 100 ms.
 */
#ifndef PC_SHIM_GIVE_H
#define PC_SHIM_GIVE_H

#include <stdbool.h>
#include <stdint.h>

#include "alloc/base/error.h"
#include "alloc/shim/gpu.h"

/*
 * Gives ready slabs back until at most `keep` bytes are idle, those of earlier sessions whatever keep is. Polls events
 * first; waits for none. current: as for shim_streams_poll. *given (may be NULL): bytes.
 * Errors: those of connecting; what could be freed is gone from this process all the same.
 * Under shim.slow, without the heap's lock.
 */
enum pc_status shim_give(struct shim_gpu *gpu, uint64_t current, uint64_t keep, uint64_t *given, struct pc_error *err);

/* Whether the idle rule, or another process's want, asks for something that there is. Under the heap's lock. */
bool shim_give_due(const struct shim_gpu *gpu);

/* What the idle rule leaves. Under the heap's lock. */
uint64_t shim_give_keep(const struct shim_gpu *gpu);

/* After a free found something due. Waits for no lock and for no event. Called without locks. */
void shim_give_idle(struct shim_gpu *gpu, uint64_t current);

#endif
