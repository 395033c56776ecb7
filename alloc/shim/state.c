#include "alloc/shim/state.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "alloc/shim/meta.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

struct shim_state shim;

static const struct pc_cuda *given_driver;
static enum pc_status start_failed; /* once the driver could not be loaded it stays so */
static struct pc_error start_error;

/*
 * Where the kernel cannot wipe (older than poolcapd's own needs; some sandboxes), the process that started is told by
 * its number: with a system call each time, and only on the slow paths, which `alive` then never lets a call leave.
 */
static long started_pid;

void shim_use_driver(const struct pc_cuda *cu)
{
    given_driver = cu;
}

uint64_t shim_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void set_alive(void)
{
    enum { PAGE = 64 * 1024 }; /* whole pages of any size that Linux has */
    _Atomic uint32_t *word = shim_pages_get(PAGE);
    if (word != NULL && madvise(word, PAGE, MADV_WIPEONFORK) == 0) {
        atomic_store_explicit(word, 1, memory_order_relaxed);
        atomic_store_explicit(&shim.alive, word, memory_order_release);
        return;
    }
    shim_pages_put(word, PAGE);
    started_pid = syscall(SYS_getpid);
}

static enum pc_status load_driver(struct pc_error *err)
{
    if (given_driver != NULL)
        shim.cu = *given_driver;
    else if (pc_cuda_load(NULL, &shim.cu, err) != PC_OK)
        return PC_ERR_NOT_INITIALISED;
    pc_cu_result r = shim.cu.cuInit(0);
    if (r == PC_CU_SUCCESS)
        return PC_OK;
    pc_cuda_error(&shim.cu, r, PC_ERR_NOT_INITIALISED, "cuInit", err);
    err->status = PC_ERR_NOT_INITIALISED;
    return err->status;
}

/* Under shim.slow. */
static enum pc_status start_once(struct pc_error *err)
{
    if (atomic_load_explicit(&shim.alive, memory_order_relaxed) != NULL || started_pid != 0)
        return PC_OK;
    if (start_failed == PC_OK)
        start_failed = load_driver(&start_error);
    if (start_failed != PC_OK) {
        *err = start_error;
        return start_failed;
    }
    set_alive();
    return PC_OK;
}

static bool is_forked(void)
{
    const _Atomic uint32_t *word = atomic_load_explicit(&shim.alive, memory_order_acquire);
    if (word != NULL)
        return atomic_load_explicit(word, memory_order_relaxed) != 1;
    return started_pid != 0 && started_pid != syscall(SYS_getpid);
}

enum pc_status shim_start(bool *forked, struct pc_error *err)
{
    *forked = is_forked(); /* before the lock, which the parent may have held */
    if (*forked)
        return pc_error_set(
            err, PC_ERR_DENIED, 0,
            "this is a forked child: CUDA and libpoolcap work in the parent only; fork before the first "
            "CUDA call, or exec");
    if (shim_alive())
        return PC_OK;
    shim_lock_take(&shim.slow);
    enum pc_status status = start_once(err);
    shim_lock_give(&shim.slow);
    return status;
}
