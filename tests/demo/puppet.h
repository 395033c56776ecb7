/*
 * A tenant process that obeys: it links libpoolcap as any program would, reads a command a line from its stdin and
 * answers a line. Shared by the demo, the kill storm and the integration tests.
 *
 * Commands (sizes in bytes):
 *   alloc N            one allocation                          -> ok ADDRESS | oom TEXT | error TEXT
 *   fill N             allocations of N until refused          -> ok COUNT, the refusal's text follows as "why TEXT"
 *   free               frees all it holds and gives it back    -> ok BYTES
 *   write V            fills all it holds with the byte V      -> ok BYTES
 *   check V            reads all of it                         -> ok BYTES | bad OFFSET
 *   nonzero            counts bytes that are not 0 in all it holds -> ok COUNT
 *   info               total free charged held live            -> ok ...
 *   describe           poolcap_describe                        -> ok TEXT
 */
#ifndef PC_TESTS_PUPPET_H
#define PC_TESTS_PUPPET_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct puppet {
    pid_t pid;
    int in, out; /* its stdin and stdout */
    char answer[1024];
};

/* The child's side: what main() calls when its first argument is "puppet". Returns the exit status. */
int puppet_main(void);

/* Starts this same program as a puppet whose shim uses `socket`. Exits with a message on failure. */
void puppet_start(struct puppet *p, const char *socket);

/* Sends one command and waits for the answer, which stays in p->answer. True when it begins with "ok". */
bool puppet_say(struct puppet *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The n-th number (from 0) of the answer after "ok". */
uint64_t puppet_number(const struct puppet *p, int n);

/* Ends it: by SIGKILL, or by closing its stdin and waiting. */
void puppet_kill(struct puppet *p);
void puppet_end(struct puppet *p);

#endif
