/* Filters of lists and dicts. */
#include "text/jinja/ast.h"
#include "text/jinja/filters.h"
#include "text/jinja/number.h"
#include "text/jinja/text.h"

#include <string.h>

static struct value generator(struct render *r, const struct seq *seq) {
    return jj_iter_new(r, seq, "generator");
}

FILTER(length) {
    UNUSED;
    return value_int((int64_t)jj_length(r, self));
}

FILTER(list) {
    UNUSED;
    return value_seq(V_LIST, jj_items_of(r, self));
}

FILTER(first) {
    UNUSED;
    if (self.type == V_ITER) { /* takes one only */
        struct iter *it = self.u.iter;
        return it->at < it->seq->n ? it->seq->items[it->at++]
                                   : jj_undefined_sentence(r, "no first item, sequence was empty");
    }
    if (self.type == V_STR && self.u.s->len) {
        size_t n;
        jj_str_char(self.u.s, 0, &n);
        return value_str(jj_str_cut(r, self.u.s, 0, n));
    }
    const struct seq *items = jj_items_of(r, self);
    return items->n ? items->items[0] : jj_undefined_sentence(r, "no first item, sequence was empty");
}

FILTER(last) {
    UNUSED;
    if (self.type == V_ITER) {
        jj_fail(r, "'%s' object is not reversible", jj_type_name(self));
        return NONE;
    }
    const struct seq *items = jj_items_of(r, self);
    return items->n ? items->items[items->n - 1] : jj_undefined_sentence(r, "no last item, sequence was empty");
}

FILTER(reverse) {
    UNUSED;
    if (self.type == V_STR) {
        struct value minus_one = value_int(-1);
        return jj_slice(r, self, NONE, NONE, minus_one);
    }
    const struct seq *items = jj_items_of(r, self);
    struct seq *reversed = jj_seq_new(r, items->n);
    for (size_t i = items->n; i-- > 0 && jj_steps(r, 1);) {
        jj_seq_push(r, reversed, items->items[i]);
    }
    return self.type == V_ITER ? value_seq(V_LIST, reversed) : jj_iter_new(r, reversed, "list_reverseiterator");
}

FILTER(join) {
    UNUSED;
    const struct str *separator = a[0].type == V_MISSING ? jj_str_empty() : jj_to_str(r, a[0]);
    const struct seq *items = jj_items_of(r, self);
    if (!absent(a[1])) {
        struct seq *attributes = jj_seq_new(r, items->n);
        for (size_t i = 0; i < items->n && !r->failed; i++) {
            jj_seq_push(r, attributes, jj_attribute_path(r, items->items[i], a[1], MISSING));
        }
        items = attributes;
    }
    return value_str(jj_join(r, jj_str_as_markup(r, separator, false), items, false));
}

FILTER(items) {
    UNUSED;
    if (self.type == V_UNDEFINED) {
        return generator(r, jj_seq_new(r, 0));
    }
    if (self.type != V_DICT) {
        jj_fail(r, "can only get item pairs from a mapping");
        return NONE;
    }
    struct seq *seq = jj_seq_new(r, self.u.dict->n);
    for (size_t i = 0; i < self.u.dict->n && jj_steps(r, 1); i++) {
        struct seq *pair = jj_seq_new(r, 2);
        jj_seq_push(r, pair, self.u.dict->entries[i].key);
        jj_seq_push(r, pair, self.u.dict->entries[i].value);
        jj_seq_push(r, seq, value_seq(V_TUPLE, pair));
    }
    return generator(r, seq);
}

/* --- sorting --- */

/* One pass of the merge sort: runs of `width` in `from` become runs of twice that in `to`. */
static void merge_runs(struct render *r, const struct seq *keys, const size_t *from, size_t *to, size_t n, size_t width,
                       bool reverse) {
    for (size_t start = 0; start < n && !r->failed; start += 2 * width) {
        size_t middle = start + width < n ? start + width : n, end = start + 2 * width < n ? start + 2 * width : n;
        size_t i = start, k = middle;
        for (size_t out = start; out < end; out++) {
            bool right = i == middle;
            if (!right && k < end) { /* the right one only when it is less: stable */
                struct value x = keys->items[from[i]], y = keys->items[from[k]];
                right = reverse ? jj_order(r, x, y, "<") == -1 : jj_order(r, y, x, "<") == -1;
            }
            to[out] = right ? from[k++] : from[i++];
        }
    }
}

const struct seq *jj_sorted(struct render *r, const struct seq *items, const struct seq *keys, bool reverse) {
    size_t n = items->n;
    size_t *order = jj_array(r, n, sizeof *order), *other = jj_array(r, n, sizeof *other);
    struct seq *sorted = jj_seq_new(r, n);
    if (r->failed || keys->n != n) {
        return items;
    }
    for (size_t i = 0; i < n; i++) {
        order[i] = i;
    }
    for (size_t width = 1; width < n && !r->failed; width *= 2) {
        merge_runs(r, keys, order, other, n, width, reverse);
        size_t *swap = order;
        order = other;
        other = swap;
    }
    for (size_t i = 0; i < n && !r->failed; i++) {
        jj_seq_push(r, sorted, items->items[order[i]]);
    }
    return sorted;
}

