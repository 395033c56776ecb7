/* poolcapd: parses, starts, serves, stops. What it does stands in state.h. */
#include <stdio.h>

#include "alloc/base/log.h"
#include "alloc/broker/broker.h"

static int fail(const struct pc_error *err)
{
    fprintf(stderr, "poolcapd: %s\n", err->text);
    return 1;
}

static int serve(struct pc_broker *broker)
{
    struct pc_error err = {.text = ""};
    pc_log_set_level(broker->config.log_level);
    pc_loop_block_signals();
    enum pc_status status = pc_broker_start(broker, &err);
    if (status == PC_OK) {
        pc_log_info("broker", "poolcapd " POOLCAP_VERSION " serves in %s", broker->config.run_directory);
        status = pc_loop_run(broker->loop, &err);
    }
    pc_broker_stop(broker);
    return status == PC_OK ? 0 : fail(&err);
}

int main(int argc, char **argv)
{
    static struct pc_broker broker;
    struct pc_error err = {.text = ""};
    enum pc_option_action action;
    if (pc_config_load(argc, argv, &broker.config, &action, &err) != PC_OK)
        return fail(&err);
    switch (action) {
    case PC_OPTIONS_HELP:
        pc_config_usage();
        return 0;
    case PC_OPTIONS_VERSION:
        puts("poolcapd " POOLCAP_VERSION);
        return 0;
    case PC_OPTIONS_CHECK:
        printf("the configuration is good: %u grants\n", broker.config.grants);
        return 0;
    case PC_OPTIONS_DOCS:
        pc_config_docs();
        return 0;
    case PC_OPTIONS_RUN:
        break;
    }
    return serve(&broker);
}
