/* Filters of single values, and those that apply filters and tests to each item. */
#include "text/jinja/ast.h"
#include "text/jinja/filters.h"
#include "text/jinja/json.h"
#include "text/jinja/number.h"
#include "text/jinja/text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* --- single values --- */

FILTER(default_filter) {
    UNUSED;
    bool use = self.type == V_UNDEFINED || (a[1].type != V_MISSING && jj_truth(a[1]) && !jj_truth(self));
    if (!use) {
        return self;
    }
    return a[0].type == V_MISSING ? value_str(jj_str_empty()) : a[0];
}

/* int() of a value that is no string; V_MISSING where Python raises TypeError or ValueError. */
static struct value integer_of(struct render *r, struct value v) {
    if (v.type == V_BOOL) {
        return value_int(v.u.b);
    }
    if (v.type == V_FLOAT) {
        return isfinite(v.u.f) ? jj_integer_of_double(r, v.u.f) : MISSING;
    }
    return value_is_integer(v) ? v : MISSING;
}

static bool is_trusted(struct value v) {
    return v.type == V_STR ? !v.u.s->marks && v.u.s->trusted : !v.untrusted;
}

FILTER(int_filter) {
    UNUSED;
    struct value otherwise = a[0].type == V_MISSING ? value_int(0) : a[0], result = MISSING;
    int64_t base = 10;
    bool by_base = self.type == V_STR && (a[1].type == V_MISSING || jj_as_int64(a[1], &base));
    if (self.type == V_UNDEFINED) {
        jj_fail_undefined(r, self);
        return NONE;
    }
    if (self.type == V_STR) {
        const struct str *s = self.u.s;
        double d;
        jj_steps(r, s->len > 20 ? s->len * 4 : 0);
        if (r->failed) {
            return NONE;
        }
        base = base > 36 || base < 0 ? 37 : base;
        if (!by_base || !jj_parse_integer(r, s->bytes, s->len, (int)base, &result)) {
            result = jj_parse_float(s->bytes, s->len, &d) ? integer_of(r, value_float(d)) : MISSING;
        }
    } else {
        result = integer_of(r, self);
    }
    if (result.type == V_MISSING) {
        return otherwise;
    }
    result.untrusted = !is_trusted(self);
    return result;
}

FILTER(float_filter) {
    UNUSED;
    struct value otherwise = a[0].type == V_MISSING ? value_float(0) : a[0];
    double d = 0;
    if (self.type == V_UNDEFINED) {
        jj_fail_undefined(r, self);
        return NONE;
    }
    if (self.type == V_STR ? !jj_parse_float(self.u.s->bytes, self.u.s->len, &d) : !value_is_number(self)) {
        return otherwise;
    }
    struct value result = value_float(self.type == V_STR ? d : jj_as_double(self));
    result.untrusted = !is_trusted(self);
    return result;
}

FILTER(abs_filter) {
    UNUSED;
    if (!value_is_number(self)) {
        jj_fail(r, "bad operand type for abs(): '%s'", jj_type_name(self));
        return NONE;
    }
    if (self.type == V_FLOAT) {
        struct value v = value_float(fabs(self.u.f));
        v.untrusted = self.untrusted;
        return v;
    }
    struct value zero = value_int(0);
    bool negative = jj_number_order(self, zero) < 0;
    return negative ? jj_number_negate(r, self) : jj_number_binary(r, OP_ADD, zero, self);
}

/* A double rounded to a number of decimal places, half to even on its exact value. */
static double round_double(double d, int64_t places) {
    char text[400 + 330];
    if (!isfinite(d) || places > 320) {
        return d;
    }
    if (places >= 0) {
        snprintf(text, sizeof text, "%.*f", (int)places, d);
    } else if (places < -308) {
        return copysign(0, d);
    } else {
        /* digits before the point that are kept, by the exponent form */
        int exponent = d == 0 ? 0 : (int)floor(log10(fabs(d)));
        int64_t digits = exponent + places;
        if (digits < 0) {
            double unit = pow(10, (double)-places);
            return copysign(fabs(d) > unit / 2 ? unit : 0, d);
        }
        snprintf(text, sizeof text, "%.*e", (int)digits, d);
    }
    double rounded = d;
    return sscanf(text, "%lf", &rounded) == 1 ? rounded : d;
}

