/*
 * make demo: what poolcap is for, in one run. poolcapd, two tenants with different caps on one GPU, and everything that
 * must hold is checked: exit status 1 if any of it did not.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "alloc/base/bytes.h"
#include "tests/demo/node.h"
#include "tests/demo/puppet.h"

enum { BLOCK = 64 * 1024 * 1024 }; /* what tenants fill with */

struct demo {
    struct node node;
    uint64_t context; /* bytes of one CUDA context */
    uint64_t before;  /* on the card before poolcapd */
    uint64_t daemon;  /* poolcapd's own */
    uint64_t cap_a, cap_b;
    struct puppet a, b;
    unsigned step, failed;
};

static const char *mib(uint64_t bytes)
{
    static char bufs[8][32];
    static unsigned next;
    char *buf = bufs[next++ % 8];
    snprintf(buf, 32, "%.0f MiB", (double)bytes / (double)PC_MIB);
    return buf;
}

/* One row of the table: what was done, what was seen, and whether it holds. */
__attribute__((format(printf, 4, 5))) static void row(struct demo *d, const char *what, bool ok, const char *fmt, ...)
{
    char seen[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(seen, sizeof seen, fmt, ap);
    va_end(ap);
    printf("%2u  %-4s %-52s %s\n", ++d->step, ok ? "ok" : "FAIL", what, seen);
    fflush(stdout);
    d->failed += !ok;
}

/* Bytes on the card beyond what was there before poolcapd came. */
static uint64_t ours(struct demo *d)
{
    uint64_t used = node_used(&d->node);
    return used > d->before ? used - d->before : 0;
}

static bool within_caps(struct demo *d)
{
    return ours(d) <= d->daemon + d->cap_a + d->cap_b + NODE_SLACK;
}

static void start_tenant(struct demo *d, struct puppet *p, const char *grant)
{
    char socket[256];
    node_socket(&d->node, grant, socket);
    puppet_start(p, socket);
}

/* One context, measured as a program would see it: a process that does nothing else. */
static uint64_t measure_context(struct node *node)
{
    struct puppet p;
    puppet_start(&p, "/nonexistent");
    puppet_say(&p, "nothing"); /* it has its context once it answers */
    uint64_t bytes = node_process_bytes(node, p.pid);
    puppet_end(&p);
    if (bytes == 0)
        bytes = 600 * PC_MIB; /* NVML does not say: a generous guess, only used to choose the demo's caps */
    return bytes;
}

static void choose_caps(struct demo *d)
{
    uint64_t a = 0, b = 0;
    d->context = measure_context(&d->node);
    /* Room for two contexts each, so that a tenant's next process fits beside the memory that the first one left. */
    pc_round_up(d->context * 2 + 1024 * PC_MIB, PC_POOL_GRANULE, &a);
    pc_round_up(d->context * 2 + 512 * PC_MIB, PC_POOL_GRANULE, &b);
    d->cap_a = a;
    d->cap_b = b;
}

static void configure(struct demo *d)
{
    char yaml[512];
    snprintf(yaml, sizeof yaml, "grants:\n- name: alice\n  memory: %llu\n- name: bob\n  memory: %llu\n",
             (unsigned long long)d->cap_a, (unsigned long long)d->cap_b);
    node_configure(&d->node, yaml);
}

static void step_start(struct demo *d)
{
    d->before = node_used(&d->node);
    node_start(&d->node);
    d->daemon = ours(d);
    row(d, "poolcapd serves two grants", true, "alice %s, bob %s; its own context %s", mib(d->cap_a), mib(d->cap_b),
        mib(d->daemon));
}

static void step_fill(struct demo *d)
{
    start_tenant(d, &d->a, "alice");
    start_tenant(d, &d->b, "bob");
    bool ok = puppet_say(&d->b, "fill %d", BLOCK);
    unsigned long long count_b = puppet_number(&d->b, 0);
    puppet_say(&d->b, "write 171");
    row(d, "bob fills his cap", ok && count_b > 0, "%llu blocks of 64 MiB, then refused", count_b);
    ok = puppet_say(&d->a, "fill %d", BLOCK);
    unsigned long long count_a = puppet_number(&d->a, 0);
    row(d, "alice fills hers", ok && count_a > count_b, "%llu blocks of 64 MiB, then refused", count_a);
    row(d, "  the card holds no more than both caps", within_caps(d), "%s of %s", mib(ours(d)),
        mib(d->daemon + d->cap_a + d->cap_b));
}

static void step_refusal(struct demo *d)
{
    bool granted = puppet_say(&d->a, "alloc %d", BLOCK);
    bool ok = !granted && strncmp(d->a.answer, "oom ", 4) == 0 && strstr(d->a.answer, "cap") != NULL;
    row(d, "  one block more is CUDA_ERROR_OUT_OF_MEMORY", ok, "\"%s\"", d->a.answer + (ok ? 4 : 0));
    bool intact = puppet_say(&d->b, "check 171");
    row(d, "  and bob's memory is untouched", intact, "%s read back", mib(puppet_number(&d->b, 0)));
}

static void step_large(struct demo *d)
{
    puppet_say(&d->a, "info");
    uint64_t held = puppet_number(&d->a, 3);
    bool freed = puppet_say(&d->a, "free");
    /* The same bytes at once and, where the cap allows, past the 4064 MiB of one pool allocation. */
    bool ok = freed && puppet_say(&d->a, "alloc %llu", (unsigned long long)held);
    row(d, "alice frees her slabs, takes the same as one piece", ok && within_caps(d), "%s; the card holds %s",
        mib(held), mib(ours(d)));
    puppet_say(&d->a, "write 7");
    puppet_say(&d->a, "free");
    ok = puppet_say(&d->a, "fill %d", BLOCK);
    row(d, "  and fills her cap again", ok && within_caps(d), "%llu blocks",
        (unsigned long long)puppet_number(&d->a, 0));
}

static void step_kill(struct demo *d)
{
    puppet_say(&d->a, "write 205");
    puppet_kill(&d->a);
    start_tenant(d, &d->a, "alice");
    bool ok = puppet_say(&d->a, "fill %d", BLOCK);
    unsigned long long count = puppet_number(&d->a, 0);
    bool read = puppet_say(&d->a, "nonzero");
    unsigned long long dirty = puppet_number(&d->a, 0);
    row(d, "alice is killed (SIGKILL); her next process fills it", ok && count > 0, "%llu blocks", count);
    row(d, "  every byte of it reads zero", read && dirty == 0, "%llu bytes of the dead process", dirty);
    row(d, "  bob noticed nothing", puppet_say(&d->b, "check 171") && within_caps(d), "%s read back",
        mib(puppet_number(&d->b, 0)));
}

static void step_restart(struct demo *d)
{
    puppet_say(&d->a, "write 33");
    node_kill(&d->node);
    bool works = puppet_say(&d->a, "check 33") && puppet_say(&d->b, "check 171");
    row(d, "poolcapd is killed: both go on with their memory", works, "read back without it");
    node_start(&d->node);
    bool over = puppet_say(&d->a, "alloc %d", BLOCK);
    row(d, "poolcapd is back: alice is still at her cap", !over && strncmp(d->a.answer, "oom ", 4) == 0, "\"%s\"",
        d->a.answer + (over ? 0 : 4));
    /* bob never speaks to the new poolcapd; a second process of his must not get what he holds. */
    struct puppet second;
    start_tenant(d, &second, "bob");
    bool got = puppet_say(&second, "fill %d", BLOCK) && puppet_number(&second, 0) > 0;
    /* Its bare context is the driver's doing, before anybody could refuse it; nothing is granted on top. */
    bool within = ours(d) <= d->daemon + d->cap_a + d->cap_b + d->context + NODE_SLACK;
    row(d, "  bob never reconnects: his second process gets none", !got && within, "\"%.90s\"",
        strstr(second.answer, "why") != NULL ? strstr(second.answer, "why") + 4 : second.answer);
    puppet_end(&second);
    puppet_end(&d->b);
    struct timespec nap = {.tv_nsec = 300000000};
    nanosleep(&nap, NULL);
    start_tenant(d, &d->b, "bob");
    got = false;
    for (int i = 0; i < 20 && !got; i++) {
        got = puppet_say(&d->b, "fill %d", BLOCK) && puppet_number(&d->b, 0) > 0;
        if (!got)
            nanosleep(&nap, NULL);
    }
    row(d, "  once he ended, his next process gets it all again", got && within_caps(d), "%llu blocks",
        (unsigned long long)puppet_number(&d->b, 0));
}

static void step_end(struct demo *d)
{
    puppet_end(&d->a);
    puppet_end(&d->b);
    node_close(&d->node);
    uint64_t used = node_used_falls_to(&d->node, d->before);
    row(d, "all ended: the card is as it was", used <= d->before + NODE_SLACK, "%s in use, %s before", mib(used),
        mib(d->before));
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "puppet") == 0)
        return puppet_main();
    static struct demo d;
    node_open(&d.node);
    printf("poolcap demo on %s (%s, driver %s)\n\n", d.node.gpu_name, mib(d.node.total), d.node.driver);
    choose_caps(&d);
    configure(&d);
    step_start(&d);
    step_fill(&d);
    step_refusal(&d);
    step_large(&d);
    step_kill(&d);
    step_restart(&d);
    step_end(&d);
    printf("\n%s\n", d.failed == 0 ? "Everything held." : "Something did not hold; see FAIL above.");
    printf("%u passed, %u failed\n", d.step - d.failed, d.failed);
    return d.failed == 0 ? 0 : 1;
}
