#include "alloc/broker/large.h"

#include "alloc/pool/large.h"

static enum pc_step step(struct pc_job *job)
{
    struct pc_large *large = pc_container_of(job, struct pc_large, job);
    large->status = pc_large_create(large->gpu->device, large->bytes, &large->fd, &large->err);
    large->broken = large->status != PC_OK && pc_gpu_is_broken(large->gpu, &large->err);
    return PC_STEP_DONE;
}

static void finished(struct pc_job *job)
{
    struct pc_large *large = pc_container_of(job, struct pc_large, job);
    large->done(large);
}

void pc_large_submit(struct pc_account *account, struct pc_large *large)
{
    large->job.step = step;
    large->job.done = finished;
    large->fd = -1;
    pc_list_init(&large->job.link);
    pc_worker_submit(account, &large->job);
}
