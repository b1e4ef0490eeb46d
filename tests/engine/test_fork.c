/*
 * Children of a request (n > 1): one prompt is computed, all share its KV, and each gets what it would get alone.
 */
#include "harness.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHOICES = 5, PROMPTS = 6, N = CHOICES * PROMPTS };

static const size_t lengths[PROMPTS] = {1, 15, 16, 33, 64, 100}; /* blocks of 16: full, partly filled, less than one */

/* Choice `i % CHOICES` of prompt `i / CHOICES`, without a parent. Ids begin with 1: 0 is nobody. */
static struct engine_request choice(size_t i) {
    size_t prompt = i / CHOICES, c = i % CHOICES;
    struct engine_request r = plain_request(i + 1, lengths[prompt], 1 + (i * 7 + c * 11) % 50);
    r.prompt = prompts[prompt];
    r.ignore_eos = true;
    r.sampling.temperature = 1;
    r.sampling.has_seed = true;
    r.sampling.seed = prompt;
    r.sampling.choice = (uint32_t)c;
    r.sampling.n_logprobs = 3;
    r.sampling.repetition_penalty = prompt % 2 ? 1.1f : 1;
    return r;
}

static struct engine_request child(size_t i) {
    struct engine_request r = choice(i);
    r.parent = i % CHOICES == 0 ? 0 : i / CHOICES * CHOICES + 1;
    return r;
}

static void alone(const char *model, struct outcome *out) {
    struct engine_config c = test_config(model, 1, 512, CONTEXT);
    c.prefix_cache = false;
    struct engine *e = open_config(&c);
    for (size_t i = 0; i < N; i++) {
        struct engine_request r = choice(i);
        one(e, &r, &out[i + 1]);
        CHECK(out[i + 1].kind == ENGINE_EVENT_DONE && out[i + 1].n_tokens == r.max_tokens, "request %zu", i);
    }
    engine_close(e);
    for (size_t i = 0; i < N; i += CHOICES) {
        CHECK(out[i + 1].tokens[0] != out[i + 2].tokens[0] || out[i + 1].tokens[0] != out[i + 3].tokens[0] ||
                  out[i + 1].tokens[0] != out[i + 4].tokens[0],
              "all choices of prompt %zu begin alike", i / CHOICES);
    }
}

static void children_are_as_alone(const char *model) {
    static struct outcome want[N + 1], got[N + 1];
    static const struct {
        size_t max_sequences, max_batched_tokens, kv_tokens;
        bool prefix_cache, roomy;
    } settings[] = {
        {N, 512, N * CONTEXT, true, true},    /* every child is forked */
        {N, 512, N * CONTEXT, false, true},   /* without a prefix cache too */
        {N, 31, N * CONTEXT, true, true},     /* prompts in small chunks */
        {3, 17, N * CONTEXT, true, false},    /* not all have a place when the prompt is done */
        {1, 7, N * CONTEXT, true, false},     /* none has */
        {N, 64, CONTEXT, true, false},        /* hardly any memory: preempted before, during and after */
        {N, 64, CONTEXT + 48, false, false},
    };
    alone(model, want);
    for (size_t k = 0; k < sizeof settings / sizeof settings[0]; k++) {
        struct engine_config c = test_config(model, settings[k].max_sequences, settings[k].max_batched_tokens,
                                             settings[k].kv_tokens);
        c.prefix_cache = settings[k].prefix_cache;
        struct engine *e = open_config(&c);
        memset(got, 0, sizeof got);
        engine_hold(e); /* else a short prompt may be computed before its children come */
        for (size_t i = 0; i < N; i++) {
            struct engine_request r = child(i);
            submit(e, &r);
        }
        engine_let_go(e);
        collect(e, got, N + 1);
        for (size_t i = 0; i < N; i++) {
            check_order(&got[i + 1], i);
            CHECK(equal_outcomes(&want[i + 1], &got[i + 1]), "choice %zu of prompt %zu, settings %zu", i % CHOICES,
                  i / CHOICES, k);
        }
        struct engine_stats s;
        engine_get_stats(e, &s);
        CHECK((s.forks == N - PROMPTS) == settings[k].roomy, "settings %zu: %llu forks", k, (unsigned long long)s.forks);
        CHECK((s.preemptions > 0) == (settings[k].kv_tokens < 2 * CONTEXT), "settings %zu: %llu preemptions", k,
              (unsigned long long)s.preemptions);
        for (size_t i = 0; settings[k].roomy && i < N; i++) {
            size_t shared = i % CHOICES > 0 && settings[k].prefix_cache ? lengths[i / CHOICES] : 0;
            CHECK(got[i + 1].cached_tokens == shared, "choice %zu of prompt %zu: %u cached", i % CHOICES, i / CHOICES,
                  got[i + 1].cached_tokens);
        }
        check_idle(e);
        engine_close(e);
    }
}

