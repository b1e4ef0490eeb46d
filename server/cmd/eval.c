/* `inferd eval`: how well a model predicts a text, and how far it is from another configuration of itself. */
#include "cmd/cmd.h"
#include "version.h"

#include <inferd/clock.h>
#include <inferd/eval.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_TEXT = 1 << 30 };

struct eval_options {
    char *text, *bos, *against_model, *against_weights, *against_kv_dtype, *against_cpu_variant, *record, *reference;
    size_t context, stride, max_tokens, record_top;
    bool json;
};

#define AT(field) .offset = offsetof(struct eval_options, field), .name = #field

static const struct setting rows[] = {
    {AT(text), SETTING_STRING, .initial = "", .value = "FILE", .group = "Text", .help = "the text; - for standard input"},
    {AT(context), SETTING_INT, .initial = "512", .min = 2, .max = 1048576, .group = "Text", .help = "tokens of a window, BOS among them"},
    {AT(stride), SETTING_INT, .initial = "0", .min = 0, .max = 1048576, .group = "Text",
     .help = "tokens from the beginning of a window to that of the next; 0: half of the context"},
    {AT(bos), SETTING_CHOICE, .initial = "auto", .choices = "auto on off", .group = "Text",
     .help = "does every window begin with the BOS token; auto: if the model's tokenizer puts it before a text"},
    {AT(max_tokens), SETTING_INT, .initial = "0", .min = 0, .max = 1073741824, .group = "Text",
     .help = "look at so many tokens of the text; 0: at all"},
    {AT(against_model), SETTING_STRING, .initial = "", .value = "PATH", .group = "Reference",
     .help = "compare with this model of the same vocabulary"},
    {AT(against_weights), SETTING_STRING, .initial = "", .value = "WEIGHTS", .group = "Reference",
     .help = "compare with the model at these weights (as --weights)"},
    {AT(against_kv_dtype), SETTING_STRING, .initial = "", .value = "TYPE", .group = "Reference",
     .help = "compare with the model at this number format of keys and values (as --kv-dtype)"},
    {AT(against_cpu_variant), SETTING_STRING, .initial = "", .value = "VARIANT", .group = "Reference",
     .help = "compare with the model computed by these instructions (as --cpu-variant)"},
    {AT(record), SETTING_STRING, .initial = "", .value = "FILE", .group = "Reference",
     .help = "write the model's distributions to this file, to compare with later"},
    {AT(record_top), SETTING_INT, .initial = "256", .min = 1, .max = EVAL_MAX_TOP, .group = "Reference",
     .help = "ids kept of each distribution; all others count as one when compared"},
    {AT(reference), SETTING_STRING, .initial = "", .value = "FILE", .group = "Reference",
     .help = "compare with what was recorded in this file"},
    {AT(json), SETTING_BOOL, .initial = "false", .group = "Options",
     .help = "print a line of JSON after each window, with the sums so far, and one with all of it at the end"},
};

struct evaluation {
    const struct eval_options *o;
    struct text *text;
    struct tokens tokens; /* of the text, without BOS */
    struct eval_windows windows;
    int32_t *window; /* [context], owned */
    struct eval_model *model, *other;
    struct eval_info info;
    struct eval_reader *reader;
    struct eval_writer *writer;
    struct eval_top top; /* for the writer; its arrays are owned */
    struct eval_stats stats;
    uint64_t began_ns;
    bool progress; /* a line on the terminal */
};

static bool any_against(const struct eval_options *o) {
    return o->against_model[0] || o->against_weights[0] || o->against_kv_dtype[0] || o->against_cpu_variant[0];
}

static int check_options(const struct eval_options *o, struct error *err) {
    if (!o->text[0]) {
        return error_set_param(err, ERROR_INVALID, "text", "there is no text to look at: --text FILE");
    }
    if (o->reference[0] && any_against(o)) {
        return error_set(err, ERROR_INVALID, "--reference and --against-... are two references; only one can be given");
    }
    if (o->record[0] && (o->reference[0] || any_against(o))) {
        return error_set(err, ERROR_INVALID, "--record writes what the model itself says; it goes with no reference");
    }
    return 0;
}

