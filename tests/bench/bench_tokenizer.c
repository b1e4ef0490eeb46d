/*
 * The tokenizer by itself, for compare_tokenizer_speed.py and by hand:
 *
 *   bench_tokenizer --passes MODEL       reads lines "PASSES FILE" and answers each with "BYTES TOKENS SECONDS" of the
 *                                        fastest pass over the documents of FILE, which end with a NUL each
 *   bench_tokenizer --hostile STEP MODEL...
 *                                        1 MB of each ASCII character, of each STEP-th of some 300 others, of short
 *                                        strings, random text and random bytes through each model: the slowest and the
 *                                        hungriest; fails over LIMIT_S seconds or LIMIT_FACTOR bytes of memory a byte
 *
 * Seconds are the thread's processor time, memory is the growth of the resident set's peak.
 */
#include <inferd/text.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/utf8.h"

#define LIMIT_S 2.0
#define LIMIT_FACTOR 200.0
#define HOSTILE_BYTES 1000000

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void die(const char *what) {
    fprintf(stderr, "bench_tokenizer: %s\n", what);
    exit(1);
}

static struct text *open_model(const char *path) {
    struct text *t;
    struct error err;
    if (text_open(path, &t, &err) != 0) {
        die(err.message);
    }
    return t;
}

/* ---- passes over documents ---- */

static char *read_file(const char *path, size_t *len) {
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END) != 0) {
        die(path);
    }
    *len = (size_t)ftell(f);
    rewind(f);
    char *data = malloc(*len + 1);
    if (!data || fread(data, 1, *len, f) != *len) {
        die(path);
    }
    data[*len] = '\0';
    fclose(f);
    return data;
}

static size_t encode_documents(const struct text *t, const char *data, size_t len, struct tokens *ids) {
    struct error err;
    size_t n = 0;
    for (const char *p = data, *end = data + len; p < end; p += strlen(p) + 1) {
        ids->n = 0;
        if (text_encode(t, p, strlen(p), TEXT_PARSE_SPECIAL, ids, &err) != 0) {
            die(err.message);
        }
        n += ids->n;
    }
    return n;
}

static int passes(const char *model) {
    struct text *t = open_model(model);
    struct tokens ids = {0};
    char path[4096];
    int n;
    while (scanf("%d %4095[^\n]", &n, path) == 2) {
        size_t len, n_ids = 0;
        char *data = read_file(path, &len);
        double best = 1e9;
        for (int i = 0; i < n; i++) {
            double start = cpu_seconds();
            n_ids = encode_documents(t, data, len, &ids);
            double took = cpu_seconds() - start;
            best = took < best ? took : best;
        }
        printf("%zu %zu %.9f\n", len, n_ids, best);
        fflush(stdout);
        free(data);
    }
    tokens_free(&ids);
    text_free(t);
    return 0;
}

/* ---- hostile texts ---- */

static size_t status_kb(const char *key) {
    char line[256];
    size_t value = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, key, strlen(key)) == 0) {
            value = strtoul(line + strlen(key), NULL, 10);
        }
    }
    if (f) {
        fclose(f);
    }
    return value;
}

static void reset_peak(void) {
    FILE *f = fopen("/proc/self/clear_refs", "w");
    if (!f || fputs("5", f) < 0 || fclose(f) != 0) {
        die("/proc/self/clear_refs cannot be written");
    }
}

struct worst {
    double seconds, factor;
    char slowest[64], hungriest[64];
    size_t n, failed;
};

static void try_text(const struct text *t, const char *name, const char *bytes, size_t len, struct worst *w) {
    struct tokens ids = {0};
    struct error err;
    malloc_trim(0);
    reset_peak();
    size_t before = status_kb("VmRSS:");
    double start = cpu_seconds();
    int rc = text_encode(t, bytes, len, TEXT_PARSE_SPECIAL | TEXT_ADD_SPECIAL, &ids, &err);
    double seconds = cpu_seconds() - start;
    size_t peak = status_kb("VmHWM:");
    double factor = (double)(peak > before ? peak - before : 0) * 1024 / (double)len;
    tokens_free(&ids);
    w->n++;
    if (rc != 0 || seconds > LIMIT_S || factor > LIMIT_FACTOR) {
        printf("  FAILED: %s: %.3f s, %.0f bytes a byte%s%s\n", name, seconds, factor, rc ? ", " : "",
               rc ? err.message : "");
        w->failed++;
    }
    if (seconds > w->seconds) {
        w->seconds = seconds;
        snprintf(w->slowest, sizeof w->slowest, "%s", name);
    }
    if (factor > w->factor) {
        w->factor = factor;
        snprintf(w->hungriest, sizeof w->hungriest, "%s", name);
    }
}

