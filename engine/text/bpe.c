#include "text/bpe.h"

#include "base/checked.h"
#include "text/unicode_class.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { WHOLE_UNKNOWN, WHOLE_YES, WHOLE_NO };
#define NO_RANK UINT32_MAX
#define SHORT_WORD 32 /* symbols up to which scanning for the best pair beats a heap */

/* ---- building ---- */

static uint64_t pair_key(int32_t left, int32_t right) {
    return ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) + 1;
}

static size_t merge_slot(const struct bpe *b, uint64_t key) {
    size_t i = (size_t)(key * 0x9e3779b97f4a7c15u >> 24) & b->mask;
    while (b->merges[i].key != 0 && b->merges[i].key != key) {
        i = (i + 1) & b->mask;
    }
    return i;
}

int bpe_set_merges(struct bpe *b, const struct bpe_merge *merges, size_t n, bool last_wins, struct error *err) {
    if (n >= UINT32_MAX / 4) {
        return error_set(err, ERROR_MODEL, "%zu merges are more than supported", n);
    }
    size_t cap = 16;
    while (cap < n * 2) {
        cap *= 2;
    }
    b->merges = calloc(cap, sizeof *b->merges);
    if (!b->merges) {
        return error_memory(err);
    }
    b->mask = cap - 1;
    for (size_t i = 0; i < n; i++) {
        uint64_t key = pair_key(merges[i].left, merges[i].right);
        struct merge_slot *slot = &b->merges[merge_slot(b, key)];
        if (slot->key == 0 || last_wins) {
            *slot = (struct merge_slot){key, (uint32_t)i, merges[i].product};
        }
    }
    return 0;
}

struct scored {
    float score;
    uint32_t id;
};

static int by_score_descending(const void *a, const void *b) {
    float x = ((const struct scored *)a)->score, y = ((const struct scored *)b)->score;
    return (x < y) - (x > y);
}

/* Equal scores get equal ranks, so that the leftmost of equal pairs goes first. */
int bpe_set_scores(struct bpe *b, const float *scores, struct error *err) {
    size_t n = b->vocab->n;
    struct scored *sorted = calloc(n ? n : 1, sizeof *sorted);
    b->score_rank = calloc(n ? n : 1, sizeof *b->score_rank);
    if (!sorted || !b->score_rank) {
        free(sorted);
        return error_memory(err);
    }
    for (size_t i = 0; i < n; i++) {
        if (scores[i] != scores[i]) {
            free(sorted);
            return error_set(err, ERROR_MODEL, "the score of token %zu is not a number", i);
        }
        sorted[i] = (struct scored){scores[i], (uint32_t)i};
    }
    qsort(sorted, n, sizeof *sorted, by_score_descending);
    uint32_t rank = 0;
    for (size_t i = 0; i < n; i++) {
        rank += i > 0 && sorted[i].score < sorted[i - 1].score;
        b->score_rank[sorted[i].id] = rank;
    }
    free(sorted);
    return 0;
}

static bool merges_byte_tokens(const struct bpe *b) {
    for (size_t i = 0; b->merges && i <= b->mask; i++) {
        if (b->merges[i].key == 0) {
            continue;
        }
        uint64_t pair = b->merges[i].key - 1;
        if ((b->vocab->tokens[pair >> 32].flags | b->vocab->tokens[(uint32_t)pair].flags) & TOKEN_BYTE) {
            return true;
        }
    }
    return false;
}

static bool covers_all_bytes(const struct bpe *b) {
    for (size_t i = 0; i < 256; i++) {
        if (b->byte_ids[i] < 0) {
            return false;
        }
    }
    return true;
}

int bpe_finish(struct bpe *b, struct error *err) {
    b->whole = calloc(b->vocab->n ? b->vocab->n : 1, 1);
    if (!b->whole) {
        return error_memory(err);
    }
    /* A cut must not part a run of unknown characters that would be fused, nor byte tokens that merge. */
    bool may_cut = b->kind == BPE_SCORES ||
                   (b->kind == BPE_CHARACTERS && covers_all_bytes(b) && !b->ignore_merges && !merges_byte_tokens(b));
    return may_cut ? adjacency_build(&b->adjacency, b->vocab, err) : 0;
}

