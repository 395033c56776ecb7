/* 16 GiB and 64 GiB in one piece, used whole: written, read back whole, freed. Skipped where the card is smaller. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/bytes.h"
#include "tests/demo/node.h"
#include "tests/demo/puppet.h"

static unsigned passed, failed, skipped;

static void result(bool ok, const char *what, const char *answer)
{
    printf("%s: %s%s%s\n", ok ? "ok" : "FAILED", what, ok ? "" : ": ", ok ? "" : answer);
    passed += ok;
    failed += !ok;
}

static void try_size(struct node *node, struct puppet *p, unsigned gib, uint64_t context)
{
    char what[96];
    uint64_t bytes = gib * PC_GIB;
    if (node->total < bytes + 4 * context + PC_GIB) {
        printf("skipped: %u GiB: the card has %llu MiB\n", gib, (unsigned long long)(node->total / PC_MIB));
        skipped++;
        return;
    }
    uint64_t before = node_used(node);
    snprintf(what, sizeof what, "%u GiB in one piece", gib);
    result(puppet_say(p, "alloc %llu", (unsigned long long)bytes), what, p->answer);
    snprintf(what, sizeof what, "  all of it written");
    result(puppet_say(p, "write 90") && puppet_number(p, 0) == bytes, what, p->answer);
    snprintf(what, sizeof what, "  and read back whole");
    result(puppet_say(p, "check 90") && puppet_number(p, 0) == bytes, what, p->answer);
    bool freed = puppet_say(p, "free");
    snprintf(what, sizeof what, "  freed: the card has it back");
    result(freed && node_used_falls_to(node, before) <= before + NODE_SLACK, what, p->answer);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "puppet") == 0)
        return puppet_main();
    static struct node node;
    struct puppet p;
    char yaml[128], socket[256];
    node_open(&node);
    uint64_t context = 640 * PC_MIB;
    uint64_t cap = (node.total > 80 * PC_GIB ? 66 * PC_GIB : node.total / 2) / PC_POOL_GRANULE * PC_POOL_GRANULE;
    printf("big allocations on %s (driver %s), cap %llu MiB\n", node.gpu_name, node.driver,
           (unsigned long long)(cap / PC_MIB));
    snprintf(yaml, sizeof yaml, "grants:\n- name: big\n  memory: %llu\n", (unsigned long long)cap);
    node_configure(&node, yaml);
    node_start(&node);
    node_socket(&node, "big", socket);
    puppet_start(&p, socket);
    puppet_say(&p, "info"); /* its context is made and attached: it would count in what follows */
    try_size(&node, &p, 16, context);
    try_size(&node, &p, 64, context);
    puppet_end(&p);
    node_close(&node);
    printf("%u passed, %u failed, %u skipped\n", passed, failed, skipped);
    return failed == 0 ? 0 : 1;
}
