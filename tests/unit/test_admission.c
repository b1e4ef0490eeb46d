#include "admission.h"
#include "config.h"

#include <criterion/criterion.h>
#include <pthread.h>

#define SECOND UINT64_C(1000000000)

static struct error err;

static struct admission bounds(size_t running, size_t waiting, size_t tokens) {
    struct config c = {.max_sequences = running,
                       .replicas = 1,
                       .max_waiting = waiting,
                       .max_waiting_tokens = tokens,
                       .retry_after = 3,
                       .retry_after_max = 50};
    struct admission a;
    admission_init(&a, &c);
    return a;
}

static void check_empty(struct admission *a) {
    cr_assert(a->held == 0 && a->waiting == 0 && a->waiting_tokens == 0, "%zu held, %zu waiting, %zu tokens", a->held,
              a->waiting, a->waiting_tokens);
    admission_destroy(a);
}

/* Two may run and one wait: the fourth is one too many, wherever the others are. */
Test(admission, requests_count_from_preparation_to_end) {
    struct admission a = bounds(2, 1, 0);
    struct ticket t[4] = {{0}};
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(admission_claim(&a, &t[i], 1, 0, SECOND, &err), 0);
    }
    cr_assert_eq(admission_claim(&a, &t[3], 1, 0, SECOND, &err), -1);
    cr_assert_eq(err.code, ERROR_QUEUE_FULL);
    admission_started(&a, &t[0], 0, SECOND);
    cr_assert_eq(admission_claim(&a, &t[3], 1, 0, SECOND, &err), -1);
    admission_ended(&a, &t[0], true, 0, SECOND);
    cr_assert_eq(admission_claim(&a, &t[3], 1, 0, SECOND, &err), 0);
    for (int i = 1; i < 4; i++) {
        admission_release(&a, &t[i], SECOND);
    }
    check_empty(&a);
}

/* n counts n: it grows whole or not at all, and what it had stays. */
Test(admission, a_plural_request_is_let_in_whole_or_not) {
    struct admission a = bounds(1, 4, 100);
    struct ticket one = {0}, many = {0};
    cr_assert_eq(admission_claim(&a, &one, 1, 10, SECOND, &err), 0);
    cr_assert_eq(admission_claim(&a, &many, 1, 0, SECOND, &err), 0);
    cr_assert_eq(admission_claim(&a, &many, 5, 50, SECOND, &err), -1); /* 6 are not held */
    cr_assert_eq(admission_claim(&a, &many, 4, 92, SECOND, &err), -1); /* 102 tokens do not wait */
    cr_assert(many.choices == 1 && many.tokens == 0 && a.held == 2 && a.waiting_tokens == 10);
    cr_assert_eq(admission_claim(&a, &many, 4, 90, SECOND, &err), 0);
    cr_assert(a.held == 5 && a.waiting_tokens == 100);
    admission_started(&a, &many, 23, SECOND);
    cr_assert(a.held == 5 && a.waiting == 4 && a.waiting_tokens == 77);
    admission_ended(&a, &many, true, 23, SECOND);
    admission_ended(&a, &many, false, 23, SECOND); /* cancelled before it started */
    cr_assert(a.held == 3 && a.waiting == 3 && a.waiting_tokens == 54);
    admission_release(&a, &many, SECOND);
    admission_release(&a, &one, SECOND);
    check_empty(&a);
}

/* A prompt that is larger than the bound would otherwise be 429 for ever. */
Test(admission, any_length_is_let_in_where_no_tokens_wait) {
    struct admission a = bounds(1, 4, 100);
    struct ticket large = {0}, next = {0};
    cr_assert_eq(admission_claim(&a, &large, 1, 5000, SECOND, &err), 0);
    cr_assert_eq(admission_claim(&a, &next, 1, 1, SECOND, &err), -1);
    cr_assert_eq(admission_claim(&a, &next, 1, 0, SECOND, &err), -1, "not known yet, but one at least");
    admission_started(&a, &large, 5000, SECOND);
    cr_assert_eq(admission_claim(&a, &next, 1, 1, SECOND, &err), 0);
    admission_ended(&a, &large, true, 5000, SECOND);
    admission_release(&a, &next, SECOND);
    check_empty(&a);
}

