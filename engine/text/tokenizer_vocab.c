/* A tokenizer from a GGUF's vocabulary; what llama.cpp makes of such a vocabulary is the reference. */
#include "text/tokenizer.h"

#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

static unsigned type_of(const struct vocab_source *src, size_t id) {
    return src->types ? src->types[id] : VOCAB_NORMAL;
}

/*
 * Tokens that a converter left as ordinary though they end a text or steer a completion: llama.cpp takes them for
 * control tokens by their text, so they are recognised where special tokens are. (Decoding treats them as the file
 * says.)
 */
static bool is_control_by_name(struct span text) {
    static const char *const names[] = {
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "</s>",
        "<|eom_id|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "<eos>",
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        "<PRE>",
        "\xe2\x96\x81<PRE>",
        "<|code_prefix|>",
        "<|prefix|>",
        "<|fim_suffix|>",
        "<fim-suffix>",
        "<fim_suffix>",
        "<SUF>",
        "\xe2\x96\x81<SUF>",
        "<|code_suffix|>",
        "<|suffix|>",
        "<|fim_middle|>",
        "<fim-middle>",
        "<fim_middle>",
        "<MID>",
        "\xe2\x96\x81<MID>",
        "<|code_middle|>",
        "<|middle|>",
        "<|fim_pad|>",
        "<fim-pad>",
        "<fim_pad>",
        "<PAD>",
        "[PAD]",
        "<|fim_repo|>",
        "<|repo_name|>",
        "<fim-repo>",
        "<REPO>",
        "<reponame>",
        "<|file_sep|>",
        ("<\xef\xbd\x9c"
         "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>"),
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (span_is(text, names[i])) {
            return true;
        }
    }
    return false;
}

bool vocab_needs_trust(const struct vocab_source *src, size_t id) {
    unsigned type = type_of(src, id);
    return type == VOCAB_CONTROL || type == VOCAB_UNKNOWN || is_control_by_name(src->tokens[id]);
}

/* A copy of text with each U+2581 as a space. */
static void unescape_spaces(struct span text, struct buf *out) {
    for (size_t i = 0; i < text.len;) {
        const char *hit = memmem(text.data + i, text.len - i, "\xe2\x96\x81", 3);
        size_t n = hit ? (size_t)(hit - (text.data + i)) : text.len - i;
        buf_append(out, text.data + i, n);
        if (hit) {
            buf_putc(out, ' ');
            n += 3;
        }
        i += n;
    }
}

static int set_token(struct tokenizer *t, const struct vocab_source *src, size_t id, struct buf *scratch,
                     struct error *err) {
    struct span text = src->tokens[id], key = text, piece = text;
    unsigned type = type_of(src, id), flags = 0;
    bool byte_level = t->bpe.kind == BPE_BYTE_LEVEL;
    buf_reset(scratch);
    switch (type) {
    case VOCAB_NORMAL:
        if (byte_level && byte_level_decode(text, scratch)) {
            key = piece = (struct span){scratch->data, scratch->len};
            flags = TOKEN_ORDINARY;
        } else if (!byte_level) {
            unescape_spaces(text, scratch);
            piece = (struct span){scratch->data, scratch->len};
            flags = utf8_is_valid(text.data, text.len) ? TOKEN_ORDINARY : 0;
        }
        break;
    case VOCAB_USER_DEFINED:
        if (byte_level && byte_level_decode(text, scratch)) {
            key = (struct span){scratch->data, scratch->len};
            flags = TOKEN_ORDINARY;
        } else if (!byte_level && utf8_is_valid(text.data, text.len)) {
            flags = TOKEN_ORDINARY;
        }
        break;
    case VOCAB_CONTROL:
    case VOCAB_UNKNOWN:
        flags = TOKEN_SPECIAL;
        break;
    case VOCAB_BYTE: {
        int byte = byte_token_value(text);
        if (byte < 0) {
            return error_set(err, ERROR_MODEL, "token %zu is said to be a byte and is not of the form <0xXX>", id);
        }
        buf_putc(scratch, (char)byte);
        piece = (struct span){scratch->data, scratch->len};
        flags = TOKEN_BYTE;
        break;
    }
    default: /* unused: decodes to nothing */
        piece = (struct span){"", 0};
        break;
    }
    if (scratch->failed) {
        return error_memory(err);
    }
    if (key.len == 0) {
        flags &= ~(unsigned)TOKEN_ORDINARY;
    }
    return vocab_set(&t->vocab, (uint32_t)id, key, piece, flags, err);
}

