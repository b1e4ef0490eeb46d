#include "sampler_choose.h"

#include "sampler_logits.h"
#include <inferd/sampler_math.h>
#include "sampler_passes.h"
#include "sampler_select.h"

#include <math.h>
#include <string.h>

#define GREEDY_BELOW 1e-5f /* temperature */
#define MIROSTAT_BEST 100  /* the tokens from which mirostat 1 estimates the exponent (m of the paper) */
#define NO_WEIGHT (-41.0f) /* log2 of a relative probability whose weight is 0, with room for rounding */

static bool is_active(const struct sampling *p, enum sampler_stage stage, size_t vocab_size) {
    switch (stage) {
    case SAMPLER_PENALTIES:
        return sampler_has_penalties(p);
    case SAMPLER_DRY:
        return sampler_has_dry(p);
    case SAMPLER_TEMPERATURE:
        return p->temperature != 1.0f || p->dynatemp_range > 0.0f;
    case SAMPLER_TOP_N_SIGMA:
        return p->mirostat == 0 && p->top_n_sigma > 0.0f;
    case SAMPLER_TOP_K:
        return p->mirostat == 0 && p->top_k > 0 && (size_t)p->top_k < vocab_size;
    case SAMPLER_TYPICAL_P:
        return p->mirostat == 0 && p->typical_p < 1.0f;
    case SAMPLER_TOP_P:
        return p->mirostat == 0 && p->top_p < 1.0f;
    case SAMPLER_MIN_P:
        return p->mirostat == 0 && p->min_p > 0.0f;
    case SAMPLER_XTC:
        return p->mirostat == 0 && p->xtc_probability > 0.0f && p->xtc_threshold <= 0.5f;
    case SAMPLER_STAGES:
        break;
    }
    return false;
}

static bool works_on_logits(enum sampler_stage stage) {
    return stage == SAMPLER_PENALTIES || stage == SAMPLER_DRY;
}

struct sampler_plan sampler_make_plan(const struct sampling *p, size_t vocab_size) {
    struct sampler_plan plan = {0};
    for (size_t i = 0; i < p->order.n; i++) {
        plan.greedy |=
            p->order.stages[i] == SAMPLER_TEMPERATURE && p->temperature < GREEDY_BELOW && p->dynatemp_range == 0.0f;
    }
    for (size_t i = 0; i < p->order.n; i++) {
        enum sampler_stage stage = p->order.stages[i];
        if (is_active(p, stage, vocab_size) && (works_on_logits(stage) || !plan.greedy)) {
            plan.n_leading = (uint8_t)(plan.n_leading + (works_on_logits(stage) && plan.n_leading == plan.n));
            plan.stages[plan.n++] = (uint8_t)stage;
        }
    }
    return plan;
}

/* A draw under way. */
struct draw {
    struct sampler *s;
    const struct sample_input *in;
    const struct sampling *p;
    const float *z;    /* [vocab_size] all logits */
    float z_max;       /* the best of those in the draw */
    float scale;       /* relative probability = 2^((z - z_max) * scale) */
    float temperature; /* in scale */
    float flattest;    /* no later stage makes the scale smaller than this; 0 = logits may still change at will */
    size_t n;          /* s->kept[0..n) in order of id, weighed against z_max with scale */
};

static size_t min_keep(const struct draw *d) {
    return d->p->min_keep > 1 ? (size_t)d->p->min_keep : 1;
}

/* One past the last id of chunk c. */
static size_t chunk_end(const struct sampler *s, size_t c) {
    size_t end = (c + 1) * SAMPLER_CHUNK;
    return end < s->vocab_size ? end : s->vocab_size;
}

static uint64_t share(uint64_t total, float p) {
    uint64_t want = (uint64_t)((double)total * (double)p);
    return want > 0 ? want : 1;
}

static void set_temperature(struct draw *d, float temperature) {
    d->temperature = temperature < GREEDY_BELOW ? GREEDY_BELOW : temperature;
    d->scale = SAMPLER_LOG2E / d->temperature;
}

/* ---- candidates ---- */