/* One request runs for `seconds` each, ten wait all the time. */
static size_t measured(double seconds, int n, uint64_t *now) {
    struct admission a = bounds(1, 10, 0);
    struct ticket t[11] = {{0}};
    for (int i = 0; i < 11; i++) {
        cr_assert_eq(admission_claim(&a, &t[i], 1, 100, *now, &err), 0);
    }
    for (int i = 0; i < n; i++) {
        struct ticket *running = &t[i % 11];
        admission_started(&a, running, 100, *now);
        *now += (uint64_t)(seconds * 1e9);
        admission_ended(&a, running, true, 100, *now);
        cr_assert_eq(admission_claim(&a, running, 1, 100, *now, &err), 0);
    }
    size_t after = admission_retry_after(&a, *now);
    for (int i = 0; i < 11; i++) {
        admission_release(&a, &t[i], *now);
    }
    check_empty(&a);
    return after;
}

Test(admission, retry_after_follows_the_measured_rate) {
    uint64_t now = 1000 * SECOND;
    struct admission a = bounds(1, 10, 0);
    cr_assert_eq(admission_retry_after(&a, now), 3, "nothing measured: as set");
    admission_destroy(&a);
    cr_assert_eq(measured(2, 30, &now), 22); /* 11 wait, 2 s each */
    cr_assert_eq(measured(0.5, 30, &now), 6);
    cr_assert_eq(measured(0.001, 30, &now), 1, "never 0");
    cr_assert_eq(measured(100, 30, &now), 50, "never more than the longest");
}

/* Time in which nobody waits says nothing about how fast a queue would move. */
Test(admission, idle_time_does_not_count) {
    struct admission a = bounds(1, 10, 0);
    struct ticket t[2] = {{0}};
    uint64_t now = SECOND;
    for (int i = 0; i < 20; i++) {
        cr_assert_eq(admission_claim(&a, &t[0], 1, 1, now, &err), 0);
        admission_started(&a, &t[0], 1, now);
        cr_assert_eq(admission_claim(&a, &t[1], 1, 1, now, &err), 0);
        now += 2 * SECOND;
        admission_ended(&a, &t[0], true, 1, now);
        admission_started(&a, &t[1], 1, now);
        now += 5 * SECOND; /* alone */
        admission_ended(&a, &t[1], true, 1, now);
        now += 1000 * SECOND; /* nobody at all */
    }
    for (int i = 0; i < 5; i++) { /* a queue of 5 */
        struct ticket more = {0};
        cr_assert_eq(admission_claim(&a, &more, 1, 0, now, &err), 0);
    }
    cr_assert_eq(admission_retry_after(&a, now), 10);
    admission_destroy(&a);
}

/* When the queue stands still, the guess grows with the time it does. */
Test(admission, a_standstill_is_noticed) {
    uint64_t now = SECOND;
    struct admission a = bounds(1, 10, 0);
    struct ticket t[2] = {{0}};
    cr_assert_eq(admission_claim(&a, &t[0], 1, 1, now, &err), 0);
    cr_assert_eq(admission_claim(&a, &t[1], 1, 1, now, &err), 0);
    admission_started(&a, &t[0], 1, now);
    now += SECOND;
    admission_ended(&a, &t[0], true, 1, now);
    cr_assert_eq(admission_retry_after(&a, now), 1);
    cr_assert_gt(admission_retry_after(&a, now + 200 * SECOND), 10);
    admission_destroy(&a);
}

struct claimer {
    struct admission *a;
    size_t let_in;
};

static void *claim_and_release(void *arg) {
    struct claimer *c = arg;
    struct error why;
    for (int i = 0; i < 20000; i++) {
        struct ticket t = {0};
        if (admission_claim(c->a, &t, 1, 5, SECOND, &why) == 0) {
            c->let_in++;
            if (admission_claim(c->a, &t, 2, 10, SECOND, &why) == 0) {
                c->let_in++;
            }
            admission_release(c->a, &t, SECOND);
        }
    }
    return NULL;
}

Test(admission, any_thread_may_claim) {
    struct admission a = bounds(2, 2, 20);
    pthread_t threads[4];
    struct claimer claimers[4];
    size_t let_in = 0;
    for (int i = 0; i < 4; i++) {
        claimers[i] = (struct claimer){&a, 0};
        pthread_create(&threads[i], NULL, claim_and_release, &claimers[i]);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        let_in += claimers[i].let_in;
    }
    cr_assert_gt(let_in, 0);
    check_empty(&a);
}
