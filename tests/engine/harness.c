#include "harness.h"

#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

int failures;
const char *current;

void note(struct outcome *o, const struct engine_event *e) {
    o->after_end |= o->terminal > 0;
    switch (e->kind) {
    case ENGINE_EVENT_STARTED:
        o->started++;
        break;
    case ENGINE_EVENT_PROMPT:
        o->early |= o->started == 0 || o->n_tokens > 0;
        o->prompt[o->n_prompt] = e->token;
        o->prompt_logprobs[o->n_prompt] = e->logprob;
        o->ranks[o->n_prompt] = e->rank;
        memcpy(o->prompt_top[o->n_prompt++], e->top, (e->n_top < MAX_TOP ? e->n_top : MAX_TOP) * sizeof e->top[0]);
        break;
    case ENGINE_EVENT_TOKEN:
        o->early |= o->started == 0;
        o->tokens[o->n_tokens] = e->token;
        o->logprobs[o->n_tokens] = e->logprob;
        memcpy(o->top[o->n_tokens++], e->top, (e->n_top < MAX_TOP ? e->n_top : MAX_TOP) * sizeof e->top[0]);
        break;
    case ENGINE_EVENT_DONE:
    case ENGINE_EVENT_ERROR:
        o->terminal++;
        o->kind = e->kind;
        o->finish = e->finish;
        o->stop_index = e->stop_index;
        o->stop_token = e->stop_token;
        o->prompt_tokens = e->prompt_tokens;
        o->completion_tokens = e->completion_tokens;
        o->cached_tokens = e->cached_tokens;
        o->error = e->error;
        break;
    }
    memcpy(o->text + o->text_len, e->text, e->text_len);
    o->text_len += e->text_len;
}

void collect(struct engine *e, struct outcome *outcomes, size_t ends) {
    static struct engine_event event;
    while (ends > 0) {
        if (!engine_wait(e, &event, 60000)) {
            CHECK(false, "no event for a minute, %zu requests still run", ends);
            exit(1);
        }
        note(&outcomes[event.id], &event);
        ends -= event.kind == ENGINE_EVENT_DONE || event.kind == ENGINE_EVENT_ERROR;
    }
}

void check_order(const struct outcome *o, size_t i) {
    CHECK(o->terminal == 1 && !o->after_end && !o->early, "request %zu: %d terminal events", i, o->terminal);
    CHECK(o->started == 1, "request %zu: started %d times", i, o->started);
}

void check_idle(struct engine *e) {
    struct engine_stats s;
    engine_get_stats(e, &s);
    CHECK(s.running == 0 && s.waiting == 0 && s.kv_blocks_used == 0 && s.idle,
          "running %llu waiting %llu KV blocks %llu", (unsigned long long)s.running, (unsigned long long)s.waiting,
          (unsigned long long)s.kv_blocks_used);
}

const char *test_kv_dtype = "f16";

struct engine_config test_config(const char *model, size_t max_sequences, size_t max_batched_tokens, size_t kv_tokens) {
    struct engine_config c;
    engine_config_default(&c);
    c.model = model;
    const char *device = getenv("INFERD_TEST_DEVICE"); /* with INFERD_TEST_CUDA_MODULE: the same tests on the emulator */
    c.device = device ? device : "cpu";
    c.cuda_module = getenv("INFERD_TEST_CUDA_MODULE");
    c.batch_invariant = device != NULL; /* a CPU is so always */
    c.threads = 2;
    c.max_sequences = max_sequences;
    c.max_batched_tokens = max_batched_tokens;
    c.kv_tokens = kv_tokens;
    c.kv_dtype = test_kv_dtype;
    return c;
}

struct engine *open_config(const struct engine_config *c) {
    struct engine *e;
    struct error err;
    if (engine_open(c, &e, &err) < 0) {
        printf("FAIL %s: engine_open: %s\n", current, err.message);
        exit(1);
    }
    return e;
}

struct engine *open_engine(const char *model, size_t max_sequences, size_t max_batched_tokens, size_t kv_tokens) {
    struct engine_config c = test_config(model, max_sequences, max_batched_tokens, kv_tokens);
    return open_config(&c);
}

int32_t prompts[MAX_REQUESTS][CONTEXT];

struct engine_request plain_request(uint64_t id, size_t n_prompt, size_t max_tokens) {
    struct engine_request r;
    engine_request_default(&r);
    r.id = id;
    r.prompt = prompts[id % MAX_REQUESTS];
    r.n_prompt = n_prompt;
    r.max_tokens = max_tokens;
    r.skip_special = true;
    r.sampling.temperature = 0;
    return r;
}

void fill_prompts(void) {
    srand(1);
    for (size_t i = 0; i < MAX_REQUESTS; i++) {
        for (size_t j = 0; j < CONTEXT; j++) {
            prompts[i][j] = rand() % 256;
        }
    }
}

void submit(struct engine *e, const struct engine_request *r) {
    struct error err;
    if (engine_submit(e, r, &err) < 0) {
        CHECK(false, "request %llu is refused: %s", (unsigned long long)r->id, err.message);
        exit(1);
    }
}

