/* `inferd quantize`: an INT8 checkpoint of a model. */
#include "cmd/cmd.h"

#include <inferd/clock.h>
#include <inferd/quantize.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct quantize_options {
    char *calibration, *clip;
    size_t samples, sample_tokens, shard_size, threads;
    double alpha, gptq_damping;
    bool gptq, force, json;
};

#define AT(field) .offset = offsetof(struct quantize_options, field), .name = #field

static const struct setting rows[] = {
    {AT(calibration), SETTING_STRING, .initial = "", .value = "FILE", .group = "Calibration",
     .help = "plain text of the kind that the model will meet"},
    {AT(samples), SETTING_INT, .initial = "64", .min = 1, .max = 65536, .group = "Calibration",
     .help = "most pieces taken from it, spread evenly"},
    {AT(sample_tokens), SETTING_INT, .initial = "512", .min = 16, .max = 65536, .group = "Calibration",
     .help = "tokens in a piece"},
    {AT(alpha), SETTING_NUMBER, .initial = "0.65", .min = 0, .max = 1, .group = "Rounding",
     .help = "how much of the activations' outliers moves into the weights (SmoothQuant); 0: none, and then no calibration "
             "text is needed"},
    {AT(clip), SETTING_CHOICE, .initial = "absmax", .choices = "absmax mse", .group = "Rounding",
     .help = "a row's scale: by its largest weight, or clipped where the squared error is smallest"},
    {AT(gptq), SETTING_BOOL, .initial = "false", .group = "Rounding",
     .help = "make up for the error of each column in those that follow (GPTQ); takes longer"},
    {AT(gptq_damping), SETTING_NUMBER, .initial = "0.01", .min = 1e-6, .max = 1, .group = "Rounding",
     .help = "what is added to the Hessian's diagonal, as a share of its mean"},
    {AT(shard_size), SETTING_SIZE, .initial = "5G", .min = 1 << 20, .max = 1099511627776.0, .group = "Output",
     .help = "largest safetensors file; a larger model is written as several"},
    {AT(force), SETTING_BOOL, .initial = "false", .alias = "f", .group = "Output",
     .help = "replace OUT if it is a model folder"},
    {AT(json), SETTING_BOOL, .initial = "false", .group = "Output", .help = "print the result as JSON"},
    {AT(threads), SETTING_INT, .initial = "0", .min = 0, .max = 1024, .alias = "t", .group = "Output",
     .help = "threads that compute; 0: as many as the process may run on"},
};

static volatile sig_atomic_t interrupted;

static void on_signal(int number) {
    (void)number;
    interrupted = 1;
}

/* Ctrl-C ends the work at a point from which it can go on, a second one at once; a full disk or a file size limit is an error, not a signal. */
static void catch_signals(void) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND}, ignore = {.sa_handler = SIG_IGN};
    sigemptyset(&action.sa_mask);
    sigemptyset(&ignore.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGXFSZ, &ignore, NULL);
}

struct bar {
    bool terminal;
    uint64_t begun, shown; /* clock_now_ns */
    const char *stage;
    size_t first; /* `done` when the stage began: what an earlier run did is not measured */
};

/* "quantizing  [########............]  12 of 32, 3:20 left"; at most ten a second. */
static void show(struct bar *b, const struct quantize_progress *p) {
    enum { WIDTH = 24 };
    uint64_t now = clock_now_ns();
    if (!b->stage || strcmp(b->stage, p->stage) != 0) {
        *b = (struct bar){.terminal = b->terminal, .begun = now, .stage = p->stage, .first = p->done};
    } else if (now - b->shown < 100000000u && p->done < p->total) {
        return;
    }
    b->shown = now;
    size_t filled = p->total ? p->done * WIDTH / p->total : 0;
    char bar[WIDTH + 1];
    memset(bar, '.', WIDTH);
    memset(bar, '#', filled < WIDTH ? filled : WIDTH);
    bar[WIDTH] = '\0';
    fprintf(stderr, "\r%-10s [%s] %zu of %zu", p->stage, bar, p->done, p->total);
    if (p->done > b->first && p->done < p->total) {
        double each = (double)(now - b->begun) / 1e9 / (double)(p->done - b->first);
        unsigned left = (unsigned)(each * (double)(p->total - p->done) + 0.5);
        fprintf(stderr, ", %u:%02u left", left / 60, left % 60);
    }
    fputs("\033[K", stderr);
}

static bool on_progress(void *arg, const struct quantize_progress *p) {
    struct bar *b = arg;
    if (b->terminal) {
        show(b, p);
    }
    return interrupted;
}

