#include "alloc/broker/ctl_print.h"

#include <stdint.h>
#include <stdio.h>

#include "alloc/base/bytes.h"
#include "alloc/base/cleanup.h"

/* "3.2Gi": short, for the table; the JSON has exact bytes. */
static const char *human(uint64_t bytes, char buf[PC_BYTES_TEXT])
{
    static const char *const units[] = {"", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"};
    double value = (double)bytes;
    unsigned i = 0;
    while (value >= 1024 && i < 6) {
        value /= 1024;
        i++;
    }
    snprintf(buf, PC_BYTES_TEXT, value == (double)(uint64_t)value ? "%.0f%s" : "%.1f%s", value, units[i]);
    return buf;
}

static void json_string(const char *text)
{
    putchar('"');
    for (const unsigned char *p = (const unsigned char *)text; *p != 0; p++) {
        if (*p == '"' || *p == '\\')
            printf("\\%c", *p);
        else if (*p < 0x20)
            printf("\\u%04x", *p);
        else
            putchar(*p);
    }
    putchar('"');
}

struct figure {
    const char *name;
    uint64_t value;
};

static void json_figures(const struct figure *figure, size_t count)
{
    for (size_t i = 0; i < count; i++)
        printf(",\"%s\":%llu", figure[i].name, (unsigned long long)figure[i].value);
}

static void json_numbers(const char *name, const uint64_t *number, size_t count)
{
    printf(",\"%s\":[", name);
    for (size_t i = 0; i < count; i++)
        printf("%s%llu", i > 0 ? "," : "", (unsigned long long)number[i]);
    putchar(']');
}

static void json_gpu(const Poolcap__AdminGpu *g, bool first)
{
    const struct figure figures[] = {
        {"total", g->total},
        {"capacity", g->capacity},
        {"granted", g->granted},
        {"charged", g->charged},
        {"poolReserved", g->pool_reserved},
        {"contextBytes", g->context_bytes},
        {"cardUsed", g->card_used},
        {"brokenPromises", g->broken_promises},
        {"failedFrees", g->failed_frees},
        {"latencySumNs", g->latency_sum_ns},
    };
    printf("%s{\"uuid\":", first ? "" : ",");
    json_string(g->uuid);
    printf(",\"name\":");
    json_string(g->name);
    json_figures(figures, PC_ARRAY_LEN(figures));
    json_numbers("latencyBoundsNs", g->latency_bounds_ns, g->n_latency_bounds_ns);
    json_numbers("latencyBuckets", g->latency_buckets, g->n_latency_buckets);
    printf(",\"fault\":");
    json_string(g->fault);
    putchar('}');
}

static void json_grant_gpu(const Poolcap__AdminGrantGpu *g, bool first)
{
    printf("%s{\"uuid\":", first ? "" : ",");
    json_string(g->uuid);
    const struct figure figures[] = {
        {"granted", g->granted},
        {"cap", g->cap},
        {"charged", g->charged},
        {"tenantCap", g->tenant_cap},
        {"tenantCharged", g->tenant_charged},
        {"poolReserved", g->pool_reserved},
        {"poolUsed", g->pool_used},
        {"large", g->large},
        {"direct", g->direct},
        {"context", g->context},
        {"pending", g->pending},
        {"inherited", g->inherited},
        {"peak", g->peak},
        {"refused", g->refused},
        {"outside", g->outside},
        {"shared", g->shared},
    };
    json_figures(figures, PC_ARRAY_LEN(figures));
    putchar('}');
}

static void json_grant(const Poolcap__AdminGrant *g, bool first)
{
    printf("%s{\"name\":", first ? "" : ",");
    json_string(g->name);
    printf(",\"tenant\":");
    json_string(g->tenant);
    printf(",\"podUid\":");
    json_string(g->pod_uid);
    printf(",\"socket\":");
    json_string(g->socket);
    printf(",\"sessions\":%u,\"dropping\":%s,\"gpus\":[", g->sessions, g->dropping ? "true" : "false");
    for (size_t i = 0; i < g->n_gpus; i++)
        json_grant_gpu(g->gpus[i], i == 0);
    printf("]}");
}

static void table_gpus(const Poolcap__AdminListReply *list)
{
    char a[PC_BYTES_TEXT], b[PC_BYTES_TEXT], c[PC_BYTES_TEXT], d[PC_BYTES_TEXT], e[PC_BYTES_TEXT];
    printf("%-42s %-24s %10s %10s %10s %10s %10s  %s\n", "GPU", "NAME", "CAPACITY", "GRANTED", "CHARGED", "POOLS",
           "CARD USED", "STATE");
    for (size_t i = 0; i < list->n_gpus; i++) {
        const Poolcap__AdminGpu *g = list->gpus[i];
        printf("%-42s %-24.24s %10s %10s %10s %10s %10s  %s\n", g->uuid, g->name, human(g->capacity, a),
               human(g->granted, b), human(g->charged, c), human(g->pool_reserved, d), human(g->card_used, e),
               g->fault[0] != '\0' ? g->fault : "ok");
    }
}

static void table_grant(const Poolcap__AdminGrant *g)
{
    char a[PC_BYTES_TEXT], b[PC_BYTES_TEXT], c[PC_BYTES_TEXT], d[PC_BYTES_TEXT], e[PC_BYTES_TEXT], f[PC_BYTES_TEXT];
    for (size_t i = 0; i < g->n_gpus; i++) {
        const Poolcap__AdminGrantGpu *s = g->gpus[i];
        printf("%-24.24s %-16.16s %-12.12s %8s %8s %8s %8s %8s %8s %8llu %8u%s\n", g->name, g->tenant, s->uuid,
               human(s->cap, a), human(s->shared, b), human(s->charged, c), human(s->pool_reserved, d),
               human(s->large + s->direct + s->context, e), human(s->pending + s->inherited, f),
               (unsigned long long)s->refused, g->sessions, g->dropping ? "  dropping" : "");
    }
}

void pc_ctl_print_head(bool json, const Poolcap__AdminListReply *list)
{
    if (!json) {
        table_gpus(list);
        printf("\n%-24s %-16s %-12s %8s %8s %8s %8s %8s %8s %8s %8s\n", "GRANT", "TENANT", "GPU", "CAP", "SHARED",
               "CHARGED", "POOL", "PROCESS", "WAITING", "REFUSED", "SESSIONS");
        return;
    }
    printf("{\"server\":");
    json_string(list->server);
    printf(",\"epoch\":%llu,\"gpus\":[", (unsigned long long)list->epoch);
    for (size_t i = 0; i < list->n_gpus; i++)
        json_gpu(list->gpus[i], i == 0);
    printf("],\"grants\":[");
}

void pc_ctl_print_grant(bool json, const Poolcap__AdminGrant *grant, bool first)
{
    if (json)
        json_grant(grant, first);
    else
        table_grant(grant);
}

void pc_ctl_print_end(bool json)
{
    if (json)
        printf("]}\n");
}
