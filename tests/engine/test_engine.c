/*
 * The engine on tiny random models, seen from outside. A plain main, so that it runs under TSan too.
 *
 * The heart of it: what a request gets does not depend on its company. Each of a set of very different requests is
 * served alone, then all together under settings that batch, chunk and preempt in different ways, and every token,
 * text and logprob must be the same.
 */
#include "harness.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the same alone and in company ---- */

static void company_changes_nothing(const char *model) {
    enum { N = 32 };
    static struct outcome alone[N], together[N];
    static const struct {
        size_t max_sequences, max_batched_tokens, kv_tokens;
        size_t threads;
        bool prefix_cache, preempts;
        const char *scheduling;
    } settings[] = {
        {32, 512, 32 * CONTEXT, 2, true, false, "fcfs"},  /* everything at once */
        {32, 512, 32 * CONTEXT, 1, false, false, "fcfs"}, /* by fewer and more threads */
        {32, 512, 32 * CONTEXT, 3, false, false, "fcfs"},
        {32, 33, 32 * CONTEXT, 2, true, false, "fcfs"},  /* prompts in small chunks beside many decodes */
        {5, 7, 32 * CONTEXT, 2, true, false, "priority"}, /* few at a time, tiny chunks, another order */
        {32, 512, CONTEXT, 2, false, true, "fcfs"},       /* hardly any KV memory */
        {32, 512, CONTEXT, 3, true, true, "fcfs"},
        {32, 40, CONTEXT + 64, 1, true, true, "priority"},
    };
    memset(alone, 0, sizeof alone);
    struct engine_config c = test_config(model, 1, 512, CONTEXT);
    c.prefix_cache = false;
    struct engine *e = open_config(&c);
    for (size_t i = 0; i < N; i++) {
        struct engine_request r = mixed_request(i);
        submit(e, &r);
        collect(e, alone, 1);
        check_order(&alone[i], i);
        CHECK(alone[i].kind == ENGINE_EVENT_DONE, "request %zu: %s", i, alone[i].error.message);
        CHECK(alone[i].finish != FINISH_LENGTH || alone[i].n_tokens == r.max_tokens, "request %zu", i);
        for (size_t j = 0; j < alone[i].n_tokens; j++) {
            CHECK(alone[i].tokens[j] >= 0 && alone[i].tokens[j] < 259, "a token outside the vocabulary");
        }
    }
    engine_close(e);
    for (size_t s = 0; s < sizeof settings / sizeof settings[0]; s++) {
        c = test_config(model, settings[s].max_sequences, settings[s].max_batched_tokens, settings[s].kv_tokens);
        c.threads = settings[s].threads;
        c.prefix_cache = settings[s].prefix_cache;
        c.scheduling = settings[s].scheduling;
        e = open_config(&c);
        memset(together, 0, sizeof together);
        for (size_t i = 0; i < N; i++) {
            struct engine_request r = mixed_request(i);
            r.priority = (int32_t)(i * 7 % 5);
            r.tenant = i % 4;
            submit(e, &r);
        }
        collect(e, together, N);
        for (size_t i = 0; i < N; i++) {
            check_order(&together[i], i);
            CHECK(equal_outcomes(&alone[i], &together[i]), "request %zu under settings %zu is not as alone", i, s);
        }
        struct engine_stats stats;
        engine_get_stats(e, &stats);
        CHECK((stats.preemptions > 0) == settings[s].preempts, "settings %zu: %llu preemptions", s,
              (unsigned long long)stats.preemptions);
        check_idle(e);
        engine_close(e);
    }
}

/* ---- single behaviours, on one engine ---- */