static int read_text(const char *path, struct buf *out, struct error *err) {
    if (strcmp(path, "-") == 0) {
        return cmd_read_all(STDIN_FILENO, MAX_TEXT, out, err);
    }
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return error_set(err, ERROR_IO, "%.300s: %s", path, strerror(errno));
    }
    int r = cmd_read_all(fd, MAX_TEXT, out, err);
    close(fd);
    return r < 0 ? error_prefix(err, "%.300s", path) : 0;
}

static int load_tokens(struct evaluation *e, const char *model, struct error *err) {
    struct buf bytes = BUF_INIT;
    const struct eval_options *o = e->o;
    int r = text_open(model, &e->text, err);
    r = r == 0 ? read_text(o->text, &bytes, err) : r;
    r = r == 0 ? text_encode(e->text, bytes.data ? bytes.data : "", bytes.len, 0, &e->tokens, err) : r;
    buf_free(&bytes);
    if (r < 0) {
        return -1;
    }
    bool bos = strcmp(o->bos, "on") == 0 || (strcmp(o->bos, "auto") == 0 && text_adds_bos(e->text));
    if (bos && text_bos_id(e->text) < 0) {
        return error_set_param(err, ERROR_INVALID, "bos", "the model has no BOS token");
    }
    size_t n = e->tokens.n, most = o->context - (bos ? 1 : 0);
    e->windows = (struct eval_windows){.n_tokens = o->max_tokens && o->max_tokens < n ? o->max_tokens : n,
                                       .context = o->context,
                                       .stride = o->stride ? o->stride : (o->context + 1) / 2,
                                       .bos = bos};
    if (e->windows.stride > most) {
        return error_set_param(err, ERROR_INVALID, "stride", "the stride must be at most %zu, or tokens would be left out", most);
    }
    if (eval_n_scored(&e->windows) == 0) {
        return error_set_param(err, ERROR_INVALID, "text", "the text has too few tokens");
    }
    e->window = calloc(o->context, sizeof *e->window);
    return e->window ? 0 : error_memory(err);
}

static void engine_config(const struct config *c, const struct eval_options *o, bool against, struct engine_config *out) {
    config_engine(c, out);
    if (against) {
        out->model = o->against_model[0] ? o->against_model : out->model;
        out->weights = o->against_weights[0] ? o->against_weights : out->weights;
        out->kv_dtype = o->against_kv_dtype[0] ? o->against_kv_dtype : out->kv_dtype;
        out->cpu_variant = o->against_cpu_variant[0] ? o->against_cpu_variant : out->cpu_variant;
    }
}

static int open_models(struct evaluation *e, const struct config *c, struct error *err) {
    struct engine_config config;
    engine_config(c, e->o, false, &config);
    if (eval_open(&config, e->o->context, &e->model, err) < 0) {
        return -1;
    }
    eval_get_info(e->model, &e->info);
    if (any_against(e->o)) {
        struct eval_info other;
        engine_config(c, e->o, true, &config);
        if (eval_open(&config, e->o->context, &e->other, err) < 0) {
            return error_prefix(err, "the reference");
        }
        eval_get_info(e->other, &other);
        if (other.vocab_size != e->info.vocab_size) {
            return error_set(err, ERROR_MODEL, "the reference has %zu tokens, the model %zu: their distributions cannot be compared",
                             other.vocab_size, e->info.vocab_size);
        }
    }
    return 0;
}