/* The list of attribute values that sort(attribute="a,b") compares. */
static struct value sort_key(struct render *r, struct value item, struct value attribute, bool case_sensitive) {
    struct seq *key = jj_seq_new(r, 1);
    if (attribute.type != V_STR) {
        struct value v = absent(attribute) ? item : jj_attribute_path(r, item, attribute, MISSING);
        jj_seq_push(r, key, jj_ignore_case(r, v, case_sensitive));
        return value_seq(V_LIST, key);
    }
    static const struct str comma = {.bytes = ",", .len = 1, .trusted = true, .ascii = true};
    const struct seq *paths = jj_split(r, attribute.u.s, &comma, -1, false);
    for (size_t i = 0; i < paths->n && !r->failed; i++) {
        struct value v = jj_attribute_path(r, item, paths->items[i], MISSING);
        jj_seq_push(r, key, jj_ignore_case(r, v, case_sensitive));
    }
    return value_seq(V_LIST, key);
}

FILTER(sort) {
    UNUSED;
    const struct seq *items = jj_items_of(r, self);
    struct seq *keys = jj_seq_new(r, items->n);
    bool case_sensitive = a[1].type != V_MISSING && jj_truth(a[1]);
    for (size_t i = 0; i < items->n && !r->failed; i++) {
        jj_seq_push(r, keys, sort_key(r, items->items[i], a[2], case_sensitive));
    }
    return value_seq(V_LIST, jj_sorted(r, items, keys, jj_to_flag(r, a[0], "sort")));
}

FILTER(dictsort) {
    UNUSED;
    bool case_sensitive = a[0].type != V_MISSING && jj_truth(a[0]);
    bool by_value = a[1].type == V_STR && jj_str_equals(a[1].u.s, "value");
    if (a[1].type != V_MISSING && !by_value && !(a[1].type == V_STR && jj_str_equals(a[1].u.s, "key"))) {
        jj_fail(r, "dictsort: you can only sort by either \"key\" or \"value\"");
    }
    if (self.type == V_UNDEFINED) {
        jj_fail_undefined(r, self);
    } else if (self.type != V_DICT) {
        jj_fail(r, "dictsort: expected a dict, not %s", jj_type_name(self));
    }
    if (r->failed) {
        return NONE;
    }
    const struct dict *d = self.u.dict;
    struct seq *pairs = jj_seq_new(r, d->n), *keys = jj_seq_new(r, d->n);
    for (size_t i = 0; i < d->n && jj_steps(r, 1); i++) {
        struct seq *pair = jj_seq_new(r, 2);
        jj_seq_push(r, pair, d->entries[i].key);
        jj_seq_push(r, pair, d->entries[i].value);
        jj_seq_push(r, pairs, value_seq(V_TUPLE, pair));
        jj_seq_push(r, keys, jj_ignore_case(r, by_value ? d->entries[i].value : d->entries[i].key, case_sensitive));
    }
    return value_seq(V_LIST, jj_sorted(r, pairs, keys, jj_to_flag(r, a[2], "dictsort")));
}

/* What an item is compared by in unique, min, max. */
static struct value item_key(struct render *r, struct value item, const struct value *a) {
    struct value v = absent(a[1]) ? item : jj_attribute_path(r, item, a[1], MISSING);
    return jj_ignore_case(r, v, a[0].type != V_MISSING && jj_truth(a[0]));
}

FILTER(unique) {
    UNUSED;
    const struct seq *items = jj_items_of(r, self);
    struct dict *seen = jj_dict_new(r, 0);
    struct seq *unique = jj_seq_new(r, 0);
    for (size_t i = 0; i < items->n && !r->failed; i++) {
        size_t before = seen->n;
        jj_dict_set(r, seen, item_key(r, items->items[i], a), NONE);
        if (seen->n > before) {
            jj_seq_push(r, unique, items->items[i]);
        }
    }
    return generator(r, unique);
}

static struct value extreme(struct render *r, struct value self, const struct value *a, const char *op) {
    const struct seq *items = jj_items_of(r, self);
    if (items->n == 0) {
        return jj_undefined_sentence(r, "no aggregated item, sequence was empty");
    }
    struct value best = items->items[0], best_key = item_key(r, best, a);
    for (size_t i = 1; i < items->n && !r->failed; i++) {
        struct value key = item_key(r, items->items[i], a);
        if (jj_order(r, key, best_key, op) == (op[0] == '<' ? -1 : 1)) {
            best = items->items[i];
            best_key = key;
        }
    }
    return best;
}
FILTER(min) {
    UNUSED;
    return extreme(r, self, a, "<");
}
FILTER(max) {
    UNUSED;
    return extreme(r, self, a, ">");
}

