/* How poolcapctl prints what is listed: a table for people, or JSON. */
#ifndef PC_BROKER_CTL_PRINT_H
#define PC_BROKER_CTL_PRINT_H

#include <stdbool.h>

#include "proto/wire.h"

/* On stdout: the GPUs and the head of the grants; each grant, `first` being the first one; the end. */
void pc_ctl_print_head(bool json, const Poolcap__AdminListReply *list);
void pc_ctl_print_grant(bool json, const Poolcap__AdminGrant *grant, bool first);
void pc_ctl_print_end(bool json);

#endif