/* After logits or the scale changed, or the best one went. */
static void weigh(struct draw *d) {
    struct candidate *c = d->s->kept;
    uint32_t best = 0;
    for (size_t i = 0; i < d->n; i++) {
        best = c[i].key > best ? c[i].key : best;
    }
    d->z_max = sampler_float_of_key(best);
    for (size_t i = 0; i < d->n; i++) {
        c[i].weight = sampler_weight(sampler_exp2((sampler_float_of_key(c[i].key) - d->z_max) * d->scale));
    }
}

/* A key that at least k tokens reach: the k-th largest of the chunks' largest. 0 when there are fewer chunks. */
static uint32_t key_reached_by(struct sampler *s, size_t k) {
    size_t n = sampler_n_chunks(s->vocab_size);
    if (k > n) {
        return 0;
    }
    for (size_t c = 0; c < n; c++) {
        s->kept[c] = (struct candidate){(int32_t)c, s->chunk_max[c], 1};
    }
    return sampler_find_edge(s, n, (struct wanted){1, k, UINT64_MAX}).key;
}

/* Candidates: tokens whose key and relative probability reach the floors. Chunks that hold none are passed over. */
static void gather(struct draw *d, uint32_t key_floor, float floor) {
    struct sampler *s = d->s;
    size_t n = 0;
    for (size_t c = 0; c < sampler_n_chunks(s->vocab_size); c++) {
        float best = sampler_float_of_key(s->chunk_max[c]) - d->z_max;
        if (s->chunk_max[c] < key_floor || !(best * d->flattest > NO_WEIGHT) ||
            (floor > 0.0f && sampler_exp2(best * d->scale) < floor)) {
            continue;
        }
        for (size_t i = c * SAMPLER_CHUNK; i < chunk_end(s, c); i++) {
            uint32_t key = sampler_key(d->z[i]);
            float below = d->z[i] - d->z_max;
            if (key >= key_floor && below * d->flattest > NO_WEIGHT) { /* not -infinity: that times 0 is NaN */
                float e = sampler_exp2(below * d->scale);
                s->kept[n] = (struct candidate){(int32_t)i, key, sampler_weight(e)};
                n += e >= floor;
            }
        }
    }
    d->n = n;
}

/*
 * Candidates: the tokens whose relative probability reaches the floor, which is >= 2^-40 (a weight of 1). s->e and
 * s->chunk_sum filled; returns their total.
 */
static uint64_t gather_weights(struct draw *d, float floor) {
    struct sampler *s = d->s;
    uint64_t total = 0, weight_floor = sampler_weight(floor);
    size_t n = 0;
    for (size_t c = 0; c < sampler_n_chunks(s->vocab_size); c++) {
        size_t first = c * SAMPLER_CHUNK;
        uint64_t mask = s->chunk_sum[c] < weight_floor ? 0 : sampler_mask(s->e + first, chunk_end(s, c) - first, floor);
        for (; mask; mask &= mask - 1) {
            size_t i = first + (size_t)__builtin_ctzll(mask);
            uint64_t weight = sampler_weight(s->e[i]);
            s->kept[n++] = (struct candidate){(int32_t)i, sampler_key(d->z[i]), weight};
            total += weight;
        }
    }
    d->n = n;
    return total;
}

/* top_p alone: the tokens above a floor that sinks until they hold `want`. */
static void gather_mass(struct draw *d, uint64_t want) {
    float floor = 0x1p-4f;
    while (gather_weights(d, floor) < want && floor > 0x1p-40f) {
        floor *= floor > 0x1p-8f ? 0x1p-4f : 0x1p-2f;
    }
}

/* ---- stages on candidates ---- */

static void keep_best(struct draw *d, size_t min_count, size_t max_count, uint64_t mass) {
    d->n = sampler_keep_best(d->s, d->n, (struct wanted){min_count, max_count, mass});
}

static void top_p(struct draw *d) {
    keep_best(d, min_keep(d), d->n, share(sampler_total_weight(d->s->kept, d->n), d->p->top_p));
}

