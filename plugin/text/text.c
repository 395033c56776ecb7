#include "plugin/text/text.h"

#include <string.h>

/* Bytes of the sequence that begins with lead, 0 where none does; *least is the smallest code point that needs them. */
static size_t sequence(unsigned char lead, uint32_t *code, uint32_t *least)
{
    if (lead < 0x80) {
        *code = lead;
        *least = 0;
        return 1;
    }
    if (lead >= 0xc2 && lead < 0xe0) {
        *code = lead & 0x1fu;
        *least = 0x80;
        return 2;
    }
    if (lead >= 0xe0 && lead < 0xf0) {
        *code = lead & 0x0fu;
        *least = 0x800;
        return 3;
    }
    if (lead >= 0xf0 && lead < 0xf5) {
        *code = lead & 0x07u;
        *least = 0x10000;
        return 4;
    }
    return 0;
}

static bool surrogate(uint32_t code)
{
    return code >= 0xd800 && code < 0xe000;
}

/* Bytes of the character at `at`, of which left are there; 0: it is none. */
static size_t take(const uint8_t *at, size_t left, uint32_t *code)
{
    uint32_t least;
    size_t length = sequence(*at, code, &least);
    if (length == 0 || length > left)
        return 0;
    for (size_t i = 1; i < length; i++) {
        if ((at[i] & 0xc0) != 0x80)
            return 0;
        *code = *code << 6 | (at[i] & 0x3fu);
    }
    return *code < least || *code > 0x10ffff || surrogate(*code) ? 0 : length;
}

static bool is_nul(uint32_t code)
{
    return code == 0;
}

static bool is_control(uint32_t code)
{
    return code < 0x20 || (code >= 0x7f && code < 0xa0);
}

static bool all(const uint8_t *at, size_t left, bool (*refused)(uint32_t code))
{
    while (left > 0) {
        uint32_t code;
        size_t length = take(at, left, &code);
        if (length == 0 || refused(code))
            return false;
        at += length;
        left -= length;
    }
    return true;
}

bool pc_utf8_ok(const uint8_t *bytes, size_t length)
{
    return all(bytes, length, is_nul);
}

bool pc_text_ok(const char *text, size_t max)
{
    size_t length = text != NULL ? strnlen(text, max + 1) : 0;
    return length > 0 && length <= max && all((const uint8_t *)text, length, is_control);
}
