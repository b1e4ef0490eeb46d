/* `inferd bench`: how fast a model, a shape or a server is. */
#include "cmd/bench.h"

#include <stdio.h>
#include <string.h>

#define AT(field) .offset = offsetof(struct bench_options, field), .name = #field

static const struct setting rows[] = {
    {AT(shape), SETTING_STRING, .initial = "", .value = "NAME[:TYPE]", .group = "A model, in this process",
     .help = "random weights of this shape in place of a model: smol (SmolLM2-135M's), tiny (TinyLlama's), llama-7b, llama-8b, llama-70b; "
             "of type bf16, or f16, f32, q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k, q6_k; --weights int8 makes INT8 of them"},
    {AT(prefill), SETTING_STRING, .initial = "512", .value = "N,N,...", .group = "A model, in this process",
     .help = "tokens of the prompts that are computed; empty: none"},
    {AT(prefill_streams), SETTING_STRING, .initial = "1", .value = "N,N,...", .group = "A model, in this process",
     .help = "how many such prompts at once"},
    {AT(decode_streams), SETTING_STRING, .initial = "1,8,32", .value = "N,N,...", .group = "A model, in this process",
     .help = "streams that make a token a step; empty: none"},
    {AT(context), SETTING_STRING, .initial = "128", .value = "N,N,...", .group = "A model, in this process",
     .help = "tokens that each stream has before its first step"},
    {AT(generate), SETTING_INT, .initial = "64", .min = 1, .max = 65536, .group = "A model, in this process",
     .help = "tokens that each stream makes"},
    {AT(chunk), SETTING_INT, .initial = "512", .min = 1, .max = 65536, .group = "A model, in this process",
     .help = "rows of a step while prompts are computed, as max_batched_tokens of the server"},
    {AT(profile), SETTING_BOOL, .initial = "false", .group = "A model, in this process",
     .help = "once more for each row, with the time of each operation: its share, and what threads stood idle"},
    {AT(limits), SETTING_BOOL, .initial = "true", .group = "A model, in this process",
     .help = "measure first what the machine can do at most"},

    {AT(url), SETTING_STRING, .initial = "", .value = "URL", .group = "A server",
     .help = "load this server, such as http://127.0.0.1:8080, in place of computing here"},
    {AT(key), SETTING_STRING, .initial = "", .value = "KEY", .group = "A server", .flags = SETTING_SECRET, .help = "its API key"},
    {AT(served_model), SETTING_STRING, .initial = "", .value = "NAME", .group = "A server", .help = "model to ask for; empty: the first it names"},
    {AT(streams), SETTING_INT, .initial = "1", .min = 1, .max = 16384, .group = "A server",
     .help = "requests at a time, each followed by the next when it ends; with --rate: at most so many (1: 256)"},
    {AT(rate), SETTING_NUMBER, .initial = "0", .min = 0, .max = 1000000, .group = "A server",
     .help = "requests a second that begin at random times (a Poisson process), whether others have ended or not; 0: by --streams"},
    {AT(requests), SETTING_INT, .initial = "0", .min = 0, .max = 100000000, .group = "A server",
     .help = "end after so many, all counted; 0: go by --warmup and --duration"},
    {AT(warmup), SETTING_SECONDS, .initial = "2", .min = 0, .max = 3600, .group = "A server", .help = "time before counting begins"},
    {AT(duration), SETTING_SECONDS, .initial = "10", .min = 0.1, .max = 86400, .group = "A server", .help = "time of counting"},
    {AT(prompt_tokens), SETTING_STRING, .initial = "64", .value = "N[-N]", .group = "A server", .help = "tokens of a prompt, or between which to draw"},
    {AT(output_tokens), SETTING_STRING, .initial = "64", .value = "N[-N]", .group = "A server", .help = "tokens of an answer, likewise"},
    {AT(prompt_ids), SETTING_STRING, .initial = "1000-20000", .value = "N-N", .group = "A server", .help = "ids that prompts are drawn from"},
    {AT(seed), SETTING_INT, .initial = "1", .min = 0, .max = 9007199254740991, .group = "A server", .help = "of all that is drawn"},
    {AT(request_limit), SETTING_SECONDS, .initial = "120", .min = 0.1, .max = 86400, .group = "A server", .help = "time after which a request is given up"},
    {AT(ttft_limit), SETTING_SECONDS, .initial = "0", .min = 0, .max = 3600, .group = "A server",
     .help = "a good request has its first token within this time; 0: whenever"},
    {AT(itl_limit), SETTING_SECONDS, .initial = "0", .min = 0, .max = 3600, .group = "A server",
     .help = "a good request has its tokens in this time from one another, on average; 0: whenever"},

    {AT(compare), SETTING_STRING, .initial = "", .value = "BEFORE", .group = "Options",
     .help = "compare two files that --json wrote: inferd bench --compare BEFORE AFTER"},
    {AT(repeat), SETTING_INT, .initial = "5", .min = 1, .max = 1000, .group = "Options",
     .help = "times that each row is measured: their median, least and greatest are told"},
    {AT(json), SETTING_BOOL, .initial = "false", .group = "Options", .help = "print JSON"},
};

static int run(const struct bench_options *o, struct command_state *state, struct error *err) {
    const struct options *flags = &state->flags;
    if (o->compare[0]) {
        return flags->n_operands == 1 ? bench_compare(o->compare, flags->operands[0], o->json, err)
                                      : error_set(err, ERROR_INVALID, "two files are compared: inferd bench --compare BEFORE AFTER");
    }
    if (o->url[0]) {
        return flags->n_operands == 0 && !o->shape[0] ? bench_server(o, err)
                                                      : error_set(err, ERROR_INVALID, "--url measures a server; it goes with no model or shape");
    }
    if (o->shape[0] && flags->n_operands > 0) {
        return error_set(err, ERROR_INVALID, "--shape takes the place of a model; only one can be given");
    }
    return bench_local(o, &state->config, err);
}

int cmd_bench(int argc, char **argv) {
    struct bench_options o;
    const struct command_line line = {
        .help = {.usage = "inferd bench [MODEL] [options]",
                 .about =
                     "Measure how fast a model computes prompts and makes tokens, beside what the machine can do at most (which it\n"
                     "measures first): tokens a second; bytes read and operations done a second, and their share of that. Or load a\n"
                     "server (--url) and tell its times. Random weights (--shape) need no model; a shape that has no place in\n"
                     "memory is measured on the layers that have, and says so.",
                 .examples = "  inferd bench model.gguf\n"
                             "  inferd bench --shape tiny --weights int8 --decode-streams 1,8,32 --context 64,192 --profile\n"
                             "  inferd bench --url http://127.0.0.1:8080 --streams 32 --prompt-tokens 64 --output-tokens 64\n"
                             "  inferd bench --url http://127.0.0.1:8080 --rate 4 --prompt-tokens 32-512 --ttft-limit 500ms --json\n"
                             "  inferd bench --compare before.json after.json\n"},
        .own = {rows, sizeof rows / sizeof rows[0]},
        .own_values = &o,
        .config_only = SETTING_ENGINE,
        .max_operands = 1,
        .model_operand = true,
    };
    struct command_state state;
    struct error err;
    int code;
    if (!cmd_begin(&line, argc, argv, &state, &code)) {
        return code;
    }
    code = run(&o, &state, &err) == 0 ? 0 : cmd_fail(&err);
    cmd_end(&line, &state);
    return code;
}
