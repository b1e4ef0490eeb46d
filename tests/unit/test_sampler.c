#include "sampler.h"
#include <inferd/sampler_math.h>
#include "sampler_passes.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The vectors that the authors publish with their library (Random123, kat_vectors, philox4x32 10 rounds). */
Test(sampler, philox_known_answers) {
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        uint32_t out[4];
        sampler_philox(known[i].counter, known[i].key, out);
        cr_assert_arr_eq(out, known[i].out, sizeof out, "vector %zu", i);
    }
}

Test(sampler, exp2_against_the_library) {
    double worst = 0;
    for (float x = 0; x > -130; x -= 0.00731f) {
        double want = exp2((double)x), got = (double)sampler_exp2(x);
        if (x >= -126) {
            double e = fabs(got - want) / want;
            worst = e > worst ? e : worst;
        } else {
            cr_assert_eq(sampler_weight((float)got), 0);
        }
    }
    cr_assert_lt(worst, 2e-7);
    cr_assert_eq(sampler_exp2(0), 1);
    cr_assert_eq(sampler_exp2(-1), 0.5f);
    cr_assert_eq(sampler_weight(sampler_exp2(-INFINITY)), 0);
}

#define MOST 200

Test(sampler, vector_passes_give_the_same_bits_as_one_by_one) {
    float z[MOST], e[MOST];
    uint32_t chunk_max[MOST / SAMPLER_CHUNK + 1];
    uint64_t chunk_sum[MOST / SAMPLER_CHUNK + 1];
    bool finite;
    srand(3);
    for (size_t i = 0; i < MOST; i++) {
        z[i] = (float)(rand() % 20000) * 0.003f - 30.0f;
    }
    for (size_t n = 1; n <= MOST; n++) {
        uint32_t key = 0;
        uint64_t sum = 0;
        for (size_t i = 0; i < n; i++) {
            key = sampler_key(z[i]) > key ? sampler_key(z[i]) : key;
        }
        cr_assert_eq(sampler_max(z, n, chunk_max, &finite), key);
        cr_assert(finite);
        uint64_t total = sampler_exp(e, z, n, sampler_float_of_key(key), 1.7f, chunk_sum);
        for (size_t c = 0; c < sampler_n_chunks(n); c++) {
            uint64_t chunk = 0;
            uint32_t max = 0;
            for (size_t i = c * SAMPLER_CHUNK; i < n && i < (c + 1) * SAMPLER_CHUNK; i++) {
                cr_assert_eq(e[i], sampler_exp2((z[i] - sampler_float_of_key(key)) * 1.7f));
                chunk += sampler_weight(e[i]);
                max = sampler_key(z[i]) > max ? sampler_key(z[i]) : max;
            }
            cr_assert_eq(chunk_sum[c], chunk, "n = %zu, chunk %zu", n, c);
            cr_assert_eq(chunk_max[c], max);
            sum += chunk;
        }
        cr_assert_eq(total, sum);
        for (size_t i = 0; i < n; i++) {
            float keep = z[i];
            z[i] = i % 2 ? NAN : (i % 4 ? INFINITY : -INFINITY);
            sampler_max(z, n, chunk_max, &finite);
            cr_assert_not(finite, "a value that is not finite at %zu of %zu", i, n);
            z[i] = keep;
        }
    }
}

Test(sampler, log2_and_exp2_in_double_against_the_library) {
    double worst = 0;
    for (double x = 1e-30; x < 1e30; x *= 1.0371) {
        double e = fabs(sampler_log2(x) - log2(x));
        worst = e > worst ? e : worst;
    }
    cr_assert_lt(worst, 1e-13);
    worst = 0;
    for (double x = -1000; x <= 1000; x += 0.373) {
        double e = fabs(sampler_exp2_double(x) / exp2(x) - 1);
        worst = e > worst ? e : worst;
    }
    cr_assert_lt(worst, 1e-14);
    cr_assert(sampler_log2(1) == 0 && sampler_log2(0.25) == -2 && sampler_exp2_double(0) == 1);
    cr_assert_float_eq(sampler_power(1.75, 31), pow(1.75, 31), 1e-6);
    cr_assert(sampler_power(1, UINT32_MAX) == 1 && sampler_power(3, 0) == 1);
    cr_assert(sampler_power(2, UINT32_MAX) == 1e30 && sampler_power(100, 16) == 1e30);
}

