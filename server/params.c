#include "params_internal.h"

#include <inferd/json.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static field_fn parse_model, parse_prompt, parse_tokens, parse_seed, parse_n, parse_stream_options, parse_request_id,
    parse_only_true, parse_cache_salt;

#define GENERATE (IN_CHAT | IN_COMPLETIONS)
#define RENDER (IN_CHAT | IN_TOKENIZE)
#define AT(member) offsetof(struct request_params, member)
#define SAMPLING(member) offsetof(struct request_params, sampling.member)
#define INT_MAX_TOKENS 2147483647.0

/* Null counts as absent everywhere. Defaults: set_defaults. */
static const struct field fields[] = {
    {"model", GENERATE, CUSTOM, .parse = parse_model, .required = true},
    {"model", IN_TOKENIZE | IN_DETOKENIZE, CUSTOM, .parse = parse_model},
    {"messages", IN_CHAT, CUSTOM, .parse = params_messages, .required = true},
    {"messages", IN_TOKENIZE, CUSTOM, .parse = params_messages},
    {"prompt", IN_COMPLETIONS, CUSTOM, .parse = parse_prompt, .required = true},
    {"prompt", IN_TOKENIZE, CUSTOM, .parse = parse_prompt},
    {"tokens", IN_DETOKENIZE, CUSTOM, .parse = parse_tokens, .required = true},

    {"n", GENERATE, CUSTOM, .parse = parse_n},
    {"max_completion_tokens", IN_CHAT, INTEGER, AT(max_completion_tokens), 1, INT_MAX_TOKENS},
    {"max_tokens", IN_CHAT, INTEGER, AT(max_tokens), 1, INT_MAX_TOKENS},
    {"max_tokens", IN_COMPLETIONS, INTEGER, AT(max_tokens), 0, INT_MAX_TOKENS}, /* 0: check_together */
    {"min_tokens", GENERATE, INTEGER, AT(min_tokens), 0, INT_MAX_TOKENS},
    {"temperature", GENERATE, NUMBER, AT(temperature), 0, 2},
    {"top_p", GENERATE, ABOVE, AT(top_p), 0, 1},
    {"top_k", GENERATE, INTEGER, AT(top_k), -1, INT_MAX_TOKENS},
    {"min_p", GENERATE, NUMBER, AT(min_p), 0, 1},
    {"presence_penalty", GENERATE, NUMBER, AT(presence_penalty), -2, 2},
    {"frequency_penalty", GENERATE, NUMBER, AT(frequency_penalty), -2, 2},
    {"repetition_penalty", GENERATE, NUMBER, AT(repetition_penalty), 1e-3, 100},
    {"repeat_penalty", GENERATE, NUMBER, AT(repetition_penalty), 1e-3, 100}, /* llama.cpp's name */
    {"repeat_last_n", GENERATE, INTEGER32, SAMPLING(repeat_last_n), -1, INT_MAX_TOKENS},
    {"typical_p", GENERATE, FLOAT_ABOVE, SAMPLING(typical_p), 0, 1},
    {"top_n_sigma", GENERATE, FLOAT, SAMPLING(top_n_sigma), -1, 100},
    {"xtc_probability", GENERATE, FLOAT, SAMPLING(xtc_probability), 0, 1},
    {"xtc_threshold", GENERATE, FLOAT, SAMPLING(xtc_threshold), 0, 1},
    {"dynatemp_range", GENERATE, FLOAT, SAMPLING(dynatemp_range), 0, 2},
    {"dynatemp_exponent", GENERATE, FLOAT, SAMPLING(dynatemp_exponent), 0, 100},
    {"dry_multiplier", GENERATE, FLOAT, SAMPLING(dry_multiplier), 0, 100},
    {"dry_base", GENERATE, FLOAT, SAMPLING(dry_base), 1, 100},
    {"dry_allowed_length", GENERATE, INTEGER32, SAMPLING(dry_allowed_length), 1, 1048576},
    {"dry_penalty_last_n", GENERATE, INTEGER32, SAMPLING(dry_penalty_last_n), -1, INT_MAX_TOKENS},
    {"dry_sequence_breakers", GENERATE, CUSTOM, .parse = params_dry_breakers},
    {"mirostat", GENERATE, INTEGER32, SAMPLING(mirostat), 0, 2},
    {"mirostat_tau", GENERATE, FLOAT, SAMPLING(mirostat_tau), 0, 100},
    {"mirostat_eta", GENERATE, FLOAT, SAMPLING(mirostat_eta), 0, 1},
    {"min_keep", GENERATE, INTEGER32, SAMPLING(min_keep), 0, 1048576},
    {"samplers", GENERATE, CUSTOM, .parse = params_samplers},
    {"bad_words", GENERATE, CUSTOM, .parse = params_bad_words},
    {"allowed_token_ids", GENERATE, CUSTOM, .parse = params_allowed_ids},
    {"repetition_detection", GENERATE, CUSTOM, .parse = params_repetition},
    {"seed", GENERATE, CUSTOM, .parse = parse_seed},
    {"stop", GENERATE, CUSTOM, .parse = params_stop},
    {"stop_token_ids", GENERATE, CUSTOM, .parse = params_stop_ids},
    {"logit_bias", GENERATE, CUSTOM, .parse = params_logit_bias},
    {"include_stop_str_in_output", GENERATE, BOOLEAN, AT(include_stop)},
    {"ignore_eos", GENERATE, BOOLEAN, AT(ignore_eos)},
    {"skip_special_tokens", GENERATE, BOOLEAN, AT(skip_special_tokens)},
    {"spaces_between_special_tokens", GENERATE, CUSTOM, .parse = parse_only_true},
    {"add_special_tokens", GENERATE | IN_TOKENIZE, BOOLEAN, AT(add_special_tokens)},
    {"add_generation_prompt", RENDER, BOOLEAN, AT(add_generation_prompt)},
    {"continue_final_message", RENDER, BOOLEAN, AT(continue_final_message)},
    {"chat_template_kwargs", RENDER, CUSTOM, .parse = params_template_kwargs},

    {"stream", GENERATE, BOOLEAN, AT(stream)},
    {"stream_options", GENERATE, CUSTOM, .parse = parse_stream_options},
    {"logprobs", IN_CHAT, BOOLEAN, AT(logprobs)},
    {"top_logprobs", IN_CHAT, INTEGER, AT(top_logprobs), 0, ENGINE_MAX_TOP_LOGPROBS},
    {"logprobs", IN_COMPLETIONS, INTEGER, AT(top_logprobs), 0, ENGINE_MAX_TOP_LOGPROBS},
    {"echo", IN_COMPLETIONS, BOOLEAN, AT(echo)},
    {"speculative_tokens", GENERATE, INTEGER, AT(speculative_tokens), 0, ENGINE_MAX_SPECULATIVE},
    {"prompt_logprobs", GENERATE, INTEGER, AT(prompt_logprobs), 0, ENGINE_MAX_TOP_LOGPROBS},
    {"return_token_strs", IN_TOKENIZE, BOOLEAN, AT(return_token_strs)},
    {"request_id", GENERATE, CUSTOM, .parse = parse_request_id},
    {"priority", GENERATE, INTEGER, AT(priority), -2147483648.0, 2147483647.0},
    {"timeout", GENERATE, ABOVE, AT(timeout), 0, PARAMS_MAX_TIMEOUT},
    {"cache_salt", GENERATE, CUSTOM, .parse = parse_cache_salt},

    {"response_format", GENERATE, CUSTOM, .parse = params_response_format},
    {"tools", RENDER, CUSTOM, .parse = params_tools},
    {"documents", RENDER, CUSTOM, .parse = params_documents},
    {"tool_choice", IN_CHAT, CUSTOM, .parse = params_tool_choice},
    {"modalities", IN_CHAT, CUSTOM, .parse = params_modalities},

    {"user", GENERATE, NO_EFFECT},
    {"metadata", GENERATE, NO_EFFECT},
    {"service_tier", GENERATE, NO_EFFECT},
    {"safety_identifier", GENERATE, NO_EFFECT},
    {"prompt_cache_key", GENERATE, NO_EFFECT},
    {"parallel_tool_calls", IN_CHAT, NO_EFFECT}, /* calls come as text, as many as the model writes */

    {"store", GENERATE, UNSUPPORTED},
    {"functions", IN_CHAT, UNSUPPORTED},
    {"function_call", IN_CHAT, UNSUPPORTED},
    {"reasoning_effort", IN_CHAT, UNSUPPORTED},
    {"verbosity", IN_CHAT, UNSUPPORTED},
    {"prediction", IN_CHAT, UNSUPPORTED},
    {"audio", IN_CHAT, UNSUPPORTED},
    {"web_search_options", IN_CHAT, UNSUPPORTED},
    {"suffix", IN_COMPLETIONS, UNSUPPORTED},
    {"best_of", IN_COMPLETIONS, UNSUPPORTED},
    {"chat_template", RENDER, UNSUPPORTED}, /* a client's template never runs */
    {"thinking_token_budget", GENERATE, UNSUPPORTED},
    {"structured_outputs", GENERATE, UNSUPPORTED},
    {"guided_json", GENERATE, UNSUPPORTED},
    {"guided_regex", GENERATE, UNSUPPORTED},
    {"guided_choice", GENERATE, UNSUPPORTED},
    {"guided_grammar", GENERATE, UNSUPPORTED},
    {"grammar", GENERATE, UNSUPPORTED},
    {"json_schema", GENERATE, UNSUPPORTED},
    {"regex", GENERATE, UNSUPPORTED},
    {"ebnf", GENERATE, UNSUPPORTED},
    {"prompt_embeds", GENERATE, UNSUPPORTED},
    {"logprob_token_ids", GENERATE, UNSUPPORTED},
    {"return_token_ids", GENERATE, UNSUPPORTED},
    {"return_tokens_as_token_ids", GENERATE, UNSUPPORTED},
    {"use_beam_search", GENERATE, UNSUPPORTED},
    {"length_penalty", GENERATE, UNSUPPORTED},
    {"truncate_prompt_tokens", GENERATE, UNSUPPORTED},
    {"logits_processors", GENERATE, UNSUPPORTED},
    {"kv_transfer_params", GENERATE, UNSUPPORTED},
    {"watermark", GENERATE, UNSUPPORTED},
};
#define N_FIELDS (sizeof fields / sizeof fields[0])

