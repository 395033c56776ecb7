#include "alloc/driver/driver.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

struct symbol {
    const char *name;
    bool required;
    size_t offset; /* of the pointer in the table */
};

enum { REQUIRED = 1, OPTIONAL = 0, TESTING = 0 };

#define CUDA_SYMBOL(need, member, symbol, args) {#symbol, need, offsetof(struct pc_cuda, member)},
static const struct symbol cuda_symbols[] = {PC_CUDA_TABLE(CUDA_SYMBOL)};
#define NVML_SYMBOL(need, member, symbol, args) {#symbol, need, offsetof(struct pc_nvml, member)},
static const struct symbol nvml_symbols[] = {PC_NVML_TABLE(NVML_SYMBOL)};

/* Where container runtimes and distributions put the driver, after the loader's own search. */
static const char *const folders[] = {
    "/usr/local/nvidia/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64",
    "/run/opengl-driver/lib",
};

static void *open_library(const char *path, const char *soname, struct pc_error *err)
{
    void *handle = dlopen(path != NULL ? path : soname, RTLD_NOW | RTLD_LOCAL);
    if (handle != NULL)
        return handle;
    const char *why = dlerror();
    pc_error_set(err, PC_ERR_NOT_INITIALISED, 0,
                 "cannot load %s: %s; install the NVIDIA driver (CUDA 12.2 or newer), or mount it into this container",
                 path != NULL ? path : soname, why != NULL ? why : "unknown error");
    if (path != NULL)
        return NULL;
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        char full[256];
        snprintf(full, sizeof full, "%s/%s", folders[i], soname);
        handle = dlopen(full, RTLD_NOW | RTLD_LOCAL);
        if (handle != NULL) {
            if (err != NULL)
                *err = (struct pc_error){.status = PC_OK};
            return handle;
        }
    }
    return NULL;
}

static enum pc_status fill_table(void *table, void *handle, const struct symbol *symbols, size_t count,
                                 struct pc_error *err)
{
    for (size_t i = 0; i < count; i++) {
        void *found = dlsym(handle, symbols[i].name);
        if (found == NULL && symbols[i].required)
            return pc_error_set(err, PC_ERR_NOT_INITIALISED, 0,
                                "the driver has no %s: it is older than CUDA 12.2; update the NVIDIA driver",
                                symbols[i].name);
        memcpy((char *)table + symbols[i].offset, &found, sizeof found);
    }
    return PC_OK;
}

enum pc_status pc_cuda_load(const char *path, struct pc_cuda *cu, struct pc_error *err)
{
    struct pc_cuda table = {.handle = open_library(path, "libcuda.so.1", err)};
    if (table.handle == NULL)
        return PC_ERR_NOT_INITIALISED;
    enum pc_status status =
        fill_table(&table, table.handle, cuda_symbols, sizeof cuda_symbols / sizeof cuda_symbols[0], err);
    if (status == PC_OK)
        *cu = table;
    return status;
}

enum pc_status pc_nvml_load(const char *path, struct pc_nvml *nvml, struct pc_error *err)
{
    struct pc_nvml table = {.handle = open_library(path, "libnvidia-ml.so.1", err)};
    if (table.handle == NULL)
        return PC_ERR_NOT_INITIALISED;
    enum pc_status status =
        fill_table(&table, table.handle, nvml_symbols, sizeof nvml_symbols / sizeof nvml_symbols[0], err);
    if (status == PC_OK)
        *nvml = table;
    return status;
}

enum pc_status pc_cuda_error(const struct pc_cuda *cu, pc_cu_result code, enum pc_status otherwise, const char *what,
                             struct pc_error *err)
{
    if (code == PC_CU_SUCCESS)
        return PC_OK;
    const char *name = NULL, *text = NULL;
    if (cu->cuGetErrorName(code, &name) != PC_CU_SUCCESS || name == NULL)
        name = "CUDA error";
    if (cu->cuGetErrorString(code, &text) != PC_CU_SUCCESS || text == NULL)
        text = "no description";
    enum pc_status status = code == PC_CU_ERROR_OUT_OF_MEMORY ? PC_ERR_OUT_OF_MEMORY : otherwise;
    return pc_error_set(err, status, (int)code, "%s: %s (%u): %s", what, name, code, text);
}

char *pc_uuid_format(const struct pc_cu_uuid *uuid, char buf[PC_UUID_TEXT])
{
    int n = snprintf(buf, PC_UUID_TEXT, "GPU-");
    for (int i = 0; i < 16; i++)
        n += snprintf(buf + n, (size_t)(PC_UUID_TEXT - n), "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                      (unsigned char)uuid->bytes[i]);
    return buf;
}