Test(sampler, moment_and_spread) {
    static float z[MOST], e[MOST];
    uint64_t chunk_sum[MOST / SAMPLER_CHUNK + 1];
    srand(4);
    for (size_t n = 1; n <= MOST; n++) {
        double sum = 0, squares = 0, moment = 0, there = 0, mean, deviation;
        float best = -INFINITY;
        for (size_t i = 0; i < n; i++) {
            z[i] = i % 9 == 5 ? -INFINITY : (float)(rand() % 20000) * 0.001f - 12.0f;
            best = z[i] > best ? z[i] : best;
            there += isfinite(z[i]);
            sum += isfinite(z[i]) ? (double)z[i] : 0;
        }
        for (size_t i = 0; i < n; i++) {
            double x = ((double)z[i] - (double)best) * 1.3;
            squares += isfinite(z[i]) ? pow((double)z[i] - sum / there, 2) : 0;
            moment += isfinite(z[i]) ? -exp2(x) * x : 0;
        }
        sampler_exp(e, z, n, best, 1.3f, chunk_sum);
        cr_assert_float_eq((double)sampler_moment(e, z, n, best, 1.3f) / 0x1p40, moment, 1e-5 * (moment + 1e-3), "n = %zu", n);
        cr_assert_eq(sampler_spread(z, n, &mean, &deviation), (size_t)there);
        cr_assert_float_eq(mean, sum / there, 1e-5, "n = %zu", n);
        cr_assert_float_eq(deviation, sqrt(squares / there), 1e-5, "n = %zu", n);
    }
}

Test(sampler, keys_order_as_floats_do) {
    const float z[] = {-INFINITY, -3e38f, -1.5f, -1e-40f, -0.0f, 1e-40f, 2, 3e38f};
    for (size_t i = 1; i < sizeof z / sizeof z[0]; i++) {
        cr_assert_lt(sampler_key(z[i - 1]), sampler_key(z[i]));
    }
    cr_assert_eq(sampler_key(0.0f), sampler_key(-0.0f));
    for (size_t i = 0; i < sizeof z / sizeof z[0]; i++) {
        cr_assert_eq(sampler_float_of_key(sampler_key(z[i])), z[i]);
    }
}

struct rig {
    struct sampler s;
    struct sampling p;
    struct sample_input in;
    struct sample out;
};

static void rig_open(struct rig *r, const float *logits, size_t n) {
    struct error err;
    *r = (struct rig){0};
    cr_assert_eq(sampler_init(&r->s, n, 4096, &err), 0);
    engine_sampling_default(&r->p);
    r->in = (struct sample_input){.logits = logits, .sampling = &r->p};
}

static int32_t draw(struct rig *r) {
    cr_assert_eq(sampler_sample(&r->s, &r->in, &r->out), SAMPLE_OK);
    return r->out.token;
}

Test(sampler, greedy_takes_the_best_and_of_equal_ones_the_lowest_id) {
    const float logits[] = {1, 5, -2, 5, 4, -0.0f, 0.0f};
    struct rig r;
    rig_open(&r, logits, 7);
    r.p.temperature = 0;
    cr_assert_eq(draw(&r), 1);
    const float zeros[] = {-1, 0.0f, -0.0f};
    r.in.logits = zeros;
    r.s.vocab_size = 3;
    cr_assert_eq(draw(&r), 1);
    const float negative[] = {-7, -0.0f, 0.0f};
    r.in.logits = negative;
    cr_assert_eq(draw(&r), 1, "-0 and +0 are equal");
    sampler_destroy(&r.s);
}

