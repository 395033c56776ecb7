#include <stdlib.h>
#include <string.h>

#include "plugin/rpc/internal.h"
#include "plugin/text/text.h"

enum { DEPTH_MAX = 16, WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

grpc_byte_buffer *pc_rpc_pack(const ProtobufCMessage *message)
{
    size_t length = protobuf_c_message_get_packed_size(message);
    grpc_slice slice = grpc_slice_malloc(length);
    protobuf_c_message_pack(message, GRPC_SLICE_START_PTR(slice));
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return buffer;
}

ProtobufCMessage *pc_rpc_unpack(grpc_byte_buffer *buffer, const ProtobufCMessageDescriptor *type)
{
    grpc_byte_buffer_reader reader;
    ProtobufCMessage *message = NULL;
    if (buffer == NULL || grpc_byte_buffer_reader_init(&reader, buffer) == 0)
        return NULL;
    grpc_slice all = grpc_byte_buffer_reader_readall(&reader);
    const uint8_t *bytes = GRPC_SLICE_START_PTR(all);
    size_t length = GRPC_SLICE_LENGTH(all);
    if (pc_rpc_text_ok(type, bytes, length))
        message = protobuf_c_message_unpack(type, NULL, length, bytes);
    grpc_slice_unref(all);
    grpc_byte_buffer_reader_destroy(&reader);
    return message;
}

/* ---- text ---- */

static bool take_varint(const uint8_t **p, const uint8_t *end, uint64_t *out)
{
    *out = 0;
    for (unsigned shift = 0; *p < end && shift < 64; shift += 7) {
        uint8_t byte = *(*p)++;
        *out |= (uint64_t)(byte & 0x7f) << shift;
        if ((byte & 0x80) == 0)
            return true;
    }
    return false;
}

static bool walk(const ProtobufCMessageDescriptor *type, const uint8_t *p, size_t length, unsigned depth);

static bool bytes_ok(const ProtobufCMessageDescriptor *type, uint64_t number, const uint8_t *p, size_t length,
                     unsigned depth)
{
    const ProtobufCFieldDescriptor *field =
        number <= UINT32_MAX ? protobuf_c_message_descriptor_get_field(type, (unsigned)number) : NULL;
    if (field == NULL)
        return true; /* not ours: it is never looked at */
    if (field->type == PROTOBUF_C_TYPE_STRING)
        return pc_utf8_ok(p, length);
    if (field->type == PROTOBUF_C_TYPE_MESSAGE)
        return walk(field->descriptor, p, length, depth + 1);
    return true;
}

static bool walk(const ProtobufCMessageDescriptor *type, const uint8_t *p, size_t length, unsigned depth)
{
    const uint8_t *end = p + length;
    uint64_t key, value;
    if (depth > DEPTH_MAX)
        return false;
    while (p < end) {
        if (!take_varint(&p, end, &key))
            return false;
        uint64_t skip = 0;
        switch (key & 7) {
        case WIRE_VARINT:
            if (!take_varint(&p, end, &value))
                return false;
            break;
        case WIRE_64:
            skip = 8;
            break;
        case WIRE_32:
            skip = 4;
            break;
        case WIRE_BYTES:
            if (!take_varint(&p, end, &skip) || skip > (uint64_t)(end - p) ||
                !bytes_ok(type, key >> 3, p, (size_t)skip, depth))
                return false;
            break;
        default:
            return false;
        }
        if (skip > (uint64_t)(end - p))
            return false;
        p += skip;
    }
    return true;
}

bool pc_rpc_text_ok(const ProtobufCMessageDescriptor *type, const uint8_t *bytes, size_t length)
{
    return walk(type, bytes, length, 0);
}