static void set_defaults(struct request_params *p, enum params_where where, const struct params_limits *limits) {
    *p = (struct request_params){
        .n = 1,
        .temperature = 1,
        .top_p = 1,
        .repetition_penalty = 1,
        .top_logprobs = -1,
        .prompt_logprobs = -1,
        .speculative_tokens = -1,
        .skip_special_tokens = true,
        .add_generation_prompt = true,
        .add_special_tokens = where != IN_CHAT, /* a chat template writes its own */
    };
    engine_sampling_default(&p->sampling);
    if (limits->samplers) {
        p->sampling.order = *limits->samplers;
    }
}

/* ---- errors -------------------------------------------------------------------------------------------------- */

int params_bad(struct error *err, const char *param, const char *reason) {
    return error_set_param(err, ERROR_INVALID, param, "%s %s", param, reason);
}

int params_unsupported(struct error *err, const char *param) {
    return error_set_param(err, ERROR_UNSUPPORTED, param, "%s is not supported by this server", param);
}

/* ---- plain kinds --------------------------------------------------------------------------------------------- */

static int bad_range(const struct field *f, struct error *err) {
    const char *article = f->kind == INTEGER || f->kind == INTEGER32 ? "an integer" : "a number";
    if (f->kind == ABOVE || f->kind == FLOAT_ABOVE) {
        return error_set_param(err, ERROR_INVALID, f->name, "%s must be %s above %.10g and at most %.10g", f->name,
                               article, f->min, f->max);
    }
    return error_set_param(err, ERROR_INVALID, f->name, "%s must be %s from %.10g to %.10g", f->name, article, f->min,
                           f->max);
}

