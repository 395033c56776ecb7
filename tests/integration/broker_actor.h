/*
 * A tenant process that obeys, and speaks poolcapd's protocol by itself, without the shim: it can do what the shim
 * never would. Reads a command a line from its stdin and answers a line: "ok ..." or "err STATUS TEXT".
 *
 *   connect SOCKET          connects and says hello               -> ok EPOCH GPUS
 *   attach GPU              books a context, then makes it        -> ok BYTES
 *   book GPU                only books it                         -> ok BYTES
 *   context GPU             only makes the context                -> ok
 *   alloc GPU BYTES         a block, imported                     -> ok BLOCK BYTES GENERATION NEW
 *   large GPU BYTES         large memory, mapped                  -> ok BLOCK BYTES 0 0
 *   take GPU BYTES          a block whose import is left out      -> as alloc
 *   free BLOCK              ends the import, then says so         -> ok
 *   lie BLOCK               says so only                          -> ok
 *   drop GENERATION         destroys the imported pool, says so   -> ok
 *   liedrop GENERATION      says so only                          -> ok
 *   write BLOCK BYTE        fills the whole of it                 -> ok
 *   check BLOCK BYTE        reads the whole of it                 -> ok, or bad OFFSET VALUE
 *   reserve GPU BYTES, release GPU BYTES                          -> ok
 *   direct BYTES, undirect  cuMemAlloc beside poolcap, cuMemFree  -> ok
 *   info GPU                -> ok cap charged tenant_charged reserved used large direct context pending inherited
 * sessions page GPU                -> ok cap charged room wanted alive raw BYTES               sends that many bytes of
 * 0xff         -> ok, or how the session ended fds                     sends an Info with descriptors        -> ok
 *   twice                   sends two requests at once            -> ok ANSWERS
 *   mapwrite                tries to map the page writable        -> ok, or err 0 refused
 *   close                   closes the socket                     -> ok
 *   fork                    forks a child that sleeps             -> ok PID
 */
#ifndef PC_TESTS_BROKER_ACTOR_H
#define PC_TESTS_BROKER_ACTOR_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct actor {
    pid_t pid;
    int in, out;
    char answer[1200];
};

/* The child's side: what main() calls when its first argument is "actor". */
int actor_main(void);

/* Starts this same program as an actor. */
void actor_start(struct actor *a);
/* Sends a command and waits for the answer; true when it begins with "ok". */
bool actor_say(struct actor *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Sends a command without waiting; actor_hear takes the answer. */
void actor_tell(struct actor *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool actor_hear(struct actor *a);
/* The n-th number (from 0) behind "ok" or "err". */
uint64_t actor_number(const struct actor *a, int n);
void actor_kill(struct actor *a); /* SIGKILL, and waited for */
void actor_end(struct actor *a);  /* by the end of its stdin */

#endif
