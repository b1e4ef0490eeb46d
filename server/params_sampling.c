/* The fields of a request that tell how tokens are chosen and have a shape of their own, and where it ends. */
#include "params_internal.h"

#include <inferd/json.h>
#include <inferd/text.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int add_stop(struct request_params *p, const cJSON *s, struct error *err) {
    if (!cJSON_IsString(s) || !s->valuestring[0]) {
        return params_bad(err, "stop", "must be a string or a list of strings, none of them empty");
    }
    size_t len = strlen(s->valuestring);
    if (len > ENGINE_MAX_STOP_LEN) {
        return error_set_param(err, ERROR_INVALID, "stop", "stop must have strings of at most %d bytes",
                               ENGINE_MAX_STOP_LEN);
    }
    if (p->n_stop == PARAMS_MAX_STOP) {
        return error_set_param(err, ERROR_INVALID, "stop", "stop must have at most %d strings", PARAMS_MAX_STOP);
    }
    p->stop[p->n_stop++] = (struct meta_stop){s->valuestring, len};
    return 0;
}

int params_stop(struct parse *ps, const struct field *f, const cJSON *value, struct error *err) {
    (void)f;
    if (!cJSON_IsArray(value)) {
        return add_stop(ps->p, value, err);
    }
    const cJSON *s;
    cJSON_ArrayForEach(s, value) {
        if (add_stop(ps->p, s, err)) {
            return -1;
        }
    }
    return 0;
}

int params_stop_ids(struct parse *ps, const struct field *f, const cJSON *value, struct error *err) {
    int32_t *ids = NULL;
    size_t n = 0;
    if (!cJSON_IsArray(value)) {
        return params_bad(err, f->name, "must be a list of token ids");
    }
    if (params_id_array(ps, f->name, value, &ids, &n, err)) {
        return -1;
    }
    if (n > ENGINE_MAX_STOP_IDS) {
        free(ids);
        return error_set_param(err, ERROR_INVALID, f->name, "%s must have at most %d ids", f->name,
                               ENGINE_MAX_STOP_IDS);
    }
    if (n) {
        memcpy(ps->p->stop_ids, ids, n * sizeof *ids);
    }
    ps->p->n_stop_ids = n;
    free(ids);
    return 0;
}

static int bias_entry(const struct parse *ps, const cJSON *v, struct logit_bias *out, struct error *err) {
    int64_t id;
    if (v->string[0] == '-' || !json_raw_int(v->string, strlen(v->string), &id) || (uint64_t)id >= ps->limits->vocab_size) {
        return error_set_param(err, ERROR_INVALID, "logit_bias",
                               "logit_bias must have token ids from 0 to %zu as names", ps->limits->vocab_size - 1);
    }
    if (!cJSON_IsNumber(v) || !(v->valuedouble >= -100 && v->valuedouble <= 100)) {
        return params_bad(err, "logit_bias", "must have numbers from -100 to 100 as values");
    }
    *out = (struct logit_bias){(int32_t)id, (float)v->valuedouble};
    return 0;
}

int params_logit_bias(struct parse *ps, const struct field *f, const cJSON *value, struct error *err) {
    size_t n = cJSON_IsObject(value) ? (size_t)cJSON_GetArraySize(value) : 0;
    if (!cJSON_IsObject(value)) {
        return params_bad(err, f->name, "must be an object");
    }
    if (n > ENGINE_MAX_LOGIT_BIAS) {
        return error_set_param(err, ERROR_INVALID, f->name, "logit_bias must have at most %d tokens",
                               ENGINE_MAX_LOGIT_BIAS);
    }
    if (n == 0) {
        return 0;
    }
    ps->p->logit_bias = calloc(n, sizeof *ps->p->logit_bias);
    if (!ps->p->logit_bias) {
        return error_memory(err);
    }
    const cJSON *v;
    cJSON_ArrayForEach(v, value) {
        if (bias_entry(ps, v, &ps->p->logit_bias[ps->p->n_logit_bias], err)) {
            return -1;
        }
        ps->p->n_logit_bias++;
    }
    return 0;
}

