/*
 * What of sampling belongs to the engine: the limits of each number, the state that goes from token to token, masks
 * from words and lists, the end by repetition. What the stages do is in tests/unit/test_sampler*.c; that the same comes
 * alone, in company, after preemption, with prefix hits and with speculation is in the other programs here
 * (mixed_request).
 */
#include "harness.h"

#include <inferd/error.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct engine_request sampled_request(uint64_t id, size_t n_prompt, size_t max_tokens) {
    struct engine_request r = plain_request(id, n_prompt, max_tokens);
    r.sampling.temperature = 1;
    r.sampling.has_seed = true;
    r.sampling.seed = 1;
    r.ignore_eos = true;
    return r;
}

static void refusals(struct engine *e) {
    struct engine_request r;
    struct error err;
    const struct {
        const char *param;
        float *real, low, high;
    } reals[] = {
        {"typical_p", &r.sampling.typical_p, 0, 1.01f},
        {"top_n_sigma", &r.sampling.top_n_sigma, -0.1f, 101},
        {"xtc_probability", &r.sampling.xtc_probability, -0.1f, 1.1f},
        {"xtc_threshold", &r.sampling.xtc_threshold, -0.1f, 1.1f},
        {"dynatemp_range", &r.sampling.dynatemp_range, -0.1f, 2.1f},
        {"dynatemp_exponent", &r.sampling.dynatemp_exponent, -0.1f, 101},
        {"dry_multiplier", &r.sampling.dry_multiplier, -0.1f, 101},
        {"dry_base", &r.sampling.dry_base, 0.99f, 101},
        {"mirostat_tau", &r.sampling.mirostat_tau, -0.1f, 101},
        {"mirostat_eta", &r.sampling.mirostat_eta, -0.1f, 1.1f},
    };
    for (size_t i = 0; i < sizeof reals / sizeof reals[0]; i++) {
        const float bad[] = {reals[i].low, reals[i].high, NAN, INFINITY, -INFINITY};
        for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
            r = sampled_request(1, 5, 5);
            *reals[i].real = bad[k];
            CHECK(engine_submit(e, &r, &err) < 0 && err.code == ERROR_INVALID && strcmp(err.param, reals[i].param) == 0,
                  "%s %g: %s", reals[i].param, (double)bad[k], err.param);
        }
    }
    const struct {
        const char *param;
        int32_t *whole, low, high;
    } wholes[] = {
        {"repeat_last_n", &r.sampling.repeat_last_n, -2, -2},
        {"dry_allowed_length", &r.sampling.dry_allowed_length, 0, 1 << 21},
        {"dry_penalty_last_n", &r.sampling.dry_penalty_last_n, -2, -2},
        {"mirostat", &r.sampling.mirostat, -1, 3},
        {"min_keep", &r.sampling.min_keep, -1, 1 << 21},
    };
    for (size_t i = 0; i < sizeof wholes / sizeof wholes[0]; i++) {
        for (int high = 0; high < 2; high++) {
            r = sampled_request(1, 5, 5);
            *wholes[i].whole = high ? wholes[i].high : wholes[i].low;
            CHECK(engine_submit(e, &r, &err) < 0 && strcmp(err.param, wholes[i].param) == 0, "%s: %s", wholes[i].param,
                  err.param);
        }
    }
}

