/* `inferd chat`: a conversation in the terminal, on an engine of its own. */
#include "cmd/chat_history.h"
#include "cmd/cmd.h"
#include "cmd/line_editor.h"

#include <errno.h>
#include <inferd/clock.h>
#include <inferd/engine.h>
#include <inferd/text.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct chat_options {
    char *system;
    size_t max_tokens;
    double temperature, top_p, min_p, repetition_penalty;
    double typical_p, top_n_sigma, xtc_probability, xtc_threshold, dry_multiplier, dynatemp_range, mirostat_tau;
    size_t top_k, mirostat, seed;
    char *samplers;
};

#define AT(field) .offset = offsetof(struct chat_options, field), .name = #field

static const struct setting rows[] = {
    {AT(system), SETTING_STRING, .initial = "", .alias = "s", .group = "Conversation",
     .help = "instructions that the model gets before the first message"},
    {AT(max_tokens), SETTING_INT, .initial = "0", .min = 0, .max = 16777216, .group = "Conversation",
     .help = "longest answer in tokens; 0: as long as the context allows"},
    {AT(temperature), SETTING_NUMBER, .initial = "0.7", .min = 0, .max = 2, .group = "Choice of words",
     .help = "0: always the likeliest token; higher: more varied"},
    {AT(top_p), SETTING_NUMBER, .initial = "0.95", .min = 0.001, .max = 1, .group = "Choice of words",
     .help = "only the likeliest tokens that together have this probability"},
    {AT(top_k), SETTING_INT, .initial = "0", .min = 0, .max = 1000000, .group = "Choice of words",
     .help = "only so many of the likeliest tokens; 0: all"},
    {AT(min_p), SETTING_NUMBER, .initial = "0", .min = 0, .max = 1, .group = "Choice of words",
     .help = "only tokens at least so likely as this share of the likeliest one"},
    {AT(repetition_penalty), SETTING_NUMBER, .initial = "1", .min = 0.01, .max = 10, .group = "Choice of words",
     .help = "above 1: tokens that were there already become less likely"},
    {AT(typical_p), SETTING_NUMBER, .initial = "1", .min = 0.001, .max = 1, .group = "Choice of words",
     .help = "only the tokens nearest to what is typical here, that together have this probability"},
    {AT(top_n_sigma), SETTING_NUMBER, .initial = "0", .min = 0, .max = 100, .group = "Choice of words",
     .help = "only tokens within so many standard deviations of the likeliest one; 0: all"},
    {AT(xtc_probability), SETTING_NUMBER, .initial = "0", .min = 0, .max = 1, .group = "Choice of words",
     .help = "how often the likeliest tokens are passed over"},
    {AT(xtc_threshold), SETTING_NUMBER, .initial = "0.1", .min = 0, .max = 1, .group = "Choice of words",
     .help = "from which probability on xtc_probability passes over tokens"},
    {AT(dry_multiplier), SETTING_NUMBER, .initial = "0", .min = 0, .max = 100, .group = "Choice of words",
     .help = "above 0: repeated phrases become less likely, the more so the longer they are"},
    {AT(dynatemp_range), SETTING_NUMBER, .initial = "0", .min = 0, .max = 2, .group = "Choice of words",
     .help = "the temperature moves so far up and down, with how sure the model is"},
    {AT(mirostat), SETTING_INT, .initial = "0", .min = 0, .max = 2, .group = "Choice of words",
     .help = "1 or 2: aim at a steady surprise, in place of the other filters"},
    {AT(mirostat_tau), SETTING_NUMBER, .initial = "5", .min = 0, .max = 100, .group = "Choice of words",
     .help = "the surprise that mirostat aims at, in bits"},
    {AT(samplers), SETTING_STRING, .initial = ENGINE_SAMPLER_ORDER, .value = "NAMES", .group = "Choice of words",
     .help = "the steps of the choice, in this order"},
    {AT(seed), SETTING_INT, .initial = "0", .min = 0, .max = 9007199254740992.0, .group = "Choice of words",
     .help = "the same seed gives the same answers; 0: a new one each time"},
};

/* SIGINT sets this and nothing else; the loops look at it. */
static volatile sig_atomic_t interrupted;

static void on_sigint(int signal) {
    (void)signal;
    interrupted = 1;
}

struct chat {
    const struct chat_options *options;
    struct sampler_order order;
    struct engine *engine;
    struct engine_info info;
    struct chat_history history;
    uint64_t next_id;
    bool terminal; /* a person sits there: prompts, notices and speed are shown */
    bool dim;      /* and the terminal knows colours */
};

