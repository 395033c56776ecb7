/* The worker's job that makes large memory: one driver call, and the only reference to the memory comes back as an fd.
 */
#ifndef PC_BROKER_LARGE_H
#define PC_BROKER_LARGE_H

#include "alloc/broker/gpu.h"
#include "alloc/broker/worker.h"

struct pc_large {
    struct pc_job job;
    void (*done)(struct pc_large *large); /* on the loop thread */
    void *arg;
    struct pc_gpu *gpu;
    uint64_t bytes;
    /* what came of it */
    enum pc_status status;
    struct pc_error err;
    int fd;      /* the caller closes it; closed without an importer, the memory is free. -1: none */
    bool broken; /* the GPU: err says why */
};

void pc_large_submit(struct pc_account *account, struct pc_large *large);

#endif
