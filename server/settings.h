/*
 * Settings as rows of a table. A row says everything about one value: its name, type, default, range and one line of
 * help; parsing, checking, printing and `--help` follow from it. Used for the daemon's settings (config.c) and for the
 * options of single commands.
 */
#ifndef INFERD_SETTINGS_H
#define INFERD_SETTINGS_H

#include <inferd/buf.h>
#include <inferd/error.h>
#include <stdbool.h>
#include <stddef.h>

enum setting_type {
    SETTING_STRING,  /* char *, owned, never NULL */
    SETTING_CHOICE,  /* char *, one of `choices` */
    SETTING_BOOL,    /* bool: true/false, on/off, yes/no, 1/0 */
    SETTING_INT,     /* size_t */
    SETTING_SIZE,    /* size_t, bytes: 4096, 64K, 8M, 1G (powers of 1024) */
    SETTING_SECONDS, /* double: 30, 0.5, 250ms, 30s, 5m, 1h */
    SETTING_NUMBER,  /* double */
};

enum setting_flags {
    SETTING_SECRET = 1,      /* never printed */
    SETTING_NOT_IN_FILE = 2, /* flags and environment only */
    SETTING_ENGINE = 4,      /* concerns the model and the engine: shared by every command that opens one */
    SETTING_MODEL = 8,       /* names the model: also for commands that only read its files */
    SETTING_TEXT = 16,       /* concerns the tokenizer and the chat template */
    SETTING_PLACE = 32,      /* tells where the server listens: for commands that ask it */
    SETTING_RELOAD = 64,     /* can change while serving: read again on SIGHUP */
    SETTING_NONE = 1 << 30,  /* no row has this */
};

struct setting {
    const char *name; /* "max_model_len"; the flag is --max-model-len, the variable INFERD_MAX_MODEL_LEN */
    enum setting_type type;
    size_t offset;       /* of the field in the struct that the table describes */
    const char *initial; /* the default, as one would write it */
    double min, max;     /* of INT, SIZE, SECONDS, NUMBER; both inclusive, at most 2^53 */
    const char *choices; /* of CHOICE: words parted by spaces; "x:N" stands for x:0, x:1, ... */
    const char *value;   /* what --help calls the value: "PATH"; NULL = by type */
    const char *alias;   /* further names parted by spaces; one letter: a short flag. NULL = none */
    const char *group;   /* heading; rows of a group lie together */
    const char *help;    /* one sentence without a full stop */
    unsigned flags;
};

struct settings {
    const struct setting *rows; /* [n] */
    size_t n;
};

/* Every field of *base gets its default; base was zeroed or is unset memory. ERROR_MEMORY only (then nothing is owned).
 */
int settings_init(struct settings t, void *base, struct error *err);
void settings_free(struct settings t, void *base); /* frees the strings and makes them NULL */

/* By name or alias, '-' and '_' alike; NULL if there is none. */
const struct setting *settings_find(struct settings t, const char *name, size_t len);

/*
 * Parse, check and store one value. `shown` is how the user wrote the name ("--port", "INFERD_PORT"). On failure the
 * old value stays: ERROR_INVALID with err->param = the name.
 */
int setting_set(const struct setting *s, void *base, const char *shown, const char *text, struct error *err);

/* The value as one would write it; a secret that is set as "(not shown)". */
void setting_print(const struct setting *s, const void *base, struct buf *out);
/* Give *to the value that *from has: both structs of the table, initialised. ERROR_MEMORY only. */
int setting_copy(const struct setting *s, const void *from, void *to, struct error *err);
bool setting_equal(const struct setting *s, const void *a, const void *b);
bool setting_is_default(const struct setting *s, const void *base);

/* "1 to 65535", "f16 or bf16"; nothing for free strings and booleans. */
void setting_range(const struct setting *s, struct buf *out);

/* The rows that have all bits of `only` as a --help list with headings. */
void settings_help(struct settings t, unsigned only, struct buf *out);

/* Words: the candidate that is at most two slips of the finger away from word[0..len), NULL if none is. */
const char *nearest_word(const char *word, size_t len, const char *(*candidate)(const void *arg, size_t i),
                         const void *arg);
const char *settings_nearest(struct settings t, const char *word, size_t len);

/* Append `text` broken at spaces to lines of `width` columns, every line but the first indented. */
void wrap_text(struct buf *out, const char *text, size_t column, size_t indent, size_t width);

#endif