static void stops(struct engine *e) {
    static struct outcome full, cut;
    struct engine_request r = plain_request(3, 20, 40);
    r.sampling.temperature = 1;
    r.sampling.has_seed = true;
    one(e, &r, &full);
    CHECK(full.finish == FINISH_LENGTH && full.completion_tokens == 40, "finish %d", full.finish);
    full.text[full.text_len] = '\0';
    for (size_t at = 5; at + 3 < full.text_len; at += 3) {
        struct meta_stop stop = {full.text + at, 1};
        while (at + stop.len < full.text_len && (full.text[at + stop.len] & 0xc0) == 0x80) {
            stop.len++; /* whole characters */
        }
        if ((full.text[at] & 0xc0) == 0x80 || memchr(full.text, '\0', full.text_len)) {
            continue;
        }
        r.stop = &stop;
        r.n_stop = 1;
        char *first = memmem(full.text, full.text_len, stop.bytes, stop.len);
        for (int include = 0; include < 2; include++) {
            r.include_stop = include;
            one(e, &r, &cut);
            size_t want = (size_t)(first - full.text) + (include ? stop.len : 0);
            CHECK(cut.finish == FINISH_STOP && cut.stop_index == 0, "finish %d", cut.finish);
            CHECK(cut.text_len == want && memcmp(cut.text, full.text, want) == 0,
                  "stop at %zu: %zu bytes, expected %zu", at, cut.text_len, want);
        }
    }
    /* the sixth token as a stop id */
    r = plain_request(3, 20, 40);
    r.sampling.temperature = 1;
    r.sampling.has_seed = true;
    int32_t id = full.tokens[5];
    size_t first = 0;
    while (full.tokens[first] != id) {
        first++;
    }
    r.stop_ids = &id;
    r.n_stop_ids = 1;
    one(e, &r, &cut);
    CHECK(cut.finish == FINISH_STOP && cut.stop_token == id && cut.stop_index == -1, "finish %d token %d", cut.finish,
          cut.stop_token);
    CHECK(cut.n_tokens == first && cut.completion_tokens == first + 1, "%zu tokens shown", cut.n_tokens);
    r.include_stop = true;
    one(e, &r, &cut);
    CHECK(cut.n_tokens == first + 1 && cut.tokens[first] == id, "include_stop shows the end token");
    r.include_stop = false;
    r.min_tokens = 30;
    one(e, &r, &cut);
    CHECK(cut.completion_tokens >= 30, "min_tokens: %u", cut.completion_tokens);
    for (size_t i = 0; i < cut.n_tokens && i < 30; i++) {
        CHECK(cut.tokens[i] != id, "a masked token at %zu", i);
    }
}

/*
 * What generation told of its tokens, scoring tells of the same tokens in a prompt, to the bit: one engine with few
 * rows of logits at once and small chunks, another with everything in one step.
 */
static void prompt_logprobs(const char *model) {
    static struct outcome generated, scored, both;
    static int32_t ids[CONTEXT];
    enum { PROMPT = 30, TOKENS = CONTEXT - PROMPT };
    for (int wide = 0; wide < 2; wide++) {
        struct engine *e = wide ? open_engine(model, 2, 512, 2 * CONTEXT) : open_engine(model, 1, 50, CONTEXT);
        struct engine_request r = plain_request(9, PROMPT, TOKENS);
        r.ignore_eos = true;
        r.sampling.temperature = 1;
        r.sampling.has_seed = true;
        r.sampling.n_logprobs = 3;
        one(e, &r, &generated);
        CHECK(generated.n_tokens == TOKENS && generated.n_prompt == 0, "%zu tokens", generated.n_tokens);
        memcpy(ids, r.prompt, PROMPT * sizeof *ids);
        memcpy(ids + PROMPT, generated.tokens, TOKENS * sizeof *ids);

        struct engine_request score = plain_request(10, CONTEXT, 5); /* all of the context; max_tokens does not count */
        score.prompt = ids;
        score.score_only = true;
        score.n_prompt_logprobs = 3;
        one(e, &score, &scored);
        CHECK(scored.kind == ENGINE_EVENT_DONE && scored.finish == FINISH_LENGTH, "%s", scored.error.message);
        CHECK(scored.n_prompt == CONTEXT && scored.n_tokens == 0 && scored.completion_tokens == 0 &&
                  scored.prompt_tokens == CONTEXT,
              "%zu tokens of the prompt, %zu others", scored.n_prompt, scored.n_tokens);
        CHECK(memcmp(scored.prompt, ids, sizeof ids) == 0, "the prompt is told as it is");
        CHECK(isnan(scored.prompt_logprobs[0]) && scored.ranks[0] == 0, "nothing comes before the first token");
        for (size_t i = 0; i < TOKENS; i++) {
            size_t at = PROMPT + i;
            CHECK(memcmp(&scored.prompt_logprobs[at], &generated.logprobs[i], sizeof(float)) == 0 &&
                      memcmp(scored.prompt_top[at], generated.top[i], sizeof generated.top[i]) == 0,
                  "token %zu: %g scored, %g generated", i, (double)scored.prompt_logprobs[at],
                  (double)generated.logprobs[i]);
            bool among_best = false;
            for (uint32_t k = 0; k < 3; k++) {
                if (scored.prompt_top[at][k].id == ids[at]) {
                    among_best = true;
                    CHECK(scored.ranks[at] == k + 1, "token %zu: rank %u", i, scored.ranks[at]);
                }
            }
            CHECK(among_best || (scored.ranks[at] > 3 && scored.ranks[at] <= 259), "token %zu: rank %u", i,
                  scored.ranks[at]);
        }
        /* and with generation behind it, the same of both */
        r.n_prompt_logprobs = 3;
        one(e, &r, &both);
        CHECK(both.n_prompt == PROMPT && both.n_tokens == TOKENS, "%zu, %zu", both.n_prompt, both.n_tokens);
        CHECK(memcmp(both.prompt_logprobs, scored.prompt_logprobs, PROMPT * sizeof(float)) == 0, "scored the same");
        CHECK(memcmp(both.logprobs, generated.logprobs, TOKENS * sizeof(float)) == 0 &&
                  memcmp(both.tokens, generated.tokens, TOKENS * sizeof(int32_t)) == 0,
              "generated the same");
        /* one token has nothing to score; without logprobs there is nothing to tell */
        score.n_prompt = 1;
        one(e, &score, &scored);
        CHECK(scored.n_prompt == 1 && scored.kind == ENGINE_EVENT_DONE, "%zu", scored.n_prompt);
        score.n_prompt_logprobs = -1;
        one(e, &score, &scored);
        CHECK(scored.n_prompt == 0 && scored.kind == ENGINE_EVENT_DONE, "%zu", scored.n_prompt);
        struct error err;
        score.n_prompt_logprobs = ENGINE_MAX_TOP_LOGPROBS + 1;
        CHECK(engine_submit(e, &score, &err) < 0 && strcmp(err.param, "prompt_logprobs") == 0, "too many");
        check_idle(e);
        engine_close(e);
    }
}