static void try_repeated(const struct text *t, const char *unit, size_t unit_len, const char *name, char *text,
                         struct worst *w) {
    size_t len = HOSTILE_BYTES / unit_len * unit_len;
    for (size_t i = 0; i < len; i += unit_len) {
        memcpy(text + i, unit, unit_len);
    }
    try_text(t, name, text, len, w);
}

/* Every ASCII character; of the rest of Unicode the first of each 61 up to U+3000, then fewer; times the step. */
static uint32_t next_code_point(uint32_t cp, uint32_t step) {
    cp += cp < 0x80 ? 1 : step * (cp < 0x3000 ? 61 : cp < 0x20000 ? 1543 : 65521);
    return cp >= 0xd800 && cp < 0xe000 ? 0xe000 : cp;
}

static uint64_t next_random(uint64_t *state) {
    uint64_t x = *state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static void try_random(const struct text *t, char *text, struct worst *w) {
    static const uint32_t ranges[][2] = {{0x20, 0x7f}, {'a', 'z' + 1}, {0x300, 0x370}, {0x4e00, 0xa000}, {0, 0xd800}};
    static const char *const names[] = {"random ASCII", "random letters", "random marks", "random Chinese",
                                        "random BMP"};
    uint64_t state = 1;
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        size_t len = 0;
        while (len + 4 <= HOSTILE_BYTES) {
            uint32_t cp = ranges[i][0] + (uint32_t)(next_random(&state) % (ranges[i][1] - ranges[i][0]));
            len += utf8_encode(cp, text + len);
        }
        try_text(t, names[i], text, len, w);
    }
    for (size_t i = 0; i < HOSTILE_BYTES; i++) {
        text[i] = (char)next_random(&state);
    }
    try_text(t, "random bytes", text, HOSTILE_BYTES, w);
}

/* The name of a string: what is not printable ASCII as \xNN. */
static void escape(const char *s, char name[64]) {
    size_t n = 0;
    for (; *s && n < 56; s++) {
        bool plain = *s >= ' ' && *s < 0x7f;
        n += (size_t)snprintf(name + n, 64 - n, plain ? "%c" : "\\x%02x", (unsigned char)*s);
    }
}

static const char *const strings[] = {
    "  ",
    "\r\n",
    "a ",
    " a",
    "ab",
    "aA",
    "'s",
    "a'",
    "e\xcc\x81",
    "\xe0\xa4\x95\xe0\xa5\x8d",
    "0a",
    "a\n",
    "\n ",
    "\xf0\x9f\x91\xa9\xe2\x80\x8d",
    "\xf0\x9f\x8f\xbd",
    "\xf0\x9f\x87\xa9",
    "\xef\xb7\xba",
    "\xce\x90",
    "\xff",
    "\xe4\xbd",
    "\xf0\x9f",
    "<|",
    "<s",
    "<|im_start",
    "<|end",
    "</s",
    "<s>",
    "<|endoftext|>",
    "<|im_start|>",
    "<|eot_id|>",
    "[INST]",
    " \xe2\x96\x81",
    "\xe2\x96\x81",
    "abcdefghijklmnopqrstuvwxyz",
    "the quick ",
    "\xc2\xa0",
    "\xe3\x80\x80",
    "{\"a\":",
    "==",
    "0123456789",
};

static int hostile(const char *model, uint32_t step) {
    struct text *t = open_model(model);
    struct worst w = {0};
    char *text = malloc(HOSTILE_BYTES + 8), name[64];
    if (!text) {
        die("out of memory");
    }
    for (uint32_t cp = 0; cp < 0x110000; cp = next_code_point(cp, step)) {
        char unit[4];
        snprintf(name, sizeof name, "U+%04X", (unsigned)cp);
        try_repeated(t, unit, utf8_encode(cp, unit), name, text, &w);
    }
    for (size_t i = 0; i < sizeof strings / sizeof strings[0]; i++) {
        escape(strings[i], name);
        try_repeated(t, strings[i], strlen(strings[i]), name, text, &w);
    }
    try_random(t, text, &w);
    printf("%s: %zu texts of 1 MB: slowest %.3f s (%s), most memory %.0f bytes a byte (%s), %zu failed\n", model, w.n,
           w.seconds, w.slowest, w.factor, w.hungriest, w.failed);
    free(text);
    text_free(t);
    return w.failed ? 1 : 0;
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--passes") == 0) {
        return passes(argv[2]);
    }
    if (argc < 4 || strcmp(argv[1], "--hostile") != 0 || atoi(argv[2]) < 1) {
        die("usage: bench_tokenizer --passes MODEL | --hostile STEP MODEL...");
    }
    int failed = 0;
    for (int i = 3; i < argc; i++) {
        failed |= hostile(argv[i], (uint32_t)atoi(argv[2]));
        fflush(stdout);
    }
    return failed;
}
