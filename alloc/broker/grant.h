/*
 * A grant: what one container was given, its directory RUN/grants/NAME with one socket, its page, its sessions.
 * It is in the books, so that a poolcapd that starts again keeps every promise of the one before.
 */
#ifndef PC_BROKER_GRANT_H
#define PC_BROKER_GRANT_H

#include "alloc/broker/tenant.h"

enum { PC_SESSIONS_PER_GRANT = 256 };

struct pc_grant {
    struct pc_list link; /* broker->grants */
    struct pc_broker *broker;
    char name[PC_NAME_MAX], tenant[PC_NAME_MAX];
    char pod_uid[PC_NAME_MAX]; /* only its processes may use the grant; empty: whoever can open the socket */
    char directory[PC_PATH_MAX + PC_NAME_MAX + 16], socket[PC_PATH_MAX + PC_NAME_MAX + 32];
    struct pc_books_grant *record;
    struct pc_page_file *page;
    int fd; /* the socket; -1: not open (yet, or any more) */
    struct pc_watch *watch;
    unsigned shares;
    struct pc_share share[PC_PAGE_GPUS_MAX];
    struct pc_list sessions;
    unsigned session_count;
    bool dropping; /* no new sessions or memory; it ends with its last session */
};

/*
 * Books a grant; the socket is opened by pc_grant_listen. Nothing stays half made after an error.
 * Errors: PC_ERR_INVALID (sizes, names, unknown GPU), PC_ERR_OUT_OF_MEMORY (over what the GPU can give), PC_ERR_EXISTS,
 * PC_ERR_DEVICE (GPU out of service), PC_ERR_IO, PC_ERR_HOST_MEMORY.
 */
enum pc_status pc_grant_make(struct pc_broker *b, const struct pc_config_grant *want, struct pc_grant **out,
                             struct pc_error *err);
/* The same from a record of an earlier poolcapd, which it goes on with. */
enum pc_status pc_grant_adopt(struct pc_broker *b, struct pc_books_grant *record, struct pc_grant **out,
                              struct pc_error *err);
/* Makes the directory and the socket; accept is called with the grant for each connection that waits. Errors:
 * PC_ERR_IO. */
enum pc_status pc_grant_listen(struct pc_grant *grant, pc_watch_fn accept, struct pc_error *err);
/* Takes a grant that has no sessions and whose tenants are idle, or that was just made, out of everything. */
void pc_grant_free(struct pc_grant *grant);

/* What of the content differs ("another cap"), for people; NULL: nothing. `shared` is no part of the content. */
const char *pc_grant_differs(struct pc_grant *grant, const struct pc_config_grant *want);

struct pc_grant *pc_grant_find(struct pc_broker *b, const char *name);
struct pc_share *pc_grant_share(struct pc_grant *grant, const struct pc_gpu *gpu); /* NULL: nothing on that GPU */

/* Errors as pc_grant_make; nothing has changed then. */
enum pc_status pc_grant_resize(struct pc_grant *grant, struct pc_share *share, uint64_t granted, uint64_t cap,
                               struct pc_error *err);
void pc_grant_bind(struct pc_grant *grant, const char pod_uid[PC_NAME_MAX]);

void pc_grant_drop(struct pc_grant *grant);
/* Whether a dropping grant can be freed: no sessions, and where it is its tenant's last, all memory back on the card.
 */
bool pc_grant_ended(struct pc_grant *grant);

#endif
