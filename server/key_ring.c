#include "key_ring.h"

#include "http.h"

#include <gnutls/gnutls.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- who is in it -------------------------------------------------------------------------------------------- */

static void drop(struct key *k) {
    if (k && --k->refs == 0) {
        free(k);
    }
}

static struct key *find_name(const struct key_ring *ring, const char *name) {
    for (size_t i = 0; i < ring->n; i++) {
        if (strcmp(ring->list[i]->spec.name, name) == 0) {
            return ring->list[i];
        }
    }
    return NULL;
}

int key_change_make(const struct key_ring *ring, const struct keys *keys, struct key_change *out, struct error *err) {
    size_t room = keys->n ? keys->n : 1;
    struct key_change change = {calloc(room, sizeof *change.list), calloc(room, sizeof *change.specs), 0};
    bool ok = change.list && change.specs;
    while (ok && change.n < keys->n) {
        const struct key_spec *spec = &keys->list[change.n];
        struct key *k = find_name(ring, spec->name);
        k = k ? k : calloc(1, sizeof *k);
        ok = k != NULL;
        if (ok) {
            k->refs++;
            change.specs[change.n] = *spec;
            change.list[change.n++] = k;
        }
    }
    if (!ok) {
        key_change_free(&change);
        return error_memory(err);
    }
    *out = change;
    return 0;
}

void key_change_apply(struct key_ring *ring, struct key_change *change, uint64_t now_ns) {
    struct key_ring old = *ring;
    for (size_t i = 0; i < change->n; i++) {
        struct key *k = change->list[i];
        k->spec = change->specs[i];
        bucket_set(&k->requests, k->spec.requests_per_minute, now_ns);
        bucket_set(&k->tokens, k->spec.tokens_per_minute, now_ns);
    }
    *ring = (struct key_ring){change->list, change->n};
    free(change->specs);
    *change = (struct key_change){0};
    key_ring_free(&old);
}

void key_change_free(struct key_change *change) {
    for (size_t i = 0; i < change->n; i++) {
        drop(change->list[i]);
    }
    free(change->list);
    free(change->specs);
    *change = (struct key_change){0};
}

void key_ring_free(struct key_ring *ring) {
    for (size_t i = 0; i < ring->n; i++) {
        drop(ring->list[i]);
    }
    free(ring->list);
    *ring = (struct key_ring){0};
}

struct key *key_ring_find(const struct key_ring *ring, const char *authorization) {
    unsigned char digest[AUTH_DIGEST];
    struct error err;
    const char *key = auth_bearer(authorization);
    size_t found = ring->n;
    if (!key || auth_digest(key, strlen(key), digest, &err)) {
        return NULL;
    }
    for (size_t i = 0; i < ring->n; i++) { /* no branch on what was found, and all of them */
        size_t differs = gnutls_memcmp(digest, ring->list[i]->spec.digest, AUTH_DIGEST) != 0;
        found = (found & (0 - differs)) | (i & (differs - 1));
    }
    return found < ring->n ? ring->list[found] : NULL;
}

struct key *key_hold(struct key *k) {
    if (k) {
        k->refs++;
    }
    return k;
}

void key_release(struct key *k) {
    drop(k);
}

const char *key_name(const struct key *k) {
    return k ? k->spec.name : "";
}

uint32_t key_cost(const struct key *k) {
    static const uint32_t costs[] = {[KEY_HIGH] = 1, [KEY_NORMAL] = 4, [KEY_LOW] = 16};
    return costs[k ? k->spec.priority : KEY_NORMAL];
}

/* ---- limits -------------------------------------------------------------------------------------------------- */

bool key_over_limit(struct key *k, bool generating, uint64_t now_ns, enum key_rejection *why, double *seconds) {
    if (!k) {
        return false;
    }
    *seconds = 0;
    if (generating && k->spec.max_concurrent && k->active >= k->spec.max_concurrent) {
        *why = KEY_REJECTED_CONCURRENT;
    } else if (k->spec.requests_per_minute && bucket_level(&k->requests, now_ns) < 1) {
        *why = KEY_REJECTED_REQUESTS;
        *seconds = bucket_wait(&k->requests, 1, now_ns);
    } else if (generating && k->spec.tokens_per_minute && bucket_level(&k->tokens, now_ns) < 1) {
        *why = KEY_REJECTED_TOKENS;
        *seconds = bucket_wait(&k->tokens, 1, now_ns);
    } else {
        bucket_take(&k->requests, 1, now_ns);
        k->n_requests++;
        return false;
    }
    k->rejected[*why]++;
    return true;
}