static void refused_lists(struct engine *e) {
    struct error err;
    static const int32_t outside[] = {259}, negative[] = {-1};
    static int32_t many[ENGINE_MAX_BAD_WORD_IDS + 1];
    static const struct token_sequence words[] = {
        {outside, 1}, {negative, 1}, {many, ENGINE_MAX_BAD_WORD_IDS + 1}, {many, 0}};
    static char long_text[ENGINE_MAX_DRY_BREAKER_LEN + 1];
    static const struct meta_stop breakers[] = {{"", 0}, {long_text, sizeof long_text}};
    for (size_t i = 0; i < 4; i++) {
        struct engine_request r = sampled_request(1, 5, 5);
        r.sampling.bad_words = &words[i];
        r.sampling.n_bad_words = 1;
        CHECK(engine_submit(e, &r, &err) < 0 && strcmp(err.param, "bad_words") == 0, "word %zu: %s", i, err.param);
    }
    for (size_t i = 0; i < 3; i++) {
        struct engine_request r = sampled_request(1, 5, 5);
        r.sampling.allowed_ids = i == 0 ? outside : negative;
        r.sampling.n_allowed_ids = i < 2;
        CHECK(engine_submit(e, &r, &err) < 0 && strcmp(err.param, "allowed_token_ids") == 0, "%zu: %s", i, err.param);
    }
    for (size_t i = 0; i < 2; i++) {
        struct engine_request r = sampled_request(1, 5, 5);
        r.sampling.dry_breakers = &breakers[i];
        r.sampling.n_dry_breakers = 1;
        CHECK(engine_submit(e, &r, &err) < 0 && strcmp(err.param, "dry_sequence_breakers") == 0, "%zu: %s", i,
              err.param);
    }
    const uint32_t patterns[][3] = {{1025, 1, 2}, {4, 0, 2}, {4, 5, 2}, {4, 1, 1}, {4, 1, 1025}};
    for (size_t i = 0; i < 5; i++) {
        struct engine_request r = sampled_request(1, 5, 5);
        r.repetition_max_size = patterns[i][0];
        r.repetition_min_size = patterns[i][1];
        r.repetition_min_count = patterns[i][2];
        CHECK(engine_submit(e, &r, &err) < 0 && strncmp(err.param, "repetition_detection.", 21) == 0, "pattern %zu: %s",
              i, err.param);
    }
    struct engine_request r = sampled_request(1, 5, 5);
    r.sampling.order.stages[3] = SAMPLER_STAGES;
    CHECK(engine_submit(e, &r, &err) < 0 && strcmp(err.param, "samplers") == 0, "an unknown stage: %s", err.param);
    r.sampling.order.stages[3] = r.sampling.order.stages[2];
    CHECK(engine_submit(e, &r, &err) < 0 && strcmp(err.param, "samplers") == 0, "a stage twice: %s", err.param);
}

static bool has(const struct outcome *o, const int32_t *ids, size_t n) {
    for (size_t i = 0; i + n <= o->n_tokens; i++) {
        if (memcmp(o->tokens + i, ids, n * sizeof *ids) == 0) {
            return true;
        }
    }
    return false;
}

static void masks(struct engine *e) {
    static struct outcome o;
    static const int32_t allowed[] = {97, 98, 97, 100}, pair[] = {97, 98};
    static const struct token_sequence words[] = {{pair, 2}};
    struct engine_request r = sampled_request(2, 10, 100);
    r.sampling.temperature = 2;
    r.sampling.allowed_ids = allowed;
    r.sampling.n_allowed_ids = 4;
    one(e, &r, &o);
    for (size_t i = 0; i < o.n_tokens; i++) {
        CHECK(o.tokens[i] == 97 || o.tokens[i] == 98 || o.tokens[i] == 100, "token %d", o.tokens[i]);
    }
    CHECK(o.n_tokens == 100 && has(&o, pair, 2), "the pair comes when it may");
    r.sampling.bad_words = words;
    r.sampling.n_bad_words = 1;
    one(e, &r, &o);
    CHECK(o.n_tokens == 100 && !has(&o, pair, 2) && has(&o, pair, 1) && has(&o, pair + 1, 1),
          "each of the pair comes, but not one after the other");
    /* what is bad is what is generated: the prompt's end does not begin a word */
    prompts[3][9] = 97;
    r.prompt = prompts[3];
    r.sampling.allowed_ids = pair + 1;
    r.sampling.n_allowed_ids = 1;
    r.max_tokens = 1;
    one(e, &r, &o);
    CHECK(o.kind == ENGINE_EVENT_DONE && o.n_tokens == 1, "%s", o.error.message);
    /* nothing is left */
    static const struct token_sequence single[] = {{pair + 1, 1}};
    r.sampling.bad_words = single;
    one(e, &r, &o);
    CHECK(o.kind == ENGINE_EVENT_ERROR && o.error.code == ERROR_INVALID, "no token is left");
    check_idle(e);
}

