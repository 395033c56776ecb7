/*
 * Tells when a name in a directory may have changed, by inotify. The directory need not exist yet and may be removed
 * and made anew: until it is there, its nearest ancestor that exists is watched.
 *
 * Thread rules: the loop's thread only.
 */
#ifndef PC_PLUGIN_KUBELET_DIRECTORY_WATCH_H
#define PC_PLUGIN_KUBELET_DIRECTORY_WATCH_H

#include "alloc/base/error.h"
#include "alloc/base/loop.h"

struct pc_directory_watch;

/* Look: the name was made or moved there, or the directory was, or events were lost. Never called for other names. */
typedef void (*pc_directory_look)(void *arg);

/*
 * directory is an absolute path, name one component. The first look is the caller's own, after this has returned, so
 * that nothing falls between. Errors: PC_ERR_INVALID (not absolute, too long), PC_ERR_IO, PC_ERR_HOST_MEMORY.
 */
enum pc_status pc_directory_watch_create(struct pc_loop *loop, const char *directory, const char *name,
                                         pc_directory_look look, void *arg, struct pc_directory_watch **out,
                                         struct pc_error *err);
/* From inside look too. NULL is allowed. */
void pc_directory_watch_free(struct pc_directory_watch *watch);
/*
 * Sees to it that what is watched is what the path names now: an ancestor that was moved away is not told of. No look
 * comes from it. Errors: PC_ERR_IO.
 */
enum pc_status pc_directory_watch_renew(struct pc_directory_watch *watch, struct pc_error *err);

#endif
