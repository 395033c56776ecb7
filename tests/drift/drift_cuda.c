/*
 * Compares our declarations of the CUDA driver API with NVIDIA's: every constant, size and offset of cuda_types.h, and
 * every prototype of cuda_table.h. Compiling is the test; nothing runs.
 */
#include <cuda.h>
#include <stddef.h>

#if CUDA_VERSION < 12020
#error "this cuda.h is older than 12.2, the lowest that poolcap supports"
#endif
#if CUDA_VERSION < 12050 /* OPTIONAL in the table, and younger than this header */
CUresult cuCtxRecordEvent(CUcontext ctx, CUevent event);
#endif

/* The opaque types are NVIDIA's own here, so that whole prototypes can be compared. */
#define PC_CU_TYPES_FROM_HEADER
typedef CUresult pc_cu_result;
typedef CUdevice pc_cu_device;
typedef CUdeviceptr pc_cu_deviceptr;
typedef CUcontext pc_cu_context;
typedef CUstream pc_cu_stream;
typedef CUevent pc_cu_event;
typedef CUmemoryPool pc_cu_mempool;
typedef CUmodule pc_cu_module;
typedef CUfunction pc_cu_function;
typedef CUgraph pc_cu_graph;
typedef CUgraphExec pc_cu_graphexec;
typedef CUmemGenericAllocationHandle pc_cu_memhandle;
typedef CUdevice_attribute pc_cu_device_attribute;
typedef CUpointer_attribute pc_cu_pointer_attribute;
typedef CUmemPool_attribute pc_cu_mempool_attribute;
typedef CUmemAllocationHandleType pc_cu_handle_type;
typedef CUmem_advise pc_cu_advice;
typedef CUstreamCaptureMode pc_cu_capture_mode;
typedef CUstreamCaptureStatus pc_cu_capture_status;
typedef CUmemAllocationGranularity_flags pc_cu_granularity;
typedef CUmemRangeHandleType pc_cu_range_handle_type;
typedef CUuuid pc_cu_uuid_t;
typedef CUmemLocation pc_cu_location_t;
typedef CUmemAccessDesc pc_cu_access_t;
typedef CUmemPoolProps pc_cu_pool_props_t;
typedef CUmemAllocationProp pc_cu_alloc_prop_t;
typedef CUmemPoolPtrExportData pc_cu_ptr_export_t;
typedef CUipcMemHandle pc_cu_ipc_handle_t;

#include "alloc/driver/cuda_table.h"
#include "alloc/driver/cuda_types.h"
#include "tests/drift/drift.h"

/* --- what we declare as plain numbers must be as wide as NVIDIA's type --- */

WIDTH(CUresult, unsigned int);
WIDTH(CUdevice, int);
WIDTH(CUdeviceptr, unsigned long long);
WIDTH(CUmemGenericAllocationHandle, unsigned long long);
WIDTH(CUdevice_attribute, unsigned int);
WIDTH(CUpointer_attribute, unsigned int);
WIDTH(CUmemPool_attribute, unsigned int);
WIDTH(CUmemAllocationHandleType, unsigned int);
WIDTH(CUmem_advise, unsigned int);
WIDTH(CUstreamCaptureMode, unsigned int);
WIDTH(CUstreamCaptureStatus, unsigned int);
WIDTH(CUmemAllocationGranularity_flags, unsigned int);
WIDTH(CUmemRangeHandleType, unsigned int);

/* --- constants --- */