static void min_p(struct draw *d) {
    struct candidate *c = d->s->kept;
    uint64_t floor = sampler_weight(d->p->min_p);
    size_t reach = 0;
    for (size_t i = 0; i < d->n; i++) {
        reach += c[i].weight >= floor;
    }
    if (reach < min_keep(d)) {
        keep_best(d, 1, min_keep(d), UINT64_MAX);
        return;
    }
    size_t kept = 0;
    for (size_t i = 0; i < d->n; i++) {
        if (c[i].weight >= floor) {
            c[kept++] = c[i];
        }
    }
    d->n = kept;
}

static float lowest_of_sigma(const struct draw *d, double deviation) {
    return (float)((double)d->z_max - (double)d->p->top_n_sigma * deviation);
}

/* Of what is left, as llama.cpp does; gather_first does it when that is everything. */
static void top_n_sigma(struct draw *d) {
    struct candidate *c = d->s->kept;
    double sum = 0, squares = 0;
    for (size_t i = 0; i < d->n; i++) {
        sum += (double)sampler_float_of_key(c[i].key);
    }
    for (size_t i = 0; i < d->n; i++) {
        double x = (double)sampler_float_of_key(c[i].key) - sum / (double)d->n;
        squares += x * x;
    }
    float lowest = lowest_of_sigma(d, sqrt(squares / (double)d->n));
    size_t kept = 0;
    for (size_t i = 0; i < d->n; i++) {
        if (sampler_float_of_key(c[i].key) >= lowest) {
            c[kept++] = c[i];
        }
    }
    d->n = kept;
}

/* The mean of log2(p / p_best) over the candidates, each by its probability. */
static double mean_log2(const struct draw *d, uint64_t total) {
    const struct candidate *c = d->s->kept;
    double sum = 0;
    for (size_t i = 0; i < d->n; i++) {
        float x = (sampler_float_of_key(c[i].key) - d->z_max) * d->scale;
        sum += (double)c[i].weight * (double)sampler_clamp(x);
    }
    return sum / (double)total;
}

static float typical_score(const struct draw *d, float z, double mean) {
    return (float)fabs((double)((z - d->z_max) * d->scale) - mean);
}

/*
 * Those whose -log p is nearest to the entropy. Both are log2 of the sum of the weights and something more, so what is
 * compared is log2(p / p_best) and its mean.
 */
static void keep_typical(struct draw *d, double mean, uint64_t total) {
    struct candidate *c = d->s->kept;
    for (size_t i = 0; i < d->n; i++) {
        float z = sampler_float_of_key(c[i].key);
        d->s->e[c[i].id] = z; /* its key comes back from there */
        c[i].key = ~sampler_key(typical_score(d, z, mean));
    }
    keep_best(d, min_keep(d), d->n, share(total, d->p->typical_p));
    for (size_t i = 0; i < d->n; i++) {
        c[i].key = sampler_key(d->s->e[c[i].id]);
    }
    weigh(d);
}

static void typical_p(struct draw *d) {
    uint64_t total = sampler_total_weight(d->s->kept, d->n);
    keep_typical(d, mean_log2(d, total), total);
}

static bool xtc_acts(const struct draw *d) {
    uint64_t random = sampler_random(d->in->seed, d->in->position, d->p->choice, SAMPLER_STREAM_XTC);
    return (double)(random >> 11) * 0x1p-53 < (double)d->p->xtc_probability;
}

static void xtc(struct draw *d) {
    struct candidate *c = d->s->kept;
    if (!xtc_acts(d)) {
        return;
    }
    double floor = (double)sampler_total_weight(c, d->n) * (double)d->p->xtc_threshold;
    size_t above = 0, least = 0, kept = 0;
    for (size_t i = 0; i < d->n; i++) {
        if ((double)c[i].weight >= floor) {
            least = above == 0 || c[i].key <= c[least].key ? i : least; /* of equal ones the one with the highest id */
            above++;
        }
    }
    if (above < 2 || d->n - (above - 1) < min_keep(d)) {
        return;
    }
    for (size_t i = 0; i < d->n; i++) {
        if ((double)c[i].weight < floor || i == least) {
            c[kept++] = c[i];
        }
    }
    d->n = kept;
    weigh(d);
}