static void print_result(const struct quantize_options *o, const char *out, const struct quantize_result *r,
                         double seconds) {
    struct buf b = BUF_INIT;
    if (o->json) {
        buf_puts(&b, "{\"out\": ");
        buf_json_string(&b, out, strlen(out));
        buf_printf(&b,
                   ", \"layers\": %zu, \"resumed_layers\": %zu, \"files\": %zu, \"bytes\": %llu, \"calibration_tokens\": %zu, "
                   "\"alpha\": %g, \"clip\": \"%s\", \"gptq\": %s, \"weight_error\": %.6g, \"seconds\": %.3f}\n",
                   r->layers, r->resumed_layers, r->files, (unsigned long long)r->bytes, r->calibration_tokens, o->alpha,
                   o->clip, o->gptq ? "true" : "false", r->weight_error, seconds);
    } else {
        buf_printf(&b, "%s: %zu layers, %.1f MB in %zu file%s, %.1f s", out, r->layers, (double)r->bytes / 1e6, r->files,
                   r->files == 1 ? "" : "s", seconds);
        if (r->resumed_layers > 0) {
            buf_printf(&b, "; %zu layers were there from an earlier run", r->resumed_layers);
        }
        buf_puts(&b, "\n");
    }
    fputs(b.failed ? "" : b.data, stdout);
    buf_free(&b);
}

static int quantize(const struct quantize_options *o, const struct config *config, const char *out, struct error *err) {
    struct quantize_config c;
    struct quantize_result result;
    struct bar bar = {.terminal = isatty(STDERR_FILENO)};
    uint64_t begun = clock_now_ns();
    quantize_config_default(&c);
    c.model = config->model;
    c.out = out;
    c.calibration = o->calibration[0] ? o->calibration : NULL;
    c.samples = o->samples;
    c.sample_tokens = o->sample_tokens;
    c.alpha = o->alpha;
    c.clip_mse = strcmp(o->clip, "mse") == 0;
    c.gptq = o->gptq;
    c.gptq_damping = o->gptq_damping;
    c.shard_bytes = o->shard_size;
    c.force = o->force;
    c.threads = o->threads;
    c.progress = on_progress;
    c.progress_arg = &bar;
    catch_signals();
    int rc = quantize_model(&c, &result, err);
    if (bar.stage && bar.terminal) {
        fputs("\n", stderr);
    }
    if (rc < 0 && err->code == ERROR_UNAVAILABLE) {
        return error_set(err, ERROR_IO, "stopped; the same command goes on where this one ended (%.300s.partial)", out);
    }
    if (rc == 0 && result.began_anew) {
        fprintf(stderr, "inferd: what %s.partial held was of another model or of other options, and was made anew\n", out);
    }
    if (rc == 0) {
        print_result(o, out, &result, (double)(clock_now_ns() - begun) / 1e9);
    }
    return rc;
}

int cmd_quantize(int argc, char **argv) {
    struct quantize_options o;
    const struct command_line line = {
        .help = {.usage = "inferd quantize MODEL OUT [options]",
                 .about = "Write an INT8 (W8A8) checkpoint of a model, a GGUF file or a folder of safetensors, to the folder OUT:\n"
                          "safetensors with a scale an output channel in the compressed-tensors layout, which inferd, vLLM\n"
                          "and transformers load, with tokenizer, templates and configuration. Outliers of the activations move\n"
                          "into the weights first (SmoothQuant); how large they are shows a run over calibration text.\n"
                          "OUT appears whole or not at all; a run that is interrupted goes on when it is started again.",
                 .examples = "  inferd quantize model/ model-int8 --calibration text.txt\n"
                             "  inferd quantize model.gguf model-int8 --calibration text.txt --gptq --clip mse\n"
                             "  inferd quantize model/ model-int8 --alpha 0\n"},
        .own = {rows, sizeof rows / sizeof rows[0]},
        .own_values = &o,
        .config_only = SETTING_MODEL,
        .max_operands = 2,
        .model_operand = true,
    };
    struct command_state state;
    struct error err;
    int code;
    if (!cmd_begin(&line, argc, argv, &state, &code)) {
        return code;
    }
    const struct options *flags = &state.flags;
    if (flags->n_operands != 2) {
        error_set(&err, ERROR_INVALID, "two names are needed: the model and the folder to write (usage: %s)",
                  line.help.usage);
        code = cmd_fail(&err);
    } else if (config_check_model(&state.config, &err) != 0 ||
               quantize(&o, &state.config, flags->operands[1], &err) != 0) {
        code = cmd_fail(&err);
    } else {
        code = 0;
    }
    cmd_end(&line, &state);
    return code;
}
