/*
 * Speculation changes nothing but time: every request gets, to the byte, what an engine without it gives, alone and in
 * company, greedy and seeded, with hardly any KV memory, and wherever it ends. The random models fall into repetitions,
 * which is what the drafts live on.
 */
#include "harness.h"

#include <inferd/error.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N 48

static struct engine *open_speculating(const char *model, size_t speculative, size_t max_sequences,
                                       size_t max_batched_tokens, size_t kv_tokens) {
    struct engine_config c = test_config(model, max_sequences, max_batched_tokens, kv_tokens);
    c.speculative_tokens = speculative;
    return open_config(&c);
}

static struct engine_stats stats_of(struct engine *e) {
    struct engine_stats s;
    engine_get_stats(e, &s);
    return s;
}

/* The mixed ones, then ones that repeat themselves: long, greedy or nearly so, with every kind of end. */
static struct engine_request request_of(size_t i) {
    static const struct logit_bias bias[] = {{97, 9.0f}, {98, 9.0f}, {TINY_EOS, 4.0f}};
    static const struct meta_stop stops[] = {{"aab", 3}, {"bbbb", 4}, {"\x01", 1}};
    static const int32_t stop_ids[] = {98, 100};
    if (i < 32) {
        return mixed_request(i);
    }
    struct engine_request r = plain_request(i, 3 + i * 7 % 40, 20 + i * 31 % 180);
    r.sampling.n_logprobs = 3;
    if (i % 2) {
        r.sampling.temperature = 0.6f;
        r.sampling.has_seed = true;
        r.sampling.seed = i;
        r.sampling.logit_bias = bias;
        r.sampling.n_logit_bias = i % 4 == 1 ? 2 : 3;
        r.sampling.repetition_penalty = i % 4 == 3 ? 1.05f : 1;
    }
    r.stop = stops;
    r.n_stop = i % 5 == 0 ? 3 : 0;
    r.stop_ids = stop_ids;
    r.n_stop_ids = i % 5 == 1 ? 2 : 0;
    r.min_tokens = i % 5 == 1 ? 15 : 0;
    r.include_stop = i % 3 == 0;
    r.ignore_eos = i % 7 == 0;
    return r;
}

static struct outcome plain[N];

static void without(const char *model) {
    memset(plain, 0, sizeof plain);
    struct engine *e = open_engine(model, 1, 512, CONTEXT);
    for (size_t i = 0; i < N; i++) {
        struct engine_request r = request_of(i);
        submit(e, &r);
        collect(e, plain, 1);
        CHECK(plain[i].kind == ENGINE_EVENT_DONE, "request %zu: %s", i, plain[i].error.message);
    }
    CHECK(stats_of(e).drafts == 0, "it is off by default");
    check_idle(e);
    engine_close(e);
}

static void changes_nothing(const char *model) {
    static struct outcome got[N];
    static const struct {
        size_t speculative, max_sequences, max_batched_tokens, kv_tokens;
        bool preempts;
    } settings[] = {
        {16, 1, 512, CONTEXT, false}, /* one after the other */
        {4, 1, 3, CONTEXT, false},    /* no room for all of a draft */
        {1, 2, 512, 2 * CONTEXT, false},
        {16, 3, 40, 3 * CONTEXT, false},
        {7, 12, 33, 12 * CONTEXT, false},
        {16, N, 512, N *CONTEXT, false},
        {16, 4, 40, CONTEXT + 64, true}, /* hardly any KV memory */
        {8, 6, 512, CONTEXT, true},
    };
    uint64_t kept = 0, refused = 0;
    for (size_t s = 0; s < sizeof settings / sizeof settings[0]; s++) {
        struct engine *e = open_speculating(model, settings[s].speculative, settings[s].max_sequences,
                                            settings[s].max_batched_tokens, settings[s].kv_tokens);
        memset(got, 0, sizeof got);
        for (size_t i = 0; i < N; i++) {
            struct engine_request r = request_of(i);
            submit(e, &r);
        }
        collect(e, got, N);
        for (size_t i = 0; i < N; i++) {
            check_order(&got[i], i);
            CHECK(equal_outcomes(&plain[i], &got[i]), "request %zu under settings %zu is not as without", i, s);
        }
        struct engine_stats stats = stats_of(e);
        uint64_t by_place = 0;
        for (size_t i = 0; i < ENGINE_MAX_SPECULATIVE; i++) {
            by_place += stats.accepted_at[i];
            CHECK(i < settings[s].speculative || stats.accepted_at[i] == 0, "a draft longer than asked for");
            CHECK(i == 0 || stats.accepted_at[i] <= stats.accepted_at[i - 1], "kept behind a refused one");
        }
        CHECK(by_place == stats.accepted_tokens && stats.accepted_tokens <= stats.drafted_tokens &&
                  stats.drafts <= stats.drafted_tokens && stats.accepted_at[0] <= stats.drafts,
              "%llu drafts of %llu tokens, %llu kept", (unsigned long long)stats.drafts,
              (unsigned long long)stats.drafted_tokens, (unsigned long long)stats.accepted_tokens);
        CHECK(stats.drafts > 0, "settings %zu: no drafts", s);
        CHECK((stats.preemptions > 0) == settings[s].preempts, "settings %zu: %llu preemptions", s,
              (unsigned long long)stats.preemptions);
        kept += stats.accepted_tokens;
        refused += stats.drafted_tokens - stats.accepted_tokens;
        check_idle(e);
        engine_close(e);
    }
    printf("  %llu drafted tokens kept, %llu not\n", (unsigned long long)kept, (unsigned long long)refused);
    CHECK(kept > 500 && refused > 100, "%llu drafted tokens kept, %llu not: too few to show anything",
          (unsigned long long)kept, (unsigned long long)refused);
}

