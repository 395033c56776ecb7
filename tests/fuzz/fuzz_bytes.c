/* Any text into pc_bytes_parse: it answers or refuses with a text, and what it answers survives format and parse. */
#include <stdlib.h>
#include <string.h>

#include "alloc/base/bytes.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[256], formatted[PC_BYTES_TEXT];
    uint64_t bytes = 4711, again;
    struct pc_error err = {0};
    if (size >= sizeof text)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    if (pc_bytes_parse("value", text, &bytes, &err) != PC_OK) {
        if (bytes != 4711 || err.status != PC_ERR_INVALID || err.text[0] == '\0')
            abort();
        return 0;
    }
    if (pc_bytes_parse("value", pc_bytes_format(bytes, formatted), &again, &err) != PC_OK || again != bytes)
        abort();
    return 0;
}
