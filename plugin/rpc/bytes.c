#include <stdlib.h>
#include <string.h>

#include "plugin/rpc/internal.h"

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

/* Length of the UTF-8 sequence at p, or 0: overlong forms, surrogates, what is beyond U+10FFFF, and NUL are refused. */
static size_t sequence(const uint8_t *p, size_t left)
{
    static const struct {
        uint8_t first, last, low, high; /* of the lead byte, and of the byte behind it */
        uint8_t length;
    } forms[] = {
        {0x01, 0x7f, 0, 0, 1},       {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3},
        {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3},
        {0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4},
    };
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        if (p[0] < forms[i].first || p[0] > forms[i].last)
            continue;
        if (forms[i].length > left || (forms[i].length > 1 && (p[1] < forms[i].low || p[1] > forms[i].high)))
            return 0;
        for (size_t k = 2; k < forms[i].length; k++)
            if ((p[k] & 0xc0) != 0x80)
                return 0;
        return forms[i].length;
    }
    return 0;
}

static bool text_ok(const uint8_t *p, size_t length)
{
    for (size_t i = 0; i < length;) {
        size_t n = sequence(p + i, length - i);
        if (n == 0)
            return false;
        i += n;
    }
    return true;
}

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
        return text_ok(p, length);
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
