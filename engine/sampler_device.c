#include "sampler_device.h"

#include "sampler_choose.h"
#include "sampler_logits.h"

#include <inferd/sampler_math.h>
#include <string.h>

/* Edits under way; s->counts says where the one of an id is, less one, and is zero again in the end. */
struct edits {
    struct sampler *s;
    struct logit_edit *at;
    size_t n, max;
    bool full;
};

static struct logit_edit *edit_of(struct edits *e, int32_t id) {
    static struct logit_edit none;
    int32_t *place = &e->s->counts[id];
    if (*place == 0) {
        if (e->n == e->max) {
            e->full = true;
            return &none;
        }
        e->at[e->n] = (struct logit_edit){.id = id};
        *place = (int32_t)++e->n;
    }
    return &e->at[*place - 1];
}

static void add_penalties(struct edits *e, const struct sample_input *in) {
    const struct sampling *p = in->sampling;
    size_t begin = sampler_window_begin(in, p->repeat_last_n);
    bool prompt_too = p->repetition_penalty != 1.0f;
    for (size_t i = begin; prompt_too && i < in->n_prompt; i++) {
        edit_of(e, in->tokens[i])->count = -1;
    }
    for (size_t i = begin > in->n_prompt ? begin : in->n_prompt; i < in->n_tokens; i++) {
        struct logit_edit *edit = edit_of(e, in->tokens[i]);
        edit->count = edit->count < 0 ? 1 : edit->count + 1;
    }
}

static bool fill_edits(struct edits *e, const struct sample_input *in, bool penalties) {
    const struct sampling *p = in->sampling;
    bool once = true;
    for (size_t i = 0; i < p->n_logit_bias; i++) {
        struct logit_edit *edit = edit_of(e, p->logit_bias[i].id);
        once &= edit->bias == 0.0f; /* two on one id are two roundings */
        edit->bias = p->logit_bias[i].bias;
    }
    if (penalties) {
        add_penalties(e, in);
    }
    for (size_t i = 0; i < in->n_masked; i++) {
        edit_of(e, in->masked[i])->masked = 1;
    }
    for (size_t i = 0; i < p->n_bad_words; i++) {
        if (sampler_ends_bad_word(in, &p->bad_words[i])) {
            edit_of(e, p->bad_words[i].ids[p->bad_words[i].n - 1])->masked = 1;
        }
    }
    for (size_t i = 0; i < e->n; i++) {
        e->s->counts[e->at[i].id] = 0;
    }
    return once && !e->full;
}

static bool add_stage(struct choice_row *row, const struct sampling *p, enum sampler_stage stage) {
    static const int8_t known[SAMPLER_STAGES] = {[SAMPLER_TEMPERATURE] = CHOICE_TEMPERATURE + 1,
                                                 [SAMPLER_TOP_K] = CHOICE_TOP_K + 1,
                                                 [SAMPLER_TOP_P] = CHOICE_TOP_P + 1,
                                                 [SAMPLER_MIN_P] = CHOICE_MIN_P + 1};
    if (known[stage] == 0 || row->n_stages == CHOICE_STAGES ||
        (stage == SAMPLER_TEMPERATURE && p->dynatemp_range > 0.0f)) {
        return false;
    }
    row->stages[row->n_stages++] = (uint8_t)(known[stage] - 1);
    return true;
}

bool sampler_for_device(struct sampler *s, const struct sample_input *in, struct logit_edit *edits, size_t max_edits,
                        struct choice_row *row) {
    const struct sampling *p = in->sampling;
    const struct sampler_plan plan = sampler_make_plan(p, s->vocab_size);
    struct choice_row made = {
        .edits = edits,
        .repetition_penalty = p->repetition_penalty,
        .frequency_penalty = p->frequency_penalty,
        .presence_penalty = p->presence_penalty,
        .greedy = plan.greedy,
        .temperature = p->temperature,
        .top_p = p->top_p,
        .min_p = p->min_p,
        .top_k = p->top_k > 0 ? (uint32_t)p->top_k : 0,
        .min_keep = p->min_keep > 1 ? (uint32_t)p->min_keep : 1,
        .random = sampler_random(in->seed, in->position, p->choice, SAMPLER_STREAM_CHOICE),
    };
    bool penalties = false;
    if (p->n_logprobs >= 0 || in->allowed || (p->mirostat && !plan.greedy)) {
        return false;
    }
    for (size_t i = 0; i < plan.n; i++) {
        if (i < plan.n_leading && plan.stages[i] == SAMPLER_PENALTIES) {
            penalties = true;
        } else if (!add_stage(&made, p, plan.stages[i])) {
            return false;
        }
    }
    struct edits e = {.s = s, .at = edits, .max = max_edits};
    if (!fill_edits(&e, in, penalties)) {
        return false;
    }
    made.n_edits = e.n;
    *row = made;
    return true;
}