static void notice(const struct chat *c, const char *text) {
    if (c->terminal) {
        fflush(stdout);
        fprintf(stderr, c->dim ? "\033[2m%s\033[0m\n" : "%s\n", text);
    }
}

/* https://no-color.org, and TERM=dumb */
static bool colours(void) {
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
    return !(no_color && no_color[0]) && term && strcmp(term, "dumb") != 0;
}

/* --- one answer ---------------------------------------------------------------------------------------------- */

/* Tokens kept free for the answer when the history is cut down. */
static size_t reserve(const struct chat *c) {
    size_t half = c->info.max_model_len / 2;
    size_t wanted = c->options->max_tokens ? c->options->max_tokens : 512;
    return wanted < half ? wanted : half;
}

static int encode_history(const struct chat *c, struct tokens *prompt, struct error *err) {
    struct buf json = BUF_INIT;
    struct marked_text text = {0};
    chat_history_json(&c->history, &json);
    struct chat_request r = {
        .messages_json = json.data, .messages_len = json.len, .add_generation_prompt = true, .now = clock_unix_time()};
    int result = json.failed ? error_memory(err) : text_render_chat(engine_text(c->engine), &r, &text, err);
    if (result == 0) {
        result = text_encode_marked(engine_text(c->engine), &text, 0, prompt, err);
    }
    marked_text_free(&text);
    buf_free(&json);
    return result;
}

/* The prompt of the conversation, whose oldest turns go until an answer has room. */
static int make_prompt(struct chat *c, struct tokens *prompt, struct error *err) {
    size_t dropped = 0;
    for (;;) {
        struct tokens p = {0};
        if (encode_history(c, &p, err) != 0) {
            tokens_free(&p);
            return -1;
        }
        if (p.n + reserve(c) <= c->info.max_model_len) {
            *prompt = p;
            break;
        }
        size_t n = p.n;
        tokens_free(&p);
        if (!chat_history_drop_turn(&c->history)) {
            return error_set(err, ERROR_CONTEXT_LENGTH,
                             "the message has %zu tokens, and the context %zu (%zu kept for the answer)", n,
                             c->info.max_model_len, reserve(c));
        }
        dropped++;
    }
    if (dropped > 0) {
        char text[80];
        snprintf(text, sizeof text, "(the context is full: the oldest %zu turn%s dropped)", dropped,
                 dropped == 1 ? " was" : "s were");
        notice(c, text);
    }
    return 0;
}

static int submit(struct chat *c, const struct tokens *prompt, struct error *err) {
    const struct chat_options *o = c->options;
    struct engine_request r;
    engine_request_default(&r);
    r.id = ++c->next_id;
    r.prompt = prompt->ids;
    r.n_prompt = prompt->n;
    r.max_tokens = o->max_tokens;
    if (r.max_tokens > c->info.max_model_len - prompt->n) {
        r.max_tokens = 0;
    }
    r.skip_special = true;
    r.sampling.temperature = (float)o->temperature;
    r.sampling.top_p = (float)o->top_p;
    r.sampling.top_k = (int32_t)o->top_k;
    r.sampling.min_p = (float)o->min_p;
    r.sampling.repetition_penalty = (float)o->repetition_penalty;
    r.sampling.typical_p = (float)o->typical_p;
    r.sampling.top_n_sigma = (float)o->top_n_sigma;
    r.sampling.xtc_probability = (float)o->xtc_probability;
    r.sampling.xtc_threshold = (float)o->xtc_threshold;
    r.sampling.dry_multiplier = (float)o->dry_multiplier;
    r.sampling.dynatemp_range = (float)o->dynatemp_range;
    r.sampling.mirostat = (int32_t)o->mirostat;
    r.sampling.mirostat_tau = (float)o->mirostat_tau;
    r.sampling.order = c->order;
    r.sampling.has_seed = o->seed != 0;
    r.sampling.seed = o->seed;
    return engine_submit(c->engine, &r, err);
}

/* Show text; on a terminal without the control characters by which a model could drive it. */
static void show(const struct chat *c, const char *text, size_t len) {
    for (size_t i = 0; i < len; i++) {
        unsigned char b = (unsigned char)text[i];
        bool c1 = b == 0xc2 && i + 1 < len && (unsigned char)text[i + 1] < 0xa0; /* U+0080..U+009F */
        if (c->terminal && (c1 || (b < ' ' && b != '\n' && b != '\t') || b == 0x7f)) {
            i += c1;
            continue;
        }
        putchar(text[i]);
    }
    fflush(stdout);
}

