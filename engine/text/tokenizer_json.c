/* A tokenizer from the bytes of a tokenizer.json; the tokenizers library is the reference for what it means. */
#include "text/json_components.h"

#include "base/utf8.h"

#include <cjson/cJSON.h>
#include <inferd/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct reader {
    struct tokenizer *t;
    cJSON *root;
    char *copy;       /* the text with \u0000 replaced, owned; NULL if it has none */
    char nul_mark[4]; /* the UTF-8 of the noncharacter that stands for U+0000 */
    bool byte_level;  /* the pre-tokenizer spells words in bytes */
    bool byte_fallback;
    struct decode_rules rules;
    struct span *texts; /* [n_texts] the model's vocabulary by id; data NULL = a hole; borrowed from root */
    size_t n_texts;
    struct span_index index; /* over texts */
    struct buf scratch;
};

static void reader_free(struct reader *r) {
    cJSON_Delete(r->root);
    free(r->copy);
    free(r->texts);
    free(r->index.slots);
    buf_free(&r->scratch);
}

/* ---- U+0000 in strings, which a C string cannot hold ---- */

/* The escape \uXXXX of U+0000 at p (behind the backslash at p[0])? */
static bool is_nul_escape(const char *p, const char *end) {
    return end - p >= 6 && memcmp(p, "\\u0000", 6) == 0;
}

static bool occurs(const char *text, size_t len, unsigned cp) {
    char utf8[4], lower[8], upper[8];
    size_t n = utf8_encode(cp, utf8);
    snprintf(lower, sizeof lower, "\\u%04x", cp);
    snprintf(upper, sizeof upper, "\\u%04X", cp);
    return memmem(text, len, utf8, n) || memmem(text, len, lower, 6) || memmem(text, len, upper, 6);
}

/* Write the escape of a noncharacter that the file does not use in place of each \u0000. */
static int replace_nuls(struct reader *r, const char *text, size_t len, struct error *err) {
    if (!memmem(text, len, "\\u0000", 6)) {
        return 0;
    }
    unsigned mark = 0xfdd0;
    while (mark <= 0xfdef && occurs(text, len, mark)) {
        mark++;
    }
    if (mark > 0xfdef) {
        return error_set(err, ERROR_MODEL, "the file uses \\u0000 and every noncharacter, which is not supported");
    }
    r->copy = malloc(len + 1);
    if (!r->copy) {
        return error_memory(err);
    }
    memcpy(r->copy, text, len);
    r->copy[len] = '\0';
    char escape[8];
    snprintf(escape, sizeof escape, "\\u%04x", mark);
    for (char *p = r->copy, *end = r->copy + len; p < end; p++) {
        if (*p == '\\') {
            if (is_nul_escape(p, end)) {
                memcpy(p, escape, 6);
            }
            p++; /* an escaped character, be it a backslash */
        }
    }
    utf8_encode(mark, r->nul_mark);
    return 0;
}

/* A string of the tree, with its U+0000 back; changes it in place, so it is called once for each string. */
static struct span text_of(const struct reader *r, char *s) {
    struct span out = {s, strlen(s)};
    if (r->copy) {
        size_t kept = 0;
        for (size_t i = 0; i < out.len;) {
            bool nul = out.len - i >= 3 && memcmp(s + i, r->nul_mark, 3) == 0;
            s[kept++] = nul ? '\0' : s[i];
            i += nul ? 3 : 1;
        }
        out.len = kept;
    }
    return out;
}

/* ---- the vocabulary ---- */

static int id_of(const cJSON *item, const char *what, int64_t *out, struct error *err) {
    double v = cJSON_IsNumber(item) ? item->valuedouble : -1;
    if (!(v >= 0 && v < VOCAB_MAX_TOKENS) || v != (double)(int64_t)v) {
        return error_set(err, ERROR_MODEL, "%s has an id that is not an integer from 0 to %u", what,
                         VOCAB_MAX_TOKENS - 1);
    }
    *out = (int64_t)v;
    return 0;
}

static int reserve_texts(struct reader *r, size_t n, struct error *err) {
    if (n > r->n_texts) {
        struct span *texts = realloc(r->texts, n * sizeof *texts);
        if (!texts) {
            return error_memory(err);
        }
        memset(texts + r->n_texts, 0, (n - r->n_texts) * sizeof *texts);
        r->texts = texts;
        r->n_texts = n;
    }
    return 0;
}

