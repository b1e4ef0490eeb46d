#include "params.h"

#include <cjson/cJSON.h>
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#define CHAT "\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define COMPLETION "\"model\":\"m\",\"prompt\":\"hi\""

static const char *const names[] = {"m", "alias"};
static const struct params_limits limits = {.models = names, .n_models = 2, .vocab_size = 100, .max_n = 8};
static const struct params_limits strict = {.models = names, .n_models = 2, .vocab_size = 100, .max_n = 8, .strict = true};

static int parse_with(const struct params_limits *l, enum params_where where, const char *fields,
                      struct request_params *p, struct error *err) {
    static char body[65536]; /* must outlive *p */
    const char *base = where == IN_CHAT ? CHAT : COMPLETION;
    snprintf(body, sizeof body, "{%s%s%s}", base, fields[0] ? "," : "", fields);
    return params_parse(body, strlen(body), where, l, p, err);
}

static int parse(enum params_where where, const char *fields, struct request_params *p, struct error *err) {
    return parse_with(&limits, where, fields, p, err);
}

static void expect_refused(enum params_where where, const char *fields, enum error_code code, const char *param) {
    struct request_params p;
    struct error err = {0};
    cr_assert_eq(parse(where, fields, &p, &err), -1, "%s was accepted", fields);
    cr_assert_eq((int)err.code, (int)code, "%s: code %d, %s", fields, (int)err.code, err.message);
    cr_assert_str_eq(err.param, param, "%s", fields);
}

static void expect_good(enum params_where where, const char *fields) {
    struct request_params p;
    struct error err = {0};
    cr_assert_eq(parse(where, fields, &p, &err), 0, "%s: %s", fields, err.message);
    params_free(&p);
}

#define TOOL "{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{}}}"

Test(params, defaults) {
    struct request_params p;
    struct error err;
    struct sampling s;
    cr_assert_eq(parse(IN_CHAT, "", &p, &err), 0);
    params_sampling(&p, IN_CHAT, &s);
    cr_assert_float_eq(s.temperature, 1, 0);
    cr_assert_float_eq(s.top_p, 1, 0);
    cr_assert_float_eq(s.repetition_penalty, 1, 0);
    cr_assert_eq(s.top_k, 0);
    cr_assert_eq(s.n_logprobs, -1);
    cr_assert(!s.has_seed);
    cr_assert(p.n == 1 && p.max_tokens == 0 && p.max_completion_tokens == 0 && !p.stream && p.skip_special_tokens);
    cr_assert(p.add_generation_prompt && !p.continue_final_message && !p.add_special_tokens);
    cr_assert_eq(p.messages_len, strlen("[{\"role\":\"user\",\"content\":\"hi\"}]"));
    params_free(&p);
    cr_assert_eq(parse(IN_COMPLETIONS, "", &p, &err), 0);
    cr_assert(p.add_special_tokens && p.n_prompts == 1 && p.prompt_logprobs == -1 && !p.score_only);
    cr_assert_str_eq(p.prompts[0].text, "hi");
    params_free(&p);
    cr_assert_eq(parse(IN_COMPLETIONS, "\"max_tokens\":0,\"echo\":true,\"prompt_logprobs\":20", &p, &err), 0);
    cr_assert(p.score_only && p.prompt_logprobs == 20 && p.speculative_tokens == -1);
    params_free(&p);
    cr_assert_eq(parse(IN_CHAT, "\"speculative_tokens\":16", &p, &err), 0);
    cr_assert(p.speculative_tokens == 16);
    params_free(&p);
    cr_assert_eq(parse(IN_COMPLETIONS, "\"max_tokens\":null,\"echo\":true,\"logprobs\":0", &p, &err), 0);
    cr_assert(!p.score_only && p.top_logprobs == 0);
    params_free(&p);
}