/* A member's integer from the raw text: cJSON has it as a double. */
static bool raw_integer(const struct parse *ps, const char *name, const cJSON *value, int64_t *out) {
    const char *raw;
    size_t n;
    return cJSON_IsNumber(value) && json_member(ps->body, ps->len, name, &raw, &n) && json_raw_int(raw, n, out);
}

static int parse_integer(struct parse *ps, const struct field *f, const cJSON *value, struct error *err) {
    int64_t v;
    if (!raw_integer(ps, f->name, value, &v) || (double)v < f->min || (double)v > f->max) {
        return bad_range(f, err);
    }
    void *to = (char *)ps->p + f->offset;
    if (f->kind == INTEGER32) {
        *(int32_t *)to = (int32_t)v;
    } else {
        *(int64_t *)to = v;
    }
    return 0;
}

static int parse_number(struct parse *ps, const struct field *f, const cJSON *value, struct error *err) {
    double v = cJSON_IsNumber(value) ? value->valuedouble : NAN;
    /* the engine computes in float: above the minimum there, too */
    bool above_min = f->kind == ABOVE || f->kind == FLOAT_ABOVE ? (float)v > (float)f->min : v >= f->min;
    if (!above_min || !(v <= f->max)) {
        return bad_range(f, err);
    }
    void *to = (char *)ps->p + f->offset;
    if (f->kind == FLOAT || f->kind == FLOAT_ABOVE) {
        *(float *)to = (float)v;
    } else {
        *(double *)to = v;
    }
    return 0;
}