/* {"token": id} */
static int read_vocab(struct reader *r, const cJSON *vocab, struct error *err) {
    if (!cJSON_IsObject(vocab)) {
        return error_set(err, ERROR_MODEL, "'vocab' is missing or is no object");
    }
    int64_t id = 0, highest = -1;
    const cJSON *item;
    cJSON_ArrayForEach(item, vocab) {
        if (id_of(item, "a token of 'vocab'", &id, err) < 0) {
            return -1;
        }
        highest = id > highest ? id : highest;
    }
    if (reserve_texts(r, (size_t)(highest + 1), err) < 0) {
        return -1;
    }
    cJSON_ArrayForEach(item, vocab) {
        r->texts[item->valueint] = text_of(r, item->string);
    }
    return span_index_build(&r->index, r->texts, r->n_texts, err);
}

/* What a token decodes to by the decoder's rules; *byte: as a byte of a run. */
static struct span piece_of(struct reader *r, struct span text, bool *byte) {
    struct buf *out = &r->scratch;
    buf_reset(out);
    *byte = false;
    if (r->rules.byte_level) {
        return byte_level_decode(text, out) ? (struct span){out->data, out->len} : text;
    }
    int value = r->rules.byte_fallback ? byte_token_value(text) : -1;
    if (value >= 0) {
        buf_putc(out, (char)value);
        *byte = true;
        return (struct span){out->data, out->len};
    }
    for (size_t i = 0; i < text.len;) {
        size_t matched = 0;
        for (size_t j = 0; j < r->rules.n_replaces && !matched; j++) {
            const char *pattern = r->rules.replaces[j].pattern;
            size_t n = strlen(pattern);
            if (text.len - i >= n && memcmp(text.data + i, pattern, n) == 0) {
                buf_puts(out, r->rules.replaces[j].content);
                matched = n;
            }
        }
        if (!matched) {
            buf_putc(out, text.data[i]);
            matched = 1;
        }
        i += matched;
    }
    return (struct span){out->data, out->len};
}

/* text: how the model spells it; shown: what the decoder is given. */
static int set_token(struct reader *r, size_t id, struct span text, struct span shown, unsigned flags,
                     struct error *err) {
    bool byte;
    struct span key = text;
    struct buf spelt = BUF_INIT;
    if ((flags & TOKEN_ORDINARY) && r->byte_level) {
        buf_reserve(&spelt, text.len);
        if (byte_level_decode(text, &spelt)) {
            key = (struct span){spelt.data, spelt.len};
        } else {
            flags &= ~(unsigned)TOKEN_ORDINARY; /* no word is spelt so */
        }
    }
    if (key.len == 0) {
        flags &= ~(unsigned)TOKEN_ORDINARY;
    }
    struct span piece = piece_of(r, shown, &byte);
    int rc = spelt.failed || r->scratch.failed
                 ? error_memory(err)
                 : vocab_set(&r->t->vocab, (uint32_t)id, key, piece, flags | (byte ? TOKEN_BYTE : 0), err);
    buf_free(&spelt);
    return rc;
}

/* ---- added tokens ---- */

static bool flag_of(const cJSON *item, const char *key, bool otherwise) {
    const cJSON *flag = cJSON_GetObjectItemCaseSensitive(item, key);
    return cJSON_IsBool(flag) ? cJSON_IsTrue(flag) : otherwise;
}

/*
 * A token that is looked for behind the normalizer is spelt as the normalizer would, and decodes to that. Sets the
 * token's entry in the vocabulary too.
 */
static int add_normalized(struct reader *r, struct span text, struct added_token token, unsigned flags,
                          struct error *err) {
    struct regex_run run = {0};
    struct normalizer_scratch s = {.run = &run};
    buf_append(&s.text, text.data, text.len);
    int rc = s.text.failed ? error_memory(err) : normalize(&r->t->normalizer, &s, err);
    struct span spelt = {s.text.data ? s.text.data : "", s.text.len};
    if (rc == 0) {
        rc = added_tokens_add(&r->t->added_normalized, spelt, token, err);
    }
    if (rc == 0) {
        rc = set_token(r, (size_t)token.id, text, spelt, flags, err);
    }
    normalizer_scratch_free(&s);
    regex_run_free(&run);
    return rc;
}