/* One of the rarer ways of choosing for each of 13 requests. */
static void choose_otherwise(struct sampling *s, size_t i) {
    static const int32_t word[] = {97, 98}, allowed[] = {65, 66, 67, 97, 98, 99, 120, TINY_EOS};
    static const struct token_sequence words[] = {{word, 2}, {word, 1}};
    static const struct sampler_order other = {
        5, {SAMPLER_TOP_P, SAMPLER_TEMPERATURE, SAMPLER_PENALTIES, SAMPLER_TOP_K, SAMPLER_XTC}};
    s->mirostat = i % 13 == 1 ? 1 : i % 13 == 2 ? 2 : 0;
    s->mirostat_tau = 3;
    s->typical_p = i % 13 == 4 ? 0.7f : 1;
    s->top_n_sigma = i % 13 == 5 ? 1.5f : 0;
    s->xtc_probability = i % 13 == 7 || i % 13 == 12 ? 0.5f : 0;
    s->xtc_threshold = 0.01f;
    s->dynatemp_range = i % 13 == 8 && s->has_seed ? 0.4f : 0; /* also makes a temperature of 0 a draw */
    s->dry_multiplier = i % 13 == 10 || i % 13 == 2 ? 0.9f : 0;
    s->dry_allowed_length = 1;
    s->bad_words = words;
    s->n_bad_words = i % 13 == 11 ? 2 : 0;
    s->allowed_ids = i % 13 == 6 ? allowed : NULL;
    s->n_allowed_ids = i % 13 == 6 ? sizeof allowed / sizeof allowed[0] : 0;
    if (i % 13 == 12) {
        s->order = other;
    }
}

struct engine_request mixed_request(size_t i) {
    static const struct logit_bias bias[] = {{65, 5.0f}, {66, -50.0f}};
    static const struct meta_stop stops[] = {{"e", 1}, {"xy", 2}};
    struct engine_request r = plain_request(i, 1 + i * 37 % 150, 1 + i * 13 % 60);
    r.sampling.n_logprobs = i % 4 == 0 ? 3 : -1;
    if (i % 3 != 0) {
        r.sampling.temperature = 0.5f + (float)(i % 5) * 0.3f;
        r.sampling.has_seed = true;
        r.sampling.seed = i;
        r.sampling.choice = (uint32_t)(i % 2);
    }
    r.sampling.top_k = i % 5 == 1 ? 20 : 0;
    r.sampling.top_p = i % 5 == 2 ? 0.8f : 1;
    r.sampling.min_p = i % 5 == 3 ? 0.05f : 0;
    r.sampling.repetition_penalty = i % 7 == 1 ? 1.2f : 1;
    r.sampling.presence_penalty = i % 7 == 2 ? 0.5f : 0;
    r.sampling.frequency_penalty = i % 7 == 3 ? 0.5f : 0;
    choose_otherwise(&r.sampling, i);
    r.repetition_max_size = i % 13 == 6 ? 8 : 0;
    r.repetition_min_size = 1;
    r.repetition_min_count = 3;
    r.sampling.logit_bias = bias;
    r.sampling.n_logit_bias = i % 6 == 5 ? 2 : 0;
    r.stop = stops;
    r.n_stop = i % 8 == 7 ? 2 : 0;
    r.min_tokens = i % 9 == 8 ? r.max_tokens / 2 : 0;
    r.n_prompt_logprobs = i % 10 == 3 ? 3 : -1;
    return r;
}

bool equal_outcomes(const struct outcome *a, const struct outcome *b) {
    return a->n_tokens == b->n_tokens && memcmp(a->tokens, b->tokens, a->n_tokens * sizeof a->tokens[0]) == 0 &&
           memcmp(a->logprobs, b->logprobs, a->n_tokens * sizeof a->logprobs[0]) == 0 &&
           memcmp(a->top, b->top, a->n_tokens * sizeof a->top[0]) == 0 && a->text_len == b->text_len &&
           memcmp(a->text, b->text, a->text_len) == 0 && a->kind == b->kind && a->finish == b->finish &&
           a->stop_index == b->stop_index && a->completion_tokens == b->completion_tokens &&
           a->prompt_tokens == b->prompt_tokens && a->n_prompt == b->n_prompt &&
           memcmp(a->prompt, b->prompt, a->n_prompt * sizeof a->prompt[0]) == 0 &&
           memcmp(a->prompt_logprobs, b->prompt_logprobs, a->n_prompt * sizeof a->prompt_logprobs[0]) == 0 &&
           memcmp(a->ranks, b->ranks, a->n_prompt * sizeof a->ranks[0]) == 0 &&
           memcmp(a->prompt_top, b->prompt_top, a->n_prompt * sizeof a->prompt_top[0]) == 0;
}

static sem_t held, gate;
static atomic_bool holding;

/* Called with the event ring's lock: submitting goes on, polling does not. */
static void stand_still(void *arg) {
    (void)arg;
    if (atomic_exchange(&holding, false)) {
        sem_post(&held);
        sem_wait(&gate);
    }
}

void engine_hold(struct engine *e) {
    struct engine_request r = plain_request(0, 1, 1);
    sem_init(&held, 0, 0);
    sem_init(&gate, 0, 0);
    atomic_store(&holding, true);
    engine_set_notify(e, stand_still, NULL);
    submit(e, &r);
    sem_wait(&held);
}

void engine_let_go(struct engine *e) {
    (void)e;
    sem_post(&gate);
}

void one(struct engine *e, const struct engine_request *r, struct outcome *o) {
    static struct outcome outcomes[MAX_REQUESTS];
    memset(&outcomes[r->id], 0, sizeof outcomes[0]);
    submit(e, r);
    collect(e, outcomes, 1);
    check_order(&outcomes[r->id], r->id);
    *o = outcomes[r->id];
}
