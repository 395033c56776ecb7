#include "alloc/pool/leaks.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct pc_leaks {
    _Atomic uint64_t total;
    pthread_mutex_t lock; /* guards what follows */
    uint64_t overflow;
    unsigned count;
    struct pc_leak kept[PC_LEAKS_MAX];
};

enum pc_status pc_leaks_create(struct pc_leaks **out, struct pc_error *err)
{
    struct pc_leaks *leaks = calloc(1, sizeof *leaks);
    if (leaks == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no host memory for the list of failed frees");
    pthread_mutex_init(&leaks->lock, NULL);
    *out = leaks;
    return PC_OK;
}

void pc_leaks_free(struct pc_leaks *leaks)
{
    if (leaks == NULL)
        return;
    pthread_mutex_destroy(&leaks->lock);
    free(leaks);
}

/* Called with the lock held. Frees fail rarely, and never in a steady state: a plain search will do. */
static void keep(struct pc_leaks *leaks, const struct pc_leak *leak)
{
    for (unsigned i = 0; i < leaks->count; i++)
        if (leaks->kept[i].address == leak->address)
            return;
    if (leaks->count < PC_LEAKS_MAX)
        leaks->kept[leaks->count++] = *leak;
    else
        leaks->overflow++;
}

void pc_leaks_record(struct pc_leaks *leaks, uint64_t address, uint64_t bytes, int code)
{
    if (leaks == NULL)
        return;
    const struct pc_leak leak = {.address = address, .bytes = bytes, .code = code};
    atomic_fetch_add(&leaks->total, 1);
    pthread_mutex_lock(&leaks->lock);
    keep(leaks, &leak);
    pthread_mutex_unlock(&leaks->lock);
}

void pc_leaks_read(struct pc_leaks *leaks, struct pc_leaks_snapshot *out)
{
    pthread_mutex_lock(&leaks->lock);
    out->overflow = leaks->overflow;
    out->count = leaks->count;
    memcpy(out->kept, leaks->kept, leaks->count * sizeof leaks->kept[0]);
    /* Last, and counted first in record: total is never less than count + overflow. */
    out->total = atomic_load(&leaks->total);
    pthread_mutex_unlock(&leaks->lock);
}