/* Between t - range and t + range, by the entropy as a share of the most that `count` tokens could have. */
static float dynamic_temperature(const struct sampling *p, double entropy, size_t count) {
    double low = (double)p->temperature - (double)p->dynatemp_range;
    double high = (double)p->temperature + (double)p->dynatemp_range;
    low = low > 0 ? low : 0;
    if (count < 2) {
        return (float)high;
    }
    double normal = entropy / sampler_log2((double)count), power = p->dynatemp_exponent == 0.0f ? 1 : 0;
    normal = normal < 1 ? normal : 1;
    if (normal > 1e-12) {
        double exponent = (double)p->dynatemp_exponent * sampler_log2(normal);
        power = exponent > -1000 ? sampler_exp2_double(exponent) : 0;
    }
    return (float)(low + (high - low) * power);
}

static void temperature(struct draw *d) {
    float t = d->p->temperature;
    if (d->p->dynatemp_range > 0.0f) {
        uint64_t total = sampler_total_weight(d->s->kept, d->n);
        double entropy = sampler_log2((double)total / (double)SAMPLER_WEIGHT_ONE) - mean_log2(d, total);
        t = dynamic_temperature(d->p, entropy, d->n);
    }
    set_temperature(d, t);
    weigh(d);
}

/* Penalties that come behind a filter or the temperature: on the logits as they are by then. */
static void change_logits(struct draw *d, enum sampler_stage stage) {
    struct candidate *c = d->s->kept;
    float *z = d->s->z; /* only the candidates' are looked at from here on */
    for (size_t i = 0; i < d->n; i++) {
        z[c[i].id] = sampler_float_of_key(c[i].key) / d->temperature;
    }
    if (stage == SAMPLER_PENALTIES) {
        sampler_penalise(d->s, d->in, z);
    } else {
        sampler_dry(d->s, d->in, z);
    }
    for (size_t i = 0; i < d->n; i++) {
        c[i].key = sampler_key(z[c[i].id]);
    }
    set_temperature(d, 1);
    weigh(d);
}

static void run_stage(struct draw *d, enum sampler_stage stage) {
    switch (stage) {
    case SAMPLER_PENALTIES:
    case SAMPLER_DRY:
        change_logits(d, stage);
        break;
    case SAMPLER_TOP_N_SIGMA:
        top_n_sigma(d);
        break;
    case SAMPLER_TOP_K:
        keep_best(d, 1, (size_t)d->p->top_k, UINT64_MAX);
        break;
    case SAMPLER_TYPICAL_P:
        typical_p(d);
        break;
    case SAMPLER_TOP_P:
        top_p(d);
        break;
    case SAMPLER_MIN_P:
        min_p(d);
        break;
    case SAMPLER_XTC:
        xtc(d);
        break;
    case SAMPLER_TEMPERATURE:
        temperature(d);
        break;
    case SAMPLER_STAGES:
        break;
    }
}

/* ---- the first ones, on the whole vocabulary ---- */

static uint64_t exp_all(struct draw *d) {
    return sampler_exp(d->s->e, d->z, d->s->vocab_size, d->z_max, d->scale, d->s->chunk_sum);
}

static void temperature_of_all(struct draw *d) {
    float t = d->p->temperature;
    if (d->p->dynatemp_range > 0.0f) {
        size_t count = 0;
        for (size_t i = 0; i < d->s->vocab_size; i++) {
            count += d->z[i] > -INFINITY;
        }
        double total = (double)exp_all(d);
        double moment = (double)sampler_moment(d->s->e, d->z, d->s->vocab_size, d->z_max, d->scale);
        double entropy = sampler_log2(total / (double)SAMPLER_WEIGHT_ONE) + moment / total;
        t = dynamic_temperature(d->p, entropy, count);
    }
    set_temperature(d, t);
}