static int open_reader(struct evaluation *e, struct error *err) {
    unsigned char hash[EVAL_HASH_BYTES];
    if (eval_reader_open(e->o->reference, &e->reader, err) < 0 ||
        eval_hash_tokens(e->tokens.ids, e->windows.n_tokens, hash, err) < 0) {
        return -1;
    }
    const struct eval_record_header *h = eval_reader_header(e->reader);
    const char *other = h->vocab_size != e->info.vocab_size                          ? "vocabulary"
                        : memcmp(h->tokens_hash, hash, sizeof hash) != 0             ? "text, or another tokenizer"
                        : h->context != e->windows.context || h->stride != e->windows.stride ? "context or stride"
                        : h->bos != e->windows.bos || h->n != eval_n_scored(&e->windows) ? "rule for BOS"
                                                                                      : NULL;
    return other ? error_set(err, ERROR_MODEL, "%.300s was recorded with another %s", e->o->reference, other) : 0;
}

static int open_writer(struct evaluation *e, const struct config *c, struct error *err) {
    struct engine_config config;
    struct eval_record_header h = {.top = (uint32_t)(e->o->record_top < e->info.vocab_size ? e->o->record_top : e->info.vocab_size),
                                   .vocab_size = (uint32_t)e->info.vocab_size,
                                   .context = (uint32_t)e->windows.context,
                                   .stride = (uint32_t)e->windows.stride,
                                   .bos = e->windows.bos,
                                   .n = eval_n_scored(&e->windows)};
    engine_config(c, e->o, false, &config);
    snprintf(h.description, sizeof h.description, "inferd %s, weights %s, kv_dtype %s, %s %s", version_number(), config.weights,
             config.kv_dtype, e->info.backend, e->info.variant);
    e->top.n = h.top;
    e->top.ids = calloc(h.top, sizeof *e->top.ids);
    e->top.logprobs = calloc(h.top, sizeof *e->top.logprobs);
    if (!e->top.ids || !e->top.logprobs) {
        return error_memory(err);
    }
    return eval_hash_tokens(e->tokens.ids, e->windows.n_tokens, h.tokens_hash, err) < 0 ||
                   eval_hash_model(e->model, h.model_hash, err) < 0
               ? -1
               : eval_writer_open(e->o->record, &h, &e->writer, err);
}

/* ---- the walk over the text --------------------------------------------------------------------------------- */

static int not_finite(struct error *err) {
    return error_set(err, ERROR_MODEL, "the model computes values that are not finite numbers");
}

/* The token at `position` of the window, by the logits behind the one before. */
static int score_token(struct evaluation *e, size_t position, struct error *err) {
    const float *logits, *other;
    const struct eval_top *recorded;
    size_t n = e->info.vocab_size;
    int32_t target = e->window[position];
    struct eval_pair pair;
    struct eval_score score;
    if (eval_logits(e->model, position - 1, &logits, err) < 0) {
        return -1;
    }
    if (e->other) {
        if (eval_logits(e->other, position - 1, &other, err) < 0) {
            return -1;
        }
        return eval_pair(logits, other, n, target, &pair) ? eval_stats_add_pair(&e->stats, &pair, err) : not_finite(err);
    }
    if (e->reader) {
        if (eval_reader_next(e->reader, &recorded, err) < 0) {
            return -1;
        }
        if (recorded->target != target) {
            return error_set(err, ERROR_MODEL, "%.300s: its tokens are not those that its head tells of", e->o->reference);
        }
        return eval_pair_top(logits, recorded, n, &pair) ? eval_stats_add_pair(&e->stats, &pair, err) : not_finite(err);
    }
    if (!eval_score(logits, n, target, &score)) {
        return not_finite(err);
    }
    if (e->writer && (!eval_take_top(logits, n, target, &e->top) || eval_writer_add(e->writer, &e->top, err) < 0)) {
        return -1;
    }
    return eval_stats_add(&e->stats, &score, err);
}

