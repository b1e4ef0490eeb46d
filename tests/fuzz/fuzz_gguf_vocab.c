/* The vocabulary of a GGUF from anywhere: what it builds must encode and decode some texts within bounds. */
#include "text/text_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void check(bool ok) {
    if (!ok) {
        abort();
    }
}

static void try_text(const struct text *t, const char *bytes, size_t len, unsigned flags) {
    struct error err;
    struct tokens ids = {0};
    struct buf whole = BUF_INIT;
    struct detokenizer d;
    char piece[DETOKENIZER_MAX_OUT];
    if (text_encode(t, bytes, len, flags, &ids, &err) == 0) {
        detokenizer_init(&d, t, false, false);
        for (size_t i = 0; i < ids.n; i++) {
            check(ids.ids[i] >= 0 && (size_t)ids.ids[i] < text_vocab_size(t));
            check(detokenizer_push(&d, ids.ids[i], piece) <= sizeof piece);
        }
        check(detokenizer_finish(&d, piece) <= sizeof piece);
        check(text_decode(t, ids.ids, ids.n, false, &whole, &err) == 0);
        check(text_decode_cleaned(t, ids.ids, ids.n, true, &whole, &err) == 0);
    }
    buf_free(&whole);
    tokens_free(&ids);
}

/* text_open takes a path: the bytes stand in a file in memory. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct text *t;
    struct error err;
    char path[64];
    int fd = memfd_create("gguf", MFD_CLOEXEC);
    check(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (text_open(path, &t, &err) == 0) {
        static const char sample[] = "<s>Hello, w\xc3\xb6rld! \xe4\xb8\xad\xe6\x96\x87 123 \xf0\x9f\x98\x80\r\n\t "
                                     "e\xcc\x81 <|end|> it's the \xff";
        try_text(t, sample, sizeof sample - 1, TEXT_ADD_SPECIAL | TEXT_PARSE_SPECIAL);
        try_text(t, sample, sizeof sample - 1, 0);
        try_text(t, (const char *)data + (size > 300 ? size - 300 : 0), size < 300 ? size : 300, TEXT_PARSE_SPECIAL);
        text_free(t);
    }
    close(fd);
    return 0;
}
