/*
 * What the shim's integration tests share: each test runs in a child of its own, with a poolcapd of its own, and uses
 * the library in that child. CUDA refuses children forked after cuInit, so cmocka's process never touches the driver.
 */
#ifndef PC_TESTS_SHIM_HARNESS_H
#define PC_TESTS_SHIM_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "alloc/base/bytes.h"
#include "alloc/driver/driver.h"
#include "alloc/shim/poolcap.h"
#include "tests/demo/node.h"

extern struct node node; /* of this child */

/* Runs body in a child with a poolcapd that serves the grant "a" with `memory` bytes; fails the test when it fails. */
void run_on_node(void (*body)(void), uint64_t memory);

/* The same with two simulated GPUs, both granted, or only the first. */
void run_on_two_gpus(void (*body)(void), int granted);

/* The same without poolcapd and with no socket anywhere. */
void run_alone(void (*body)(void));

/* Ends the child, and its poolcapd, with a line that says where. Stands for cmocka's assertions there. */
void check_failed(const char *file, int line, const char *what) __attribute__((noreturn));
#define CHECK(what)                                  \
    do {                                             \
        if (!(what))                                 \
            check_failed(__FILE__, __LINE__, #what); \
    } while (0)
#define CHECK_OK(call) CHECK((call) == POOLCAP_OK)

/* An allocation that has to succeed. */
poolcap_ptr take(size_t bytes, poolcap_stream stream);
void give(poolcap_ptr ptr, poolcap_stream stream);

/* Device memory, by copies of the driver: fills it, or says whether all of it has this byte. */
void fill(poolcap_ptr ptr, size_t bytes, unsigned char with);
int holds(poolcap_ptr ptr, size_t bytes, unsigned char what);

poolcap_memory info(void);
void nap_ms(unsigned ms);

/* The table that the library uses. */
const struct pc_cuda *driver(void);

/* Starts this same program again with `argument` and POOLCAP_SOCKET as it is; main() hands it to the test. Returns its
 * exit status, or minus the signal. */
int run_self(const char *argument);

#endif
