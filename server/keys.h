/*
 * The keys that clients may present: those of the settings api_key and api_keys_file. The file has a section for each,
 *
 *     [alice]
 *     sha256 = 2bd806c9...
 *     scopes = infer metrics
 *     requests_per_minute = 60
 *
 * and never a key itself: `inferd key NAME` makes one. conf/api_keys.example shows every line.
 */
#ifndef INFERD_KEYS_H
#define INFERD_KEYS_H

#include "auth.h"
#include "settings.h"

#include <inferd/buf.h>
#include <inferd/error.h>
#include <stddef.h>
#include <stdint.h>

struct config;

#define KEYS_MAX 1000   /* in a file: each has some lines of metrics, and one is compared with all */
#define KEY_NAME_MAX 48 /* [A-Za-z0-9._@-] */
#define KEY_SALT_MAX 128

enum key_scope {
    KEY_INFER = 1,   /* everything under /v1, tokens */
    KEY_METRICS = 2, /* /metrics */
    KEY_ADMIN = 4,   /* what tells of the server itself: /version and the metrics, too */
    KEY_ALL = 7,
};

enum key_priority { KEY_HIGH, KEY_NORMAL, KEY_LOW };

/* One key as it was configured. Owns nothing. */
struct key_spec {
    char name[KEY_NAME_MAX + 1];
    unsigned char digest[AUTH_DIGEST]; /* SHA-256 of the key */
    struct auth_identity who;
    unsigned scopes;
    size_t requests_per_minute, tokens_per_minute, max_concurrent; /* 0 = no limit */
    enum key_priority priority;
};

struct keys {
    struct key_spec *list; /* [n], owned; names and digests differ */
    size_t n;
};

/* The lines of a section as rows of a table: names, ranges, defaults, help; for struct key_values. */
struct key_values {
    char *sha256, *scopes, *priority, *cache_salt;
    size_t requests_per_minute, tokens_per_minute, max_concurrent;
};
struct settings key_settings(void);

/*
 * The keys of both settings; api_key gives one named "api_key" that may do everything. A sentence of `warnings` a line
 * (NULL: not wanted). ERROR_MODEL: "FILE:LINE: reason". As sshd does with authorized_keys, a file that others can
 * write is refused: they could let themselves in. One that others can read is worth a warning.
 */
int keys_load(const struct config *c, struct keys *out, struct buf *warnings, struct error *err);
/* A file alone. */
int keys_load_file(const char *path, struct keys *out, struct buf *warnings, struct error *err);
void keys_free(struct keys *k); /* zeroed or NULL is fine */

/* 1..KEY_NAME_MAX of the characters that a name may have. */
bool key_name_valid(const char *name);
/* What is wrong with a key itself, NULL if nothing: it travels in a header. */
const char *key_fault(const char *key);
/* What is wrong with a cache_salt, NULL if nothing: what it may have means the same in a line of the file. */
const char *key_salt_fault(const char *salt);
/* The scopes in words, parted by blanks or commas. ERROR_MODEL, err->param "scopes". */
int key_scopes(const char *text, unsigned *out, struct error *err);

#endif