/*
 * Draw 20000 times and compare with the distribution p: Pearson's chi-square must stay below the 99.9 % quantile for
 * the degrees of freedom (Wilson & Hilferty's approximation). The seed is fixed, so this passes always or never.
 */
static void check_distribution(struct rig *r, const double *p, size_t n, const char *what) {
    const size_t draws = 20000;
    size_t *seen = calloc(n, sizeof *seen), freedom = 0;
    double chi2 = 0;
    r->in.seed = 12345;
    for (size_t i = 0; i < draws; i++) {
        r->in.position = i;
        seen[draw(r)]++;
    }
    for (size_t i = 0; i < n; i++) {
        double want = p[i] * (double)draws;
        if (p[i] == 0) {
            cr_assert_eq(seen[i], 0, "%s: token %zu must never come", what, i);
        } else {
            chi2 += ((double)seen[i] - want) * ((double)seen[i] - want) / want;
            freedom++;
        }
    }
    double f = (double)(freedom - 1), t = 1 - 2 / (9 * f) + 3.09 * sqrt(2 / (9 * f));
    cr_assert_lt(chi2, f * t * t * t, "%s: chi-square %g with %g degrees of freedom", what, chi2, f);
    free(seen);
}

#define N 24
static void make_logits(float *z) {
    for (size_t i = 0; i < N; i++) {
        z[i] = 2.5f * sinf((float)(i * i)) + 10;
    }
}

/* softmax(z / t) of the tokens where keep is set */
static void softmax(const float *z, double t, const bool *keep, double *p) {
    double sum = 0;
    for (size_t i = 0; i < N; i++) {
        p[i] = !keep || keep[i] ? exp(((double)z[i] - 12.5) / t) : 0;
        sum += p[i];
    }
    for (size_t i = 0; i < N; i++) {
        p[i] /= sum;
    }
}

/* How many tokens are better than i (no two logits are equal here). */
static size_t rank_of(const float *z, size_t i) {
    size_t rank = 0;
    for (size_t j = 0; j < N; j++) {
        rank += z[j] > z[i];
    }
    return rank;
}

Test(sampler, temperature_shapes_the_distribution) {
    float z[N];
    double p[N];
    struct rig r;
    make_logits(z);
    rig_open(&r, z, N);
    const float temperatures[] = {1, 0.5f, 2};
    for (size_t i = 0; i < 3; i++) {
        r.p.temperature = temperatures[i];
        softmax(z, (double)temperatures[i], NULL, p);
        check_distribution(&r, p, N, "temperature");
    }
    sampler_destroy(&r.s);
}

Test(sampler, top_k_top_p_and_min_p) {
    float z[N];
    double p[N], q[N];
    bool keep[N];
    struct rig r;
    make_logits(z);
    rig_open(&r, z, N);

    r.p.top_k = 5;
    for (size_t i = 0; i < N; i++) {
        keep[i] = rank_of(z, i) < 5;
    }
    softmax(z, 1, keep, p);
    check_distribution(&r, p, N, "top_k");

    /* top_p of what top_k left */
    r.p.top_p = 0.7f;
    for (size_t i = 0; i < N; i++) {
        double better = 0;
        for (size_t j = 0; j < N; j++) {
            better += z[j] > z[i] ? p[j] : 0;
        }
        keep[i] = p[i] > 0 && better < 0.7;
    }
    softmax(z, 1, keep, q);
    check_distribution(&r, q, N, "top_k and top_p");

    r.p.top_k = 0;
    softmax(z, 1, NULL, p);
    for (size_t i = 0; i < N; i++) {
        double better = 0;
        for (size_t j = 0; j < N; j++) {
            better += z[j] > z[i] ? p[j] : 0;
        }
        keep[i] = better < 0.7;
    }
    softmax(z, 1, keep, q);
    check_distribution(&r, q, N, "top_p");

    r.p.top_p = 1;
    r.p.min_p = 0.2f;
    double best = 0;
    for (size_t i = 0; i < N; i++) {
        best = p[i] > best ? p[i] : best;
    }
    for (size_t i = 0; i < N; i++) {
        keep[i] = p[i] >= 0.2 * best;
    }
    softmax(z, 1, keep, q);
    check_distribution(&r, q, N, "min_p");
    sampler_destroy(&r.s);
}

