/*
 * The arrays of a step: copied into one of two pinned slots, from there by one or two asynchronous copies to where kernels
 * and graphs look for them. The copy is queued behind the step before, which reads the same memory.
 *
 * Layout, in elements: token_ids, positions, slot_mapping, logit_rows [max_rows] each, cu_seqlens [max_sequences + 1],
 * context_lens [max_sequences], block_tables [max_sequences][max_blocks].
 */
#include "cuda.h"

#include <string.h>

struct layout {
    size_t token_ids, positions, slot_mapping, logit_rows, cu_seqlens, context_lens, block_tables;
};

static struct layout layout_of(const struct cuda_step *s) {
    struct layout l = {.positions = s->max_rows, .slot_mapping = 2 * s->max_rows, .logit_rows = 3 * s->max_rows};
    l.cu_seqlens = 4 * s->max_rows;
    l.context_lens = l.cu_seqlens + s->max_sequences + 1;
    l.block_tables = l.context_lens + s->max_sequences;
    return l;
}

int cuda_step_reserve(struct backend *b, size_t max_rows, size_t max_sequences, size_t max_blocks, struct error *err) {
    struct cuda_step *s = &b->step;
    size_t table, bytes;
    if (s->arrays.data && max_rows <= s->max_rows && max_sequences <= s->max_sequences && max_blocks == s->max_blocks) {
        return 0;
    }
    if (max_rows > SIZE_MAX / 64 || max_sequences > SIZE_MAX / 64 || __builtin_mul_overflow(max_sequences, max_blocks, &table) ||
        __builtin_add_overflow(table, 4 * max_rows + 2 * max_sequences + 1, &bytes) ||
        __builtin_mul_overflow(bytes, sizeof(int32_t), &bytes)) {
        return error_memory(err);
    }
    TRY(cuda_grow(b, &s->arrays, bytes, "the arrays of a step", err));
    if (b->fixed) {
        return error_set(err, ERROR_INTERNAL, "a step has larger arrays than were reserved");
    }
    TRY(cuda_wait(b, NULL, "waiting for the device", err));
    cuda_slots_close(&s->slots);
    TRY(cuda_slots_open(b, &s->slots, bytes, err));
    s->max_rows = max_rows;
    s->max_sequences = max_sequences;
    s->max_blocks = max_blocks;
    return 0;
}

void cuda_step_close(struct backend *b) {
    cuda_slots_close(&b->step.slots);
    cudaFree(b->step.arrays.data);
}

static void fill(int32_t *to, const int32_t *from, size_t n) {
    if (n > 0) {
        memcpy(to, from, n * sizeof *to);
    }
}

/* The arrays but block_tables. */
static void fill_slot(int32_t *slot, const struct layout *l, const struct step_arrays *a) {
    fill(slot + l->token_ids, a->token_ids, a->rows);
    fill(slot + l->positions, a->positions, a->rows);
    fill(slot + l->slot_mapping, a->slot_mapping, a->rows);
    fill(slot + l->logit_rows, a->logit_rows, a->n_logits);
    fill(slot + l->cu_seqlens, a->cu_seqlens, a->n_sequences + 1);
    fill(slot + l->context_lens, a->context_lens, a->n_sequences);
}

int cuda_step_begin(struct backend *b, const struct step_arrays *host, struct step_arrays *device, struct error *err) {
    struct cuda_step *s = &b->step;
    void *pinned;
    TRY(cuda_alive(b, err));
    size_t rows = host->rows > host->n_logits ? host->rows : host->n_logits;
    TRY(cuda_step_reserve(b, rows, host->n_sequences, host->max_blocks, err));
    struct layout l = layout_of(s);
    int32_t *to = s->arrays.data;
    TRY(cuda_slot(b, &s->slots, &pinned, err));
    int32_t *slot = pinned;
    fill_slot(slot, &l, host);
    size_t width = host->used_blocks * sizeof(int32_t), pitch = host->max_blocks * sizeof(int32_t);
    for (size_t i = 0; i < host->n_sequences; i++) {
        fill(slot + l.block_tables + i * host->max_blocks, host->block_tables + i * host->max_blocks, host->used_blocks);
    }
    TRY(cuda_check(b, cudaMemcpyAsync(to, slot, l.block_tables * sizeof(int32_t), cudaMemcpyHostToDevice, b->stream),
                   "a copy to the device", err));
    if (width > 0 && host->n_sequences > 0) {
        TRY(cuda_check(b, cudaMemcpy2DAsync(to + l.block_tables, pitch, slot + l.block_tables, pitch, width, host->n_sequences,
                                            cudaMemcpyHostToDevice, b->stream),
                       "a copy to the device", err));
    }
    TRY(cuda_slot_sent(b, &s->slots, err));
    *device = *host;
    device->token_ids = to + l.token_ids;
    device->positions = to + l.positions;
    device->slot_mapping = to + l.slot_mapping;
    device->logit_rows = to + l.logit_rows;
    device->cu_seqlens = to + l.cu_seqlens;
    device->context_lens = to + l.context_lens;
    device->block_tables = to + l.block_tables;
    return 0;
}
