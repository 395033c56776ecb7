/* Compares our declarations of NVML with NVIDIA's; as drift_cuda.c. */
#include <nvml.h>
#include <stddef.h>

#define PC_NVML_TYPES_FROM_HEADER
typedef nvmlReturn_t pc_nvml_result;
typedef nvmlDevice_t pc_nvml_device;
typedef nvmlMemory_v2_t pc_nvml_memory_t;
typedef nvmlProcessInfo_t pc_nvml_process_t;

#include "alloc/driver/nvml_table.h"
#include "alloc/driver/nvml_types.h"
#include "tests/drift/drift.h"

WIDTH(nvmlReturn_t, unsigned int);

SAME(PC_NVML_SUCCESS, NVML_SUCCESS);
SAME(PC_NVML_ERROR_UNINITIALIZED, NVML_ERROR_UNINITIALIZED);
SAME(PC_NVML_ERROR_INVALID_ARGUMENT, NVML_ERROR_INVALID_ARGUMENT);
SAME(PC_NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_NOT_SUPPORTED);
SAME(PC_NVML_ERROR_NO_PERMISSION, NVML_ERROR_NO_PERMISSION);
SAME(PC_NVML_ERROR_NOT_FOUND, NVML_ERROR_NOT_FOUND);
SAME(PC_NVML_ERROR_INSUFFICIENT_SIZE, NVML_ERROR_INSUFFICIENT_SIZE);
SAME(PC_NVML_MEMORY_VERSION, nvmlMemory_v2);
SAME(PC_NVML_NOT_AVAILABLE, (unsigned long long)NVML_VALUE_NOT_AVAILABLE);

SIZE(struct pc_nvml_memory, nvmlMemory_v2_t);
FIELD(struct pc_nvml_memory, version, nvmlMemory_v2_t, version);
FIELD(struct pc_nvml_memory, total, nvmlMemory_v2_t, total);
FIELD(struct pc_nvml_memory, reserved, nvmlMemory_v2_t, reserved);
FIELD(struct pc_nvml_memory, free, nvmlMemory_v2_t, free);
FIELD(struct pc_nvml_memory, used, nvmlMemory_v2_t, used);
SIZE(struct pc_nvml_process, nvmlProcessInfo_t);
FIELD(struct pc_nvml_process, pid, nvmlProcessInfo_t, pid);
FIELD(struct pc_nvml_process, used, nvmlProcessInfo_t, usedGpuMemory);
FIELD(struct pc_nvml_process, gpu_instance, nvmlProcessInfo_t, gpuInstanceId);
FIELD(struct pc_nvml_process, compute_instance, nvmlProcessInfo_t, computeInstanceId);

#define PROTOTYPE(need, name, symbol, args) \
    _Static_assert(__builtin_types_compatible_p(__typeof__(symbol), pc_nvml_result args), "prototype of " #symbol);
PC_NVML_TABLE(PROTOTYPE)
