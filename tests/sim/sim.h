/*
 * The simulated driver: what its two libraries share.
 *
 * All processes that use one state directory (POOLCAP_SIM_DIR) see the same simulated GPUs:
 *   book   what the card knows: processes, pools, memory. Mapped by every process
 *   locks  byte 0 is the lock over the book; byte <id> is held for as long as the object of that id must live: by a
 *          process for itself (its forks inherit it, as they do the driver's device files), by an exported fd for its
 *          pool or its memory. All are OFD locks, so SIGKILL at any instruction releases them
 *   pids   byte <id> is a POSIX lock of the process itself: the kernel translates its pid for each reader's namespace
 *   gpu<n> the bytes of a GPU, sparse. File offset = device address - sim_base(n)
 *   inject what to fail and to delay, for a running process (inject.c)
 *
 * Environment. POOLCAP_SIM_DIR is the state directory; without it, or beside a real driver (unless
 * POOLCAP_SIM_FORCE=1), there is no device. The first process of a directory sets, for all: POOLCAP_SIM_GPUS (1),
 * and in bytes for each GPU POOLCAP_SIM_MEMORY (16 GiB), POOLCAP_SIM_CONTEXT (64 MiB, what a context costs) and
 * POOLCAP_SIM_RESERVED (0, the driver's own); POOLCAP_SIM_REAP_DELAY_MS (0: how long the dead keep what they had, from
 * when anyone first looks). Each process for itself: POOLCAP_SIM_CONCURRENT_MANAGED (1), POOLCAP_SIM_FAIL and
 * POOLCAP_SIM_DELAY (inject.c).
 *
 * Simpler than a driver: no kernels; all work is done when it is queued; a pool block that is put together from
 * scattered free pieces reads as it did at its address, not as the pieces did; peer access is not checked.
 *
 * Rules of the book, because processes are killed at any instruction, inside the lock too:
 *  - an entry exists when its word `used` is not 0; that word is written last when it is made and first cleared when
 *    it goes. Memory is punched before its entry goes, so a reaper only ever repeats work.
 *  - totals are summed, never stored.
 *  - whoever takes the lock buries the dead first.
 */
#ifndef POOLCAP_SIM_H
#define POOLCAP_SIM_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "alloc/base/bytes.h"
#include "alloc/base/cleanup.h"
#include "alloc/driver/cuda_table.h"
#include "alloc/driver/cuda_types.h"
#include "alloc/driver/nvml_table.h"
#include "alloc/driver/nvml_types.h"

enum {
    SIM_GPUS = 8,
    SIM_PROCS = 1024,
    SIM_POOLS = 2048,
    SIM_RANGES = 16384,
    SIM_REFS = 16384,
    SIM_GRANULES = 32768, /* of one pool's window: 1 TiB */
};

struct sim_proc {
    uint32_t used;
    int32_t pid; /* as the process itself sees it */
    uint64_t id;
    uint64_t died_ms; /* when its lock was first seen gone; 0: alive */
    uint64_t context[SIM_GPUS];
};

struct sim_pool {
    uint32_t used;
    uint32_t gpu;
    uint64_t id;
    uint64_t exporter;     /* id of its process; 0 once that is dead or has destroyed the pool */
    uint64_t base, window; /* addresses; more than the cap, so that scattered holes never refuse a request that fits */
    uint64_t cap;          /* 0: none */
    uint64_t reserved;     /* what the pool's own books say */
    uint64_t card;         /* what the card holds for it: reserved, and what leaked by trimming (trap 1) */
    uint64_t leaked;
    uint32_t shared; /* exported as an fd at least once */
    uint32_t pad;
    uint64_t exported[SIM_GRANULES / 64]; /* a bit for each 32 MiB of the window that was ever exported */
};

enum { SIM_DIRECT = 1, SIM_LARGE = 2 }; /* sim_range.used */

struct sim_range {
    uint32_t used;
    uint32_t gpu;
    uint64_t id;
    uint64_t owner; /* id of the process; SIM_LARGE: 0, it lives by its references and fds */
    uint64_t addr, size;
};

struct sim_ref {   /* a process's hold on a pool that it imported, or on large memory */
    uint32_t used; /* how many holds */
    uint32_t pad;
    uint64_t proc, object;
};

