#include "event_ring.h"

#include <criterion/criterion.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static struct error err;

/* An event with every field set from `i`. */
static void make(struct engine_event *e, uint64_t i) {
    memset(e, 0xa5, sizeof *e);
    e->id = i;
    e->kind = i % 5 == 4 ? ENGINE_EVENT_ERROR : i % 5 == 3 ? ENGINE_EVENT_DONE : ENGINE_EVENT_TOKEN;
    e->token = (int32_t)i - 1;
    e->logprob = (float)i / -7;
    e->rank = (uint32_t)i + 2;
    e->n_top = (uint16_t)(i % (ENGINE_MAX_TOP_LOGPROBS + 1));
    for (size_t k = 0; k < e->n_top; k++) {
        e->top[k] = (struct token_logprob){(int32_t)(i + k), (float)k};
    }
    e->text_len = (uint16_t)(i * 37 % (ENGINE_EVENT_TEXT + 1));
    for (size_t k = 0; k < e->text_len; k++) {
        e->text[k] = (char)(i + k);
    }
    e->finish = (enum finish_reason)(i % 4);
    e->stop_index = (int32_t)(i % 3) - 1;
    e->stop_token = (int32_t)i + 3;
    e->prompt_tokens = (uint32_t)i + 4;
    e->completion_tokens = (uint32_t)i + 5;
    e->cached_tokens = (uint32_t)i + 6;
    memset(&e->error, 0, sizeof e->error);
    if (e->kind == ENGINE_EVENT_ERROR) {
        error_set_param(&e->error, ERROR_INVALID, "top_p", "sentence %llu", (unsigned long long)i);
    }
}

static void check(const struct engine_event *e, uint64_t i) {
    static _Thread_local struct engine_event want;
    make(&want, i);
    cr_assert_eq(e->id, i);
    cr_assert_eq(e->kind, want.kind);
    cr_assert_eq(e->token, want.token);
    cr_assert(e->logprob == want.logprob && e->rank == want.rank);
    cr_assert_eq(e->n_top, want.n_top);
    cr_assert_eq(memcmp(e->top, want.top, e->n_top * sizeof e->top[0]), 0);
    cr_assert_eq(e->text_len, want.text_len);
    cr_assert_eq(memcmp(e->text, want.text, e->text_len), 0);
    cr_assert_eq(e->finish, want.finish);
    cr_assert(e->stop_index == want.stop_index && e->stop_token == want.stop_token);
    cr_assert(e->prompt_tokens == want.prompt_tokens && e->completion_tokens == want.completion_tokens &&
              e->cached_tokens == want.cached_tokens);
    cr_assert_eq(e->error.code, want.error.code);
    cr_assert_str_eq(e->error.message, want.error.message);
    cr_assert_str_eq(e->error.param, want.error.param);
}

Test(event_ring, what_goes_in_comes_out) {
    struct event_ring r;
    static struct engine_event e;
    uint64_t in = 0, out = 0;
    cr_assert_eq(event_ring_init(&r, 8192, &err), 0);
    for (size_t round = 0; round < 500; round++) {
        /* what stays unpublished, published and half taken varies; 3 of the largest fit into each buffer */
        for (size_t k = round % 3; k > 0; k--) {
            make(&e, in);
            event_ring_push(&r, &e);
            in++;
        }
        event_ring_notify(&r);
        while (out < in && (round % 7 != 0 || out + 1 < in)) {
            cr_assert(event_ring_pop(&r, &e, 0));
            check(&e, out);
            out++;
        }
    }
    event_ring_notify(&r);
    while (out < in) {
        cr_assert(event_ring_pop(&r, &e, 0));
        check(&e, out++);
        cr_assert(event_ring_batch_left(&r) <= in - out);
    }
    cr_assert_eq(event_ring_batch_left(&r), 0);
    cr_assert_not(event_ring_pop(&r, &e, 0));
    cr_assert_not(event_ring_pop(&r, &e, 20));
    event_ring_destroy(&r);
}

