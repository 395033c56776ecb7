#include "alloc/base/bytes.h"

#include <stdio.h>
#include <string.h>

struct suffix {
    const char *name;
    uint64_t factor;
};

static const struct suffix suffixes[] = {
    {"", 1},
    {"k", 1000ull},
    {"M", 1000ull * 1000},
    {"G", 1000ull * 1000 * 1000},
    {"T", 1000ull * 1000 * 1000 * 1000},
    {"P", 1000ull * 1000 * 1000 * 1000 * 1000},
    {"E", 1000ull * 1000 * 1000 * 1000 * 1000 * 1000},
    {"Ki", 1ull << 10},
    {"Mi", 1ull << 20},
    {"Gi", 1ull << 30},
    {"Ti", 1ull << 40},
    {"Pi", 1ull << 50},
    {"Ei", 1ull << 60},
};

static const struct suffix *find_suffix(const char *name)
{
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++)
        if (strcmp(name, suffixes[i].name) == 0)
            return &suffixes[i];
    return NULL;
}

static enum pc_status refuse(const char *what, const char *text, const char *why, struct pc_error *err)
{
    return pc_error_set(err, PC_ERR_INVALID, 0, "%s \"%.64s\" %s; write a Kubernetes quantity such as 4Gi or 1500Mi",
                        what, text, why);
}

/* Reads digits at *p into *out as a whole number and counts them; false above 10^30. Zeros in front cost nothing. */
static bool read_digits(const char **p, unsigned __int128 *out, unsigned *count)
{
    const unsigned __int128 limit = (unsigned __int128)1000000000000000 * 100000000000000; /* 10^29 */
    *out = 0;
    *count = 0;
    while (**p >= '0' && **p <= '9') {
        if (*out >= limit)
            return false;
        *out = *out * 10 + (unsigned)(**p - '0');
        (*p)++;
        (*count)++;
    }
    return true;
}

enum pc_status pc_bytes_parse(const char *what, const char *text, uint64_t *out, struct pc_error *err)
{
    const char *p = text;
    unsigned __int128 whole, fraction = 0;
    unsigned whole_digits, fraction_digits = 0;

    if (*p == '-')
        return refuse(what, text, "is negative", err);
    if (!read_digits(&p, &whole, &whole_digits))
        return refuse(what, text, "is too large", err);
    if (*p == '.') {
        p++;
        if (!read_digits(&p, &fraction, &fraction_digits))
            return refuse(what, text, "has too many decimals", err);
    }
    if (whole_digits + fraction_digits == 0)
        return refuse(what, text, "is not an amount of memory", err);
    const struct suffix *suffix = find_suffix(p);
    if (suffix == NULL)
        return refuse(what, text, "has a suffix that is not one of k M G T P E Ki Mi Gi Ti Pi Ei", err);
    if (whole > UINT64_MAX)
        return refuse(what, text, "is too large", err);
    unsigned __int128 bytes = whole * suffix->factor;
    if (fraction != 0) {
        unsigned __int128 scale = 1;
        while (fraction % 10 == 0) { /* 1.500 is 1.5 */
            fraction /= 10;
            fraction_digits--;
        }
        if (fraction_digits > 18)
            return refuse(what, text, "is not a whole number of bytes", err);
        for (unsigned i = 0; i < fraction_digits; i++)
            scale *= 10;
        unsigned __int128 part = fraction * suffix->factor;
        if (part % scale != 0)
            return refuse(what, text, "is not a whole number of bytes", err);
        bytes += part / scale;
    }
    if (bytes > UINT64_MAX)
        return refuse(what, text, "is too large", err);
    *out = (uint64_t)bytes;
    return PC_OK;
}

char *pc_bytes_format(uint64_t bytes, char buf[PC_BYTES_TEXT])
{
    static const char *const names[] = {"", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"};
    unsigned i = 0;
    while (bytes != 0 && bytes % 1024 == 0 && i < 6) {
        bytes /= 1024;
        i++;
    }
    snprintf(buf, PC_BYTES_TEXT, "%llu%s", (unsigned long long)bytes, names[i]);
    return buf;
}
