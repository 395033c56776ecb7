/*
 * A lock file with the holder's pid in it: one live instance a directory. The lock ends with the process, however it
 * ends; the file stays.
 *
 * Thread rules: none; it keeps no state of its own.
 */
#ifndef PC_PLUGIN_KUBELET_LOCK_FILE_H
#define PC_PLUGIN_KUBELET_LOCK_FILE_H

#include <stdbool.h>

#include "alloc/base/error.h"

/* *fd is the caller's: closing it ends the lock. Errors: PC_ERR_BUSY (the text names the holder), PC_ERR_IO. */
enum pc_status pc_lock_file_take(const char *path, int *fd, struct pc_error *err);
/* True while path still names the file that fd has locked: its directory may have been made anew. */
bool pc_lock_file_holds(const char *path, int fd);

#endif
