/*
 * poolcapctl: the administrator's hand on poolcapd. Each command is one message on the admin socket.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/bytes.h"
#include "alloc/base/cleanup.h"
#include "alloc/base/error.h"
#include "alloc/broker/ctl_print.h"
#include "proto/wire.h"

struct options {
    const char *run_directory;
    const char *memory, *cap, *shared, *gpu, *tenant, *pod_uid;
    bool json, wait, if_unused;
};

struct connection {
    int fd;
    struct pc_arena arena;
};

typedef enum pc_status (*command_fn)(struct connection *c, const struct options *o, char **names, struct pc_error *err);

static enum pc_status parse_memory(const char *what, const char *text, uint64_t *out, struct pc_error *err)
{
    *out = 0;
    return text == NULL ? PC_OK : pc_bytes_parse(what, text, out, err);
}

/* Sends one request and takes its reply; an error that poolcapd answers becomes ours. */
static enum pc_status ask(struct connection *c, const Poolcap__AdminRequest *request, Poolcap__AdminReply **out,
                          struct pc_error *err)
{
    ProtobufCMessage *message = NULL;
    enum pc_status status = pc_wire_send(c->fd, &request->base, NULL, 0, err);
    if (status == PC_OK)
        status = pc_wire_receive(c->fd, &poolcap__admin_reply__descriptor, &c->arena, &message, NULL, NULL, err);
    if (status != PC_OK)
        return status;
    if (message == NULL)
        return pc_error_set(err, PC_ERR_UNREACHABLE, 0, "poolcapd closed the connection without an answer");
    Poolcap__AdminReply *reply = (Poolcap__AdminReply *)message;
    if (reply->status != PC_OK)
        return pc_error_set(err, (enum pc_status)reply->status, reply->code, "%s", reply->text);
    *out = reply;
    return PC_OK;
}

/* ---- list ---- */

static enum pc_status do_list(struct connection *c, const struct options *o, char **names, struct pc_error *err)
{
    (void)names;
    char after[256] = "";
    bool more = true;
    for (bool first = true; more; first = false) {
        Poolcap__AdminList list = POOLCAP__ADMIN_LIST__INIT;
        list.after = after;
        Poolcap__AdminRequest request = POOLCAP__ADMIN_REQUEST__INIT;
        request.body_case = POOLCAP__ADMIN_REQUEST__BODY_LIST;
        request.list = &list;
        Poolcap__AdminReply *reply;
        enum pc_status status = ask(c, &request, &reply, err);
        if (status != PC_OK)
            return status;
        if (reply->list == NULL)
            return pc_error_set(err, PC_ERR_PROTOCOL, 0, "poolcapd answered without a list");
        if (first)
            pc_ctl_print_head(o->json, reply->list);
        for (size_t i = 0; i < reply->list->n_grants; i++)
            pc_ctl_print_grant(o->json, reply->list->grants[i], first && i == 0);
        more = reply->list->more && reply->list->n_grants > 0;
        if (more)
            snprintf(after, sizeof after, "%s", reply->list->grants[reply->list->n_grants - 1]->name);
    }
    pc_ctl_print_end(o->json);
    return PC_OK;
}

/* ---- the others ---- */

static enum pc_status tell(struct connection *c, const Poolcap__AdminRequest *request, struct pc_error *err)
{
    Poolcap__AdminReply *reply;
    enum pc_status status = ask(c, request, &reply, err);
    if (status == PC_OK && reply->text[0] != '\0')
        printf("%s\n", reply->text);
    return status;
}

static enum pc_status do_make(struct connection *c, const struct options *o, char **names, struct pc_error *err)
{
    if (o->memory == NULL)
        return pc_error_set(err, PC_ERR_INVALID, 0, "make needs --memory, e.g. --memory 4Gi");
    Poolcap__AdminGpuShare share = POOLCAP__ADMIN_GPU_SHARE__INIT;
    enum pc_status status = parse_memory("--memory", o->memory, &share.granted, err);
    if (status == PC_OK)
        status = parse_memory("--cap", o->cap, &share.cap, err);
    if (status == PC_OK)
        status = parse_memory("--shared", o->shared, &share.shared, err);
    if (status != PC_OK)
        return status;
    if (o->cap != NULL && share.cap == 0)
        return pc_error_set(err, PC_ERR_INVALID, 0, "--cap is 0; leave it out, or drop the grant");
    share.gpu = (char *)(o->gpu != NULL ? o->gpu : "0");
    Poolcap__AdminGpuShare *shares[] = {&share};
    Poolcap__AdminMakeGrant make = POOLCAP__ADMIN_MAKE_GRANT__INIT;
    make.name = names[0];
    make.tenant = (char *)(o->tenant != NULL ? o->tenant : "");
    make.pod_uid = (char *)(o->pod_uid != NULL ? o->pod_uid : "");
    make.n_gpus = 1;
    make.gpus = shares;
    Poolcap__AdminRequest request = POOLCAP__ADMIN_REQUEST__INIT;
    request.body_case = POOLCAP__ADMIN_REQUEST__BODY_MAKE_GRANT;
    request.make_grant = &make;
    return tell(c, &request, err);
}

