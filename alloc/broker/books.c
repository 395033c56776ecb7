#include "alloc/broker/books.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "alloc/base/cleanup.h"

#define BOOKS_MAGIC 0x31736b6f6f626370ull /* "pcbooks1" */

struct file {
    uint64_t magic;
    uint64_t record_bytes;
    char boot[40]; /* nothing on the card outlives a reboot */
    uint64_t epoch;
    uint64_t spare[8];
    struct pc_book_record record[PC_BOOK_RECORDS];
};

struct pc_books {
    struct file *file;
    unsigned next;
};

static void read_boot(char out[40])
{
    memset(out, 0, 40);
    pc_auto_fd int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && read(fd, out, 36) < 0)
        out[0] = '\0';
}

/* Ends the strings of a record: the file is ours, but may come from a bug or a bad disk. */
static void mend(struct pc_book_record *r)
{
    if (r->kind == PC_BOOK_GRANT) {
        struct pc_book_grant *g = &r->grant;
        g->name[PC_BOOK_NAME - 1] = g->tenant[PC_BOOK_NAME - 1] = g->pod_uid[PC_BOOK_NAME - 1] = '\0';
        if (g->shares > PC_PAGE_GPUS_MAX)
            g->shares = 0;
        for (unsigned k = 0; k < PC_PAGE_GPUS_MAX; k++)
            g->uuid[k][PC_BOOK_UUID - 1] = '\0';
    } else if (r->kind == PC_BOOK_GENERATION) {
        r->generation.tenant[PC_BOOK_NAME - 1] = r->generation.uuid[PC_BOOK_UUID - 1] = '\0';
    } else if (r->kind == PC_BOOK_SESSION) {
        r->session.grant[PC_BOOK_NAME - 1] = '\0';
    }
}

struct pc_book_record **pc_books_list(struct pc_books *books, unsigned *count)
{
    struct pc_book_record **list = calloc(PC_BOOK_RECORDS, sizeof *list);
    *count = 0;
    for (unsigned i = 0; list != NULL && i < PC_BOOK_RECORDS; i++) {
        struct pc_book_record *r = &books->file->record[i];
        if (r->kind < PC_BOOK_GRANT || r->kind > PC_BOOK_LARGE)
            continue;
        mend(r);
        list[(*count)++] = r;
    }
    return list;
}

static enum pc_status map_file(const char *path, struct pc_books *books, struct pc_error *err)
{
    pc_auto_fd int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return pc_error_errno(err, errno, "cannot open the books %.200s", path);
    if (ftruncate(fd, (off_t)sizeof *books->file) < 0)
        return pc_error_errno(err, errno, "cannot size the books %.200s", path);
    void *map = mmap(NULL, sizeof *books->file, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return pc_error_errno(err, errno, "cannot map the books %.200s", path);
    books->file = map;
    return PC_OK;
}

/* A file of this boot and this layout is carried on; any other begins anew. */
static void begin(struct file *file)
{
    char boot[40];
    read_boot(boot);
    bool known = file->magic == BOOKS_MAGIC && file->record_bytes == sizeof(struct pc_book_record) &&
                 memcmp(file->boot, boot, sizeof boot) == 0 && file->epoch < UINT32_MAX;
    if (known) {
        pc_book_set(&file->epoch, file->epoch + 1);
        return;
    }
    pc_book_set(&file->magic, 0);
    memset(file->record, 0, sizeof file->record);
    memcpy(file->boot, boot, sizeof boot);
    file->record_bytes = sizeof(struct pc_book_record);
    file->epoch = 1;
    pc_book_set(&file->magic, BOOKS_MAGIC);
}

enum pc_status pc_books_open(const char *path, struct pc_books **out, uint64_t *epoch, struct pc_error *err)
{
    struct pc_books *books = calloc(1, sizeof *books);
    if (books == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no memory for the books");
    enum pc_status status = map_file(path, books, err);
    if (status != PC_OK) {
        free(books);
        return status;
    }
    begin(books->file);
    *epoch = books->file->epoch;
    *out = books;
    return PC_OK;
}

struct pc_book_record *pc_book_new(struct pc_books *books)
{
    for (unsigned i = 0; i < PC_BOOK_RECORDS; i++) {
        struct pc_book_record *r = &books->file->record[(books->next + i) % PC_BOOK_RECORDS];
        if (r->kind != PC_BOOK_FREE)
            continue;
        books->next = (books->next + i + 1) % PC_BOOK_RECORDS;
        memset(r, 0, sizeof *r);
        return r;
    }
    return NULL;
}

void pc_book_commit(struct pc_book_record *record, enum pc_book_kind kind)
{
    if (record != NULL)
        __atomic_store_n(&record->kind, (uint64_t)kind, __ATOMIC_RELEASE);
}

void pc_book_end(struct pc_book_record *record)
{
    if (record != NULL)
        __atomic_store_n(&record->kind, (uint64_t)PC_BOOK_FREE, __ATOMIC_RELEASE);
}