static int read_added_token(struct reader *r, const cJSON *item, struct error *err) {
    cJSON *content = cJSON_GetObjectItemCaseSensitive(item, "content");
    int64_t id = 0;
    if (!cJSON_IsString(content) ||
        id_of(cJSON_GetObjectItemCaseSensitive(item, "id"), "an added token", &id, err) < 0) {
        return error_set(err, ERROR_MODEL, "an added token has no content or no valid id");
    }
    struct span text = text_of(r, content->valuestring);
    int32_t known = span_index_find(&r->index, text.data, text.len);
    id = known >= 0 ? known : id; /* the model's own id comes first */
    struct added_token token = {
        .id = (int32_t)id,
        .special = flag_of(item, "special", false),
        .lstrip = flag_of(item, "lstrip", false),
        .rstrip = flag_of(item, "rstrip", false),
        .single_word = flag_of(item, "single_word", false),
    };
    /* Special tokens are out of reach for merges: plain text never gives one. */
    unsigned flags = token.special ? TOKEN_SPECIAL : known >= 0 ? TOKEN_ORDINARY : 0;
    if (flag_of(item, "normalized", !token.special)) {
        return add_normalized(r, text, token, flags, err);
    }
    return added_tokens_add(&r->t->added, text, token, err) < 0 ? -1 : set_token(r, (size_t)id, text, text, flags, err);
}

static int set_tokens(struct reader *r, struct error *err) {
    if (vocab_grow(&r->t->vocab, r->n_texts, err) < 0) {
        return -1;
    }
    for (size_t id = 0; id < r->n_texts; id++) {
        if (r->texts[id].data && set_token(r, id, r->texts[id], r->texts[id], TOKEN_ORDINARY, err) < 0) {
            return -1;
        }
    }
    const cJSON *added = cJSON_GetObjectItemCaseSensitive(r->root, "added_tokens"), *item;
    cJSON_ArrayForEach(item, added) {
        if (read_added_token(r, item, err) < 0) {
            return error_prefix(err, "added_tokens");
        }
    }
    return vocab_index_build(&r->t->vocab, err);
}

/* ---- BPE ---- */

/* "left right", or ["left", "right"]. */
static bool merge_parts(const struct reader *r, cJSON *item, struct span *left, struct span *right) {
    if (cJSON_IsString(item)) {
        struct span both = text_of(r, item->valuestring);
        const char *space = memchr(both.data, ' ', both.len);
        if (!space) {
            return false;
        }
        *left = (struct span){both.data, (size_t)(space - both.data)};
        *right = (struct span){space + 1, both.len - left->len - 1};
        return memchr(right->data, ' ', right->len) == NULL;
    }
    cJSON *a = cJSON_IsArray(item) ? item->child : NULL, *b = a ? a->next : NULL;
    if (!cJSON_IsString(a) || !cJSON_IsString(b) || b->next) {
        return false;
    }
    *left = text_of(r, a->valuestring);
    *right = text_of(r, b->valuestring);
    return true;
}

static int read_merge(struct reader *r, cJSON *item, size_t i, struct bpe_merge *out, struct error *err) {
    struct span left, right;
    if (!merge_parts(r, item, &left, &right)) {
        return error_set(err, ERROR_MODEL, "merge %zu is not of two parts", i);
    }
    struct buf *joined = &r->scratch;
    buf_reset(joined);
    buf_append(joined, left.data, left.len);
    buf_append(joined, right.data, right.len);
    if (joined->failed) {
        return error_memory(err);
    }
    out->left = span_index_find(&r->index, left.data, left.len);
    out->right = span_index_find(&r->index, right.data, right.len);
    out->product = joined->len ? span_index_find(&r->index, joined->data, joined->len) : -1;
    if (out->left < 0 || out->right < 0 || out->product < 0) {
        return error_set(err, ERROR_MODEL, "merge %zu is of tokens that are not in the vocabulary", i);
    }
    return 0;
}

