/*
 * Choices of tokens: what is asked goes to the device in one copy (choices, then their edits), the kernel runs once for
 * each CUDA_CHOICE_ROWS rows, and the tokens come back in one copy. They stay on the device too, where feed finds them.
 */
#include "cuda.h"

#include <string.h>

int cuda_choose_reserve(struct backend *b, size_t max_rows, size_t vocab_size, struct error *err) {
    struct cuda_chooser *c = &b->chooser;
    size_t bytes = max_rows * sizeof(struct cuda_choice) + CUDA_CHOICE_EDITS * sizeof(struct logit_edit);
    TRY(cuda_grow(b, &b->scratch, cuda_choose_workspace(vocab_size), "the workspace of choices", err));
    TRY(cuda_grow(b, &c->input, bytes, "choices", err));
    TRY(cuda_grow(b, &c->tokens, max_rows * sizeof(int32_t), "chosen tokens", err));
    if (c->max_rows < max_rows) {
        cuda_slots_close(&c->slots);
        cuda_slots_close(&c->results);
        c->n_waiting = 0;
        TRY(cuda_slots_open(b, &c->slots, bytes, err));
        TRY(cuda_slots_open(b, &c->results, max_rows * sizeof(int32_t), err));
        c->max_rows = max_rows;
    }
    return 0;
}

void cuda_choose_close(struct backend *b) {
    struct cuda_chooser *c = &b->chooser;
    cuda_slots_close(&c->slots);
    cuda_slots_close(&c->results);
    cudaFree(c->input.data);
    cudaFree(c->tokens.data);
    *c = (struct cuda_chooser){0};
}

static struct cuda_choice choice_of(const struct choice_row *r, size_t first_edit) {
    struct cuda_choice c = {
        .logits_row = (uint32_t)r->logits_row,
        .first_edit = (uint32_t)first_edit,
        .n_edits = (uint32_t)r->n_edits,
        .top_k = r->top_k,
        .min_keep = r->min_keep,
        .repetition_penalty = r->repetition_penalty,
        .frequency_penalty = r->frequency_penalty,
        .presence_penalty = r->presence_penalty,
        .temperature = r->temperature,
        .top_p = r->top_p,
        .min_p = r->min_p,
        .greedy = r->greedy,
        .n_stages = r->n_stages,
        .random = r->random,
    };
    memcpy(c.stages, r->stages, sizeof c.stages);
    return c;
}

/* Choices and edits to the device; its edits lie behind max_rows choices. */
static int send(struct backend *b, const struct choice_row *rows, size_t n, struct error *err) {
    struct cuda_chooser *c = &b->chooser;
    void *host;
    size_t n_edits = 0;
    TRY(cuda_slot(b, &c->slots, &host, err));
    struct cuda_choice *choices = host;
    struct logit_edit *edits = (struct logit_edit *)(choices + c->max_rows);
    for (size_t i = 0; i < n; i++) {
        if (rows[i].n_edits > CUDA_CHOICE_EDITS - n_edits) {
            return error_set(err, ERROR_INTERNAL, "choose: more than %d edits of logits", CUDA_CHOICE_EDITS);
        }
        choices[i] = choice_of(&rows[i], n_edits);
        if (rows[i].n_edits > 0) {
            memcpy(edits + n_edits, rows[i].edits, rows[i].n_edits * sizeof *edits);
        }
        n_edits += rows[i].n_edits;
    }
    size_t bytes = n_edits > 0 ? (size_t)((char *)(edits + n_edits) - (char *)host) : n * sizeof *choices;
    TRY(cuda_check(b, cudaMemcpyAsync(c->input.data, host, bytes, cudaMemcpyHostToDevice, b->stream),
                   "a copy to the device", err));
    return cuda_slot_sent(b, &c->slots, err);
}

int cuda_choose_begin(struct backend *b, size_t vocab_size, const struct choice_row *rows, size_t n, struct error *err) {
    const struct cuda_chooser *c = &b->chooser;
    TRY(cuda_alive(b, err));
    if (c->n_waiting == CUDA_SLOTS) {
        return error_set(err, ERROR_INTERNAL, "choose: %d choices were not taken yet", CUDA_SLOTS);
    }
    if (!b->fixed || n > c->max_rows) {
        TRY(cuda_choose_reserve(b, n > c->max_rows ? n : c->max_rows, vocab_size, err));
    }
    return send(b, rows, n, err);
}

int cuda_choose_end(struct backend *b, size_t n, struct error *err) {
    struct cuda_chooser *c = &b->chooser;
    void *result = c->results.slots[(c->results.next + c->n_waiting) % CUDA_SLOTS].host;
    TRY(cuda_check(b, cudaMemcpyAsync(result, c->tokens.data, n * sizeof(int32_t), cudaMemcpyDeviceToHost, b->stream),
                   "a copy to the host", err));
    TRY(cuda_check(b,
                   cudaEventRecord(c->results.slots[(c->results.next + c->n_waiting) % CUDA_SLOTS].copied, b->stream),
                   "an event", err));
    c->n_waiting++;
    return 0;
}

int cuda_op_choose(struct backend *b, const float *logits, size_t ld, size_t vocab_size, const struct choice_row *rows,
                   size_t n, struct error *err) {
    const struct cuda_chooser *c = &b->chooser;
    TRY(cuda_choose_begin(b, vocab_size, rows, n, err));
    const struct cuda_choice *choices = c->input.data;
    const struct logit_edit *edits = (const struct logit_edit *)(choices + c->max_rows);
    int32_t *out = c->tokens.data;
    for (size_t i = 0; i < n; i += CUDA_CHOICE_ROWS) {
        size_t some = n - i < CUDA_CHOICE_ROWS ? n - i : CUDA_CHOICE_ROWS;
        TRY(cuda_check(
            b, cuda_choose(logits, ld, vocab_size, choices + i, edits, some, out + i, b->scratch.data, b->stream),
            "choosing tokens", err));
    }
    return cuda_choose_end(b, n, err);
}

int cuda_op_chosen(struct backend *b, int32_t *tokens, size_t n, struct error *err) {
    struct cuda_chooser *c = &b->chooser;
    TRY(cuda_alive(b, err));
    if (c->n_waiting == 0 || n > c->max_rows) {
        return error_set(err, ERROR_INTERNAL, "chosen: there is no choice of %zu tokens", n);
    }
    TRY(cuda_wait(b, c->results.slots[c->results.next].copied, "waiting for the device", err));
    memcpy(tokens, c->results.slots[c->results.next].host, n * sizeof *tokens);
    c->results.next = (c->results.next + 1) % CUDA_SLOTS;
    c->n_waiting--;
    return 0;
}

int cuda_op_feed(struct backend *b, int32_t *token_ids, size_t n, struct error *err) {
    TRY(cuda_alive(b, err));
    return cuda_check(b, cuda_feed(token_ids, b->chooser.tokens.data, n, b->stream), "passing tokens on", err);
}
