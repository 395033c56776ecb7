/* The admin socket: what poolcapctl and the plugin ask. Who can open it may do everything. */
#ifndef PC_BROKER_ADMIN_H
#define PC_BROKER_ADMIN_H

#include "alloc/broker/grant.h"

enum pc_status pc_admin_open(struct pc_broker *b, struct pc_error *err);
void pc_admin_close(struct pc_broker *b);

/* A dropped grant is gone, with its directory: answers those who wait for it. */
void pc_admin_grant_ended(struct pc_broker *b, const char *name);

#endif