static int read_merges(struct reader *r, const cJSON *merges, struct error *err) {
    if (!cJSON_IsArray(merges)) {
        return error_set(err, ERROR_MODEL, "'merges' is missing or is no array");
    }
    size_t n = 0;
    const cJSON *counted;
    cJSON_ArrayForEach(counted, merges) {
        n++;
    }
    struct bpe_merge *list = calloc(n ? n : 1, sizeof *list);
    if (!list) {
        return error_memory(err);
    }
    int rc = 0;
    size_t i = 0;
    for (cJSON *item = merges->child; item && rc == 0; item = item->next, i++) {
        rc = read_merge(r, item, i, &list[i], err);
    }
    if (rc == 0) { /* the library keeps the last of equal merges */
        rc = bpe_set_merges(&r->t->bpe, list, n, true, err);
    }
    free(list);
    return rc;
}

static bool is_set(const cJSON *model, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(model, key);
    return item && !cJSON_IsNull(item) && !(cJSON_IsString(item) && item->valuestring[0] == '\0') &&
           !(cJSON_IsNumber(item) && item->valuedouble == 0);
}

/* The token of each byte: its letter in byte-level vocabularies, else <0xXX> where those are in use. */
static void set_byte_ids(const struct reader *r, int32_t ids[256]) {
    for (size_t byte = 0; byte < 256; byte++) {
        char text[8];
        if (r->byte_level) {
            text[0] = (char)byte;
            ids[byte] = vocab_find(&r->t->vocab, text, 1);
        } else {
            snprintf(text, sizeof text, "<0x%02X>", (unsigned)byte);
            ids[byte] = r->byte_fallback ? span_index_find(&r->index, text, 6) : -1;
        }
    }
}