static int run_window(struct evaluation *e, const struct eval_window *w, struct error *err) {
    size_t bos = e->windows.bos, n = w->end - w->begin + bos, step = e->info.max_rows;
    size_t scored = w->first_scored - w->begin + bos; /* position of the first token to score: at least 1 */
    if (bos) {
        e->window[0] = text_bos_id(e->text);
    }
    memcpy(e->window + bos, e->tokens.ids + w->begin, (w->end - w->begin) * sizeof *e->window);
    /* what stands behind the last token is of no interest */
    for (size_t begin = 0; begin < n - 1; begin += step) {
        size_t end = begin + step < n - 1 ? begin + step : n - 1, first = scored - 1 > begin ? scored - 1 : begin;
        first = first < end ? first : end;
        if (eval_step(e->model, e->window, begin, end, first, err) < 0 ||
            (e->other && eval_step(e->other, e->window, begin, end, first, err) < 0)) {
            return -1;
        }
        for (size_t i = first; i < end; i++) {
            if (score_token(e, i + 1, err) < 0) {
                return -1;
            }
        }
    }
    return 0;
}

/* ---- what is told ------------------------------------------------------------------------------------------- */

static double seconds(const struct evaluation *e) {
    return (double)(clock_now_ns() - e->began_ns) * 1e-9;
}

static void put_json(struct evaluation *e, size_t windows, bool done) {
    struct eval_summary s;
    eval_summarise(&e->stats, done, &s);
    printf("{\"done\": %s, \"windows\": %zu, \"tokens\": %zu, \"seconds\": %.3f, \"nll\": %.9g, \"nll_error\": %.4g, "
           "\"perplexity\": %.9g, \"perplexity_error\": %.4g",
           done ? "true" : "false", windows, s.n, seconds(e), s.nll, s.nll_error, s.perplexity, s.perplexity_error);
    if (s.n_pairs > 0) {
        printf(", \"reference_perplexity\": %.9g, \"ratio\": %.9g, \"ratio_error\": %.4g, \"top1\": %.6f, \"kl_mean\": %.6g, "
               "\"kl_error\": %.4g",
               s.reference_perplexity, s.ratio, s.ratio_error, s.top1, s.kl_mean, s.kl_error);
    }
    if (s.n_pairs > 0 && done) {
        printf(", \"kl_median\": %.6g, \"kl_p99\": %.6g, \"kl_max\": %.6g", s.kl_median, s.kl_p99, s.kl_max);
    }
    if (done) {
        printf(", \"context\": %zu, \"stride\": %zu, \"bos\": %s, \"vocab_size\": %zu, \"weight_bytes\": %zu, "
               "\"kv_token_bytes\": %zu, \"backend\": \"%s\", \"variant\": \"%s\", \"threads\": %zu, \"version\": \"%s\"",
               e->windows.context, e->windows.stride, e->windows.bos ? "true" : "false", e->info.vocab_size,
               e->info.weight_bytes, e->info.kv_token_bytes, e->info.backend, e->info.variant, e->info.threads,
               version_number());
    }
    puts("}");
    fflush(stdout);
}

static void put_progress(struct evaluation *e, size_t windows, size_t n) {
    struct eval_summary s;
    eval_summarise(&e->stats, false, &s);
    fprintf(stderr, "\r%3zu %%  %zu tokens, %.0f/s  perplexity %.4f", windows * 100 / n, s.n, (double)s.n / (seconds(e) + 1e-9),
            s.perplexity);
    if (s.n_pairs > 0) {
        fprintf(stderr, "  (x %.4f)  KL %.5f  top-1 %.2f %%", s.ratio, s.kl_mean, 100 * s.top1);
    }
    fputs("\x1b[K", stderr);
}

static void put_table(struct evaluation *e, size_t windows) {
    struct eval_summary s;
    eval_summarise(&e->stats, true, &s);
    printf("tokens       %zu in %zu window%s of %zu, stride %zu, %s BOS\n", s.n, windows, windows == 1 ? "" : "s",
           e->windows.context, e->windows.stride, e->windows.bos ? "each with" : "without");
    printf("perplexity   %.4f +- %.4f   (%.5f nats a token)\n", s.perplexity, s.perplexity_error, s.nll);
    if (s.n_pairs > 0) {
        printf("reference    %.4f\n", s.reference_perplexity);
        printf("ratio        %.5f +- %.5f   (%+.3f %%)\n", s.ratio, s.ratio_error, 100 * (s.ratio - 1));
        printf("KL           mean %.6f +- %.6f, median %.6f, p99 %.6f, max %.6f nats\n", s.kl_mean, s.kl_error, s.kl_median,
               s.kl_p99, s.kl_max);
        printf("same top-1   %.3f %%\n", 100 * s.top1);
    }
    if (e->reader) {
        const struct eval_record_header *h = eval_reader_header(e->reader);
        printf("recorded by  %s, %u ids kept\n", h->description, h->top);
    }
    printf("time         %.1f s, %.0f tokens/s on %s %s, %zu thread%s\n", seconds(e), (double)s.n / (seconds(e) + 1e-9),
           e->info.backend, e->info.variant, e->info.threads, e->info.threads == 1 ? "" : "s");
}

