/*
 * NVML: the types and constants that poolcap uses, declared from the public facts of the API and
 * compared with a real nvml.h by tests/drift where one is found.
 */
#ifndef PC_DRIVER_NVML_TYPES_H
#define PC_DRIVER_NVML_TYPES_H

#ifndef PC_NVML_TYPES_FROM_HEADER
typedef unsigned int pc_nvml_result;
typedef struct pc_nvml_device_st *pc_nvml_device;
#endif

enum {
    PC_NVML_SUCCESS = 0,
    PC_NVML_ERROR_UNINITIALIZED = 1,
    PC_NVML_ERROR_INVALID_ARGUMENT = 2,
    PC_NVML_ERROR_NOT_SUPPORTED = 3,
    PC_NVML_ERROR_NO_PERMISSION = 4,
    PC_NVML_ERROR_NOT_FOUND = 6,
    PC_NVML_ERROR_INSUFFICIENT_SIZE = 7,
};

struct pc_nvml_memory {          /* nvmlMemory_v2_t */
    unsigned int version;        /* PC_NVML_MEMORY_VERSION on entry */
    unsigned long long total;    /* bytes on the card */
    unsigned long long reserved; /* bytes the driver and firmware keep */
    unsigned long long free;
    unsigned long long used; /* without reserved */
};
#define PC_NVML_MEMORY_VERSION ((unsigned int)(sizeof(struct pc_nvml_memory) | (2u << 24)))

struct pc_nvml_process { /* nvmlProcessInfo_v2_t, what the _v3 process lists fill */
    unsigned int pid;
    unsigned long long used; /* bytes; PC_NVML_NOT_AVAILABLE where the driver does not say */
    unsigned int gpu_instance;
    unsigned int compute_instance;
};
#define PC_NVML_NOT_AVAILABLE (~0ull)

#ifndef PC_NVML_TYPES_FROM_HEADER
typedef struct pc_nvml_memory pc_nvml_memory_t;
typedef struct pc_nvml_process pc_nvml_process_t;
#endif

#endif