static void end_of_sequence(struct engine *e) {
    static struct outcome o;
    static const struct logit_bias bias = {TINY_EOS, 100};
    struct engine_request r = plain_request(4, 10, 12);
    r.sampling.logit_bias = &bias;
    r.sampling.n_logit_bias = 1;
    one(e, &r, &o);
    CHECK(o.finish == FINISH_STOP && o.n_tokens == 0 && o.completion_tokens == 1 && o.stop_token == -1, "%u tokens",
          o.completion_tokens);
    CHECK(o.text_len == 0, "the end token has no text");
    r.min_tokens = 4;
    one(e, &r, &o);
    CHECK(o.finish == FINISH_STOP && o.completion_tokens == 5, "%u tokens", o.completion_tokens);
    r.min_tokens = 0;
    r.ignore_eos = true;
    one(e, &r, &o);
    CHECK(o.finish == FINISH_LENGTH && o.n_tokens == 12 && o.tokens[11] == TINY_EOS, "ignore_eos");
    CHECK(o.text_len == 0, "skip_special leaves the special token out");
    r.skip_special = false;
    one(e, &r, &o);
    CHECK(o.text_len == 12 * strlen("<|eos|>"), "%zu bytes", o.text_len);
}

static void ends_of_the_context(struct engine *e) {
    static struct outcome o;
    struct error err;
    struct engine_request r = plain_request(5, CONTEXT - 1, 0);
    r.ignore_eos = true;
    one(e, &r, &o);
    CHECK(o.finish == FINISH_LENGTH && o.n_tokens == 1, "%zu tokens", o.n_tokens);
    r = plain_request(5, 200, 0);
    r.ignore_eos = true;
    one(e, &r, &o);
    CHECK(o.finish == FINISH_LENGTH && o.n_tokens == CONTEXT - 200, "%zu tokens", o.n_tokens);
    r.n_prompt = CONTEXT;
    CHECK(engine_submit(e, &r, &err) < 0 && err.code == ERROR_CONTEXT_LENGTH, "a prompt as long as the context");
    CHECK(strstr(err.message, "256"), "%s", err.message);
    r = plain_request(5, 200, CONTEXT - 200);
    one(e, &r, &o);
    r.max_tokens++;
    CHECK(engine_submit(e, &r, &err) < 0 && err.code == ERROR_CONTEXT_LENGTH, "prompt and max_tokens over the context");
}

