/*
 * Any file into the kubelet's checkpoint: as it is, and as the cached answer (base64) of an otherwise good one. It is
 * read or refused with a text; what is read is text, sorted, and nothing stays allocated.
 */
#include <stdlib.h>
#include <string.h>

#include "plugin/kubelet/pod_resources.h"
#include "plugin/text/text.h"
#include "tests/fuzz/fuzz.h"

#define RESOURCE "poolcap.dev/gpu-memory"

enum { SIZE_MAX_IN = 4096 };

static void must(bool holds)
{
    if (!holds)
        abort();
}

static void check_claim(const struct pc_claim *claim)
{
    must(claim->count > 0 && pc_text_ok(claim->pod_uid, 253) && pc_text_ok(claim->container, 253));
    for (size_t i = 0; i < claim->count; i++)
        must(pc_text_ok(claim->ids[i], 1024) && (i == 0 || strcmp(claim->ids[i - 1], claim->ids[i]) < 0));
    for (size_t i = 0; i < claim->mounts; i++)
        must(pc_text_ok(claim->mount_host_paths[i], 4095));
}

static enum pc_status parse(const char *text, size_t length, size_t *claimed)
{
    struct pc_claims *claims = NULL;
    struct pc_error err = {.text = ""};
    size_t skipped = 4711;
    enum pc_status status = pc_checkpoint_parse(text, length, RESOURCE, &claims, &skipped, &err);
    if (status != PC_OK) {
        must(status == PC_ERR_PROTOCOL && err.status == status && err.text[0] != '\0');
        must(claims == NULL && skipped == 4711);
        return status;
    }
    for (size_t i = 0; i < claims->count; i++)
        check_claim(&claims->claim[i]);
    *claimed = claims->count + skipped;
    pc_claims_free(claims);
    return PC_OK;
}

static char *append(char *at, const char *text)
{
    size_t length = strlen(text);
    memcpy(at, text, length);
    return at + length;
}

static char *append_base64(char *at, const uint8_t *data, size_t size)
{
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < size; i += 3) {
        size_t here = size - i < 3 ? size - i : 3;
        uint32_t bits = (uint32_t)data[i] << 16;
        bits |= here > 1 ? (uint32_t)data[i + 1] << 8 : 0;
        bits |= here > 2 ? data[i + 2] : 0u;
        for (size_t c = 0; c < 4; c++)
            *at++ = c <= here ? alphabet[bits >> (18 - 6 * c) & 63] : '=';
    }
    return at;
}

static void parse_answer(const uint8_t *data, size_t size)
{
    char text[2 * SIZE_MAX_IN], *at = text;
    size_t claimed = 0;
    at = append(
        at, "{\"Data\":{\"PodDeviceEntries\":[{\"PodUID\":\"u\",\"ContainerName\":\"c\",\"ResourceName\":\"" RESOURCE
            "\",\"DeviceIDs\":{\"-1\":[\"a\"]},\"AllocResp\":\"");
    at = append_base64(at, data, size);
    at = append(at, "\"}]},\"Checksum\":1}");
    must(parse(text, (size_t)(at - text), &claimed) == PC_OK);
    must(claimed == 1); /* taken or left out, never neither */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t claimed;
    parse((const char *)data, size, &claimed);
    if (size <= SIZE_MAX_IN)
        parse_answer(data, size);
    return 0;
}