SAME(PC_CU_SUCCESS, CUDA_SUCCESS);
SAME(PC_CU_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
SAME(PC_CU_ERROR_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
SAME(PC_CU_ERROR_NOT_INITIALIZED, CUDA_ERROR_NOT_INITIALIZED);
SAME(PC_CU_ERROR_DEINITIALIZED, CUDA_ERROR_DEINITIALIZED);
SAME(PC_CU_ERROR_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
SAME(PC_CU_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_DEVICE);
SAME(PC_CU_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_CONTEXT);
SAME(PC_CU_ERROR_ALREADY_MAPPED, CUDA_ERROR_ALREADY_MAPPED);
SAME(PC_CU_ERROR_OPERATING_SYSTEM, CUDA_ERROR_OPERATING_SYSTEM);
SAME(PC_CU_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_HANDLE);
SAME(PC_CU_ERROR_NOT_FOUND, CUDA_ERROR_NOT_FOUND);
SAME(PC_CU_ERROR_NOT_READY, CUDA_ERROR_NOT_READY);
SAME(PC_CU_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_ILLEGAL_ADDRESS);
SAME(PC_CU_ERROR_LAUNCH_TIMEOUT, CUDA_ERROR_LAUNCH_TIMEOUT);
SAME(PC_CU_ERROR_CONTEXT_IS_DESTROYED, CUDA_ERROR_CONTEXT_IS_DESTROYED);
SAME(PC_CU_ERROR_LAUNCH_FAILED, CUDA_ERROR_LAUNCH_FAILED);
SAME(PC_CU_ERROR_NOT_PERMITTED, CUDA_ERROR_NOT_PERMITTED);
SAME(PC_CU_ERROR_NOT_SUPPORTED, CUDA_ERROR_NOT_SUPPORTED);
SAME(PC_CU_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
SAME(PC_CU_ERROR_STREAM_CAPTURE_INVALIDATED, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
SAME(PC_CU_ERROR_UNKNOWN, CUDA_ERROR_UNKNOWN);
SAME(PC_CU_DEVICE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(PC_CU_DEVICE_COMPUTE_CAPABILITY_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME(PC_CU_DEVICE_CONCURRENT_MANAGED_ACCESS, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS);
SAME(PC_CU_DEVICE_MEMORY_POOLS_SUPPORTED, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
SAME(PC_CU_DEVICE_MEMPOOL_SUPPORTED_HANDLE_TYPES, CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES);
SAME(PC_CU_POINTER_CONTEXT, CU_POINTER_ATTRIBUTE_CONTEXT);
SAME(PC_CU_POINTER_SYNC_MEMOPS, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS);
SAME(PC_CU_POINTER_IS_MANAGED, CU_POINTER_ATTRIBUTE_IS_MANAGED);
SAME(PC_CU_POINTER_IS_LEGACY_CUDA_IPC_CAPABLE, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
SAME(PC_CU_POINTER_ALLOWED_HANDLE_TYPES, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES);
SAME(PC_CU_POINTER_IS_GPU_DIRECT_RDMA_CAPABLE, CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE);
SAME(PC_CU_POINTER_MEMPOOL_HANDLE, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE);
SAME(PC_CU_MEMPOOL_RELEASE_THRESHOLD, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
SAME(PC_CU_MEMPOOL_RESERVED_CURRENT, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
SAME(PC_CU_MEMPOOL_RESERVED_HIGH, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH);
SAME(PC_CU_MEMPOOL_USED_CURRENT, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
SAME(PC_CU_MEMPOOL_USED_HIGH, CU_MEMPOOL_ATTR_USED_MEM_HIGH);
SAME(PC_CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_ALLOCATION_TYPE_PINNED);
SAME(PC_CU_MEM_HANDLE_TYPE_NONE, CU_MEM_HANDLE_TYPE_NONE);
SAME(PC_CU_MEM_HANDLE_TYPE_POSIX_FD, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
SAME(PC_CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE);
SAME(PC_CU_MEM_LOCATION_TYPE_HOST, CU_MEM_LOCATION_TYPE_HOST);
SAME(PC_CU_MEM_ACCESS_NONE, CU_MEM_ACCESS_FLAGS_PROT_NONE);
SAME(PC_CU_MEM_ACCESS_READ, CU_MEM_ACCESS_FLAGS_PROT_READ);
SAME(PC_CU_MEM_ACCESS_READWRITE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
SAME(PC_CU_MEM_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
SAME(PC_CU_MEM_GRANULARITY_RECOMMENDED, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
SAME(PC_CU_MEM_ATTACH_GLOBAL, CU_MEM_ATTACH_GLOBAL);
SAME(PC_CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD);
SAME(PC_CU_STREAM_DEFAULT, CU_STREAM_DEFAULT);
SAME(PC_CU_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
SAME(PC_CU_EVENT_DISABLE_TIMING, CU_EVENT_DISABLE_TIMING);
SAME(PC_CU_CAPTURE_GLOBAL, CU_STREAM_CAPTURE_MODE_GLOBAL);
SAME(PC_CU_CAPTURE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
SAME(PC_CU_CAPTURE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED);
SAME(PC_CU_CAPTURE_STATUS_NONE, CU_STREAM_CAPTURE_STATUS_NONE);
SAME(PC_CU_CAPTURE_STATUS_ACTIVE, CU_STREAM_CAPTURE_STATUS_ACTIVE);
SAME(PC_CU_CAPTURE_STATUS_INVALIDATED, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
SAME(PC_CU_ADVISE_SET_READ_MOSTLY, CU_MEM_ADVISE_SET_READ_MOSTLY);
SAME(PC_CU_ADVISE_UNSET_READ_MOSTLY, CU_MEM_ADVISE_UNSET_READ_MOSTLY);
SAME(PC_CU_ADVISE_SET_PREFERRED_LOCATION, CU_MEM_ADVISE_SET_PREFERRED_LOCATION);
SAME(PC_CU_ADVISE_UNSET_PREFERRED_LOCATION, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION);
SAME(PC_CU_ADVISE_SET_ACCESSED_BY, CU_MEM_ADVISE_SET_ACCESSED_BY);
SAME(PC_CU_ADVISE_UNSET_ACCESSED_BY, CU_MEM_ADVISE_UNSET_ACCESSED_BY);

/* The header's are casts to a pointer, which no constant expression takes; the compiler folds the call all the same. */
__attribute__((noinline, error("the default streams' handles differ"))) void streams_differ(void);
void check_streams(void);
void check_streams(void)
{
    if ((size_t)CU_STREAM_LEGACY != PC_CU_STREAM_LEGACY_VALUE ||
        (size_t)CU_STREAM_PER_THREAD != PC_CU_STREAM_PER_THREAD_VALUE)
        streams_differ();
}

/* --- structures --- */

SIZE(struct pc_cu_uuid, CUuuid);
FIELD(struct pc_cu_uuid, bytes, CUuuid, bytes);
SIZE(struct pc_cu_location, CUmemLocation);
FIELD(struct pc_cu_location, type, CUmemLocation, type);
FIELD(struct pc_cu_location, id, CUmemLocation, id);
SIZE(struct pc_cu_access, CUmemAccessDesc);
FIELD(struct pc_cu_access, location, CUmemAccessDesc, location);
FIELD(struct pc_cu_access, flags, CUmemAccessDesc, flags);
SIZE(struct pc_cu_pool_props, CUmemPoolProps);
FIELD(struct pc_cu_pool_props, alloc_type, CUmemPoolProps, allocType);
FIELD(struct pc_cu_pool_props, handle_types, CUmemPoolProps, handleTypes);
FIELD(struct pc_cu_pool_props, location, CUmemPoolProps, location);
FIELD(struct pc_cu_pool_props, win32_attributes, CUmemPoolProps, win32SecurityAttributes);
FIELD(struct pc_cu_pool_props, max_size, CUmemPoolProps, maxSize);
SIZE(struct pc_cu_alloc_prop, CUmemAllocationProp);
FIELD(struct pc_cu_alloc_prop, type, CUmemAllocationProp, type);
FIELD(struct pc_cu_alloc_prop, handle_types, CUmemAllocationProp, requestedHandleTypes);
FIELD(struct pc_cu_alloc_prop, location, CUmemAllocationProp, location);
FIELD(struct pc_cu_alloc_prop, win32_metadata, CUmemAllocationProp, win32HandleMetaData);
FIELD(struct pc_cu_alloc_prop, flags, CUmemAllocationProp, allocFlags);
FIELD(struct pc_cu_alloc_prop, flags.compression, CUmemAllocationProp, allocFlags.compressionType);
FIELD(struct pc_cu_alloc_prop, flags.gpu_direct_rdma, CUmemAllocationProp, allocFlags.gpuDirectRDMACapable);
FIELD(struct pc_cu_alloc_prop, flags.usage, CUmemAllocationProp, allocFlags.usage);
SIZE(struct pc_cu_ptr_export, CUmemPoolPtrExportData);
SIZE(struct pc_cu_ipc_handle, CUipcMemHandle);
#if CUDA_VERSION >= 12040
FIELD(struct pc_cu_pool_props, usage, CUmemPoolProps, usage);
#endif

/* --- prototypes --- */

#define PROTOTYPE(need, name, symbol, args) \
    _Static_assert(__builtin_types_compatible_p(__typeof__(symbol), pc_cu_result args), "prototype of " #symbol);
PC_CUDA_TABLE(PROTOTYPE)
