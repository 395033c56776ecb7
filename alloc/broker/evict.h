/*
 * Ending generations that nobody uses, and seeing that their memory has left the card.
 *
 * A pool that its exporter destroys stays on the card for as long as one importer keeps it (trap 3), and leaves the
 * exporter's entry in NVML's list at once all the same (H200). So:
 *  - no process ever had it, or all that had it are dead: its charge ends when it is destroyed;
 *  - processes that live have said that they dropped it: they may lie. Then the generation stays charged until the card
 *    is seen to have the memory back, that is, until the bytes in use that are in no process's entry are what they were
 *    before. One such generation at a time is destroyed and watched on a GPU, so that one tenant's lie is never billed
 *    to another. What is not seen to go within a second stays charged until those processes are dead.
 * Generations of an earlier poolcapd are in no entry from the start. Those whose importers have all said that they
 * dropped them end together, once the bytes in no entry are no more than the rest of the inherited ones explains.
 */
#ifndef PC_BROKER_EVICT_H
#define PC_BROKER_EVICT_H

#include "alloc/broker/generation.h"

/* Starts to end every generation that nobody uses; true when there was one, or one is under way. */
bool pc_evict_unused(struct pc_tenant *tenant);

/* An importer died or said that it dropped it: ends what thereby became provable. */
void pc_evict_importers_changed(struct pc_generation *generation);

/* Looks at a snapshot for all GPUs. */
void pc_evict_look(struct pc_broker *b, const struct pc_snapshot *snapshot);

/* Whether memory of the tenant may be about to be free without anybody's doing. */
bool pc_evict_pending(const struct pc_tenant *tenant);

#endif