/* round(integer, -places): to a multiple of a power of ten, half to even. */
static struct value round_integer(struct render *r, struct value v, int64_t places) {
    if (places >= 0) {
        return v;
    }
    struct value unit = jj_number_binary(r, OP_POW, value_int(10), value_int(places < -5000 ? 5000 : -places));
    struct value rest = jj_number_binary(r, OP_MOD, v, unit), down = jj_number_binary(r, OP_SUB, v, rest);
    int c = r->failed ? 0 : jj_number_order(jj_number_binary(r, OP_MUL, rest, value_int(2)), unit);
    struct value odd = jj_number_binary(r, OP_MOD, jj_number_binary(r, OP_FLOORDIV, down, unit), value_int(2));
    bool up = c > 0 || (c == 0 && jj_truth(odd));
    return up ? jj_number_binary(r, OP_ADD, down, unit) : down;
}

FILTER(round_filter) {
    UNUSED;
    const struct str *method = a[1].type == V_MISSING ? NULL : jj_need_str(r, a[1], "round");
    bool ceiling = method && jj_str_equals(method, "ceil"), down = method && jj_str_equals(method, "floor");
    if (!value_is_number(self)) {
        jj_fail(r, "type %s doesn't define __round__ method", jj_type_name(self));
    } else if (method && !ceiling && !down && !jj_str_equals(method, "common")) {
        jj_fail(r, "round: method must be common, ceil or floor");
    }
    if (r->failed) {
        return NONE;
    }
    struct value v;
    if (ceiling || down) {
        if (a[0].type != V_MISSING && !value_is_number(a[0])) {
            jj_fail(r, "round: the precision must be a number");
            return NONE;
        }
        double places = a[0].type == V_MISSING ? 0 : jj_as_double(a[0]), factor = pow(10, places);
        double scaled = jj_as_double(self) * factor;
        bool exact = self.type != V_FLOAT && places >= 0; /* an integer is its own floor */
        v = value_float(exact ? jj_as_double(self) : (ceiling ? ceil(scaled) : floor(scaled)) / factor + 0.0);
    } else if (self.type == V_FLOAT) {
        v = value_float(round_double(self.u.f, absent(a[0]) ? 0 : jj_to_index(r, a[0], "round")));
    } else {
        int64_t places = absent(a[0]) ? 0 : jj_to_index(r, a[0], "round");
        v = round_integer(r, self.type == V_BOOL ? value_int(self.u.b) : self, places);
    }
    v.untrusted = self.untrusted;
    return v;
}

FILTER(filesizeformat) {
    UNUSED;
    bool binary = a[0].type != V_MISSING && jj_truth(a[0]);
    double bytes = 0, base = binary ? 1024 : 1000;
    if (value_is_number(self)) {
        bytes = jj_as_double(self);
    } else if (self.type != V_STR || !jj_parse_float(self.u.s->bytes, self.u.s->len, &bytes)) {
        jj_fail(r, "filesizeformat: expected a number");
        return NONE;
    }
    char text[400];
    if (bytes == 1) {
        snprintf(text, sizeof text, "1 Byte");
    } else if (bytes < base) {
        snprintf(text, sizeof text, "%.0f Bytes", trunc(bytes) + 0.0);
    } else {
        const char *prefixes = "kMGTPEZY";
        size_t i = 0;
        double unit = base * base;
        while (i < 7 && bytes >= unit) {
            unit *= base;
            i++;
        }
        char prefix = i == 0 && binary ? 'K' : prefixes[i];
        snprintf(text, sizeof text, "%.1f %c%s", base * bytes / unit, prefix, binary ? "iB" : "B");
    }
    struct sb b;
    jj_sb_init(&b, r);
    jj_sb_add(&b, text, strlen(text), is_trusted(self));
    return value_str(jj_sb_finish(&b));
}

