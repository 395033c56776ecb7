#include "alloc/shim/client.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "alloc/base/cleanup.h"
#include "alloc/base/log.h"
#include "alloc/shim/gpu.h"
#include "alloc/shim/state.h"
#include "alloc/shim/wire_client.h"

#define DEFAULT_SOCKET "/run/poolcap/poolcap.sock"
#define MS 1000000ull

enum { BACKOFF_FIRST_MS = 10, BACKOFF_MOST_MS = 1000, FIRST_TRY_MS = 150 };

const struct pc_page *_Atomic shim_client_page;
_Atomic bool shim_client_gone;

static struct {
    int fd; /* -1 and 0 both: none, see connected */
    bool connected, said;
    bool hurried;  /* no waiting for poolcapd: the program frees, it needs nothing */
    bool settling; /* between the greeting and the contexts being booked again: a loss then is the connection's failure
                    */
    uint32_t session; /* counts poolcapds: connecting again to the same one goes on with the same session */
    uint64_t epoch;
    uint64_t next_try; /* ns; 0: at once, and with patience */
    uint64_t backoff_ms;
    enum pc_status why; /* of the last failure, for the time in between */
    char text[PC_ERROR_TEXT];
} client;

void shim_client_hurry(bool hurry)
{
    client.hurried = hurry;
}

uint32_t shim_client_session(void)
{
    return client.session;
}

/* --- the page --- */

/* No fstat: its symbol is newer than what the shim may need. */
static bool is_page(int fd)
{
    return lseek(fd, 0, SEEK_END) >= PC_PAGE_BYTES;
}

/* A new page takes the old one's address: readers hold no lock, and never find nothing there. */
static enum pc_status map_page(int fd, struct pc_error *err)
{
    if (fd < 0 || !is_page(fd))
        return pc_error_set(err, PC_ERR_PROTOCOL, 0, "poolcapd sent no page with its greeting");
    void *old = (void *)(uintptr_t)atomic_load_explicit(&shim_client_page, memory_order_relaxed);
    void *page = mmap(old, PC_PAGE_BYTES, PROT_READ, MAP_SHARED | (old != NULL ? MAP_FIXED : 0), fd, 0);
    if (page == MAP_FAILED)
        return pc_error_errno(err, errno, "cannot map poolcapd's page");
    const struct pc_page *mapped = page;
    atomic_store_explicit(&shim_client_page, mapped, memory_order_release);
    if (mapped->magic != PC_PAGE_MAGIC || mapped->version != PC_PAGE_VERSION)
        return pc_error_set(err, PC_ERR_PROTOCOL, 0, "poolcapd's page is of version %u, not %d",
                            (unsigned)mapped->version, PC_PAGE_VERSION);
    if (atomic_load_explicit(&mapped->alive, memory_order_relaxed) == 0)
        return pc_error_set(err, PC_ERR_UNREACHABLE, 0, "poolcapd is about to stop");
    return PC_OK;
}

/* --- greeting --- */

static enum pc_status take_greeting(const Poolcap__Reply *reply, struct shim_fds *fds, struct pc_error *err)
{
    if (reply->body_case != POOLCAP__REPLY__BODY_HELLO)
        return pc_error_set(err, PC_ERR_PROTOCOL, 0, "poolcapd's greeting is none");
    const Poolcap__HelloReply *hello = reply->hello;
    pc_auto_fd int page = shim_fds_take(fds);
    enum pc_status status = map_page(page, err);
    if (status != PC_OK)
        return status;
    if (client.session == 0 || client.epoch != hello->epoch)
        client.session++;
    client.epoch = hello->epoch;
    shim_gpus_regrant();
    for (size_t i = 0; i < hello->n_gpus && i < PC_PAGE_GPUS_MAX; i++)
        shim_gpu_granted(hello->gpus[i]->uuid, (int)i);
    return PC_OK;
}

static enum pc_status greet(int fd, struct pc_error *err)
{
    Poolcap__Hello hello = POOLCAP__HELLO__INIT;
    Poolcap__Request request = POOLCAP__REQUEST__INIT;
    Poolcap__Reply *reply;
    struct shim_fds fds;
    bool lost;
    hello.version_min = PC_WIRE_VERSION_MIN;
    hello.version_max = PC_WIRE_VERSION_MAX;
    hello.client = (char *)(uintptr_t) "libpoolcap " POOLCAP_VERSION;
    request.body_case = POOLCAP__REQUEST__BODY_HELLO;
    request.hello = &hello;
    enum pc_status status = shim_exchange(fd, &request, &reply, &fds, &lost, err);
    if (status == PC_OK)
        status = take_greeting(reply, &fds, err);
    shim_fds_close(&fds);
    return status;
}

/* --- connecting --- */

/*
 * A socket that is not there says "not under poolcap" only where nothing promised one: POOLCAP_SOCKET is set by whoever
 * made the grant, and then its poolcapd is away.
 */
static enum pc_status connect_error(struct pc_error *err, bool promised)
{
    if (err->status == PC_ERR_UNREACHABLE && !promised && client.session == 0 &&
        (err->code == ENOENT || err->code == ENOTDIR))
        err->status = PC_ERR_NOT_FOUND;
    return err->status;
}