static int read_bpe(struct reader *r, const cJSON *model, struct error *err) {
    static const char *const unsupported[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix"};
    for (size_t i = 0; i < sizeof unsupported / sizeof unsupported[0]; i++) {
        if (is_set(model, unsupported[i])) {
            return error_set(err, ERROR_MODEL, "'%s' is not supported", unsupported[i]);
        }
    }
    struct bpe *b = &r->t->bpe;
    b->kind = r->byte_level ? BPE_BYTE_LEVEL : BPE_CHARACTERS;
    b->fuse_unknown = flag_of(model, "fuse_unk", false);
    b->ignore_merges = flag_of(model, "ignore_merges", false);
    r->byte_fallback = flag_of(model, "byte_fallback", false);
    cJSON *unknown = cJSON_GetObjectItemCaseSensitive(model, "unk_token");
    b->unknown_id = -1;
    if (read_vocab(r, cJSON_GetObjectItemCaseSensitive(model, "vocab"), err) < 0) {
        return -1;
    }
    if (cJSON_IsString(unknown)) {
        struct span text = text_of(r, unknown->valuestring);
        b->unknown_id = span_index_find(&r->index, text.data, text.len);
    }
    if (read_merges(r, cJSON_GetObjectItemCaseSensitive(model, "merges"), err) < 0 || set_tokens(r, err) < 0) {
        return -1;
    }
    set_byte_ids(r, b->byte_ids);
    return bpe_finish(b, err);
}

/* ---- Unigram ---- */

/* [["token", score], ...]: the ids are the positions. */
static int read_scored_vocab(struct reader *r, const cJSON *vocab, double **scores, struct error *err) {
    size_t n = 0, id = 0;
    const cJSON *counted;
    cJSON_ArrayForEach(counted, vocab) {
        n++;
    }
    if (!cJSON_IsArray(vocab) || n == 0 || n > VOCAB_MAX_TOKENS) {
        return error_set(err, ERROR_MODEL, "'vocab' is missing, empty or too long");
    }
    *scores = calloc(n, sizeof **scores);
    if (!*scores) {
        return error_memory(err);
    }
    if (reserve_texts(r, n, err) < 0) {
        return -1;
    }
    for (const cJSON *item = vocab->child; item; item = item->next, id++) {
        cJSON *text = cJSON_IsArray(item) ? item->child : NULL;
        const cJSON *score = text ? text->next : NULL;
        if (!cJSON_IsString(text) || !cJSON_IsNumber(score)) {
            return error_set(err, ERROR_MODEL, "token %zu of 'vocab' is not a text with a score", id);
        }
        r->texts[id] = text_of(r, text->valuestring);
        (*scores)[id] = score->valuedouble;
    }
    return span_index_build(&r->index, r->texts, r->n_texts, err);
}

static int read_unigram(struct reader *r, const cJSON *model, struct error *err) {
    struct unigram *u = &r->t->unigram;
    double *scores = NULL;
    int64_t unknown = -1;
    r->t->is_unigram = true;
    if (r->byte_level) {
        return error_set(err, ERROR_MODEL, "Unigram behind the pre-tokenizer ByteLevel is not supported");
    }
    r->byte_fallback = flag_of(model, "byte_fallback", false);
    if (read_scored_vocab(r, cJSON_GetObjectItemCaseSensitive(model, "vocab"), &scores, err) < 0 ||
        json_get_int(model, "unk_id", 0, (int64_t)r->n_texts - 1, &unknown, err) < 0 || set_tokens(r, err) < 0) {
        free(scores);
        return -1;
    }
    u->unknown_id = (int32_t)unknown;
    set_byte_ids(r, u->byte_ids);
    return unigram_build(u, &r->t->vocab, scores, r->n_texts, err);
}

static int read_model(struct reader *r, struct error *err) {
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(r->root, "model");
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(model, "type");
    const char *name = cJSON_IsString(type) ? type->valuestring : "";
    int rc;
    r->t->bpe.vocab = &r->t->vocab;
    if (strcmp(name, "BPE") == 0 || (!type && cJSON_GetObjectItemCaseSensitive(model, "merges"))) {
        rc = read_bpe(r, model, err);
    } else if (strcmp(name, "Unigram") == 0) {
        rc = read_unigram(r, model, err);
    } else {
        rc = error_set(err, ERROR_MODEL, "the type '%.60s' is not supported", name);
    }
    return rc < 0 ? error_prefix(err, "model") : 0;
}

static int check_template_ids(const struct tokenizer *t, struct error *err) {
    for (size_t i = 0; i < t->n_prefix + t->n_suffix; i++) {
        int32_t id = i < t->n_prefix ? t->prefix[i] : t->suffix[i - t->n_prefix];
        if ((size_t)id >= t->vocab.n) {
            return error_set(err, ERROR_MODEL, "post_processor: the id %d is not in the vocabulary", id);
        }
    }
    return 0;
}

static int read_all(struct reader *r, const char *json, size_t len, struct error *err) {
    const struct json_limits limits = {.allow_duplicate = true};
    if (replace_nuls(r, json, len, err) < 0 || json_parse(r->copy ? r->copy : json, len, &limits, &r->root, err) < 0) {
        return -1;
    }
    if (!cJSON_IsObject(r->root)) {
        return error_set(err, ERROR_MODEL, "the file is no JSON object");
    }
    const cJSON *decoder = cJSON_GetObjectItemCaseSensitive(r->root, "decoder");
    if (read_normalizer(cJSON_GetObjectItemCaseSensitive(r->root, "normalizer"), &r->t->normalizer, err) < 0 ||
        read_pre_tokenizer(cJSON_GetObjectItemCaseSensitive(r->root, "pre_tokenizer"), &r->t->pre, &r->byte_level,
                           err) < 0 ||
        read_post_processor(cJSON_GetObjectItemCaseSensitive(r->root, "post_processor"), r->t, err) < 0) {
        return -1;
    }
    if ((!decoder || cJSON_IsNull(decoder)) && r->byte_level) {
        r->rules.byte_level = true; /* a byte-level vocabulary can be read in one way only */
    } else if (read_decoder(decoder, &r->rules, err) < 0) {
        return -1;
    }
    r->t->decode_start = r->rules.start;
    r->t->byte_runs = r->rules.byte_fallback;
    return read_model(r, err) < 0 ? -1 : check_template_ids(r->t, err);
}

int tokenizer_from_json(const char *json, size_t len, struct tokenizer **out, struct error *err) {
    struct reader r = {.t = calloc(1, sizeof *r.t)};
    int rc = r.t ? read_all(&r, json, len, err) : error_memory(err);
    if (rc < 0) {
        if (err->code == ERROR_INVALID) { /* what the JSON reader says of a client's text; here it is the file's */
            err->code = ERROR_MODEL;
        }
        tokenizer_free(r.t);
    } else {
        *out = r.t;
    }
    reader_free(&r);
    return rc;
}
