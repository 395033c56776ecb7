/* Start and stop of poolcapd, and what ties its parts together. */
#ifndef PC_BROKER_BROKER_H
#define PC_BROKER_BROKER_H

#include "alloc/broker/state.h"

/*
 * Opens everything; what is served afterwards is served by pc_loop_run(b->loop). b is zeroed but for its config.
 * SIGTERM and SIGINT are blocked in all threads. After an error pc_broker_stop cleans up.
 */
enum pc_status pc_broker_start(struct pc_broker *b, struct pc_error *err);

/*
 * Says on the pages that poolcapd is away, and closes. Pools are not drained: the memory of living tenants stays with
 * them, exactly as if poolcapd had been killed, and the next one inherits it.
 */
void pc_broker_stop(struct pc_broker *b);

#endif
