/* The state directory, the lock, and the book in it. The rules are in sim.h. */
#include "tests/sim/sim.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define BOOK_MAGIC 0x31706163706f6f70ull

static struct {
    pthread_mutex_t mutex;
    bool hooked; /* fork handlers are set */
    char dir[PATH_MAX - 16];
    char inject[PATH_MAX];
    struct sim_book *book;
    int locks;    /* the fd whose OFD takes the book's lock; forks close it */
    int presence; /* the fd whose OFD holds this process's own byte; forks keep it */
    int pids;     /* never closed: closing any fd of that file would drop the process's lock */
    int gpu[SIM_GPUS];
} here = {
    .mutex = PTHREAD_MUTEX_INITIALIZER, .locks = -1, .presence = -1, .pids = -1, .gpu = {[0 ... SIM_GPUS - 1] = -1}};

void sim_lock(void)
{
    pthread_mutex_lock(&here.mutex);
}

void sim_unlock(void)
{
    pthread_mutex_unlock(&here.mutex);
}

/* --- files --- */

static int open_file(const char *name)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", here.dir, name);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd >= 0)
        (void)!fchmod(fd, 0666); /* past the umask; other users' files refuse, and are right already */
    return fd;
}

static int byte_lock(int fd, int command, short type, uint64_t at)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)at, .l_len = 1};
    int rc;
    do {
        rc = fcntl(fd, command, &lock);
    } while (rc != 0 && errno == EINTR);
    return rc;
}

/* Whether any process or fd in flight holds the byte of this id. */
static bool held(uint64_t id)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)id, .l_len = 1};
    return fcntl(here.locks, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

int sim_fd_make(uint64_t id)
{
    int fd = open_file("locks");
    if (fd < 0)
        return -1;
    /* The file position belongs to the open file, not to the process: it carries the id along. */
    if (byte_lock(fd, F_OFD_SETLK, F_RDLCK, id) != 0 || lseek(fd, (off_t)id, SEEK_SET) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

uint64_t sim_fd_id(int fd)
{
    struct stat ours, theirs;
    if (fstat(here.locks, &ours) != 0 || fstat(fd, &theirs) != 0 || ours.st_ino != theirs.st_ino ||
        ours.st_dev != theirs.st_dev)
        return 0;
    off_t at = lseek(fd, 0, SEEK_CUR);
    return at > 0 ? (uint64_t)at : 0;
}

int sim_gpu_fd(unsigned int gpu)
{
    char name[16];
    snprintf(name, sizeof name, "gpu%u", gpu);
    if (here.gpu[gpu] < 0)
        here.gpu[gpu] = open_file(name);
    return here.gpu[gpu];
}

void sim_punch(unsigned int gpu, uint64_t addr, uint64_t size)
{
    static const char zeros[1 << 16];
    int fd = sim_gpu_fd(gpu);
    off_t at = (off_t)(addr - sim_base(gpu));
    if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, (off_t)size) == 0)
        return;
    while (size > 0) { /* a file system without holes */
        ssize_t n = pwrite(fd, zeros, size < sizeof zeros ? size : sizeof zeros, at);
        if (n <= 0)
            return;
        at += n;
        size -= (uint64_t)n;
    }
}

/* --- opening --- */

static uint64_t env_number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text != NULL && *text != '\0' ? strtoull(text, NULL, 10) : otherwise;
}

/* The first process writes the configuration; what is there already stays. The lock is held. */
static bool book_begin(struct sim_book *book)
{
    if (book->magic == BOOK_MAGIC)
        return true;
    if (book->magic != 0)
        return false; /* of another version */
    uint64_t gpus = env_number("POOLCAP_SIM_GPUS", 1);
    book->gpus = gpus > SIM_GPUS ? SIM_GPUS : (uint32_t)gpus;
    book->memory = env_number("POOLCAP_SIM_MEMORY", 16 * PC_GIB);
    book->context = env_number("POOLCAP_SIM_CONTEXT", 64 * PC_MIB);
    book->reserved = env_number("POOLCAP_SIM_RESERVED", 0);
    book->reap_delay_ms = (uint32_t)env_number("POOLCAP_SIM_REAP_DELAY_MS", 0);
    if (getrandom(book->seed, sizeof book->seed, 0) != (ssize_t)sizeof book->seed)
        return false;
    book->next_id = 1;
    SIM_STORE(book->magic, BOOK_MAGIC);
    return true;
}

static struct sim_book *book_map(void)
{
    pc_auto_fd int fd = open_file("book");
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0)
        return NULL;
    if ((size_t)st.st_size < sizeof(struct sim_book) && ftruncate(fd, sizeof(struct sim_book)) != 0)
        return NULL;
    void *map = mmap(NULL, sizeof(struct sim_book), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return map != MAP_FAILED ? map : NULL;
}

static bool real_driver(void)
{
    return access("/dev/nvidiactl", F_OK) == 0 && env_number("POOLCAP_SIM_FORCE", 0) != 1;
}