FILTER(sum) {
    UNUSED;
    const struct seq *items = jj_items_of(r, self);
    struct value total = a[1].type == V_MISSING ? value_int(0) : a[1];
    if (total.type == V_STR) {
        jj_fail(r, "sum() can't sum strings");
    }
    for (size_t i = 0; i < items->n && jj_steps(r, 1); i++) {
        struct value v = items->items[i];
        if (!absent(a[0])) {
            v = jj_attribute_path(r, v, a[0], MISSING);
        }
        total = r->failed ? total : jj_binary(r, OP_ADD, total, v);
    }
    return total;
}

FILTER(batch) {
    UNUSED;
    const struct seq *items = jj_items_of(r, self);
    struct seq *rows = jj_seq_new(r, 0), *row = jj_seq_new(r, 0);
    for (size_t i = 0; i < items->n && jj_steps(r, 1); i++) {
        if (jj_equal(r, value_int((int64_t)row->n), a[0])) {
            jj_seq_push(r, rows, value_seq(V_LIST, row));
            row = jj_seq_new(r, 0);
        }
        jj_seq_push(r, row, items->items[i]);
    }
    if (row->n && !r->failed) {
        while (!absent(a[1]) && jj_order(r, value_int((int64_t)row->n), a[0], "<") == -1 && jj_steps(r, 1)) {
            jj_seq_push(r, row, a[1]);
        }
        jj_seq_push(r, rows, value_seq(V_LIST, row));
    }
    return generator(r, rows);
}

FILTER(slice) {
    UNUSED;
    const struct seq *items = jj_items_of(r, self);
    int64_t slices = jj_to_index(r, a[0], "slice");
    if (slices == 0) {
        jj_fail(r, "slice: division by zero");
    }
    struct seq *columns = jj_seq_new(r, 0);
    int64_t n = (int64_t)items->n, at = 0;
    for (int64_t i = 0; i < slices && jj_steps(r, 1); i++) {
        int64_t size = n / slices + (i < n % slices);
        struct seq *column = jj_seq_new(r, 0);
        for (int64_t k = 0; k < size && jj_steps(r, 1); k++) {
            jj_seq_push(r, column, items->items[at++]);
        }
        if (!absent(a[1]) && i >= n % slices) {
            jj_seq_push(r, column, a[1]);
        }
        jj_seq_push(r, columns, value_seq(V_LIST, column));
    }
    return generator(r, columns);
}

/* One group: (value of the attribute, list of items). */
static struct value group(struct render *r, struct value key, struct seq *members) {
    struct seq *tuple = jj_seq_new(r, 2);
    jj_seq_push(r, tuple, key);
    jj_seq_push(r, tuple, value_seq(V_LIST, members));
    tuple->group = !r->failed;
    return value_seq(V_TUPLE, tuple);
}

FILTER(groupby) {
    UNUSED;
    const struct seq *items = jj_items_of(r, self);
    struct value otherwise = absent(a[1]) ? MISSING : a[1];
    bool case_sensitive = a[2].type != V_MISSING && jj_truth(a[2]);
    struct seq *keys = jj_seq_new(r, items->n);
    for (size_t i = 0; i < items->n && !r->failed; i++) {
        struct value v = jj_attribute_path(r, items->items[i], a[0], otherwise);
        jj_seq_push(r, keys, jj_ignore_case(r, v, case_sensitive));
    }
    const struct seq *sorted = jj_sorted(r, items, keys, false), *sorted_keys = jj_sorted(r, keys, keys, false);
    struct seq *groups = jj_seq_new(r, 0);
    for (size_t i = 0; i < sorted->n && !r->failed;) {
        struct seq *members = jj_seq_new(r, 0);
        size_t start = i;
        while (i < sorted->n && !r->failed && jj_equal(r, sorted_keys->items[i], sorted_keys->items[start])) {
            jj_seq_push(r, members, sorted->items[i++]);
        }
        struct value key = jj_attribute_path(r, sorted->items[start], a[0], otherwise);
        jj_seq_push(r, groups, group(r, key, members));
    }
    return value_seq(V_LIST, groups);
}

const struct function_info jj_sequence_filters[] = {
    {"length", length, {0}},
    {"count", length, {0}},
    {"list", list, {0}},
    {"first", first, {0}},
    {"last", last, {0}},
    {"reverse", reverse, {0}},
    {"join", join, {"d", "attribute"}},
    {"items", items, {0}},
    {"sort", sort, {"reverse", "case_sensitive", "attribute"}},
    {"dictsort", dictsort, {"case_sensitive", "by", "reverse"}},
    {"unique", unique, {"case_sensitive", "attribute"}},
    {"min", min, {"case_sensitive", "attribute"}},
    {"max", max, {"case_sensitive", "attribute"}},
    {"sum", sum, {"attribute", "start"}},
    {"batch", batch, {"linecount", "fill_with"}, 1},
    {"slice", slice, {"slices", "fill_with"}, 1},
    {"groupby", groupby, {"attribute", "default", "case_sensitive"}, 1},
    {0},
};