struct sim_book {
    uint64_t magic;
    uint32_t gpus;
    uint32_t reap_delay_ms;
    uint64_t memory, context, reserved;                  /* bytes, each GPU */
    unsigned char seed[12];                              /* of the UUIDs */
    uint32_t procs_end, pools_end, ranges_end, refs_end; /* no entry in use from here on */
    uint64_t next_id;
    uint64_t cursor[SIM_GPUS]; /* where the search for free addresses goes on: a hint */
    struct sim_proc procs[SIM_PROCS];
    struct sim_pool pools[SIM_POOLS];
    struct sim_range ranges[SIM_RANGES];
    struct sim_ref refs[SIM_REFS];
};

#define SIM_STORE(field, value) __atomic_store_n(&(field), value, __ATOMIC_RELEASE)
#define SIM_SPACE (8ull << 40) /* addresses of one GPU */

static inline uint64_t sim_base(unsigned int gpu)
{
    return (gpu + 1ull) * SIM_SPACE;
}

static inline uint64_t sim_up(uint64_t n, uint64_t step)
{
    return (n + step - 1) / step * step;
}

/*
 * The lock of this library in this process, over everything it knows; the book's lock is taken inside it.
 * SIM_GUARD and SIM_BOOK_GUARD release at the end of the scope.
 */
void sim_lock(void);
void sim_unlock(void);
/* Opens the state directory, once. NULL: no simulator here (no POOLCAP_SIM_DIR, or a real driver). Under sim_lock. */
struct sim_book *sim_book_open(void);
struct sim_book *sim_book_lock(void);
void sim_book_unlock(void);

static inline void sim_guard_end(int *guard)
{
    (void)guard;
    sim_unlock();
}

static inline void sim_book_guard_end(struct sim_book **book)
{
    (void)book;
    sim_book_unlock();
}

#define SIM_GUARD __attribute__((cleanup(sim_guard_end), unused)) int sim_guard = (sim_lock(), 0)
#define SIM_BOOK_GUARD(book) __attribute__((cleanup(sim_book_guard_end))) struct sim_book *book = sim_book_lock()

/* Registers this process; its entry stays valid. Under sim_lock, once a process. NULL: no room, or an error. */
struct sim_proc *sim_proc_register(void);
/* The pid of a process as the caller's pid namespace shows it. */
int32_t sim_proc_pid(const struct sim_proc *proc);
uint64_t sim_proc_bytes(const struct sim_book *book, const struct sim_proc *proc, unsigned int gpu);

/* All under the book's lock. New entries are returned unused: fill, then SIM_STORE(used). NULL: the table is full. */
uint64_t sim_new_id(struct sim_book *book);
uint64_t sim_used(const struct sim_book *book, unsigned int gpu);
uint64_t sim_free(const struct sim_book *book, unsigned int gpu);
uint64_t sim_place(struct sim_book *book, unsigned int gpu, uint64_t size, uint64_t align); /* 0: no room */
struct sim_pool *sim_pool_new(struct sim_book *book);
struct sim_pool *sim_pool_by_id(struct sim_book *book, uint64_t id);
struct sim_range *sim_range_new(struct sim_book *book);
struct sim_range *sim_range_by_id(struct sim_book *book, uint64_t id);
bool sim_ref_add(struct sim_book *book, uint64_t proc, uint64_t object);
void sim_ref_drop(struct sim_book *book, uint64_t proc, uint64_t object);
void sim_settle(struct sim_book *book); /* gives back what nobody holds any more */

/* A new fd that keeps the object of this id alive wherever it goes; -1 on error. And the id behind such an fd, or 0. */
int sim_fd_make(uint64_t id);
uint64_t sim_fd_id(int fd);

int sim_gpu_fd(unsigned int gpu);
void sim_punch(unsigned int gpu, uint64_t addr, uint64_t size); /* reads as zero from now on */

/* inject.c: one number for each call of the two tables. */
enum sim_call_id {
#define SIM_CALL_ID(need, name, symbol, args) SIM_##name,
    PC_CUDA_TABLE(SIM_CALL_ID) PC_NVML_TABLE(SIM_CALL_ID)
#undef SIM_CALL_ID
        SIM_CALLS
};

/* Counts the call, sleeps where that is asked for, and returns the code to fail with, or 0. */
unsigned int sim_inject(enum sim_call_id call);
/* Where the file `inject` is; the string must stay. Called by sim_book_open. */
void sim_inject_file(const char *path);

#endif