static int parse_field(struct parse *ps, const struct field *f, const cJSON *value, struct error *err) {
    char *to = (char *)ps->p + f->offset;
    switch (f->kind) {
    case INTEGER:
    case INTEGER32:
        return parse_integer(ps, f, value, err);
    case NUMBER:
    case ABOVE:
    case FLOAT:
    case FLOAT_ABOVE:
        return parse_number(ps, f, value, err);
    case BOOLEAN:
        if (!cJSON_IsBool(value)) {
            return params_bad(err, f->name, "must be true or false");
        }
        *(bool *)to = cJSON_IsTrue(value);
        return 0;
    case STRING:
        if (!cJSON_IsString(value)) {
            return params_bad(err, f->name, "must be a string");
        }
        *(const char **)(void *)to = value->valuestring;
        return 0;
    case CUSTOM:
        return f->parse(ps, f, value, err);
    case UNSUPPORTED:
        return cJSON_IsFalse(value) ? 0 : params_unsupported(err, f->name);
    case NO_EFFECT:
        break;
    }
    return 0;
}

/* ---- fields with a shape of their own ------------------------------------------------------------------------ */

static int parse_model(struct parse *ps, const struct field *f, const cJSON *value, struct error *err) {
    if (!cJSON_IsString(value)) {
        return params_bad(err, f->name, "must be a string");
    }
    for (size_t i = 0; i < ps->limits->n_models; i++) {
        if (strcmp(value->valuestring, ps->limits->models[i]) == 0) {
            ps->p->model = i;
            return 0;
        }
    }
    return error_set_param(err, ERROR_NOT_FOUND, f->name,
                           "The model does not exist; GET /v1/models names the one that does");
}

