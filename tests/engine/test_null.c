/*
 * The engine on the null backend: everything but the arithmetic is real, tokens follow a rule, time is as set, memory
 * is not taken, and nobody gets it who did not name it.
 */
#include "tiny_model.h"

#include <inferd/backend.h>
#include <inferd/clock.h>
#include <inferd/engine.h>

#include <dlfcn.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int failures;

#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            failures++;                                                                                                \
            printf("FAIL line %d: %s: ", __LINE__, #condition);                                                        \
            printf(__VA_ARGS__);                                                                                       \
            printf("\n");                                                                                              \
        }                                                                                                              \
    } while (0)

#define CONTEXT 256
#define MOST 100 /* more than the device is asked to choose in one call */

struct outcome {
    size_t n;
    int32_t tokens[CONTEXT];
    float logprob;
    char text[CONTEXT * 8];
    size_t text_len;
    enum finish_reason finish;
    int32_t stop_index, stop_token;
    bool ended;
};

static struct engine_config config_of(const char *model) {
    struct engine_config c;
    engine_config_default(&c);
    c.model = model;
    c.device = "null";
    c.kv_tokens = MOST * CONTEXT;
    return c;
}

static struct engine *open_engine(const struct engine_config *c) {
    struct engine *e;
    struct error err;
    if (engine_open(c, &e, &err) < 0) {
        printf("FAIL engine_open: %s\n", err.message);
        exit(1);
    }
    return e;
}

static const int32_t prompt[] = {'T', 'h', 'e', ' ', 'e', 'n', 'd'};

static struct engine_request request(uint64_t id, size_t max_tokens) {
    struct engine_request r;
    engine_request_default(&r);
    r.id = id;
    r.prompt = prompt;
    r.n_prompt = sizeof prompt / sizeof prompt[0];
    r.max_tokens = max_tokens;
    r.skip_special = true;
    r.sampling.temperature = 1;
    r.sampling.has_seed = true;
    r.sampling.seed = id / 2; /* two choices of each seed */
    r.sampling.choice = (uint32_t)(id % 2);
    return r;
}

static void submit(struct engine *e, const struct engine_request *r) {
    struct error err;
    CHECK(engine_submit(e, r, &err) == 0, "%s", err.message);
}

static void collect(struct engine *e, struct outcome *outcomes, size_t ends) {
    static struct engine_event event;
    while (ends > 0) {
        if (!engine_wait(e, &event, 60000)) {
            printf("FAIL no event for a minute\n");
            exit(1);
        }
        struct outcome *o = &outcomes[event.id];
        if (event.kind == ENGINE_EVENT_TOKEN) {
            o->tokens[o->n++] = event.token;
            o->logprob = event.logprob;
        }
        memcpy(o->text + o->text_len, event.text, event.text_len);
        o->text_len += event.text_len;
        if (event.kind == ENGINE_EVENT_DONE || event.kind == ENGINE_EVENT_ERROR) {
            CHECK(event.kind == ENGINE_EVENT_DONE, "%s", event.error.message);
            o->finish = event.finish;
            o->stop_index = event.stop_index;
            o->stop_token = event.stop_token;
            o->ended = true;
            ends--;
        }
    }
}

static void one(struct engine *e, const struct engine_request *r, struct outcome *o) {
    static struct outcome outcomes[MOST];
    memset(&outcomes[r->id], 0, sizeof outcomes[0]);
    submit(e, r);
    collect(e, outcomes, 1);
    *o = outcomes[r->id];
}

static void must_be_named(void) {
    static const char *const nobody[] = {"", "nul", "auto", "cuda:", "cuda:x", "cuda:1x", "cuda1", "cuda:99999", "cuda:-1"};
    const struct backend_ops *ops;
    struct backend *b;
    struct error err;
    char why[BACKEND_WHY];
    const struct backend_config config = {.threads = 1, .max_rows = 1};
    CHECK(backend_find("cpu", NULL, &ops, &err) == 0 && strcmp(ops->name, "cpu") == 0, "cpu is not cpu");
    CHECK(backend_find("null", NULL, &ops, &err) == 0 && strcmp(ops->name, "null") == 0, "null is not null");
    for (size_t i = 0; i < sizeof nobody / sizeof *nobody; i++) {
        CHECK(backend_find(nobody[i], NULL, &ops, &err) < 0 && err.code == ERROR_DEVICE &&
                  strstr(err.message, "there is no such device"),
              "\"%s\" is a device", nobody[i]);
    }
    CHECK(backend_open("auto", "/nonexistent/inferd-cuda.so", &config, &ops, &b, why, &err) == 0, "%s", err.message);
    CHECK(strcmp(ops->name, "cpu") == 0, "auto without a module is %s", ops->name);
    CHECK(strstr(why, "the CPU, for ") == why && strstr(why, "/nonexistent/inferd-cuda.so"), "it says \"%s\"", why);
    ops->close(b);
    CHECK(backend_open("cpu", NULL, &config, &ops, &b, why, &err) == 0 && why[0] == '\0', "cpu says \"%s\"", why);
    ops->close(b);
}

