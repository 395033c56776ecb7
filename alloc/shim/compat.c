/*
 * So that one build of the library runs on every glibc from 2.17 on (x86-64), whatever it was built on.
 *
 * dlopen, dlsym and dlerror moved into libc with glibc 2.34 under a new version. Their old version is asked for,
 * weakly: on an older glibc it lies in libdl, which a program that uses CUDA has loaded, and one that has not gets "no
 * driver". lstat became a symbol with glibc 2.33; before, it was an inline function. proto/wire.c's server side refers
 * to it.
 *
 * These definitions are hidden: only the library's own objects are linked to them. Sanitizers come with interceptors
 * for the same names, and with a glibc of their own age, so builds with them do without.
 */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !defined(SHIM_NO_COMPAT)

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HIDDEN __attribute__((visibility("hidden")))

#if defined(__GLIBC__) && defined(__x86_64__)

extern void *old_dlopen(const char *path, int flags) __attribute__((weak));
extern void *old_dlsym(void *handle, const char *name) __attribute__((weak));
extern char *old_dlerror(void) __attribute__((weak));
__asm__(".symver old_dlopen, dlopen@GLIBC_2.2.5");
__asm__(".symver old_dlsym, dlsym@GLIBC_2.2.5");
__asm__(".symver old_dlerror, dlerror@GLIBC_2.2.5");

HIDDEN void *dlopen(const char *path, int flags)
{
    return old_dlopen != NULL ? old_dlopen(path, flags) : NULL;
}

HIDDEN void *dlsym(void *handle, const char *name)
{
    return old_dlsym != NULL ? old_dlsym(handle, name) : NULL;
}

HIDDEN char *dlerror(void)
{
    static char none[] = "this program has not loaded libdl";
    return old_dlerror != NULL ? old_dlerror() : none;
}

#endif

/* On 64-bit Linux the C library's struct stat is the kernel's. */
HIDDEN int lstat(const char *path, struct stat *out)
{
    return (int)syscall(SYS_newfstatat, AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW);
}

#endif
