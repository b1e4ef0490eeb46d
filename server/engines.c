#include "engines.h"

#include <inferd/clock.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK 64       /* tokens of a prompt that are remembered together */
#define MOST_CHUNKS 64 /* of a prompt that are looked at: what is longer is alike enough */
#define TABLE 8192     /* chunks that are remembered, a power of two */
#define A_TURN 64      /* events of an engine before the next one has its turn */
#define SLACK 4        /* steps full of tokens that may wait more where the prompt is known */

struct one {
    struct engine *engine;
    size_t choices, waiting_tokens; /* that it has */
    uint64_t busy_since;            /* clock_now_ns when `choices` last left 0 */
};

struct engines {
    struct one all[ENGINES_MOST];
    size_t n;
    size_t max_sequences, slack;
    size_t polled, polls; /* whose turn it is, and how many events of it */
    size_t next;          /* where all are alike, in turn */
    struct {
        uint64_t hash; /* of a prompt up to the end of a chunk */
        uint8_t engine;
    } known[TABLE];
};

/* ---- life ---- */

struct opening {
    struct engine_config config;
    struct engine *engine;
    struct error err;
    int rc;
    pthread_t thread;
};

static void *open_one(void *arg) {
    struct opening *o = arg;
    o->rc = engine_open(&o->config, &o->engine, &o->err);
    return NULL;
}

static int open_all(struct engines *e, const struct engine_config *config, size_t n, struct error *err) {
    struct opening *all = calloc(n, sizeof *all);
    size_t started = 0;
    int rc = 0;
    if (!all) {
        return error_memory(err);
    }
    for (; started < n && rc == 0; started++) {
        struct opening *o = &all[started];
        o->config = *config;
        o->config.replica = started;
        o->config.n_replicas = n;
        if (started > 0) {
            o->config.on_progress = NULL; /* they are as fast as the first */
        }
        if (n == 1) {
            open_one(o);
        } else if (pthread_create(&o->thread, NULL, open_one, o) != 0) {
            rc = error_set(err, ERROR_MEMORY, "no thread to open replica %zu", started);
            break;
        }
    }
    for (size_t i = 0; i < started; i++) {
        struct opening *o = &all[i];
        if (n > 1) {
            pthread_join(o->thread, NULL);
        }
        if (o->rc == 0) {
            e->all[e->n++].engine = o->engine;
        } else if (rc == 0) {
            *err = o->err;
            rc = n > 1 ? error_prefix(err, "replica %zu", i) : -1;
        }
    }
    free(all);
    return rc;
}

int engines_open(const struct engine_config *config, size_t n, struct engines **out, struct error *err) {
    struct engines *e = calloc(1, sizeof *e);
    if (!e) {
        return error_memory(err);
    }
    e->max_sequences = config->max_sequences;
    e->slack = SLACK * config->max_batched_tokens;
    if (open_all(e, config, n, err) < 0) {
        engines_close(e);
        return -1;
    }
    *out = e;
    return 0;
}

void engines_close(struct engines *e) {
    for (size_t i = 0; e && i < e->n; i++) {
        engine_close(e->all[i].engine);
    }
    free(e);
}

size_t engines_count(const struct engines *e) {
    return e->n;
}

const struct text *engines_text(const struct engines *e) {
    return engine_text(e->all[0].engine);
}

void engines_get_info_of(const struct engines *e, size_t i, struct engine_info *out) {
    engine_get_info(e->all[i].engine, out);
}

void engines_get_info(const struct engines *e, struct engine_info *out) {
    engine_get_info(e->all[0].engine, out);
    for (size_t i = 1; i < e->n; i++) {
        struct engine_info more;
        engine_get_info(e->all[i].engine, &more);
        out->threads += more.threads;
        out->kv_blocks += more.kv_blocks;
        out->weight_bytes += more.weight_bytes;
        out->kv_bytes += more.kv_bytes;
        out->workspace_bytes += more.workspace_bytes;
        out->max_model_len = more.max_model_len < out->max_model_len ? more.max_model_len : out->max_model_len;
        for (size_t k = 0; k < ENGINE_MEMORY_KINDS; k++) {
            out->memory_planned[k] += more.memory_planned[k];
            out->memory_used[k] += more.memory_used[k];
        }
        for (size_t k = 0; k < ENGINE_LOAD_PHASES; k++) {
            out->load_seconds[k] = more.load_seconds[k] > out->load_seconds[k] ? more.load_seconds[k] : out->load_seconds[k];
        }
    }
}

