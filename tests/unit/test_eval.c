/* Expected numbers are numpy's (log-softmax, divergence, percentiles, standard errors), in double precision. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <inferd/eval.h>

static struct error err;

/* --- windows */

static void check_windows(struct eval_windows w, size_t n_windows, size_t n_scored, const struct eval_window *expect) {
    cr_assert_eq(eval_n_windows(&w), n_windows);
    cr_assert_eq(eval_n_scored(&w), n_scored);
    size_t scored = w.bos ? 0 : 1;
    for (size_t i = 0; i < n_windows; i++) {
        struct eval_window x;
        eval_window_at(&w, i, &x);
        cr_assert_eq(x.first_scored, scored, "window %zu begins to score at %zu, not %zu", i, x.first_scored, scored);
        cr_assert(x.begin < x.end && x.end - x.begin + w.bos <= w.context && x.first_scored < x.end);
        if (expect) {
            cr_assert(x.begin == expect[i].begin && x.end == expect[i].end && x.first_scored == expect[i].first_scored);
        }
        scored = x.end;
    }
    cr_assert_eq(scored, n_windows ? w.n_tokens : scored);
}

Test(eval, windows_by_hand) {
    const struct eval_window halves[] = {{0, 8, 1}, {4, 12, 8}, {8, 14, 12}};
    check_windows((struct eval_windows){14, 8, 4, false}, 3, 13, halves);
    const struct eval_window bos[] = {{0, 7, 0}, {4, 11, 7}, {8, 14, 11}};
    check_windows((struct eval_windows){14, 8, 4, true}, 3, 14, bos);
    const struct eval_window apart[] = {{0, 5, 1}, {5, 10, 5}};
    check_windows((struct eval_windows){10, 5, 5, false}, 2, 9, apart);
    const struct eval_window one[] = {{0, 3, 1}};
    check_windows((struct eval_windows){3, 8, 4, false}, 1, 2, one);
}

Test(eval, windows_score_every_token_once) {
    for (size_t n = 1; n < 40; n++) {
        for (size_t context = 2; context < 12; context++) {
            for (size_t stride = 1; stride <= context; stride++) {
                for (int bos = 0; bos <= (stride < context); bos++) {
                    struct eval_windows w = {n, context, stride, bos};
                    if (eval_n_scored(&w) > 0) {
                        check_windows(w, eval_n_windows(&w), n - !bos, NULL);
                    }
                }
            }
        }
    }
}

/* --- one token */

static const float p[] = {1.5f, -0.25f, 3.0f, 0.5f, -2.0f, 2.75f, 0.0f, -1.0f};
static const float q[] = {1.0f, 0.25f, 2.5f, 0.75f, -2.5f, 3.25f, -0.5f, -1.5f};

Test(eval, divergence_and_logprobs_as_numpy_has_them) {
    struct eval_pair pair;
    cr_assert(eval_pair(q, p, 8, 3, &pair));
    cr_assert_float_eq(pair.kl, 0.11932966671623896, 1e-7);
    cr_assert_float_eq(pair.model.logprob, -3.05674886288763, 1e-6);
    cr_assert_float_eq(pair.reference.logprob, -3.28737987277893, 1e-6);
    cr_assert(pair.model.best == 5 && pair.reference.best == 2);
    struct eval_score score;
    cr_assert(eval_score(p, 8, 5, &score));
    cr_assert_float_eq(score.logprob, -1.03737987277893, 1e-6);
    cr_assert(eval_pair(p, p, 8, 0, &pair) && pair.kl == 0);
}

Test(eval, divergence_from_the_likeliest_ids_and_the_rest) {
    static const struct {
        size_t top;
        double kl;
    } cases[] = {{1, 0.07754704656241806}, {3, 0.1122020461799992}, {7, 0.11932966671623856}, {8, 0.11932966671623896}};
    static const int32_t order[] = {2, 5, 0, 3, 6, 1, 7, 4};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int32_t ids[8];
        float logprobs[8];
        struct eval_top top = {.n = cases[i].top, .ids = ids, .logprobs = logprobs};
        struct eval_pair pair;
        cr_assert(eval_take_top(p, 8, 6, &top));
        cr_assert_arr_eq(ids, order, cases[i].top * sizeof *ids);
        cr_assert_float_eq(top.target_logprob, -3.78737987277893, 1e-6);
        cr_assert(eval_pair_top(q, &top, 8, &pair));
        cr_assert_float_eq(pair.kl, cases[i].kl, 1e-6, "%zu ids: %.9g", cases[i].top, pair.kl);
        cr_assert(pair.reference.best == 2 && pair.model.best == 5);
    }
}

Test(eval, equal_logits_by_lowest_id) {
    float z[100];
    for (int i = 0; i < 100; i++) {
        z[i] = (float)(i * 37 % 5);
    }
    int32_t ids[30];
    float logprobs[30];
    struct eval_top top = {.n = 30, .ids = ids, .logprobs = logprobs};
    cr_assert(eval_take_top(z, 100, 0, &top));
    for (int i = 1; i < 30; i++) {
        cr_assert(z[ids[i - 1]] > z[ids[i]] || (z[ids[i - 1]] == z[ids[i]] && ids[i - 1] < ids[i]));
    }
    cr_assert_eq(z[ids[29]], 3); /* 20 of each value */
}