/* As xtc, by taking logits out of all. */
static void xtc_of_all(struct draw *d) {
    struct sampler *s = d->s;
    size_t above = 0, least = 0, n_chunks = sampler_n_chunks(s->vocab_size);
    if (!xtc_acts(d)) {
        return;
    }
    double floor = (double)exp_all(d) * (double)d->p->xtc_threshold;
    for (size_t c = 0; c < n_chunks; c++) {
        for (size_t i = c * SAMPLER_CHUNK; (double)s->chunk_sum[c] >= floor && i < chunk_end(s, c); i++) {
            if ((double)sampler_weight(s->e[i]) >= floor && d->z[i] > -INFINITY) {
                least = above == 0 || sampler_key(d->z[i]) <= sampler_key(d->z[least]) ? i : least;
                above++;
            }
        }
    }
    if (above < 2) {
        return;
    }
    if (d->z != s->z) {
        memcpy(s->z, d->z, s->vocab_size * sizeof *s->z);
        d->z = s->z;
    }
    for (size_t c = 0; c < n_chunks; c++) {
        for (size_t i = c * SAMPLER_CHUNK; (double)s->chunk_sum[c] >= floor && i < chunk_end(s, c); i++) {
            if ((double)sampler_weight(s->e[i]) >= floor && i != least) {
                s->z[i] = -INFINITY;
            }
        }
    }
    bool finite;
    d->z_max = sampler_float_of_key(sampler_max(s->z, s->vocab_size, s->chunk_max, &finite));
}

/*
 * typ_p of all: only those no further from the mean than a distance within which there are enough. What lies far below
 * it is most of the vocabulary.
 */
static void typical_of_all(struct draw *d) {
    struct sampler *s = d->s;
    uint64_t total = exp_all(d), want = share(total, d->p->typical_p);
    double mean = -(double)sampler_moment(s->e, d->z, s->vocab_size, d->z_max, d->scale) / (double)total;
    for (double distance = 2;; distance *= 2) {
        double lowest = mean - distance - 0.01; /* with room for rounding */
        bool all = lowest < -40;
        gather_weights(d, all ? 0x1p-40f : (float)sampler_exp2_double(lowest));
        uint64_t mass = 0;
        size_t count = 0;
        for (size_t i = 0; i < d->n; i++) {
            if ((double)typical_score(d, sampler_float_of_key(s->kept[i].key), mean) <= distance) {
                mass += s->kept[i].weight;
                count++;
            }
        }
        if (all || (mass >= want && count >= min_keep(d))) {
            break;
        }
    }
    keep_typical(d, mean, total);
}

/*
 * The first filter finds the candidates. Filters that cut off below some logit come in any order to the same, so
 * several of them in a row are one; returns how many stages this did.
 */
static size_t gather_first(struct draw *d, const uint8_t *stages, size_t n) {
    struct sampler *s = d->s;
    const struct sampling *p = d->p;
    uint32_t key_floor = 0;
    float floor = 0;
    size_t done = 0, rank = 0;
    for (; done < n; done++) {
        if (stages[done] == SAMPLER_TOP_K) {
            rank = (size_t)p->top_k;
        } else if (stages[done] == SAMPLER_MIN_P && min_keep(d) == 1) {
            floor = p->min_p;
        } else if (stages[done] == SAMPLER_TOP_N_SIGMA && done == 0) {
            double mean, deviation;
            sampler_spread(d->z, s->vocab_size, &mean, &deviation);
            key_floor = sampler_key(lowest_of_sigma(d, deviation));
        } else {
            break;
        }
    }
    if (done == 0 && n > 0 && stages[0] == SAMPLER_TOP_P && min_keep(d) == 1) {
        uint64_t want = share(exp_all(d), p->top_p);
        gather_mass(d, want);
        keep_best(d, 1, d->n, want);
        return 1;
    }
    if (done == 0 && n > 0 && stages[0] == SAMPLER_TYPICAL_P) {
        typical_of_all(d);
        return 1;
    }
    if (rank > 0) {
        uint32_t reached = key_reached_by(s, rank);
        key_floor = reached > key_floor ? reached : key_floor;
    }
    gather(d, key_floor, floor);
    if (rank > 0 && rank < d->n) {
        keep_best(d, 1, rank, UINT64_MAX);
    }
    return done;
}

