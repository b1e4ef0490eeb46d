/* JSON in and out of values. */
#ifndef INFERD_JINJA_JSON_H
#define INFERD_JINJA_JSON_H

#include "text/jinja/value.h"

#include <stdbool.h>
#include <stddef.h>

struct sb;

/*
 * The value of text[0..len), every part of it marked untrusted. Strings without escapes share the text, which must live
 * as long as the render. Fails on what is no JSON (`name` says which input it was).
 */
struct value jj_read_json(struct render *r, const char *text, size_t len, const char *name);

/* json.dumps */
struct json_style {
    bool ensure_ascii;
    bool sort_keys;
    const struct str *indent; /* NULL: on one line */
    const struct str *item_separator, *key_separator;
};
void jj_write_json(struct render *r, struct sb *out, struct value v, const struct json_style *style);

#endif
