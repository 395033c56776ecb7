/*
 * Start-up from the books of the poolcapd before. Every promise is kept: grants are made again, processes keep their
 * charges, and every pool that somebody may have imported is charged WHOLE to its tenant, whatever anybody claims: one
 * import pins all that was ever exported (trap 13). The dead are not told from the living here: all are taken over, and
 * the witness finds out. Records are gone on with in place, so a poolcapd that is killed meanwhile leaves them as good.
 */
#ifndef PC_BROKER_INHERIT_H
#define PC_BROKER_INHERIT_H

#include "alloc/broker/state.h"

/* Runs before any socket is opened. What cannot be taken over stays in the file and is said in the log. */
void pc_inherit(struct pc_broker *b);

#endif
