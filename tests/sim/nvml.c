/* The simulated libnvidia-ml: what the book says, to anyone who asks. */
#include "tests/sim/sim.h"

#include <stdio.h>
#include <string.h>

/* The library exports exactly the table's functions, with the table's prototypes: another one does not compile. */
#define DECLARE(need, name, symbol, args) __attribute__((visibility("default"))) pc_nvml_result symbol args;
PC_NVML_TABLE(DECLARE)
#undef DECLARE

__attribute__((used)) static void *const every_function[] = {
#define FUNCTION(need, name, symbol, args) (void *)symbol,
    PC_NVML_TABLE(FUNCTION)
#undef FUNCTION
};

enum { DRIVER_NOT_LOADED = 9 };

struct pc_nvml_device_st {
    unsigned int gpu;
};

static struct pc_nvml_device_st devices[SIM_GPUS];
static unsigned int initialised; /* how often; under sim_lock */

#define CALL(name)                                    \
    do {                                              \
        pc_nvml_result code = sim_inject(SIM_##name); \
        if (code != PC_NVML_SUCCESS)                  \
            return code;                              \
    } while (0)

/* Opens the book again in a forked child. Under sim_lock. */
static struct sim_book *ready(void)
{
    return initialised > 0 ? sim_book_open() : NULL;
}

static bool is_device(const struct sim_book *book, pc_nvml_device device)
{
    return device >= devices && device < devices + book->gpus;
}

pc_nvml_result nvmlInit_v2(void)
{
    CALL(nvmlInit);
    SIM_GUARD;
    if (sim_book_open() == NULL)
        return DRIVER_NOT_LOADED;
    for (unsigned int i = 0; i < SIM_GPUS; i++)
        devices[i].gpu = i;
    initialised++;
    return PC_NVML_SUCCESS;
}

pc_nvml_result nvmlShutdown(void)
{
    CALL(nvmlShutdown);
    SIM_GUARD;
    if (initialised == 0)
        return PC_NVML_ERROR_UNINITIALIZED;
    initialised--;
    return PC_NVML_SUCCESS;
}

pc_nvml_result nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    CALL(nvmlSystemGetDriverVersion);
    SIM_GUARD;
    if (ready() == NULL)
        return PC_NVML_ERROR_UNINITIALIZED;
    if (version == NULL)
        return PC_NVML_ERROR_INVALID_ARGUMENT;
    int n = snprintf(version, length, "simulated-1");
    return n < (int)length ? PC_NVML_SUCCESS : PC_NVML_ERROR_INSUFFICIENT_SIZE;
}

pc_nvml_result nvmlDeviceGetCount_v2(unsigned int *count)
{
    CALL(nvmlDeviceGetCount);
    SIM_GUARD;
    const struct sim_book *book = ready();
    if (book == NULL)
        return PC_NVML_ERROR_UNINITIALIZED;
    if (count == NULL)
        return PC_NVML_ERROR_INVALID_ARGUMENT;
    *count = book->gpus;
    return PC_NVML_SUCCESS;
}

pc_nvml_result nvmlDeviceGetHandleByIndex_v2(unsigned int index, pc_nvml_device *device)
{
    CALL(nvmlDeviceGetHandleByIndex);
    SIM_GUARD;
    const struct sim_book *book = ready();
    if (book == NULL)
        return PC_NVML_ERROR_UNINITIALIZED;
    if (device == NULL || index >= book->gpus)
        return PC_NVML_ERROR_INVALID_ARGUMENT;
    *device = &devices[index];
    return PC_NVML_SUCCESS;
}

/* As pc_uuid_format spells the UUID that cuDeviceGetUuid gives. */
static void uuid_text(const struct sim_book *book, unsigned int gpu, char out[48])
{
    unsigned char bytes[16] = {0};
    memcpy(bytes, book->seed, sizeof book->seed);
    bytes[15] = (unsigned char)gpu;
    int n = snprintf(out, 48, "GPU-");
    for (int i = 0; i < 16; i++)
        n += snprintf(out + n, 48 - (size_t)n, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", bytes[i]);
}

pc_nvml_result nvmlDeviceGetHandleByUUID(const char *uuid, pc_nvml_device *device)
{
    CALL(nvmlDeviceGetHandleByUUID);
    SIM_GUARD;
    const struct sim_book *book = ready();
    if (book == NULL)
        return PC_NVML_ERROR_UNINITIALIZED;
    if (uuid == NULL || device == NULL)
        return PC_NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned int i = 0; i < book->gpus; i++) {
        char text[48];
        uuid_text(book, i, text);
        if (strcmp(text, uuid) == 0) {
            *device = &devices[i];
            return PC_NVML_SUCCESS;
        }
    }
    return PC_NVML_ERROR_NOT_FOUND;
}

pc_nvml_result nvmlDeviceGetUUID(pc_nvml_device device, char *uuid, unsigned int length)
{
    CALL(nvmlDeviceGetUUID);
    SIM_GUARD;
    const struct sim_book *book = ready();
    if (book == NULL)
        return PC_NVML_ERROR_UNINITIALIZED;
    if (uuid == NULL || !is_device(book, device))
        return PC_NVML_ERROR_INVALID_ARGUMENT;
    char text[48];
    uuid_text(book, device->gpu, text);
    if (length <= strlen(text))
        return PC_NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(uuid, text);
    return PC_NVML_SUCCESS;
}

pc_nvml_result nvmlDeviceGetMemoryInfo_v2(pc_nvml_device device, pc_nvml_memory_t *memory)
{
    CALL(nvmlDeviceGetMemoryInfo);
    SIM_GUARD;
    if (ready() == NULL)
        return PC_NVML_ERROR_UNINITIALIZED;
    SIM_BOOK_GUARD(book);
    if (memory == NULL || memory->version != PC_NVML_MEMORY_VERSION || !is_device(book, device))
        return PC_NVML_ERROR_INVALID_ARGUMENT;
    memory->total = book->memory;
    memory->reserved = book->reserved;
    memory->used = sim_used(book, device->gpu);
    memory->free = sim_free(book, device->gpu);
    return PC_NVML_SUCCESS;
}

pc_nvml_result nvmlDeviceGetComputeRunningProcesses_v3(pc_nvml_device device, unsigned int *count,
                                                       pc_nvml_process_t *infos)
{
    CALL(nvmlDeviceGetComputeRunningProcesses);
    SIM_GUARD;
    if (ready() == NULL)
        return PC_NVML_ERROR_UNINITIALIZED;
    SIM_BOOK_GUARD(book);
    if (count == NULL || !is_device(book, device))
        return PC_NVML_ERROR_INVALID_ARGUMENT;
    unsigned int found = 0;
    for (uint32_t i = 0; i < book->procs_end; i++) {
        const struct sim_proc *proc = &book->procs[i];
        uint64_t bytes = proc->used != 0 ? sim_proc_bytes(book, proc, device->gpu) : 0;
        if (bytes == 0)
            continue;
        if (found < *count && infos != NULL)
            infos[found] = (pc_nvml_process_t){(unsigned int)sim_proc_pid(proc), bytes, ~0u, ~0u};
        found++;
    }
    bool fits = found <= *count && (infos != NULL || found == 0);
    *count = found;
    return fits ? PC_NVML_SUCCESS : PC_NVML_ERROR_INSUFFICIENT_SIZE;
}
