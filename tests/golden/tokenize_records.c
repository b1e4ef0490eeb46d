/*
 * For compare_tokenizers.py: a model's tokenizer, asked over pipes in records that can hold any bytes.
 *
 *   "E FLAGS LEN\n" + LEN bytes    -> "ID ID ...\n": encoded with those bits of enum text_encode_flags
 *   "D SKIP N ID ID ...\n"         -> "LEN\n" + LEN bytes: decoded, by tokens as well (a stream must give the same,
 *                                     but see `byte_runs` below)
 */
#include "text/text_impl.h"

#include <inferd/text.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void die(const char *what) {
    fprintf(stderr, "tokenize_records: %s\n", what);
    exit(1);
}

static void encode(const struct text *t, struct tokens *ids) {
    unsigned flags;
    size_t len;
    if (scanf(" %u %zu", &flags, &len) != 2 || getchar() != '\n') {
        die("a malformed record");
    }
    char *bytes = malloc(len + 1); /* exactly as long as said, for the address sanitizer */
    struct error err;
    if (!bytes || fread(bytes, 1, len, stdin) != len) {
        die("a text that is cut short");
    }
    ids->n = 0;
    if (text_encode(t, bytes, len, flags, ids, &err) != 0) {
        die(err.message);
    }
    free(bytes);
    for (size_t i = 0; i < ids->n; i++) {
        printf(i ? " %d" : "%d", (int)ids->ids[i]);
    }
    putchar('\n');
}

/* Where a stream may differ from the whole (text.h): a broken run of byte tokens. */
static bool has_broken_run(const struct text *t, const struct buf *whole) {
    return t->tokenizer->byte_runs && whole->len > 0 && memmem(whole->data, whole->len, "\xef\xbf\xbd", 3);
}

static void check_stream(const struct text *t, const struct tokens *ids, bool skip, const struct buf *whole) {
    struct detokenizer d;
    struct buf streamed = BUF_INIT;
    char piece[DETOKENIZER_MAX_OUT];
    detokenizer_init(&d, t, skip, false);
    for (size_t i = 0; i < ids->n; i++) {
        buf_append(&streamed, piece, detokenizer_push(&d, ids->ids[i], piece));
    }
    buf_append(&streamed, piece, detokenizer_finish(&d, piece));
    if (!has_broken_run(t, whole) &&
        (streamed.len != whole->len || (whole->len && memcmp(streamed.data, whole->data, whole->len) != 0))) {
        die("a stream gives another text than decoding whole");
    }
    buf_free(&streamed);
}

static void decode(const struct text *t, struct tokens *ids) {
    int skip;
    size_t n;
    struct error err;
    struct buf whole = BUF_INIT;
    if (scanf(" %d %zu", &skip, &n) != 2) {
        die("a malformed record");
    }
    ids->n = 0;
    for (size_t i = 0; i < n; i++) {
        int id;
        if (scanf(" %d", &id) != 1 || tokens_push(ids, id, &err) != 0) {
            die("a malformed id");
        }
    }
    if (text_decode(t, ids->ids, ids->n, skip, &whole, &err) != 0) {
        die(err.message);
    }
    check_stream(t, ids, skip, &whole);
    printf("%zu\n", whole.len);
    fwrite(whole.data, 1, whole.len, stdout);
    buf_free(&whole);
}

int main(int argc, char **argv) {
    struct text *t;
    struct error err;
    struct tokens ids = {0};
    if (argc != 2) {
        die("usage: tokenize_records MODEL < RECORDS");
    }
    if (text_open(argv[1], &t, &err) != 0) {
        die(err.message);
    }
    for (char kind; scanf(" %c", &kind) == 1;) {
        if (kind != 'E' && kind != 'D') {
            die("an unknown kind of record");
        }
        (kind == 'E' ? encode : decode)(t, &ids);
    }
    tokens_free(&ids);
    text_free(t);
    return 0;
}