static int parse_n(struct parse *ps, const struct field *f, const cJSON *value, struct error *err) {
    struct field row = *f;
    row.kind = INTEGER;
    row.offset = AT(n);
    row.min = 1;
    row.max = (double)ps->limits->max_n;
    return parse_integer(ps, &row, value, err);
}

static int parse_seed(struct parse *ps, const struct field *f, const cJSON *value, struct error *err) {
    if (!raw_integer(ps, f->name, value, &ps->p->seed)) {
        return params_bad(err, f->name, "must be an integer of 64 bits");
    }
    ps->p->has_seed = true;
    return 0;
}

static int parse_request_id(struct parse *ps, const struct field *f, const cJSON *value, struct error *err) {
    if (!cJSON_IsString(value)) {
        return params_bad(err, f->name, "must be a string");
    }
    size_t n = strlen(value->valuestring);
    for (size_t i = 0; i < n; i++) {
        if (value->valuestring[i] <= 0x20 || value->valuestring[i] > 0x7e) {
            return params_bad(err, f->name, "must have visible ASCII characters only");
        }
    }
    if (n == 0 || n > 128) {
        return params_bad(err, f->name, "must have 1 to 128 characters");
    }
    ps->p->request_id = value->valuestring;
    return 0;
}

static int parse_cache_salt(struct parse *ps, const struct field *f, const cJSON *value, struct error *err) {
    if (!cJSON_IsString(value)) {
        return params_bad(err, f->name, "must be a string");
    }
    size_t n = strlen(value->valuestring);
    if (n == 0 || n > PARAMS_MAX_CACHE_SALT) {
        return error_set_param(err, ERROR_INVALID, f->name, "%s must have 1 to %d bytes", f->name,
                               PARAMS_MAX_CACHE_SALT);
    }
    ps->p->cache_salt = value->valuestring;
    return 0;
}

static int parse_only_true(struct parse *ps, const struct field *f, const cJSON *value, struct error *err) {
    (void)ps;
    if (!cJSON_IsBool(value)) {
        return params_bad(err, f->name, "must be true or false");
    }
    return cJSON_IsTrue(value) ? 0 : params_unsupported(err, f->name);
}

/* A token id from a number in an array. */
static bool token_id(const cJSON *v, size_t vocab_size, int32_t *out) {
    if (!cJSON_IsNumber(v) || v->valuedouble != floor(v->valuedouble) || v->valuedouble < 0 ||
        v->valuedouble >= (double)vocab_size) {
        return false;
    }
    *out = (int32_t)v->valuedouble;
    return true;
}

int params_id_array(const struct parse *ps, const char *name, const cJSON *array, int32_t **ids, size_t *n,
                    struct error *err) {
    size_t count = 0;
    const cJSON *v;
    cJSON_ArrayForEach(v, array) {
        count++;
    }
    int32_t *out = count ? malloc(count * sizeof *out) : NULL;
    if (count && !out) {
        return error_memory(err);
    }
    size_t i = 0;
    cJSON_ArrayForEach(v, array) {
        if (!token_id(v, ps->limits->vocab_size, &out[i++])) {
            free(out);
            return error_set_param(err, ERROR_INVALID, name, "%s must have token ids from 0 to %zu only", name,
                                   ps->limits->vocab_size - 1);
        }
    }
    *ids = out;
    *n = count;
    return 0;
}

static int parse_tokens(struct parse *ps, const struct field *f, const cJSON *value, struct error *err) {
    if (!cJSON_IsArray(value)) {
        return params_bad(err, f->name, "must be a list of token ids");
    }
    return params_id_array(ps, f->name, value, &ps->p->tokens, &ps->p->n_tokens, err);
}

/* ---- objects with options of their own ----------------------------------------------------------------------- */

int params_unknown_field(const struct parse *ps, const char *in, struct error *err) {
    return ps->limits->strict
               ? error_set_param(err, ERROR_INVALID, in, "%s has a field that this server does not know", in)
               : 0;
}

