/* A GGUF's vocabulary as a tokenizer.json: the same tokens, merges, words and ends. */
#include "text/tokenizer.h"

#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

#define SPACE "\xe2\x96\x81" /* U+2581 */

static bool is_byte_level(const struct vocab_source *s) {
    return strcmp(s->model, "gpt2") == 0;
}

static unsigned type_of(const struct vocab_source *s, size_t id) {
    return s->types ? s->types[id] : VOCAB_NORMAL;
}

static void put_span(struct buf *out, struct span s) {
    buf_json_string(out, s.data, s.len);
}

static void put_added(const struct vocab_source *s, struct buf *out) {
    bool more = false;
    buf_puts(out, "\"added_tokens\":[");
    for (size_t id = 0; id < s->n_tokens; id++) {
        bool special = vocab_needs_trust(s, id);
        if ((!special && type_of(s, id) != VOCAB_USER_DEFINED) || s->tokens[id].len == 0) {
            continue;
        }
        buf_printf(out, "%s\n{\"id\":%zu,\"content\":", more ? "," : "", id);
        put_span(out, s->tokens[id]);
        buf_printf(out, ",\"single_word\":false,\"lstrip\":false,\"rstrip\":%s,\"normalized\":false,\"special\":%s}",
                   vocab_strips_right(s, id) ? "true" : "false", special ? "true" : "false");
        more = true;
    }
    buf_puts(out, "],\n");
}

/* Of two tokens with the same text the first counts, as for the reader of the GGUF. */
static void put_vocab(const struct vocab_source *s, const struct span_index *texts, struct buf *out) {
    bool more = false;
    buf_puts(out, "\"vocab\":{");
    for (size_t id = 0; id < s->n_tokens; id++) {
        if (s->tokens[id].len > 0 && span_index_find(texts, s->tokens[id].data, s->tokens[id].len) == (int32_t)id) {
            buf_puts(out, more ? ",\n" : "\n");
            put_span(out, s->tokens[id]);
            buf_printf(out, ":%zu", id);
            more = true;
        }
    }
    buf_puts(out, "},\n");
}

/* ---- merges ---- */

static bool is_mergeable(const struct vocab_source *s, const struct span_index *texts, const char *text, size_t len) {
    int32_t id = span_index_find(texts, text, len);
    return id >= 0 && (type_of(s, (size_t)id) == VOCAB_NORMAL || type_of(s, (size_t)id) == VOCAB_USER_DEFINED);
}

static void put_merge(struct buf *out, bool more, struct span left, struct span right) {
    buf_puts(out, more ? ",\n[" : "\n[");
    put_span(out, left);
    buf_puts(out, ",");
    put_span(out, right);
    buf_puts(out, "]");
}

/* "left right": the space is looked for from the second byte on, since a part may begin with one. */
static void put_listed_merges(const struct vocab_source *s, const struct span_index *texts, struct buf *out) {
    struct buf joined = BUF_INIT;
    bool more = false;
    for (size_t i = 0; i < s->n_merges; i++) {
        struct span m = s->merges[i];
        const char *space = m.len > 2 ? memchr(m.data + 1, ' ', m.len - 1) : NULL;
        if (!space) {
            continue;
        }
        struct span left = {m.data, (size_t)(space - m.data)}, right = {space + 1, m.len - left.len - 1};
        buf_reset(&joined);
        buf_append(&joined, left.data, left.len);
        buf_append(&joined, right.data, right.len);
        if (!joined.failed && is_mergeable(s, texts, left.data, left.len) &&
            is_mergeable(s, texts, right.data, right.len) && is_mergeable(s, texts, joined.data, joined.len)) {
            put_merge(out, more, left, right);
            more = true;
        }
    }
    out->failed = out->failed || joined.failed;
    buf_free(&joined);
}

struct scored_merge {
    float score;
    uint32_t product, left; /* the token, and how many of its bytes are the left part */
};

/* The best score first; among the ways to one token, the longest left part. */
static int compare_merges(const void *a, const void *b) {
    const struct scored_merge *x = a, *y = b;
    if (x->score != y->score) {
        return x->score > y->score ? -1 : 1;
    }
    if (x->product != y->product) {
        return x->product < y->product ? -1 : 1;
    }
    return x->left > y->left ? -1 : x->left < y->left;
}

struct merge_list {
    struct scored_merge *items;
    size_t n, cap;
};

static bool push_merge(struct merge_list *l, struct scored_merge m) {
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 1024;
        struct scored_merge *more = reallocarray(l->items, cap, sizeof *more);
        if (!more) {
            return false;
        }
        l->items = more;
        l->cap = cap;
    }
    l->items[l->n++] = m;
    return true;
}

/* Each way to put a token together from two others. */
static bool split_token(const struct vocab_source *s, const struct span_index *texts, size_t id, struct merge_list *l) {
    struct span t = s->tokens[id];
    bool valid;
    if (t.len > VOCAB_MAX_TOKEN_BYTES || !utf8_is_valid(t.data, t.len) || !is_mergeable(s, texts, t.data, t.len) ||
        span_index_find(texts, t.data, t.len) != (int32_t)id) {
        return true;
    }
    for (size_t at = t.len > 0 ? utf8_sequence(t.data, t.len, &valid) : 0; at < t.len;
         at += utf8_sequence(t.data + at, t.len - at, &valid)) {
        if (is_mergeable(s, texts, t.data, at) && is_mergeable(s, texts, t.data + at, t.len - at) &&
            !push_merge(l, (struct scored_merge){s->scores ? s->scores[id] : 0, (uint32_t)id, (uint32_t)at})) {
            return false;
        }
    }
    return true;
}

