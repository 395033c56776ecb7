#include "plugin/kubelet/claims.h"

#include <stdlib.h>
#include <string.h>

#include "alloc/base/cleanup.h"

/* ---- the arena ---- */

enum { CHUNK_BYTES = 64 * 1024 };

struct chunk {
    struct chunk *next;
    size_t used, size;
    _Alignas(max_align_t) char bytes[];
};

static void free_chunks(struct chunk *chunk)
{
    struct chunk *next;
    for (; chunk != NULL; chunk = next) {
        next = chunk->next;
        free(chunk);
    }
}

/* align is a power of two, at most max_align_t's. */
static void *take(struct chunk **arena, size_t bytes, size_t align)
{
    struct chunk *chunk = *arena;
    size_t at = chunk != NULL ? (chunk->used + align - 1) & ~(align - 1) : 0;
    if (chunk == NULL || at > chunk->size || bytes > chunk->size - at) {
        size_t size = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;
        if (size > SIZE_MAX - sizeof *chunk)
            return NULL;
        chunk = malloc(sizeof *chunk + size);
        if (chunk == NULL)
            return NULL;
        chunk->next = *arena;
        chunk->size = size;
        *arena = chunk;
        at = 0;
    }
    chunk->used = at + bytes;
    return chunk->bytes + at;
}

/* ---- the builder ---- */

struct texts {
    const char **item;
    size_t count, room;
};

struct pc_claims_builder {
    struct chunk *arena;
    struct pc_claim *claim;
    size_t count, room;
    struct pc_claim open; /* between begin and end */
    struct texts ids, mounts;
    bool failed;
};

enum pc_status pc_claims_builder_create(struct pc_claims_builder **out, struct pc_error *err)
{
    struct pc_claims_builder *b = calloc(1, sizeof *b);
    if (b == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no host memory for a table of claims");
    *out = b;
    return PC_OK;
}

void pc_claims_builder_free(struct pc_claims_builder *b)
{
    if (b == NULL)
        return;
    free_chunks(b->arena);
    free(b->claim);
    free(b->ids.item);
    free(b->mounts.item);
    free(b);
}

const char *pc_claims_text(struct pc_claims_builder *b, const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = b->failed ? NULL : take(&b->arena, size, 1);
    if (copy == NULL) {
        b->failed = true;
        return NULL;
    }
    memcpy(copy, text, size);
    return copy;
}

static void add_text(struct pc_claims_builder *b, struct texts *texts, const char *text)
{
    if (texts->count == texts->room) {
        size_t room = texts->room > 0 ? texts->room * 2 : 64;
        const char **item = reallocarray(texts->item, room, sizeof *item);
        if (item == NULL) {
            b->failed = true;
            return;
        }
        texts->item = item;
        texts->room = room;
    }
    const char *copy = pc_claims_text(b, text);
    if (copy != NULL)
        texts->item[texts->count++] = copy;
}

void pc_claims_begin(struct pc_claims_builder *b, const struct pc_claim *who)
{
    pc_claims_cancel(b);
    b->open = (struct pc_claim){
        .pod_namespace = pc_claims_text(b, who->pod_namespace),
        .pod_name = pc_claims_text(b, who->pod_name),
        .pod_uid = pc_claims_text(b, who->pod_uid),
        .container = pc_claims_text(b, who->container),
    };
}

void pc_claims_add_id(struct pc_claims_builder *b, const char *id)
{
    add_text(b, &b->ids, id);
}

void pc_claims_add_mount(struct pc_claims_builder *b, const char *host_path)
{
    add_text(b, &b->mounts, host_path);
}

void pc_claims_cancel(struct pc_claims_builder *b)
{
    b->ids.count = 0;
    b->mounts.count = 0;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void sort_once(struct texts *texts)
{
    size_t kept = 0;
    if (texts->count == 0)
        return;
    qsort(texts->item, texts->count, sizeof *texts->item, by_text);
    for (size_t i = 1; i < texts->count; i++)
        if (strcmp(texts->item[kept], texts->item[i]) != 0)
            texts->item[++kept] = texts->item[i];
    texts->count = kept + 1;
}

static const char *const *keep(struct pc_claims_builder *b, const struct texts *texts)
{
    if (texts->count == 0)
        return NULL;
    size_t bytes = texts->count * sizeof *texts->item;
    const char **kept = take(&b->arena, bytes, _Alignof(const char *));
    if (kept == NULL) {
        b->failed = true;
        return NULL;
    }
    memcpy(kept, texts->item, bytes);
    return kept;
}

static bool make_room(struct pc_claims_builder *b)
{
    if (b->count < b->room)
        return true;
    size_t room = b->room > 0 ? b->room * 2 : 16;
    struct pc_claim *claim = reallocarray(b->claim, room, sizeof *claim);
    if (claim == NULL) {
        b->failed = true;
        return false;
    }
    b->claim = claim;
    b->room = room;
    return true;
}

void pc_claims_end(struct pc_claims_builder *b)
{
    sort_once(&b->ids);
    if (b->ids.count > 0 && !b->failed && make_room(b)) {
        b->open.ids = keep(b, &b->ids);
        b->open.count = b->ids.count;
        b->open.mount_host_paths = keep(b, &b->mounts);
        b->open.mounts = b->mounts.count;
        b->claim[b->count++] = b->open;
    }
    pc_claims_cancel(b);
}

enum pc_status pc_claims_build(struct pc_claims_builder *b, struct pc_claims *out, struct pc_error *err)
{
    if (b->failed)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no host memory for a table of claims");
    out->claim = pc_steal(&b->claim);
    out->count = b->count;
    out->memory = pc_steal(&b->arena);
    b->count = 0;
    b->room = 0;
    return PC_OK;
}

void pc_claims_clear(struct pc_claims *claims)
{
    free(claims->claim);
    free_chunks(claims->memory);
    *claims = (struct pc_claims){.claim = NULL};
}

void pc_claims_free(struct pc_claims *claims)
{
    if (claims == NULL)
        return;
    pc_claims_clear(claims);
    free(claims);
}
