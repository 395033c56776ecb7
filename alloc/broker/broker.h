/*
 * poolcapd's state, in one struct that is passed down. Everything here belongs to the loop thread; a GPU's worker
 * touches a job and the pool that the job names, nothing else.
 *
 * grant (a container's socket) > session (a process). A tenant (a pod) has, on each GPU, one account with a list of
 * pool generations; grants of one tenant share it.
 */
#ifndef PC_BROKER_BROKER_H
#define PC_BROKER_BROKER_H

#include <stdbool.h>
#include <stdint.h>

#include "alloc/base/loop.h"
#include "alloc/broker/books.h"
#include "alloc/broker/config.h"
#include "alloc/broker/list.h"
#include "alloc/broker/page.h"
#include "alloc/broker/peer.h"
#include "alloc/broker/watcher.h"
#include "alloc/broker/worker.h"
#include "alloc/ledger/ledger.h"
#include "alloc/pool/device.h"
#include "alloc/pool/leaks.h"
#include "alloc/pool/pool.h"
#include "proto/wire.h"

enum { PC_GPUS_MAX = 16, PC_SESSIONS_PER_GRANT = 256 };

struct pc_broker;

struct pc_gpu {
    struct pc_broker *broker;
    unsigned index;
    struct pc_device *device;
    struct pc_device_info info;
    struct pc_worker *worker;
    struct pc_account *cleanup; /* destroys and frees have a small share of their own */
    struct pc_ledger_gpu *ledger;
    struct pc_leaks *leaks;
    uint64_t large_granularity;
    uint64_t context_bytes; /* what one context costs, measured at start */
    uint64_t capacity;
    uint64_t base_used; /* card's used bytes that are no process's: driver bookkeeping */
    uint64_t card_used; /* of the last snapshot */
    uint64_t broken_promises;
    char fault[256]; /* empty: healthy */
};

struct pc_tenant {
    struct pc_list link; /* broker->tenants */
    struct pc_gpu *gpu;
    char name[PC_NAME_MAX];
    struct pc_ledger_tenant *ledger;
    struct pc_account *account;
    struct pc_list generations;
    struct pc_list waiters; /* requests that are short and wait for a release */
    struct pc_list inherited;
    unsigned grants;
    unsigned jobs; /* of the worker's, under way */
    uint64_t granted, cap;
    uint64_t unsettled_since; /* when the newest unsettled bytes came; 0: none */
};

/* A pool of an earlier poolcapd, charged whole until its importers are gone. */
struct pc_inherited {
    struct pc_list link;
    struct pc_tenant *tenant;
    uint64_t id, bytes;
    uint64_t claimed_ns; /* when a living process said that it dropped it; 0: none did */
    struct pc_book_record *record;
};

struct pc_generation {
    struct pc_list link;
    struct pc_tenant *tenant;
    uint64_t id;
    uint64_t max;
    struct pc_pool *pool; /* made by its first job, on the worker */
    struct pc_ledger_generation *ledger;
    struct pc_book_record *record;
    struct pc_list parked; /* blocks nobody has, kept allocated and exported */
    uint64_t parked_bytes;
    unsigned live;      /* blocks that a session has or a job works on */
    unsigned importers; /* sessions that may have it imported */
    bool exported;      /* some session ever had its fd */
    bool closing;
    uint64_t freed_by; /* whose bytes lie in freed memory: 0 nobody's, a session's id, or PC_FREED_BY_MANY */
};
#define PC_FREED_BY_MANY UINT64_MAX

struct pc_block {
    struct pc_list link; /* generation->parked or session's blocks */
    uint64_t id, bytes;
    struct pc_generation *generation; /* NULL: large */
    unsigned share;                   /* of the session's grant */
    uint64_t owner;                   /* session id that has, or had, it */
    pc_cu_deviceptr ptr;
    struct pc_cu_ptr_export data;
    struct pc_book_record *record; /* of large memory */
};

struct pc_share {
    struct pc_tenant *tenant;
    struct pc_ledger_grant *ledger;
    uint64_t granted, cap;
};

struct pc_grant {
    struct pc_list link; /* broker->grants */
    struct pc_broker *broker;
    char name[PC_NAME_MAX], tenant[PC_NAME_MAX], pod_uid[PC_NAME_MAX];
    char directory[PC_PATH_MAX + 80], socket[PC_PATH_MAX + 100];
    bool is_static, dropping;
    int fd;
    struct pc_watch *watch;
    struct pc_page_file *page;
    unsigned shares, sessions;
    struct pc_share share[PC_PAGE_GPUS_MAX];
    struct pc_book_record *record;
    struct pc_list drop_waiters; /* admin connections */
};

/* A session's part on one GPU of its grant. */
struct pc_holding {
    struct pc_ledger_session *ledger; /* NULL: not attached */
    uint64_t moved_ns;                /* when bytes last became pending */
    uint64_t outside;                 /* bytes that NVML shows beyond what is booked */
};

enum { PC_IMPORTS_MAX = PC_BOOK_IMPORTS };

struct pc_session {
    struct pc_list link; /* broker->sessions */
    struct pc_grant *grant;
    uint64_t id;
    struct pc_peer peer;
    struct pc_watch *pid_watch;
    int fd; /* -1: the socket is closed */
    struct pc_watch *watch;
    bool greeted, busy, dead;
    uint64_t dead_ns; /* when pidfd and socket were both seen to be gone */
    uint32_t sequence;
    struct pc_list blocks;
    struct pc_holding holding[PC_PAGE_GPUS_MAX];
    uint64_t imports[PC_IMPORTS_MAX]; /* generations it may have imported; 0: a free place */
    struct pc_book_record *record;
};