/* transformers' tojson: json.dumps without HTML escapes. */
FILTER(tojson) {
    UNUSED;
    struct json_style style = {
        .ensure_ascii = a[0].type != V_MISSING && jj_truth(a[0]),
        .sort_keys = a[3].type != V_MISSING && jj_truth(a[3]),
    };
    if (a[1].type == V_STR) {
        style.indent = a[1].u.s;
    } else if (!absent(a[1])) {
        static const struct str space = {.bytes = " ", .len = 1, .trusted = true, .ascii = true};
        style.indent = jj_pad(r, jj_str_empty(), jj_to_index(r, a[1], "tojson"), &space, '<');
    }
    if (absent(a[2])) {
        style.item_separator = jj_str_literal(r, style.indent ? "," : ", ");
        style.key_separator = jj_str_literal(r, ": ");
    } else {
        const struct seq *pair = jj_items_of(r, a[2]);
        if (!r->failed && pair->n != 2) {
            jj_fail(r, "tojson: separators must be a pair of strings");
        }
        if (r->failed) {
            return NONE;
        }
        style.item_separator = jj_need_str(r, pair->items[0], "tojson");
        style.key_separator = jj_need_str(r, pair->items[1], "tojson");
    }
    struct sb b;
    jj_sb_init(&b, r);
    if (!r->failed) {
        jj_write_json(r, &b, self, &style);
    }
    return value_str(jj_sb_finish(&b));
}

/* --- attributes --- */

/* A part of a path as a key: digits are an index. */
static struct value path_part(struct render *r, const struct str *path, size_t from, size_t to) {
    int64_t n = 0;
    bool digits = to > from && to - from < 10;
    for (size_t i = from; i < to && digits; i++) {
        digits = path->bytes[i] >= '0' && path->bytes[i] <= '9';
        n = n * 10 + (path->bytes[i] - '0');
    }
    return digits ? value_int(n) : value_str(jj_str_cut(r, path, from, to));
}

struct value jj_attribute_path(struct render *r, struct value item, struct value path, struct value otherwise) {
    if (path.type != V_STR) {
        struct value v = path.type == V_NONE ? item : jj_getitem(r, item, path);
        return v.type == V_UNDEFINED && otherwise.type != V_MISSING ? otherwise : v;
    }
    const struct str *s = path.u.s;
    for (size_t from = 0; from <= s->len && jj_steps(r, 1);) {
        const char *dot = memchr(s->bytes + from, '.', s->len - from);
        size_t to = dot ? (size_t)(dot - s->bytes) : s->len;
        item = jj_getitem(r, item, path_part(r, s, from, to));
        if (item.type == V_UNDEFINED && otherwise.type != V_MISSING) {
            item = otherwise;
        }
        from = to + 1;
    }
    return item;
}

struct value jj_ignore_case(struct render *r, struct value v, bool case_sensitive) {
    return v.type == V_STR && !case_sensitive ? value_str(jj_change_case(r, v.u.s, TEXT_LOWER)) : v;
}

FILTER(attr) {
    UNUSED;
    const struct str *name = jj_need_str(r, a[0], "attr");
    return r->failed ? NONE : jj_attribute(r, self, name);
}

/* --- map, select, reject --- */

/* The arguments behind the first `skip` ones. */
static struct call rest_of(const struct call *call, size_t skip) {
    struct call rest = *call;
    rest.positional += skip;
    rest.n -= skip;
    return rest;
}

/* What an empty sequence makes of map and the like: nothing, whatever the arguments. */
static bool nothing(struct value self) {
    return self.type != V_ITER && !jj_truth(self);
}

static struct value map_attribute(struct render *r, struct value self, const struct call *call) {
    struct value path = MISSING, otherwise = MISSING;
    for (size_t i = 0; i < call->n_named; i++) {
        if (jj_str_equals(call->named[i].name, "attribute")) {
            path = call->named[i].value;
        } else if (jj_str_equals(call->named[i].name, "default")) {
            otherwise = absent(call->named[i].value) ? MISSING : call->named[i].value;
        } else {
            jj_fail(r, "map: unexpected keyword argument");
        }
    }
    if (path.type == V_MISSING) {
        jj_fail(r, "map requires a filter argument");
        return NONE;
    }
    const struct seq *items = jj_items_of(r, self);
    struct seq *mapped = jj_seq_new(r, items->n);
    for (size_t i = 0; i < items->n && jj_steps(r, 1); i++) {
        jj_seq_push(r, mapped, jj_attribute_path(r, items->items[i], path, otherwise));
    }
    return jj_iter_new(r, mapped, "generator");
}

