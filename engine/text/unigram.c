#include "text/unigram.h"

#include "text/unicode_class.h"

#include <stdlib.h>

#define UNKNOWN_PENALTY 10.0 /* below the worst token, as in SentencePiece */

int unigram_build(struct unigram *u, const struct vocab *v, double *scores, size_t n, struct error *err) {
    u->scores = scores;
    u->n = n;
    double worst = 0;
    for (size_t id = 0; id < n; id++) {
        worst = id == 0 || scores[id] < worst ? scores[id] : worst;
        if (!(v->tokens[id].flags & TOKEN_ORDINARY)) {
            continue;
        }
        struct span key = vocab_key(v, (uint32_t)id);
        uint32_t *value = trie_at(&u->trie, key.data, key.len);
        if (!value) {
            return error_memory(err);
        }
        *value = (uint32_t)id + 1; /* of equal texts the last counts */
    }
    u->unknown_score = worst - UNKNOWN_PENALTY;
    return 0;
}

void unigram_free(struct unigram *u) {
    trie_free(&u->trie);
    free(u->scores);
    *u = (struct unigram){0};
}

static void offer(struct unigram_node *end, double score, size_t start, int32_t id) {
    if (end->start == UINT32_MAX || score > end->score) {
        *end = (struct unigram_node){score, (uint32_t)start, id};
    }
}

/* Returns how many steps in the trie it took. */
static size_t find_paths(const struct unigram *u, struct unigram_node *nodes, const char *text, size_t len) {
    size_t steps = 0;
    for (size_t i = 0; i <= len; i++) {
        nodes[i].start = UINT32_MAX;
    }
    nodes[0].score = 0;
    for (size_t i = 0, n; i < len; i += n) {
        n = utf8_length(text[i]);
        bool covered = false;
        uint32_t node = 0;
        for (size_t j = i; j < len && (node = trie_step(&u->trie, node, (unsigned char)text[j])) != 0; j++) {
            steps++;
            if (u->trie.value[node]) {
                int32_t id = (int32_t)u->trie.value[node] - 1;
                offer(&nodes[j + 1], nodes[i].score + u->scores[id], i, id);
                covered |= j + 1 == i + n;
            }
        }
        if (!covered) {
            offer(&nodes[i + n], nodes[i].score + u->unknown_score, i, u->unknown_id);
        }
    }
    return steps;
}

/* The token of this text, -1 if none. */
static int32_t find_token(const struct unigram *u, const char *text, size_t len) {
    uint32_t node = 0;
    for (size_t i = 0; i < len; i++) {
        node = trie_step(&u->trie, node, (unsigned char)text[i]);
        if (node == 0) {
            return -1;
        }
    }
    return (int32_t)u->trie.value[node] - 1;
}

/* A run of unknown characters: its bytes, last first, or one unknown token. "<unk>" in the text is that token. */
static int push_unknown(const struct unigram *u, const char *text, size_t len, struct tokens *out, struct error *err) {
    bool bytes = find_token(u, text, len) < 0;
    for (size_t i = 0; i < len; i++) {
        bytes &= u->byte_ids[(unsigned char)text[i]] >= 0;
    }
    if (!bytes) {
        if (u->unknown_id < 0) {
            return error_set(err, ERROR_INVALID, "the text has a character that the model's vocabulary does not cover");
        }
        return tokens_push(out, u->unknown_id, err);
    }
    for (size_t i = len; i > 0; i--) {
        if (tokens_push(out, u->byte_ids[(unsigned char)text[i - 1]], err) < 0) {
            return -1;
        }
    }
    return 0;
}

/* The tokens of the best path, last first. */
static int push_path(const struct unigram *u, const struct unigram_node *nodes, const char *text, size_t len,
                     struct tokens *out, struct error *err) {
    size_t unknown_end = 0; /* where the run of unknown characters ends, 0: in none */
    for (size_t end = len; end > 0; end = nodes[end].start) {
        if (nodes[end].id == u->unknown_id) {
            unknown_end = unknown_end ? unknown_end : end;
            continue;
        }
        if (unknown_end && push_unknown(u, text + end, unknown_end - end, out, err) < 0) {
            return -1;
        }
        unknown_end = 0;
        if (tokens_push(out, nodes[end].id, err) < 0) {
            return -1;
        }
    }
    return unknown_end ? push_unknown(u, text, unknown_end, out, err) : 0;
}

int unigram_encode(const struct unigram *u, struct unigram_scratch *s, const char *text, size_t len, struct tokens *out,
                   struct error *err) {
    if (len + 1 > s->cap) {
        struct unigram_node *nodes = realloc(s->nodes, (len + 1) * sizeof *nodes);
        if (!nodes) {
            return error_memory(err);
        }
        s->nodes = nodes;
        s->cap = len + 1;
    }
    s->steps += find_paths(u, s->nodes, text, len);
    size_t first = out->n;
    if (push_path(u, s->nodes, text, len, out, err) < 0) {
        return -1;
    }
    for (size_t i = first, j = out->n; i + 1 < j; i++) {
        int32_t id = out->ids[i];
        out->ids[i] = out->ids[--j];
        out->ids[j] = id;
    }
    return 0;
}
