/* What each stage keeps, and how likely, beside llama.cpp and transformers (make_sampler_cases.py). */
#include "sampler.h"
#include <inferd/sampler_math.h>

#include <cjson/cJSON.h>
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 100

static cJSON *load(void) {
    const char *path = getenv("INFERD_SAMPLER_CASES"); /* set by meson */
    FILE *f = path ? fopen(path, "rb") : NULL;
    cr_assert(f, "INFERD_SAMPLER_CASES names no file");
    fseek(f, 0, SEEK_END);
    size_t n = (size_t)ftell(f);
    char *text = calloc(n + 1, 1);
    rewind(f);
    cr_assert_eq(fread(text, 1, n, f), n);
    fclose(f);
    cJSON *tree = cJSON_Parse(text);
    cr_assert(tree);
    free(text);
    return tree;
}

static const cJSON *get(const cJSON *object, const char *name) {
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

/* The fields of a case's settings into *p; false for a name that is not known here. */
static bool set(struct sampling *p, const cJSON *settings) {
    const struct {
        const char *name;
        float *real;
        int32_t *whole;
    } fields[] = {
        {"temperature", &p->temperature, NULL},
        {"top_p", &p->top_p, NULL},
        {"typical_p", &p->typical_p, NULL},
        {"min_p", &p->min_p, NULL},
        {"top_n_sigma", &p->top_n_sigma, NULL},
        {"xtc_probability", &p->xtc_probability, NULL},
        {"xtc_threshold", &p->xtc_threshold, NULL},
        {"dynatemp_range", &p->dynatemp_range, NULL},
        {"dynatemp_exponent", &p->dynatemp_exponent, NULL},
        {"repetition_penalty", &p->repetition_penalty, NULL},
        {"frequency_penalty", &p->frequency_penalty, NULL},
        {"presence_penalty", &p->presence_penalty, NULL},
        {"dry_multiplier", &p->dry_multiplier, NULL},
        {"dry_base", &p->dry_base, NULL},
        {"mirostat_tau", &p->mirostat_tau, NULL},
        {"mirostat_eta", &p->mirostat_eta, NULL},
        {"top_k", NULL, &p->top_k},
        {"min_keep", NULL, &p->min_keep},
        {"repeat_last_n", NULL, &p->repeat_last_n},
        {"dry_allowed_length", NULL, &p->dry_allowed_length},
        {"dry_penalty_last_n", NULL, &p->dry_penalty_last_n},
        {"mirostat", NULL, &p->mirostat},
    };
    struct error err;
    const cJSON *v;
    cJSON_ArrayForEach(v, settings) {
        bool known = strcmp(v->string, "samplers") == 0;
        if (known && engine_sampler_order(v->valuestring, strlen(v->valuestring), &p->order, &err) < 0) {
            return false;
        }
        for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
            if (strcmp(v->string, fields[i].name) == 0) {
                known = true;
                if (fields[i].real) {
                    *fields[i].real = (float)v->valuedouble;
                } else {
                    *fields[i].whole = (int32_t)v->valuedouble;
                }
            }
        }
        if (!known) {
            return false;
        }
    }
    return true;
}

/* The distribution that the last choice was drawn from. */
static void distribution(const struct sampler *s, size_t n, double *p) {
    double total = 0;
    for (size_t i = 0; i < n; i++) {
        p[i] = s->n_kept == 0 ? (double)sampler_weight(s->e[i]) : 0;
    }
    for (size_t i = 0; i < s->n_kept; i++) {
        p[s->kept[i].id] = (double)s->kept[i].weight;
    }
    for (size_t i = 0; i < n; i++) {
        total += p[i];
    }
    for (size_t i = 0; i < n; i++) {
        p[i] /= total;
    }
}

static void compare(const cJSON *c, const struct sampler *s, size_t n) {
    double p[MOST], far = 0;
    size_t kept = 0;
    const char *name = get(c, "name")->valuestring;
    distribution(s, n, p);
    for (size_t i = 0; i < n; i++) {
        char id[16];
        snprintf(id, sizeof id, "%zu", i);
        const cJSON *want = get(get(c, "probabilities"), id);
        double expected = want ? want->valuedouble : 0;
        kept += want != NULL;
        /* less than 2^-40 of the best is nothing here */
        cr_assert(want || p[i] == 0, "%s: token %zu has %g and should be gone", name, i, p[i]);
        cr_assert(p[i] > 0 || expected < 1e-11, "%s: token %zu is gone and should have %g", name, i, expected);
        cr_assert(fabs(p[i] - expected) < 1e-9 + 2e-5 * expected, "%s: token %zu has %.8g, expected %.8g", name, i,
                  p[i], expected);
        far = fabs(p[i] - expected) > far ? fabs(p[i] - expected) : far;
    }
    cr_assert(kept > 0);
}

/* mu after the choice: by the surprise of the token that was chosen here. */
static void check_mirostat(const cJSON *c, const struct sample_input *in, const struct sample *out) {
    char id[16];
    snprintf(id, sizeof id, "%d", out->token);
    double surprise = -log2(get(get(c, "probabilities"), id)->valuedouble);
    double mu =
        in->state.mirostat_mu - (double)in->sampling->mirostat_eta * (surprise - (double)in->sampling->mirostat_tau);
    cr_assert_float_eq(out->state.mirostat_mu, mu, 1e-4, "%s: mu %g, expected %g", get(c, "name")->valuestring,
                       out->state.mirostat_mu, mu);
}

Test(sampler_reference, every_case) {
    cJSON *tree = load();
    float logits[8][MOST];
    size_t n = 0, families = 0, cases = 0;
    const cJSON *row, *c, *v;
    cJSON_ArrayForEach(row, get(tree, "logits")) {
        n = 0;
        cJSON_ArrayForEach(v, row) {
            logits[families][n++] = (float)v->valuedouble;
        }
        families++;
    }
    cr_assert(families > 0 && n == MOST);
    struct sampler s;
    struct error err;
    cr_assert_eq(sampler_init(&s, n, MOST, &err), 0);
    cJSON_ArrayForEach(c, get(tree, "cases")) {
        struct sampling p;
        int32_t tokens[MOST];
        struct sample out;
        struct sample_input in = {.logits = logits[get(c, "logits")->valueint], .sampling = &p, .tokens = tokens};
        engine_sampling_default(&p);
        cr_assert(set(&p, get(c, "settings")), "%s", get(c, "name")->valuestring);
        cJSON_ArrayForEach(v, get(c, "tokens")) {
            tokens[in.n_tokens++] = v->valueint;
        }
        in.state = sampler_state_first(&p);
        if (get(c, "mu")) {
            in.state.mirostat_mu = get(c, "mu")->valuedouble;
        }
        for (uint64_t seed = 0; seed < 3; seed++) {
            in.seed = seed;
            cr_assert_eq(sampler_sample(&s, &in, &out), SAMPLE_OK);
            compare(c, &s, n);
            if (p.mirostat) {
                check_mirostat(c, &in, &out);
            }
        }
        cases++;
    }
    cr_assert_gt(cases, 500);
    sampler_destroy(&s);
    cJSON_Delete(tree);
}