/* The filter or test that an argument names; NULL (failed) when there is none. */
static const struct function_info *named_function(struct render *r, struct value name, bool is_filter) {
    const struct str *s = jj_need_str(r, name, is_filter ? "map" : "select");
    const struct function_info *f = is_filter ? jj_find_filter(s->bytes, s->len) : jj_find_test(s->bytes, s->len);
    if (!f) {
        bool shown = !s->marks && s->trusted && s->len < 64;
        jj_fail(r, "no %s named '%.*s'", is_filter ? "filter" : "test", shown ? (int)s->len : 3,
                shown ? s->bytes : "...");
    }
    return f;
}

FILTER(map) {
    UNUSED;
    if (nothing(self)) {
        return jj_iter_new(r, jj_seq_new(r, 0), "generator");
    }
    if (call->n == 0) {
        return map_attribute(r, self, call);
    }
    const struct function_info *f = named_function(r, call->positional[0], true);
    struct call rest = rest_of(call, 1);
    const struct seq *items = jj_items_of(r, self);
    struct seq *mapped = jj_seq_new(r, items->n);
    if (!r->failed && jj_enter(r)) {
        for (size_t i = 0; i < items->n && jj_steps(r, 1); i++) {
            jj_seq_push(r, mapped, jj_run(r, f, "filter", items->items[i], &rest));
        }
        jj_leave(r);
    }
    return jj_iter_new(r, mapped, "generator");
}

static struct value select_items(struct render *r, struct value self, const struct call *call, bool wanted,
                                 bool by_attribute) {
    struct seq *selected = jj_seq_new(r, 0);
    if (nothing(self)) {
        return jj_iter_new(r, selected, "generator");
    }
    size_t skip = by_attribute;
    if (call->n < skip) {
        jj_fail(r, "missing parameter for attribute name");
        return NONE;
    }
    const struct function_info *test = NULL;
    struct call rest = {0};
    if (call->n > skip) {
        test = named_function(r, call->positional[skip], false);
        rest = rest_of(call, skip + 1);
    }
    const struct seq *items = jj_items_of(r, self);
    for (size_t i = 0; i < items->n && jj_steps(r, 1); i++) {
        struct value v = items->items[i];
        if (by_attribute) {
            v = jj_attribute_path(r, v, call->positional[0], MISSING);
        }
        if (!r->failed && test) {
            v = jj_run(r, test, "test", v, &rest);
        }
        if (!r->failed && jj_truth(v) == wanted) {
            jj_seq_push(r, selected, items->items[i]);
        }
    }
    return jj_iter_new(r, selected, "generator");
}
FILTER(select_filter) {
    UNUSED;
    return select_items(r, self, call, true, false);
}
FILTER(reject) {
    UNUSED;
    return select_items(r, self, call, false, false);
}
FILTER(selectattr) {
    UNUSED;
    return select_items(r, self, call, true, true);
}
FILTER(rejectattr) {
    UNUSED;
    return select_items(r, self, call, false, true);
}

const struct function_info jj_value_filters[] = {
    {"default", default_filter, {"default_value", "boolean"}},
    {"d", default_filter, {"default_value", "boolean"}},
    {"int", int_filter, {"default", "base"}},
    {"float", float_filter, {"default"}},
    {"abs", abs_filter, {0}},
    {"round", round_filter, {"precision", "method"}},
    {"filesizeformat", filesizeformat, {"binary"}},
    {"tojson", tojson, {"ensure_ascii", "indent", "separators", "sort_keys"}},
    {"attr", attr, {"name"}, 1},
    {"map", map, {0}, .variadic = true},
    {"select", select_filter, {0}, .variadic = true},
    {"reject", reject, {0}, .variadic = true},
    {"selectattr", selectattr, {0}, .variadic = true},
    {"rejectattr", rejectattr, {0}, .variadic = true},
    {0},
};
