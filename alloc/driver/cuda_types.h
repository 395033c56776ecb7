/*
 * CUDA driver API: the types, constants and structures that poolcap uses.
 *
 * Declared here from the public facts of the API (names, values, layouts) so that poolcap builds
 * without a CUDA toolkit. tests/drift compiles every line of this file against a real cuda.h
 * (12.2 or newer) where one is found.
 *
 * Names carry the prefix pc_cu_ / PC_CU_ so that they can stand beside the real header.
 * The drift test defines PC_CU_TYPES_FROM_HEADER to map the opaque types onto NVIDIA's own,
 * and so compares whole prototypes.
 */
#ifndef PC_DRIVER_CUDA_TYPES_H
#define PC_DRIVER_CUDA_TYPES_H

#include <stddef.h>
#include <stdint.h>

#ifndef PC_CU_TYPES_FROM_HEADER
typedef unsigned int pc_cu_result;
typedef int pc_cu_device;
typedef unsigned long long pc_cu_deviceptr;
typedef struct pc_cu_ctx_st *pc_cu_context;
typedef struct pc_cu_stream_st *pc_cu_stream;
typedef struct pc_cu_event_st *pc_cu_event;
typedef struct pc_cu_pool_st *pc_cu_mempool;
typedef struct pc_cu_mod_st *pc_cu_module;
typedef struct pc_cu_func_st *pc_cu_function;
typedef struct pc_cu_graph_st *pc_cu_graph;
typedef struct pc_cu_graphexec_st *pc_cu_graphexec;
typedef unsigned long long pc_cu_memhandle; /* CUmemGenericAllocationHandle */
typedef unsigned int pc_cu_device_attribute;
typedef unsigned int pc_cu_pointer_attribute;
typedef unsigned int pc_cu_mempool_attribute;
typedef unsigned int pc_cu_handle_type; /* CUmemAllocationHandleType, a bit mask */
typedef unsigned int pc_cu_advice;
typedef unsigned int pc_cu_capture_mode;
typedef unsigned int pc_cu_capture_status;
typedef unsigned int pc_cu_granularity;
typedef unsigned int pc_cu_range_handle_type;
#endif

/* CUresult values that poolcap tells apart; any other is passed through as a number. */
enum {
    PC_CU_SUCCESS = 0,
    PC_CU_ERROR_INVALID_VALUE = 1,
    PC_CU_ERROR_OUT_OF_MEMORY = 2,
    PC_CU_ERROR_NOT_INITIALIZED = 3,
    PC_CU_ERROR_DEINITIALIZED = 4,
    PC_CU_ERROR_NO_DEVICE = 100,
    PC_CU_ERROR_INVALID_DEVICE = 101,
    PC_CU_ERROR_INVALID_CONTEXT = 201,
    PC_CU_ERROR_ALREADY_MAPPED = 208,
    PC_CU_ERROR_OPERATING_SYSTEM = 304,
    PC_CU_ERROR_INVALID_HANDLE = 400,
    PC_CU_ERROR_NOT_FOUND = 500,
    PC_CU_ERROR_NOT_READY = 600,
    PC_CU_ERROR_ILLEGAL_ADDRESS = 700,
    PC_CU_ERROR_LAUNCH_TIMEOUT = 702,
    PC_CU_ERROR_CONTEXT_IS_DESTROYED = 709,
    PC_CU_ERROR_LAUNCH_FAILED = 719,
    PC_CU_ERROR_NOT_PERMITTED = 800,
    PC_CU_ERROR_NOT_SUPPORTED = 801,
    PC_CU_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    PC_CU_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
    PC_CU_ERROR_UNKNOWN = 999,
};

enum { /* CUdevice_attribute */
       PC_CU_DEVICE_COMPUTE_CAPABILITY_MAJOR = 75,
       PC_CU_DEVICE_COMPUTE_CAPABILITY_MINOR = 76,
       PC_CU_DEVICE_CONCURRENT_MANAGED_ACCESS = 89,
       PC_CU_DEVICE_MEMORY_POOLS_SUPPORTED = 115,
       PC_CU_DEVICE_MEMPOOL_SUPPORTED_HANDLE_TYPES = 119,
};

enum { /* CUpointer_attribute */
       PC_CU_POINTER_CONTEXT = 1,
       PC_CU_POINTER_SYNC_MEMOPS = 6,
       PC_CU_POINTER_IS_MANAGED = 8,
       PC_CU_POINTER_IS_LEGACY_CUDA_IPC_CAPABLE = 10,
       PC_CU_POINTER_ALLOWED_HANDLE_TYPES = 14,
       PC_CU_POINTER_IS_GPU_DIRECT_RDMA_CAPABLE = 15,
       PC_CU_POINTER_MEMPOOL_HANDLE = 17,
};