Test(params, values_arrive) {
    struct request_params p;
    struct error err;
    struct sampling s;
    cr_assert_eq(parse(IN_CHAT,
                       "\"temperature\":0.5,\"top_p\":0.25,\"top_k\":-1,\"min_p\":0.125,\"presence_penalty\":-2,"
                       "\"frequency_penalty\":2,\"repetition_penalty\":1.5,\"seed\":-9223372036854775808,\"n\":8,"
                       "\"max_completion_tokens\":7,\"max_tokens\":9,\"min_tokens\":3,\"stop\":[\"a\",\"bc\"],"
                       "\"stop_token_ids\":[0,99],\"logit_bias\":{\"5\":-100,\"99\":1.5},\"logprobs\":true,"
                       "\"top_logprobs\":20,\"stream\":true,\"stream_options\":{\"include_usage\":true},"
                       "\"ignore_eos\":true,\"include_stop_str_in_output\":true,\"skip_special_tokens\":false,"
                       "\"request_id\":\"r-1\"",
                       &p, &err),
                 0, "%s", err.message);
    params_sampling(&p, IN_CHAT, &s);
    cr_assert(s.temperature == 0.5f && s.top_p == 0.25f && s.top_k == -1 && s.min_p == 0.125f);
    cr_assert(s.presence_penalty == -2 && s.frequency_penalty == 2 && s.repetition_penalty == 1.5f);
    cr_assert(s.has_seed && s.seed == (uint64_t)INT64_MIN && s.n_logprobs == 20);
    cr_assert(s.n_logit_bias == 2 && s.logit_bias[0].id == 5 && s.logit_bias[0].bias == -100 &&
              s.logit_bias[1].bias == 1.5f);
    cr_assert(p.n == 8 && p.max_completion_tokens == 7 && p.max_tokens == 9 && p.min_tokens == 3);
    cr_assert(p.n_stop == 2 && p.stop[1].len == 2 && memcmp(p.stop[1].bytes, "bc", 2) == 0);
    cr_assert(p.n_stop_ids == 2 && p.stop_ids[1] == 99);
    cr_assert(p.stream && p.include_usage && p.ignore_eos && p.include_stop && !p.skip_special_tokens);
    cr_assert_str_eq(p.request_id, "r-1");
    params_drop_input(&p); /* what is left must stay readable */
    cr_assert(memcmp(p.stop[0].bytes, "a", 1) == 0);
    cr_assert_str_eq(p.request_id, "r-1");
    cr_assert_null(p.messages);
    params_free(&p);
}

/* Every number: its ends are in, what lies just beyond is out, and so is every other type. */
Test(params, ranges) {
    static const struct {
        const char *name, *least, *most, *below, *above;
    } rows[] = {
        {"temperature", "0", "2", "-0.0001", "2.0001"},
        {"top_p", "0.0001", "1", "0", "1.0001"},
        {"top_k", "-1", "2147483647", "-2", "2147483648"},
        {"min_p", "0", "1", "-0.0001", "1.0001"},
        {"presence_penalty", "-2", "2", "-2.0001", "2.0001"},
        {"frequency_penalty", "-2", "2", "-2.0001", "2.0001"},
        {"repetition_penalty", "0.001", "100", "0.0009", "100.1"},
        {"n", "1", "8", "0", "9"},
        {"max_tokens", "1", "2147483647", "0", "2147483648"},
        {"min_tokens", "0", "2147483647", "-1", "2147483648"},
        {"seed", "-9223372036854775808", "9223372036854775807", "-9223372036854775809", "9223372036854775808"},
    };
    static const char *const never[] = {"\"1\"", "[]", "{}", "true", "1e400", "-1e400"};
    static const char *const not_integers[] = {"1.5", "1.0", "1e0", "1E2"};
    char fields[128];
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (int where = IN_CHAT; where <= IN_COMPLETIONS; where++) {
            const char *good[] = {rows[i].least, rows[i].most, "null"}, *bad[] = {rows[i].below, rows[i].above};
            for (size_t k = 0; k < 3; k++) {
                snprintf(fields, sizeof fields, "\"%s\":%s", rows[i].name, good[k]);
                expect_good(where, fields);
            }
            for (size_t k = 0; k < 2; k++) {
                snprintf(fields, sizeof fields, "\"%s\":%s", rows[i].name, bad[k]);
                expect_refused(where, fields, ERROR_INVALID, rows[i].name);
            }
            for (size_t k = 0; k < sizeof never / sizeof never[0]; k++) {
                snprintf(fields, sizeof fields, "\"%s\":%s", rows[i].name, never[k]);
                expect_refused(where, fields, ERROR_INVALID, rows[i].name);
            }
            bool integer = strchr(rows[i].least, '.') == NULL && strchr(rows[i].below, '.') == NULL &&
                           strcmp(rows[i].below, "0") != 0;
            for (size_t k = 0; (integer || strcmp(rows[i].name, "n") == 0) && k < 4; k++) {
                snprintf(fields, sizeof fields, "\"%s\":%s", rows[i].name, not_integers[k]);
                expect_refused(where, fields, ERROR_INVALID, rows[i].name);
            }
        }
    }
    /* what is above 0 only as a double is 0 to the sampler */
    expect_refused(IN_CHAT, "\"top_p\":1e-300", ERROR_INVALID, "top_p");
    expect_refused(IN_CHAT, "\"repetition_penalty\":1e-60", ERROR_INVALID, "repetition_penalty");
}

