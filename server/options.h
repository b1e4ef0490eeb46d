/*
 * A command line against tables of settings: --name value, --name=value, -m value, --flag, --flag=false, --no-flag.
 * "--" ends the options; what is no option is an operand ("-" too). Parsing and storing are apart, because the
 * file that --config names has to be read in between.
 */
#ifndef INFERD_OPTIONS_H
#define INFERD_OPTIONS_H

#include "settings.h"

struct option_group {
    struct settings settings;
    unsigned only; /* only rows with all these flags are options here */
};

struct option_value {
    const struct setting *setting;
    const char *shown; /* as written, [shown_len], in argv */
    size_t shown_len;
    const char *text; /* in argv, or a literal */
};

struct options {
    struct option_value *values; /* [n_values], in the order of the command line; owned */
    size_t n_values;
    const char **operands; /* [n_operands], in argv; the array is owned */
    size_t n_operands;
    bool help; /* -h or --help was there; then nothing else was judged */
};

/* argv: what follows the command's name. ERROR_INVALID with the sentence for the user. */
int options_parse(int argc, char **argv, const struct option_group *groups, size_t n_groups, size_t max_operands,
                  struct options *out, struct error *err);
void options_free(struct options *o); /* zeroed or NULL is fine */

/* The last value given for this row, NULL if none. */
const char *options_value(const struct options *o, const struct setting *s);

/* Store the values whose rows are of this table into *base. */
int options_apply(const struct options *o, struct settings t, void *base, struct error *err);

#endif
