#include "alloc/broker/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/cleanup.h"
#include "alloc/broker/config_grants.h"

#define ROW(member, key, kind, value, text) PC_OPTION(struct pc_config, member, key, kind, value, text)
#define CHOICE(member, key, list, value, text) PC_OPTION_OF(struct pc_config, member, key, list, value, text)

static const struct pc_option rows[] = {
    ROW(run_directory, "runDirectory", PATH, "/run/poolcap", "directory of the sockets, the books and the grants"),
    ROW(reserve, "reserve", BYTES, "0", "bytes of each GPU that are never given to a grant, e.g. 1Gi"),
    CHOICE(log_level, "logLevel", pc_option_levels, "info", "least severe lines that are logged"),
    ROW(cuda_library, "cudaLibrary", PATH, "", "file of libcuda.so.1, where it is not in a standard place"),
    ROW(nvml_library, "nvmlLibrary", PATH, "", "file of libnvidia-ml.so.1, where it is not in a standard place"),
    ROW(simulated, "simulated", BOOL, "false", "run on the simulated driver, and on nothing else"),
};

static const struct pc_option_table table = {
    .program = "poolcapd",
    .summary = "Holds the node's GPU memory in capped pools, one tenant each, and hands it out on unix sockets.",
    .more = "Static grants stand in the file:\n\n"
            "  grants:\n"
            "  - name: alice        # directory RUN/grants/alice, mounted at /run/poolcap in the tenant\n"
            "    memory: 4Gi        # a multiple of 32Mi\n"
            "    cap: 3500Mi        # optional, at most memory\n"
            "    gpu: 0             # ordinal or UUID; for several GPUs: gpus: [{gpu: 0, memory: 4Gi}, ...]\n"
            "    tenant: team-a     # optional: grants of one tenant share its pool\n"
            "    podUid: 0a1b-...   # optional: only processes in this pod's cgroup may use it\n",
    .option = rows,
    .options = PC_ARRAY_LEN(rows),
    .other = pc_config_grants_read,
};

void pc_config_clear(struct pc_config *config)
{
    free(config->grant);
    memset(config, 0, sizeof *config);
}

static void begin(struct pc_config *config, const char *file)
{
    memset(config, 0, sizeof *config);
    pc_options_defaults(&table, config);
    snprintf(config->file, sizeof config->file, "%s", file);
}

enum pc_status pc_config_parse(const char *name, const char *text, size_t length, struct pc_config *out,
                               struct pc_error *err)
{
    begin(out, name);
    enum pc_status status = pc_options_parse(&table, name, text, length, out, err);
    if (status != PC_OK)
        pc_config_clear(out);
    return status;
}

enum pc_status pc_config_read(const char *file, struct pc_config *out, struct pc_error *err)
{
    begin(out, file != NULL ? file : "");
    enum pc_status status = out->file[0] != '\0' ? pc_options_read(&table, file, out, err) : PC_OK;
    if (status != PC_OK)
        pc_config_clear(out);
    return status;
}

enum pc_status pc_config_load(int argc, char **argv, struct pc_config *out, enum pc_option_action *action,
                              struct pc_error *err)
{
    const char *file;
    memset(out, 0, sizeof *out);
    enum pc_status status = pc_options_load(&table, argc, argv, out, &file, action, err);
    if (status == PC_OK && out->run_directory[0] == '\0')
        status = pc_error_set(err, PC_ERR_INVALID, 0, "the run directory is empty; give --run-directory");
    if (status != PC_OK)
        pc_config_clear(out);
    else if (file != NULL)
        snprintf(out->file, sizeof out->file, "%s", file);
    return status;
}

void pc_config_usage(void)
{
    pc_options_usage(&table);
}

void pc_config_docs(void)
{
    pc_options_docs(&table);
}
