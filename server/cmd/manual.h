/*
 * The manual pages inferd(1) and inferd.conf(5) and the completion of bash, written from the same tables as --help:
 *
 *     inferd help --man | --man-conf | --bash-completion
 *
 * A command that is called with MANUAL_ASK or COMPLETION_ASK alone describes itself.
 */
#ifndef INFERD_MANUAL_H
#define INFERD_MANUAL_H

#include <inferd/buf.h>
#include <stdbool.h>
#include <stddef.h>

struct command_line;

#define MANUAL_ASK "--describe-for-manual"
#define COMPLETION_ASK "--describe-for-completion"

/* Is it one of the two? Then the command's part was printed on standard output, *code is the exit code. */
bool manual_answer(const struct command_line *line, int argc, char **argv, int *code);

struct manual_command {
    const char *name, *about;
    int (*run)(int argc, char **argv);
};

/* The whole texts on standard output; returns the exit code. */
int manual_print(const struct manual_command *commands, size_t n);
int manual_print_conf(void);
int manual_print_completion(const struct manual_command *commands, size_t n);

#endif
