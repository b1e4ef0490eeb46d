#include "quant/gptq.h"

#include "base/parallel.h"

#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum {
    PANEL = 64, /* columns factorised together */
    GROUP = 16, /* rows of W rounded together, side by side in memory */
    BLOCK = 64, /* columns whose errors are gathered before the rest of the row hears of them */
};

/* In eight sums, so that the compiler may vectorise it: always in the same order. */
static double dot(const double *a, const double *b, size_t n) {
    double sums[8] = {0}, sum = 0;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        for (size_t l = 0; l < 8; l++) {
            sums[l] += a[i + l] * b[i + l];
        }
    }
    for (; i < n; i++) {
        sum += a[i] * b[i];
    }
    for (size_t l = 0; l < 8; l++) {
        sum += sums[l];
    }
    return sum;
}

/* ---- H = R R^T with R upper triangular, in place (a Cholesky factorisation from the last column to the first) ---- */

struct panel {
    double *h;
    size_t k, begin, end; /* columns [begin, end), done from the right */
};

/* R[i][j] = (H[i][j] - sum_{l > j} R[i][l] R[j][l]) / R[j][j] for i above the panel */
static void panel_row(void *arg, size_t i) {
    const struct panel *p = arg;
    double *row = p->h + i * p->k;
    for (size_t j = p->end; j-- > p->begin;) {
        const double *of = p->h + j * p->k;
        row[j] = (row[j] - dot(row + j + 1, of + j + 1, p->k - j - 1)) / of[j];
    }
}

static bool panel_diagonal(const struct panel *p) {
    for (size_t j = p->end; j-- > p->begin;) {
        double *of = p->h + j * p->k;
        double square = of[j] - dot(of + j + 1, of + j + 1, p->k - j - 1);
        if (!(square > 0) || !isfinite(square)) {
            return false;
        }
        of[j] = sqrt(square);
        for (size_t i = p->begin; i < j; i++) {
            double *row = p->h + i * p->k;
            row[j] = (row[j] - dot(row + j + 1, of + j + 1, p->k - j - 1)) / of[j];
        }
    }
    return true;
}

static bool factorise(double *h, size_t k, size_t threads) {
    for (size_t end = k; end > 0;) {
        size_t begin = end > PANEL ? end - PANEL : 0;
        struct panel p = {h, k, begin, end};
        if (!panel_diagonal(&p)) {
            return false;
        }
        parallel_for(threads, begin, panel_row, &p);
        end = begin;
    }
    return true;
}

/* ---- U = R^-1, row by row ---- */

struct inverse {
    const double *r;
    size_t k;
    float *u;
    atomic_bool failed;
};

/* U R = I: u[j] = -(sum_{i <= l < j} u[l] R[l][j]) / R[j][j], u[i] = 1 / R[i][i] */
static void inverse_row(void *arg, size_t i) {
    struct inverse *v = arg;
    size_t k = v->k;
    double *sum = calloc(k, sizeof *sum);
    if (!sum) {
        atomic_store(&v->failed, true);
        return;
    }
    for (size_t l = i; l < k; l++) {
        const double *row = v->r + l * k;
        double u = ((l == i ? 1.0 : 0.0) - sum[l]) / row[l];
        for (size_t j = l + 1; j < k; j++) {
            sum[j] += u * row[j];
        }
        v->u[i * k + l] = (float)u;
    }
    memset(v->u + i * k, 0, i * sizeof *v->u);
    free(sum);
}

int gptq_prepare(double *h, size_t k, double damping, size_t threads, float *u, struct error *err) {
    double mean = 0;
    for (size_t i = 0; i < k; i++) {
        mean += h[i * k + i] / (double)k;
    }
    double add = mean > 0 ? damping * mean : 1; /* no input at all: every error counts alike */
    for (size_t i = 0; i < k; i++) {
        h[i * k + i] += add;
    }
    if (!factorise(h, k, threads)) {
        return error_set(err, ERROR_MODEL,
                         "the calibration inputs give no positive definite matrix: a larger --gptq-damping may help");
    }
    struct inverse v = {.r = h, .k = k, .u = u};
    parallel_for(threads, k, inverse_row, &v);
    return atomic_load(&v.failed) ? error_memory(err) : 0;
}

/* ---- rounding ---- */

struct rounding {
    const float *w, *u, *scales;
    size_t n, k;
    int8_t *q;
    atomic_bool failed;
};

/* Column j of a group: round, and hand the error to the columns of [j + 1, end). w[k][GROUP], e[GROUP]. */
static void round_column(const struct rounding *r, float *w, size_t j, size_t end, const float *scales, float *e,
                         int8_t *q) {
    const float *u = r->u + j * r->k;
    for (size_t g = 0; g < GROUP; g++) {
        float x = w[j * GROUP + g], rounded = rintf(x / scales[g]);
        rounded = rounded < -127 ? -127 : rounded > 127 ? 127 : rounded;
        q[g] = (int8_t)rounded;
        e[g] = (x - scales[g] * rounded) / u[j];
    }
    for (size_t l = j + 1; l < end; l++) {
        for (size_t g = 0; g < GROUP; g++) {
            w[l * GROUP + g] -= e[g] * u[l];
        }
    }
}

static void round_block(const struct rounding *r, float *w, size_t begin, size_t end, const float *scales, size_t row,
                        size_t rows) {
    float errors[BLOCK][GROUP];
    int8_t q[GROUP];
    for (size_t j = begin; j < end; j++) {
        round_column(r, w, j, end, scales, errors[j - begin], q);
        for (size_t g = 0; g < rows; g++) {
            r->q[(row + g) * r->k + j] = q[g];
        }
    }
    for (size_t l = end; l < r->k; l++) {
        for (size_t j = begin; j < end; j++) {
            float u = r->u[j * r->k + l];
            for (size_t g = 0; g < GROUP; g++) {
                w[l * GROUP + g] -= errors[j - begin][g] * u;
            }
        }
    }
}

static void round_group(void *arg, size_t i) {
    struct rounding *r = arg;
    size_t row = i * GROUP, rows = r->n - row < GROUP ? r->n - row : GROUP;
    float scales[GROUP], *w = calloc(r->k, GROUP * sizeof *w);
    if (!w) {
        atomic_store(&r->failed, true);
        return;
    }
    for (size_t g = 0; g < GROUP; g++) {
        scales[g] = g < rows ? r->scales[row + g] : 1;
        for (size_t j = 0; g < rows && j < r->k; j++) {
            w[j * GROUP + g] = r->w[(row + g) * r->k + j];
        }
    }
    for (size_t begin = 0; begin < r->k; begin += BLOCK) {
        size_t end = r->k - begin < BLOCK ? r->k : begin + BLOCK;
        round_block(r, w, begin, end, scales, row, rows);
    }
    free(w);
}

int gptq_quantize(const float *w, size_t n, size_t k, const float *u, const float *scales, size_t threads, int8_t *q,
                  struct error *err) {
    struct rounding r = {.w = w, .u = u, .scales = scales, .n = n, .k = k, .q = q};
    parallel_for(threads, (n + GROUP - 1) / GROUP, round_group, &r);
    return atomic_load(&r.failed) ? error_memory(err) : 0;
}