static int parse_stream_options(struct parse *ps, const struct field *f, const cJSON *value, struct error *err) {
    if (!cJSON_IsObject(value)) {
        return params_bad(err, f->name, "must be an object");
    }
    const cJSON *v;
    cJSON_ArrayForEach(v, value) {
        if (strcmp(v->string, "include_usage") == 0) {
            if (!cJSON_IsBool(v) && !cJSON_IsNull(v)) {
                return params_bad(err, "stream_options.include_usage", "must be true or false");
            }
            ps->p->include_usage = cJSON_IsTrue(v);
        } else if (strcmp(v->string, "continuous_usage_stats") == 0) {
            if (!cJSON_IsFalse(v) && !cJSON_IsNull(v)) {
                return params_unsupported(err, "stream_options.continuous_usage_stats");
            }
        } else if (strcmp(v->string, "include_obfuscation") == 0) {
            if (cJSON_IsTrue(v)) {
                return params_unsupported(err, "stream_options.include_obfuscation");
            }
        } else if (params_unknown_field(ps, f->name, err)) {
            return -1;
        }
    }
    return 0;
}

/* ---- prompts and messages ------------------------------------------------------------------------------------ */

static int add_prompt(struct parse *ps, const cJSON *value, struct prompt_input *out, struct error *err) {
    if (cJSON_IsString(value)) {
        out->text = value->valuestring;
        out->text_len = strlen(value->valuestring);
        return 0;
    }
    return params_id_array(ps, "prompt", value, &out->ids, &out->n_ids, err);
}

/* A string, strings, ids, or lists of ids. */
static int parse_prompt(struct parse *ps, const struct field *f, const cJSON *value, struct error *err) {
    static const char shape[] = "must be a string, a list of strings, a list of token ids or a list of such lists";
    const cJSON *first = cJSON_IsArray(value) ? value->child : NULL;
    bool many = cJSON_IsString(first) || cJSON_IsArray(first);
    if (!cJSON_IsString(value) && !(cJSON_IsArray(value) && first && (many || cJSON_IsNumber(first)))) {
        return params_bad(err, f->name, cJSON_IsArray(value) && !first ? "must not be empty" : shape);
    }
    size_t n = many ? (size_t)cJSON_GetArraySize(value) : 1;
    if (n > PARAMS_MAX_PROMPTS) {
        return error_set_param(err, ERROR_INVALID, f->name, "prompt must have at most %d prompts", PARAMS_MAX_PROMPTS);
    }
    ps->p->prompts = calloc(n, sizeof *ps->p->prompts);
    if (!ps->p->prompts) {
        return error_memory(err);
    }
    ps->p->n_prompts = n;
    if (!many) {
        return add_prompt(ps, value, &ps->p->prompts[0], err);
    }
    size_t i = 0;
    const cJSON *v;
    cJSON_ArrayForEach(v, value) {
        if (cJSON_IsString(v) != cJSON_IsString(first) || cJSON_IsArray(v) != cJSON_IsArray(first)) {
            return params_bad(err, f->name, shape);
        }
        if (add_prompt(ps, v, &ps->p->prompts[i++], err)) {
            return -1;
        }
    }
    return 0;
}

/* ---- the whole body ------------------------------------------------------------------------------------------ */