Test(sampler, edges_of_the_filters) {
    const float equal[] = {3, 3, 3, 3, 1};
    struct rig r;
    rig_open(&r, equal, 5);
    r.p.top_k = 2; /* of equal ones the lowest ids are kept */
    double half[] = {0.5, 0.5, 0, 0, 0};
    check_distribution(&r, half, 5, "ties of top_k");
    r.p.top_k = -1;
    r.p.top_p = 1e-9f; /* always at least the best */
    for (uint64_t i = 0; i < 100; i++) {
        r.in.position = i;
        cr_assert_eq(draw(&r), 0);
    }
    r.p.top_p = 1;
    r.p.top_k = 1000; /* more than there are */
    draw(&r);
    sampler_destroy(&r.s);
}

Test(sampler, large_vocabulary_top_k_is_exact) {
    size_t n = 50000;
    float *z = malloc(n * sizeof *z);
    srand(11);
    for (size_t i = 0; i < n; i++) {
        z[i] = (float)(rand() % 1000) * 0.01f - 8; /* many ties, both signs */
    }
    struct rig r;
    rig_open(&r, z, n);
    for (size_t k = 1; k <= 3000; k += 1 + k / 2) {
        r.p.top_k = (int32_t)k;
        draw(&r);
        /* s.kept holds exactly the k best: no token left out is better than one kept, nor equal with a lower id */
        bool *kept = calloc(n, sizeof *kept);
        float worst = INFINITY;
        int32_t worst_id = 0;
        for (size_t i = 0; i < k; i++) {
            int32_t id = r.s.kept[i].id;
            cr_assert(i == 0 || id > r.s.kept[i - 1].id);
            kept[id] = true;
            if (z[id] <= worst) {
                worst = z[id];
                worst_id = id;
            }
        }
        for (size_t i = 0; i < n; i++) {
            if (!kept[i]) {
                cr_assert(z[i] < worst || (z[i] == worst && (int32_t)i > worst_id), "k = %zu, token %zu", k, i);
            }
        }
        free(kept);
    }
    sampler_destroy(&r.s);
    free(z);
}

Test(sampler, bias_penalties_and_masks_by_their_formulas) {
    float z[N], want[N];
    struct rig r;
    make_logits(z);
    for (size_t i = 0; i < N; i++) {
        z[i] -= 10; /* both signs */
    }
    rig_open(&r, z, N);
    const int32_t tokens[] = {3, 3, 5, 7, 3, 9, 9, 9}; /* prompt 3 3 5 7, generated 3 9 9 9 */
    const int count[N] = {[3] = 1, [9] = 3};
    const bool seen[N] = {[3] = true, [5] = true, [7] = true, [9] = true};
    const struct logit_bias bias[] = {{9, 2.5f}, {0, -100}, {9, 1}};
    const int32_t masked[] = {1, 2};
    r.p.temperature = 0;
    r.p.repetition_penalty = 1.3f;
    r.p.frequency_penalty = 0.4f;
    r.p.presence_penalty = -0.7f;
    r.p.logit_bias = bias;
    r.p.n_logit_bias = 3;
    r.in.tokens = tokens;
    r.in.n_prompt = 4;
    r.in.n_tokens = 8;
    r.in.masked = masked;
    r.in.n_masked = 2;
    size_t best = 0;
    for (size_t i = 0; i < N; i++) {
        float x = z[i] + (i == 9 ? 3.5f : i == 0 ? -100 : 0);
        if (seen[i]) {
            x = x > 0 ? x / 1.3f : x * 1.3f;
        }
        x -= 0.4f * (float)count[i];
        x -= count[i] > 0 ? -0.7f : 0;
        want[i] = i == 1 || i == 2 ? -INFINITY : x;
        best = want[i] > want[best] ? i : best;
    }
    for (int twice = 0; twice < 2; twice++) { /* the second time shows that the counts were cleared */
        cr_assert_eq(draw(&r), (int32_t)best);
        for (size_t i = 0; i < N; i++) {
            cr_assert(want[i] == r.s.z[i] || fabsf(want[i] - r.s.z[i]) < 1e-5f, "token %zu: %g, expected %g", i,
                      r.s.z[i], want[i]);
        }
    }
    sampler_destroy(&r.s);
}