static void refusals(struct engine *e) {
    struct error err;
    const int32_t outside[] = {3, 259}, negative[] = {-1};
    const struct meta_stop empty = {"", 0}, broken = {"\xff", 1};
    static const struct logit_bias bad_id = {259, 1}, bad_bias = {1, 101}, nan_bias = {1, NAN};
    static const char long_stop[ENGINE_MAX_STOP_LEN + 1];
    const struct meta_stop long_one = {long_stop, sizeof long_stop};
    for (int i = 0;; i++) {
        struct engine_request r = plain_request(6, 5, 5);
        const char *param = NULL;
        switch (i) {
        case 0:
            r.n_prompt = 0;
            param = "prompt";
            break;
        case 1:
            r.prompt = outside;
            r.n_prompt = 2;
            param = "prompt";
            break;
        case 2:
            r.prompt = negative;
            r.n_prompt = 1;
            param = "prompt";
            break;
        case 3:
            r.sampling.temperature = 2.5f;
            param = "temperature";
            break;
        case 4:
            r.sampling.temperature = NAN;
            param = "temperature";
            break;
        case 5:
            r.sampling.temperature = -0.1f;
            param = "temperature";
            break;
        case 6:
            r.sampling.top_p = 0;
            param = "top_p";
            break;
        case 7:
            r.sampling.top_p = 1.5f;
            param = "top_p";
            break;
        case 8:
            r.sampling.min_p = -1;
            param = "min_p";
            break;
        case 9:
            r.sampling.top_k = -2;
            param = "top_k";
            break;
        case 10:
            r.sampling.presence_penalty = 3;
            param = "presence_penalty";
            break;
        case 11:
            r.sampling.frequency_penalty = -3;
            param = "frequency_penalty";
            break;
        case 12:
            r.sampling.repetition_penalty = 0;
            param = "repetition_penalty";
            break;
        case 13:
            r.sampling.n_logprobs = 21;
            param = "top_logprobs";
            break;
        case 14:
            r.sampling.logit_bias = &bad_id;
            r.sampling.n_logit_bias = 1;
            param = "logit_bias";
            break;
        case 15:
            r.sampling.logit_bias = &bad_bias;
            r.sampling.n_logit_bias = 1;
            param = "logit_bias";
            break;
        case 16:
            r.sampling.logit_bias = &nan_bias;
            r.sampling.n_logit_bias = 1;
            param = "logit_bias";
            break;
        case 17:
            r.stop = &empty;
            r.n_stop = 1;
            param = "stop";
            break;
        case 18:
            r.stop = &broken;
            r.n_stop = 1;
            param = "stop";
            break;
        case 19:
            r.stop = &long_one;
            r.n_stop = 1;
            param = "stop";
            break;
        case 20:
            r.stop = &empty;
            r.n_stop = ENGINE_MAX_STOP + 1;
            param = "stop";
            break;
        case 21:
            r.stop_ids = negative;
            r.n_stop_ids = 1;
            param = "stop_token_ids";
            break;
        case 22:
            r.min_tokens = 6;
            param = "min_tokens";
            break;
        default:
            return;
        }
        CHECK(engine_submit(e, &r, &err) < 0 && err.code == ERROR_INVALID, "case %d is accepted", i);
        CHECK(strcmp(err.param, param) == 0, "case %d blames %s", i, err.param);
    }
}

static void seeds(struct engine *e) {
    static struct outcome outcomes[6];
    memset(outcomes, 0, sizeof outcomes);
    for (size_t i = 0; i < 6; i++) {
        struct engine_request r = plain_request(i, 30, 30);
        r.prompt = prompts[0];
        r.ignore_eos = true;
        r.sampling.temperature = 1;
        r.sampling.has_seed = i < 4;
        r.sampling.seed = 77 + (i == 3);
        r.sampling.choice = i == 2;
        submit(e, &r);
    }
    collect(e, outcomes, 6);
    CHECK(equal_outcomes(&outcomes[0], &outcomes[1]), "the same seed at the same time in two places");
    CHECK(!equal_outcomes(&outcomes[0], &outcomes[2]), "another choice of the same seed");
    CHECK(!equal_outcomes(&outcomes[0], &outcomes[3]), "another seed");
    CHECK(!equal_outcomes(&outcomes[4], &outcomes[5]), "without a seed");
}

/* ---- cancel, drain, bounds ---- */

static void cancel_in_every_state(const char *model) {
    static struct outcome o[MAX_REQUESTS];
    static struct engine_event event;
    struct engine_config c = test_config(model, 2, 8, 4 * CONTEXT);
    c.device = "null"; /* at a known pace: nothing here ends before it is cancelled */
    c.null_step_ns = 4000000;
    struct engine *e = open_config(&c);
    memset(o, 0, sizeof o);
    /* two run (one prefills for 30 steps), the others wait */
    for (uint64_t i = 0; i < 6; i++) {
        struct engine_request r = plain_request(i, i == 1 ? 240 : 5, 0);
        r.ignore_eos = true;
        submit(e, &r);
    }
    engine_cancel(e, 5);    /* perhaps not even collected */
    engine_cancel(e, 4);    /* waiting */
    engine_cancel(e, 4);    /* twice */
    engine_cancel(e, 1234); /* nobody */
    while (o[0].n_tokens < 3 && engine_wait(e, &event, 60000)) {
        note(&o[event.id], &event);
    }
    engine_cancel(e, 1); /* prefilling, or decoding by now */
    engine_cancel(e, 0); /* decoding */
    size_t ended = 0;
    for (size_t i = 0; i < 6; i++) {
        ended += (size_t)o[i].terminal;
    }
    collect(e, o, 4 - ended);
    const size_t gone[] = {0, 1, 4, 5};
    for (size_t i = 0; i < 4; i++) {
        CHECK(o[gone[i]].finish == FINISH_CANCELLED && o[gone[i]].kind == ENGINE_EVENT_DONE, "request %zu: finish %d",
              gone[i], o[gone[i]].finish);
    }
    engine_cancel(e, 2);
    engine_cancel(e, 3);
    collect(e, o, 2);
    for (size_t i = 0; i < 6; i++) {
        CHECK(o[i].terminal == 1 && !o[i].after_end, "request %zu: %d terminal events", i, o[i].terminal);
    }
    check_idle(e);
    /* the id of an ended request can be used again at once */
    struct engine_request again = plain_request(0, 5, 5);
    memset(o, 0, sizeof o);
    submit(e, &again);
    struct error err;
    CHECK(engine_submit(e, &again, &err) < 0 && err.code == ERROR_INVALID, "an id in use");
    collect(e, o, 1);
    CHECK(o[0].n_tokens == 5, "%zu tokens", o[0].n_tokens);
    engine_cancel(e, 0);
    check_idle(e);
    engine_close(e);
}