static bool find_dir(void)
{
    const char *dir = getenv("POOLCAP_SIM_DIR");
    if (dir == NULL || *dir == '\0' || strlen(dir) >= sizeof here.dir || real_driver())
        return false;
    if (mkdir(dir, 0777) == 0)
        (void)!chmod(dir, 0777);
    strcpy(here.dir, dir);
    snprintf(here.inject, sizeof here.inject, "%s/inject", dir);
    return true;
}

/* A fork must not happen inside the lock, and its child must never hold the book's lock: the parent could be killed. */
static void before_fork(void)
{
    sim_lock();
}

static void after_fork_child(void)
{
    if (here.locks >= 0)
        close(here.locks);
    here.locks = -1;
    sim_unlock();
}

struct sim_book *sim_book_open(void)
{
    if (here.book != NULL && here.locks >= 0)
        return here.book;
    if (here.book == NULL && !find_dir())
        return NULL;
    if (!here.hooked && pthread_atfork(before_fork, sim_unlock, after_fork_child) == 0)
        here.hooked = true;
    if (here.locks < 0)
        here.locks = open_file("locks");
    if (here.pids < 0)
        here.pids = open_file("pids");
    if (here.locks < 0 || here.pids < 0 || byte_lock(here.locks, F_OFD_SETLKW, F_WRLCK, 0) != 0)
        return NULL;
    struct sim_book *book = here.book != NULL ? here.book : book_map();
    if (book != NULL && book_begin(book))
        here.book = book;
    else if (book != NULL)
        munmap(book, sizeof *book);
    byte_lock(here.locks, F_OFD_SETLK, F_UNLCK, 0);
    sim_inject_file(here.inject);
    return here.book;
}

/* --- sums and searches --- */

