/* A tokenizer.json from anywhere: what it builds must encode and decode some texts within bounds. */
#include "text/text_impl.h"

#include <stdlib.h>
#include <string.h>

static void try_text(const struct text *t, const char *bytes, size_t len) {
    struct error err;
    struct tokens ids = {0};
    struct buf out = BUF_INIT;
    if (text_encode(t, bytes, len, TEXT_ADD_SPECIAL | TEXT_PARSE_SPECIAL, &ids, &err) == 0) {
        struct detokenizer d;
        char piece[DETOKENIZER_MAX_OUT];
        detokenizer_init(&d, t, true, false);
        for (size_t i = 0; i < ids.n; i++) {
            if (ids.ids[i] < 0 || (size_t)ids.ids[i] >= text_vocab_size(t) ||
                detokenizer_push(&d, ids.ids[i], piece) > sizeof piece) {
                abort();
            }
        }
        detokenizer_finish(&d, piece);
        text_decode(t, ids.ids, ids.n, false, &out, &err);
    }
    buf_free(&out);
    tokens_free(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct error err;
    struct text t = {.bos_id = -1};
    if (tokenizer_from_json((const char *)data, size, &t.tokenizer, &err) < 0) {
        return 0;
    }
    static const char sample[] =
        "Hello, w\xc3\xb6rld! \xe4\xb8\xad\xe6\x96\x87 123 \xf0\x9f\x98\x80\r\n\t e\xcc\x81 <s> it's";
    try_text(&t, sample, sizeof sample - 1);
    try_text(&t, (const char *)data, size < 200 ? size : 200);
    tokenizer_free(t.tokenizer);
    return 0;
}
