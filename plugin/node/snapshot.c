/* poolcapd's list, page after page, kept whole until the next one is whole. */
#include <stdlib.h>
#include <string.h>

#include "plugin/node/state.h"

enum { PAGES = 64 }; /* of at least 8 grants each */

struct pages {
    unsigned count;
    Poolcap__AdminListReply *page[PAGES];
};

struct pc_snapshot {
    struct pages last, coming;
    bool busy;
    pc_snapshot_done done;
};

static void clear(struct pages *pages)
{
    for (unsigned i = 0; i < pages->count; i++)
        poolcap__admin_list_reply__free_unpacked(pages->page[i], NULL);
    pages->count = 0;
}

static void finish(struct pc_node *node, bool whole)
{
    struct pc_snapshot *s = node->snapshot;
    s->busy = false;
    if (whole) {
        clear(&s->last);
        s->last = s->coming;
        s->coming.count = 0;
    } else {
        clear(&s->coming);
    }
    s->done(node, whole);
}

static void ask(struct pc_node *node, const char *after);

static void on_page(void *arg, enum pc_status status, const Poolcap__AdminReply *reply, const struct pc_error *err)
{
    struct pc_node *node = arg;
    struct pages *coming = &node->snapshot->coming;
    (void)err;
    Poolcap__AdminListReply *page = NULL;
    if (status == PC_OK && reply->list != NULL && coming->count < PAGES)
        page = (Poolcap__AdminListReply *)pc_daemon_copy(&reply->list->base);
    if (page == NULL) {
        finish(node, false);
        return;
    }
    coming->page[coming->count++] = page;
    if (page->more && page->n_grants > 0)
        ask(node, page->grants[page->n_grants - 1]->name);
    else
        finish(node, true);
}

static void ask(struct pc_node *node, const char *after)
{
    Poolcap__AdminList list = POOLCAP__ADMIN_LIST__INIT;
    Poolcap__AdminRequest request = POOLCAP__ADMIN_REQUEST__INIT;
    list.after = (char *)(uintptr_t)after;
    request.body_case = POOLCAP__ADMIN_REQUEST__BODY_LIST;
    request.list = &list;
    pc_daemon_ask(node->daemon, &request, on_page, node);
}

void pc_node_snapshot_begin(struct pc_node *node, pc_snapshot_done done)
{
    node->snapshot->busy = true;
    node->snapshot->done = done;
    ask(node, "");
}

bool pc_node_snapshot_busy(const struct pc_node *node)
{
    return node->snapshot->busy;
}

/* Every page names all GPUs, as they were then: the last page's are the newest. */
void pc_node_snapshot_gpus(const struct pc_node *node, pc_snapshot_gpu each, void *arg)
{
    const struct pages *last = &node->snapshot->last;
    if (last->count == 0)
        return;
    const Poolcap__AdminListReply *page = last->page[last->count - 1];
    for (size_t i = 0; i < page->n_gpus; i++)
        each(arg, page->gpus[i]);
}

void pc_node_snapshot_grants(const struct pc_node *node, pc_snapshot_grant each, void *arg)
{
    const struct pages *last = &node->snapshot->last;
    for (unsigned i = 0; i < last->count; i++)
        for (size_t k = 0; k < last->page[i]->n_grants; k++)
            each(arg, last->page[i]->grants[k]);
}

enum pc_status pc_node_snapshot_create(struct pc_node *node, struct pc_error *err)
{
    node->snapshot = calloc(1, sizeof *node->snapshot);
    if (node->snapshot == NULL)
        return pc_error_set(err, PC_ERR_HOST_MEMORY, 0, "no host memory for poolcapd's list");
    return PC_OK;
}

void pc_node_snapshot_free(struct pc_node *node)
{
    if (node->snapshot == NULL)
        return;
    clear(&node->snapshot->last);
    clear(&node->snapshot->coming);
    free(node->snapshot);
    node->snapshot = NULL;
}
