/* poolcap-plugin: parses, wires, runs the loop. What it does stands in node/node.h. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "alloc/base/log.h"
#include "plugin/config.h"
#include "plugin/metrics/server.h"
#include "plugin/node/node.h"

struct program {
    struct pc_plugin_config config;
    struct pc_loop *loop;
    struct pc_rpc *rpc;
    struct pc_api *api;
    struct pc_node *node;
    struct pc_metrics_server *metrics;
};

static int fail(const struct pc_error *err)
{
    fprintf(stderr, "poolcap-plugin: %s\n", err->text);
    return 1;
}

static void on_signal(struct pc_loop *loop, int number, void *arg)
{
    (void)arg;
    pc_log_info("plugin", "signal %d: ends; grants and running pods stay as they are", number);
    pc_loop_stop(loop);
}

static char *give_metrics(void *arg, size_t *length)
{
    return pc_node_metrics(arg, length);
}

static bool is_ready(void *arg, const char **why)
{
    return pc_node_ready(arg, why);
}

static enum pc_status open_api(struct program *p, struct pc_error *err)
{
    const struct pc_api_config api = {
        .kubeconfig = p->config.kubeconfig,
        .user_agent = "poolcap-plugin/" POOLCAP_VERSION,
    };
    if (!p->config.api_server) {
        pc_log_warn("plugin", "no API server is used: annotations do not lower caps, and kubectl shows no state");
        return PC_OK;
    }
    return pc_api_create(p->loop, &api, &p->api, err);
}

static enum pc_status start(struct program *p, struct pc_error *err)
{
    static const struct pc_metrics_ops ops = {.metrics = give_metrics, .ready = is_ready};
    enum pc_status status = pc_loop_create(&p->loop, err);
    if (status == PC_OK)
        status = pc_loop_signal(p->loop, SIGTERM, on_signal, NULL, err);
    if (status == PC_OK)
        status = pc_loop_signal(p->loop, SIGINT, on_signal, NULL, err);
    if (status == PC_OK)
        status = pc_rpc_create(p->loop, &p->rpc, err);
    if (status == PC_OK)
        status = open_api(p, err);
    if (status == PC_OK)
        status = pc_node_start(p->loop, p->rpc, p->api, &p->config, &p->node, err);
    if (status == PC_OK && p->config.metrics_address[0] != '\0')
        status = pc_metrics_start(p->loop, p->config.metrics_address, &ops, p->node, &p->metrics, err);
    return status;
}

static int serve(struct program *p)
{
    struct pc_error err = {.text = ""};
    pc_log_set_level(p->config.log_level);
    pc_loop_block_signals();
    enum pc_status status = start(p, &err);
    if (status == PC_OK) {
        pc_log_info("plugin", "poolcap-plugin " POOLCAP_VERSION " advertises %s on node %s", p->config.resource_name,
                    p->config.node_name);
        status = pc_loop_run(p->loop, &err);
    }
    if (status == PC_OK && pc_node_failure(p->node)->status != PC_OK) {
        err = *pc_node_failure(p->node);
        status = err.status;
    }
    pc_metrics_stop(p->metrics);
    pc_node_stop(p->node);
    pc_api_free(p->api);
    pc_rpc_free(p->rpc);
    pc_loop_free(p->loop);
    return status == PC_OK ? 0 : fail(&err);
}

int main(int argc, char **argv)
{
    static struct program program;
    struct pc_error err = {.text = ""};
    enum pc_option_action action;
    if (pc_plugin_config_load(argc, argv, &program.config, &action, &err) != PC_OK)
        return fail(&err);
    switch (action) {
    case PC_OPTIONS_HELP:
        pc_plugin_config_usage();
        return 0;
    case PC_OPTIONS_DOCS:
        pc_plugin_config_docs();
        return 0;
    case PC_OPTIONS_VERSION:
        puts("poolcap-plugin " POOLCAP_VERSION);
        return 0;
    case PC_OPTIONS_CHECK:
        puts("the configuration is good");
        return 0;
    case PC_OPTIONS_RUN:
        break;
    }
    return serve(&program);
}