static int set_tokens(struct tokenizer *t, const struct vocab_source *src, struct error *err) {
    struct buf scratch = BUF_INIT;
    buf_reserve(&scratch, VOCAB_MAX_TOKEN_BYTES);
    int rc = vocab_grow(&t->vocab, src->n_tokens, err);
    for (size_t id = 0; rc == 0 && id < src->n_tokens; id++) {
        rc = set_token(t, src, id, &scratch, err);
    }
    buf_free(&scratch);
    return rc == 0 ? vocab_index_build(&t->vocab, err) : -1;
}

bool vocab_strips_right(const struct vocab_source *src, size_t id) {
    return src->rstrip_special && !span_is(src->tokens[id], "<unk>") && !span_is(src->tokens[id], "<s>") &&
           !span_is(src->tokens[id], "<|endoftext|>");
}

/* Control, unknown and user-defined tokens are looked for in the text. */
static int set_added(struct tokenizer *t, const struct vocab_source *src, struct error *err) {
    t->added.longest_overall = true;
    for (size_t id = 0; id < src->n_tokens; id++) {
        bool special = vocab_needs_trust(src, id);
        if (!special && type_of(src, id) != VOCAB_USER_DEFINED) {
            continue;
        }
        struct added_token token = {.id = (int32_t)id, .special = special, .ascii_space = true};
        token.rstrip = vocab_strips_right(src, id);
        if (added_tokens_add(&t->added, src->tokens[id], token, err) < 0) {
            return -1;
        }
    }
    return 0;
}

/* ---- the two model kinds ---- */

/* "left right": the space is looked for from the second byte on, since a part may begin with one. */
static bool find_merge(const struct tokenizer *t, const struct span_index *texts, struct span merge, struct buf *joined,
                       struct bpe_merge *out) {
    const char *space = merge.len > 2 ? memchr(merge.data + 1, ' ', merge.len - 1) : NULL;
    if (!space) {
        return false;
    }
    size_t left = (size_t)(space - merge.data), right = merge.len - left - 1;
    buf_reset(joined);
    buf_append(joined, merge.data, left);
    buf_append(joined, space + 1, right);
    if (joined->failed || joined->len == 0) {
        return false;
    }
    out->left = span_index_find(texts, merge.data, left);
    out->right = span_index_find(texts, space + 1, right);
    out->product = span_index_find(texts, joined->data, joined->len);
    const struct token *tokens = t->vocab.tokens;
    return out->left >= 0 && out->right >= 0 && out->product >= 0 && (tokens[out->left].flags & TOKEN_ORDINARY) &&
           (tokens[out->right].flags & TOKEN_ORDINARY) && (tokens[out->product].flags & TOKEN_ORDINARY);
}

/* Merges of texts that are no tokens are left out: nothing could come of them. */
static int set_merges(struct tokenizer *t, const struct vocab_source *src, struct error *err) {
    struct span_index texts = {0};
    struct buf joined = BUF_INIT;
    struct bpe_merge *merges = calloc(src->n_merges ? src->n_merges : 1, sizeof *merges);
    int rc = merges ? span_index_build(&texts, src->tokens, src->n_tokens, err) : error_memory(err);
    size_t n = 0;
    for (size_t i = 0; rc == 0 && i < src->n_merges; i++) {
        n += find_merge(t, &texts, src->merges[i], &joined, &merges[n]);
    }
    if (rc == 0) {
        rc = bpe_set_merges(&t->bpe, merges, n, false, err);
    }
    free(texts.slots);
    free(merges);
    buf_free(&joined);
    return rc;
}

static int init_byte_level(struct tokenizer *t, const struct vocab_source *src, bool *add_bos, struct error *err) {
    struct pre_kind_info info = {0};
    const char *pre = src->pre && src->pre[0] ? src->pre : "default";
    if (src->n_merges == 0) {
        return error_set(err, ERROR_MODEL, "the vocabulary has no merges (tokenizer.ggml.merges)");
    }
    if (pre_from_kind(pre, &t->pre, &info, err) < 0) {
        return -1;
    }
    *add_bos = info.add_bos;
    t->bpe.ignore_merges = info.ignore_merges;
    t->bpe.keep_unknown = true;
    t->bpe.unknown_id = -1;
    t->clean_spaces = info.clean_spaces;
    for (size_t byte = 0; byte < 256; byte++) {
        char c = (char)byte;
        t->bpe.byte_ids[byte] = vocab_find(&t->vocab, &c, 1);
    }
    return set_merges(t, src, err);
}