/* A parent that is cancelled, another one's id, an ended one, one with another prompt: the child does not mind. */
static void a_parent_that_is_none(const char *model) {
    static struct outcome want[N + 1], got[N + 1];
    alone(model, want);
    for (int round = 0; round < 40; round++) {
        struct engine *e = open_engine(model, 4, 16, 8 * CONTEXT);
        size_t base = (size_t)round % PROMPTS * CHOICES;
        memset(got, 0, sizeof got);
        for (size_t i = base; i < base + CHOICES; i++) {
            struct engine_request r = child(i);
            r.parent = i == base ? r.id : i == base + 4 ? 999 : r.parent; /* its own, a nobody's */
            submit(e, &r);
        }
        struct engine_request stranger = choice((base + CHOICES) % N);
        stranger.parent = base + 1;
        submit(e, &stranger);
        usleep((unsigned)(rand() % 400));
        engine_cancel(e, base + 1);
        if (round % 2) {
            engine_cancel(e, base + 2);
        }
        collect(e, got, CHOICES + 1);
        for (size_t i = base; i < base + CHOICES; i++) {
            struct outcome *o = &got[i + 1];
            bool may_be_cancelled = i == base || (i == base + 1 && round % 2);
            CHECK(o->terminal == 1 && !o->after_end, "choice %zu", i);
            CHECK(equal_outcomes(&want[i + 1], o) || (may_be_cancelled && o->finish == FINISH_CANCELLED),
                  "choice %zu, finish %d", i - base, o->finish);
        }
        CHECK(equal_outcomes(&want[stranger.id], &got[stranger.id]), "the stranger");
        check_idle(e);
        engine_close(e);
    }
}

/* Its own prompt logprobs, or another salt: it computes its prompt itself. */
static void children_that_cannot_share(const char *model) {
    static struct outcome o[4];
    struct engine_stats s;
    struct engine *e = open_engine(model, 8, 64, 8 * CONTEXT);
    memset(o, 0, sizeof o);
    for (uint64_t i = 1; i < 4; i++) {
        struct engine_request r = plain_request(i, 40, 5);
        r.prompt = prompts[0];
        r.parent = i == 1 ? 0 : 1;
        r.n_prompt_logprobs = i == 2 ? 0 : -1;
        r.cache_salt[0] = i == 3;
        submit(e, &r);
    }
    collect(e, o, 3);
    engine_get_stats(e, &s);
    CHECK(s.forks == 0 && o[2].n_prompt == 40 && o[2].cached_tokens == 0 && o[3].cached_tokens == 0, "%llu forks",
          (unsigned long long)s.forks);
    check_idle(e);
    engine_close(e);
}

int main(void) {
    char folder[] = "/tmp/inferd-fork-XXXXXX", path[64];
    if (!mkdtemp(folder)) {
        perror("mkdtemp");
        return 1;
    }
    snprintf(path, sizeof path, "%s/tiny.gguf", folder);
    fill_prompts();
    const struct tiny_model model = {"llama", CONTEXT, 21, -1};
    if (!tiny_model_write(path, &model)) {
        return 1;
    }
    RUN(children_are_as_alone, path);
    RUN(a_parent_that_is_none, path);
    RUN(children_that_cannot_share, path);
    test_kv_dtype = "int8";
    RUN(children_are_as_alone, path);
    unlink(path);
    rmdir(folder);
    printf("%d failures\n", failures);
    return failures != 0;
}