static int walk(struct evaluation *e, struct error *err) {
    size_t n = eval_n_windows(&e->windows);
    e->began_ns = clock_now_ns();
    e->progress = isatty(STDERR_FILENO);
    for (size_t i = 0; i < n; i++) {
        struct eval_window w;
        eval_window_at(&e->windows, i, &w);
        if (run_window(e, &w, err) < 0) {
            return -1;
        }
        if (e->o->json && i + 1 < n) {
            put_json(e, i + 1, false);
        }
        if (e->progress) {
            put_progress(e, i + 1, n);
        }
    }
    if (e->progress) {
        fputs("\r\x1b[K", stderr);
    }
    if (e->writer) {
        struct eval_writer *w = e->writer;
        e->writer = NULL;
        if (eval_writer_finish(w, err) < 0) {
            return -1;
        }
    }
    if (e->o->json) {
        put_json(e, n, true);
    } else {
        put_table(e, n);
    }
    return 0;
}

static void free_evaluation(struct evaluation *e) {
    eval_writer_abandon(e->writer);
    eval_reader_close(e->reader);
    eval_close(e->model);
    eval_close(e->other);
    eval_stats_free(&e->stats);
    free(e->top.ids);
    free(e->top.logprobs);
    free(e->window);
    tokens_free(&e->tokens);
    text_free(e->text);
}

static int evaluate(const struct eval_options *o, const struct config *c, struct error *err) {
    struct evaluation e = {.o = o};
    int r = check_options(o, err);
    r = r == 0 ? config_check_model(c, err) : r;
    r = r == 0 ? load_tokens(&e, c->model, err) : r;
    if (r == 0) {
        r = open_models(&e, c, err);
        if (r < 0) {
            config_engine_refused(err);
        }
    }
    r = r == 0 && o->reference[0] ? open_reader(&e, err) : r;
    r = r == 0 && o->record[0] ? open_writer(&e, c, err) : r;
    r = r == 0 ? walk(&e, err) : r;
    free_evaluation(&e);
    return r;
}

int cmd_eval(int argc, char **argv) {
    struct eval_options o;
    const struct command_line line = {
        .help = {.usage = "inferd eval [MODEL] --text FILE [options]",
                 .about =
                     "Tell how well a model predicts a text: its perplexity, by a sliding window. With a reference (another\n"
                     "configuration of the model, another model, or what was recorded before) also the divergence of the two\n"
                     "distributions at each token, KL(reference || model), and how often they prefer the same token.\n\n"
                     "Window i begins at token i * stride and has --context tokens; each token is scored once, in the first\n"
                     "window that holds it, by what stands before it there. Where the tokenizer puts BOS before a text, every\n"
                     "window begins with it; else the text's first token is not scored. Special tokens in the text are text.",
                 .examples = "  inferd eval model.gguf --text book.txt\n"
                             "  inferd eval model.gguf --text book.txt --weights int8 --kv int8 --against-weights bf16\n"
                             "  inferd eval model.gguf --text book.txt --record book.ref\n"
                             "  inferd eval int8-folder --text book.txt --reference book.ref --json\n"},
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
    code = evaluate(&o, &state.config, &err) == 0 ? 0 : cmd_fail(&err);
    cmd_end(&line, &state);
    return code;
}
