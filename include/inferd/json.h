/*
 * Strict JSON (RFC 8259) for bytes that came from outside: a scanner that runs before cJSON sees them, and
 * typed getters over the cJSON tree. cJSON alone accepts `[01]`, raw control bytes and invalid UTF-8, rounds
 * integers above 2^53 and cuts strings at \u0000.
 */
#ifndef INFERD_JSON_H
#define INFERD_JSON_H

#include <inferd/buf.h>
#include <inferd/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cJSON;

#define JSON_MAX_DEPTH 64
#define JSON_DEPTH_CEILING 512            /* no limit of a caller goes beyond; cJSON recurses over a tree */
#define JSON_INT_EXACT ((int64_t)1 << 53) /* integers up to here are exact in a double, so in a cJSON node */

struct json_limits {
    size_t max_depth;     /* containers inside one another; 0 = JSON_MAX_DEPTH; at most JSON_DEPTH_CEILING */
    size_t max_values;    /* values in all, a container counts as one; 0 = no limit */
    bool allow_nul;       /* accept \u0000 in strings (only for files, never for cJSON trees of requests) */
    bool allow_duplicate; /* accept duplicate keys in one object */
};

/*
 * Check that text[0..len) is exactly one JSON value: grammar, depth, UTF-8, paired surrogates, \u0000,
 * duplicate keys. Iterative, memory bounded by depth and by the keys of open objects.
 * Fails with ERROR_INVALID and a sentence with the byte offset. limits NULL = all zero.
 */
int json_check(const char *text, size_t len, const struct json_limits *limits, struct error *err);

/* json_check, then a cJSON tree of it (cJSON_Delete by the caller). Numbers too large for a double are infinite. */
int json_parse(const char *text, size_t len, const struct json_limits *limits, struct cJSON **out, struct error *err);

/*
 * The raw text of a member of the top-level object in text (already checked): *start, *n. Returns false if
 * there is no such member. Integers beyond 2^53 are read from it.
 */
bool json_member(const char *text, size_t len, const char *key, const char **start, size_t *n);

/* A JSON integer (digits only, no fraction or exponent) from raw text, false if not one or out of int64. */
bool json_raw_int(const char *text, size_t len, int64_t *out);

/*
 * Append what a JSON string (raw text with its quotes, already checked) says, as UTF-8; \u0000 is a NUL byte, which a
 * cJSON tree would cut the string at. False if the raw text is no string.
 */
bool json_raw_string(const char *text, size_t len, struct buf *out);

/*
 * Typed getters: object[key] must have the type and, for numbers, lie in [min, max]. A missing key, or null,
 * leaves *out as it is and returns 0 ("default stays"). Failure: ERROR_INVALID with err->param = key.
 * json_get_int takes integral values only (1.0 is one). A cJSON number is a double: beyond JSON_INT_EXACT it may not
 * be what was written and is refused; where all of int64 is meant, use json_member and json_raw_int.
 */
int json_get_int(const struct cJSON *object, const char *key, int64_t min, int64_t max, int64_t *out,
                 struct error *err);
int json_get_double(const struct cJSON *object, const char *key, double min, double max, double *out,
                    struct error *err);
int json_get_bool(const struct cJSON *object, const char *key, bool *out, struct error *err);
int json_get_string(const struct cJSON *object, const char *key, const char **out, struct error *err); /* borrowed */

#endif