/* A list of names, or one string with ';' between them. */
int params_samplers(struct parse *ps, const struct field *f, const cJSON *value, struct error *err) {
    static const char shape[] = "must be a list of names, or one string with ; between them";
    char names[512];
    size_t len = 0;
    if (cJSON_IsString(value)) {
        return engine_sampler_order(value->valuestring, strlen(value->valuestring), &ps->p->sampling.order, err);
    }
    if (!cJSON_IsArray(value)) {
        return params_bad(err, f->name, shape);
    }
    const cJSON *v;
    cJSON_ArrayForEach(v, value) {
        size_t n = cJSON_IsString(v) ? strlen(v->valuestring) : 0;
        if (n == 0 || strpbrk(v->valuestring, ";, ")) {
            return params_bad(err, f->name, shape);
        }
        if (n + 1 > sizeof names - len) {
            return params_bad(err, f->name, "must have each name at most once");
        }
        memcpy(names + len, v->valuestring, n);
        len += n;
        names[len++] = ';';
    }
    return engine_sampler_order(names, len, &ps->p->sampling.order, err);
}

int params_dry_breakers(struct parse *ps, const struct field *f, const cJSON *value, struct error *err) {
    struct request_params *p = ps->p;
    if (!cJSON_IsArray(value)) {
        return params_bad(err, f->name, "must be a list of strings");
    }
    p->sampling.n_dry_breakers = 0;
    p->dry_breakers = calloc(ENGINE_MAX_DRY_BREAKERS, sizeof *p->dry_breakers);
    if (!p->dry_breakers) {
        return error_memory(err);
    }
    const cJSON *v;
    cJSON_ArrayForEach(v, value) {
        size_t n = cJSON_IsString(v) ? strlen(v->valuestring) : 0;
        if (n == 0 || n > ENGINE_MAX_DRY_BREAKER_LEN) {
            return error_set_param(err, ERROR_INVALID, f->name, "%s must have strings of 1 to %d bytes only", f->name,
                                   ENGINE_MAX_DRY_BREAKER_LEN);
        }
        if (p->sampling.n_dry_breakers == ENGINE_MAX_DRY_BREAKERS) {
            return error_set_param(err, ERROR_INVALID, f->name, "%s must have at most %d strings", f->name,
                                   ENGINE_MAX_DRY_BREAKERS);
        }
        p->dry_breakers[p->sampling.n_dry_breakers++] = (struct meta_stop){v->valuestring, n};
    }
    p->sampling.dry_breakers = p->dry_breakers;
    return 0;
}

int params_bad_words(struct parse *ps, const struct field *f, const cJSON *value, struct error *err) {
    size_t n = 0;
    if (!cJSON_IsArray(value)) {
        return params_bad(err, f->name, "must be a list of strings");
    }
    const cJSON *v;
    cJSON_ArrayForEach(v, value) {
        if (!cJSON_IsString(v) || v->valuestring[0] == '\0') {
            return params_bad(err, f->name, "must have strings that are not empty only");
        }
        if (strlen(v->valuestring) > PARAMS_MAX_BAD_WORD) {
            return error_set_param(err, ERROR_INVALID, f->name, "%s must have strings of at most %d bytes", f->name,
                                   PARAMS_MAX_BAD_WORD);
        }
        if (++n > PARAMS_MAX_BAD_WORDS) {
            return error_set_param(err, ERROR_INVALID, f->name, "%s must have at most %d strings", f->name,
                                   PARAMS_MAX_BAD_WORDS);
        }
    }
    ps->p->bad_words = value;
    return 0;
}

int params_allowed_ids(struct parse *ps, const struct field *f, const cJSON *value, struct error *err) {
    if (!cJSON_IsArray(value) || !value->child) {
        return params_bad(err, f->name, "must be a list of token ids that is not empty");
    }
    int32_t *ids;
    size_t n;
    if (params_id_array(ps, f->name, value, &ids, &n, err)) {
        return -1;
    }
    ps->p->allowed_ids = ids;
    ps->p->sampling.allowed_ids = ids;
    ps->p->sampling.n_allowed_ids = n;
    return 0;
}

