#include "alloc/broker/books.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "alloc/base/cleanup.h"
#include "alloc/base/log.h"

/*
 * Change the version with any change of a record. A new poolcapd takes the books of the version before over, too, as an
 * upgrade leaves them; so new members go to the end of a record, where 0 has to mean what the old version meant.
 */
enum { BOOKS_MAGIC = 0x706c6362, BOOKS_VERSION = 4, BOOT_ID = 40, HEADER_BYTES = 4096 };

struct header {
    pc_books_word magic; /* stored last when the file is made */
    uint64_t version;
    char boot_id[BOOT_ID];
    pc_books_word epoch;
    pc_books_word pid;
};

static const struct table {
    size_t size, size_before; /* of a record: now, and in the version before */
    unsigned count;
} tables[PC_BOOKS_TABLES] = {
    [PC_BOOKS_GPUS] = {sizeof(struct pc_books_gpu), sizeof(struct pc_books_gpu), 32},
    [PC_BOOKS_GRANTS] = {sizeof(struct pc_books_grant), offsetof(struct pc_books_grant, order), 1024},
    [PC_BOOKS_GENERATIONS] = {sizeof(struct pc_books_generation), sizeof(struct pc_books_generation), 2048},
    [PC_BOOKS_IMPORTS] = {sizeof(struct pc_books_import), sizeof(struct pc_books_import), 16384},
    [PC_BOOKS_SEATS] = {sizeof(struct pc_books_seat), sizeof(struct pc_books_seat), 4096},
    [PC_BOOKS_LARGES] = {sizeof(struct pc_books_large), sizeof(struct pc_books_large), 8192},
};

struct pc_books {
    char *map;
    size_t size;
    size_t start[PC_BOOKS_TABLES];
    unsigned hint[PC_BOOKS_TABLES]; /* where a free record is looked for first */
};

static size_t layout(size_t start[PC_BOOKS_TABLES], bool before)
{
    size_t at = HEADER_BYTES;
    for (unsigned i = 0; i < PC_BOOKS_TABLES; i++) {
        start[i] = at;
        at += ((before ? tables[i].size_before : tables[i].size) * tables[i].count + 4095) & ~(size_t)4095;
    }
    return at;
}

static struct header *header_of(const struct pc_books *books)
{
    return (struct header *)books->map;
}

static enum pc_status read_boot_id(char out[BOOT_ID], struct pc_error *err)
{
    pc_auto_fd int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t length = fd < 0 ? -1 : read(fd, out, BOOT_ID - 1);
    if (length <= 0)
        return pc_error_errno(err, errno, "cannot read the kernel's boot id");
    memset(out + length, 0, BOOT_ID - (size_t)length);
    return PC_OK;
}

/* The version of an existing file that can be taken over; 0: it cannot, and the log says why. */
static uint64_t usable(int fd, const char *path, const char *boot_id)
{
    struct stat st;
    struct header header;
    size_t start[PC_BOOKS_TABLES];
    bool whole = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && pread(fd, &header, sizeof header, 0) == sizeof header &&
                 header.magic == BOOKS_MAGIC &&
                 (header.version == BOOKS_VERSION || header.version == BOOKS_VERSION - 1);
    if (!whole || (size_t)st.st_size != layout(start, header.version != BOOKS_VERSION)) {
        pc_log_error("books",
                     "%s is not a file of this version of poolcapd, nor of the one before: what living processes hold "
                     "of an earlier poolcapd's pools is not known, and their capacity may be given out twice until "
                     "they end",
                     path);
        return 0;
    }
    if (memcmp(header.boot_id, boot_id, BOOT_ID) != 0) {
        pc_log_info("books", "%s is of an earlier boot and begins anew", path);
        return 0;
    }
    return header.version;
}

