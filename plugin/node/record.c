#include "plugin/node/record.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "alloc/base/cleanup.h"
#include "alloc/base/log.h"
#include "proto/record.pb-c.h"

enum { RECORD_BYTES_MAX = 16 * 1024 * 1024, PATH = 512 };
#define HALF_WRITTEN ".new"

void pc_record_name(char out[PC_RECORD_NAME_MAX])
{
    uint64_t bits = 0;
    if (getrandom(&bits, sizeof bits, 0) != (ssize_t)sizeof bits) { /* cannot fail for 8 bytes once seeded */
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        bits = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    }
    snprintf(out, PC_RECORD_NAME_MAX, "g%016llx", (unsigned long long)bits);
}

/* ---- writing ---- */

static char *text(const char *s)
{
    return (char *)(uintptr_t)s;
}

struct packed {
    Poolcap__Record message;
    Poolcap__RecordShare share[PC_UNITS_GPUS_MAX], *shares[PC_UNITS_GPUS_MAX];
    uint32_t *numbers;
};

/* The set is sorted, so each GPU's units are one run of it. */
static void fill_shares(struct packed *p, const struct pc_units *units, const struct pc_unit_set *set)
{
    for (size_t i = 0; i < set->count; i++) {
        bool next = i == 0 || set->unit[i].gpu != set->unit[i - 1].gpu;
        if (next) {
            Poolcap__RecordShare *share = &p->share[p->message.n_shares];
            poolcap__record_share__init(share);
            share->gpu = text(units->gpu[set->unit[i].gpu].uuid);
            share->units = p->numbers + i;
            p->shares[p->message.n_shares++] = share;
        }
        p->numbers[i] = set->unit[i].number;
        p->share[p->message.n_shares - 1].n_units++;
    }
    p->message.shares = p->shares;
}

static uint8_t *pack(const struct pc_units *units, const struct pc_record *record, size_t *length)
{
    struct packed p;
    pc_auto_free uint32_t *numbers = malloc((record->units.count + 1) * sizeof *numbers);
    if (numbers == NULL)
        return NULL;
    p.numbers = numbers;
    poolcap__record__init(&p.message);
    p.message.version = PC_RECORD_VERSION;
    p.message.name = text(record->name);
    p.message.unit_bytes = record->unit_bytes;
    p.message.created = record->created;
    p.message.pod_uid = text(record->pod_uid);
    p.message.pod_namespace = text(record->pod_namespace);
    p.message.pod_name = text(record->pod_name);
    p.message.container = text(record->container);
    fill_shares(&p, units, &record->units);
    *length = poolcap__record__get_packed_size(&p.message);
    uint8_t *bytes = malloc(*length + 1);
    if (bytes != NULL)
        poolcap__record__pack(&p.message, bytes);
    return bytes;
}

static enum pc_status write_file(const char *path, const uint8_t *bytes, size_t length, struct pc_error *err)
{
    pc_auto_fd int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return pc_error_errno(err, errno, "cannot write the grant's record %.300s", path);
    for (size_t done = 0; done < length;) {
        ssize_t n = write(fd, bytes + done, length - done);
        if (n < 0 && errno != EINTR)
            return pc_error_errno(err, errno, "cannot write the grant's record %.300s", path);
        done += n > 0 ? (size_t)n : 0;
    }
    if (fsync(fd) < 0)
        return pc_error_errno(err, errno, "cannot write the grant's record %.300s to the disk", path);
    return PC_OK;
}

/* A rename is on the disk when its directory is. */
static enum pc_status sync_directory(const char *directory, struct pc_error *err)
{
    pc_auto_fd int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fsync(fd) < 0)
        return pc_error_errno(err, errno, "cannot write the directory %.300s to the disk", directory);
    return PC_OK;
}