void bpe_free(struct bpe *b) {
    free(b->merges);
    free(b->score_rank);
    free((void *)b->whole);
    adjacency_free(&b->adjacency);
    *b = (struct bpe){0};
}

void bpe_scratch_free(struct bpe_scratch *s) {
    free(s->symbols);
    free(s->heap);
    *s = (struct bpe_scratch){0};
}

/* ---- the symbols that a word starts from ---- */

static bool reserve_symbols(struct bpe_scratch *s, size_t n) {
    if (n <= s->cap_symbols) {
        return true;
    }
    size_t cap = s->cap_symbols * 2 > n ? s->cap_symbols * 2 : n;
    struct bpe_symbol *symbols = realloc(s->symbols, cap * sizeof *symbols);
    if (!symbols) {
        return false;
    }
    s->symbols = symbols;
    s->cap_symbols = cap;
    return true;
}

static void add_symbol(struct bpe_scratch *s, int32_t id, size_t start, size_t len) {
    s->symbols[s->n_symbols++] = (struct bpe_symbol){.id = id, .start = (uint32_t)start, .len = (uint32_t)len};
}

static void split_bytes(const struct bpe *b, struct bpe_scratch *s, const char *word, size_t len) {
    for (size_t i = 0; i < len; i++) {
        int32_t id = b->byte_ids[(unsigned char)word[i]];
        if (id >= 0 || b->keep_unknown) {
            add_symbol(s, id, i, 1);
        } else if (b->unknown_id >= 0) {
            bool fuse = b->fuse_unknown && s->n_symbols > 0 && s->symbols[s->n_symbols - 1].id == b->unknown_id;
            if (fuse) {
                s->symbols[s->n_symbols - 1].len++;
            } else {
                add_symbol(s, b->unknown_id, i, 1);
            }
        }
    }
}

static bool bytes_have_tokens(const struct bpe *b, const char *s, size_t len) {
    for (size_t i = 0; i < len; i++) {
        if (b->byte_ids[(unsigned char)s[i]] < 0) {
            return false;
        }
    }
    return true;
}

/*
 * The unknown token is held back, as the tokenizers library holds it, until a character that is a token follows, or
 * another unknown one that it is not fused with: bytes of characters that follow it come before it.
 */
static void split_characters(const struct bpe *b, struct bpe_scratch *s, const char *word, size_t len) {
    size_t unknown = 0, unknown_len = 0; /* the one held back, if it has a length */
    for (size_t i = 0, n; i < len; i += n) {
        n = utf8_length(word[i]);
        int32_t id = vocab_find(b->vocab, word + i, n);
        bool bytes = id < 0 && b->kind != BPE_SCORES && bytes_have_tokens(b, word + i, n);
        bool is_unknown = id < 0 && b->kind != BPE_SCORES && !bytes;
        if (unknown_len > 0 && !bytes && !(is_unknown && b->fuse_unknown)) {
            add_symbol(s, b->unknown_id, unknown, unknown_len);
            unknown_len = 0;
        }
        for (size_t j = 0; bytes && j < n; j++) {
            add_symbol(s, b->byte_ids[(unsigned char)word[i + j]], i + j, 1);
        }
        if (is_unknown && b->unknown_id >= 0) {
            unknown = unknown_len > 0 ? unknown : i;
            unknown_len += n;
        } else if (!is_unknown && !bytes) {
            add_symbol(s, id, i, n);
        }
    }
    if (unknown_len > 0) {
        add_symbol(s, b->unknown_id, unknown, unknown_len);
    }
}

/* ---- merging ---- */