Test(eval, what_is_not_finite_is_told) {
    const float bad[] = {0, NAN, 1}, worse[] = {0, INFINITY, 1}, good[] = {0, 1, 2};
    struct eval_score score;
    struct eval_pair pair;
    cr_assert(!eval_score(bad, 3, 0, &score) && !eval_score(worse, 3, 0, &score));
    cr_assert(!eval_pair(bad, good, 3, 0, &pair) && !eval_pair(good, bad, 3, 0, &pair));
}

/* --- all tokens */

Test(eval, quantiles_as_numpy_has_them) {
    const float sorted[] = {0.125f, 0.25f, 0.5f, 0.75f, 1, 2, 3, 4, 8, 16};
    const double expect[][2] = {{0, 0.125}, {0.5, 1.5}, {0.99, 15.280000000000001}, {1, 16}, {0.375, 0.84375}};
    for (size_t i = 0; i < 5; i++) {
        cr_assert_float_eq(eval_quantile(sorted, 10, expect[i][0]), expect[i][1], 1e-6);
    }
    cr_assert_eq(eval_quantile(sorted, 0, 0.5), 0);
    cr_assert_eq(eval_quantile(sorted, 1, 0.99), 0.125);
}

Test(eval, summary) {
    const double nll[] = {0.5, 1.25, 3.0, 0.75, 2.5}, ref[] = {0.25, 1.5, 2.75, 0.5, 2.25}, kl[] = {0.3, 0.1, 0.5, 0.2, 0.4};
    struct eval_stats s = {0};
    struct eval_summary sum;
    eval_summarise(&s, true, &sum);
    cr_assert(sum.n == 0 && sum.perplexity == 0 && sum.kl_max == 0);
    for (int i = 0; i < 5; i++) {
        const struct eval_pair pair = {{-nll[i], 1}, {-ref[i], i < 2}, kl[i]};
        cr_assert_eq(eval_stats_add_pair(&s, &pair, &err), 0);
    }
    eval_summarise(&s, true, &sum);
    cr_assert_float_eq(sum.perplexity, 4.953032424395115, 1e-9);
    cr_assert_float_eq(sum.nll_error, 0.49117206760971255, 1e-9);
    cr_assert_float_eq(sum.reference_perplexity, 4.263114515168817, 1e-9);
    cr_assert_float_eq(sum.ratio, 1.161834242728283, 1e-9);
    cr_assert_float_eq(sum.ratio_error, 0.11618342427282834, 1e-9);
    cr_assert_float_eq(sum.kl_mean, 0.3, 1e-9);
    cr_assert_float_eq(sum.kl_median, 0.3, 1e-6);
    cr_assert_float_eq(sum.kl_max, 0.5, 1e-6);
    cr_assert_float_eq(sum.top1, 0.4, 1e-9);
    eval_stats_free(&s);
}

/* --- recorded references */

enum { TOP = 3, VOCAB = 8, RECORDS = 4, HEAD = 232, RECORD = 8 + 8 * TOP };

static char path[64];

static void temporary(void) {
    snprintf(path, sizeof path, "/tmp/inferd-test-eval-XXXXXX");
    int fd = mkstemp(path);
    cr_assert(fd >= 0);
    close(fd);
}

static void write_reference(void) {
    struct eval_record_header h = {.top = TOP, .vocab_size = VOCAB, .context = 16, .stride = 8, .bos = true, .n = RECORDS};
    struct eval_writer *w;
    memset(h.tokens_hash, 1, sizeof h.tokens_hash);
    memset(h.model_hash, 2, sizeof h.model_hash);
    snprintf(h.description, sizeof h.description, "a test");
    cr_assert_eq(eval_writer_open(path, &h, &w, &err), 0, "%s", err.message);
    for (int i = 0; i < RECORDS; i++) {
        int32_t ids[TOP];
        float logprobs[TOP];
        struct eval_top top = {.n = TOP, .ids = ids, .logprobs = logprobs};
        cr_assert(eval_take_top(i % 2 ? q : p, VOCAB, i, &top));
        cr_assert_eq(eval_writer_add(w, &top, &err), 0);
    }
    cr_assert_eq(eval_writer_finish(w, &err), 0, "%s", err.message);
}

static int read_all(int *records) {
    struct eval_reader *r;
    const struct eval_top *top;
    *records = 0;
    if (eval_reader_open(path, &r, &err) < 0) {
        return -1;
    }
    int rc = 0;
    uint64_t n = eval_reader_header(r)->n;
    while (rc == 0 && (uint64_t)*records < n) {
        rc = eval_reader_next(r, &top, &err);
        *records += rc == 0;
    }
    eval_reader_close(r);
    return rc;
}