struct answer {
    struct buf text;
    uint64_t submitted, first, done; /* clock_now_ns */
    uint32_t prompt_tokens, tokens;
    enum finish_reason finish;
};

/* Events of the running request until its last. */
static int stream(struct chat *c, struct answer *a, struct error *err) {
    struct engine_event event;
    bool cancelled = false;
    for (;;) {
        if (interrupted && !cancelled) {
            engine_cancel(c->engine, c->next_id);
            cancelled = true;
        }
        if (!engine_wait(c->engine, &event, 50) || event.id != c->next_id) {
            continue;
        }
        if (event.kind == ENGINE_EVENT_ERROR) {
            *err = event.error;
            return -1;
        }
        if (event.kind == ENGINE_EVENT_STARTED) {
            continue;
        }
        if (a->first == 0) {
            a->first = clock_now_ns();
        }
        buf_append(&a->text, event.text, event.text_len);
        show(c, event.text, event.text_len);
        if (event.kind == ENGINE_EVENT_DONE) {
            a->done = clock_now_ns();
            a->prompt_tokens = event.prompt_tokens;
            a->tokens = event.completion_tokens;
            a->finish = event.finish;
            return a->text.failed ? error_memory(err) : 0;
        }
    }
}

static void show_speed(const struct chat *c, const struct answer *a) {
    char text[160];
    double first = (double)(a->first - a->submitted) / 1e9;
    double rest = (double)(a->done - a->first) / 1e9;
    int n = snprintf(text, sizeof text, "(%u tokens", (unsigned)a->tokens);
    if (a->tokens > 1 && rest > 0) {
        n += snprintf(text + n, sizeof text - (size_t)n, ", %.1f tokens/s", (a->tokens - 1) / rest);
    }
    n += snprintf(text + n, sizeof text - (size_t)n, ", the first after %.2f s; prompt of %u tokens", first,
                  (unsigned)a->prompt_tokens);
    snprintf(text + n, sizeof text - (size_t)n, "%s)",
             a->finish == FINISH_CANCELLED ? "; stopped"
             : a->finish == FINISH_LENGTH  ? "; cut at its longest"
                                           : "");
    notice(c, text);
}

/* Say `message` to the model and stream its answer. On failure the message is forgotten. */
static int say(struct chat *c, const char *message, struct error *err) {
    struct tokens prompt = {0};
    struct answer a = {0};
    if (chat_history_add(&c->history, "user", message, strlen(message), err) != 0) {
        return -1;
    }
    int r = make_prompt(c, &prompt, err);
    interrupted = 0;
    a.submitted = clock_now_ns();
    r = r == 0 ? submit(c, &prompt, err) : r;
    r = r == 0 ? stream(c, &a, err) : r;
    if (a.submitted && (r == 0 || a.text.len > 0)) {
        putchar('\n');
        fflush(stdout);
    }
    if (r == 0) {
        show_speed(c, &a);
    }
    if (r == 0 && a.text.len > 0) {
        r = chat_history_add(&c->history, "assistant", a.text.data, a.text.len, err);
    } else {
        chat_history_forget_last(&c->history); /* no question without an answer: many templates refuse that */
    }
    interrupted = 0;
    tokens_free(&prompt);
    buf_free(&a.text);
    return r;
}

/* --- the conversation ---------------------------------------------------------------------------------------- */

static const char *const chat_help = "  /reset   begin a new conversation\n"
                                     "  /quit    leave (also Ctrl-D, or Ctrl-C twice)\n"
                                     "  /help    show this\n"
                                     "  Ctrl-C   stop the answer";

static int reset(struct chat *c, struct error *err) {
    const char *system = c->options->system;
    chat_history_free(&c->history);
    return system[0] ? chat_history_add(&c->history, "system", system, strlen(system), err) : 0;
}

/* A line that begins with '/'. *quit: leave. */
static int command(struct chat *c, const char *line, bool *quit, struct error *err) {
    if (strcmp(line, "/quit") == 0 || strcmp(line, "/exit") == 0) {
        *quit = true;
    } else if (strcmp(line, "/reset") == 0) {
        notice(c, "(a new conversation)");
        return reset(c, err);
    } else {
        notice(c, strcmp(line, "/help") == 0 ? chat_help : "(there is no such command; /help shows those there are)");
    }
    return 0;
}