enum pc_status pc_record_write(const char *directory, const struct pc_units *units, const struct pc_record *record,
                               struct pc_error *err)
{
    char path[PATH], half[PATH + sizeof HALF_WRITTEN];
    size_t length;
    pc_auto_free uint8_t *bytes = pack(units, record, &length);
    if (bytes == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no host memory for the record of grant %s", record->name);
    snprintf(path, sizeof path, "%s/%s", directory, record->name);
    snprintf(half, sizeof half, "%s" HALF_WRITTEN, path);
    enum pc_status status = write_file(half, bytes, length, err);
    if (status == PC_OK && rename(half, path) < 0)
        status = pc_error_errno(err, errno, "cannot rename the grant's record to %.300s", path);
    if (status == PC_OK)
        return sync_directory(directory, err);
    unlink(half);
    return status;
}

enum pc_status pc_record_remove(const char *directory, const char *name, struct pc_error *err)
{
    char path[PATH];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    if (unlink(path) < 0 && errno != ENOENT)
        return pc_error_errno(err, errno, "cannot remove the grant's record %.300s", path);
    return PC_OK;
}

/* ---- reading ---- */

static bool copy(char *out, size_t size, const char *from)
{
    size_t length = strlen(from);
    if (length >= size)
        return false;
    memcpy(out, from, length + 1);
    return true;
}

static enum pc_status read_units(const Poolcap__Record *message, struct pc_units *units, struct pc_unit_set *out,
                                 struct pc_error *err)
{
    size_t count = 0, n = 0;
    unsigned gpu;
    for (size_t i = 0; i < message->n_shares; i++)
        count += message->shares[i]->n_units;
    enum pc_status status = pc_unit_set_make(count, out, err);
    for (size_t i = 0; i < message->n_shares && status == PC_OK; i++) {
        const Poolcap__RecordShare *share = message->shares[i];
        status = pc_units_gpu(units, share->gpu, &gpu, err);
        for (size_t k = 0; k < share->n_units && status == PC_OK; k++) {
            if (share->units[k] >= PC_UNITS_PER_GPU)
                status = pc_error_set(err, PC_ERR_PROTOCOL, 0, "unit %u", share->units[k]);
            else
                out->unit[n++] = (struct pc_unit){.gpu = gpu, .number = share->units[k]};
        }
    }
    if (status != PC_OK)
        pc_unit_set_free(out);
    else
        pc_unit_set_sort(out);
    return status;
}

static enum pc_status read_message(const char *name, const Poolcap__Record *message, struct pc_units *units,
                                   struct pc_record *out, struct pc_error *err)
{
    memset(out, 0, sizeof *out);
    if (message->version != PC_RECORD_VERSION)
        return pc_error_set(err, PC_ERR_PROTOCOL, 0, "its version is %u, this plugin knows %d", message->version,
                            PC_RECORD_VERSION);
    if (strcmp(message->name, name) != 0)
        return pc_error_set(err, PC_ERR_PROTOCOL, 0, "it is the record of \"%.40s\"", message->name);
    if (!copy(out->name, sizeof out->name, message->name) ||
        !copy(out->pod_uid, sizeof out->pod_uid, message->pod_uid) ||
        !copy(out->pod_namespace, sizeof out->pod_namespace, message->pod_namespace) ||
        !copy(out->pod_name, sizeof out->pod_name, message->pod_name) ||
        !copy(out->container, sizeof out->container, message->container))
        return pc_error_set(err, PC_ERR_PROTOCOL, 0, "a name in it is too long");
    out->unit_bytes = message->unit_bytes;
    out->created = message->created;
    return read_units(message, units, &out->units, err);
}

static enum pc_status read_file(int directory, const char *name, struct pc_units *units, struct pc_record *out,
                                struct pc_error *err)
{
    struct stat st;
    pc_auto_fd int fd = openat(directory, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || fstat(fd, &st) < 0)
        return pc_error_errno(err, errno, "cannot read it");
    if (!S_ISREG(st.st_mode) || st.st_size > RECORD_BYTES_MAX)
        return pc_error_set(err, PC_ERR_PROTOCOL, 0, "it is no record");
    pc_auto_free uint8_t *bytes = malloc((size_t)st.st_size + 1);
    if (bytes == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no host memory for it");
    ssize_t length = read(fd, bytes, (size_t)st.st_size);
    if (length < 0)
        return pc_error_errno(err, errno, "cannot read it");
    Poolcap__Record *message = poolcap__record__unpack(NULL, (size_t)length, bytes);
    if (message == NULL)
        return pc_error_set(err, PC_ERR_PROTOCOL, 0, "it is damaged");
    enum pc_status status = read_message(name, message, units, out, err);
    poolcap__record__free_unpacked(message, NULL);
    return status;
}

static bool ends_with(const char *s, const char *end)
{
    size_t a = strlen(s), b = strlen(end);
    return a >= b && strcmp(s + a - b, end) == 0;
}

static enum pc_status read_entry(DIR *dir, const char *name, struct pc_units *units, pc_record_each each, void *arg,
                                 unsigned *bad, struct pc_error *err)
{
    struct pc_record record;
    struct pc_error why = {.text = ""};
    if (name[0] == '.')
        return PC_OK;
    if (ends_with(name, HALF_WRITTEN)) {
        unlinkat(dirfd(dir), name, 0);
        return PC_OK;
    }
    if (read_file(dirfd(dir), name, units, &record, &why) == PC_OK)
        return each(arg, &record, err);
    pc_log_error("node", "the grant's record \"%.64s\" is left alone: %s; its units may be given a second time", name,
                 why.text);
    ++*bad;
    return PC_OK;
}

enum pc_status pc_record_read_all(const char *directory, struct pc_units *units, pc_record_each each, void *arg,
                                  unsigned *bad, struct pc_error *err)
{
    const struct dirent *entry;
    enum pc_status status = PC_OK;
    *bad = 0;
    if (mkdir(directory, 0700) < 0 && errno != EEXIST)
        return pc_error_errno(err, errno, "cannot make the directory of the records, %.300s", directory);
    DIR *dir = opendir(directory);
    if (dir == NULL)
        return pc_error_errno(err, errno, "cannot read the directory of the records, %.300s", directory);
    while (status == PC_OK && (entry = readdir(dir)) != NULL)
        status = read_entry(dir, entry->d_name, units, each, arg, bad, err);
    closedir(dir);
    return status;
}
