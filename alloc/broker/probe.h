/*
 * What poolcapd has to know of a GPU before it grants anything on it: what a context costs, what the card can give, and
 * that its driver keeps a pool's maxSize. Runs at start, on the calling thread; makes the first allocation of the
 * context too, which takes 12 ms, so that no tenant waits for it.
 */
#ifndef PC_BROKER_PROBE_H
#define PC_BROKER_PROBE_H

#include <stdbool.h>
#include <stdint.h>

#include "alloc/broker/watcher.h"
#include "alloc/pool/device.h"

struct pc_probe {
    uint64_t context_bytes;    /* what one context costs by NVML's process list: the least that a process is charged */
    bool context_guessed;      /* NVML did not say it: other programs' memory may be in it */
    uint64_t context_overhead; /* what it costs the card beyond that (5 MiB on an H200) */
    uint64_t room;             /* bytes that the card has for tenants */
    uint64_t granularity;      /* of large memory */
    int64_t leftover;          /* bytes in use on the card that no process's entry explains */
};

/*
 * Makes the context of GPU `ordinal` and measures. nvml may be NULL.
 * Errors: PC_ERR_DEVICE, PC_ERR_NOT_SUPPORTED (the driver does not keep maxSize; the text names its version).
 */
enum pc_status pc_probe_gpu(struct pc_devices *devices, const struct pc_nvml *nvml, const struct pc_device_info *info,
                            struct pc_probe *out, struct pc_device **device, struct pc_error *err);

/* Bytes in use on a card that are in no process's entry; overhead is what each process costs beyond its entry. */
int64_t pc_probe_leftover(const struct pc_card_view *card, uint64_t overhead);

#endif
