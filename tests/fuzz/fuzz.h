/* What every harness has: libFuzzer's entry, and a reader that turns its bytes into choices. */
#ifndef PC_TESTS_FUZZ_H
#define PC_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct fuzz_input {
    const uint8_t *data;
    size_t left;
};

/* The next byte; 0 when there is none left. */
static inline uint8_t fuzz_byte(struct fuzz_input *in)
{
    if (in->left == 0)
        return 0;
    in->left--;
    return *in->data++;
}

static inline uint64_t fuzz_u64(struct fuzz_input *in)
{
    uint64_t value = 0;
    for (int i = 0; i < 8; i++)
        value = value << 8 | fuzz_byte(in);
    return value;
}

#endif