static void put_scored_merges(const struct vocab_source *s, const struct span_index *texts, struct buf *out) {
    struct merge_list l = {0};
    bool ok = true;
    for (size_t id = 0; ok && id < s->n_tokens; id++) {
        ok = split_token(s, texts, id, &l);
    }
    if (l.n > 0) {
        qsort(l.items, l.n, sizeof *l.items, compare_merges);
    }
    for (size_t i = 0; ok && i < l.n; i++) {
        struct span t = s->tokens[l.items[i].product];
        put_merge(out, i > 0, (struct span){t.data, l.items[i].left},
                  (struct span){t.data + l.items[i].left, t.len - l.items[i].left});
    }
    out->failed = out->failed || !ok;
    free(l.items);
}

/* ---- the parts around the model ---- */

static void put_template_piece(struct buf *out, struct span token) {
    buf_puts(out, "{\"SpecialToken\":{\"id\":");
    put_span(out, token);
    buf_puts(out, ",\"type_id\":0}}");
}

static void put_template_token(struct buf *out, const struct vocab_source *s, int32_t id) {
    put_span(out, s->tokens[id]);
    buf_puts(out, ":{\"id\":");
    put_span(out, s->tokens[id]);
    buf_printf(out, ",\"ids\":[%d],\"tokens\":[", (int)id);
    put_span(out, s->tokens[id]);
    buf_puts(out, "]}");
}

/* What TEXT_ADD_SPECIAL puts before and behind. */
static void put_ends(const struct vocab_source *s, bool bos, bool eos, struct buf *out) {
    if (!bos && !eos) {
        buf_puts(out, "\"post_processor\":null,\n");
        return;
    }
    buf_puts(out, "\"post_processor\":{\"type\":\"TemplateProcessing\",");
    for (int pair = 0; pair < 2; pair++) {
        buf_printf(out, "\"%s\":[", pair ? "pair" : "single");
        for (int part = 0; part <= pair; part++) {
            buf_puts(out, part ? "," : "");
            if (bos) {
                put_template_piece(out, s->tokens[s->bos_id]);
                buf_puts(out, ",");
            }
            buf_printf(out, "{\"Sequence\":{\"id\":\"%s\",\"type_id\":0}}", part ? "B" : "A");
            if (eos) {
                buf_puts(out, ",");
                put_template_piece(out, s->tokens[s->eos_id]);
            }
        }
        buf_puts(out, "],");
    }
    buf_puts(out, "\"special_tokens\":{");
    if (bos) {
        put_template_token(out, s, s->bos_id);
    }
    if (eos && !(bos && s->eos_id == s->bos_id)) {
        buf_puts(out, bos ? "," : "");
        put_template_token(out, s, s->eos_id);
    }
    buf_puts(out, "}},\n");
}

static int put_byte_level(const struct vocab_source *s, bool *add_bos, bool *ignore_merges, struct buf *out,
                          struct error *err) {
    struct pre_kind_info info;
    buf_puts(out, "\"normalizer\":null,\n\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[");
    if (pre_kind_json(s->pre && s->pre[0] ? s->pre : "default", &info, out, err) < 0) {
        return -1;
    }
    buf_puts(out, "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false}]},\n"
                  "\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},\n");
    *add_bos = info.add_bos;
    *ignore_merges = info.ignore_merges;
    return 0;
}

static void put_sentencepiece(const struct vocab_source *s, struct buf *out) {
    bool prefix = s->add_space_prefix != 0;
    buf_puts(out, "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[");
    buf_puts(out, prefix ? "{\"type\":\"Prepend\",\"prepend\":\"" SPACE "\"}," : "");
    buf_puts(out, "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" SPACE "\"}]},\n"
                  "\"pre_tokenizer\":null,\n\"decoder\":{\"type\":\"Sequence\",\"decoders\":["
                  "{\"type\":\"Replace\",\"pattern\":{\"String\":\"" SPACE "\"},\"content\":\" \"},"
                  "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}");
    buf_puts(out, prefix ? ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]},\n" : "]},\n");
}

static bool has_bytes(const struct vocab_source *s) {
    for (size_t id = 0; id < s->n_tokens; id++) {
        if (type_of(s, id) == VOCAB_BYTE) {
            return true;
        }
    }
    return false;
}

int tokenizer_vocab_json(const struct vocab_source *s, struct buf *out, struct error *err) {
    struct span_index texts = {0};
    bool byte_level = is_byte_level(s), add_bos = !byte_level, ignore_merges = false;
    buf_puts(out, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\n");
    put_added(s, out);
    if (byte_level && put_byte_level(s, &add_bos, &ignore_merges, out, err) < 0) {
        return -1;
    }
    if (!byte_level) {
        put_sentencepiece(s, out);
    }
    add_bos = s->add_bos >= 0 ? s->add_bos : add_bos;
    put_ends(s, add_bos && s->bos_id >= 0, s->add_eos > 0 && s->eos_id >= 0, out);
    if (span_index_build(&texts, s->tokens, s->n_tokens, err) < 0) {
        return -1;
    }
    buf_puts(out, "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":");
    if (!byte_level && s->unknown_id >= 0) {
        put_span(out, s->tokens[s->unknown_id]);
    } else {
        buf_puts(out, "null");
    }
    buf_printf(out,
               ",\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":%s,\"byte_fallback\":%s,"
               "\"ignore_merges\":%s,\n",
               byte_level ? "false" : "true", !byte_level && has_bytes(s) ? "true" : "false",
               ignore_merges ? "true" : "false");
    put_vocab(s, &texts, out);
    buf_puts(out, "\"merges\":[");
    if (byte_level) {
        put_listed_merges(s, &texts, out);
    } else {
        put_scored_merges(s, &texts, out);
    }
    buf_puts(out, "]}}\n");
    free(texts.slots);
    return out->failed ? error_memory(err) : 0;
}