static enum pc_status do_bind(struct connection *c, const struct options *o, char **names, struct pc_error *err)
{
    (void)o;
    Poolcap__AdminBind bind = POOLCAP__ADMIN_BIND__INIT;
    bind.grant = names[0];
    bind.pod_uid = names[1];
    Poolcap__AdminRequest request = POOLCAP__ADMIN_REQUEST__INIT;
    request.body_case = POOLCAP__ADMIN_REQUEST__BODY_BIND;
    request.bind = &bind;
    return tell(c, &request, err);
}

static enum pc_status do_set_cap(struct connection *c, const struct options *o, char **names, struct pc_error *err)
{
    Poolcap__AdminSetCap set = POOLCAP__ADMIN_SET_CAP__INIT;
    enum pc_status status = parse_memory("the cap", names[1], &set.cap, err);
    if (status != PC_OK)
        return status;
    set.grant = names[0];
    set.gpu = (char *)(o->gpu != NULL ? o->gpu : "");
    Poolcap__AdminRequest request = POOLCAP__ADMIN_REQUEST__INIT;
    request.body_case = POOLCAP__ADMIN_REQUEST__BODY_SET_CAP;
    request.set_cap = &set;
    return tell(c, &request, err);
}

static enum pc_status do_drop(struct connection *c, const struct options *o, char **names, struct pc_error *err)
{
    Poolcap__AdminDropGrant drop = POOLCAP__ADMIN_DROP_GRANT__INIT;
    drop.grant = names[0];
    drop.wait = o->wait;
    drop.if_unused = o->if_unused;
    Poolcap__AdminRequest request = POOLCAP__ADMIN_REQUEST__INIT;
    request.body_case = POOLCAP__ADMIN_REQUEST__BODY_DROP_GRANT;
    request.drop_grant = &drop;
    return tell(c, &request, err);
}

static enum pc_status do_reload(struct connection *c, const struct options *o, char **names, struct pc_error *err)
{
    (void)o;
    (void)names;
    Poolcap__AdminReload reload = POOLCAP__ADMIN_RELOAD__INIT;
    Poolcap__AdminRequest request = POOLCAP__ADMIN_REQUEST__INIT;
    request.body_case = POOLCAP__ADMIN_REQUEST__BODY_RELOAD;
    request.reload = &reload;
    return tell(c, &request, err);
}

/* ---- the command line ---- */

static const struct command {
    const char *name;
    int names; /* how many arguments it takes */
    command_fn run;
    const char *usage, *text;
} commands[] = {
    {"list", 0, do_list, "list [-o json]", "the GPUs, and each grant's cap and charge"},
    {"make", 1, do_make, "make NAME --memory 4Gi [--cap 3Gi] [--gpu 0] [--tenant T] [--shared 2Gi] [--pod-uid UID]",
     "make a grant; --shared: as much of it the tenant's earlier grants hold already, and it counts once"},
    {"bind", 2, do_bind, "bind NAME POD-UID", "let only this pod's processes use it"},
    {"set-cap", 2, do_set_cap, "set-cap NAME 3Gi [--gpu 0]", "lower or raise its cap, up to what it was granted"},
    {"drop", 1, do_drop, "drop NAME [--wait] [--if-unused]",
     "end it once its last process is gone; --if-unused: refuse while there is one, also of its pod"},
    {"reload", 0, do_reload, "reload", "read poolcapd's configuration file again"},
};