static enum pc_status try_connect(struct pc_error *err)
{
    const char *path = getenv("POOLCAP_SOCKET");
    bool promised = path != NULL && path[0] != '\0';
    pc_auto_fd int fd = -1;
    if (pc_wire_connect(promised ? path : DEFAULT_SOCKET, &fd, err) != PC_OK)
        return connect_error(err, promised);
    enum pc_status status = greet(fd, err);
    if (status != PC_OK)
        return status;
    client.fd = pc_steal_fd(&fd);
    client.connected = true;
    atomic_store_explicit(&shim_client_gone, false, memory_order_relaxed);
    return PC_OK;
}

static void pause_ms(uint64_t ms)
{
    struct timespec wait = {.tv_nsec = (long)(ms * MS)};
    nanosleep(&wait, NULL);
}

/* The first need after a loss waits a little, since a poolcapd that is replaced is back at once. */
static enum pc_status try_patiently(struct pc_error *err)
{
    enum pc_status status = try_connect(err);
    bool patient = client.next_try == 0 && client.session > 0 && !client.hurried;
    for (uint64_t wait = BACKOFF_FIRST_MS, waited = 0; patient && status == PC_ERR_UNREACHABLE && waited < FIRST_TRY_MS;
         waited += wait, wait *= 2) {
        pause_ms(wait);
        status = try_connect(err);
    }
    return status;
}

/* One line for each outage. A process that is not under poolcap hears nothing. */
static enum pc_status note_failure(enum pc_status status, const struct pc_error *err)
{
    client.why = status;
    memcpy(client.text, err->text, sizeof client.text);
    client.backoff_ms = client.backoff_ms == 0 ? BACKOFF_FIRST_MS : client.backoff_ms * 2;
    if (client.backoff_ms > BACKOFF_MOST_MS)
        client.backoff_ms = BACKOFF_MOST_MS;
    client.next_try = shim_now() + client.backoff_ms * MS;
    if (!client.said && status != PC_ERR_NOT_FOUND) {
        client.said = true;
        pc_log_error("shim", "no new GPU memory until poolcapd answers: %s", err->text);
    }
    return status;
}

static void lose(void)
{
    if (client.connected)
        close(client.fd);
    client.connected = false;
    atomic_store_explicit(&shim_client_gone, true, memory_order_relaxed);
}

enum pc_status shim_client_connect(struct pc_error *err)
{
    if (client.connected && !client.settling && shim_client_away()) /* it said goodbye; asking would only fail */
        lose();
    if (client.connected)
        return PC_OK;
    if (client.next_try != 0 && shim_now() < client.next_try)
        return pc_error_set(err, client.why, 0, "%s", client.text);
    enum pc_status status = try_patiently(err);
    if (status != PC_OK)
        return note_failure(status, err);
    client.settling = true;
    status = shim_gpus_new_session(client.session, err);
    client.settling = false;
    if (!client.connected)
        return note_failure(status, err);
    client.said = false;
    client.backoff_ms = 0;
    client.next_try = 0;
    return PC_OK;
}

/* --- requests --- */

/* gpu's place in the session's list is asked for with each try: a new session may have another one. */
static enum pc_status aim(const struct shim_gpu *gpu, Poolcap__Request *request, struct pc_error *err)
{
    if (gpu == NULL)
        return PC_OK;
    int index = atomic_load_explicit(&gpu->index, memory_order_relaxed);
    if (index < 0)
        return pc_error_set(err, PC_ERR_NOT_FOUND, 0, "%s is not granted to this container any more", gpu->uuid);
    switch (request->body_case) {
    case POOLCAP__REQUEST__BODY_ATTACH:
        request->attach->gpu = (uint32_t)index;
        break;
    case POOLCAP__REQUEST__BODY_ALLOCATE:
        request->allocate->gpu = (uint32_t)index;
        break;
    case POOLCAP__REQUEST__BODY_RESERVE:
        request->reserve->gpu = (uint32_t)index;
        break;
    case POOLCAP__REQUEST__BODY_RELEASE:
        request->release->gpu = (uint32_t)index;
        break;
    default:
        break;
    }
    return PC_OK;
}

enum pc_status shim_client_request(const struct shim_gpu *gpu, Poolcap__Request *request, Poolcap__Reply **reply,
                                   struct shim_fds *fds, struct pc_error *err)
{
    /* A Free names what this session knows: it means nothing to the next one, or something else. */
    bool again = !client.settling && request->body_case != POOLCAP__REQUEST__BODY_FREE;
    fds->count = 0;
    for (;; again = false) {
        bool lost;
        enum pc_status status = shim_client_connect(err);
        if (status == PC_OK)
            status = aim(gpu, request, err);
        if (status != PC_OK)
            return status;
        status = shim_exchange(client.fd, request, reply, fds, &lost, err);
        if (!lost)
            return status;
        lose();
        if (!again) /* what poolcapd itself ended the session for is left as it is */
            return status;
    }
}
