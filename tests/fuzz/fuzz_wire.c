/* Any packet into the unpacking of both protocols, through a real socket: a message in the arena, or a protocol error.
 */
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/wire.h"
#include "tests/fuzz/fuzz.h"

static struct pc_arena arena;

static void receive(const ProtobufCMessageDescriptor *type, const uint8_t *data, size_t size)
{
    int ends[2];
    ProtobufCMessage *message = NULL;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return;
    if (send(ends[0], data, size, MSG_DONTWAIT) == (ssize_t)size) {
        enum pc_status status = pc_wire_receive(ends[1], type, &arena, &message, NULL, NULL, NULL);
        if (status != PC_OK && status != PC_ERR_PROTOCOL)
            abort();
        if (status == PC_OK && (message == NULL || message->descriptor != type))
            abort();
    }
    close(ends[0]);
    close(ends[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0 || size > PC_WIRE_PACKET_MAX)
        return 0;
    receive(&poolcap__request__descriptor, data, size);
    receive(&poolcap__reply__descriptor, data, size);
    receive(&poolcap__admin_request__descriptor, data, size);
    receive(&poolcap__admin_reply__descriptor, data, size);
    return 0;
}