Test(params, booleans) {
    static const char *const names[] = {"stream",
                                        "ignore_eos",
                                        "include_stop_str_in_output",
                                        "skip_special_tokens",
                                        "add_special_tokens",
                                        "spaces_between_special_tokens"};
    char fields[128];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(fields, sizeof fields, "\"%s\":true", names[i]);
        expect_good(IN_CHAT, fields);
        snprintf(fields, sizeof fields, "\"%s\":1", names[i]);
        expect_refused(IN_CHAT, fields, ERROR_INVALID, names[i]);
        snprintf(fields, sizeof fields, "\"%s\":\"true\"", names[i]);
        expect_refused(IN_COMPLETIONS, fields, ERROR_INVALID, names[i]);
    }
}

Test(params, shapes) {
    static const struct {
        enum params_where where;
        const char *fields;
        enum error_code code;
        const char *param;
    } rows[] = {
        {IN_CHAT, "\"stop\":[\"a\",\"b\",\"c\",\"d\",\"e\"]", ERROR_INVALID, "stop"},
        {IN_CHAT, "\"stop\":\"\"", ERROR_INVALID, "stop"},
        {IN_CHAT, "\"stop\":[null]", ERROR_INVALID, "stop"},
        {IN_CHAT, "\"stop_token_ids\":[100]", ERROR_INVALID, "stop_token_ids"},
        {IN_CHAT, "\"stop_token_ids\":[-1]", ERROR_INVALID, "stop_token_ids"},
        {IN_CHAT, "\"logit_bias\":{\"100\":1}", ERROR_INVALID, "logit_bias"},
        {IN_CHAT, "\"logit_bias\":{\"-1\":1}", ERROR_INVALID, "logit_bias"},
        {IN_CHAT, "\"logit_bias\":{\"01\":1}", ERROR_INVALID, "logit_bias"},
        {IN_CHAT, "\"logit_bias\":{\"-0\":1}", ERROR_INVALID, "logit_bias"},
        {IN_CHAT, "\"logit_bias\":{\" 1\":1}", ERROR_INVALID, "logit_bias"},
        {IN_CHAT, "\"logit_bias\":{\"1\":100.5}", ERROR_INVALID, "logit_bias"},
        {IN_CHAT, "\"stream_options\":{}", ERROR_INVALID, "stream_options"},
        {IN_CHAT, "\"stream\":true,\"stream_options\":{\"include_usage\":1}", ERROR_INVALID,
         "stream_options.include_usage"},
        {IN_CHAT, "\"stream\":true,\"stream_options\":{\"continuous_usage_stats\":true}", ERROR_UNSUPPORTED,
         "stream_options.continuous_usage_stats"},
        {IN_CHAT, "\"top_logprobs\":2", ERROR_INVALID, "top_logprobs"},
        {IN_CHAT, "\"logprobs\":1", ERROR_INVALID, "logprobs"},
        {IN_COMPLETIONS, "\"logprobs\":true", ERROR_INVALID, "logprobs"},
        {IN_COMPLETIONS, "\"logprobs\":21", ERROR_INVALID, "logprobs"},
        {IN_COMPLETIONS, "\"max_tokens\":0", ERROR_INVALID, "max_tokens"},
        {IN_COMPLETIONS, "\"max_tokens\":0,\"echo\":false", ERROR_INVALID, "max_tokens"},
        {IN_COMPLETIONS, "\"max_tokens\":-1,\"echo\":true", ERROR_INVALID, "max_tokens"},
        {IN_CHAT, "\"max_tokens\":0,\"echo\":true", ERROR_INVALID, "max_tokens"},
        {IN_CHAT, "\"prompt_logprobs\":21", ERROR_INVALID, "prompt_logprobs"},
        {IN_CHAT, "\"prompt_logprobs\":-1", ERROR_INVALID, "prompt_logprobs"},
        {IN_CHAT, "\"prompt_logprobs\":true", ERROR_INVALID, "prompt_logprobs"},
        {IN_COMPLETIONS, "\"prompt_logprobs\":0,\"stream\":true", ERROR_INVALID, "prompt_logprobs"},
        {IN_CHAT, "\"speculative_tokens\":17", ERROR_INVALID, "speculative_tokens"},
        {IN_CHAT, "\"speculative_tokens\":-1", ERROR_INVALID, "speculative_tokens"},
        {IN_COMPLETIONS, "\"speculative_tokens\":1.5", ERROR_INVALID, "speculative_tokens"},
        {IN_CHAT, "\"response_format\":{\"type\":\"json_object\"}", ERROR_UNSUPPORTED, "response_format.type"},
        {IN_CHAT, "\"response_format\":{\"type\":\"nope\"}", ERROR_INVALID, "response_format.type"},
        {IN_CHAT, "\"response_format\":{}", ERROR_INVALID, "response_format.type"},
        {IN_CHAT, "\"tools\":[]", ERROR_INVALID, "tools"},
        {IN_CHAT, "\"tools\":[1]", ERROR_INVALID, "tools[0]"},
        {IN_CHAT, "\"tools\":[{}]", ERROR_INVALID, "tools[0].type"},
        {IN_CHAT, "\"tools\":[{\"type\":\"web_search\"}]", ERROR_UNSUPPORTED, "tools[0].type"},
        {IN_CHAT, "\"tools\":[{\"type\":\"function\"}]", ERROR_INVALID, "tools[0].function.name"},
        {IN_CHAT, "\"tools\":[" TOOL ",{\"type\":\"function\",\"function\":{\"name\":\"\"}}]", ERROR_INVALID,
         "tools[1].function.name"},
        {IN_CHAT, "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":3}}]", ERROR_INVALID,
         "tools[0].function.parameters"},
        {IN_CHAT, "\"documents\":{}", ERROR_INVALID, "documents"},
        {IN_CHAT, "\"documents\":[\"d\"]", ERROR_INVALID, "documents"},
        {IN_CHAT, "\"tool_choice\":\"required\"", ERROR_UNSUPPORTED, "tool_choice"},
        {IN_CHAT, "\"tool_choice\":\"x\"", ERROR_INVALID, "tool_choice"},
        {IN_CHAT, "\"continue_final_message\":true,\"add_generation_prompt\":true", ERROR_INVALID,
         "continue_final_message"},
        {IN_CHAT, "\"chat_template_kwargs\":{\"messages\":1}", ERROR_UNSUPPORTED, "chat_template_kwargs"},
        {IN_CHAT, "\"chat_template_kwargs\":{\"x\":1,\"chat_template\":\"{{ 1 }}\"}", ERROR_UNSUPPORTED,
         "chat_template_kwargs"},
        {IN_CHAT, "\"chat_template_kwargs\":{\"bos\\u005ftoken\":\"x\"}", ERROR_UNSUPPORTED, "chat_template_kwargs"},
        {IN_CHAT, "\"chat_template_kwargs\":[]", ERROR_INVALID, "chat_template_kwargs"},
        {IN_CHAT, "\"chat_template\":\"x\"", ERROR_UNSUPPORTED, "chat_template"},
        {IN_CHAT, "\"min_tokens\":5,\"max_tokens\":4", ERROR_INVALID, "min_tokens"},
        {IN_CHAT, "\"spaces_between_special_tokens\":false", ERROR_UNSUPPORTED, "spaces_between_special_tokens"},
        {IN_COMPLETIONS, "\"suffix\":\"\"", ERROR_UNSUPPORTED, "suffix"},
        {IN_COMPLETIONS, "\"best_of\":1", ERROR_UNSUPPORTED, "best_of"},
        {IN_COMPLETIONS, "\"cache_salt\":\"\"", ERROR_INVALID, "cache_salt"},
        {IN_COMPLETIONS, "\"cache_salt\":1", ERROR_INVALID, "cache_salt"},
        {IN_CHAT, "\"timeout\":0", ERROR_INVALID, "timeout"},
        {IN_CHAT, "\"timeout\":-1", ERROR_INVALID, "timeout"},
        {IN_CHAT, "\"timeout\":1e-320", ERROR_INVALID, "timeout"},
        {IN_CHAT, "\"timeout\":604800.5", ERROR_INVALID, "timeout"},
        {IN_CHAT, "\"timeout\":1e300", ERROR_INVALID, "timeout"},
        {IN_CHAT, "\"timeout\":\"5\"", ERROR_INVALID, "timeout"},
        {IN_CHAT, "\"timeout\":true", ERROR_INVALID, "timeout"},
        {IN_CHAT, "\"priority\":1.5", ERROR_INVALID, "priority"},
        {IN_CHAT, "\"priority\":2147483648", ERROR_INVALID, "priority"},
        {IN_CHAT, "\"priority\":-2147483649", ERROR_INVALID, "priority"},
        {IN_CHAT, "\"priority\":\"0\"", ERROR_INVALID, "priority"},
        {IN_COMPLETIONS, "\"request_id\":\"a b\"", ERROR_INVALID, "request_id"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        expect_refused(rows[i].where, rows[i].fields, rows[i].code, rows[i].param);
    }
    expect_good(IN_CHAT,
                "\"response_format\":{\"type\":\"text\"},\"tool_choice\":\"none\",\"store\":false,\"zzz\":[1]");
    expect_good(IN_CHAT, "\"chat_template_kwargs\":{\"enable_thinking\":false,\"any\":[{}]},\"top_logprobs\":0");
    expect_good(IN_CHAT, "\"tools\":[" TOOL "],\"tool_choice\":\"auto\",\"documents\":[{\"text\":\"d\"}]");
    expect_good(IN_CHAT, "\"stop\":[],\"logit_bias\":{},\"stop_token_ids\":[],\"modalities\":[\"text\"]");
    expect_good(IN_COMPLETIONS, "\"suffix\":null,\"use_beam_search\":false");
}