Test(eval, a_reference_is_read_as_it_was_written, .init = temporary) {
    struct eval_reader *r;
    const struct eval_top *top;
    write_reference();
    cr_assert_eq(eval_reader_open(path, &r, &err), 0, "%s", err.message);
    const struct eval_record_header *h = eval_reader_header(r);
    cr_assert(h->top == TOP && h->vocab_size == VOCAB && h->context == 16 && h->stride == 8 && h->bos && h->n == RECORDS);
    cr_assert(h->tokens_hash[31] == 1 && h->model_hash[0] == 2 && strcmp(h->description, "a test") == 0);
    for (int i = 0; i < RECORDS; i++) {
        cr_assert_eq(eval_reader_next(r, &top, &err), 0, "%s", err.message);
        cr_assert(top->n == TOP && top->target == i);
        cr_assert_float_eq(top->logprobs[0], i % 2 ? -0.556748862887632 : -0.787379872778928, 1e-6);
        cr_assert_eq(top->ids[0], i % 2 ? 5 : 2);
    }
    cr_assert(eval_reader_next(r, &top, &err) < 0);
    eval_reader_close(r);
    eval_reader_close(NULL);
    unlink(path);
}

static void change(long at, const void *bytes, size_t n) {
    FILE *f = fopen(path, "r+b");
    cr_assert(f && fseek(f, at, SEEK_SET) == 0 && fwrite(bytes, 1, n, f) == n && fclose(f) == 0);
}

Test(eval, hostile_references_are_refused, .init = temporary) {
    int n;
    const uint32_t zero = 0, nine = 9, huge = 0xffffffffu, two = 2;
    const float nan = NAN, above = 0.5f, best = -0.01f;
    const uint64_t many = (uint64_t)1 << 50, more = RECORDS + 1;
    const struct {
        long at;
        const void *bytes;
        size_t n;
        const char *word;
    } cases[] = {
        {0, "X", 1, "no reference"},
        {8, &two, 4, "another version"},
        {12, &zero, 4, "ids kept"},
        {12, &nine, 4, "ids kept"},
        {12, &two, 4, "size"},
        {16, &zero, 4, "vocabulary"},
        {16, &huge, 4, "vocabulary"},
        {20, &zero, 4, "context"},
        {24, &zero, 4, "stride"},
        {24, &huge, 4, "stride"},
        {28, &two, 4, "BOS"},
        {32, &many, 8, "number of tokens"},
        {32, &more, 8, "size"},
        {HEAD - 128, "\n", 1, "printable"},
        {HEAD, &nine, 4, "token"},
        {HEAD, &huge, 4, "token"},
        {HEAD + 4, &nan, 4, "token"},
        {HEAD + 8, &huge, 4, "id is out"},
        {HEAD + RECORD + 8, &zero, 4, "twice"}, /* its ids are 5, 2, 0 */
        {HEAD + 8 + 4 * TOP, &nan, 4, "log-probabilities"},
        {HEAD + 8 + 4 * TOP, &above, 4, "log-probabilities"},
        {HEAD + 12 + 4 * TOP, &best, 4, "log-probabilities"},
        {HEAD + 8 + 4 * TOP, &best, 4, "more than 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_reference();
        cr_assert_eq(read_all(&n), 0);
        change(cases[i].at, cases[i].bytes, cases[i].n);
        cr_assert(read_all(&n) < 0, "case %zu was read", i);
        cr_assert(err.code == ERROR_MODEL && strstr(err.message, cases[i].word), "case %zu: %s", i, err.message);
    }
    write_reference();
    for (off_t size = HEAD + RECORDS * RECORD - 1; size >= 0; size--) { /* cut anywhere */
        cr_assert_eq(truncate(path, size), 0);
        cr_assert(read_all(&n) < 0 && err.code == ERROR_MODEL && n == 0);
    }
    unlink(path);
    cr_assert(read_all(&n) < 0);
    snprintf(path, sizeof path, "/dev/zero"); /* endless */
    cr_assert(read_all(&n) < 0 && err.code == ERROR_MODEL);
}

Test(eval, what_is_not_finished_leaves_nothing, .init = temporary) {
    const struct eval_record_header h = {.top = 1, .vocab_size = 8, .context = 16, .stride = 8, .n = 1};
    struct eval_writer *w;
    char partial[80];
    snprintf(partial, sizeof partial, "%s.partial", path);
    unlink(path);
    cr_assert_eq(eval_writer_open(path, &h, &w, &err), 0);
    cr_assert_eq(access(partial, F_OK), 0);
    eval_writer_abandon(w);
    cr_assert(access(partial, F_OK) != 0 && access(path, F_OK) != 0);
    cr_assert_eq(eval_writer_open(path, &h, &w, &err), 0);
    cr_assert(eval_writer_finish(w, &err) < 0); /* too few */
    cr_assert(access(partial, F_OK) != 0 && access(path, F_OK) != 0);
    cr_assert(eval_writer_open("/nowhere/x", &h, &w, &err) < 0 && err.code == ERROR_IO);
    eval_writer_abandon(NULL);
}