struct pc_broker {
    struct pc_config config;
    struct pc_loop *loop;
    struct pc_cuda cuda;
    struct pc_nvml nvml;
    bool has_nvml;
    struct pc_devices *devices;
    struct pc_ledger *ledger;
    struct pc_watcher *watcher;
    struct pc_books *books;
    unsigned gpus;
    struct pc_gpu *gpu[PC_GPUS_MAX];
    const char *uuids[PC_GPUS_MAX];
    struct pc_list tenants, grants, sessions, admins;
    uint64_t epoch, next_id;
    int lock_fd, admin_fd;
    struct pc_watch *admin_watch;
    struct pc_timer *tick;
    struct pc_arena *arena; /* one for all: a message is handled before the next is read */
};

enum pc_status pc_broker_start(struct pc_broker *b, struct pc_error *err);
void pc_broker_stop(struct pc_broker *b);
uint64_t pc_broker_new_id(struct pc_broker *b);

/* gpu.c */
enum pc_status pc_gpu_open(struct pc_broker *b, int ordinal, struct pc_error *err);
struct pc_gpu *pc_gpu_find(struct pc_broker *b, const char *reference, struct pc_error *err);
void pc_gpu_mark_faulty(struct pc_gpu *gpu, const char *why);
void pc_gpu_close(struct pc_gpu *gpu);

/* tenant.c */
enum pc_status pc_tenant_join(struct pc_broker *b, struct pc_gpu *gpu, const char *name, uint64_t granted, uint64_t cap,
                              struct pc_tenant **out, struct pc_error *err);
enum pc_status pc_tenant_resize(struct pc_tenant *t, uint64_t granted, uint64_t cap, struct pc_error *err);
void pc_tenant_leave(struct pc_tenant *t, uint64_t granted, uint64_t cap); /* frees it with its last grant */
void pc_tenant_changed(struct pc_tenant *t); /* something was released: pages, and requests that wait */
void pc_tenant_publish(struct pc_tenant *t); /* writes the pages of its grants */
void pc_tenant_set_wanted(struct pc_tenant *t, uint64_t bytes);
struct pc_generation *pc_tenant_find_generation(struct pc_tenant *t, uint64_t id);
enum pc_status pc_generation_open(struct pc_tenant *t, struct pc_generation **out, struct pc_error *err);
/* Starts to destroy every generation that nobody uses; true when there was one. */
bool pc_tenant_close_empty(struct pc_tenant *t);
void pc_block_park(struct pc_block *block);

/* grant.c */
enum pc_status pc_grant_make(struct pc_broker *b, const struct pc_config_grant *want, bool is_static,
                             struct pc_grant **out, struct pc_error *err);
struct pc_grant *pc_grant_find(struct pc_broker *b, const char *name);
enum pc_status pc_grant_listen(struct pc_grant *g, struct pc_error *err);
enum pc_status pc_grant_set_cap(struct pc_grant *g, unsigned share, uint64_t cap, struct pc_error *err);
void pc_grant_drop(struct pc_grant *g);
void pc_grant_finish_drops(struct pc_broker *b);
void pc_grant_free(struct pc_grant *g, bool remove_directory);

/* session.c */
enum pc_status pc_session_create(struct pc_grant *g, const struct pc_peer *peer, struct pc_session **out,
                                 struct pc_error *err);
void pc_session_accept(struct pc_grant *g);
void pc_session_reply(struct pc_session *s, Poolcap__Reply *reply, const int *fds, unsigned nfds);
void pc_session_refuse(struct pc_session *s, const struct pc_error *err); /* answers with an error */
void pc_session_end(struct pc_session *s, const char *why);               /* closes the connection */
void pc_session_snapshot(struct pc_broker *b, const struct pc_snapshot *snapshot);
bool pc_session_imports(const struct pc_session *s, uint64_t generation);
bool pc_session_set_import(struct pc_session *s, struct pc_generation *g);
void pc_session_clear_import(struct pc_session *s, uint64_t generation);
void pc_session_record(struct pc_session *s);

/* request.c */
void pc_request_handle(struct pc_session *s, const Poolcap__Request *request);
void pc_request_retry(struct pc_tenant *t);
void pc_request_cancel(struct pc_session *s); /* its waiting request: the session is gone */

/* watch.c */
void pc_watch_snapshot(const struct pc_snapshot *snapshot, void *arg);
void pc_watch_pace(struct pc_broker *b);
bool pc_watch_card_adds_up(const struct pc_gpu *gpu, const struct pc_snapshot *snapshot, uint64_t inherited);

/* inherit.c */
enum pc_status pc_inherit(struct pc_broker *b, struct pc_book_record **list, unsigned count, struct pc_error *err);
void pc_inherited_drop(struct pc_broker *b, struct pc_session *s, uint64_t id);
uint64_t pc_inherited_bytes(struct pc_broker *b, const struct pc_gpu *gpu);
void pc_inherited_sweep(struct pc_broker *b, const struct pc_snapshot *snapshot);

/* admin.c */
enum pc_status pc_admin_open(struct pc_broker *b, struct pc_error *err);
void pc_admin_close(struct pc_broker *b);
void pc_admin_dropped(struct pc_list *waiters); /* the grant they wait for is gone */

#endif