static int parse_body(enum params_where where, const char *body, struct request_params *p, struct error *err) {
    return params_parse(body, strlen(body), where, &limits, p, err);
}

Test(params, prompts) {
    struct request_params p;
    struct error err;
    cr_assert_eq(parse_body(IN_COMPLETIONS, "{\"model\":\"m\",\"prompt\":[\"a\",\"\"]}", &p, &err), 0);
    cr_assert(p.n_prompts == 2 && p.prompts[0].text_len == 1 && p.prompts[1].text_len == 0);
    params_free(&p);
    cr_assert_eq(parse_body(IN_COMPLETIONS, "{\"model\":\"m\",\"prompt\":[1,99]}", &p, &err), 0);
    cr_assert(p.n_prompts == 1 && !p.prompts[0].text && p.prompts[0].n_ids == 2 && p.prompts[0].ids[1] == 99);
    params_free(&p);
    cr_assert_eq(parse_body(IN_COMPLETIONS, "{\"model\":\"m\",\"prompt\":[[1],[2,3]]}", &p, &err), 0);
    cr_assert(p.n_prompts == 2 && p.prompts[1].n_ids == 2 && p.prompts[1].ids[1] == 3);
    params_free(&p);
    static const char *const bad[] = {"1",         "{}",        "[]",          "[100]",   "[-1]",    "[1.5]",
                                      "[1,\"a\"]", "[\"a\",1]", "[[1],\"a\"]", "[[1],2]", "[[100]]", "[null]",
                                      "[true]",    "[{}]",      "[[[1]]]",     "null"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char body[128];
        snprintf(body, sizeof body, "{\"model\":\"m\",\"prompt\":%s}", bad[i]);
        cr_assert_eq(parse_body(IN_COMPLETIONS, body, &p, &err), -1, "%s", bad[i]);
        cr_assert_str_eq(err.param, "prompt", "%s", bad[i]);
    }
}

