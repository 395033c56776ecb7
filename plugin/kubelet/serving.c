#include "plugin/kubelet/serving.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "alloc/base/cleanup.h"
#include "alloc/base/log.h"
#include "plugin/kubelet/lock_file.h"

enum { SOCKET_PATH_MAX = 107, NAME_ROOM = 128 };

struct pc_serving {
    struct pc_rpc *rpc;
    const struct pc_rpc_method *methods;
    size_t methods_count;
    void *arg;
    struct pc_rpc_server *server; /* NULL: none yet */
    unsigned starts;
    int lock;
    char directory[SOCKET_PATH_MAX + 1], prefix[NAME_ROOM / 2], name[NAME_ROOM];
};

struct path {
    char text[SOCKET_PATH_MAX + NAME_ROOM + 2];
};

static struct path path_of(const struct pc_serving *s, const char *name)
{
    struct path path;
    snprintf(path.text, sizeof path.text, "%s/%s", s->directory, name);
    return path;
}

/* ---- the lock ---- */

/* "-<digits>-<digits>.sock" */
static bool is_tail(const char *text)
{
    static const char digits[] = "0123456789";
    for (int part = 0; part < 2; part++) {
        size_t count = text[0] == '-' ? strspn(text + 1, digits) : 0;
        if (count == 0)
            return false;
        text += 1 + count;
    }
    return strcmp(text, ".sock") == 0;
}

/* Sockets of earlier lives that ended by SIGKILL. The lock says that nobody serves them. */
static void remove_stale(const struct pc_serving *s)
{
    size_t length = strlen(s->prefix);
    const struct dirent *entry;
    struct stat st;
    DIR *dir = opendir(s->directory);
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if (strncmp(entry->d_name, s->prefix, length) != 0 || !is_tail(entry->d_name + length))
            continue;
        if (s->server != NULL && strcmp(entry->d_name, s->name) == 0)
            continue;
        if (fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISSOCK(st.st_mode))
            unlinkat(dirfd(dir), entry->d_name, 0);
    }
    if (dir != NULL)
        closedir(dir);
}

static enum pc_status hold_lock(struct pc_serving *s, struct pc_error *err)
{
    char name[NAME_ROOM];
    snprintf(name, sizeof name, "%s.lock", s->prefix);
    struct path path = path_of(s, name);
    int fd = -1;
    if (pc_lock_file_holds(path.text, s->lock))
        return PC_OK;
    enum pc_status status = pc_lock_file_take(path.text, &fd, err);
    if (status != PC_OK)
        return status;
    if (s->lock >= 0)
        close(s->lock); /* of a directory, or of a file, that somebody removed */
    s->lock = fd;
    remove_stale(s);
    return PC_OK;
}

/* ---- the socket ---- */

static enum pc_status start(struct pc_serving *s, struct pc_error *err)
{
    char name[NAME_ROOM];
    struct pc_rpc_server *server = NULL;
    snprintf(name, sizeof name, "%s-%ld-%u.sock", s->prefix, (long)getpid(), ++s->starts);
    struct path path = path_of(s, name);
    enum pc_status status = pc_rpc_server_start(s->rpc, path.text, s->methods, s->methods_count, s->arg, &server, err);
    if (status != PC_OK)
        return status;
    struct pc_rpc_server *old = s->server;
    s->server = server;
    memcpy(s->name, name, sizeof name);
    /*
     * Before the registration that follows: a kubelet that still has a stream of the old server disconnects whoever is
     * registered when that stream ends (facts, "overlap trap").
     */
    if (old != NULL)
        pc_rpc_server_stop(old);
    pc_log_debug("kubelet", "serving at %s", path.text);
    return PC_OK;
}

enum pc_status pc_serving_renew(struct pc_serving *s, struct pc_error *err)
{
    struct stat st;
    if (stat(s->directory, &st) < 0) {
        if (errno == ENOENT || errno == ENOTDIR)
            return pc_error_set(err, PC_ERR_NOT_FOUND, errno, "there is no %s yet", s->directory);
        return pc_error_errno(err, errno, "cannot use %s", s->directory);
    }
    enum pc_status status = hold_lock(s, err);
    if (status != PC_OK || (s->server != NULL && pc_rpc_server_there(s->server)))
        return status;
    return start(s, err);
}

const char *pc_serving_endpoint(const struct pc_serving *s)
{
    return s->name;
}

/* ---- life ---- */

/* The longest name that we may come to. */
static enum pc_status check(const char *directory, const char *prefix, struct pc_error *err)
{
    int length = snprintf(NULL, 0, "%s/%s-%ld-99999.sock", directory, prefix, (long)getpid());
    if (strlen(prefix) >= sizeof((struct pc_serving *)NULL)->prefix || prefix[0] == '\0' || strchr(prefix, '/') != NULL)
        return pc_error_set(err, PC_ERR_INVALID, 0, "'%.100s' cannot begin the name of a socket", prefix);
    if (length > SOCKET_PATH_MAX)
        return pc_error_set(err, PC_ERR_INVALID, 0,
                            "%.200s is too long for a socket's path: %d bytes with our name behind it, %d are allowed",
                            directory, length, SOCKET_PATH_MAX);
    return PC_OK;
}

enum pc_status pc_serving_create(struct pc_rpc *rpc, const char *directory, const char *prefix,
                                 const struct pc_rpc_method *methods, size_t count, void *arg, struct pc_serving **out,
                                 struct pc_error *err)
{
    enum pc_status status = check(directory, prefix, err);
    if (status != PC_OK)
        return status;
    struct pc_serving *s = calloc(1, sizeof *s);
    if (s == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no host memory to serve the kubelet");
    s->rpc = rpc;
    s->methods = methods;
    s->methods_count = count;
    s->arg = arg;
    s->lock = -1;
    snprintf(s->directory, sizeof s->directory, "%s", directory);
    snprintf(s->prefix, sizeof s->prefix, "%s", prefix);
    *out = s;
    return PC_OK;
}

void pc_serving_free(struct pc_serving *s)
{
    if (s == NULL)
        return;
    if (s->server != NULL)
        pc_rpc_server_stop(s->server);
    if (s->lock >= 0)
        close(s->lock);
    free(s);
}
