/* The key `grants` of poolcapd's file: the one that is no plain setting. */
#ifndef PC_BROKER_CONFIG_GRANTS_H
#define PC_BROKER_CONFIG_GRANTS_H

#include "alloc/broker/config.h"
#include "alloc/options/yaml.h"

/* As pc_option_table.other; config is a struct pc_config, whose grant[] is allocated here. */
enum pc_status pc_config_grants_read(struct pc_yaml *yaml, const char *key, int value, void *config, bool *known);

#endif
