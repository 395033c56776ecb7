/* The one table of NVML calls; columns as in cuda_table.h. */
#ifndef PC_DRIVER_NVML_TABLE_H
#define PC_DRIVER_NVML_TABLE_H

/* clang-format off */
#define PC_NVML_TABLE(X) \
  X(REQUIRED, nvmlInit, nvmlInit_v2, (void)) \
  X(REQUIRED, nvmlShutdown, nvmlShutdown, (void)) \
  X(REQUIRED, nvmlSystemGetDriverVersion, nvmlSystemGetDriverVersion, (char *version, unsigned int length)) \
  X(REQUIRED, nvmlDeviceGetCount, nvmlDeviceGetCount_v2, (unsigned int *count)) \
  X(REQUIRED, nvmlDeviceGetHandleByIndex, nvmlDeviceGetHandleByIndex_v2, (unsigned int index, pc_nvml_device *device)) \
  X(REQUIRED, nvmlDeviceGetHandleByUUID, nvmlDeviceGetHandleByUUID, (const char *uuid, pc_nvml_device *device)) \
  X(REQUIRED, nvmlDeviceGetUUID, nvmlDeviceGetUUID, (pc_nvml_device device, char *uuid, unsigned int length)) \
  X(REQUIRED, nvmlDeviceGetMemoryInfo, nvmlDeviceGetMemoryInfo_v2, (pc_nvml_device device, pc_nvml_memory_t *memory)) \
  X(REQUIRED, nvmlDeviceGetComputeRunningProcesses, nvmlDeviceGetComputeRunningProcesses_v3, (pc_nvml_device device, unsigned int *count, pc_nvml_process_t *infos))
/* clang-format on */

#endif
