/*
 * The commands of inferd and what they share. A command gets the arguments behind its name and returns the exit code:
 * 0 ok, 1 runtime failure, 2 command line, 3 does not fit, 4 device missing or lost, 78 configuration or model
 * unusable.
 */
#ifndef INFERD_CMD_H
#define INFERD_CMD_H

#include "config.h"
#include "options.h"

#include <inferd/buf.h>
#include <inferd/error.h>
#include <stdbool.h>

int cmd_serve(int argc, char **argv);
int cmd_chat(int argc, char **argv);
int cmd_tokenize(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_eval(int argc, char **argv);
int cmd_healthcheck(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_plan(int argc, char **argv);
int cmd_quantize(int argc, char **argv);
int cmd_key(int argc, char **argv);
int cmd_doctor(int argc, char **argv);
int cmd_version(int argc, char **argv);

int exit_code(enum error_code code);

/* "inferd: sentence" on standard error; returns the exit code. */
int cmd_fail(const struct error *err);

/* What --help says about a command. */
struct command_help {
    const char *usage;    /* "inferd serve [MODEL] [options]" */
    const char *about;    /* paragraphs */
    const char *examples; /* lines, indented; NULL = none */
};

/* The command line of a command: its own options, and those of the daemon's settings that concern it. */
struct command_line {
    struct command_help help;
    struct settings own;
    void *own_values;     /* the struct that `own` describes */
    unsigned config_only; /* flags of the settings that are options here: 0 = all; SETTING_NONE: no settings */
    size_t max_operands;
    bool model_operand; /* the first operand names the model */
};

/*
 * Begin a command: parse, print help, gather the settings (warnings go to the log). False: the command is over with
 * *code. True: cmd_end() when done.
 */
struct command_state {
    struct config config;
    struct options flags;
};
bool cmd_begin(const struct command_line *line, int argc, char **argv, struct command_state *state, int *code);
/* File, environment and flags once more, into an initialised *out; a sentence of `warnings` a line. */
int cmd_config_again(const struct command_line *line, const struct options *flags, struct config *out,
                     struct buf *warnings, struct error *err);
void cmd_end(const struct command_line *line, struct command_state *state);

/* Read a stream to its end. ERROR_IO, or ERROR_INVALID when there is more than `limit` bytes. */
int cmd_read_all(int fd, size_t limit, struct buf *out, struct error *err);

#endif