/* On a terminal an answer that fails is shown and the conversation goes on; in a pipe it ends there. */
static int converse(struct chat *c, struct line_editor *editor, struct error *err) {
    bool quit = false, warned = false;
    while (!quit) {
        const char *line;
        interrupted = 0;
        enum line_result got = line_editor_read(editor, &line);
        if (got == LINE_END) {
            break;
        }
        if (got == LINE_INTERRUPTED) {
            if (warned) {
                break;
            }
            putchar('\n');
            notice(c, "(Ctrl-C again leaves; so does Ctrl-D)");
            warned = true;
            continue;
        }
        warned = false;
        if (line[strspn(line, " \t")] == '\0') {
            continue;
        }
        int r = c->terminal && line[0] == '/' ? command(c, line, &quit, err) : say(c, line, err);
        if (r != 0 && (!c->terminal || err->code == ERROR_MEMORY || err->code == ERROR_DEVICE)) {
            return -1;
        }
        if (r != 0) {
            fprintf(stderr, "inferd: %s\n", err->message);
        }
    }
    if (c->terminal && !quit) {
        putchar('\n');
    }
    return 0;
}

/* In a pipe Ctrl-C ends the program, as everywhere. */
static void catch_sigint(const struct chat *c) {
    struct sigaction action = {.sa_handler = on_sigint, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    if (c->terminal) {
        sigaction(SIGINT, &action, NULL);
    }
}

static void greet(const struct chat *c) {
    char text[256];
    snprintf(text, sizeof text,
             "%.80s, %.1f M parameters, context of %zu tokens, %s (%s), %zu threads. /help shows the commands.",
             c->info.model_name, (double)c->info.n_parameters / 1e6, c->info.max_model_len, c->info.backend,
             c->info.variant, c->info.threads);
    notice(c, text);
}

static int open_engine(struct chat *c, const struct config *config, struct error *err) {
    struct engine_config ec;
    config_engine(config, &ec);
    ec.max_sequences = 1;
    ec.max_waiting = 1;
    /* Signals reach this thread alone, so that Ctrl-C ends its waiting for a line: the engine's threads inherit the
     * mask. */
    sigset_t sigint, before;
    sigemptyset(&sigint);
    sigaddset(&sigint, SIGINT);
    pthread_sigmask(SIG_BLOCK, &sigint, &before);
    int r = engine_open(&ec, &c->engine, err);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (r == 0) {
        engine_get_info(c->engine, &c->info);
        if (config_null_warning(config)) {
            fprintf(stderr, "inferd: %s\n", config_null_warning(config));
        }
    } else {
        config_engine_refused(err);
    }
    return r;
}

static int chat(const struct chat_options *o, const struct config *config, struct error *err) {
    struct chat c = {.options = o, .terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO), .dim = colours()};
    struct line_editor *editor = NULL;
    if (engine_sampler_order(o->samplers, strlen(o->samplers), &c.order, err) != 0 ||
        config_check_model(config, err) != 0) {
        return -1;
    }
    notice(&c, "(loading)");
    if (open_engine(&c, config, err) != 0) {
        return -1;
    }
    int r = 0;
    if (!text_has_chat_template(engine_text(c.engine))) {
        r = error_set(
            err, ERROR_MODEL,
            "this model has no chat template: it continues text and does not converse, unless --chat-template "
            "gives it one (a file, or one of: %s)",
            text_chat_families());
    }
    r = r == 0 ? reset(&c, err) : r;
    if (r == 0) {
        editor = line_editor_open("> ", c.terminal, &interrupted);
        r = editor ? 0 : error_memory(err);
    }
    if (r == 0) {
        catch_sigint(&c);
        greet(&c);
        r = converse(&c, editor, err);
    }
    line_editor_close(editor);
    chat_history_free(&c.history);
    engine_close(c.engine);
    return r;
}

int cmd_chat(int argc, char **argv) {
    struct chat_options o;
    const struct command_line line = {
        .help = {.usage = "inferd chat [MODEL] [options]",
                 .about =
                     "Talk to a model in this terminal. Ctrl-C stops an answer, Ctrl-D leaves. When the input is no\n"
                     "terminal, each line is a message and only the answers are printed.",
                 .examples = "  inferd chat model.gguf\n"
                             "  inferd chat model.gguf --system \"Answer in French.\" --temperature 0.2\n"
                             "  echo \"What is the capital of Italy?\" | inferd chat model.gguf --seed 1\n"},
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
    code = chat(&o, &state.config, &err) == 0 ? 0 : cmd_fail(&err);
    cmd_end(&line, &state);
    return code;
}