bool key_take_prompt(struct key *k, size_t tokens, uint64_t now_ns, double *seconds) {
    if (!k) {
        return true;
    }
    if (k->spec.tokens_per_minute && bucket_level(&k->tokens, now_ns) < (double)tokens) {
        k->rejected[KEY_REJECTED_TOKENS]++;
        *seconds = bucket_wait(&k->tokens, (double)tokens, now_ns);
        return false;
    }
    bucket_take(&k->tokens, (double)tokens, now_ns);
    return true;
}

void key_print_duration(double seconds, char out[32]) {
    double ms = ceil(seconds * 1000 - 1e-6);
    double whole = floor(ms / 1000), minutes = floor(whole / 60);
    if (ms < 1000) {
        snprintf(out, 32, "%.0fms", ms > 0 ? ms : 0);
    } else if (minutes >= 1) {
        snprintf(out, 32, "%.0fm%.10gs", minutes, (ms - minutes * 60000) / 1000);
    } else {
        snprintf(out, 32, "%.10gs", ms / 1000);
    }
}

static void add_headers(struct exchange *x, const char *const names[3], struct token_bucket *b, uint64_t now_ns) {
    char text[32];
    if (b->capacity <= 0) {
        return;
    }
    double level = floor(bucket_level(b, now_ns) + 1e-6);
    snprintf(text, sizeof text, "%.0f", b->capacity);
    exchange_add_header(x, names[0], text);
    snprintf(text, sizeof text, "%.0f", level > 0 ? level : 0);
    exchange_add_header(x, names[1], text);
    key_print_duration(bucket_reset(b, now_ns), text);
    exchange_add_header(x, names[2], text);
}

void key_add_headers(struct key *k, struct exchange *x, uint64_t now_ns) {
    static const char *const requests[] = {"x-ratelimit-limit-requests", "x-ratelimit-remaining-requests",
                                           "x-ratelimit-reset-requests"};
    static const char *const tokens[] = {"x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens",
                                         "x-ratelimit-reset-tokens"};
    if (k) {
        add_headers(x, requests, &k->requests, now_ns);
        add_headers(x, tokens, &k->tokens, now_ns);
    }
}

/* ---- what is counted ----------------------------------------------------------------------------------------- */

/* Names have no character that a label's value would have to escape: key_name_valid. */
static void family(const struct key_ring *ring, const char *name, const char *type, const char *help, size_t offset,
                   struct buf *out) {
    for (size_t i = 0; i < ring->n; i++) {
        if (i == 0) {
            buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
        }
        buf_printf(out, "%s{key=\"%s\"} %llu\n", name, ring->list[i]->spec.name,
                   (unsigned long long)*(const uint64_t *)(const void *)((const char *)ring->list[i] + offset));
    }
}

void key_ring_metrics(const struct key_ring *ring, struct buf *out) {
    static const char *const reasons[KEY_REJECTIONS] = {
        [KEY_REJECTED_SCOPE] = "scope",
        [KEY_REJECTED_REQUESTS] = "requests_per_minute",
        [KEY_REJECTED_TOKENS] = "tokens_per_minute",
        [KEY_REJECTED_CONCURRENT] = "max_concurrent",
    };
    static const char rejected[] = "inferd_key_rejected_total";
    family(ring, "inferd_key_requests_total", "counter", "Requests that a key's limits let in, by the key's name.",
           offsetof(struct key, n_requests), out);
    family(ring, "inferd_key_prompt_tokens_total", "counter", "Prompt tokens computed for a key, as usage counts them.",
           offsetof(struct key, prompt_tokens), out);
    family(ring, "inferd_key_generation_tokens_total", "counter", "Tokens generated for a key.",
           offsetof(struct key, generation_tokens), out);
    for (size_t i = 0; i < ring->n; i++) {
        if (i == 0) {
            buf_printf(out, "# HELP %s Requests that a key was refused, by why.\n# TYPE %s counter\n", rejected, rejected);
        }
        for (size_t r = 0; r < KEY_REJECTIONS; r++) {
            buf_printf(out, "%s{key=\"%s\",reason=\"%s\"} %llu\n", rejected, ring->list[i]->spec.name, reasons[r],
                       (unsigned long long)ring->list[i]->rejected[r]);
        }
    }
}