Test(sampler, logprobs_come_from_the_unmodified_logits) {
    float z[N];
    double p[N];
    struct rig r;
    make_logits(z);
    softmax(z, 1, NULL, p);
    rig_open(&r, z, N);
    const struct logit_bias bias = {4, 50};
    r.p.logit_bias = &bias;
    r.p.n_logit_bias = 1;
    r.p.temperature = 0.3f;
    r.p.n_logprobs = 5;
    cr_assert_eq(draw(&r), 4);
    cr_assert_float_eq(r.out.logprob, log(p[4]), 1e-5);
    cr_assert_eq(r.out.n_top, 5);
    for (size_t i = 0; i < 5; i++) {
        cr_assert_eq(rank_of(z, (size_t)r.out.top[i].id), i);
        cr_assert_float_eq(r.out.top[i].logprob, log(p[r.out.top[i].id]), 1e-5);
    }
    r.p.n_logprobs = 0;
    draw(&r);
    cr_assert_eq(r.out.n_top, 0);
    cr_assert_float_eq(r.out.logprob, log(p[4]), 1e-5);
    sampler_destroy(&r.s);
}

Test(sampler, a_choice_depends_on_seed_position_and_choice_alone) {
    float z[N];
    struct rig a, b;
    make_logits(z);
    rig_open(&a, z, N);
    rig_open(&b, z, N);
    size_t other_seed = 0, other_position = 0, other_choice = 0;
    for (uint64_t i = 0; i < 200; i++) {
        a.in.seed = b.in.seed = 99 + ((uint64_t)1 << 40);
        a.in.position = b.in.position = i;
        a.p.choice = b.p.choice = 2;
        int32_t token = draw(&a);
        cr_assert_eq(token, draw(&b));
        b.in.seed = 99;
        other_seed += draw(&b) != token;
        b.in.seed = a.in.seed;
        b.in.position = i + 1000;
        other_position += draw(&b) != token;
        b.in.position = i;
        b.p.choice = 3;
        other_choice += draw(&b) != token;
    }
    cr_assert(other_seed > 100 && other_position > 100 && other_choice > 100);
    sampler_destroy(&a.s);
    sampler_destroy(&b.s);
}

Test(sampler, what_is_not_finite_is_told_and_nothing_is_chosen) {
    float z[3] = {1, NAN, 2};
    struct rig r;
    rig_open(&r, z, 3);
    cr_assert_eq(sampler_sample(&r.s, &r.in, &r.out), SAMPLE_NONFINITE);
    z[1] = INFINITY;
    cr_assert_eq(sampler_sample(&r.s, &r.in, &r.out), SAMPLE_NONFINITE);
    z[1] = 0;
    const int32_t all[] = {0, 1, 2};
    r.in.masked = all;
    r.in.n_masked = 3;
    cr_assert_eq(sampler_sample(&r.s, &r.in, &r.out), SAMPLE_NO_TOKEN);
    r.in.n_masked = 2;
    cr_assert_eq(draw(&r), 2);
    sampler_destroy(&r.s);
}