static enum pc_status map_file(struct pc_books *books, int fd, const char *path, struct pc_error *err)
{
    int rc = posix_fallocate(fd, 0, (off_t)books->size);
    if (rc != 0)
        return pc_error_errno(err, rc, "cannot allocate the %zu bytes of %.200s", books->size, path);
    void *map = mmap(NULL, books->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return pc_error_errno(err, errno, "cannot map %.200s", path);
    books->map = map;
    return PC_OK;
}

/* Copies the records of a file of the version before, and its epoch. */
static enum pc_status copy_before(struct pc_books *books, int old, struct pc_error *err)
{
    size_t start[PC_BOOKS_TABLES];
    size_t size = layout(start, true);
    char *map = mmap(NULL, size, PROT_READ, MAP_SHARED, old, 0);
    if (map == MAP_FAILED)
        return pc_error_errno(err, errno, "cannot map the books of the version before");
    for (unsigned i = 0; i < PC_BOOKS_TABLES; i++)
        for (unsigned n = 0; n < tables[i].count; n++)
            memcpy(books->map + books->start[i] + tables[i].size * n, map + start[i] + tables[i].size_before * n,
                   tables[i].size_before);
    header_of(books)->epoch = pc_books_get(&((struct header *)map)->epoch) + 1;
    munmap(map, size);
    return PC_OK;
}

/*
 * Makes the file beside the old one and renames it into place when it is whole. The first epoch is the time, so that
 * ids of books that were lost do not come back. old: a file of the version before, or -1.
 */
static enum pc_status make_file(struct pc_books *books, const char *path, const char *boot_id, int old,
                                struct pc_error *err)
{
    char fresh[PC_PATH_MAX + 32];
    snprintf(fresh, sizeof fresh, "%s.new", path);
    unlink(fresh);
    pc_auto_fd int fd = open(fresh, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return pc_error_errno(err, errno, "cannot make %.200s", fresh);
    enum pc_status status = map_file(books, fd, fresh, err);
    if (status == PC_OK) {
        struct header *header = header_of(books);
        header->version = BOOKS_VERSION;
        memcpy(header->boot_id, boot_id, BOOT_ID);
        header->epoch = (uint64_t)time(NULL) & 0x7fffffff;
        if (old >= 0)
            status = copy_before(books, old, err);
        pc_books_set(&header->magic, BOOKS_MAGIC);
        if (status == PC_OK && rename(fresh, path) < 0)
            status = pc_error_errno(err, errno, "cannot rename %.200s", fresh);
    }
    if (status != PC_OK)
        unlink(fresh);
    return status;
}

static enum pc_status open_file(struct pc_books *books, const char *path, struct pc_error *err)
{
    char boot_id[BOOT_ID];
    enum pc_status status = read_boot_id(boot_id, err);
    if (status != PC_OK)
        return status;
    pc_auto_fd int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 && errno != ENOENT)
        return pc_error_errno(err, errno, "cannot open %.200s", path);
    uint64_t version = fd >= 0 ? usable(fd, path, boot_id) : 0;
    if (version != BOOKS_VERSION)
        return make_file(books, path, boot_id, version != 0 ? fd : -1, err);
    status = map_file(books, fd, path, err);
    if (status == PC_OK)
        pc_books_set(&header_of(books)->epoch, pc_books_epoch(books) + 1);
    return status;
}

enum pc_status pc_books_open(const char *directory, struct pc_books **out, struct pc_error *err)
{
    char path[PC_PATH_MAX + 16];
    snprintf(path, sizeof path, "%s/books", directory);
    struct pc_books *books = calloc(1, sizeof *books);
    if (books == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no memory for the books");
    books->size = layout(books->start, false);
    enum pc_status status = open_file(books, path, err);
    if (status != PC_OK) {
        pc_books_close(books);
        return status;
    }
    pc_books_set(&header_of(books)->pid, (uint64_t)getpid());
    *out = books;
    return PC_OK;
}

void pc_books_close(struct pc_books *books)
{
    if (books == NULL)
        return;
    if (books->map != NULL)
        munmap(books->map, books->size);
    free(books);
}

uint64_t pc_books_epoch(const struct pc_books *books)
{
    return pc_books_get(&header_of(books)->epoch);
}

static void *record_at(const struct pc_books *books, enum pc_books_table table, unsigned index)
{
    return books->map + books->start[table] + tables[table].size * index;
}

enum pc_status pc_books_new(struct pc_books *books, enum pc_books_table table, void **out, struct pc_error *err)
{
    unsigned count = tables[table].count;
    for (unsigned i = 0; i < count; i++) {
        unsigned index = (books->hint[table] + i) % count;
        char *record = record_at(books, table, index);
        if (pc_books_get((pc_books_word *)record) != PC_BOOKS_FREE)
            continue;
        memset(record + sizeof(pc_books_word), 0, tables[table].size - sizeof(pc_books_word));
        books->hint[table] = index + 1;
        *out = record;
        return PC_OK;
    }
    return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "poolcapd's books are full (%u records of a kind)", count);
}

/* Ends the texts of a record: the file is ours, but a bad disk or a bug must not make us read beyond them. */
static void end_texts(enum pc_books_table table, void *record)
{
    struct pc_books_gpu *gpu = record;
    struct pc_books_grant *grant = record;
    struct pc_books_generation *generation = record;
    struct pc_books_seat *seat = record;
    struct pc_books_large *large = record;
    switch (table) {
    case PC_BOOKS_GPUS:
        gpu->gpu[PC_UUID_TEXT - 1] = '\0';
        break;
    case PC_BOOKS_GRANTS:
        grant->name[PC_NAME_MAX - 1] = grant->tenant[PC_NAME_MAX - 1] = grant->pod_uid[PC_NAME_MAX - 1] = '\0';
        for (unsigned i = 0; i < PC_PAGE_GPUS_MAX; i++)
            grant->gpu[i][PC_UUID_TEXT - 1] = '\0';
        break;
    case PC_BOOKS_GENERATIONS:
        generation->tenant[PC_NAME_MAX - 1] = generation->gpu[PC_UUID_TEXT - 1] = '\0';
        break;
    case PC_BOOKS_SEATS:
        seat->grant[PC_NAME_MAX - 1] = seat->gpu[PC_UUID_TEXT - 1] = '\0';
        break;
    case PC_BOOKS_LARGES:
        large->grant[PC_NAME_MAX - 1] = large->gpu[PC_UUID_TEXT - 1] = '\0';
        break;
    default:
        break;
    }
}

void *pc_books_next(struct pc_books *books, enum pc_books_table table, unsigned *index)
{
    while (*index < tables[table].count) {
        void *record = record_at(books, table, (*index)++);
        if (pc_books_get(record) != PC_BOOKS_FREE) {
            end_texts(table, record);
            return record;
        }
    }
    return NULL;
}
