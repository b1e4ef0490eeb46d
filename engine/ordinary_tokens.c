#include "ordinary_tokens.h"

#include "base/utf8.h"

static bool is_end(const struct text *text, int32_t id) {
    size_t n;
    const int32_t *ends = text_eos_ids(text, &n);
    for (size_t i = 0; i < n; i++) {
        if (ends[i] == id) {
            return true;
        }
    }
    return false;
}

/* Whole characters, none of them a control character. */
static bool is_printable(const char *bytes, size_t len) {
    for (size_t i = 0; i < len; i++) {
        if ((unsigned char)bytes[i] < 0x20 || bytes[i] == 0x7f) {
            return false;
        }
    }
    return len > 0 && utf8_is_valid(bytes, len);
}

int ordinary_tokens(const struct text *text, size_t vocab_size, struct tokens *out, struct error *err) {
    struct tokens made = {0};
    for (size_t i = 0; i < vocab_size; i++) {
        int32_t id = (int32_t)i;
        size_t len;
        const char *bytes = text_token_bytes(text, id, &len);
        if (is_printable(bytes, len) && !text_token_is_special(text, id) && !is_end(text, id) &&
            tokens_push(&made, id, err) < 0) {
            tokens_free(&made);
            return -1;
        }
    }
    if (made.n == 0) {
        return error_set(err, ERROR_MODEL, "the vocabulary has no token that can be printed");
    }
    *out = made;
    return 0;
}