/* The smallest scale that stages [from, plan->n) may come to. */
static float flattest_scale(const struct draw *d, const struct sampler_plan *plan, size_t from) {
    float flattest = d->scale;
    for (size_t i = from; i < plan->n; i++) {
        if (works_on_logits(plan->stages[i]) ||
            (plan->stages[i] == SAMPLER_TEMPERATURE && d->p->dynatemp_range > 0.0f)) {
            return 0; /* the unlikeliest count too */
        }
        if (plan->stages[i] == SAMPLER_TEMPERATURE && d->p->temperature > 1.0f) {
            flattest = SAMPLER_LOG2E / d->p->temperature;
        }
    }
    return flattest;
}

/* ---- the choice ---- */

static int32_t draw_all(struct draw *d, uint64_t random) {
    struct sampler *s = d->s;
    uint64_t target = sampler_scale_random(random, exp_all(d)), sum = 0;
    size_t c = 0;
    while (sum + s->chunk_sum[c] <= target) {
        sum += s->chunk_sum[c++];
    }
    size_t i = c * SAMPLER_CHUNK;
    while (i + 1 < chunk_end(s, c) && (sum += sampler_weight(s->e[i])) <= target) {
        i++;
    }
    return (int32_t)i;
}

static const struct candidate *draw_kept(const struct draw *d, uint64_t random) {
    const struct candidate *c = d->s->kept;
    uint64_t target = sampler_scale_random(random, sampler_total_weight(c, d->n)), sum = 0;
    size_t i = 0;
    while (i + 1 < d->n && (sum += c[i].weight) <= target) {
        i++;
    }
    return &c[i];
}

/* The logits of the best candidates, best first; how many. */
static size_t best_logits(struct draw *d, float best[MIROSTAT_BEST]) {
    size_t n = 0, want = d->n < MIROSTAT_BEST ? d->n : MIROSTAT_BEST;
    struct edge edge = sampler_find_edge(d->s, d->n, (struct wanted){1, want, UINT64_MAX});
    for (size_t i = 0; i < d->n; i++) {
        const struct candidate *c = &d->s->kept[i];
        if (c->key > edge.key) {
            float z = sampler_float_of_key(c->key);
            size_t at = n++;
            while (at > 0 && best[at - 1] < z) {
                best[at] = best[at - 1];
                at--;
            }
            best[at] = z;
        }
    }
    while (n < want) {
        best[n++] = sampler_float_of_key(edge.key);
    }
    return n;
}

/*
 * Algorithm 1 of the paper: the exponent s of Zipf's law from the best tokens, and from it how many tokens give a
 * surprise of mu: k = (e * 2^mu / (1 - N^-e))^(1 / s) with e = s - 1.
 */
static size_t mirostat_count(struct draw *d, double mu) {
    float best[MIROSTAT_BEST];
    size_t n = best_logits(d, best);
    double products = 0, squares = 0;
    for (size_t i = 0; i + 1 < n; i++) {
        double t = sampler_log2((double)(i + 2) / (double)(i + 1));
        products += t * ((double)best[i] - (double)best[i + 1]) * (double)d->scale;
        squares += t * t;
    }
    double s = squares > 0 ? products / squares : 0, e = s - 1, bits = sampler_log2((double)d->s->vocab_size);
    if (!(s > 1e-6)) {
        return d->s->vocab_size; /* all alike */
    }
    double ratio = 1 / (bits * 0.69314718055994531); /* the limit for e -> 0 */
    if (fabs(e) > 1e-6) {
        double power = -e * bits;
        ratio = e / (1 - sampler_exp2_double(power > -1000 ? power : -1000));
    }
    double log2_k = (sampler_log2(ratio) + mu) / s;
    double k = log2_k < 40 ? sampler_exp2_double(log2_k > -1000 ? log2_k : -1000) : 1e12;
    return k < 1 ? 1 : k < (double)d->s->vocab_size ? (size_t)k : d->s->vocab_size;
}

