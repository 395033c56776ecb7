#include "alloc/broker/page.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "alloc/base/cleanup.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010 /* linux/fcntl.h, since 5.1 */
#endif

struct pc_page_file {
    struct pc_page *map;
    int fd; /* opened for reading only */
};

/* A second descriptor of the memfd without the right to write: what tenants get cannot be mapped writable. */
static int reopen_readonly(int fd)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return open(path, O_RDONLY | O_CLOEXEC);
}

static enum pc_status map_and_seal(struct pc_page_file *page, struct pc_error *err)
{
    pc_auto_fd int fd = memfd_create("poolcap-page", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, PC_PAGE_BYTES) < 0)
        return pc_error_errno(err, errno, "cannot make a grant's page");
    void *map = mmap(NULL, PC_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return pc_error_errno(err, errno, "cannot map a grant's page");
    page->map = map;
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
        return pc_error_errno(err, errno, "cannot seal a grant's page (Linux 5.1 or newer is needed)");
    page->fd = reopen_readonly(fd);
    if (page->fd < 0)
        return pc_error_errno(err, errno, "cannot open a grant's page for reading (is /proc mounted?)");
    return PC_OK;
}

enum pc_status pc_page_create(unsigned gpus, uint64_t epoch, struct pc_page_file **out, struct pc_error *err)
{
    struct pc_page_file *page = calloc(1, sizeof *page);
    if (page == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no memory for a grant's page");
    page->fd = -1;
    enum pc_status status = map_and_seal(page, err);
    if (status != PC_OK) {
        pc_page_free(page);
        return status;
    }
    page->map->magic = PC_PAGE_MAGIC;
    page->map->version = PC_PAGE_VERSION;
    page->map->epoch = epoch;
    page->map->gpus = gpus;
    pc_page_set_alive(page, true);
    *out = page;
    return PC_OK;
}

void pc_page_free(struct pc_page_file *page)
{
    if (page == NULL)
        return;
    if (page->map != NULL)
        munmap(page->map, PC_PAGE_BYTES);
    if (page->fd >= 0)
        close(page->fd);
    free(page);
}

int pc_page_fd(const struct pc_page_file *page)
{
    return page->fd;
}

void pc_page_publish(struct pc_page_file *page, unsigned gpu, const struct pc_page_figures *figures)
{
    pc_page_write(&page->map->gpu[gpu], figures);
}

void pc_page_set_wanted(struct pc_page_file *page, unsigned gpu, uint32_t mib)
{
    atomic_store(&page->map->gpu[gpu].wanted, mib);
}

void pc_page_set_alive(struct pc_page_file *page, bool alive)
{
    atomic_store(&page->map->alive, alive ? 1 : 0);
}