/* ---- what comes before and around the stages ---- */

static void set_order(struct rig *r, const char *names) {
    struct error err;
    cr_assert_eq(engine_sampler_order(names, strlen(names), &r->p.order, &err), 0, "%s", names);
}

Test(sampler, names_of_the_order) {
    static const uint8_t want[] = {SAMPLER_TOP_K, SAMPLER_TYPICAL_P, SAMPLER_TEMPERATURE};
    struct sampler_order order = {0}, untouched = {0};
    struct error err;
    struct sampling p;
    const char *good[] = {"top_k;typ_p;temperature", "top_k,typ_p , temperature", " top_k typical_p;;temperature;"};
    for (size_t i = 0; i < 3; i++) {
        cr_assert_eq(engine_sampler_order(good[i], strlen(good[i]), &order, &err), 0);
        cr_assert(order.n == 3 && memcmp(order.stages, want, 3) == 0, "%s", good[i]);
    }
    const char *bad[] = {"top_k;top_k", "warmth", "top_k;typ_p;typical_p", "top", "top_k\n", "TOP_K"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_assert_eq(engine_sampler_order(bad[i], strlen(bad[i]), &untouched, &err), -1, "%s", bad[i]);
        cr_assert(untouched.n == 0 && err.code == ERROR_INVALID && strcmp(err.param, "samplers") == 0);
    }
    cr_assert_eq(engine_sampler_order("", 0, &order, &err), 0);
    cr_assert_eq(order.n, 0);
    engine_sampling_default(&p);
    cr_assert_eq(engine_sampler_order(ENGINE_SAMPLER_ORDER, strlen(ENGINE_SAMPLER_ORDER), &order, &err), 0);
    cr_assert(order.n == p.order.n && memcmp(order.stages, p.order.stages, order.n) == 0, "the default is what it says");
}

Test(sampler, xtc_draws_by_a_number_of_its_own) {
    float z[N];
    double all[N], cut[N], p[N], best = 0;
    bool keep[N];
    struct rig r;
    make_logits(z);
    rig_open(&r, z, N);
    r.p.xtc_probability = 0.4f;
    r.p.xtc_threshold = 0.08f;
    softmax(z, 1, NULL, all);
    size_t least = 0;
    for (size_t i = 0; i < N; i++) {
        if (all[i] >= 0.08 && (best == 0 || all[i] < best)) {
            best = all[i];
            least = i;
        }
    }
    for (size_t i = 0; i < N; i++) {
        keep[i] = all[i] < 0.08 || i == least;
    }
    softmax(z, 1, keep, cut);
    for (size_t i = 0; i < N; i++) {
        p[i] = 0.6 * all[i] + 0.4 * cut[i]; /* only if the two numbers have nothing to do with one another */
    }
    check_distribution(&r, p, N, "xtc");
    sampler_destroy(&r.s);
}

Test(sampler, masks_of_words_and_lists) {
    float z[N];
    double p[N];
    bool keep[N] = {false};
    struct rig r;
    make_logits(z);
    rig_open(&r, z, N);
    const int32_t tokens[] = {4, 1, 2, 3}, ends_here[] = {2, 3, 7}, one_id[] = {9}, other[] = {1, 3, 8}, reaches_back[] = {4, 1, 2, 3, 6};
    const struct token_sequence words[] = {{ends_here, 3}, {one_id, 1}, {other, 3}, {reaches_back, 5}};
    const uint64_t allowed = 0xf0f3c5;
    r.in.tokens = tokens;
    r.in.n_prompt = 1;
    r.in.n_tokens = 4;
    r.in.allowed = &allowed;
    r.p.bad_words = words;
    r.p.n_bad_words = 4;
    for (size_t i = 0; i < N; i++) {
        keep[i] = (allowed >> i & 1) && i != 7 && i != 9; /* 8: another word; 6: its beginning is in the prompt */
    }
    cr_assert(keep[8] && keep[6] && (allowed >> 7 & 1) && (allowed >> 9 & 1));
    softmax(z, 1, keep, p);
    check_distribution(&r, p, N, "masks");
    sampler_destroy(&r.s);
}

