/*
 * The one table of CUDA driver calls. Everything that needs the list (the function pointers of
 * struct pc_cuda, the loader, the simulator's exports, the drift test) loops over it.
 *
 * X(need, name, symbol, args)
 *   need    REQUIRED: loading fails without it. OPTIONAL: the pointer is NULL where the driver
 *           has none (older drivers); callers check. TESTING: used by the test suites only, and
 *           treated like OPTIONAL.
 *   name    member of struct pc_cuda, the API's base name
 *   symbol  what dlsym is asked for: the versioned name of the prototype given in args
 * All return CUresult. Contracts of the odd ones stand in driver.h.
 */
#ifndef PC_DRIVER_CUDA_TABLE_H
#define PC_DRIVER_CUDA_TABLE_H

/* clang-format off */
#define PC_CUDA_TABLE(X) \
  X(REQUIRED, cuInit, cuInit, (unsigned int flags)) \
  X(REQUIRED, cuDriverGetVersion, cuDriverGetVersion, (int *version)) \
  X(REQUIRED, cuGetErrorName, cuGetErrorName, (pc_cu_result error, const char **name)) \
  X(REQUIRED, cuGetErrorString, cuGetErrorString, (pc_cu_result error, const char **text)) \
  X(REQUIRED, cuDeviceGetCount, cuDeviceGetCount, (int *count)) \
  X(REQUIRED, cuDeviceGet, cuDeviceGet, (pc_cu_device *device, int ordinal)) \
  X(REQUIRED, cuDeviceGetName, cuDeviceGetName, (char *name, int len, pc_cu_device device)) \
  X(REQUIRED, cuDeviceGetUuid, cuDeviceGetUuid_v2, (pc_cu_uuid_t *uuid, pc_cu_device device)) \
  X(REQUIRED, cuDeviceGetAttribute, cuDeviceGetAttribute, (int *value, pc_cu_device_attribute attribute, pc_cu_device device)) \
  X(REQUIRED, cuDeviceTotalMem, cuDeviceTotalMem_v2, (size_t *bytes, pc_cu_device device)) \
  X(REQUIRED, cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (pc_cu_context *ctx, pc_cu_device device)) \
  X(REQUIRED, cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (pc_cu_device device)) \
  X(REQUIRED, cuCtxSetCurrent, cuCtxSetCurrent, (pc_cu_context ctx)) \
  X(REQUIRED, cuCtxGetCurrent, cuCtxGetCurrent, (pc_cu_context *ctx)) \
  X(REQUIRED, cuCtxPushCurrent, cuCtxPushCurrent_v2, (pc_cu_context ctx)) \
  X(REQUIRED, cuCtxPopCurrent, cuCtxPopCurrent_v2, (pc_cu_context *ctx)) \
  X(REQUIRED, cuCtxGetDevice, cuCtxGetDevice, (pc_cu_device *device)) \
  X(REQUIRED, cuCtxGetId, cuCtxGetId, (pc_cu_context ctx, unsigned long long *id)) \
  X(REQUIRED, cuCtxSynchronize, cuCtxSynchronize, (void)) \
  X(OPTIONAL, cuCtxRecordEvent, cuCtxRecordEvent, (pc_cu_context ctx, pc_cu_event event)) \
  X(REQUIRED, cuStreamCreate, cuStreamCreate, (pc_cu_stream *stream, unsigned int flags)) \
  X(REQUIRED, cuStreamDestroy, cuStreamDestroy_v2, (pc_cu_stream stream)) \
  X(REQUIRED, cuStreamSynchronize, cuStreamSynchronize, (pc_cu_stream stream)) \
  X(REQUIRED, cuStreamQuery, cuStreamQuery, (pc_cu_stream stream)) \
  X(REQUIRED, cuStreamGetId, cuStreamGetId, (pc_cu_stream stream, unsigned long long *id)) \
  X(REQUIRED, cuStreamIsCapturing, cuStreamIsCapturing, (pc_cu_stream stream, pc_cu_capture_status *status)) \
  X(REQUIRED, cuStreamWaitEvent, cuStreamWaitEvent, (pc_cu_stream stream, pc_cu_event event, unsigned int flags)) \
  X(REQUIRED, cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, (pc_cu_capture_mode *mode)) \
  X(REQUIRED, cuEventCreate, cuEventCreate, (pc_cu_event *event, unsigned int flags)) \
  X(REQUIRED, cuEventRecord, cuEventRecord, (pc_cu_event event, pc_cu_stream stream)) \
  X(REQUIRED, cuEventQuery, cuEventQuery, (pc_cu_event event)) \
  X(REQUIRED, cuEventSynchronize, cuEventSynchronize, (pc_cu_event event)) \
  X(REQUIRED, cuEventDestroy, cuEventDestroy_v2, (pc_cu_event event)) \
  X(REQUIRED, cuMemGetInfo, cuMemGetInfo_v2, (size_t *free_bytes, size_t *total_bytes)) \
  X(REQUIRED, cuMemAlloc, cuMemAlloc_v2, (pc_cu_deviceptr *ptr, size_t bytes)) \
  X(REQUIRED, cuMemFree, cuMemFree_v2, (pc_cu_deviceptr ptr)) \
  X(REQUIRED, cuMemAllocAsync, cuMemAllocAsync, (pc_cu_deviceptr *ptr, size_t bytes, pc_cu_stream stream)) \
  X(REQUIRED, cuMemFreeAsync, cuMemFreeAsync, (pc_cu_deviceptr ptr, pc_cu_stream stream)) \
  X(REQUIRED, cuMemPoolCreate, cuMemPoolCreate, (pc_cu_mempool *pool, const pc_cu_pool_props_t *props)) \
  X(REQUIRED, cuMemPoolDestroy, cuMemPoolDestroy, (pc_cu_mempool pool)) \
  X(REQUIRED, cuMemPoolSetAttribute, cuMemPoolSetAttribute, (pc_cu_mempool pool, pc_cu_mempool_attribute attribute, void *value)) \
  X(REQUIRED, cuMemPoolGetAttribute, cuMemPoolGetAttribute, (pc_cu_mempool pool, pc_cu_mempool_attribute attribute, void *value)) \
  X(REQUIRED, cuMemPoolSetAccess, cuMemPoolSetAccess, (pc_cu_mempool pool, const pc_cu_access_t *map, size_t count)) \
  X(REQUIRED, cuMemPoolTrimTo, cuMemPoolTrimTo, (pc_cu_mempool pool, size_t keep)) \
  X(REQUIRED, cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, (pc_cu_deviceptr *ptr, size_t bytes, pc_cu_mempool pool, pc_cu_stream stream)) \
  X(REQUIRED, cuMemPoolExportToShareableHandle, cuMemPoolExportToShareableHandle, (void *handle_out, pc_cu_mempool pool, pc_cu_handle_type type, unsigned long long flags)) \
  X(REQUIRED, cuMemPoolImportFromShareableHandle, cuMemPoolImportFromShareableHandle, (pc_cu_mempool *pool, void *handle, pc_cu_handle_type type, unsigned long long flags)) \
  X(REQUIRED, cuMemPoolExportPointer, cuMemPoolExportPointer, (pc_cu_ptr_export_t *out, pc_cu_deviceptr ptr)) \
  X(REQUIRED, cuMemPoolImportPointer, cuMemPoolImportPointer, (pc_cu_deviceptr *ptr, pc_cu_mempool pool, pc_cu_ptr_export_t *data)) \
  X(REQUIRED, cuMemCreate, cuMemCreate, (pc_cu_memhandle *handle, size_t bytes, const pc_cu_alloc_prop_t *prop, unsigned long long flags)) \
  X(REQUIRED, cuMemRelease, cuMemRelease, (pc_cu_memhandle handle)) \
  X(REQUIRED, cuMemExportToShareableHandle, cuMemExportToShareableHandle, (void *handle_out, pc_cu_memhandle handle, pc_cu_handle_type type, unsigned long long flags)) \
  X(REQUIRED, cuMemImportFromShareableHandle, cuMemImportFromShareableHandle, (pc_cu_memhandle *handle, void *os_handle, pc_cu_handle_type type)) \
  X(REQUIRED, cuMemAddressReserve, cuMemAddressReserve, (pc_cu_deviceptr *ptr, size_t bytes, size_t alignment, pc_cu_deviceptr hint, unsigned long long flags)) \
  X(REQUIRED, cuMemAddressFree, cuMemAddressFree, (pc_cu_deviceptr ptr, size_t bytes)) \
  X(REQUIRED, cuMemMap, cuMemMap, (pc_cu_deviceptr ptr, size_t bytes, size_t offset, pc_cu_memhandle handle, unsigned long long flags)) \
  X(REQUIRED, cuMemUnmap, cuMemUnmap, (pc_cu_deviceptr ptr, size_t bytes)) \
  X(REQUIRED, cuMemSetAccess, cuMemSetAccess, (pc_cu_deviceptr ptr, size_t bytes, const pc_cu_access_t *desc, size_t count)) \
  X(REQUIRED, cuMemGetAllocationGranularity, cuMemGetAllocationGranularity, (size_t *granularity, const pc_cu_alloc_prop_t *prop, pc_cu_granularity option)) \
  X(REQUIRED, cuMemAllocManaged, cuMemAllocManaged, (pc_cu_deviceptr *ptr, size_t bytes, unsigned int flags)) \
  X(REQUIRED, cuMemPrefetchAsync, cuMemPrefetchAsync_v2, (pc_cu_deviceptr ptr, size_t bytes, pc_cu_location_t location, unsigned int flags, pc_cu_stream stream)) \
  X(REQUIRED, cuMemAdvise, cuMemAdvise_v2, (pc_cu_deviceptr ptr, size_t bytes, pc_cu_advice advice, pc_cu_location_t location)) \
  X(REQUIRED, cuMemcpyHtoD, cuMemcpyHtoD_v2, (pc_cu_deviceptr dst, const void *src, size_t bytes)) \
  X(REQUIRED, cuMemcpyDtoH, cuMemcpyDtoH_v2, (void *dst, pc_cu_deviceptr src, size_t bytes)) \
  X(REQUIRED, cuMemcpyDtoD, cuMemcpyDtoD_v2, (pc_cu_deviceptr dst, pc_cu_deviceptr src, size_t bytes)) \
  X(REQUIRED, cuMemsetD8, cuMemsetD8_v2, (pc_cu_deviceptr dst, unsigned char value, size_t count)) \
  X(REQUIRED, cuMemsetD8Async, cuMemsetD8Async, (pc_cu_deviceptr dst, unsigned char value, size_t count, pc_cu_stream stream)) \
  X(REQUIRED, cuMemsetD32Async, cuMemsetD32Async, (pc_cu_deviceptr dst, unsigned int value, size_t count, pc_cu_stream stream)) \
  X(REQUIRED, cuPointerGetAttribute, cuPointerGetAttribute, (void *value, pc_cu_pointer_attribute attribute, pc_cu_deviceptr ptr)) \
  X(REQUIRED, cuMemGetAddressRange, cuMemGetAddressRange_v2, (pc_cu_deviceptr *base, size_t *size, pc_cu_deviceptr ptr)) \
  X(TESTING, cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, (pc_cu_memhandle *handle, void *addr)) \
  X(TESTING, cuMemGetHandleForAddressRange, cuMemGetHandleForAddressRange, (void *handle, pc_cu_deviceptr ptr, size_t bytes, pc_cu_range_handle_type type, unsigned long long flags)) \
  X(TESTING, cuIpcGetMemHandle, cuIpcGetMemHandle, (pc_cu_ipc_handle_t *handle, pc_cu_deviceptr ptr)) \
  X(TESTING, cuStreamBeginCapture, cuStreamBeginCapture_v2, (pc_cu_stream stream, pc_cu_capture_mode mode)) \
  X(TESTING, cuStreamEndCapture, cuStreamEndCapture, (pc_cu_stream stream, pc_cu_graph *graph)) \
  X(TESTING, cuGraphInstantiate, cuGraphInstantiateWithFlags, (pc_cu_graphexec *exec, pc_cu_graph graph, unsigned long long flags)) \
  X(TESTING, cuGraphLaunch, cuGraphLaunch, (pc_cu_graphexec exec, pc_cu_stream stream)) \
  X(TESTING, cuGraphExecDestroy, cuGraphExecDestroy, (pc_cu_graphexec exec)) \
  X(TESTING, cuGraphDestroy, cuGraphDestroy, (pc_cu_graph graph)) \
  X(TESTING, cuModuleLoadData, cuModuleLoadData, (pc_cu_module *module, const void *image)) \
  X(TESTING, cuModuleGetFunction, cuModuleGetFunction, (pc_cu_function *function, pc_cu_module module, const char *name)) \
  X(TESTING, cuLaunchKernel, cuLaunchKernel, (pc_cu_function f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared, pc_cu_stream stream, void **params, void **extra))
/* clang-format on */

#endif