static void usage(FILE *out)
{
    fprintf(out, "Usage: poolcapctl [--run-directory DIR] COMMAND\n\n");
    for (size_t i = 0; i < PC_ARRAY_LEN(commands); i++)
        fprintf(out, "  %s\n      %s\n", commands[i].usage, commands[i].text);
    fprintf(out, "\nDIR is poolcapd's run directory (variable POOLCAP_RUN_DIRECTORY, default /run/poolcap).\n"
                 "In `list`: SHARED is what counts with an earlier grant of the tenant, POOL is what the tenant's\n"
                 "pools hold of the card, PROCESS is contexts, large and direct memory of its processes, WAITING is\n"
                 "memory that is not seen to be free yet.\n");
}

/* Takes "--flag value" or "--flag=value" at argv[*i]; NULL where it is another flag. */
static const char *option_value(int argc, char **argv, int *i, const char *flag)
{
    size_t length = strlen(flag);
    if (strncmp(argv[*i], flag, length) != 0)
        return NULL;
    if (argv[*i][length] == '=')
        return argv[*i] + length + 1;
    if (argv[*i][length] != '\0' || *i + 1 >= argc)
        return NULL;
    return argv[++*i];
}

/* Reads the arguments; returns the count of names (the command first), or -1 with a message on stderr. */
static int read_arguments(int argc, char **argv, struct options *o, char **names, int most)
{
    const struct {
        const char *flag;
        const char **into;
    } valued[] = {{"--run-directory", &o->run_directory},
                  {"--memory", &o->memory},
                  {"--cap", &o->cap},
                  {"--shared", &o->shared},
                  {"--pod-uid", &o->pod_uid},
                  {"--gpu", &o->gpu},
                  {"--tenant", &o->tenant}};
    int count = 0;
    for (int i = 1; i < argc; i++) {
        const char *value = NULL;
        for (size_t k = 0; k < PC_ARRAY_LEN(valued) && value == NULL; k++)
            if ((value = option_value(argc, argv, &i, valued[k].flag)) != NULL)
                *valued[k].into = value;
        if (value != NULL)
            continue;
        if ((value = option_value(argc, argv, &i, "-o")) != NULL) {
            if (strcmp(value, "json") != 0) {
                fprintf(stderr, "poolcapctl: -o %s: only json is known\n", value);
                return -1;
            }
            o->json = true;
        } else if (strcmp(argv[i], "--wait") == 0) {
            o->wait = true;
        } else if (strcmp(argv[i], "--if-unused") == 0) {
            o->if_unused = true;
        } else if (argv[i][0] == '-') {
            fprintf(stderr, "poolcapctl: %s: unknown flag, or its value is missing; see --help\n", argv[i]);
            return -1;
        } else if (count < most) {
            names[count++] = argv[i];
        } else {
            fprintf(stderr, "poolcapctl: %s: one argument too many\n", argv[i]);
            return -1;
        }
    }
    return count;
}

static enum pc_status run_command(const struct command *command, const struct options *o, char **names,
                                  struct pc_error *err)
{
    char path[512];
    snprintf(path, sizeof path, "%s/admin.sock", o->run_directory);
    /* The arena is 96 KiB: not for the stack of a recursive program, but this one has one. */
    struct connection c = {.fd = -1};
    enum pc_status status = pc_wire_connect(path, &c.fd, err);
    if (status != PC_OK) {
        pc_error_prefix(err, "is poolcapd running with this run directory?");
        return status;
    }
    status = command->run(&c, o, names, err);
    close(c.fd);
    return status;
}

int main(int argc, char **argv)
{
    const char *run = getenv("POOLCAP_RUN_DIRECTORY");
    struct options o = {.run_directory = run != NULL ? run : "/run/poolcap"};
    char *names[4] = {NULL};
    if (argc >= 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        usage(stdout);
        return 0;
    }
    int count = read_arguments(argc, argv, &o, names, 4);
    if (count < 0)
        return 2;
    if (count == 0) {
        usage(stderr);
        return 2;
    }
    for (size_t i = 0; i < PC_ARRAY_LEN(commands); i++) {
        if (strcmp(names[0], commands[i].name) != 0)
            continue;
        if (count - 1 != commands[i].names) {
            fprintf(stderr, "Usage: poolcapctl %s\n", commands[i].usage);
            return 2;
        }
        struct pc_error err = {.text = ""};
        if (run_command(&commands[i], &o, names + 1, &err) == PC_OK)
            return 0;
        fprintf(stderr, "poolcapctl: %s\n", err.text);
        return 1;
    }
    fprintf(stderr, "poolcapctl: %s: no such command; see --help\n", names[0]);
    return 2;
}
