/* The requests of a session, and what is still to be told to poolcapd. */
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/log.h"
#include "alloc/shim/client.h"
#include "alloc/shim/gpu.h"
#include "alloc/shim/wire_client.h"

enum { QUEUE = 1024 };

struct word {
    uint64_t id;
    uint32_t session;
    bool large; /* blocks only */
};

static struct word blocks[QUEUE], dropped[QUEUE];
static size_t blocks_count, dropped_count;

/* A request whose reply carries nothing. */
static enum pc_status simple(const struct shim_gpu *gpu, Poolcap__Request *request, struct pc_error *err)
{
    Poolcap__Reply *reply;
    struct shim_fds fds;
    enum pc_status status = shim_client_request(gpu, request, &reply, &fds, err);
    shim_fds_close(&fds);
    return status;
}

enum pc_status shim_client_attach(const struct shim_gpu *gpu, struct pc_error *err)
{
    Poolcap__Attach attach = POOLCAP__ATTACH__INIT;
    Poolcap__Request request = POOLCAP__REQUEST__INIT;
    request.body_case = POOLCAP__REQUEST__BODY_ATTACH;
    request.attach = &attach;
    return simple(gpu, &request, err);
}

enum pc_status shim_client_reserve(const struct shim_gpu *gpu, uint64_t bytes, struct pc_error *err)
{
    Poolcap__Reserve reserve = POOLCAP__RESERVE__INIT;
    Poolcap__Request request = POOLCAP__REQUEST__INIT;
    reserve.bytes = bytes;
    request.body_case = POOLCAP__REQUEST__BODY_RESERVE;
    request.reserve = &reserve;
    return simple(gpu, &request, err);
}

enum pc_status shim_client_release(const struct shim_gpu *gpu, uint64_t bytes, struct pc_error *err)
{
    Poolcap__Release release = POOLCAP__RELEASE__INIT;
    Poolcap__Request request = POOLCAP__REQUEST__INIT;
    release.bytes = bytes;
    request.body_case = POOLCAP__REQUEST__BODY_RELEASE;
    request.release = &release;
    return simple(gpu, &request, err);
}

/* Takes the reply apart; it and the descriptors must be what was asked for. */
static enum pc_status take_memory(const Poolcap__Reply *reply, struct shim_fds *fds, bool large, uint64_t bytes,
                                  struct shim_taken *out, struct pc_error *err)
{
    const Poolcap__AllocateReply *got = reply->body_case == POOLCAP__REPLY__BODY_ALLOCATE ? reply->allocate : NULL;
    if (got == NULL || got->block == 0 || got->bytes < bytes ||
        (!large && (got->export_data.len != sizeof out->data || got->generation == 0)))
        return pc_error_set(err, PC_ERR_PROTOCOL, 0, "poolcapd's answer to a request for memory carries none");
    *out = (struct shim_taken){
        .block = got->block,
        .bytes = got->bytes,
        .generation = got->generation,
        .new_generation = got->new_generation && !large,
        .pool_fd = -1,
        .memory_fd = -1,
    };
    if (!large)
        memcpy(out->data, got->export_data.data, sizeof out->data);
    if (out->new_generation)
        out->pool_fd = shim_fds_take(fds);
    if (large)
        out->memory_fd = shim_fds_take(fds);
    if ((out->new_generation && out->pool_fd < 0) || (large && out->memory_fd < 0))
        return pc_error_set(err, PC_ERR_PROTOCOL, 0, "poolcapd's answer lacks a descriptor");
    return PC_OK;
}

enum pc_status shim_client_allocate(const struct shim_gpu *gpu, uint64_t bytes, bool large, struct shim_taken *out,
                                    struct pc_error *err)
{
    Poolcap__Allocate allocate = POOLCAP__ALLOCATE__INIT;
    Poolcap__Request request = POOLCAP__REQUEST__INIT;
    Poolcap__Reply *reply;
    struct shim_fds fds;
    allocate.bytes = bytes;
    allocate.large = large;
    request.body_case = POOLCAP__REQUEST__BODY_ALLOCATE;
    request.allocate = &allocate;
    enum pc_status status = shim_client_request(gpu, &request, &reply, &fds, err);
    if (status == PC_OK)
        status = take_memory(reply, &fds, large, bytes, out, err);
    shim_fds_close(&fds);
    return status;
}

/* --- what is to be told --- */

static void push(struct word *list, size_t *count, const struct word *word)
{
    if (*count < QUEUE) {
        list[(*count)++] = *word;
        return;
    }
    /* Its memory stays charged to this process until it ends: the safe side. */
    pc_log_error("shim", "poolcapd is not told of freed memory %llx: it was away for too long",
                 (unsigned long long)word->id);
}

void shim_client_queue_block(uint64_t id, uint32_t session, bool large)
{
    push(blocks, &blocks_count, &(struct word){.id = id, .session = session, .large = large});
}

void shim_client_queue_dropped(uint64_t generation, uint32_t session)
{
    push(dropped, &dropped_count, &(struct word){.id = generation, .session = session});
}

/* Whether a word means something to this poolcapd: of an earlier one's it inherited large memory and generations. */
static bool is_due(const struct word *word, bool inherited)
{
    return inherited || word->session == shim_client_session();
}

static void remove_first(struct word *list, size_t *count, size_t n)
{
    memmove(list, list + n, (*count - n) * sizeof *list);
    *count -= n;
}

/* Takes up to room words off the list's front; *used: how many places of the list they were. */
static size_t gather(const struct word *list, size_t count, bool is_dropped, uint64_t *ids, size_t room, size_t *used)
{
    size_t n = 0, i = 0;
    for (; i < count && n < room; i++)
        if (is_due(&list[i], is_dropped || list[i].large))
            ids[n++] = list[i].id;
    *used = i;
    return n;
}

static enum pc_status send_some(struct pc_error *err)
{
    static uint64_t ids[PC_WIRE_FREE_MAX]; /* under shim.slow, as all of this */
    size_t used_blocks, used_dropped = 0;
    Poolcap__Free body = POOLCAP__FREE__INIT;
    Poolcap__Request request = POOLCAP__REQUEST__INIT;
    body.blocks = ids;
    body.n_blocks = gather(blocks, blocks_count, false, ids, PC_WIRE_FREE_MAX, &used_blocks);
    body.dropped = ids + body.n_blocks;
    if (used_blocks == blocks_count) /* a generation after the blocks in it */
        body.n_dropped =
            gather(dropped, dropped_count, true, body.dropped, PC_WIRE_FREE_MAX - body.n_blocks, &used_dropped);
    enum pc_status status = PC_OK;
    if (body.n_blocks + body.n_dropped > 0) {
        request.body_case = POOLCAP__REQUEST__BODY_FREE;
        request.free = &body;
        status = simple(NULL, &request, err);
    }
    if (status == PC_ERR_UNREACHABLE)
        return status;
    /* Delivered; or poolcapd ended the session over it, and would again. */
    remove_first(blocks, &blocks_count, used_blocks);
    remove_first(dropped, &dropped_count, used_dropped);
    return status;
}

enum pc_status shim_client_send_queued(struct pc_error *err)
{
    enum pc_status status = shim_client_connect(err);
    bool again = true;
    while (status == PC_OK && blocks_count + dropped_count > 0) {
        status = send_some(err);
        if (status != PC_ERR_UNREACHABLE || !again)
            continue;
        again = false;
        status = shim_client_connect(err);
    }
    return status;
}
