#include "tests/unit/fake_broker.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/wire.h"

struct fake_broker fake_broker;

enum { CONNECTIONS = 8 };

static int listening = -1, page_fd = -1;
static struct pc_arena arena;

struct bodies { /* what the replies point to */
    Poolcap__HelloReply hello;
    Poolcap__GrantedGpu gpu, *gpus[1];
    Poolcap__AttachReply attach;
    Poolcap__AllocateReply allocate;
    Poolcap__FreeReply free;
    Poolcap__ReserveReply reserve;
    Poolcap__ReleaseReply release;
};

static void fill_hello(struct bodies *b, Poolcap__Reply *reply)
{
    poolcap__hello_reply__init(&b->hello);
    poolcap__granted_gpu__init(&b->gpu);
    b->gpu.uuid = (char *)(uintptr_t)fake_broker.uuid;
    b->gpu.cap = fake_broker.page->gpu[0].cap;
    b->gpus[0] = &b->gpu;
    b->hello.version = PC_WIRE_VERSION_MAX;
    b->hello.epoch = fake_broker.epoch;
    b->hello.n_gpus = 1;
    b->hello.gpus = b->gpus;
    reply->body_case = POOLCAP__REPLY__BODY_HELLO;
    reply->hello = &b->hello;
}

static void note_free(const Poolcap__Free *body)
{
    fake_broker.frees++;
    for (size_t i = 0; i < body->n_blocks; i++)
        fake_broker.freed[fake_broker.freed_count++ % 64] = body->blocks[i];
    for (size_t i = 0; i < body->n_dropped; i++)
        fake_broker.dropped[fake_broker.dropped_count++ % 64] = body->dropped[i];
}

static void prepare(const Poolcap__Request *request, struct bodies *b, Poolcap__Reply *reply)
{
    poolcap__attach_reply__init(&b->attach);
    poolcap__allocate_reply__init(&b->allocate);
    poolcap__free_reply__init(&b->free);
    poolcap__reserve_reply__init(&b->reserve);
    poolcap__release_reply__init(&b->release);
    switch (request->body_case) {
    case POOLCAP__REQUEST__BODY_HELLO:
        fill_hello(b, reply);
        break;
    case POOLCAP__REQUEST__BODY_ATTACH:
        fake_broker.attaches++;
        reply->body_case = POOLCAP__REPLY__BODY_ATTACH;
        reply->attach = &b->attach;
        break;
    case POOLCAP__REQUEST__BODY_ALLOCATE:
        fake_broker.allocates++;
        reply->body_case = POOLCAP__REPLY__BODY_ALLOCATE;
        reply->allocate = &b->allocate;
        break;
    case POOLCAP__REQUEST__BODY_FREE:
        note_free(request->free);
        reply->body_case = POOLCAP__REPLY__BODY_FREE;
        reply->free = &b->free;
        break;
    case POOLCAP__REQUEST__BODY_RESERVE:
        fake_broker.reserves++;
        reply->body_case = POOLCAP__REPLY__BODY_RESERVE;
        reply->reserve = &b->reserve;
        break;
    default:
        fake_broker.releases++;
        reply->body_case = POOLCAP__REPLY__BODY_RELEASE;
        reply->release = &b->release;
    }
}

/* False: the connection ends. */
static bool serve_one(int fd)
{
    ProtobufCMessage *message = NULL;
    struct bodies bodies;
    int fds[PC_WIRE_FDS_MAX] = {page_fd};
    if (pc_wire_receive(fd, &poolcap__request__descriptor, &arena, &message, NULL, NULL, NULL) != PC_OK ||
        message == NULL)
        return false;
    const Poolcap__Request *request = (const Poolcap__Request *)message;
    Poolcap__Reply reply = POOLCAP__REPLY__INIT;
    reply.sequence = request->sequence;
    prepare(request, &bodies, &reply);
    unsigned nfds = request->body_case == POOLCAP__REQUEST__BODY_HELLO ? 1 : 0;
    if (fake_broker.hook != NULL && !fake_broker.hook(request, &reply, fds, &nfds))
        return false;
    return pc_wire_send(fd, &reply.base, fds, nfds, NULL) == PC_OK;
}

static void *serve(void *arg)
{
    struct pollfd polled[CONNECTIONS + 1] = {{.fd = listening, .events = POLLIN}};
    unsigned count = 1;
    while (poll(polled, count, -1) >= 0) {
        for (unsigned i = count; i-- > 1;) {
            if (polled[i].revents == 0 || serve_one(polled[i].fd))
                continue;
            close(polled[i].fd);
            polled[i] = polled[--count];
        }
        int fd = count <= CONNECTIONS ? accept(listening, NULL, NULL) : -1; /* does not block */
        if (fd < 0)
            continue;
        fake_broker.connections++;
        polled[count++] = (struct pollfd){.fd = fd, .events = POLLIN};
    }
    return arg;
}

static void make_page(void)
{
    page_fd = memfd_create("fake-page", MFD_CLOEXEC);
    if (page_fd < 0 || ftruncate(page_fd, PC_PAGE_BYTES) != 0)
        abort();
    fake_broker.page = mmap(NULL, PC_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, page_fd, 0);
    fake_broker.page->magic = PC_PAGE_MAGIC;
    fake_broker.page->version = PC_PAGE_VERSION;
    fake_broker.page->alive = 1;
    fake_broker.page->gpus = 1;
    pc_page_write(&fake_broker.page->gpu[0], &(struct pc_page_figures){
                                                 .cap = 1ull << 30,
                                                 .charged = 1ull << 26,
                                                 .room = (1ull << 30) - (1ull << 26),
                                             });
}

void fake_broker_start(void)
{
    pthread_t thread;
    const char *dir = getenv("TMPDIR");
    snprintf(fake_broker.path, sizeof fake_broker.path, "%.60s/fake-%d.sock", dir != NULL ? dir : "/tmp",
             (int)getpid());
    make_page();
    if (pc_wire_listen(fake_broker.path, 0600, &listening, NULL) != PC_OK ||
        pthread_create(&thread, NULL, serve, NULL) != 0)
        abort();
}
