#include "plugin/kubelet/directory_watch.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>

#include "alloc/base/cleanup.h"
#include "alloc/base/log.h"

#define EVENTS (IN_CREATE | IN_MOVED_TO | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR)

struct pc_directory_watch {
    struct pc_watch *watch;
    int fd, wd; /* wd < 0: nothing is watched */
    bool there; /* wd is the directory itself, not an ancestor */
    pc_directory_look look;
    void *arg;
    const char *name; /* behind the directory in directory[] */
    char directory[];
};

/* ---- what to watch ---- */

static void cut_last(char *path)
{
    char *slash = strrchr(path, '/');
    if (slash == path)
        slash[1] = '\0';
    else
        *slash = '\0';
}

/*
 * The directory, else the nearest of its ancestors; path is which. inotify gives the same number again for an inode
 * that is watched already, so a number that differs means that the path names another one now. Returns false where none
 * can be watched; errno says why.
 */
static bool watch_nearest(struct pc_directory_watch *w, char *path)
{
    int wd;
    strcpy(path, w->directory);
    while ((wd = inotify_add_watch(w->fd, path, EVENTS)) < 0) {
        if ((errno != ENOENT && errno != ENOTDIR) || strcmp(path, "/") == 0)
            return false;
        cut_last(path);
    }
    if (w->wd >= 0 && w->wd != wd)
        inotify_rm_watch(w->fd, w->wd); /* fails where the kernel removed it with its directory */
    w->wd = wd;
    w->there = strcmp(path, w->directory) == 0;
    return true;
}

/* The next component below the watched ancestor exists: it was made between the looking and the watching. */
static bool outrun(const struct pc_directory_watch *w, const char *path)
{
    char next[PATH_MAX];
    struct stat st;
    size_t length = strlen(path);
    if (w->there)
        return false;
    strcpy(next, w->directory);
    length += w->directory[length] == '/'; /* not for the root, which has its slash */
    next[length + strcspn(next + length, "/")] = '\0';
    return stat(next, &st) == 0 && S_ISDIR(st.st_mode);
}

enum pc_status pc_directory_watch_renew(struct pc_directory_watch *w, struct pc_error *err)
{
    char path[PATH_MAX];
    do {
        if (!watch_nearest(w, path))
            return pc_error_errno(err, errno, "cannot watch %.300s", path);
    } while (outrun(w, path));
    return PC_OK;
}

/* ---- events ---- */

static bool concerns(const struct pc_directory_watch *w, const struct inotify_event *event)
{
    if ((event->mask & IN_Q_OVERFLOW) != 0)
        return true;
    if (event->wd != w->wd)
        return false; /* of a watch that was given up */
    if ((event->mask & (IN_DELETE_SELF | IN_MOVE_SELF | IN_IGNORED)) != 0 || !w->there)
        return true;
    return event->len > 0 && strcmp(event->name, w->name) == 0;
}

/* True where one of the events concerns us; the rest of the queue is read at the next call. */
static bool read_events(struct pc_directory_watch *w)
{
    _Alignas(struct inotify_event) char buffer[8192];
    bool ours = false;
    ssize_t length = read(w->fd, buffer, sizeof buffer);
    for (ssize_t at = 0; at < length;) {
        const struct inotify_event *event = (const void *)(buffer + at);
        ours = concerns(w, event) || ours;
        if (event->wd == w->wd && (event->mask & IN_IGNORED) != 0)
            w->wd = -1;
        at += (ssize_t)(sizeof *event + event->len);
    }
    return ours;
}

static void on_events(struct pc_loop *loop, int fd, uint32_t events, void *arg)
{
    (void)loop;
    (void)fd;
    (void)events;
    struct pc_directory_watch *w = arg;
    struct pc_error err;
    if (!read_events(w))
        return;
    if (pc_directory_watch_renew(w, &err) != PC_OK)
        pc_log_warn("kubelet", "%s", err.text);
    w->look(w->arg);
}

/* ---- life ---- */

static enum pc_status check(const char *directory, struct pc_error *err)
{
    size_t length = strlen(directory);
    if (directory[0] != '/' || length >= PATH_MAX)
        return pc_error_set(err, PC_ERR_INVALID, 0, "'%.200s' must be an absolute path of less than %d bytes",
                            directory, PATH_MAX);
    return PC_OK;
}

static struct pc_directory_watch *make(const char *directory, const char *name)
{
    size_t length = strlen(directory), name_size = strlen(name) + 1;
    while (length > 1 && directory[length - 1] == '/')
        length--;
    struct pc_directory_watch *w = calloc(1, sizeof *w + length + 1 + name_size);
    if (w == NULL)
        return NULL;
    memcpy(w->directory, directory, length);
    w->name = memcpy(w->directory + length + 1, name, name_size);
    w->fd = -1;
    w->wd = -1;
    return w;
}

enum pc_status pc_directory_watch_create(struct pc_loop *loop, const char *directory, const char *name,
                                         pc_directory_look look, void *arg, struct pc_directory_watch **out,
                                         struct pc_error *err)
{
    enum pc_status status = check(directory, err);
    if (status != PC_OK)
        return status;
    struct pc_directory_watch *w = make(directory, name);
    if (w == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no host memory to watch %.200s", directory);
    w->look = look;
    w->arg = arg;
    w->fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (w->fd < 0)
        status =
            pc_error_errno(err, errno, "inotify is not to be had (fs.inotify.max_user_instances may be too small)");
    if (status == PC_OK)
        status = pc_directory_watch_renew(w, err);
    if (status == PC_OK)
        status = pc_loop_add(loop, w->fd, EPOLLIN, on_events, w, &w->watch, err);
    if (status != PC_OK) {
        pc_directory_watch_free(w);
        return status;
    }
    *out = w;
    return PC_OK;
}

void pc_directory_watch_free(struct pc_directory_watch *w)
{
    if (w == NULL)
        return;
    pc_watch_remove(w->watch);
    if (w->fd >= 0)
        close(w->fd);
    free(w);
}