Test(params, messages) {
    struct request_params p;
    struct error err;
    static const struct {
        const char *messages, *param;
    } bad[] = {
        {"[]", "messages"},
        {"{}", "messages"},
        {"[1]", "messages[0]"},
        {"[{}]", "messages[0].role"},
        {"[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"robot\",\"content\":\"x\"}]", "messages[1].role"},
        {"[{\"role\":\"user\"}]", "messages[0].content"},
        {"[{\"role\":\"user\",\"content\":null}]", "messages[0].content"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", "messages[0].content[0].text"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x\"},{\"type\":\"image_url\"}]}]",
         "messages[0].content[1].type"},
        {"[{\"role\":\"assistant\",\"content\":null}]", "messages[0].content"},
        {"[{\"role\":\"assistant\",\"tool_calls\":{}}]", "messages[0].tool_calls"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char body[256];
        snprintf(body, sizeof body, "{\"model\":\"m\",\"messages\":%s}", bad[i].messages);
        cr_assert_eq(parse_body(IN_CHAT, body, &p, &err), -1, "%s", bad[i].messages);
        cr_assert_str_eq(err.param, bad[i].param, "%s", bad[i].messages);
    }
    cr_assert_eq(
        parse_body(IN_CHAT,
                   "{\"model\":\"m\",\"messages\":[{\"role\":\"system\",\"content\":\"\"},{\"role\":\"assistant\","
                   "\"content\":null,\"tool_calls\":[{}]},{\"role\":\"tool\",\"content\":\"x\"},"
                   "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x\"}]}]}",
                   &p, &err),
        0, "%s", err.message);
    params_free(&p);
}

Test(params, the_body_and_the_model) {
    struct request_params p;
    struct error err;
    static const char *const not_objects[] = {"", "[]", "null", "\"x\"", "1", "{", "{}x"};
    for (size_t i = 0; i < sizeof not_objects / sizeof not_objects[0]; i++) {
        cr_assert_eq(parse_body(IN_CHAT, not_objects[i], &p, &err), -1);
        cr_assert_eq((int)err.code, ERROR_INVALID);
    }
    cr_assert_eq(parse_body(IN_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}", &p, &err), -1);
    cr_assert_str_eq(err.param, "model");
    cr_assert_eq((int)err.code, ERROR_INVALID);
    cr_assert_eq(parse_body(IN_COMPLETIONS, "{\"model\":\"other-secret\",\"prompt\":\"x\"}", &p, &err), -1);
    cr_assert_eq((int)err.code, ERROR_NOT_FOUND);
    cr_assert_null(strstr(err.message, "other-secret"), "the message quotes the client");
    cr_assert_eq(parse_body(IN_COMPLETIONS, "{\"model\":\"alias\",\"prompt\":\"x\"}", &p, &err), 0);
    cr_assert_eq(p.model, 1);
    params_free(&p);
}

/* A request may live for an hour: nothing that it does not need any more may live with it. */
Test(params, what_has_no_effect_is_dropped_with_the_input) {
    struct request_params p;
    struct error err;
    cr_assert_eq(parse(IN_COMPLETIONS, "\"stop\":[\"a\"],\"x\":[0,0,0],\"request_id\":\"r\",\"user\":\"u\"", &p, &err),
                 0);
    params_drop_input(&p);
    cr_assert_eq(cJSON_GetArraySize(p.tree), 2);
    cr_assert_str_eq(p.stop[0].bytes, "a");
    cr_assert_str_eq(p.request_id, "r");
    params_free(&p);
}

/* A value of two bytes becomes a node of 64. */
Test(params, too_many_values_are_refused_before_the_tree_is_made) {
    static char body[2 * PARAMS_MAX_VALUES + 100];
    struct request_params p;
    struct error err = {0};
    size_t n = (size_t)snprintf(body, sizeof body, "{%s,\"x\":[0", COMPLETION);
    for (size_t i = 1; i < PARAMS_MAX_VALUES; i++) {
        memcpy(body + n, ",0", 2);
        n += 2;
    }
    memcpy(body + n, "]}", 2);
    cr_assert_eq(params_parse(body, n + 2, IN_COMPLETIONS, &limits, &p, &err), -1);
    cr_assert_eq((int)err.code, (int)ERROR_INVALID);
    cr_assert(strstr(err.message, "1048576 values"), "%s", err.message);
}

Test(params, strict_mode) {
    struct request_params p;
    struct error err;
    cr_assert_eq(parse_with(&strict, IN_CHAT, "\"zzz\":1", &p, &err), -1);
    cr_assert_str_eq(err.param, "zzz");
    cr_assert_eq(parse_with(&strict, IN_CHAT, "\"echo\":true", &p, &err), -1); /* the other endpoint's */
    cr_assert_eq(parse_with(&strict, IN_CHAT, "\"\\u001b[31m\":1", &p, &err), -1);
    cr_assert_str_eq(err.param, "");
    cr_assert_eq(parse_with(&strict, IN_CHAT, "\"stream\":true,\"stream_options\":{\"x\":1}", &p, &err), -1);
    cr_assert_eq(parse_with(&strict, IN_CHAT, "\"user\":\"u\",\"metadata\":{}", &p, &err), 0);
    params_free(&p);
}

Test(params, deadline_priority_and_salt) {
    struct request_params p;
    struct error err;
    cr_assert_eq(parse(IN_CHAT, "\"timeout\":0.25,\"priority\":-2147483648,\"cache_salt\":\"s\"", &p, &err), 0);
    cr_assert(p.timeout == 0.25 && p.priority == -2147483648LL);
    params_drop_input(&p);
    cr_assert_str_eq(p.cache_salt, "s");
    params_free(&p);
    cr_assert_eq(parse(IN_CHAT, "\"timeout\":null,\"priority\":null,\"cache_salt\":null", &p, &err), 0);
    cr_assert(p.timeout == 0 && p.priority == 0 && !p.cache_salt);
    params_free(&p);
}

Test(params, header_timeout) {
    static const struct {
        const char *text;
        double value; /* 0 = refused */
    } rows[] = {
        {"1", 1}, {"0.5", 0.5}, {".25", 0.25}, {"2.", 2}, {"604800", 604800}, {"0.000000001", 1e-9}, {"007.50", 7.5},
        {"", 0}, {"0", 0}, {"0.0", 0}, {".", 0}, {"-1", 0}, {"+1", 0}, {"1s", 0}, {" 1", 0}, {"1e3", 0}, {"nan", 0},
        {"inf", 0}, {"0x10", 0}, {"1,5", 0}, {"1.5.5", 0}, {"604800.1", 0}, {"99999999999999999999", 0},
        {"0.33333333333333331", 0.333333333}, {"29.999999046325684", 29.999999046}, {"1.0000000000001x", 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct error err = {0};
        double v = -1;
        int rc = params_header_timeout("X-Request-Timeout", rows[i].text, &v, &err);
        if (rows[i].value > 0) {
            cr_expect(rc == 0 && v > rows[i].value * (1 - 1e-12) && v < rows[i].value * (1 + 1e-12), "'%s'", rows[i].text);
        } else {
            cr_expect(rc == -1 && v == -1 && err.code == ERROR_INVALID, "'%s'", rows[i].text);
            cr_expect_str_eq(err.param, "X-Request-Timeout");
        }
    }
}

Test(params, header_priority) {
    static const struct {
        const char *text;
        int64_t value;
        bool good;
    } rows[] = {
        {"0", 0, true}, {"-5", -5, true}, {"2147483647", INT32_MAX, true}, {"-2147483648", INT32_MIN, true},
        {"2147483648", 0, false}, {"-2147483649", 0, false}, {"", 0, false}, {"-", 0, false}, {"1.0", 0, false},
        {"+1", 0, false}, {"1 ", 0, false}, {"99999999999", 0, false}, {"x", 0, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct error err = {0};
        int64_t v = 77;
        int rc = params_header_priority("X-Vllm-Priority", rows[i].text, &v, &err);
        cr_expect(rc == (rows[i].good ? 0 : -1) && v == (rows[i].good ? rows[i].value : 77), "'%s'", rows[i].text);
    }
}

Test(params, sampling_with_shapes_of_their_own) {
    struct request_params p;
    struct error err;
    struct sampling s;
    static const struct sampler_order order = {2, {SAMPLER_TOP_K, SAMPLER_TEMPERATURE}};
    struct params_limits with_order = limits;
    with_order.samplers = &order;
    cr_assert_eq(parse(IN_CHAT, "\"typical_p\":0.5,\"top_n_sigma\":-1,\"mirostat\":2,\"dry_multiplier\":1,\"repeat_penalty\":1.5,"
                                "\"dry_sequence_breakers\":[\"xy\"],\"samplers\":[\"xtc\",\"typ_p\"],\"allowed_token_ids\":[7,3],"
                                "\"repetition_detection\":{\"max_pattern_size\":9,\"min_count\":4}",
                       &p, &err),
                 0, "%s", err.message);
    params_sampling(&p, IN_CHAT, &s);
    cr_assert(s.typical_p == 0.5f && s.top_n_sigma == 0 && s.mirostat == 2 && s.dry_multiplier == 1 && s.repetition_penalty == 1.5f);
    cr_assert(s.n_dry_breakers == 1 && s.dry_breakers[0].len == 2 && memcmp(s.dry_breakers[0].bytes, "xy", 2) == 0);
    cr_assert(s.order.n == 2 && s.order.stages[0] == SAMPLER_XTC && s.order.stages[1] == SAMPLER_TYPICAL_P);
    cr_assert(s.n_allowed_ids == 2 && s.allowed_ids[0] == 7 && s.allowed_ids[1] == 3);
    cr_assert(p.repetition_max_size == 9 && p.repetition_min_size == 1 && p.repetition_min_count == 4);
    params_drop_input(&p); /* what is needed until the submit stays */
    params_sampling(&p, IN_CHAT, &s);
    cr_assert(memcmp(s.dry_breakers[0].bytes, "xy", 2) == 0);
    params_free(&p);

    cr_assert_eq(parse_with(&with_order, IN_CHAT, "", &p, &err), 0);
    params_sampling(&p, IN_CHAT, &s);
    cr_assert(s.order.n == 2 && s.order.stages[0] == SAMPLER_TOP_K, "the server's order");
    cr_assert(s.typical_p == 1 && s.n_dry_breakers == 4 && !s.allowed_ids && s.n_bad_words == 0);
    params_free(&p);
    cr_assert_eq(parse_with(&with_order, IN_CHAT, "\"samplers\":\"min_p\"", &p, &err), 0);
    params_sampling(&p, IN_CHAT, &s);
    cr_assert(s.order.n == 1 && s.order.stages[0] == SAMPLER_MIN_P, "the request's own");
    params_free(&p);
    expect_refused(IN_CHAT, "\"repetition_detection\":{\"max_pattern_size\":9}", ERROR_INVALID, "repetition_detection.min_count");
    expect_refused(IN_CHAT, "\"samplers\":[\"top_k;top_p\"]", ERROR_INVALID, "samplers");
    expect_good(IN_CHAT, "\"bad_words\":[],\"dry_sequence_breakers\":[],\"samplers\":[],\"typical_p\":null");
}
