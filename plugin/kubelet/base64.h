/* Base64 as Go's encoding/json writes byte strings: the standard alphabet, padded, nothing between. */
#ifndef PC_PLUGIN_KUBELET_BASE64_H
#define PC_PLUGIN_KUBELET_BASE64_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes that text_length characters can give at most: the room that pc_base64_decode needs. */
static inline size_t pc_base64_room(size_t text_length)
{
    return text_length / 4 * 3;
}

/* False for anything that an encoder would not have written; *length is then untouched. */
bool pc_base64_decode(const char *text, size_t text_length, uint8_t *out, size_t *length);

#endif