enum { /* CUmemPool_attribute */
       PC_CU_MEMPOOL_RELEASE_THRESHOLD = 4,
       PC_CU_MEMPOOL_RESERVED_CURRENT = 5,
       PC_CU_MEMPOOL_RESERVED_HIGH = 6,
       PC_CU_MEMPOOL_USED_CURRENT = 7,
       PC_CU_MEMPOOL_USED_HIGH = 8,
};

enum { PC_CU_MEM_ALLOCATION_TYPE_PINNED = 1 };
enum { PC_CU_MEM_HANDLE_TYPE_NONE = 0, PC_CU_MEM_HANDLE_TYPE_POSIX_FD = 1 };
enum { PC_CU_MEM_LOCATION_TYPE_DEVICE = 1, PC_CU_MEM_LOCATION_TYPE_HOST = 2 };
enum { PC_CU_MEM_ACCESS_NONE = 0, PC_CU_MEM_ACCESS_READ = 1, PC_CU_MEM_ACCESS_READWRITE = 3 };
enum { PC_CU_MEM_GRANULARITY_MINIMUM = 0, PC_CU_MEM_GRANULARITY_RECOMMENDED = 1 };
enum { PC_CU_MEM_ATTACH_GLOBAL = 1 };
enum { PC_CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD = 1 };
enum { PC_CU_STREAM_DEFAULT = 0, PC_CU_STREAM_NON_BLOCKING = 1 };
enum { PC_CU_EVENT_DISABLE_TIMING = 2 };
enum { PC_CU_CAPTURE_GLOBAL = 0, PC_CU_CAPTURE_THREAD_LOCAL = 1, PC_CU_CAPTURE_RELAXED = 2 };
enum { PC_CU_CAPTURE_STATUS_NONE = 0, PC_CU_CAPTURE_STATUS_ACTIVE = 1, PC_CU_CAPTURE_STATUS_INVALIDATED = 2 };

enum { /* CUmem_advise */
       PC_CU_ADVISE_SET_READ_MOSTLY = 1,
       PC_CU_ADVISE_UNSET_READ_MOSTLY = 2,
       PC_CU_ADVISE_SET_PREFERRED_LOCATION = 3,
       PC_CU_ADVISE_UNSET_PREFERRED_LOCATION = 4,
       PC_CU_ADVISE_SET_ACCESSED_BY = 5,
       PC_CU_ADVISE_UNSET_ACCESSED_BY = 6,
};

/* The handles of the two default streams (cuda.h: CU_STREAM_LEGACY, CU_STREAM_PER_THREAD). */
#define PC_CU_STREAM_LEGACY_VALUE 0x1
#define PC_CU_STREAM_PER_THREAD_VALUE 0x2

struct pc_cu_uuid {
    char bytes[16];
};

struct pc_cu_location {
    unsigned int type; /* PC_CU_MEM_LOCATION_TYPE_* */
    int id;            /* device ordinal */
};

struct pc_cu_access {
    struct pc_cu_location location;
    unsigned int flags; /* PC_CU_MEM_ACCESS_* */
};

/* CUmemPoolProps: 88 bytes. maxSize exists since 12.2; before, its place was reserved and zero. */
struct pc_cu_pool_props {
    unsigned int alloc_type;
    unsigned int handle_types;
    struct pc_cu_location location;
    void *win32_attributes;
    size_t max_size; /* bytes; 0: no limit of the pool's own. Rounded UP to 32 MiB (seen, H200) */
    unsigned short usage;
    unsigned char reserved[54];
};

/* CUmemAllocationProp: 32 bytes. */
struct pc_cu_alloc_prop {
    unsigned int type;
    unsigned int handle_types;
    struct pc_cu_location location;
    void *win32_metadata;
    struct {
        unsigned char compression;
        unsigned char gpu_direct_rdma;
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
};

struct pc_cu_ptr_export { /* CUmemPoolPtrExportData: opaque, but no capability (plain offsets) */
    unsigned char bytes[64];
};

struct pc_cu_ipc_handle { /* CUipcMemHandle */
    char bytes[64];
};

/* Structure types as they stand in prototypes; the drift test maps them onto NVIDIA's own. */
#ifndef PC_CU_TYPES_FROM_HEADER
typedef struct pc_cu_uuid pc_cu_uuid_t;
typedef struct pc_cu_location pc_cu_location_t;
typedef struct pc_cu_access pc_cu_access_t;
typedef struct pc_cu_pool_props pc_cu_pool_props_t;
typedef struct pc_cu_alloc_prop pc_cu_alloc_prop_t;
typedef struct pc_cu_ptr_export pc_cu_ptr_export_t;
typedef struct pc_cu_ipc_handle pc_cu_ipc_handle_t;
#endif

#endif
