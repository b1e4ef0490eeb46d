/*
 * KV memory at 100 % all the time: far more is asked for than fits, with everything that shares, preempts and gives back.
 * Everybody gets in the end what he would get alone, nobody waits for ever, and nothing is lost.
 *
 *     test_pressure            a few seconds
 *     test_pressure SECONDS    by hand
 */
#include "harness.h"

#include <inferd/clock.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { KINDS = 32, LIVE = 60, LOOKS = 100 };

static struct outcome want[KINDS], got[LIVE + 1];

/* What runs under an id. */
static struct {
    size_t kind;
    bool cancelled;
    size_t since; /* requests that had ended when it came, and one more; 0 = nothing runs */
} live[LIVE + 1];

static struct engine_request request_of(size_t kind) {
    struct engine_request r = mixed_request(kind);
    if (kind >= KINDS / 2) { /* beginnings in common */
        r.prompt = prompts[kind % 4];
        r.n_prompt = 20 + kind * 5;
    }
    r.n_prompt_logprobs = kind % 8 == 3 ? 2 : -1;
    return r;
}

static void start(struct engine *e, uint64_t id, size_t ended) {
    struct engine_request r;
    uint64_t parent = 1 + (uint64_t)rand() % LIVE;
    bool child = rand() % 3 == 0 && live[parent].since > 0 && parent != id;
    live[id].kind = child ? live[parent].kind : (size_t)rand() % KINDS;
    live[id].cancelled = false;
    live[id].since = ended + 1;
    r = request_of(live[id].kind);
    r.id = id;
    r.parent = child ? parent : 0;
    r.priority = rand() % 3;
    r.tenant = (uint64_t)rand() % 3;
    memset(&got[id], 0, sizeof got[id]);
    submit(e, &r);
}

static void pressure(const char *model, double seconds, const char *scheduling) {
    static struct engine_event event;
    struct engine_config c = test_config(model, 1, 512, CONTEXT);
    c.prefix_cache = false;
    struct engine *e = open_config(&c);
    for (size_t i = 0; i < KINDS; i++) {
        struct engine_request r = request_of(i);
        r.id = 1;
        one(e, &r, &want[i]);
        CHECK(want[i].kind == ENGINE_EVENT_DONE, "kind %zu: %s", i, want[i].error.message);
    }
    engine_close(e);

    c = test_config(model, 40, 96, 3 * CONTEXT);
    c.scheduling = scheduling;
    c.priority_ageing = 0.05;
    e = open_config(&c);
    memset(live, 0, sizeof live);
    srand(3);
    size_t ended = 0, longest = 0, looks = 0, cancels = 0;
    double used = 0;
    bool full = false;
    /* for the seconds asked for, and on a slow machine until memory has been looked at often enough while it is full */
    uint64_t began = clock_now_ns(), until = began + (uint64_t)(seconds * 1e9), at_last = until + (uint64_t)60e9;
    for (uint64_t id = 1; id <= LIVE; id++) {
        start(e, id, ended);
    }
    for (size_t n_live = LIVE; n_live > 0;) {
        if (!engine_wait(e, &event, 60000)) {
            CHECK(false, "no event for a minute: %zu requests hang", n_live);
            exit(1);
        }
        uint64_t id = event.id, now = clock_now_ns();
        note(&got[id], &event);
        bool on = now < until || (looks < LOOKS && now < at_last);
        if (on && rand() % 8 == 0) {
            struct engine_stats s;
            engine_get_stats(e, &s);
            full = full || s.preemptions > 0; /* filling up, which takes a slow machine most of the time, is no part of it */
            used += full ? (double)s.kv_blocks_used / (double)s.kv_blocks : 0;
            looks += full;
        }
        if (event.kind == ENGINE_EVENT_TOKEN && rand() % 400 == 0) {
            uint64_t other = 1 + (uint64_t)rand() % LIVE;
            live[other].cancelled = true;
            engine_cancel(e, other);
            cancels++;
        }
        if (event.kind != ENGINE_EVENT_DONE && event.kind != ENGINE_EVENT_ERROR) {
            continue;
        }
        CHECK(equal_outcomes(&want[live[id].kind], &got[id]) ||
                  (live[id].cancelled && got[id].finish == FINISH_CANCELLED),
              "kind %zu after %zu others, finish %d", live[id].kind, ended, got[id].finish);
        ended++;
        size_t overtaken = ended - live[id].since;
        longest = overtaken > longest ? overtaken : longest;
        live[id].since = 0;
        if (on && failures == 0) {
            start(e, id, ended);
        } else {
            n_live--;
        }
    }
    struct engine_stats s;
    engine_get_stats(e, &s);
    printf("%s: %zu requests in %.1f s, %llu preemptions, %llu forks, %llu prompt tokens found, %zu cancels; %.0f "
           "%% of KV in use on average, %zu ended while the slowest one was "
           "there\n",
           scheduling, ended, (double)(clock_now_ns() - began) / 1e9, (unsigned long long)s.preemptions, (unsigned long long)s.forks,
           (unsigned long long)s.cached_tokens, cancels, 100 * used / (double)(looks + !looks), longest);
    CHECK(longest < 10 * LIVE, "somebody waited while %zu others came and went", longest);
    /* a preemption is memory at 100 % and one block more asked for */
    CHECK(s.preemptions > ended / 50 && s.forks > 0 && s.cached_tokens > 0 && looks >= LOOKS && used / (double)looks > 0.7,
          "no pressure: looked at %zu times", looks);
    check_idle(e);
    engine_close(e);
}

int main(int argc, char **argv) {
    double seconds = argc > 1 ? atof(argv[1]) : 3;
    char folder[] = "/tmp/inferd-pressure-XXXXXX", path[64];
    if (!mkdtemp(folder)) {
        perror("mkdtemp");
        return 1;
    }
    snprintf(path, sizeof path, "%s/tiny.gguf", folder);
    fill_prompts();
    const struct tiny_model model = {"llama", CONTEXT, 31, -1};
    if (!tiny_model_write(path, &model)) {
        return 1;
    }
    RUN(pressure, path, seconds / 2, "fcfs");
    test_kv_dtype = "int8";
    RUN(pressure, path, seconds / 2, "priority");
    unlink(path);
    rmdir(folder);
    printf("%d failures\n", failures);
    return failures != 0;
}
