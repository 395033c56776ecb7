/* The C API against poolcapd: what a program gets, what it costs the grant, and what comes back. */
#include "tests/integration/shim_harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/shim/gpu.h"
#include "alloc/shim/state.h"
#include "alloc/shim/stream.h"
#include "tests/demo/puppet.h"

static struct shim_gpu *gpu(void)
{
    return shim_gpu_at(0);
}

static void audit(void)
{
    static struct shim_owner *owners[4096];
    unsigned count = 0;
    for (struct shim_stream *stream = gpu()->streams; stream != NULL; stream = stream->next)
        owners[count++] = &stream->own;
    const char *wrong = shim_heap_audit(&gpu()->heap, owners, count);
    if (wrong != NULL)
        check_failed(__FILE__, __LINE__, wrong);
}

/* --- what a program gets --- */

static void body_every_size(void)
{
    poolcap_ptr held[64];
    size_t sizes[64], count = 0;
    for (size_t bytes = 1; bytes <= 96 * PC_MIB; bytes = bytes * 3 + 1, count++) {
        sizes[count] = bytes;
        held[count] = take(bytes, NULL);
        CHECK(held[count] % 512 == 0);
        fill(held[count], bytes, (unsigned char)count);
    }
    for (size_t i = 0; i < count; i++)
        CHECK(holds(held[i], sizes[i], (unsigned char)i));
    audit();
    for (size_t i = 0; i < count; i++)
        give(held[i], NULL);
    audit();
    CHECK(info().live == 0);
}

static void body_arguments(void)
{
    poolcap_ptr ptr = 77;
    CHECK(poolcap_alloc(NULL, 1, NULL, 0) == POOLCAP_INVALID);
    CHECK(poolcap_alloc(&ptr, 0, NULL, 0) == POOLCAP_INVALID && poolcap_last_error()[0] != '\0');
    CHECK(poolcap_alloc(&ptr, 1, NULL, 9) == POOLCAP_INVALID);
    CHECK(poolcap_alloc(&ptr, SIZE_MAX, NULL, 0) == POOLCAP_OUT_OF_MEMORY);
    CHECK(poolcap_free(0, NULL) == POOLCAP_OK);
    CHECK(poolcap_free(4096, NULL) == POOLCAP_INVALID);
    CHECK(poolcap_free(UINT64_MAX, NULL) == POOLCAP_INVALID);
    CHECK(ptr == 77);
    ptr = take(1000, NULL);
    CHECK(poolcap_free(ptr + 512, NULL) == POOLCAP_INVALID);
    give(ptr, NULL);
    CHECK(poolcap_free(ptr, NULL) == POOLCAP_INVALID); /* twice */
    CHECK(strstr(poolcap_last_error(), "freed already") != NULL);
    CHECK(poolcap_info(NULL) == POOLCAP_INVALID && poolcap_describe(NULL, 9) == POOLCAP_INVALID);
    CHECK(poolcap_managed_alloc(NULL, 1) == POOLCAP_INVALID && poolcap_managed_free(NULL) == POOLCAP_OK);
    audit();
}

static void body_figures(void)
{
    poolcap_memory at_first = info();
    CHECK(at_first.total == PC_GIB && at_first.held == 0 && at_first.live == 0);
    CHECK(at_first.free < PC_GIB && at_first.free == at_first.total - at_first.charged); /* one context */
    poolcap_ptr ptr = take(10 * PC_MIB, NULL);
    poolcap_memory then = info();
    CHECK(then.held == 32 * PC_MIB && then.live == 10 * PC_MIB);
    CHECK(then.charged == at_first.charged + 32 * PC_MIB);
    CHECK(then.free == at_first.free - 10 * PC_MIB); /* the slab's idle rest counts as free */
    give(ptr, NULL);
    CHECK(info().free == at_first.free);
    char text[200], small[8];
    CHECK_OK(poolcap_describe(text, sizeof text));
    CHECK(strstr(text, "capped: yes, 1Gi on GPU-") == text);
    CHECK_OK(poolcap_describe(small, sizeof small));
    CHECK(strcmp(small, "capped:") == 0);
}

/* --- the cap --- */

static void body_over_the_cap(void)
{
    static poolcap_ptr held[600];
    poolcap_memory before = info();
    unsigned count = 0;
    poolcap_status status;
    while (count < 600 && (status = poolcap_alloc(&held[count], 3 * PC_MIB, NULL, 0)) == POOLCAP_OK)
        count++;
    CHECK(status == POOLCAP_OUT_OF_MEMORY && poolcap_to_curesult(status) == PC_CU_ERROR_OUT_OF_MEMORY);
    CHECK(info().charged <= PC_GIB);
    CHECK(info().free < 32 * PC_MIB);
    CHECK(count * 3 * PC_MIB > before.free * 3 / 4); /* no more than a quarter lost to cutting */
    audit();
    for (unsigned i = 0; i < count; i += 2) /* holes; none of them fits 40 MiB */
        give(held[i], NULL);
    poolcap_ptr ptr;
    CHECK(poolcap_alloc(&ptr, 400 * PC_MIB, NULL, 0) == POOLCAP_OUT_OF_MEMORY);
    for (unsigned i = 1; i < count; i += 2)
        give(held[i], NULL);
    audit();
    /* All is idle slabs of other sizes: given back, and asked for again as one. */
    ptr = take(before.free / (32 * PC_MIB) * (32 * PC_MIB), NULL);
    CHECK(info().charged <= PC_GIB);
    fill(ptr, 4096, 1);
    give(ptr, NULL);
    audit();
}