Test(event_ring, the_next_ids_can_be_seen_ahead) {
    struct event_ring r;
    static struct engine_event e;
    uint64_t ids[4] = {0};
    cr_assert_eq(event_ring_init(&r, 65536, &err), 0);
    for (uint64_t i = 0; i < 9; i++) {
        make(&e, i);
        event_ring_push(&r, &e);
    }
    event_ring_notify(&r);
    cr_assert_eq(event_ring_peek(&r, ids, 4), 0); /* nothing was taken yet */
    for (uint64_t i = 0; i < 9; i++) {
        cr_assert(event_ring_pop(&r, &e, 0));
        check(&e, i); /* looking ahead takes nothing away */
        size_t n = event_ring_peek(&r, ids, 4);
        cr_assert_eq(n, 8 - i < 4 ? 8 - i : 4);
        for (size_t k = 0; k < n; k++) {
            cr_assert_eq(ids[k], i + 1 + k);
        }
    }
    cr_assert_eq(event_ring_peek(&r, ids, 4), 0);
    event_ring_destroy(&r);
}

Test(event_ring, pushed_events_are_seen_once_published) {
    struct event_ring r;
    static struct engine_event e;
    cr_assert_eq(event_ring_init(&r, EVENT_RING_MIN, &err), 0);
    make(&e, 1);
    event_ring_push(&r, &e);
    cr_assert_not(event_ring_pop(&r, &e, 0));
    event_ring_notify(&r);
    cr_assert(event_ring_pop(&r, &e, 0));
    check(&e, 1);
    event_ring_destroy(&r);
}

static atomic_int n_notified;

static void on_notify(void *arg) {
    (void)arg;
    n_notified++;
}

Test(event_ring, one_wake_up_for_a_step) {
    struct event_ring r;
    static struct engine_event e;
    cr_assert_eq(event_ring_init(&r, 65536, &err), 0);
    make(&e, 0);
    event_ring_push(&r, &e);
    event_ring_notify(&r);
    event_ring_set_notify(&r, on_notify, NULL);
    event_ring_notify(&r); /* of what was there before anybody listened */
    cr_assert_eq(n_notified, 1);
    event_ring_notify(&r);
    cr_assert_eq(n_notified, 1);
    for (uint64_t i = 1; i < 9; i++) {
        make(&e, i);
        event_ring_push(&r, &e);
    }
    cr_assert_eq(n_notified, 1);
    event_ring_notify(&r);
    cr_assert_eq(n_notified, 2);
    for (uint64_t i = 0; i < 9; i++) {
        cr_assert(event_ring_pop(&r, &e, 0));
        check(&e, i);
        cr_assert_eq(event_ring_batch_left(&r), 8 - i);
    }
    event_ring_destroy(&r);
}

#define MANY 20000

static void *produce(void *arg) {
    static struct engine_event e;
    for (uint64_t i = 0; i < MANY; i++) {
        make(&e, i);
        event_ring_push(arg, &e);
        if (i % 11 == 0) {
            event_ring_notify(arg);
        }
    }
    event_ring_notify(arg);
    return NULL;
}

/* Through buffers that hold a few events: each side waits for the other, nothing is lost. */
Test(event_ring, two_threads, .timeout = 60) {
    struct event_ring r;
    static struct engine_event e;
    pthread_t producer;
    cr_assert_eq(event_ring_init(&r, 5000, &err), 0);
    pthread_create(&producer, NULL, produce, &r);
    for (uint64_t i = 0; i < MANY; i++) {
        cr_assert(event_ring_pop(&r, &e, -1));
        check(&e, i);
    }
    pthread_join(producer, NULL);
    event_ring_destroy(&r);
}

Test(event_ring, close_frees_a_waiting_producer, .timeout = 60) {
    struct event_ring r;
    static struct engine_event e;
    pthread_t producer;
    cr_assert_eq(event_ring_init(&r, 5000, &err), 0);
    pthread_create(&producer, NULL, produce, &r);
    cr_assert(event_ring_pop(&r, &e, -1));
    event_ring_close(&r);
    pthread_join(producer, NULL);
    event_ring_destroy(&r);
    event_ring_destroy(&r);
}
