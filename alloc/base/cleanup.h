/* Cleanup attributes: `pc_auto_fd int fd = -1;` closes on every way out of the scope. */
#ifndef PC_BASE_CLEANUP_H
#define PC_BASE_CLEANUP_H

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static inline void pc_cleanup_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
}

static inline void pc_cleanup_free(void *p)
{
    void *held; /* copied: the variable may be a pointer of any type, and is not a void * to the compiler */
    memcpy(&held, p, sizeof held);
    free(held);
}

static inline void pc_cleanup_file(FILE **f)
{
    if (*f != NULL)
        fclose(*f);
}

#define pc_auto_fd __attribute__((cleanup(pc_cleanup_fd)))
#define pc_auto_free __attribute__((cleanup(pc_cleanup_free)))
#define pc_auto_file __attribute__((cleanup(pc_cleanup_file)))

/* Hands a value out of a cleanup variable: `*out = pc_steal_fd(&fd);` */
static inline int pc_steal_fd(int *fd)
{
    int taken = *fd;
    *fd = -1;
    return taken;
}

#define pc_steal(p)                  \
    ({                               \
        __auto_type pc_taken = *(p); \
        *(p) = NULL;                 \
        pc_taken;                    \
    })

#define PC_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

#define pc_container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

#endif