/* Rules between fields. */
static int check_together(const struct parse *ps, struct error *err) {
    const struct request_params *p = ps->p;
    int64_t max = p->max_completion_tokens ? p->max_completion_tokens : p->max_tokens;
    if (cJSON_IsObject(cJSON_GetObjectItemCaseSensitive(p->tree, "stream_options")) && !p->stream) {
        return params_bad(err, "stream_options", "is allowed only with stream true");
    }
    if (ps->where == IN_CHAT && p->top_logprobs > 0 && !p->logprobs) {
        return params_bad(err, "top_logprobs", "is allowed only with logprobs true");
    }
    if (p->add_generation_prompt && p->continue_final_message) {
        /* the default gives way; asking for both does not */
        if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(p->tree, "add_generation_prompt"))) {
            return params_bad(err, "continue_final_message", "cannot be true together with add_generation_prompt");
        }
        ps->p->add_generation_prompt = false;
    }
    if (max && p->min_tokens > max) {
        return params_bad(err, "min_tokens", "must not be larger than max_tokens");
    }
    if (ps->where == IN_COMPLETIONS && cJSON_IsNumber(cJSON_GetObjectItemCaseSensitive(p->tree, "max_tokens")) &&
        p->max_tokens == 0) {
        if (!p->echo) {
            return params_bad(err, "max_tokens", "must be at least 1, or 0 with echo true");
        }
        ps->p->score_only = true;
    }
    if (p->prompt_logprobs >= 0 && p->stream) {
        return params_bad(err, "prompt_logprobs", "is not allowed with stream true");
    }
    if (ps->where == IN_TOKENIZE && (p->messages != NULL) == (p->prompts != NULL)) {
        return error_set_param(err, ERROR_INVALID, "prompt", "One of prompt and messages must be given");
    }
    if (ps->where == IN_TOKENIZE && p->prompts &&
        !cJSON_IsString(cJSON_GetObjectItemCaseSensitive(p->tree, "prompt"))) {
        return params_bad(err, "prompt", "must be a string");
    }
    return 0;
}

