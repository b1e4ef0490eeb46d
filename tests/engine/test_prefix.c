/*
 * The prefix cache, seen from outside: what was computed once is found again, by whom it may be found, and that nobody
 * can tell from the answer.
 */
#include "harness.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK = 16 }; /* the default kv_block_size */

static uint64_t cached_total(struct engine *e) {
    struct engine_stats s;
    engine_get_stats(e, &s);
    return s.cached_tokens;
}

/* The reference: each alone, nothing kept. */
static void alone(const char *model, const struct engine_request *requests, size_t n, struct outcome *out) {
    struct engine_config c = test_config(model, 1, 512, CONTEXT);
    c.prefix_cache = false;
    struct engine *e = open_config(&c);
    for (size_t i = 0; i < n; i++) {
        one(e, &requests[i], &out[i]);
        CHECK(out[i].cached_tokens == 0, "request %zu", i);
    }
    struct engine_stats s;
    engine_get_stats(e, &s);
    CHECK(s.kv_blocks_cached == 0 && s.prefix_cache_queries == 0 && s.cached_tokens == 0, "the cache is off");
    engine_close(e);
}

static void a_hit_changes_nothing(const char *model) {
    enum { N = 32 };
    static struct engine_request requests[N];
    static struct outcome want[N], got[N];
    for (size_t i = 0; i < N; i++) {
        requests[i] = mixed_request(i);
    }
    alone(model, requests, N, want);
    for (size_t chunk = 8; chunk <= 512; chunk *= 8) {
        struct engine *e = open_engine(model, 8, chunk, 64 * CONTEXT);
        for (int round = 0; round < 2; round++) {
            for (size_t i = 0; i < N; i++) {
                bool may = requests[i].n_prompt_logprobs < 0; /* else each position is computed */
                size_t hit = round && may ? (requests[i].n_prompt - 1) / BLOCK * BLOCK : 0;
                one(e, &requests[i], &got[i]);
                CHECK(equal_outcomes(&want[i], &got[i]), "request %zu, round %d, chunk %zu", i, round, chunk);
                CHECK(got[i].cached_tokens == hit, "request %zu, round %d: %u cached, not %zu", i, round,
                      got[i].cached_tokens, hit);
            }
        }
        memset(got, 0, sizeof got);
        for (size_t i = 0; i < N; i++) {
            submit(e, &requests[N - 1 - i]);
        }
        collect(e, got, N);
        for (size_t i = 0; i < N; i++) {
            CHECK(equal_outcomes(&want[i], &got[i]), "request %zu together, chunk %zu", i, chunk);
        }
        check_idle(e);
        engine_close(e);
    }
}

/* A system prompt in front of different questions, all at once and one by one, with much and with little memory. */
static void a_shared_beginning(const char *model) {
    enum { N = 24, SHARED = 8 * BLOCK };
    static struct engine_request requests[N];
    static int32_t texts[N][CONTEXT];
    static struct outcome want[N], got[N];
    for (size_t i = 0; i < N; i++) {
        requests[i] = plain_request(i, SHARED + 1 + i, 20);
        memcpy(texts[i], prompts[60], SHARED * sizeof(int32_t));
        memcpy(texts[i] + SHARED, prompts[i], (CONTEXT - SHARED) * sizeof(int32_t));
        requests[i].prompt = texts[i];
        requests[i].sampling.temperature = i % 2 ? 1 : 0;
        requests[i].sampling.has_seed = true;
        requests[i].sampling.n_logprobs = 2;
        requests[i].ignore_eos = true;
    }
    alone(model, requests, N, want);
    static const size_t memories[] = {64 * CONTEXT, CONTEXT, CONTEXT + 3 * BLOCK};
    for (size_t m = 0; m < 3; m++) {
        struct engine *e = open_engine(model, 16, 64, memories[m]);
        memset(got, 0, sizeof got);
        for (size_t i = 0; i < N; i++) {
            submit(e, &requests[i]);
        }
        collect(e, got, N);
        for (size_t i = 0; i < N; i++) {
            CHECK(equal_outcomes(&want[i], &got[i]), "request %zu, memory %zu", i, memories[m]);
        }
        check_idle(e);
        one(e, &requests[0], &got[0]);
        for (size_t i = 0; i < N; i++) {
            one(e, &requests[i], &got[i]);
            CHECK(equal_outcomes(&want[i], &got[i]), "request %zu", i);
            CHECK(got[i].cached_tokens >= SHARED, "request %zu: %u cached", i, got[i].cached_tokens);
        }
        check_idle(e);
        engine_close(e);
    }
}