/* A repetition ends at each length there is, the context's included, and takes fewer steps than tokens. */
static void every_length(const char *model) {
    static struct outcome whole, got;
    enum { PROMPT = 20, MOST = CONTEXT - PROMPT };
    struct engine *e = open_speculating(model, 16, 2, 64, 2 * CONTEXT);
    static const struct logit_bias bias[] = {{97, 9.0f}, {98, 9.0f}}; /* a few tokens again and again */
    struct engine_request r = plain_request(3, PROMPT, 0);
    r.ignore_eos = true;
    r.sampling.logit_bias = bias;
    r.sampling.n_logit_bias = 2;
    r.speculative_tokens = 0;
    one(e, &r, &whole);
    CHECK(whole.n_tokens == MOST && stats_of(e).drafts == 0, "%zu tokens", whole.n_tokens);
    /* How far a draft goes depends on what steps are measured to cost: beside other work a try may find that none pays. */
    uint64_t steps = MOST;
    r.speculative_tokens = -1;
    for (int tries = 0; tries < 10 && steps >= MOST / 2; tries++) {
        steps = stats_of(e).steps;
        one(e, &r, &got);
        CHECK(equal_outcomes(&whole, &got), "up to the end of the context");
        steps = stats_of(e).steps - steps;
    }
    CHECK(steps < MOST / 2, "%llu steps for %d tokens", (unsigned long long)steps, MOST);
    for (size_t n = 1; n < MOST; n += 1 + n / 40) {
        r.max_tokens = n;
        one(e, &r, &got);
        CHECK(got.n_tokens == n && got.completion_tokens == n && got.finish == FINISH_LENGTH &&
                  memcmp(got.tokens, whole.tokens, n * sizeof *got.tokens) == 0,
              "%zu tokens of %zu", got.n_tokens, n);
    }
    check_idle(e);
    engine_close(e);
}

/* Only what was kept is found in the prefix cache: a turn that goes on where the last one ended is computed the same. */
static void next_turn(const char *model) {
    static struct outcome first, second, fresh;
    static int32_t ids[CONTEXT];
    enum { PROMPT = 30, FIRST = 100, SECOND = 60 };
    struct engine *e = open_speculating(model, 16, 2, 64, 4 * CONTEXT);
    struct engine *other = open_engine(model, 2, 64, 4 * CONTEXT);
    for (size_t i = 0; i < 8; i++) {
        struct engine_request r = plain_request(i, PROMPT, FIRST);
        r.ignore_eos = true;
        one(e, &r, &first);
        CHECK(first.n_tokens == FIRST, "%zu tokens", first.n_tokens);
        memcpy(ids, r.prompt, PROMPT * sizeof *ids);
        memcpy(ids + PROMPT, first.tokens, FIRST * sizeof *ids);
        r.prompt = ids;
        r.n_prompt = PROMPT + FIRST;
        r.max_tokens = SECOND;
        r.sampling.n_logprobs = 3;
        one(e, &r, &second);
        one(other, &r, &fresh);
        CHECK(second.cached_tokens > PROMPT && fresh.cached_tokens == 0, "%u tokens found", second.cached_tokens);
        CHECK(equal_outcomes(&second, &fresh), "turn %zu is not as without speculation and cache", i);
    }
    CHECK(stats_of(e).accepted_tokens > 0, "nothing was kept");
    engine_close(e);
    engine_close(other);
}

