/* poolcapd: see broker.h. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "alloc/base/log.h"
#include "alloc/broker/broker.h"

static int fail(const struct pc_error *err)
{
    fprintf(stderr, "poolcapd: %s\n", err->text);
    return 1;
}

/* Threads that libraries start must not take our signals: they are read from a descriptor of the loop. */
static void mask_signals(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
}

int main(int argc, char **argv)
{
    static struct pc_broker broker;
    struct pc_error err = {.text = ""};
    enum pc_config_action action;
    if (pc_config_load(argc, argv, &broker.config, &action, &err) != PC_OK)
        return fail(&err);
    if (action == PC_CONFIG_HELP) {
        pc_config_usage();
        return 0;
    }
    if (action == PC_CONFIG_VERSION) {
        puts("poolcapd " POOLCAP_VERSION);
        return 0;
    }
    if (action == PC_CONFIG_CHECK) {
        printf("the configuration is good: %u grants\n", broker.config.grants);
        return 0;
    }
    pc_log_set_level(broker.config.log_level);
    mask_signals();
    enum pc_status status = pc_broker_start(&broker, &err);
    if (status == PC_OK) {
        pc_log_info("broker", "serving %u GPUs in %s", broker.gpus, broker.config.run_directory);
        status = pc_loop_run(broker.loop, &err);
    }
    pc_broker_stop(&broker);
    return status == PC_OK ? 0 : fail(&err);
}