Test(sampler, order_changes_the_outcome) {
    float z[N];
    double p[N], q[N];
    bool keep[N];
    struct rig r;
    make_logits(z);
    rig_open(&r, z, N);
    r.p.temperature = 2;
    r.p.top_p = 0.6f;
    const char *orders[] = {"temperature;top_p", "top_p;temperature"};
    for (size_t o = 0; o < 2; o++) {
        set_order(&r, orders[o]);
        softmax(z, o == 0 ? 2 : 1, NULL, p);
        for (size_t i = 0; i < N; i++) {
            double better = 0;
            for (size_t j = 0; j < N; j++) {
                better += z[j] > z[i] ? p[j] : 0;
            }
            keep[i] = better < 0.6;
        }
        softmax(z, 2, keep, q);
        check_distribution(&r, q, N, orders[o]);
    }
    sampler_destroy(&r.s);
}

Test(sampler, the_state_goes_from_input_to_output_alone) {
    float z[N];
    struct rig r;
    make_logits(z);
    rig_open(&r, z, N);
    r.p.mirostat = 2;
    r.in.state = sampler_state_first(&r.p);
    cr_assert_float_eq(r.in.state.mirostat_mu, 10, 0);
    draw(&r);
    struct sampler_state once = r.out.state;
    cr_assert_neq(once.mirostat_mu, 10);
    draw(&r); /* the same again: nothing was kept behind the caller's back */
    cr_assert_eq(r.out.state.mirostat_mu, once.mirostat_mu);
    r.p.mirostat = 0;
    draw(&r);
    cr_assert_eq(r.out.state.mirostat_mu, 10);
    sampler_destroy(&r.s);
}

/* Extremes must neither hang nor leave the vocabulary; each is drawn from some times. */
Test(sampler, extremes) {
    static float z[3][N];
    make_logits(z[0]);
    for (size_t i = 0; i < N; i++) {
        z[1][i] = -3.4e38f + (float)i;
        z[2][i] = i % 2 ? 3e38f : -3e38f;
    }
    const float edges[] = {0, 1e-9f, 0.5f, 1, 2, 100};
    for (size_t f = 0; f < 3; f++) {
        struct rig r;
        rig_open(&r, z[f], N);
        for (size_t a = 0; a < 6; a++) {
            for (size_t b = 0; b < 6; b++) {
                float x = edges[a], y = edges[b], x1 = x < 1 ? x : 1, y1 = y < 1 ? y : 1;
                engine_sampling_default(&r.p);
                r.p.temperature = x < 2 ? x : 2;
                r.p.typical_p = y1 > 0 ? y1 : 1;
                r.p.top_n_sigma = y;
                r.p.xtc_probability = y1;
                r.p.xtc_threshold = x1;
                r.p.dynatemp_range = y < 2 ? y : 2;
                r.p.dynatemp_exponent = x;
                r.p.min_p = x1;
                r.p.min_keep = (int32_t)(a * 7);
                r.p.mirostat = (int32_t)(b % 3);
                r.p.mirostat_tau = x;
                r.p.mirostat_eta = y1;
                r.in.state.mirostat_mu = b % 2 ? 1e300 : -1e300;
                for (uint64_t i = 0; i < 3; i++) {
                    r.in.position = i;
                    int32_t token = draw(&r);
                    cr_assert(token >= 0 && token < N && !isnan(r.out.state.mirostat_mu), "%zu %zu %zu", f, a, b);
                }
            }
        }
        sampler_destroy(&r.s);
    }
}
