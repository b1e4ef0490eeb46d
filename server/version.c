#include "version.h"

#include "http.h"
#include "loop.h"

#include <cjson/cJSON.h>
#include <gnutls/gnutls.h>
#include <inferd/backend.h>
#include <link.h>
#include <oniguruma.h>
#include <pthread.h>
#include <stdio.h>
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

const char *version_compiler(void) {
    return COMPILER;
}

static char build_id[2 * 64 + 1];

/* The notes of one loaded segment: owner, description, type (elf(5)). */
static void read_notes(const char *at, size_t len) {
    while (len >= sizeof(ElfW(Nhdr))) {
        ElfW(Nhdr) note;
        memcpy(&note, at, sizeof note);
        size_t name = ((size_t)note.n_namesz + 3) & ~(size_t)3, desc = ((size_t)note.n_descsz + 3) & ~(size_t)3;
        if (name > len - sizeof note || desc > len - sizeof note - name) {
            return;
        }
        const unsigned char *id = (const unsigned char *)at + sizeof note + name;
        if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && memcmp(at + sizeof note, "GNU", 4) == 0) {
            for (size_t i = 0; i < note.n_descsz && 2 * i + 2 < sizeof build_id; i++) {
                snprintf(build_id + 2 * i, 3, "%02x", id[i]);
            }
            return;
        }
        at += sizeof note + name + desc;
        len -= sizeof note + name + desc;
    }
}

/* The executable is the first that is told. */
static int read_executable(struct dl_phdr_info *info, size_t size, void *arg) {
    (void)size;
    (void)arg;
    for (size_t i = 0; i < info->dlpi_phnum && !build_id[0]; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type == PT_NOTE) {
            read_notes((const char *)(info->dlpi_addr + p->p_vaddr), p->p_memsz);
        }
    }
    return 1;
}

static void find_build_id(void) {
    dl_iterate_phdr(read_executable, NULL);
}

const char *version_build_id(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_build_id);
    return build_id;
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
        buf_printf(out, "{\"version\": \"%s\", \"build_id\": \"%s\", \"compiler\": \"%s\", \"cpu_variant\": ", INFERD_VERSION,
                   version_build_id(), COMPILER);
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
        buf_printf(out, "inferd %s\n%-14s %s\n%-14s %s\n%-14s %s\n", INFERD_VERSION, "build id",
                   version_build_id()[0] ? version_build_id() : "none", "compiler", COMPILER, "cpu variant",
                   variant.len > 0 ? variant.data : "none");
        for (size_t i = 0; i < n; i++) {
            buf_printf(out, "%-14s %s\n", libraries[i].name, libraries[i].version);
        }
    }
    out->failed |= variant.failed;
    buf_free(&variant);
}