/* Answers that share a prompt, whose last chunk is one token: the drafts of the first lie in a block of all of them. */
static void shared_prompt(const char *model) {
    enum { CHILDREN = 4, CHUNK = 20 };
    static struct outcome got[2][MAX_REQUESTS];
    static int32_t ids[3 * CHUNK + 1];
    for (size_t i = 0; i < 3 * CHUNK + 1; i++) {
        ids[i] = (int32_t)(97 + i % 3);
    }
    memset(got, 0, sizeof got);
    for (size_t speculates = 0; speculates < 2; speculates++) {
        struct engine *e = open_speculating(model, 16 * speculates, CHILDREN, CHUNK, CHILDREN * CONTEXT);
        for (size_t prompts_made = 0; prompts_made < 3; prompts_made++) {
            for (size_t i = 0; i < CHILDREN; i++) {
                struct engine_request r = plain_request(1 + prompts_made * CHILDREN + i, (1 + prompts_made) * CHUNK + 1, 40);
                r.prompt = ids;
                r.parent = i > 0 ? 1 + prompts_made * CHILDREN : 0;
                r.cache_salt[0] = (uint8_t)prompts_made;
                r.sampling.temperature = i % 2 ? 0.7f : 0;
                r.sampling.has_seed = true;
                r.sampling.choice = (uint32_t)i;
                r.sampling.n_logprobs = 3;
                submit(e, &r);
            }
            collect(e, got[speculates], CHILDREN);
        }
        CHECK((stats_of(e).drafts > 0) == (speculates > 0), "%llu drafts", (unsigned long long)stats_of(e).drafts);
        check_idle(e);
        engine_close(e);
    }
    for (size_t i = 1; i <= 3 * CHILDREN; i++) {
        CHECK(got[0][i].n_tokens > 0 && equal_outcomes(&got[0][i], &got[1][i]), "answer %zu is not as without", i);
    }
}

static void by_request(const char *model) {
    static struct outcome o;
    struct error err;
    struct engine *e = open_engine(model, 2, 64, 2 * CONTEXT);
    struct engine_request r = plain_request(3, 20, 200);
    r.speculative_tokens = 5;
    one(e, &r, &o);
    struct engine_stats s = stats_of(e);
    CHECK(s.drafts > 0 && s.accepted_at[5] == 0, "a request asks for drafts of 5");
    r.speculative_tokens = ENGINE_MAX_SPECULATIVE + 1;
    CHECK(engine_submit(e, &r, &err) < 0 && strcmp(err.param, "speculative_tokens") == 0, "too many");
    r.speculative_tokens = -2;
    CHECK(engine_submit(e, &r, &err) < 0 && strcmp(err.param, "speculative_tokens") == 0, "too few");
    engine_close(e);
    struct engine_config c = test_config(model, 2, 64, 2 * CONTEXT);
    c.speculative_tokens = ENGINE_MAX_SPECULATIVE + 1;
    CHECK(engine_open(&c, &e, &err) < 0 && strcmp(err.param, "speculative_tokens") == 0, "the setting's limit");
}

int main(void) {
    static const char *const architectures[] = {"llama", "gemma3"};
    char folder[] = "/tmp/inferd-speculation-XXXXXX", path[64];
    if (!mkdtemp(folder)) {
        perror("mkdtemp");
        return 1;
    }
    snprintf(path, sizeof path, "%s/tiny.gguf", folder);
    fill_prompts();
    for (size_t i = 0; i < 2; i++) {
        struct tiny_model model = {architectures[i], CONTEXT, 5 + i, -1};
        if (!tiny_model_write(path, &model)) {
            return 1;
        }
        RUN(without, path);
        RUN(changes_nothing, path);
        RUN(every_length, path);
        RUN(next_turn, path);
        RUN(shared_prompt, path);
        RUN(by_request, path);
    }
    unlink(path);
    rmdir(folder);
    printf("%d failures\n", failures);
    return failures != 0;
}