/* The rank of joining two neighbours (lower goes first) and what they become; NO_RANK if they cannot be joined. */
static uint32_t join(const struct bpe *b, const char *word, const struct bpe_symbol *left,
                     const struct bpe_symbol *right, int32_t *product) {
    if (b->kind == BPE_SCORES) {
        int32_t id = vocab_find(b->vocab, word + left->start, left->len + right->len);
        *product = id;
        return id < 0 ? NO_RANK : b->score_rank[id];
    }
    if (left->id < 0 || right->id < 0) {
        return NO_RANK;
    }
    const struct merge_slot *slot = &b->merges[merge_slot(b, pair_key(left->id, right->id))];
    *product = slot->product;
    return slot->key == 0 ? NO_RANK : slot->rank;
}

/* Few symbols: look through all pairs each time. Symbols stay packed. */
static void merge_short(const struct bpe *b, struct bpe_scratch *s, const char *word) {
    uint32_t rank[SHORT_WORD];
    int32_t product[SHORT_WORD];
    struct bpe_symbol *sym = s->symbols;
    size_t n = s->n_symbols;
    for (size_t i = 0; i + 1 < n; i++) {
        rank[i] = join(b, word, &sym[i], &sym[i + 1], &product[i]);
    }
    s->steps += n; /* at most SHORT_WORD times that */
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++) {
            best = rank[i] < rank[best] ? i : best;
        }
        if (rank[best] == NO_RANK) {
            break;
        }
        sym[best].id = product[best];
        sym[best].len += sym[best + 1].len;
        n--;
        memmove(sym + best + 1, sym + best + 2, (n - best - 1) * sizeof *sym);
        if (best + 1 < n) {
            memmove(rank + best + 1, rank + best + 2, (n - best - 2) * sizeof *rank);
            memmove(product + best + 1, product + best + 2, (n - best - 2) * sizeof *product);
            rank[best] = join(b, word, &sym[best], &sym[best + 1], &product[best]);
        }
        if (best > 0) {
            rank[best - 1] = join(b, word, &sym[best - 1], &sym[best], &product[best - 1]);
        }
    }
    s->n_symbols = n;
}

static bool goes_before(const struct bpe_candidate *a, const struct bpe_candidate *b) {
    return a->rank < b->rank || (a->rank == b->rank && a->at < b->at);
}

static void sift_down(struct bpe_candidate *heap, size_t n, size_t i) {
    struct bpe_candidate moving = heap[i];
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        child += child + 1 < n && goes_before(&heap[child + 1], &heap[child]);
        if (!goes_before(&heap[child], &moving)) {
            break;
        }
        heap[i] = heap[child];
    }
    heap[i] = moving;
}

static bool heap_push(struct bpe_scratch *s, struct bpe_candidate c) {
    if (s->n_heap == s->cap_heap) {
        size_t cap = s->cap_heap ? s->cap_heap * 2 : 256;
        struct bpe_candidate *heap = realloc(s->heap, cap * sizeof *heap);
        if (!heap) {
            return false;
        }
        s->heap = heap;
        s->cap_heap = cap;
    }
    size_t i = s->n_heap++;
    for (; i > 0 && goes_before(&c, &s->heap[(i - 1) / 2]); i = (i - 1) / 2) {
        s->heap[i] = s->heap[(i - 1) / 2];
    }
    s->heap[i] = c;
    return true;
}

static bool push_pair(const struct bpe *b, struct bpe_scratch *s, const char *word, int32_t left) {
    int32_t right = left < 0 ? -1 : s->symbols[left].next;
    if (right < 0) {
        return true;
    }
    s->steps++;
    struct bpe_candidate c = {.at = (uint32_t)left, .len = s->symbols[left].len + s->symbols[right].len};
    c.rank = join(b, word, &s->symbols[left], &s->symbols[right], &c.product);
    return c.rank == NO_RANK || heap_push(s, c);
}

