/* The list that the admin socket answers with, a page at a time. */
#ifndef PC_BROKER_ADMIN_LIST_H
#define PC_BROKER_ADMIN_LIST_H

#include "alloc/broker/grant.h"

struct pc_admin_list;

/* The grants whose names come behind `after`, by name, as many as fit a packet. NULL without host memory. */
struct pc_admin_list *pc_admin_list_make(struct pc_broker *b, const char *after);
Poolcap__AdminListReply *pc_admin_list_reply(struct pc_admin_list *list); /* lives as long as the list and the grants */
void pc_admin_list_free(struct pc_admin_list *list);

#endif
