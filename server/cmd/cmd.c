#include "cmd/cmd.h"

#include "cmd/manual.h"

#include <errno.h>
#include <inferd/log.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

int exit_code(enum error_code code) {
    switch (code) {
    case ERROR_NONE:
        return 0;
    case ERROR_INVALID:
        return 2;
    case ERROR_DOES_NOT_FIT:
        return 3;
    case ERROR_DEVICE:
        return 4;
    case ERROR_MODEL:
    case ERROR_UNSUPPORTED:
        return 78; /* EX_CONFIG */
    default:
        return 1;
    }
}

int cmd_fail(const struct error *err) {
    fprintf(stderr, "inferd: %s\n", err->message);
    return exit_code(err->code);
}

static int print_help(const struct command_line *line) {
    const struct command_help *help = &line->help;
    struct buf b = BUF_INIT;
    buf_printf(&b, "Usage: %s\n\n%s\n", help->usage, help->about);
    if (help->examples) {
        buf_printf(&b, "\nExamples:\n%s", help->examples);
    }
    bool all = line->config_only == 0;
    settings_help(all ? config_settings() : line->own, 0, &b);
    settings_help(all ? line->own : config_settings(), line->config_only, &b);
    if (all) {
        buf_puts(&b, "\nSettings can also come from the environment: --max-waiting is INFERD_MAX_WAITING.\n"
                     "Those marked (reload) are read again on SIGHUP, with the model kept in memory.\n");
    }
    if (!b.failed) {
        fputs(b.data, stdout);
    }
    buf_free(&b);
    return b.failed ? 1 : 0;
}

static int set_model(struct config *c, const struct options *flags, struct error *err) {
    const struct setting *row = settings_find(config_settings(), "model", 5);
    if (options_value(flags, row)) {
        return error_set_param(err, ERROR_INVALID, "model", "the model is named twice, as an argument and by --model");
    }
    return setting_set(row, c, "the model", flags->operands[0], err);
}

int cmd_config_again(const struct command_line *line, const struct options *flags, struct config *out,
                     struct buf *warnings, struct error *err) {
    if (config_load(out, flags, environ, warnings, err) != 0) {
        return -1;
    }
    return line->model_operand && flags->n_operands > 0 ? set_model(out, flags, err) : 0;
}

/* File, environment, flags; *c is initialised. */
static int load_config(const struct command_line *line, struct config *c, const struct options *flags,
                       struct error *err) {
    struct buf warnings = BUF_INIT;
    int r = cmd_config_again(line, flags, c, &warnings, err);
    if (r == 0) {
        log_set_level(config_log_level(c));
        log_set_format(line->config_only == 0 ? config_log_format(c) : LOG_FORMAT_TEXT);
        for (const char *w = warnings.data; w && *w; w += strcspn(w, "\n") + 1) {
            log_warn("%.*s", (int)strcspn(w, "\n"), w);
        }
    }
    buf_free(&warnings);
    return r;
}

static int gather(const struct command_line *line, struct command_state *state, struct error *err) {
    if (settings_init(line->own, line->own_values, err) != 0) {
        return -1;
    }
    if (config_init(&state->config, err) != 0) {
        settings_free(line->own, line->own_values);
        return -1;
    }
    if (options_apply(&state->flags, line->own, line->own_values, err) != 0 ||
        (line->config_only != SETTING_NONE && load_config(line, &state->config, &state->flags, err) != 0)) {
        settings_free(line->own, line->own_values);
        config_free(&state->config);
        return -1;
    }
    return 0;
}

bool cmd_begin(const struct command_line *line, int argc, char **argv, struct command_state *state, int *code) {
    const struct option_group groups[] = {{line->own, 0}, {config_settings(), line->config_only}};
    struct error err;
    if (manual_answer(line, argc, argv, code)) {
        return false;
    }
    if (options_parse(argc, argv, groups, 2, line->max_operands, &state->flags, &err) != 0) {
        const char *name = line->help.usage + strlen("inferd ");
        fprintf(stderr, "inferd: %s (see: inferd %.*s --help)\n", err.message, (int)strcspn(name, " "), name);
        *code = exit_code(err.code);
        return false;
    }
    if (state->flags.help) {
        *code = print_help(line);
    } else if (gather(line, state, &err) != 0) {
        *code = cmd_fail(&err);
    } else {
        return true;
    }
    options_free(&state->flags);
    return false;
}

void cmd_end(const struct command_line *line, struct command_state *state) {
    settings_free(line->own, line->own_values);
    config_free(&state->config);
    options_free(&state->flags);
}

int cmd_read_all(int fd, size_t limit, struct buf *out, struct error *err) {
    for (;;) {
        char block[65536];
        ssize_t n = read(fd, block, sizeof block);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return error_set(err, ERROR_IO, "the input cannot be read: %s", strerror(errno));
        }
        if (n == 0) {
            return 0;
        }
        if ((size_t)n > limit - out->len) {
            return error_set(err, ERROR_INVALID, "the input has more than %zu bytes", limit);
        }
        buf_append(out, block, (size_t)n);
        if (out->failed) {
            return error_memory(err);
        }
    }
}
