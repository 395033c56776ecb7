/* A poolcapd of our own in a temporary run directory, and what the card holds. For the demo and the kill storm. */
#ifndef PC_TESTS_NODE_H
#define PC_TESTS_NODE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "alloc/driver/driver.h"

struct node {
    char dir[128]; /* run directory */
    char config[160];
    char build[256]; /* where bin/poolcapd is */
    bool simulated;
    pid_t daemon;
    struct pc_nvml nvml;
    pc_nvml_device device;
    char gpu_name[96];
    char driver[96];
    uint64_t total;
};

/* What card-wide figures may differ by: the driver's own bookkeeping beside the pools (seen, H200). */
#define NODE_SLACK (64ull * 1024 * 1024)

/* Finds the GPU (the simulated one where there is no other), makes the run directory. Exits with a message on failure.
 */
void node_open(struct node *n);

/* Writes the configuration. */
void node_configure(struct node *n, const char *grants_yaml);

/* Starts poolcapd and waits until it serves. */
void node_start(struct node *n);
void node_kill(struct node *n);  /* SIGKILL */
void node_close(struct node *n); /* stops poolcapd, removes the run directory */

/* Bytes in use on the card now (NVML, without the driver's reserve). */
uint64_t node_used(struct node *n);
/* Waits until at most `bytes` (with slack) are in use, 5 s at most; returns the last reading. */
uint64_t node_used_falls_to(struct node *n, uint64_t bytes);
/* Bytes that NVML shows for a process; 0 where it has none. */
uint64_t node_process_bytes(struct node *n, pid_t pid);

void node_socket(const struct node *n, const char *grant, char out[256]);

#endif
