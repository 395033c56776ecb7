#include "plugin/kubelet/text.h"

#include <stdint.h>
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

static bool control(uint32_t code)
{
    return code < 0x20 || (code >= 0x7f && code < 0xa0);
}

static bool surrogate(uint32_t code)
{
    return code >= 0xd800 && code < 0xe000;
}

bool pc_text_ok(const char *text, size_t max)
{
    if (text == NULL || text[0] == '\0' || strnlen(text, max + 1) > max)
        return false;
    for (const unsigned char *at = (const unsigned char *)text; *at != '\0';) {
        uint32_t code, least;
        size_t length = sequence(*at, &code, &least);
        if (length == 0)
            return false;
        for (size_t i = 1; i < length; i++) {
            if ((at[i] & 0xc0) != 0x80) /* the end of the text too */
                return false;
            code = code << 6 | (at[i] & 0x3fu);
        }
        if (code < least || code > 0x10ffff || surrogate(code) || control(code))
            return false;
        at += length;
    }
    return true;
}
