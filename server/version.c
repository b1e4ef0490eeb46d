#include "version.h"

#include "http.h"
#include "loop.h"

#include <cjson/cJSON.h>
#include <gnutls/gnutls.h>
#include <inferd/backend.h>
#include <oniguruma.h>
#include <string.h>
#include <utf8proc.h>

#ifdef __clang__
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

const char *version_number(void) {
    return INFERD_VERSION;
}

/* The variant that the CPU backend chooses on this machine; "" if there is no such backend. */
static void cpu_variant(struct buf *out) {
    const struct backend_ops *ops;
    struct backend *b;
    struct error err;
    const struct backend_config config = {.threads = 1, .max_rows = 1};
    if (backend_find("cpu", NULL, &ops, &err) == 0 && ops->open(&config, &b, &err) == 0) {
        struct backend_info info;
        ops->info(b, &info);
        buf_puts(out, info.variant);
        ops->close(b);
    }
}

void version_describe(bool json, const char *backend, struct buf *out) {
    const struct {
        const char *name, *version;
    } libraries[] = {
        {"libmicrohttpd", http_library_version()}, {"libuv", loop_library_version()}, {"cjson", cJSON_Version()},
        {"gnutls", gnutls_check_version(NULL)},    {"oniguruma", onig_version()},     {"utf8proc", utf8proc_version()},
    };
    const size_t n = sizeof libraries / sizeof libraries[0];
    struct buf variant = BUF_INIT;
    cpu_variant(&variant);
    if (json) {
        buf_printf(out, "{\"version\": \"%s\", \"compiler\": \"%s\", \"cpu_variant\": ", INFERD_VERSION, COMPILER);
        buf_json_string(out, variant.data, variant.len);
        if (backend) {
            bool computes = strcmp(backend, "null") != 0;
            buf_printf(out, ", \"backend\": \"%s\", \"computes\": %s", backend, computes ? "true" : "false");
        }
        buf_puts(out, ", \"libraries\": {");
        for (size_t i = 0; i < n; i++) {
            buf_printf(out, "%s\"%s\": ", i ? ", " : "", libraries[i].name);
            buf_json_string(out, libraries[i].version, strlen(libraries[i].version));
        }
        buf_puts(out, "}}\n");
    } else {
        buf_printf(out, "inferd %s\n%-14s %s\n%-14s %s\n", INFERD_VERSION, "compiler", COMPILER, "cpu variant",
                   variant.len > 0 ? variant.data : "none");
        for (size_t i = 0; i < n; i++) {
            buf_printf(out, "%-14s %s\n", libraries[i].name, libraries[i].version);
        }
    }
    out->failed |= variant.failed;
    buf_free(&variant);
}