static void body_small_after_all_else(void)
{
    poolcap_memory before = info();
    poolcap_ptr big = take(before.free / (32 * PC_MIB) * (32 * PC_MIB) - 32 * PC_MIB, NULL);
    poolcap_ptr mid = take(31 * PC_MIB, NULL);
    for (unsigned i = 0; i < 16; i++)
        take(64 * PC_KIB, NULL); /* out of the last MiB */
    poolcap_ptr none;
    CHECK(poolcap_alloc(&none, 2 * PC_MIB, NULL, 0) == POOLCAP_OUT_OF_MEMORY);
    give(mid, NULL);
    take(2 * PC_MIB, NULL);
    give(big, NULL);
    audit();
}

/* --- giving back --- */

static void body_trim(void)
{
    poolcap_ptr held[3];
    size_t given = 99;
    CHECK_OK(poolcap_trim(0, &given));
    CHECK(given == 0);
    for (unsigned i = 0; i < 3; i++)
        held[i] = take(32 * PC_MIB, NULL);
    give(held[0], NULL);
    give(held[1], NULL); /* idle within the rule */
    CHECK_OK(poolcap_trim(32 * PC_MIB, &given));
    CHECK(given == 32 * PC_MIB && info().held == 64 * PC_MIB);
    CHECK_OK(poolcap_trim(0, &given));
    CHECK(given == 32 * PC_MIB && info().held == 32 * PC_MIB);
    audit();
    fill(held[2], 32 * PC_MIB, 7); /* its slab is untouched */
    CHECK(holds(held[2], 32 * PC_MIB, 7));
    give(held[2], NULL);
    CHECK_OK(poolcap_trim(0, &given));
    CHECK(info().held == 0);
    for (unsigned i = 0; i < SHIM_GENERATIONS; i++)
        CHECK(gpu()->generations[i].id == 0); /* the import went with its last slab */
    held[0] = take(PC_MIB, NULL);             /* and comes again */
    fill(held[0], PC_MIB, 1);
    audit();
}

static void body_idle_rule(void)
{
    poolcap_ptr held[16];
    for (unsigned i = 0; i < 16; i++)
        held[i] = take(32 * PC_MIB, NULL);
    CHECK(info().held == 512 * PC_MIB);
    for (unsigned i = 0; i < 16; i++) {
        give(held[i], NULL);
        poolcap_memory memory = info();
        uint64_t most = memory.live / 8 > 64 * PC_MIB ? memory.live / 8 : 64 * PC_MIB;
        CHECK(memory.held - memory.live <= most);
    }
    CHECK(info().held > 0 && info().held <= 64 * PC_MIB);
    audit();
}

static void body_rhythm(void)
{
    poolcap_ptr ptr = take(512 * PC_MIB, NULL);
    give(ptr, NULL);
    ptr = take(512 * PC_MIB, NULL); /* given back a moment ago, and asked for again: now the rule rests */
    give(ptr, NULL);
    CHECK(info().held >= 512 * PC_MIB);
    nap_ms(150);
    ptr = take(PC_MIB, NULL);
    give(ptr, NULL);
    CHECK(info().held <= 64 * PC_MIB);
}

static void body_sibling_wants(void)
{
    struct puppet sibling;
    char path[256];
    poolcap_ptr held[2] = {take(32 * PC_MIB, NULL), take(32 * PC_MIB, NULL)};
    give(held[0], NULL); /* idle within the rule */
    node_socket(&node, "a", path);
    puppet_start(&sibling, path);
    CHECK(puppet_say(&sibling, "alloc %llu", (unsigned long long)PC_MIB));
    CHECK(info().held == 64 * PC_MIB);
    /* What the sibling is short of shows in the page; the next free sees it. */
    char ask[64];
    snprintf(ask, sizeof ask, "fill %llu\n", (unsigned long long)(32 * PC_MIB));
    CHECK(write(sibling.in, ask, strlen(ask)) == (ssize_t)strlen(ask));
    for (unsigned i = 0; i < 3000 && info().held > 32 * PC_MIB; i++) {
        poolcap_ptr ptr = take(4096, NULL);
        give(ptr, NULL);
        nap_ms(1);
    }
    CHECK(info().held == 32 * PC_MIB);
    give(held[1], NULL);
    puppet_kill(&sibling);
}