void engines_set_notify(struct engines *e, void (*notify)(void *arg), void *arg) {
    for (size_t i = 0; i < e->n; i++) {
        engine_set_notify(e->all[i].engine, notify, arg);
    }
}

/* ---- routing ---- */

static uint64_t mix(uint64_t x) { /* splitmix64's finaliser (Steele et al. 2014) */
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* hashes[k]: of salt and prompt up to the end of chunk k; returns how many. Who collides on purpose chooses an engine, no more. */
static size_t hash_chunks(const int32_t *prompt, size_t n_prompt, const uint8_t salt[32], uint64_t hashes[MOST_CHUNKS]) {
    size_t n = n_prompt / CHUNK < MOST_CHUNKS ? n_prompt / CHUNK : MOST_CHUNKS;
    uint64_t h;
    memcpy(&h, salt, sizeof h);
    for (size_t k = 0; k < n; k++) {
        for (size_t i = k * CHUNK; i < (k + 1) * CHUNK; i++) {
            h = mix(h + (uint64_t)(uint32_t)prompt[i] + 0x9e3779b97f4a7c15u);
        }
        hashes[k] = h;
    }
    return n;
}

/* Seats come first: in a burst, those who have one and are about to start count as waiting, and nobody yet waits for a full engine. */
static bool has_less(const struct engines *e, const struct one *a, const struct one *b) {
    bool full = a->choices >= e->max_sequences, other_full = b->choices >= e->max_sequences;
    if (full != other_full) {
        return other_full;
    }
    return a->waiting_tokens != b->waiting_tokens ? a->waiting_tokens < b->waiting_tokens : a->choices < b->choices;
}

static size_t least_loaded(struct engines *e) {
    size_t best = e->next++ % e->n;
    for (size_t k = 1; k < e->n; k++) {
        size_t i = (best + k) % e->n;
        best = has_less(e, &e->all[i], &e->all[best]) ? i : best;
    }
    return best;
}

/* Is it worth to wait there for what it knows? */
static bool is_worth(const struct engines *e, size_t known, size_t least) {
    const struct one *a = &e->all[known], *b = &e->all[least];
    bool has_seat = a->choices < e->max_sequences || b->choices >= e->max_sequences;
    return has_seat && a->waiting_tokens <= b->waiting_tokens + e->slack;
}

size_t engines_route(struct engines *e, const int32_t *prompt, size_t n_prompt, const uint8_t salt[32]) {
    uint64_t hashes[MOST_CHUNKS];
    if (e->n == 1) {
        return 0;
    }
    size_t n = hash_chunks(prompt, n_prompt, salt, hashes), chosen = least_loaded(e);
    for (size_t k = n; k-- > 0;) {
        size_t at = hashes[k] & (TABLE - 1);
        if (e->known[at].hash == hashes[k]) {
            chosen = is_worth(e, e->known[at].engine, chosen) ? e->known[at].engine : chosen;
            break;
        }
    }
    for (size_t k = 0; k < n; k++) {
        size_t at = hashes[k] & (TABLE - 1);
        e->known[at].hash = hashes[k];
        e->known[at].engine = (uint8_t)chosen;
    }
    return chosen;
}

int engines_submit(struct engines *e, size_t i, const struct engine_request *r, struct error *err) {
    struct one *o = &e->all[i];
    if (engine_submit(o->engine, r, err) < 0) {
        return -1;
    }
    o->waiting_tokens += r->n_prompt;
    if (o->choices++ == 0) {
        o->busy_since = clock_now_ns();
    }
    return 0;
}

void engines_cancel(struct engines *e, size_t i, uint64_t id) {
    engine_cancel(e->all[i].engine, id);
}

void engines_started(struct engines *e, size_t i, size_t n_prompt) {
    e->all[i].waiting_tokens -= n_prompt;
}

void engines_ended(struct engines *e, size_t i) {
    e->all[i].choices--;
}

/* ---- events ---- */

bool engines_poll(struct engines *e, struct engine_event *out) {
    if (e->n == 1) {
        return engine_poll(e->all[0].engine, out);
    }
    if (e->polls++ == A_TURN) {
        e->polls = 0;
        e->polled = (e->polled + 1) % e->n;
    }
    for (size_t k = 0; k < e->n; k++) {
        if (engine_poll(e->all[e->polled].engine, out)) {
            return true;
        }
        e->polls = 0;
        e->polled = (e->polled + 1) % e->n;
    }
    return false;
}

size_t engines_pending(const struct engines *e) {
    size_t n = 0;
    for (size_t i = 0; i < e->n; i++) {
        n += engine_pending(e->all[i].engine);
    }
    return n;
}

size_t engines_peek(struct engines *e, uint64_t *ids, size_t n) {
    return engine_peek(e->all[e->polled].engine, ids, n);
}

/* ---- figures ---- */

static void add_histogram(struct engine_histogram *sum, const struct engine_histogram *h) {
    for (size_t i = 0; i < sizeof sum->counts / sizeof sum->counts[0]; i++) {
        sum->counts[i] += h->counts[i];
    }
    sum->sum += h->sum;
}

static void add(struct engine_stats *sum, const struct engine_stats *s) {
    uint64_t *const sums[] = {&sum->running, &sum->waiting, &sum->kv_blocks_used, &sum->kv_blocks, &sum->kv_blocks_cached, &sum->waiting_tokens,
                              &sum->prompt_tokens, &sum->generation_tokens, &sum->prefix_cache_queries, &sum->cached_tokens, &sum->drafts,
                              &sum->drafted_tokens, &sum->accepted_tokens, &sum->steps, &sum->preemptions, &sum->steps_ahead, &sum->forks,
                              &sum->nonfinite_logits};
    const uint64_t more[] = {s->running, s->waiting, s->kv_blocks_used, s->kv_blocks, s->kv_blocks_cached, s->waiting_tokens,
                             s->prompt_tokens, s->generation_tokens, s->prefix_cache_queries, s->cached_tokens, s->drafts,
                             s->drafted_tokens, s->accepted_tokens, s->steps, s->preemptions, s->steps_ahead, s->forks,
                             s->nonfinite_logits};
    for (size_t i = 0; i < sizeof more / sizeof more[0]; i++) {
        *sums[i] += more[i];
    }
    for (size_t i = 0; i < ENGINE_MAX_SPECULATIVE; i++) {
        sum->accepted_at[i] += s->accepted_at[i];
    }
    sum->last_step_ns = s->last_step_ns > sum->last_step_ns ? s->last_step_ns : sum->last_step_ns;
    sum->idle = sum->idle && s->idle;
    add_histogram(&sum->step_tokens, &s->step_tokens);
    add_histogram(&sum->step_sequences, &s->step_sequences);
    add_histogram(&sum->step_seconds, &s->step_seconds);
    add_histogram(&sum->sampling_seconds, &s->sampling_seconds);
}

void engines_get_stats_of(const struct engines *e, size_t i, struct engine_stats *out) {
    engine_get_stats(e->all[i].engine, out);
}

void engines_get_stats(const struct engines *e, struct engine_stats *sum) {
    engine_get_stats(e->all[0].engine, sum);
    for (size_t i = 1; i < e->n; i++) {
        struct engine_stats more;
        engine_get_stats(e->all[i].engine, &more);
        add(sum, &more);
    }
}

double engines_silence(const struct engines *e) {
    uint64_t now = clock_now_ns(), longest = 0;
    for (size_t i = 0; i < e->n; i++) {
        struct engine_stats s;
        if (e->all[i].choices > 0) {
            engine_get_stats(e->all[i].engine, &s);
            uint64_t since = s.last_step_ns > e->all[i].busy_since ? s.last_step_ns : e->all[i].busy_since;
            longest = now > since && now - since > longest ? now - since : longest;
        }
    }
    return (double)longest / 1e9;
}

const struct error *engines_lost(const struct engines *e, size_t *which) {
    for (size_t i = 0; i < e->n; i++) {
        const struct error *why = engine_lost(e->all[i].engine);
        if (why) {
            *which = i;
            return why;
        }
    }
    return NULL;
}
