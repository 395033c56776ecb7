/* Any file into poolcapd's configuration: it is read or refused with its place, and nothing stays allocated. */
#include <stdlib.h>
#include <string.h>

#include "alloc/broker/config.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pc_config config;
    struct pc_error err = {.status = PC_OK};
    if (pc_config_parse("f.yaml", (const char *)data, size, &config, &err) == PC_OK) {
        for (unsigned i = 0; i < config.grants; i++)
            if (config.grant[i].shares == 0 || !pc_config_name_ok(config.grant[i].name))
                abort();
        pc_config_clear(&config);
    } else if (err.text[0] == '\0' || config.grant != NULL) {
        abort();
    }
    return 0;
}
