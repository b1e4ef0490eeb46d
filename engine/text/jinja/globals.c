/* The functions that every template has: range, dict, namespace, cycler, joiner, raise_exception, strftime_now. */
#include "text/jinja/ast.h"
#include "text/jinja/eval.h"
#include "text/jinja/number.h"
#include "text/jinja/str.h"

#include <limits.h>
#include <string.h>
#include <time.h>

#define STRFTIME_MOST 1024 /* bytes of one formatted time */

static bool takes(struct render *r, const struct call *call, const char *name, size_t min, size_t max) {
    if (call->n < min || call->n > max || call->n_named) {
        jj_fail(r, "%s() got wrong arguments", name);
        return false;
    }
    return true;
}

static struct value call_range(struct render *r, const struct call *call) {
    if (!takes(r, call, "range", 1, 3)) {
        return NONE;
    }
    int64_t a[3] = {0, 0, 1};
    for (size_t i = 0; i < call->n; i++) {
        a[call->n == 1 ? 1 : i] = jj_to_index(r, call->positional[i], "range()");
    }
    if (a[2] == 0) {
        jj_fail(r, "range() arg 3 must not be zero");
    }
    struct range *range = r->failed ? NULL : jj_alloc(r, sizeof *range);
    if (!range) {
        return NONE;
    }
    __int128 distance = a[2] > 0 ? (__int128)a[1] - a[0] : (__int128)a[0] - a[1];
    __int128 step = a[2] > 0 ? a[2] : -(__int128)a[2];
    __int128 n = distance > 0 ? (distance - 1) / step + 1 : 0;
    if (n > JJ_MAX_RANGE) {
        jj_fail(r, "range too big: the sandbox blocks ranges of more than %d items", JJ_MAX_RANGE);
        return NONE;
    }
    *range = (struct range){.start = a[0], .stop = a[1], .step = a[2], .n = (size_t)n};
    return (struct value){.type = V_RANGE, .u.range = range};
}

/* dict(mapping or pairs, **named), which namespace() takes too. */
static struct dict *make_dict(struct render *r, const struct call *call, const char *name) {
    struct dict *d = jj_dict_new(r, call->n_named);
    if (call->n > 1) {
        jj_fail(r, "%s expected at most 1 argument, got %zu", name, call->n);
        return d;
    }
    if (call->n == 1 && call->positional[0].type == V_DICT) {
        d = jj_dict_copy(r, call->positional[0].u.dict);
    } else if (call->n == 1) {
        const struct seq *pairs = jj_items_of(r, call->positional[0]);
        for (size_t i = 0; i < pairs->n && !r->failed; i++) {
            const struct seq *pair = jj_items_of(r, pairs->items[i]);
            if (!r->failed && pair->n != 2) {
                jj_fail(r, "dictionary update sequence element has length %zu; 2 is required", pair->n);
            }
            if (!r->failed) {
                jj_dict_set(r, d, pair->items[0], pair->items[1]);
            }
        }
    }
    for (size_t i = 0; i < call->n_named && !r->failed; i++) {
        jj_dict_set(r, d, value_str(call->named[i].name), call->named[i].value);
    }
    return d;
}

static struct value call_cycler(struct render *r, const struct call *call) {
    struct cycler *c = jj_alloc(r, sizeof *c);
    struct seq *items = jj_seq_new(r, call->n);
    if (call->n == 0 || call->n_named) {
        jj_fail(r, "cycler() needs at least one item");
    }
    for (size_t i = 0; i < call->n; i++) {
        jj_seq_push(r, items, call->positional[i]);
    }
    if (r->failed) {
        return NONE;
    }
    *c = (struct cycler){.items = items};
    return (struct value){.type = V_CYCLER, .u.cycler = c};
}

static struct value call_joiner(struct render *r, const struct call *call) {
    struct joiner *j = jj_alloc(r, sizeof *j);
    if (!j) {
        return NONE;
    }
    struct value separator = value_str(jj_str_literal(r, ", "));
    if (call->n == 1 && !call->n_named) {
        separator = call->positional[0];
    } else if (call->n == 0 && call->n_named == 1 && jj_str_equals(call->named[0].name, "sep")) {
        separator = call->named[0].value;
    } else if (call->n || call->n_named) {
        jj_fail(r, "joiner() got wrong arguments");
    }
    *j = (struct joiner){.separator = separator};
    return (struct value){.type = V_JOINER, .u.joiner = j};
}

/* The template refuses the conversation: its sentence alone is the error. */
static struct value call_raise_exception(struct render *r, const struct call *call) {
    if (call->n + call->n_named != 1) {
        jj_fail(r, "raise_exception() takes one argument");
        return NONE;
    }
    const struct str *s = jj_to_str(r, call->n ? call->positional[0] : call->named[0].value);
    if (!r->failed) {
        size_t n = s->len;
        if (n >= sizeof r->err->message) { /* cut between characters */
            n = sizeof r->err->message - 1;
            while (n > 0 && ((unsigned char)s->bytes[n] & 0xc0) == 0x80) {
                n--;
            }
        }
        r->failed = true;
        error_set(r->err, ERROR_INVALID, "%.*s", (int)n, s->bytes);
    }
    return NONE;
}

static struct value call_strftime_now(struct render *r, const struct call *call) {
    if (call->n + call->n_named != 1) {
        jj_fail(r, "strftime_now() takes one argument");
        return NONE;
    }
    const struct str *format = jj_need_str(r, call->n ? call->positional[0] : call->named[0].value, "strftime_now()");
    time_t now = (time_t)r->now;
    struct tm tm;
    if (r->failed || format->len >= STRFTIME_MOST || memchr(format->bytes, '\0', format->len) || !gmtime_r(&now, &tm)) {
        jj_fail(r, "strftime_now() cannot use this format");
        return NONE;
    }
    /* a space behind tells an empty result from one that is too long */
    char text[STRFTIME_MOST + 2], with_end[STRFTIME_MOST + 1];
    memcpy(with_end, format->bytes, format->len);
    memcpy(with_end + format->len, " ", 2);
    size_t n = strftime(text, sizeof text, with_end, &tm);
    if (n == 0) {
        jj_fail(r, "strftime_now() cannot use this format");
        return NONE;
    }
    struct sb b;
    jj_sb_init(&b, r);
    jj_sb_add(&b, text, n - 1, !format->marks && format->trusted);
    return value_str(jj_sb_finish(&b));
}

struct value jj_call_global(struct render *r, uint32_t function, const struct call *call) {
    switch (function) {
    case NAME_RANGE:
        return call_range(r, call);
    case NAME_DICT:
        return value_dict(make_dict(r, call, "dict()"));
    case NAME_NAMESPACE:
        return (struct value){.type = V_NAMESPACE, .u.ns = make_dict(r, call, "namespace()")};
    case NAME_CYCLER:
        return call_cycler(r, call);
    case NAME_JOINER:
        return call_joiner(r, call);
    case NAME_RAISE_EXCEPTION:
        return call_raise_exception(r, call);
    case NAME_STRFTIME_NOW:
        return call_strftime_now(r, call);
    default:
        jj_fail(r, "'%.*s' cannot be called here", (int)r->template->names.items[function]->len,
                r->template->names.items[function]->bytes);
        return NONE;
    }
}