static int check_unknown(const struct parse *ps, const cJSON *tree, struct error *err) {
    const cJSON *v;
    cJSON_ArrayForEach(v, tree) {
        bool known = false;
        for (size_t i = 0; i < N_FIELDS && !known; i++) {
            known = (fields[i].where & ps->where) && strcmp(fields[i].name, v->string) == 0;
        }
        if (known) {
            continue;
        }
        error_set(err, ERROR_INVALID, "The request has a field that this server does not know");
        /* the name may stand in `param` when it is a name, and not a message to somebody's terminal */
        size_t n = strlen(v->string);
        if (n < sizeof err->param &&
            strspn(v->string, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == n) {
            memcpy(err->param, v->string, n + 1);
        }
        return -1;
    }
    return 0;
}

static int parse_tree(struct parse *ps, struct error *err) {
    const cJSON *tree = ps->p->tree;
    if (!cJSON_IsObject(tree)) {
        return error_set(err, ERROR_INVALID, "The body must be a JSON object");
    }
    for (size_t i = 0; i < N_FIELDS; i++) {
        const struct field *f = &fields[i];
        if (!(f->where & ps->where)) {
            continue;
        }
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(tree, f->name);
        if (!value || cJSON_IsNull(value)) {
            if (f->required) {
                return params_bad(err, f->name, "is required");
            }
        } else if (parse_field(ps, f, value, err)) {
            return -1;
        }
    }
    return ps->limits->strict && check_unknown(ps, tree, err) ? -1 : check_together(ps, err);
}

int params_parse(const char *body, size_t len, enum params_where where, const struct params_limits *limits,
                 struct request_params *out, struct error *err) {
    struct request_params p;
    struct parse ps = {body, len, where, limits, &p};
    set_defaults(&p, where, limits);
    const struct json_limits json = {.max_values = PARAMS_MAX_VALUES};
    if (json_parse(body, len, &json, &p.tree, err) || parse_tree(&ps, err)) {
        params_free(&p);
        return -1;
    }
    *out = p;
    return 0;
}

/* ---- headers ------------------------------------------------------------------------------------------------- */

/* Digits, at most `most` of them, added to *v in base ten; how many. */
static size_t digits(const char *s, size_t most, double *v) {
    size_t n = 0;
    for (; n < most && s[n] >= '0' && s[n] <= '9'; n++) {
        *v = *v * 10 + (s[n] - '0');
    }
    return n;
}

/* Digits, perhaps a point and digits, of which nine count; nothing else, whatever the locale writes. */
int params_header_timeout(const char *name, const char *value, double *out, struct error *err) {
    double whole = 0, parts = 0;
    size_t n = digits(value, 9, &whole), m = 0;
    const char *rest = value + n;
    if (*rest == '.') {
        m = digits(rest + 1, 9, &parts);
        rest += 1 + m;
        rest += strspn(rest, "0123456789"); /* a client that writes what is left of its own time writes 17 digits */
    }
    double seconds = whole + parts / pow(10, (double)m);
    if (n + m == 0 || *rest || !(seconds > 0) || seconds > PARAMS_MAX_TIMEOUT) {
        return error_set_param(err, ERROR_INVALID, name, "%s must be decimal seconds above 0 and at most %.0f", name,
                               PARAMS_MAX_TIMEOUT);
    }
    *out = seconds;
    return 0;
}

int params_header_priority(const char *name, const char *value, int64_t *out, struct error *err) {
    double v = 0;
    bool negative = value[0] == '-';
    size_t n = digits(value + negative, 10, &v);
    v = negative ? -v : v;
    if (n == 0 || value[negative + n] || v < INT32_MIN || v > INT32_MAX) {
        return error_set_param(err, ERROR_INVALID, name, "%s must be an integer from %d to %d", name, INT32_MIN,
                               INT32_MAX);
    }
    *out = (int64_t)v;
    return 0;
}

/* What request_params borrows from the tree beyond the prompts. */
static bool is_borrowed(const cJSON *member) {
    return strcmp(member->string, "stop") == 0 || strcmp(member->string, "request_id") == 0 ||
           strcmp(member->string, "cache_salt") == 0 || strcmp(member->string, "dry_sequence_breakers") == 0;
}

void params_drop_input(struct request_params *p) {
    for (size_t i = 0; i < p->n_prompts; i++) {
        free(p->prompts[i].ids);
    }
    free(p->prompts);
    p->prompts = NULL;
    p->n_prompts = 0;
    p->messages = p->tools = p->documents = p->template_kwargs = NULL;
    p->bad_words = NULL;
    for (cJSON *v = p->tree ? p->tree->child : NULL, *next; v; v = next) {
        next = v->next;
        if (cJSON_IsObject(p->tree) && !is_borrowed(v)) {
            cJSON_Delete(cJSON_DetachItemViaPointer(p->tree, v));
        }
    }
}

void params_free(struct request_params *p) {
    if (!p) {
        return;
    }
    params_drop_input(p);
    free(p->tokens);
    free(p->logit_bias);
    free(p->allowed_ids);
    free(p->dry_breakers);
    for (size_t i = 0; p->bad_sequences && i < p->sampling.n_bad_words; i++) {
        free((void *)p->bad_sequences[i].ids);
    }
    free(p->bad_sequences);
    cJSON_Delete(p->tree);
    *p = (struct request_params){0};
}

void params_sampling(const struct request_params *p, enum params_where where, struct sampling *out) {
    *out = p->sampling;
    out->top_n_sigma = out->top_n_sigma > 0 ? out->top_n_sigma : 0; /* llama.cpp's word for off is -1 */
    out->temperature = (float)p->temperature;
    out->top_p = (float)p->top_p;
    out->top_k = (int32_t)p->top_k;
    out->min_p = (float)p->min_p;
    out->presence_penalty = (float)p->presence_penalty;
    out->frequency_penalty = (float)p->frequency_penalty;
    out->repetition_penalty = (float)p->repetition_penalty;
    out->has_seed = p->has_seed;
    out->seed = (uint64_t)p->seed;
    out->logit_bias = p->logit_bias;
    out->n_logit_bias = p->n_logit_bias;
    out->n_logprobs = (int32_t)p->top_logprobs;
    if (where == IN_CHAT) {
        out->n_logprobs = p->logprobs ? (int32_t)(p->top_logprobs < 0 ? 0 : p->top_logprobs) : -1;
    }
}