/* What dlopen takes for a module but is none, and what is no file at all. */
static void modules_are_checked(void) {
    const struct backend_ops *ops;
    struct error err;
    CHECK(backend_find("cuda", "/nonexistent/inferd-cuda.so", &ops, &err) < 0 && err.code == ERROR_DEVICE &&
              strstr(err.message, "/nonexistent/inferd-cuda.so"),
          "%s", err.message);
    Dl_info libc; /* a library that is there on every machine, by its path */
    CHECK(dladdr((const void *)(uintptr_t)&getpid, &libc) != 0 && strchr(libc.dli_fname, '/'), "where is the C library?");
    CHECK(backend_find("cuda:1", libc.dli_fname, &ops, &err) < 0 && err.code == ERROR_DEVICE &&
              strstr(err.message, BACKEND_CUDA_SYMBOL),
          "%s", err.message);
}

static void tokens_are_ordinary(struct engine *e) {
    static struct outcome greedy, again, sampled, other;
    struct engine_request r = request(0, 200);
    struct engine_info info;
    engine_get_info(e, &info);
    CHECK(strcmp(info.backend, "null") == 0, "backend %s", info.backend);
    r.sampling.temperature = 0;
    r.sampling.n_logprobs = 0;
    one(e, &r, &greedy);
    one(e, &r, &again);
    CHECK(greedy.finish == FINISH_LENGTH && greedy.n == 200, "finish %d after %zu", greedy.finish, greedy.n);
    CHECK(memcmp(greedy.tokens, again.tokens, sizeof greedy.tokens) == 0, "greedy differs from itself");
    /* the tiny model's head has 260 rows */
    CHECK(fabsf(greedy.logprob - -logf(260)) < 1e-6f, "logprob %g", (double)greedy.logprob);
    r.sampling.temperature = 1;
    one(e, &r, &sampled);
    r.sampling.choice = 1;
    one(e, &r, &other);
    CHECK(memcmp(sampled.tokens, other.tokens, sizeof sampled.tokens) != 0, "two choices are equal");
    CHECK(memcmp(sampled.tokens, greedy.tokens, sizeof sampled.tokens) != 0, "sampled as greedy");
    for (size_t i = 0; i < 200; i++) {
        int32_t t = sampled.tokens[i];
        CHECK((t >= 0x20 && t < 0x7f) || t == TINY_EOS + 1, "token %d is not printable", t);
        CHECK(i == 0 || greedy.tokens[i - 1] != greedy.tokens[0] || i < 2 || greedy.tokens[i] == greedy.tokens[1],
              "greedy is no function of the token before");
    }
    /* "ab" has two bytes, all others one */
    size_t n_ab = 0;
    for (size_t i = 0; i < 200; i++) {
        n_ab += sampled.tokens[i] == TINY_EOS + 1;
    }
    CHECK(sampled.text_len == 200 + n_ab, "%zu bytes of text", sampled.text_len);
}

static void stops_are_found(struct engine *e) {
    static struct outcome full, cut;
    struct engine_request r = request(2, 100);
    one(e, &r, &full);
    struct meta_stop stop = {full.text + 40, 3};
    char *first = memmem(full.text, full.text_len, stop.bytes, stop.len);
    r.stop = &stop;
    r.n_stop = 1;
    one(e, &r, &cut);
    CHECK(cut.finish == FINISH_STOP && cut.stop_index == 0 && cut.text_len == (size_t)(first - full.text),
          "finish %d, %zu bytes", cut.finish, cut.text_len);
    r.n_stop = 0;
    r.stop_ids = &full.tokens[10];
    r.n_stop_ids = 1;
    one(e, &r, &cut);
    CHECK(cut.finish == FINISH_STOP && cut.stop_token == full.tokens[10] && cut.n <= 10, "%zu tokens", cut.n);
    r.min_tokens = 50;
    one(e, &r, &cut);
    CHECK(cut.n >= 50, "%zu tokens", cut.n);
    for (size_t i = 0; i < 50; i++) {
        CHECK(cut.tokens[i] != full.tokens[10], "a masked token");
    }
    /* still checked, though nothing is sampled */
    struct error err;
    r = request(2, 10);
    r.sampling.top_p = 2;
    CHECK(engine_submit(e, &r, &err) < 0 && err.code == ERROR_INVALID && strcmp(err.param, "top_p") == 0, "top_p 2");
}

/* In company, with what makes rows of a step other than one a sequence: forks, drafts, a prompt's logprobs, masks. */
static struct engine_request request_in_company(uint64_t id, size_t max_tokens, bool together) {
    struct engine_request r = request(id, max_tokens);
    static const int32_t stop_ids[] = {'e', 't', 'a'};
    if (id % 5 == 3) {
        r.min_tokens = max_tokens;
        r.stop_ids = stop_ids;
        r.n_stop_ids = 3;
    }
    if (id % 4 == 2) {
        r.sampling.temperature = 0; /* comes back to what it wrote, so that there are drafts */
    }
    if (together) {
        r.parent = id % 2 ? id - 1 : 0;
        r.speculative_tokens = id % 3 ? 4 : 0;
        r.n_prompt_logprobs = id % 7 == 5 ? 0 : -1;
    }
    return r;
}

