/*
 * The thread that asks NVML: what each card holds and which processes have how much of it. NVML calls take from 10 us
 * to many ms and can hang with the driver, so they never run on the loop thread.
 *
 * A snapshot is delivered to the loop; the next is taken only after it was looked at.
 */
#ifndef PC_BROKER_WATCHER_H
#define PC_BROKER_WATCHER_H

#include <stdbool.h>
#include <stdint.h>

#include "alloc/base/error.h"
#include "alloc/base/loop.h"
#include "alloc/driver/driver.h"

struct pc_watcher;

struct pc_card_view {
    bool memory_valid, list_valid;  /* the call succeeded */
    uint64_t total, reserved, used; /* bytes */
    unsigned count;
    struct pc_nvml_process *process;
};

struct pc_snapshot {
    uint64_t started_ns; /* pc_loop_now_ns before the first call: all that was so before is in it */
    unsigned cards;
    struct pc_card_view card[];
};

/* Takes one snapshot on the calling thread; for start-up. uuids: of the cards, in the order of snapshot.card. */
struct pc_snapshot *pc_snapshot_take(const struct pc_nvml *nvml, const char *const *uuids, unsigned cards);
void pc_snapshot_free(struct pc_snapshot *snapshot);

/* The process's entry on a card; NULL where the list does not name it. */
const struct pc_nvml_process *pc_card_process(const struct pc_card_view *card, int64_t pid);

typedef void (*pc_snapshot_fn)(const struct pc_snapshot *snapshot, void *arg);

/* nvml and uuids must live as long as the watcher. Errors: PC_ERR_HOST_MEMORY, PC_ERR_IO. */
enum pc_status pc_watcher_create(struct pc_loop *loop, const struct pc_nvml *nvml, const char *const *uuids,
                                 unsigned cards, pc_snapshot_fn callback, void *arg, struct pc_watcher **out,
                                 struct pc_error *err);

/* The pause between snapshots. A shorter one than before takes effect at once. */
void pc_watcher_set_interval(struct pc_watcher *watcher, unsigned ms);

void pc_watcher_stop(struct pc_watcher *watcher, unsigned wait_ms); /* as pc_worker_stop */

#endif
