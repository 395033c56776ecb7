/*
 * CUDA driver and NVML, opened at run time. The only files that know them are in this folder.
 *
 * struct pc_cuda is a table of function pointers, one for each row of cuda_table.h; calls read as
 * `cu->cuMemPoolCreate(&pool, &props)`. The tables are immutable after loading and may be used by
 * any thread.
 *
 * Contracts that bite (facts/cuda-pools-h200.md; each is a check of tests/conformance):
 *  - cuMemPoolCreate: props.max_size is rounded UP to 32 MiB and then enforced by the driver, also
 *    on exported pools. The sum over pools is NOT checked against the card.
 *  - cuMemPoolExportToShareableHandle: handle_out is an int *; the fd keeps the pool's memory alive
 *    until closed, on both sides.
 *  - cuMemPoolImportFromShareableHandle and cuMemImportFromShareableHandle: the fd is passed BY
 *    VALUE in the pointer: (void *)(uintptr_t)fd. It is not consumed; close it.
 *  - cuMemPoolExportPointer: only after the pool was exported once as an fd; INVALID_VALUE before.
 *  - cuMemPoolImportPointer: SIGSEGV in the driver above about 4 GiB; twice the same data in one
 *    process gives the same address, and the first free ends both.
 *  - cuMemFree of pool memory waits for nothing. cuMemPoolTrimTo on exported memory leaks.
 */
#ifndef PC_DRIVER_DRIVER_H
#define PC_DRIVER_DRIVER_H

#include "alloc/base/error.h"
#include "alloc/driver/cuda_table.h"
#include "alloc/driver/cuda_types.h"
#include "alloc/driver/nvml_table.h"
#include "alloc/driver/nvml_types.h"

/* The lowest CUDA driver API version that has CUmemPoolProps.maxSize (12.2). */
#define PC_CUDA_VERSION_MIN 12020

struct pc_cuda {
    void *handle; /* of dlopen; never closed: the driver does not survive it */
#define PC_CUDA_MEMBER(need, name, symbol, args) pc_cu_result(*name) args;
    PC_CUDA_TABLE(PC_CUDA_MEMBER)
#undef PC_CUDA_MEMBER
};

struct pc_nvml {
    void *handle;
#define PC_NVML_MEMBER(need, name, symbol, args) pc_nvml_result(*name) args;
    PC_NVML_TABLE(PC_NVML_MEMBER)
#undef PC_NVML_MEMBER
};

/*
 * Opens libcuda and fills *cu. Makes no CUDA call; cuInit is the caller's.
 * path: the library's file, or NULL for the standard places (libcuda.so.1 by the loader's search, then
 * the folders where container runtimes mount it).
 * Errors: PC_ERR_NOT_INITIALISED, the text names the library tried or the missing symbol.
 */
enum pc_status pc_cuda_load(const char *path, struct pc_cuda *cu, struct pc_error *err);

/* The same for libnvidia-ml. */
enum pc_status pc_nvml_load(const char *path, struct pc_nvml *nvml, struct pc_error *err);

/*
 * Turns a CUresult into an error: PC_OK for success, PC_ERR_OUT_OF_MEMORY for code 2, otherwise
 * `otherwise`. The text is "<what>: CUDA_ERROR_NAME (code): driver's text".
 */
enum pc_status pc_cuda_error(const struct pc_cuda *cu, pc_cu_result code, enum pc_status otherwise, const char *what,
                             struct pc_error *err);

enum { PC_UUID_TEXT = 48 };

/* Writes a device's UUID as NVML and nvidia-smi spell it: "GPU-8-4-4-4-12". Returns buf. */
char *pc_uuid_format(const struct pc_cu_uuid *uuid, char buf[PC_UUID_TEXT]);

#endif
