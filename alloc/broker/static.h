/* The grants that stand in the configuration. */
#ifndef PC_BROKER_STATIC_H
#define PC_BROKER_STATIC_H

#include "alloc/broker/grant.h"

enum { PC_STATIC_TEXT = 512 };

/*
 * Makes the grants that are new, and applies memory, cap and pod of those that are there. Stops at the first error,
 * whose text begins with file and line; what was done until then stays. *text says what was done.
 */
enum pc_status pc_static_apply(struct pc_broker *b, const struct pc_config *config, char text[PC_STATIC_TEXT],
                               struct pc_error *err);

/* Drops the grants of an earlier poolcapd's configuration that this one's does not have. */
void pc_static_drop_missing(struct pc_broker *b, const struct pc_config *config);

/* Opens the sockets of all grants that have none and are not being dropped. */
enum pc_status pc_static_listen(struct pc_broker *b, struct pc_error *err);

#endif