/* The next turn of a chat finds the answer of the last one too. */
static void generated_tokens_are_found(const char *model) {
    static struct outcome first, second, want;
    int32_t chat[CONTEXT];
    struct engine *e = open_engine(model, 4, 64, 8 * CONTEXT);
    struct engine_request r = plain_request(1, 40, 60);
    r.ignore_eos = true;
    one(e, &r, &first);
    CHECK(first.n_tokens == 60, "%zu tokens", first.n_tokens);
    memcpy(chat, prompts[1], 40 * sizeof *chat);
    memcpy(chat + 40, first.tokens, 60 * sizeof *chat);
    memcpy(chat + 100, prompts[2], 30 * sizeof *chat);
    struct engine_request next = plain_request(2, 130, 20);
    next.prompt = chat;
    one(e, &next, &second);
    /* of 100 tokens the last has no K and V: 99 / 16 = 6 blocks */
    CHECK(second.cached_tokens == 6 * BLOCK, "%u cached", second.cached_tokens);
    alone(model, &next, 1, &want);
    CHECK(equal_outcomes(&want, &second), "the second turn");
    struct engine_stats s;
    engine_get_stats(e, &s);
    CHECK(s.prefix_cache_queries == 170 && s.cached_tokens == 6 * BLOCK, "%llu of %llu",
          (unsigned long long)s.cached_tokens, (unsigned long long)s.prefix_cache_queries);
    CHECK(s.kv_blocks_used == 0 && s.kv_blocks_cached > 0 && s.kv_blocks_cached <= s.kv_blocks, "%llu cached",
          (unsigned long long)s.kv_blocks_cached);
    engine_close(e);
}

static void salts_do_not_meet(const char *model) {
    static struct outcome o;
    struct engine *e = open_engine(model, 4, 64, 8 * CONTEXT);
    struct engine_request r = plain_request(1, 100, 4);
    one(e, &r, &o);
    r.cache_salt[31] = 1;
    one(e, &r, &o);
    CHECK(o.cached_tokens == 0 && cached_total(e) == 0, "found under another salt: %u", o.cached_tokens);
    one(e, &r, &o);
    CHECK(o.cached_tokens == 96, "found under its own: %u", o.cached_tokens);
    r.cache_salt[31] = 0;
    r.tenant = 7;
    r.priority = 3;
    one(e, &r, &o);
    CHECK(o.cached_tokens == 96, "only the salt divides: %u", o.cached_tokens);
    engine_close(e);
}

static void prompt_logprobs_compute_everything(const char *model) {
    static struct outcome o;
    struct engine *e = open_engine(model, 4, 64, 8 * CONTEXT);
    struct engine_request r = plain_request(1, 100, 4);
    one(e, &r, &o);
    r.n_prompt_logprobs = 0;
    one(e, &r, &o);
    CHECK(o.cached_tokens == 0, "%u cached", o.cached_tokens);
    engine_close(e);
}

/* What is computed of numbers that are none must not be found by anybody. */
static void poisoned_blocks_are_not_kept(const char *model, int nan_token) {
    static struct outcome o;
    int32_t poisoned[100];
    struct engine_stats s;
    struct engine *e = open_engine(model, 4, 64, 8 * CONTEXT);
    for (size_t i = 0; i < 100; i++) {
        poisoned[i] = i == 50 ? nan_token : (int32_t)(i % 60);
    }
    struct engine_request r = plain_request(1, 100, 4);
    r.prompt = poisoned;
    for (int round = 0; round < 2; round++) {
        one(e, &r, &o);
        CHECK(o.kind == ENGINE_EVENT_ERROR && o.cached_tokens == 0, "kind %d, %u cached", o.kind, o.cached_tokens);
    }
    engine_get_stats(e, &s);
    CHECK(s.kv_blocks_cached == 0, "%llu blocks", (unsigned long long)s.kv_blocks_cached);
    check_idle(e);
    engine_close(e);
}

int main(void) {
    static const char *const architectures[] = {"llama", "gemma3"}; /* gemma3: sliding windows */
    char folder[] = "/tmp/inferd-prefix-XXXXXX", path[64];
    if (!mkdtemp(folder)) {
        perror("mkdtemp");
        return 1;
    }
    snprintf(path, sizeof path, "%s/tiny.gguf", folder);
    fill_prompts();
    for (size_t i = 0; i < 2; i++) {
        struct tiny_model model = {architectures[i], CONTEXT, 9 + i, -1};
        if (!tiny_model_write(path, &model)) {
            return 1;
        }
        RUN(a_hit_changes_nothing, path);
        test_kv_dtype = "int8";
        RUN(a_hit_changes_nothing, path);
        RUN(generated_tokens_are_found, path);
        test_kv_dtype = "f16";
        RUN(a_shared_beginning, path);
        RUN(generated_tokens_are_found, path);
        RUN(salts_do_not_meet, path);
        RUN(prompt_logprobs_compute_everything, path);
        model.nan_token = 250;
        if (!tiny_model_write(path, &model)) {
            return 1;
        }
        RUN(poisoned_blocks_are_not_kept, path, 250);
    }
    unlink(path);
    rmdir(folder);
    printf("%d failures\n", failures);
    return failures != 0;
}
