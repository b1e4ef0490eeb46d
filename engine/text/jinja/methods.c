/* Methods of lists, tuples, dicts, ranges, numbers, loops; and how a method is found. */
#include "text/jinja/methods.h"
#include "text/jinja/big.h"

#include "text/jinja/loop.h"
#include "text/jinja/number.h"
#include "text/jinja/render.h"
#include "text/jinja/str.h"

#include <math.h>

#define METHOD(name)                                                                                                   \
    static struct value name(struct render *r, struct value self, const struct value *a, const struct call *call)
#define UNUSED ((void)r, (void)self, (void)a, (void)call)

METHOD(seq_index) {
    UNUSED;
    const struct seq *seq = jj_items_of(r, self);
    int64_t n = (int64_t)seq->n;
    int64_t from = a[1].type == V_MISSING ? 0 : jj_to_index(r, a[1], "index()");
    int64_t to = a[2].type == V_MISSING ? n : jj_to_index(r, a[2], "index()");
    from = from < 0 ? (from + n < 0 ? 0 : from + n) : from;
    to = to < 0 ? to + n : to > n ? n : to;
    for (int64_t i = from; i < to && !r->failed; i++) {
        if (jj_equal(r, seq->items[i], a[0])) {
            return value_int(i);
        }
    }
    jj_fail(r, "value is not in %s", jj_type_name(self));
    return NONE;
}
METHOD(seq_count) {
    UNUSED;
    const struct seq *seq = jj_items_of(r, self);
    int64_t n = 0;
    for (size_t i = 0; i < seq->n && !r->failed; i++) {
        n += jj_equal(r, seq->items[i], a[0]);
    }
    return value_int(n);
}
METHOD(list_copy) {
    UNUSED;
    return self; /* nothing can change it */
}

METHOD(dict_get) {
    UNUSED;
    struct value v = jj_dict_get(r, self.u.dict, a[0]);
    return v.type != V_MISSING ? v : a[1].type != V_MISSING ? a[1] : NONE;
}

static struct value view(struct render *r, const struct dict *d, enum view_kind kind) {
    struct seq *seq = jj_seq_new(r, d->n);
    for (size_t i = 0; i < d->n && jj_steps(r, 1); i++) {
        const struct dict_entry *e = &d->entries[i];
        if (kind != VIEW_ITEMS) {
            jj_seq_push(r, seq, kind == VIEW_KEYS ? e->key : e->value);
            continue;
        }
        struct seq *pair = jj_seq_new(r, 2);
        jj_seq_push(r, pair, e->key);
        jj_seq_push(r, pair, e->value);
        jj_seq_push(r, seq, value_seq(V_TUPLE, pair));
    }
    struct value v = value_seq(V_VIEW, seq);
    v.sub = (uint8_t)kind;
    return v;
}
METHOD(dict_keys) {
    UNUSED;
    return view(r, self.u.dict, VIEW_KEYS);
}
METHOD(dict_values) {
    UNUSED;
    return view(r, self.u.dict, VIEW_VALUES);
}
METHOD(dict_items) {
    UNUSED;
    return view(r, self.u.dict, VIEW_ITEMS);
}
METHOD(dict_copy) {
    UNUSED;
    return self;
}
METHOD(dict_fromkeys) {
    UNUSED;
    const struct seq *keys = jj_items_of(r, a[0]);
    struct dict *d = jj_dict_new(r, keys->n);
    for (size_t i = 0; i < keys->n && !r->failed; i++) {
        jj_dict_set(r, d, keys->items[i], a[1].type == V_MISSING ? NONE : a[1]);
    }
    return value_dict(d);
}

METHOD(float_is_integer) {
    UNUSED;
    return value_bool(isfinite(self.u.f) && self.u.f == floor(self.u.f));
}
METHOD(int_bit_length) {
    UNUSED;
    int64_t i = 0;
    if (!jj_as_int64(self, &i)) {
        const struct big *big = self.u.big;
        return value_int((int64_t)big->n * 32 - __builtin_clz(big->limbs[big->n - 1]));
    }
    uint64_t m = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    return value_int(m ? 64 - __builtin_clzll(m) : 0);
}

