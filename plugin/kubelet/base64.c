#include "plugin/kubelet/base64.h"

static int value(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    if (c == '+')
        return 62;
    return c == '/' ? 63 : -1;
}

/* Three bytes of four characters, the last `padded` of which are "=". */
static bool decode_four(const char *text, unsigned padded, uint32_t *out)
{
    uint32_t bits = 0;
    for (unsigned i = 0; i < 4 - padded; i++) {
        int v = value(text[i]);
        if (v < 0)
            return false;
        bits |= (uint32_t)v << (18 - 6 * i);
    }
    /* Bits below the last whole byte belong to nothing, and are 0 where an encoder wrote them. */
    if ((padded == 1 && (bits & 0xff) != 0) || (padded == 2 && (bits & 0xffff) != 0))
        return false;
    *out = bits;
    return true;
}

static unsigned padding(const char *text, size_t length)
{
    if (length == 0 || text[length - 1] != '=')
        return 0;
    return text[length - 2] == '=' ? 2 : 1;
}

bool pc_base64_decode(const char *text, size_t text_length, uint8_t *out, size_t *length)
{
    size_t n = 0;
    if (text_length % 4 != 0)
        return false;
    unsigned padded = padding(text, text_length);
    for (size_t at = 0; at < text_length; at += 4) {
        uint32_t bits;
        unsigned here = at + 4 == text_length ? padded : 0;
        if (!decode_four(text + at, here, &bits))
            return false;
        for (unsigned i = 0; i < 3 - here; i++)
            out[n++] = (uint8_t)(bits >> (16 - 8 * i));
    }
    *length = n;
    return true;
}