/* Runs the statement for every entry of a table that is in use. */
#define EACH(book, table, e)                                                                            \
    for (__typeof__(&(book)->table[0]) e = (book)->table; e < (book)->table + (book)->table##_end; e++) \
        if (e->used != 0)

uint64_t sim_used(const struct sim_book *book, unsigned int gpu)
{
    uint64_t sum = 0;
    EACH(book, procs, p)
    {
        sum += p->context[gpu];
    }
    EACH(book, pools, p)
    {
        sum += p->gpu == gpu ? p->card : 0;
    }
    EACH(book, ranges, r)
    {
        sum += r->gpu == gpu ? r->size : 0;
    }
    return sum;
}

uint64_t sim_free(const struct sim_book *book, unsigned int gpu)
{
    uint64_t gone = sim_used(book, gpu) + book->reserved;
    return gone < book->memory ? book->memory - gone : 0;
}

static bool refers(const struct sim_book *book, uint64_t proc, uint64_t object)
{
    EACH(book, refs, r)
    {
        if (r->object == object && (proc == 0 || r->proc == proc))
            return true;
    }
    return false;
}

/* Pool memory belongs to the exporter; large memory to every process that holds it. */
uint64_t sim_proc_bytes(const struct sim_book *book, const struct sim_proc *proc, unsigned int gpu)
{
    uint64_t sum = proc->context[gpu];
    EACH(book, pools, p)
    {
        sum += p->gpu == gpu && p->exporter == proc->id ? p->card : 0;
    }
    EACH(book, ranges, r)
    {
        if (r->gpu == gpu && (r->owner == proc->id || (r->used == SIM_LARGE && refers(book, proc->id, r->id))))
            sum += r->size;
    }
    return sum;
}

uint64_t sim_new_id(struct sim_book *book)
{
    uint64_t id = book->next_id;
    SIM_STORE(book->next_id, id + 1);
    return id;
}

struct sim_pool *sim_pool_by_id(struct sim_book *book, uint64_t id)
{
    EACH(book, pools, p)
    {
        if (p->id == id)
            return p;
    }
    return NULL;
}

struct sim_range *sim_range_by_id(struct sim_book *book, uint64_t id)
{
    EACH(book, ranges, r)
    {
        if (r->id == id)
            return r;
    }
    return NULL;
}

/* The first free entry of a table, zeroed; the table's end moves before the entry can be in use. */
#define TAKE(book, table, max)                                        \
    ({                                                                \
        uint32_t i = 0;                                               \
        while (i < (book)->table##_end && (book)->table[i].used != 0) \
            i++;                                                      \
        __typeof__(&(book)->table[0]) e = NULL;                       \
        if (i < (max)) {                                              \
            e = &(book)->table[i];                                    \
            memset(e, 0, sizeof *e);                                  \
            if (i == (book)->table##_end)                             \
                SIM_STORE((book)->table##_end, i + 1);                \
        }                                                             \
        e;                                                            \
    })

struct sim_pool *sim_pool_new(struct sim_book *book)
{
    return TAKE(book, pools, SIM_POOLS);
}

struct sim_range *sim_range_new(struct sim_book *book)
{
    return TAKE(book, ranges, SIM_RANGES);
}

bool sim_ref_add(struct sim_book *book, uint64_t proc, uint64_t object)
{
    EACH(book, refs, r)
    {
        if (r->proc == proc && r->object == object) {
            SIM_STORE(r->used, r->used + 1);
            return true;
        }
    }
    struct sim_ref *ref = TAKE(book, refs, SIM_REFS);
    if (ref == NULL)
        return false;
    ref->proc = proc;
    ref->object = object;
    SIM_STORE(ref->used, 1);
    return true;
}

void sim_ref_drop(struct sim_book *book, uint64_t proc, uint64_t object)
{
    EACH(book, refs, r)
    {
        if (r->proc == proc && r->object == object)
            SIM_STORE(r->used, r->used - 1);
    }
}

/* The end of something that lies in [at, at + size), or 0. */
static uint64_t in_the_way(const struct sim_book *book, uint64_t at, uint64_t size)
{
    EACH(book, pools, p)
    {
        if (p->base < at + size && at < p->base + p->window)
            return p->base + p->window;
    }
    EACH(book, ranges, r)
    {
        if (r->addr < at + size && at < r->addr + r->size)
            return r->addr + r->size;
    }
    return 0;
}

uint64_t sim_place(struct sim_book *book, unsigned int gpu, uint64_t size, uint64_t align)
{
    uint64_t first = sim_base(gpu), end = first + SIM_SPACE;
    for (int pass = 0; pass < 2; pass++) {
        uint64_t at = sim_up(pass == 0 && book->cursor[gpu] > first ? book->cursor[gpu] : first, align);
        while (at + size <= end) {
            uint64_t hit = in_the_way(book, at, size);
            if (hit == 0) {
                book->cursor[gpu] = at + size;
                return at;
            }
            at = sim_up(hit, align);
        }
    }
    return 0;
}

/* --- the dead --- */

static uint64_t exported_bytes(const struct sim_pool *pool)
{
    uint64_t granules = 0;
    for (size_t i = 0; i < SIM_GRANULES / 64; i++)
        granules += (uint64_t)__builtin_popcountll(pool->exported[i]);
    return granules * PC_POOL_GRANULE;
}

/* A pool without its exporter: one import, or one fd, keeps all that was ever exported (traps 2, 3 and 13). */
static void settle_pool(const struct sim_book *book, struct sim_pool *pool)
{
    if (pool->exporter != 0)
        return;
    uint64_t pinned = exported_bytes(pool) + pool->leaked;
    if (refers(book, 0, pool->id) || held(pool->id)) {
        if (pinned < pool->card)
            SIM_STORE(pool->card, pinned);
        return;
    }
    sim_punch(pool->gpu, pool->base, pool->window);
    SIM_STORE(pool->used, 0);
}

void sim_settle(struct sim_book *book)
{
    EACH(book, pools, p)
    {
        settle_pool(book, p);
    }
    EACH(book, ranges, r)
    {
        if (r->used != SIM_LARGE || refers(book, 0, r->id) || held(r->id))
            continue;
        sim_punch(r->gpu, r->addr, r->size);
        SIM_STORE(r->used, 0);
    }
}

static void bury(struct sim_book *book, struct sim_proc *proc)
{
    EACH(book, ranges, r)
    {
        if (r->owner == proc->id) {
            sim_punch(r->gpu, r->addr, r->size);
            SIM_STORE(r->used, 0);
        }
    }
    EACH(book, refs, r)
    {
        if (r->proc == proc->id)
            SIM_STORE(r->used, 0);
    }
    EACH(book, pools, p)
    {
        if (p->exporter == proc->id)
            SIM_STORE(p->exporter, 0);
    }
    SIM_STORE(proc->used, 0);
}

static uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static void reap(struct sim_book *book)
{
    EACH(book, procs, p)
    {
        if (held(p->id))
            continue;
        if (p->died_ms == 0)
            p->died_ms = now_ms();
        if (now_ms() - p->died_ms >= book->reap_delay_ms)
            bury(book, p);
    }
    sim_settle(book);
}

struct sim_book *sim_book_lock(void)
{
    byte_lock(here.locks, F_OFD_SETLKW, F_WRLCK, 0);
    reap(here.book);
    return here.book;
}

void sim_book_unlock(void)
{
    byte_lock(here.locks, F_OFD_SETLK, F_UNLCK, 0);
}

struct sim_proc *sim_proc_register(void)
{
    SIM_BOOK_GUARD(book);
    struct sim_proc *proc = TAKE(book, procs, SIM_PROCS);
    here.presence = open_file("locks");
    if (proc == NULL || here.presence < 0)
        return NULL;
    proc->pid = getpid();
    proc->id = sim_new_id(book);
    /* Both locks come before the entry: an entry without its lock is a dead process. */
    if (byte_lock(here.presence, F_OFD_SETLK, F_WRLCK, proc->id) != 0 ||
        byte_lock(here.pids, F_SETLK, F_WRLCK, proc->id) != 0)
        return NULL;
    SIM_STORE(proc->used, 1);
    return proc;
}

int32_t sim_proc_pid(const struct sim_proc *proc)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)proc->id, .l_len = 1};
    if (fcntl(here.pids, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK && lock.l_pid > 0)
        return lock.l_pid;
    return proc->pid; /* the caller itself, or a dead process whose forked child lives */
}