int params_repetition(struct parse *ps, const struct field *f, const cJSON *value, struct error *err) {
    struct request_params *p = ps->p;
    const struct {
        const char *name, *param;
        uint32_t *to;
        double min;
    } parts[] = {
        {"max_pattern_size", "repetition_detection.max_pattern_size", &p->repetition_max_size, 0},
        {"min_pattern_size", "repetition_detection.min_pattern_size", &p->repetition_min_size, 0},
        {"min_count", "repetition_detection.min_count", &p->repetition_min_count, 0},
    };
    if (!cJSON_IsObject(value)) {
        return params_bad(err, f->name, "must be an object");
    }
    const cJSON *v;
    cJSON_ArrayForEach(v, value) {
        bool known = false;
        for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
            if (strcmp(v->string, parts[i].name) == 0) {
                known = true;
                double x = cJSON_IsNumber(v) ? v->valuedouble : -1;
                if (!(x >= parts[i].min && x <= ENGINE_MAX_PATTERN) || x != floor(x)) {
                    return error_set_param(err, ERROR_INVALID, parts[i].param, "%s must be an integer from 0 to %d",
                                           parts[i].param, ENGINE_MAX_PATTERN);
                }
                *parts[i].to = (uint32_t)x;
            }
        }
        if (!known && params_unknown_field(ps, f->name, err)) {
            return -1;
        }
    }
    if (p->repetition_max_size == 0) {
        return 0; /* off */
    }
    p->repetition_min_size = p->repetition_min_size ? p->repetition_min_size : 1;
    if (p->repetition_min_size > p->repetition_max_size) {
        return params_bad(err, parts[1].param, "must not be larger than max_pattern_size");
    }
    return p->repetition_min_count < 2 ? params_bad(err, parts[2].param, "must be 2 or more") : 0;
}

/* ---- bad words ---- */

static int add_bad_word(struct request_params *p, const struct tokens *ids, struct error *err) {
    if (ids->n > ENGINE_MAX_BAD_WORD_IDS) {
        return error_set_param(err, ERROR_INVALID, "bad_words", "bad_words must have words of at most %d tokens",
                               ENGINE_MAX_BAD_WORD_IDS);
    }
    if (ids->n > 0) {
        int32_t *copy = malloc(ids->n * sizeof *copy);
        if (!copy) {
            return error_memory(err);
        }
        memcpy(copy, ids->ids, ids->n * sizeof *copy);
        p->bad_sequences[p->sampling.n_bad_words++] = (struct token_sequence){copy, ids->n};
    }
    return 0;
}

/* A word is meant at the beginning of a text and behind a space; one of white space alone is meant as it stands. */
static int encode_bad_word(struct request_params *p, const struct text *text, const char *word, struct error *err) {
    struct tokens plain = {0}, spaced = {0};
    char with_space[PARAMS_MAX_BAD_WORD + 2] = " ";
    const char *stripped = word + strspn(word, " \t\r\n");
    bool blank = *stripped == '\0';
    word = blank ? word : stripped;
    strncat(with_space, word, PARAMS_MAX_BAD_WORD);
    int rc = text_encode(text, word, strlen(word), TEXT_PARSE_SPECIAL, &plain, err);
    rc = rc || blank ? rc : text_encode(text, with_space, strlen(with_space), TEXT_PARSE_SPECIAL, &spaced, err);
    rc = rc ? rc : add_bad_word(p, &plain, err);
    if (rc == 0 && plain.n > 0 && spaced.n == plain.n && spaced.ids[0] != plain.ids[0]) {
        rc = add_bad_word(p, &spaced, err);
    }
    tokens_free(&plain);
    tokens_free(&spaced);
    return rc;
}

int params_encode_bad_words(struct request_params *p, const struct text *text, struct error *err) {
    size_t n = p->bad_words ? (size_t)cJSON_GetArraySize(p->bad_words) : 0;
    if (n == 0) {
        return 0;
    }
    p->bad_sequences = calloc(2 * n, sizeof *p->bad_sequences);
    if (!p->bad_sequences) {
        return error_memory(err);
    }
    p->sampling.bad_words = p->bad_sequences;
    const cJSON *v;
    cJSON_ArrayForEach(v, p->bad_words) {
        if (encode_bad_word(p, text, v->valuestring, err)) {
            return -1;
        }
    }
    return 0;
}
