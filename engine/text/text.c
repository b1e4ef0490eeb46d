#include "text/text_impl.h"

#include <stdlib.h>
#include <string.h>

void text_free(struct text *t) {
    if (t) {
        tokenizer_free(t->tokenizer);
        text_drop_chat_templates(t);
        free(t->bos_text);
        free(t->eos_text);
        free(t);
    }
}

size_t text_vocab_size(const struct text *t) {
    return t->tokenizer->vocab.n;
}

int32_t text_bos_id(const struct text *t) {
    return t->bos_id;
}

const int32_t *text_eos_ids(const struct text *t, size_t *n) {
    *n = t->n_eos;
    return t->eos_ids;
}

bool text_adds_bos(const struct text *t) {
    return t->bos_id >= 0 && t->tokenizer->n_prefix > 0 && t->tokenizer->prefix[0] == t->bos_id;
}

void text_add_eos(struct text *t, int64_t id) {
    if (id < 0 || (uint64_t)id >= t->tokenizer->vocab.n || t->n_eos == TEXT_MAX_EOS) {
        return;
    }
    for (size_t i = 0; i < t->n_eos; i++) {
        if (t->eos_ids[i] == id) {
            return;
        }
    }
    t->eos_ids[t->n_eos++] = (int32_t)id;
}

static int32_t find_special(const struct text *t, const char *name) {
    int32_t id = tokenizer_find(t->tokenizer, name, strlen(name));
    return id >= 0 && text_token_is_special(t, id) ? id : -1;
}

void text_add_known_ends(struct text *t) {
    /* Only tokens that can mean nothing but an end. Left out on purpose: fill-in-the-middle and file separators, which
     * llama.cpp also stops at: the reference does not, and a code model's completion may hold them. */
    static const char *const names[] = {
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<EOT>",
        "[EOT]",
        "<end_of_utterance>",
        "<|return|>",
        "<|call|>",
        ("<\xef\xbd\x9c"
         "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>"),
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        text_add_eos(t, find_special(t, names[i]));
    }
    /* <|end|> ends Phi's turns; where <|return|> exists (gpt-oss) it only ends one message of an answer. */
    if (find_special(t, "<|return|>") < 0) {
        text_add_eos(t, find_special(t, "<|end|>"));
    }
}

const char *text_token_bytes(const struct text *t, int32_t id, size_t *len) {
    if (id < 0 || (size_t)id >= t->tokenizer->vocab.n) {
        *len = 0;
        return "";
    }
    struct span piece = vocab_piece(&t->tokenizer->vocab, (uint32_t)id);
    *len = piece.len;
    return piece.len ? piece.data : "";
}

bool text_token_is_special(const struct text *t, int32_t id) {
    return id >= 0 && (size_t)id < t->tokenizer->vocab.n && (t->tokenizer->vocab.tokens[id].flags & TOKEN_SPECIAL);
}

int text_encode(const struct text *t, const char *bytes, size_t len, unsigned flags, struct tokens *out,
                struct error *err) {
    return tokenizer_encode(t->tokenizer, t->bos_id, bytes, len, NULL, flags, out, err);
}

int text_encode_marked(const struct text *t, const struct marked_text *m, unsigned flags, struct tokens *out,
                       struct error *err) {
    if (m->bytes.failed || m->trusted.failed || m->bytes.len != m->trusted.len) {
        return error_set(err, ERROR_INTERNAL, "the marks do not fit the text");
    }
    return tokenizer_encode(t->tokenizer, t->bos_id, m->bytes.data ? m->bytes.data : "", m->bytes.len,
                            m->trusted.data ? m->trusted.data : "", flags & ~(unsigned)TEXT_PARSE_SPECIAL, out, err);
}

void marked_text_free(struct marked_text *m) {
    if (m) {
        buf_free(&m->bytes);
        buf_free(&m->trusted);
    }
}