static void company_changes_nothing(const char *model) {
    static struct outcome alone[MOST], together[MOST];
    struct engine_config c = config_of(model);
    struct engine *e = open_engine(&c);
    for (size_t i = 0; i < MOST; i++) {
        struct engine_request r = request_in_company(i, 1 + i * 2, false);
        one(e, &r, &alone[i]);
    }
    engine_close(e);
    c.kv_tokens = 32 * MOST; /* too little for all, once they get longer */
    c.max_sequences = MOST;
    c.null_step_ns = 500000; /* so that most are there before the first ends */
    e = open_engine(&c);
    for (size_t i = 0; i < MOST; i++) {
        struct engine_request r = request_in_company(i, 1 + i * 2, true);
        submit(e, &r);
    }
    collect(e, together, MOST);
    struct engine_stats s;
    engine_get_stats(e, &s);
    CHECK(s.preemptions > 0, "nothing was preempted");
    CHECK(s.forks > 0 && s.accepted_tokens > 0, "%llu forks, %llu tokens of drafts were right",
          (unsigned long long)s.forks, (unsigned long long)s.accepted_tokens);
    CHECK(s.step_tokens.counts[5] > 0, "no step had 65 to 128 rows");
    CHECK(s.kv_blocks_used == 0 && s.idle, "%llu blocks are kept", (unsigned long long)s.kv_blocks_used);
    for (size_t i = 0; i < MOST; i++) {
        CHECK(alone[i].n == together[i].n && memcmp(alone[i].tokens, together[i].tokens, sizeof alone[i].tokens) == 0 &&
                  memcmp(alone[i].text, together[i].text, sizeof alone[i].text) == 0,
              "request %zu is not as alone", i);
    }
    engine_close(e);
}

/* Twelve tokens: were they a step's time apart, and seen soon behind its end? */
static bool keeps_the_pace(struct engine *e, uint64_t step) {
    static struct engine_event event;
    struct engine_request r = request(0, 12);
    submit(e, &r);
    size_t n = 0, punctual = 0;
    uint64_t first = 0, last = 0;
    do {
        CHECK(engine_wait(e, &event, 60000), "no event");
        uint64_t now = clock_now_ns();
        if (event.kind == ENGINE_EVENT_TOKEN) {
            first = n == 0 ? now : first;
            last = now;
            punctual += now % step < step / 2;
            n++;
        }
    } while (event.kind != ENGINE_EVENT_DONE);
    CHECK(n == 12, "%zu tokens", n);
    return last - first >= 11 * step - step / 2 && punctual >= 9;
}

/* Events are seen at multiples of the step time, or a little later; a busy machine gets more tries. */
static void steps_take_their_time(const char *model) {
    struct engine_config c = config_of(model);
    c.null_step_ns = 50000000;
    struct engine *e = open_engine(&c);
    bool kept = false;
    for (int i = 0; i < 10 && !kept; i++) {
        kept = keeps_the_pace(e, c.null_step_ns);
    }
    CHECK(kept, "in none of ten answers did twelve steps take the time of twelve");
    engine_close(e);
}

static size_t resident_bytes(void) {
    unsigned long size = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    CHECK(f && fscanf(f, "%lu %lu", &size, &resident) == 2, "/proc/self/statm");
    fclose(f);
    return resident * (size_t)sysconf(_SC_PAGESIZE);
}

/* 10 million tokens of KV would be 1.28 GB in this model; the bookkeeping of them is some MB (more under sanitizers). */
static void memory_is_not_taken(const char *model) {
    static struct outcome o;
    struct engine_config c = config_of(model);
    size_t before = resident_bytes();
    c.kv_tokens = 10000000;
    c.max_sequences = c.max_batched_tokens = 10000;
    struct engine *e = open_engine(&c);
    struct engine_request r = request(0, 100);
    one(e, &r, &o);
    CHECK(o.n == 100, "%zu tokens", o.n);
    struct engine_info info;
    engine_get_info(e, &info);
    CHECK(info.kv_bytes > (size_t)1 << 30, "KV of %zu bytes", info.kv_bytes);
    size_t taken = resident_bytes() - before;
    CHECK(taken < (size_t)256 << 20, "%zu bytes of memory are taken", taken);
    engine_close(e);
}

int main(void) {
    char path[] = "/tmp/inferd-null-XXXXXX";
    const struct tiny_model tiny = {.architecture = "llama", .context_length = CONTEXT, .seed = 1, .nan_token = -1};
    int fd = mkstemp(path);
    if (fd < 0 || close(fd) < 0 || !tiny_model_write(path, &tiny)) {
        perror(path);
        return 1;
    }
    must_be_named();
    modules_are_checked();
    struct engine_config c = config_of(path);
    struct engine *e = open_engine(&c);
    tokens_are_ordinary(e);
    stops_are_found(e);
    engine_close(e);
    company_changes_nothing(path);
    steps_take_their_time(path);
    memory_is_not_taken(path);
    unlink(path);
    printf(failures ? "%d checks failed\n" : "all good\n", failures);
    return failures != 0;
}