/* --- the other kinds --- */

static void body_large(void)
{
    const size_t bytes = 5 * PC_GIB;
    poolcap_memory before = info();
    poolcap_ptr ptr = take(bytes, NULL);
    CHECK(info().held == bytes && info().live == bytes);
    fill(ptr, 4096, 1);
    fill(ptr + bytes - 4096, 4096, 2);
    CHECK(holds(ptr, 4096, 1) && holds(ptr + bytes - 4096, 4096, 2));
    poolcap_ptr second;
    CHECK(poolcap_alloc(&second, 2 * bytes, NULL, 0) == POOLCAP_OUT_OF_MEMORY);
    give(ptr, NULL);
    CHECK_OK(poolcap_trim(0, NULL));
    CHECK(info().held == 0);
    audit();
    /* It is charged until NVML shows the drop. */
    for (unsigned i = 0; i < 200 && info().charged > before.charged; i++)
        nap_ms(20);
    CHECK(info().charged == before.charged);
}

static void body_slabs_then_large(void)
{
    poolcap_ptr held[40];
    for (unsigned i = 0; i < 40; i++)
        held[i] = take(100 * PC_MIB, NULL);
    for (unsigned i = 0; i < 40; i++)
        give(held[i], NULL);
    /* What the pool reserved stays charged (it never shrinks); large memory comes out of the rest, if the whole pool is
     * idle poolcapd can destroy it. */
    poolcap_ptr ptr = take(5 * PC_GIB, NULL);
    give(ptr, NULL);
}

static void body_direct(void)
{
    poolcap_memory before = info();
    poolcap_ptr ptr;
    CHECK_OK(poolcap_alloc(&ptr, 5 * PC_MIB, NULL, POOLCAP_DIRECT));
    CHECK(info().direct == 6 * PC_MIB && info().charged == before.charged + 6 * PC_MIB);
    fill(ptr, 5 * PC_MIB, 3);
    poolcap_ptr second;
    CHECK(poolcap_alloc(&second, PC_GIB, NULL, POOLCAP_DIRECT) == POOLCAP_OUT_OF_MEMORY);
    give(ptr, NULL);
    CHECK(info().direct == 0);
    CHECK(poolcap_free(ptr, NULL) == POOLCAP_INVALID);
    for (unsigned i = 0; i < 200 && info().charged > before.charged; i++)
        nap_ms(20);
    CHECK(info().charged == before.charged);
}

static void body_managed(void)
{
    poolcap_memory before = info();
    poolcap_managed *buffer = NULL;
    CHECK_OK(poolcap_managed_alloc(&buffer, PC_MIB));
    CHECK(poolcap_managed_ptr(buffer) != 0 && poolcap_managed_ptr(NULL) == 0);
    CHECK(info().direct == PC_MIB && info().charged == before.charged + PC_MIB);
    CHECK_OK(poolcap_managed_prefetch(buffer, POOLCAP_OWN_GPU, NULL));
    CHECK_OK(poolcap_managed_advise(buffer, POOLCAP_READ_MOSTLY, 1, POOLCAP_OWN_GPU));
    CHECK(poolcap_managed_advise(buffer, (poolcap_advice)9, 1, 0) == POOLCAP_INVALID);
    CHECK_OK(poolcap_managed_free(buffer));
    CHECK(info().direct == 0);
    CHECK(poolcap_managed_alloc(&buffer, 2 * PC_GIB) == POOLCAP_OUT_OF_MEMORY);
}

#define TEST(name, memory)                \
    static void name(void **state)        \
    {                                     \
        (void)state;                      \
        run_on_node(body_##name, memory); \
    }
TEST(every_size, PC_GIB)
TEST(arguments, PC_GIB)
TEST(figures, PC_GIB)
TEST(over_the_cap, PC_GIB)
TEST(small_after_all_else, PC_GIB)
TEST(trim, PC_GIB)
TEST(idle_rule, PC_GIB)
TEST(rhythm, PC_GIB)
TEST(sibling_wants, 512 * PC_MIB)
TEST(large, 8 * PC_GIB)
TEST(slabs_then_large, 8 * PC_GIB)
TEST(direct, PC_GIB)
TEST(managed, PC_GIB)

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "puppet") == 0)
        return puppet_main();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_size),
        cmocka_unit_test(arguments),
        cmocka_unit_test(figures),
        cmocka_unit_test(over_the_cap),
        cmocka_unit_test(small_after_all_else),
        cmocka_unit_test(trim),
        cmocka_unit_test(idle_rule),
        cmocka_unit_test(rhythm),
        cmocka_unit_test(sibling_wants),
        cmocka_unit_test(large),
        cmocka_unit_test(slabs_then_large),
        cmocka_unit_test(direct),
        cmocka_unit_test(managed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