static void half_leave(const char *model) {
    enum { N = 32 };
    static struct outcome alone[N], o[N];
    static struct engine_event event;
    memset(alone, 0, sizeof alone);
    memset(o, 0, sizeof o);
    struct engine *e = open_engine(model, 32, 64, 8 * CONTEXT);
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < N; i++) {
            struct engine_request r = plain_request(i, 10 + i, 60);
            r.ignore_eos = true;
            submit(e, &r);
            if (round == 0) {
                collect(e, alone, 1);
            }
        }
    }
    for (size_t ended = 0; ended < N;) {
        if (!engine_wait(e, &event, 60000)) {
            CHECK(false, "no event for a minute");
            break;
        }
        note(&o[event.id], &event);
        ended += event.kind == ENGINE_EVENT_DONE;
        if (event.kind == ENGINE_EVENT_TOKEN && event.id % 2 == 1 && o[event.id].n_tokens == 1 + event.id % 30) {
            engine_cancel(e, event.id);
        }
    }
    for (size_t i = 0; i < N; i++) {
        if (i % 2 == 0) {
            CHECK(equal_outcomes(&alone[i], &o[i]), "request %zu was disturbed by others that left", i);
        } else {
            CHECK(o[i].finish == FINISH_CANCELLED && o[i].n_tokens < 60, "request %zu: %zu tokens", i, o[i].n_tokens);
        }
    }
    check_idle(e);
    engine_close(e);
}

static void bounded_queue_and_drain(const char *model) {
    static struct outcome o[MAX_REQUESTS];
    struct engine_config c;
    struct engine *e;
    struct error err;
    engine_config_default(&c);
    c.model = model;
    c.max_sequences = 1;
    c.max_waiting = 2;
    c.kv_tokens = CONTEXT;
    c.device = "null"; /* at a known pace: the first must still run when the fourth comes */
    c.null_step_ns = 1000000;
    if (engine_open(&c, &e, &err) < 0) {
        CHECK(false, "%s", err.message);
        return;
    }
    memset(o, 0, sizeof o);
    for (uint64_t i = 0; i < 3; i++) {
        struct engine_request r = plain_request(i, 5, 100);
        r.ignore_eos = true;
        submit(e, &r);
    }
    struct engine_request r = plain_request(3, 5, 5);
    CHECK(engine_submit(e, &r, &err) < 0 && err.code == ERROR_QUEUE_FULL, "the fourth of three");
    struct engine_stats s;
    engine_get_stats(e, &s);
    CHECK(s.running + s.waiting == 3 && !s.idle, "running %llu waiting %llu", (unsigned long long)s.running,
          (unsigned long long)s.waiting);
    engine_drain(e);
    CHECK(engine_submit(e, &r, &err) < 0 && err.code == ERROR_UNAVAILABLE, "while draining");
    collect(e, o, 3);
    for (size_t i = 0; i < 3; i++) {
        CHECK(o[i].n_tokens == 100, "a running request must be finished: %zu tokens", o[i].n_tokens);
    }
    engine_get_stats(e, &s);
    CHECK(s.prompt_tokens == 15 && s.generation_tokens == 300 && s.steps > 0 && s.last_step_ns > 0, "counters");
    check_idle(e);
    engine_close(e);
}

static void bounded_tokens(const char *model) {
    static struct outcome o[MAX_REQUESTS];
    struct engine_config c = test_config(model, 1, 512, 8 * CONTEXT);
    struct engine_stats s;
    struct error err;
    c.device = "null"; /* at a known pace: the first runs all the time */
    c.null_step_ns = 1000000;
    c.max_waiting_tokens = 100;
    memset(o, 0, sizeof o);
    struct engine *e = open_config(&c);
    struct engine_request first = plain_request(0, 200, 50);
    submit(e, &first); /* more than the bound, but nobody else waits */
    do {
        engine_get_stats(e, &s);
    } while (s.running == 0);
    CHECK(s.waiting_tokens == 0, "a running request's prompt waits no more: %llu", (unsigned long long)s.waiting_tokens);
    for (uint64_t i = 1; i < 3; i++) {
        struct engine_request r = plain_request(i, 45, 1);
        submit(e, &r);
    }
    engine_get_stats(e, &s);
    CHECK(s.waiting_tokens == 90, "%llu tokens", (unsigned long long)s.waiting_tokens);
    struct engine_request r = plain_request(3, 11, 1);
    r.parent = 1; /* a child counts like any other */
    CHECK(engine_submit(e, &r, &err) < 0 && err.code == ERROR_QUEUE_FULL && strstr(err.message, "100 tokens"),
          "one token too many: %s", err.message);
    r.n_prompt = 10;
    submit(e, &r);
    engine_cancel(e, 1);
    collect(e, o, 1);
    engine_get_stats(e, &s);
    CHECK(o[1].finish == FINISH_CANCELLED && s.waiting_tokens == 55, "%llu tokens", (unsigned long long)s.waiting_tokens);
    collect(e, o, 3);
    engine_get_stats(e, &s);
    CHECK(s.waiting_tokens == 0, "%llu tokens", (unsigned long long)s.waiting_tokens);
    check_idle(e);
    engine_close(e);
}