/* The state that mirostat hands on: what a sequence says second depends on it, and starts anew with each request. */
static void mirostat(struct engine *e) {
    static struct outcome a, b, c;
    for (int32_t version = 1; version <= 2; version++) {
        struct engine_request r = sampled_request(4, 20, 80);
        r.sampling.mirostat = version;
        r.sampling.mirostat_tau = 2;
        r.sampling.mirostat_eta = 0.5f;
        one(e, &r, &a);
        one(e, &r, &b);
        CHECK(equal_outcomes(&a, &b), "the same request says the same");
        r.sampling.mirostat_eta = 0; /* mu stays where it begins */
        one(e, &r, &c);
        CHECK(a.tokens[0] == c.tokens[0], "the first token knows no eta");
        CHECK(!equal_outcomes(&a, &c), "the later ones do");
    }
}

static void repetition(struct engine *e) {
    static struct outcome o;
    static const int32_t one_id[] = {97};
    static const uint32_t cases[][4] = {/* sizes, count, tokens */
                                        {4, 1, 5, 5},
                                        {6, 3, 4, 12},
                                        {1024, 1, 2, 2},
                                        {40, 40, 2, 80},
                                        {60, 60, 2, 0}};
    for (size_t i = 0; i < 5; i++) {
        struct engine_request r = sampled_request(5, 10, 100);
        r.sampling.allowed_ids = one_id;
        r.sampling.n_allowed_ids = 1;
        r.repetition_max_size = cases[i][0];
        r.repetition_min_size = cases[i][1];
        r.repetition_min_count = cases[i][2];
        one(e, &r, &o);
        bool ends = cases[i][3] > 0;
        CHECK(o.finish == (ends ? FINISH_REPETITION : FINISH_LENGTH), "case %zu: finish %d", i, o.finish);
        CHECK(o.n_tokens == (ends ? cases[i][3] : 100), "case %zu: %zu tokens", i, o.n_tokens);
        CHECK(o.text_len == o.n_tokens, "what was held back comes");
        r.min_tokens = 90;
        one(e, &r, &o);
        CHECK(o.n_tokens == (ends ? 90 : 100), "case %zu: not before min_tokens, %zu tokens", i, o.n_tokens);
    }
    /* a longer pattern than the largest is none */
    static const int32_t two[] = {97, 98}, aa[] = {97, 97}, bb[] = {98, 98};
    static const struct token_sequence words[] = {{aa, 2}, {bb, 2}};
    struct engine_request r = sampled_request(5, 10, 100);
    r.sampling.allowed_ids = two;
    r.sampling.n_allowed_ids = 2;
    r.sampling.bad_words = words;
    r.sampling.n_bad_words = 2; /* they take turns */
    r.repetition_max_size = r.repetition_min_size = 1;
    r.repetition_min_count = 2;
    one(e, &r, &o);
    CHECK(o.finish == FINISH_LENGTH, "no token twice in a row");
    r.repetition_max_size = 2;
    r.repetition_min_count = 7;
    one(e, &r, &o);
    CHECK(o.finish == FINISH_REPETITION && o.n_tokens == 14, "%zu tokens", o.n_tokens);
}

int main(void) {
    char folder[] = "/tmp/inferd-sampling-XXXXXX", path[64];
    if (!mkdtemp(folder)) {
        perror("mkdtemp");
        return 1;
    }
    snprintf(path, sizeof path, "%s/tiny.gguf", folder);
    fill_prompts();
    const struct tiny_model model = {"llama", CONTEXT, 5, -1};
    if (!tiny_model_write(path, &model)) {
        return 1;
    }
    struct engine *e = open_engine(path, 4, 64, 8 * CONTEXT);
    RUN(refusals, e);
    RUN(refused_lists, e);
    RUN(masks, e);
    RUN(mirostat, e);
    RUN(repetition, e);
    engine_close(e);
    unlink(path);
    rmdir(folder);
    printf("%d failures\n", failures);
    return failures != 0;
}