static int init_scores(struct tokenizer *t, const struct vocab_source *src, struct error *err) {
    bool space_prefix = src->add_space_prefix != 0;
    struct normalizer_step *step;
    if (space_prefix) {
        if (!(step = normalizer_add(&t->normalizer, NORMALIZE_PREPEND, err))) {
            return -1;
        }
        step->content_len = 3;
        memcpy(step->content, "\xe2\x96\x81", 3);
        t->decode_start = DECODE_START_STRIP;
    }
    if (!(step = normalizer_add(&t->normalizer, NORMALIZE_REPLACE, err))) {
        return -1;
    }
    step->pattern_len = 1;
    step->pattern[0] = ' ';
    step->content_len = 3;
    memcpy(step->content, "\xe2\x96\x81", 3);
    t->bpe.unknown_id = src->unknown_id;
    for (size_t byte = 0; byte < 256; byte++) { /* where there is no byte token, a one-character one may do */
        char c = (char)byte;
        t->bpe.byte_ids[byte] = byte < 128 ? vocab_find(&t->vocab, &c, 1) : -1;
    }
    for (size_t id = 0; id < src->n_tokens; id++) {
        if (t->vocab.tokens[id].flags & TOKEN_BYTE) {
            t->bpe.byte_ids[byte_token_value(src->tokens[id])] = (int32_t)id;
        }
    }
    float *zeros = src->scores ? NULL : calloc(src->n_tokens ? src->n_tokens : 1, sizeof *zeros);
    if (!src->scores && !zeros) {
        return error_memory(err);
    }
    int rc = bpe_set_scores(&t->bpe, src->scores ? src->scores : zeros, err);
    free(zeros);
    return rc;
}

static int set_ends(struct tokenizer *t, const struct vocab_source *src, bool add_bos, struct error *err) {
    add_bos = src->add_bos >= 0 ? src->add_bos : add_bos;
    if (add_bos) {
        if (src->bos_id < 0) {
            return error_set(err, ERROR_MODEL,
                             "a BOS token is to be added (tokenizer.ggml.add_bos_token), and none is named");
        }
        t->prefix[t->n_prefix++] = src->bos_id;
    }
    if (src->add_eos > 0) {
        if (src->eos_id < 0) {
            return error_set(err, ERROR_MODEL,
                             "an EOS token is to be added (tokenizer.ggml.add_eos_token), and none is named");
        }
        t->suffix[t->n_suffix++] = src->eos_id;
    }
    return 0;
}

static int build(struct tokenizer *t, const struct vocab_source *src, struct error *err) {
    bool byte_level = strcmp(src->model, "gpt2") == 0, add_bos = false;
    if (!byte_level && strcmp(src->model, "llama") != 0) {
        return error_set(err, ERROR_MODEL, "the tokenizer model '%.100s' is not supported", src->model);
    }
    if (src->n_tokens == 0) {
        return error_set(err, ERROR_MODEL, "the vocabulary is empty");
    }
    t->bpe.vocab = &t->vocab;
    t->bpe.kind = byte_level ? BPE_BYTE_LEVEL : BPE_SCORES;
    if (set_tokens(t, src, err) < 0 || set_added(t, src, err) < 0) {
        return -1;
    }
    add_bos = !byte_level;
    int rc = byte_level ? init_byte_level(t, src, &add_bos, err) : init_scores(t, src, err);
    return rc < 0 || set_ends(t, src, add_bos, err) < 0 ? -1 : bpe_finish(&t->bpe, err);
}

int tokenizer_from_vocab(const struct vocab_source *src, struct tokenizer **out, struct error *err) {
    struct tokenizer *t = calloc(1, sizeof *t);
    if (!t) {
        return error_memory(err);
    }
    if (build(t, src, err) < 0) {
        tokenizer_free(t);
        return -1;
    }
    *out = t;
    return 0;
}