/* Who is next is decided by priority, and by what its tenant had; both only where the engine is asked to. */
static void order(const char *model) {
    enum { N = 12 };
    for (int by_priority = 0; by_priority < 2; by_priority++) {
        struct engine_config c = test_config(model, 1, 64, CONTEXT);
        c.scheduling = by_priority ? "priority" : "fcfs";
        struct engine *e = open_config(&c);
        static struct engine_event event;
        uint64_t began[N + 1];
        size_t n = 0;
        engine_hold(e);
        for (uint64_t i = 1; i <= N; i++) { /* eight of one tenant, then four of another */
            struct engine_request r = plain_request(i, 20, 10);
            r.tenant = i <= 8 ? 1 : 2;
            r.priority = i == 8 || i == 12 ? -1 : 0;
            submit(e, &r);
        }
        engine_let_go(e);
        for (size_t ended = 0; ended <= N && engine_wait(e, &event, 60000);) {
            ended += event.kind == ENGINE_EVENT_DONE;
            if (event.kind == ENGINE_EVENT_STARTED && event.id > 0) {
                began[n++] = event.id;
            }
        }
        static const uint64_t orders[2][N] = {{1, 9, 2, 10, 3, 11, 4, 12, 5, 6, 7, 8}, {8, 12, 1, 9, 2, 10, 3, 11, 4, 5, 6, 7}};
        CHECK(n == N && memcmp(began, orders[by_priority], sizeof orders[0]) == 0, "%s: %d %d %d %d %d %d", c.scheduling,
              (int)began[0], (int)began[1], (int)began[2], (int)began[3], (int)began[4], (int)began[5]);
        check_idle(e);
        engine_close(e);
    }
}

/* ---- a consumer that does not come ---- */

static void full_ring(const char *model) {
    enum { EACH = 240 }; /* all together far more than the ring holds */
    static struct outcome o[MAX_REQUESTS];
    memset(o, 0, sizeof o);
    struct engine *e = open_engine(model, 32, 64, 32 * CONTEXT);
    for (int round = 0; round < 2; round++) {
        struct engine_stats s;
        engine_get_stats(e, &s);
        uint64_t before = s.generation_tokens;
        for (uint64_t i = 0; i < 32; i++) {
            struct engine_request r = plain_request(i, 4, EACH);
            r.ignore_eos = true;
            submit(e, &r);
        }
        uint64_t steps = UINT64_MAX;
        for (int still = 0; still < 5;) { /* until the engine stands still before the full ring */
            usleep(20000);
            engine_get_stats(e, &s);
            still = s.steps == steps && s.generation_tokens > before + 900 ? still + 1 : 0;
            steps = s.steps;
        }
        CHECK(s.running > 0 && s.generation_tokens < before + 32 * EACH - 1000, "%llu tokens",
              (unsigned long long)s.generation_tokens);
        if (round == 1) {
            break; /* close must not hang */
        }
        engine_cancel(e, 7);
        collect(e, o, 32);
        for (size_t i = 0; i < 32; i++) {
            check_order(&o[i], i);
            CHECK(i == 7 ? o[i].finish == FINISH_CANCELLED : o[i].n_tokens == EACH, "request %zu: %zu tokens", i,
                  o[i].n_tokens);
        }
        check_idle(e);
    }
    engine_close(e);
}

/* ---- numbers that are none ---- */

static void not_a_number(const char *model, int nan_token) {
    static struct outcome alone, o[3];
    int32_t poisoned[12];
    struct engine *e = open_engine(model, 4, 64, CONTEXT);
    struct engine_request good = plain_request(1, 40, 20);
    for (size_t i = 0; i < 40; i++) {
        prompts[1][i] = 1 + (int32_t)(i * 7 % 60); /* surely not the token */
    }
    struct logit_bias never = {nan_token, -100};
    good.sampling.logit_bias = &never;
    good.sampling.n_logit_bias = 1;
    one(e, &good, &alone);
    for (size_t i = 0; i < 12; i++) {
        poisoned[i] = i == 9 ? nan_token : 5;
    }
    struct engine_request bad = plain_request(2, 12, 20);
    bad.prompt = poisoned;
    memset(o, 0, sizeof o);
    submit(e, &bad);
    submit(e, &good);
    collect(e, o, 2);
    CHECK(o[2].kind == ENGINE_EVENT_ERROR && o[2].error.code == ERROR_INTERNAL, "kind %d", o[2].kind);
    CHECK(equal_outcomes(&alone, &o[1]), "the neighbour is disturbed");
    /* now in the very blocks that held the numbers that are none */
    memset(o, 0, sizeof o);
    submit(e, &good);
    collect(e, o, 1);
    CHECK(equal_outcomes(&alone, &o[1]), "what is left in a block reaches its next user");
    struct engine_stats s;
    engine_get_stats(e, &s);
    CHECK(s.nonfinite_logits == 1, "%llu", (unsigned long long)s.nonfinite_logits);
    check_idle(e);
    engine_close(e);
}