METHOD(loop_cycle) {
    UNUSED;
    if (call->n == 0 || call->n_named) {
        jj_fail(r, "no items for cycling given");
        return NONE;
    }
    return call->positional[self.u.loop->index0 % call->n];
}
METHOD(loop_changed) {
    UNUSED;
    struct seq *now = jj_seq_new(r, call->n);
    for (size_t i = 0; i < call->n; i++) {
        jj_seq_push(r, now, call->positional[i]);
    }
    struct value v = value_seq(V_TUPLE, now);
    struct loop *l = self.u.loop;
    bool changed = l->changed.type == V_MISSING || !jj_equal(r, l->changed, v);
    l->changed = v;
    return value_bool(changed);
}

METHOD(cycler_next) {
    UNUSED;
    struct cycler *c = self.u.cycler;
    struct value v = c->items->items[c->at];
    c->at = (c->at + 1) % c->items->n;
    return v;
}
METHOD(cycler_reset) {
    UNUSED;
    self.u.cycler->at = 0;
    return NONE;
}

static const struct function_info list_methods[] = {
    {"index", seq_index, {"value", "start", "stop"}, 1, .positional_only = true},
    {"count", seq_count, {"value"}, 1, .positional_only = true},
    {"copy", list_copy, {0}},
    {0},
};
static const struct function_info tuple_methods[] = {
    /* of ranges too */
    {"index", seq_index, {"value", "start", "stop"}, 1, .positional_only = true},
    {"count", seq_count, {"value"}, 1, .positional_only = true},
    {0},
};
static const struct function_info dict_methods[] = {
    {"get", dict_get, {"key", "default"}, 1, .positional_only = true},
    {"keys", dict_keys, {0}},
    {"values", dict_values, {0}},
    {"items", dict_items, {0}},
    {"copy", dict_copy, {0}},
    {"fromkeys", dict_fromkeys, {"iterable", "value"}, 1, .positional_only = true},
    {0},
};
static const struct function_info int_methods[] = {{"bit_length", int_bit_length, {0}}, {0}};
static const struct function_info float_methods[] = {{"is_integer", float_is_integer, {0}}, {0}};
static const struct function_info loop_methods[] = {
    {"cycle", loop_cycle, {0}, .variadic = true},
    {"changed", loop_changed, {0}, .variadic = true},
    {0},
};
static const struct function_info cycler_methods[] = {
    {"next", cycler_next, {0}},
    {"reset", cycler_reset, {0}},
    {0},
};

static const struct function_info *search(const struct function_info *table, const struct str *name) {
    for (; table && table->name; table++) {
        if (jj_str_equals(name, table->name)) {
            return table;
        }
    }
    return NULL;
}

/* What the sandbox keeps templates from: methods that change a list or dict. */
static bool modifies(enum value_type type, const struct str *name) {
    static const char *const list[] = {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove", NULL};
    static const char *const dict[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
    const char *const *names = type == V_LIST ? list : type == V_DICT ? dict : NULL;
    for (; names && *names; names++) {
        if (jj_str_equals(name, *names)) {
            return true;
        }
    }
    return false;
}

const struct function_info *jj_find_method(enum value_type type, const struct str *name, bool *unsafe) {
    *unsafe = modifies(type, name);
    if (*unsafe) {
        return NULL;
    }
    switch (type) {
    case V_STR: {
        const struct function_info *f = search(jj_str_methods, name);
        return f ? f : search(jj_str_query_methods, name);
    }
    case V_LIST:
        return search(list_methods, name);
    case V_TUPLE:
    case V_RANGE:
        return search(tuple_methods, name);
    case V_DICT:
        return search(dict_methods, name);
    case V_BOOL:
    case V_INT:
    case V_BIG:
        return search(int_methods, name);
    case V_FLOAT:
        return search(float_methods, name);
    case V_LOOP:
        return search(loop_methods, name);
    case V_CYCLER:
        return search(cycler_methods, name);
    default:
        return NULL;
    }
}
