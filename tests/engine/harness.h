/* What the programs of this folder share: requests, what came of them, and checks that count. */
#ifndef TEST_ENGINE_HARNESS_H
#define TEST_ENGINE_HARNESS_H

#include "tiny_model.h"

#include <inferd/engine.h>
#include <stdio.h>

#define CONTEXT 256
#define MAX_REQUESTS 64
#define MAX_TOP 6 /* log-probabilities of a place that are kept */

extern int failures;
extern const char *current; /* the running test */

#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            failures++;                                                                                                \
            printf("FAIL %s, line %d: %s: ", current, __LINE__, #condition);                                           \
            printf(__VA_ARGS__);                                                                                       \
            printf("\n");                                                                                              \
        }                                                                                                              \
    } while (0)

#define RUN(test, ...)                                                                                                 \
    do {                                                                                                               \
        current = #test;                                                                                               \
        test(__VA_ARGS__);                                                                                             \
        printf("%s\n", current);                                                                                       \
        fflush(stdout);                                                                                                \
    } while (0)

/* Everything the client saw of one request. */
struct outcome {
    int started, terminal;
    bool after_end; /* something came behind the terminal event */
    bool early;     /* a token came before STARTED */
    size_t n_tokens;
    int32_t tokens[CONTEXT];
    float logprobs[CONTEXT];
    struct token_logprob top[CONTEXT][MAX_TOP];
    char text[CONTEXT * 8];
    size_t text_len;
    enum engine_event_kind kind;
    enum finish_reason finish;
    int32_t stop_index, stop_token;
    uint32_t prompt_tokens, completion_tokens, cached_tokens;
    struct error error;
    size_t n_prompt; /* PROMPT events; each before the first token, else `early` */
    int32_t prompt[CONTEXT];
    float prompt_logprobs[CONTEXT];
    uint32_t ranks[CONTEXT];
    struct token_logprob prompt_top[CONTEXT][MAX_TOP];
};

void note(struct outcome *o, const struct engine_event *e);
/* Take events until `ends` requests have ended; ids index outcomes. */
void collect(struct engine *e, struct outcome *outcomes, size_t ends);
/* The same bytes for the client; where they came from (cached_tokens) may differ. */
bool equal_outcomes(const struct outcome *a, const struct outcome *b);
void check_order(const struct outcome *o, size_t i);
/* Nothing runs, waits or holds KV. */
void check_idle(struct engine *e);

/* Two threads on the CPU, everything else as given or by default. */
extern const char *test_kv_dtype; /* of the configurations to come; "f16" until set */
struct engine_config test_config(const char *model, size_t max_sequences, size_t max_batched_tokens, size_t kv_tokens);
/* These end the program when they fail. */
struct engine *open_config(const struct engine_config *c);
struct engine *open_engine(const char *model, size_t max_sequences, size_t max_batched_tokens, size_t kv_tokens);
void submit(struct engine *e, const struct engine_request *r);
/*
 * Hold the engine thread, so that what is submitted until engine_let_go comes to it at once. Afterwards one event more is
 * there: the end of request 0 (one token), which is submitted here.
 */
void engine_hold(struct engine *e);
void engine_let_go(struct engine *e);
/* Submit and collect. */
void one(struct engine *e, const struct engine_request *r, struct outcome *o);

extern int32_t prompts[MAX_REQUESTS][CONTEXT];
void fill_prompts(void); /* random, the same in each program */
struct engine_request plain_request(uint64_t id, size_t n_prompt, size_t max_tokens);
/* Very different requests: lengths, samplers, stops, penalties. */
struct engine_request mixed_request(size_t i);

#endif