/* ---- many threads ---- */

struct submitter {
    struct engine *engine;
    uint64_t first;
};

static void *submit_and_cancel(void *arg) {
    const struct submitter *s = arg;
    for (uint64_t i = s->first; i < s->first + 16; i++) {
        struct engine_request r = plain_request(i, 1 + i % 20, 1 + i % 30);
        struct engine_stats stats;
        submit(s->engine, &r);
        if (i % 3 == 0) {
            engine_cancel(s->engine, i);
        }
        engine_get_stats(s->engine, &stats);
    }
    return NULL;
}

static atomic_uint notified;

static void count_notification(void *arg) {
    (void)arg;
    atomic_fetch_add(&notified, 1);
}

static void many_threads(const char *model) {
    static struct outcome o[MAX_REQUESTS];
    pthread_t threads[4];
    struct submitter s[4];
    memset(o, 0, sizeof o);
    struct engine *e = open_engine(model, 8, 32, 2 * CONTEXT);
    engine_set_notify(e, count_notification, NULL);
    for (size_t i = 0; i < 4; i++) {
        s[i] = (struct submitter){e, i * 16};
        pthread_create(&threads[i], NULL, submit_and_cancel, &s[i]);
    }
    collect(e, o, 64);
    for (size_t i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
    }
    for (size_t i = 0; i < 64; i++) {
        CHECK(o[i].terminal == 1 && !o[i].after_end && !o[i].early, "request %zu", i);
    }
    CHECK(atomic_load(&notified) > 0, "nobody was notified");
    check_idle(e);
    engine_close(e);
}

/* ---- opening ---- */

static void opening(const char *model) {
    struct engine_config good, c;
    struct engine *e = (struct engine *)&good;
    struct error err;
    engine_config_default(&good);
    good.model = model;
    good.kv_tokens = CONTEXT;
#define REFUSED(change, wanted)                                                                                        \
    do {                                                                                                               \
        c = good;                                                                                                      \
        change;                                                                                                        \
        CHECK(engine_open(&c, &e, &err) < 0 && err.code == (wanted), "code %d: %s", err.code, err.message);            \
        CHECK(e == (struct engine *)&good, "the result is untouched on failure");                                      \
    } while (0)
    REFUSED(c.model = "/nonexistent/model.gguf", ERROR_MODEL);
    REFUSED(c.device = "abacus", ERROR_DEVICE);
    REFUSED(c.kv_dtype = "f8", ERROR_INVALID);
    CHECK(strstr(err.message, "f8"), "%s", err.message);
    REFUSED(c.scheduling = "lottery", ERROR_INVALID);
    REFUSED(c.priority_ageing = -1, ERROR_INVALID);
    REFUSED(c.priority_ageing = NAN, ERROR_INVALID);
    REFUSED(c.kv_block_size = 24, ERROR_INVALID);
    REFUSED(c.max_sequences = 0, ERROR_INVALID);
    REFUSED(c.memory_utilization = 0, ERROR_INVALID);
    REFUSED((c.max_batched_tokens = 16, c.max_sequences = 17), ERROR_INVALID);
    REFUSED(c.max_model_len = CONTEXT + 1, ERROR_INVALID);
    REFUSED((c.kv_tokens = 64, c.max_model_len = 128), ERROR_DOES_NOT_FIT);
    REFUSED(c.memory_utilization = 1e-6, ERROR_DOES_NOT_FIT);
#undef REFUSED
    c = good;
    c.kv_dtype = "bf16";
    CHECK(engine_open(&c, &e, &err) == 0, "%s", err.message);
    struct engine_info info;
    engine_get_info(e, &info);
    CHECK(info.max_model_len == CONTEXT && info.vocab_size == 259 && info.n_layers == 3, "%zu %zu", info.max_model_len,
          info.vocab_size);
    CHECK(strcmp(info.architecture, "llama") == 0 && strcmp(info.model_name, "tiny") == 0, "%s", info.model_name);
    CHECK(info.kv_bytes == (size_t)CONTEXT * 3 * 2 * 2 * 32 * 2, "%zu",
          info.kv_bytes); /* tokens layers KV heads features bytes */
    engine_close(e);
    c.kv_dtype = "int8";
    CHECK(engine_open(&c, &e, &err) == 0, "%s", err.message);
    engine_get_info(e, &info);
    CHECK(info.kv_bytes == (size_t)CONTEXT * 3 * 2 * 2 * (32 + 2), "%zu", info.kv_bytes); /* and a scale a head */
    engine_close(e);
    engine_close(NULL);
}