/* Algorithm 2: those with a surprise of at most mu have this share of the weight of all. */
static double mirostat_share(double mu) {
    double limit = mu < 1000 ? mu : 1000;
    return sampler_exp2_double(limit > -1000 ? -limit : 1000);
}

static void mirostat_cut(struct draw *d, double floor) {
    struct candidate *c = d->s->kept;
    size_t kept = 0, best = 0;
    for (size_t i = 0; i < d->n; i++) {
        best = c[i].key > c[best].key ? i : best;
    }
    struct candidate first = c[best];
    for (size_t i = 0; i < d->n; i++) {
        if ((double)c[i].weight >= floor) {
            c[kept++] = c[i];
        }
    }
    if (kept == 0) {
        c[kept++] = first;
    }
    d->n = kept;
}

/* From all tokens (nothing was gathered yet), or from the candidates there are. */
static void mirostat_keep(struct draw *d, bool from_all, double mu) {
    if (d->p->mirostat == 1) {
        if (from_all) {
            gather(d, key_reached_by(d->s, MIROSTAT_BEST), 0);
        }
        size_t k = mirostat_count(d, mu);
        if (from_all && k > d->n) {
            gather(d, key_reached_by(d->s, k), 0);
        }
        if (k < d->n) {
            keep_best(d, 1, k, UINT64_MAX);
        }
    } else if (from_all) {
        double floor = (double)exp_all(d) * mirostat_share(mu), e = floor / (double)SAMPLER_WEIGHT_ONE;
        e = e < 1 ? e * 0.999 : 0.999; /* with room for rounding */
        gather_weights(d, e > 0x1p-40 ? (float)e : 0x1p-40f);
        mirostat_cut(d, floor);
    } else {
        mirostat_cut(d, (double)sampler_total_weight(d->s->kept, d->n) * mirostat_share(mu));
    }
}

static int32_t draw_mirostat(struct draw *d, uint64_t random, struct sampler_state *state) {
    const struct candidate *chosen = draw_kept(d, random);
    double total = (double)sampler_total_weight(d->s->kept, d->n);
    double surprise = sampler_log2(total) - sampler_log2((double)chosen->weight);
    state->mirostat_mu -= (double)d->p->mirostat_eta * (surprise - (double)d->p->mirostat_tau);
    return chosen->id;
}

int32_t sampler_choose(struct sampler *s, const struct sample_input *in, const struct sampler_plan *plan,
                       const float *z, uint32_t max_key, struct sampler_state *state) {
    const struct sampling *p = in->sampling;
    struct draw d = {.s = s, .in = in, .p = p, .z = z, .z_max = sampler_float_of_key(max_key)};
    uint64_t random = sampler_random(in->seed, in->position, p->choice, SAMPLER_STREAM_CHOICE);
    size_t at = plan->n_leading;
    s->n_kept = 0;
    set_temperature(&d, 1);
    for (; at < plan->n; at++) {
        if (plan->stages[at] == SAMPLER_TEMPERATURE) {
            temperature_of_all(&d);
        } else if (plan->stages[at] == SAMPLER_XTC && min_keep(&d) == 1) {
            xtc_of_all(&d);
        } else {
            break;
        }
    }
    d.flattest = flattest_scale(&d, plan, at);
    if (at == plan->n && p->mirostat) {
        mirostat_keep(&d, true, state->mirostat_mu);
        s->n_kept = d.n;
        return draw_mirostat(&d, random, state);
    }
    if (at == plan->n) {
        return draw_all(&d, random);
    }
    at += gather_first(&d, plan->stages + at, plan->n - at);
    for (; at < plan->n; at++) {
        run_stage(&d, plan->stages[at]);
    }
    if (p->mirostat) {
        mirostat_keep(&d, false, state->mirostat_mu);
    }
    s->n_kept = d.n;
    return p->mirostat ? draw_mirostat(&d, random, state) : draw_kept(&d, random)->id;
}
