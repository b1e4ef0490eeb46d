/* Binary operators on values of any type. */
#include "text/jinja/ast.h"
#include "text/jinja/big.h"
#include "text/jinja/format.h"
#include "text/jinja/functions.h"
#include "text/jinja/number.h"
#include "text/jinja/render.h"
#include "text/jinja/str.h"

#include <string.h>

static struct value unsupported(struct render *r, int op, struct value a, struct value b) {
    static const char *const names[] = {
        [OP_ADD] = "+",       [OP_SUB] = "-", [OP_MUL] = "*",           [OP_DIV] = "/",
        [OP_FLOORDIV] = "//", [OP_MOD] = "%", [OP_POW] = "** or pow()",
    };
    if (a.type == V_UNDEFINED || b.type == V_UNDEFINED) {
        jj_fail_undefined(r, a.type == V_UNDEFINED ? a : b);
    } else if (op == OP_ADD && (a.type == V_STR || a.type == V_LIST || a.type == V_TUPLE)) {
        const char *type = jj_type_name_of((enum value_type)a.type);
        jj_fail(r, "can only concatenate %s (not \"%s\") to %s", type, jj_type_name(b), type);
    } else {
        jj_fail(r, "unsupported operand type(s) for %s: '%s' and '%s'", names[op], jj_type_name(a), jj_type_name(b));
    }
    return NONE;
}

static struct value add_strings(struct render *r, const struct str *a, const struct str *b) {
    if (a->markup != b->markup) {
        a = jj_escape_html(r, value_str(a));
        b = jj_escape_html(r, value_str(b));
    }
    return value_str(jj_str_concat(r, a, b));
}

static struct value add_seqs(struct render *r, enum value_type type, const struct seq *a, const struct seq *b) {
    if (!jj_steps(r, a->n + b->n)) {
        return NONE;
    }
    struct seq *seq = jj_seq_new(r, a->n + b->n);
    for (size_t i = 0; i < a->n; i++) {
        jj_seq_push(r, seq, a->items[i]);
    }
    for (size_t i = 0; i < b->n; i++) {
        jj_seq_push(r, seq, b->items[i]);
    }
    return value_seq(type, seq);
}

static struct value repeat(struct render *r, struct value v, struct value times) {
    int64_t n = jj_to_index(r, times, "repetition");
    n = n < 0 ? 0 : n;
    if (v.type == V_STR) {
        const struct str *s = v.u.s;
        size_t total;
        if (__builtin_mul_overflow(s->len, (size_t)n, &total) || !jj_steps_bytes(r, total)) {
            jj_fail(r, "a repeated string is too long");
            return NONE;
        }
        struct sb b;
        jj_sb_init(&b, r);
        jj_sb_reserve(&b, total);
        for (int64_t i = 0; s->len && i < n && jj_steps(r, (i & 7) == 0); i++) {
            jj_sb_add_str(&b, s);
        }
        return value_str(jj_str_as_markup(r, jj_sb_finish(&b), s->markup));
    }
    size_t total;
    if (__builtin_mul_overflow(v.u.seq->n, (size_t)n, &total) || !jj_steps(r, total)) {
        jj_fail(r, "a repeated list is too long");
        return NONE;
    }
    struct seq *seq = jj_seq_new(r, total);
    for (int64_t i = 0; v.u.seq->n && i < n && !r->failed; i++) {
        for (size_t k = 0; k < v.u.seq->n; k++) {
            jj_seq_push(r, seq, v.u.seq->items[k]);
        }
    }
    return value_seq((enum value_type)v.type, seq);
}

static bool repeats(struct value v) {
    return v.type == V_STR || v.type == V_LIST || v.type == V_TUPLE;
}

struct value jj_binary(struct render *r, int op, struct value a, struct value b) {
    if (value_is_number(a) && value_is_number(b)) {
        return jj_number_binary(r, op, a, b);
    }
    if (op == OP_ADD && a.type == b.type) {
        if (a.type == V_STR) {
            return add_strings(r, a.u.s, b.u.s);
        }
        if (a.type == V_LIST || a.type == V_TUPLE) {
            return add_seqs(r, (enum value_type)a.type, a.u.seq, b.u.seq);
        }
    }
    if (op == OP_MUL && repeats(a) && value_is_integer(b)) {
        return repeat(r, a, b);
    }
    if (op == OP_MUL && repeats(b) && value_is_integer(a)) {
        return repeat(r, b, a);
    }
    if (op == OP_MOD && a.type == V_STR) {
        return value_str(jj_format_percent(r, a.u.s, b));
    }
    return unsupported(r, op, a, b);
}