/* Many symbols: candidates wait in a heap; one whose symbols have changed since (its length shows it) is dropped. */
static bool merge_long(const struct bpe *b, struct bpe_scratch *s, const char *word) {
    size_t n = s->n_symbols;
    for (size_t i = 0; i < n; i++) {
        s->symbols[i].prev = (int32_t)i - 1;
        s->symbols[i].next = i + 1 < n ? (int32_t)i + 1 : -1;
    }
    s->n_heap = 0;
    for (size_t i = 0; i + 1 < n; i++) {
        if (!push_pair(b, s, word, (int32_t)i)) {
            return false;
        }
    }
    while (s->n_heap > 0) {
        struct bpe_candidate top = s->heap[0];
        s->steps++;
        s->heap[0] = s->heap[--s->n_heap];
        sift_down(s->heap, s->n_heap, 0);
        struct bpe_symbol *left = &s->symbols[top.at];
        if (left->len == 0 || left->next < 0 || left->len + s->symbols[left->next].len != top.len) {
            continue;
        }
        struct bpe_symbol *right = &s->symbols[left->next];
        left->id = top.product;
        left->len = top.len;
        left->next = right->next;
        right->len = 0; /* gone */
        if (left->next >= 0) {
            s->symbols[left->next].prev = (int32_t)top.at;
        }
        if (!push_pair(b, s, word, left->prev) || !push_pair(b, s, word, (int32_t)top.at)) {
            return false;
        }
    }
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        if (s->symbols[i].len > 0) {
            s->symbols[kept++] = s->symbols[i];
        }
    }
    s->n_symbols = kept;
    return true;
}

/* ---- encoding ---- */

static int push_symbols(const struct bpe *b, const struct bpe_scratch *s, const char *word, struct tokens *out,
                        struct error *err) {
    for (size_t i = 0; i < s->n_symbols; i++) {
        const struct bpe_symbol *sym = &s->symbols[i];
        if (sym->id >= 0) {
            if (tokens_push(out, sym->id, err) < 0) {
                return -1;
            }
            continue;
        }
        /* A character that is no token: its bytes. (A byte-level byte without a token is left out.) */
        for (size_t j = 0; b->kind == BPE_SCORES && j < sym->len; j++) {
            int32_t id = b->byte_ids[(unsigned char)word[sym->start + j]];
            id = id < 0 ? b->unknown_id : id;
            if (id >= 0 && tokens_push(out, id, err) < 0) {
                return -1;
            }
        }
    }
    return 0;
}

static int encode_word(const struct bpe *b, struct bpe_scratch *s, const char *word, size_t len, struct tokens *out,
                       struct error *err) {
    int32_t id = vocab_find(b->vocab, word, len);
    unsigned char whole = WHOLE_UNKNOWN;
    if (id >= 0) {
        whole = atomic_load_explicit(&b->whole[id], memory_order_relaxed);
        if (whole == WHOLE_YES || b->ignore_merges) {
            return tokens_push(out, id, err);
        }
    }
    if (!reserve_symbols(s, len)) {
        return error_memory(err);
    }
    s->n_symbols = 0;
    if (b->kind == BPE_BYTE_LEVEL) {
        split_bytes(b, s, word, len);
    } else {
        split_characters(b, s, word, len);
    }
    if (s->n_symbols <= SHORT_WORD) {
        merge_short(b, s, word);
    } else if (!merge_long(b, s, word)) {
        return error_memory(err);
    }
    if (id >= 0 && whole == WHOLE_UNKNOWN) {
        bool itself = s->n_symbols == 1 && s->symbols[0].id == id;
        atomic_store_explicit(&b->whole[id], itself ? WHOLE_YES : WHOLE_NO, memory_order_relaxed);
    }
    return push_symbols(b, s, word, out, err);
}

int bpe_encode(const struct bpe *b, struct bpe_scratch *s, const char *text, size_t len, struct tokens *out,
               struct error *err) {
    for (size_t i = 0, part; i < len; i += part) {
        part = adjacency_part(&b->adjacency, text + i, len - i);
        if (encode_word(b, s, text + i, part, out, err) < 0) {
            return -1;
        }
    }
    return 0;
}