/* A tensor too many, too few or misshapen must not be passed over: the model would be another one. */
static void refused_tensors(const char *path) {
    static const struct {
        struct tiny_model model;
        enum error_code code;
        const char *says;
    } cases[] = {
        {{.extra = "blk.0.attn_output.bias"}, ERROR_UNSUPPORTED, "blk.0.attn_output.bias"},
        {{.extra = "blk.0.attn_q.bias"}, ERROR_UNSUPPORTED, "blk.0.attn_q.bias"},
        {{.extra = "blk.3.attn_norm.weight"}, ERROR_UNSUPPORTED, "blk.3.attn_norm.weight"},
        {{.extra = "blk.00.attn_norm.weight"}, ERROR_UNSUPPORTED, "blk.00.attn_norm.weight"},
        {{.extra = "blk.1.ffn_gate_inp.weight"}, ERROR_UNSUPPORTED, "blk.1.ffn_gate_inp.weight"},
        {{.extra = "surprise"}, ERROR_UNSUPPORTED, "surprise"},
        {{.extra = "rope_freqs.weight"}, ERROR_MODEL, "16"},
        {{.missing = "blk.1.ffn_norm.weight"}, ERROR_MODEL, "blk.1.ffn_norm.weight"},
        {{.missing = "blk.2.attn_v.weight"}, ERROR_MODEL, "blk.2.attn_v.weight"},
        {{.missing = "output_norm.weight"}, ERROR_MODEL, "output_norm.weight"},
        {{.missing = "token_embd.weight"}, ERROR_MODEL, "token_embd.weight"},
        {{.swapped = "blk.2.ffn_down.weight"}, ERROR_MODEL, "blk.2.ffn_down.weight"},
        {{.not_finite = "blk.0.ffn_norm.weight"}, ERROR_MODEL, "blk.0.ffn_norm.weight"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tiny_model model = cases[i].model;
        struct engine_config c;
        struct engine *e;
        struct error err;
        model.architecture = "llama";
        model.context_length = CONTEXT;
        model.nan_token = -1;
        engine_config_default(&c);
        c.model = path;
        c.kv_tokens = CONTEXT;
        if (!tiny_model_write(path, &model) || engine_open(&c, &e, &err) == 0) {
            CHECK(false, "case %zu is accepted", i);
            continue;
        }
        CHECK(err.code == cases[i].code && strstr(err.message, cases[i].says), "case %zu: code %d: %s", i, err.code,
              err.message);
    }
}

int main(void) {
    static const char *const architectures[] = {"llama", "qwen2", "qwen3", "gemma3"};
    char folder[] = "/tmp/inferd-engine-XXXXXX", path[64];
    if (!mkdtemp(folder)) {
        perror("mkdtemp");
        return 1;
    }
    snprintf(path, sizeof path, "%s/tiny.gguf", folder);
#if defined(__SANITIZE_THREAD__)
    const size_t n_architectures = 1; /* threads do the same in each, and take twenty times as long here */
#else
    const size_t n_architectures = 4;
#endif
    for (size_t i = 0; i < n_architectures; i++) {
        struct tiny_model model = {architectures[i], CONTEXT, 5 + i, -1};
        if (!tiny_model_write(path, &model)) {
            return 1;
        }
        fill_prompts();
        RUN(company_changes_nothing, path);
        if (i % 3 == 0) { /* without and with sliding windows */
            test_kv_dtype = "int8";
            RUN(company_changes_nothing, path);
            test_kv_dtype = "f16";
        }
        if (i > 0) {
            continue;
        }
        RUN(opening, path);
        RUN(cancel_in_every_state, path);
        RUN(half_leave, path);
        RUN(prompt_logprobs, path);
        RUN(bounded_queue_and_drain, path);
        RUN(bounded_tokens, path);
        RUN(order, path);
        RUN(full_ring, path);
        RUN(many_threads, path);
        struct engine *e = open_engine(path, 8, 64, 8 * CONTEXT);
        RUN(stops, e);
        RUN(end_of_sequence, e);
        RUN(ends_of_the_context, e);
        RUN(refusals, e);
        RUN(seeds, e);
        check_idle(e);
        engine_close(e);
        model.nan_token = 250;
        if (!tiny_model_write(path, &model)) {
            return 1;
        }
        RUN(not_a_number, path, 250);
        RUN(refused_tensors, path);
    }
    unlink(path);
    rmdir(folder);
    printf("%d failures\n", failures);
    return failures != 0;
}
