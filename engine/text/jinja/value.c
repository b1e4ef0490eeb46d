#include "text/jinja/value.h"

#include "text/jinja/number.h"
#include "text/jinja/render.h"
#include "text/jinja/str.h"

#include <math.h>
#include <string.h>

#define SMALL_DICT 8 /* entries up to which a dict is searched in order */

const char *jj_type_name_of(enum value_type type) {
    static const char *const names[] = {
        [V_MISSING] = "missing",
        [V_UNDEFINED] = "Undefined",
        [V_NONE] = "NoneType",
        [V_BOOL] = "bool",
        [V_INT] = "int",
        [V_BIG] = "int",
        [V_FLOAT] = "float",
        [V_STR] = "str",
        [V_LIST] = "list",
        [V_TUPLE] = "tuple",
        [V_DICT] = "dict",
        [V_RANGE] = "range",
        [V_VIEW] = "dict view",
        [V_ITER] = "generator",
        [V_NAMESPACE] = "Namespace",
        [V_FUNCTION] = "function",
        [V_METHOD] = "method",
        [V_MACRO] = "Macro",
        [V_LOOP] = "LoopContext",
        [V_CYCLER] = "Cycler",
        [V_JOINER] = "Joiner",
    };
    return names[type];
}

const char *jj_type_name(struct value v) {
    if (v.type == V_ITER) {
        return v.u.iter->type_name;
    }
    if (v.type == V_VIEW) {
        return v.sub == VIEW_KEYS ? "dict_keys" : v.sub == VIEW_VALUES ? "dict_values" : "dict_items";
    }
    if (v.type == V_STR && v.u.s->markup) {
        return "Markup";
    }
    return jj_type_name_of((enum value_type)v.type);
}

bool jj_truth(struct value v) {
    switch (v.type) {
    case V_MISSING:
    case V_UNDEFINED:
    case V_NONE:
        return false;
    case V_BOOL:
        return v.u.b;
    case V_INT:
        return v.u.i != 0;
    case V_FLOAT:
        return v.u.f != 0;
    case V_STR:
        return v.u.s->len != 0;
    case V_LIST:
    case V_TUPLE:
    case V_VIEW:
        return v.u.seq->n != 0;
    case V_DICT:
        return v.u.dict->n != 0;
    case V_RANGE:
        return v.u.range->n != 0;
    default:
        return true;
    }
}

/* --- lists --- */

struct seq *jj_seq_new(struct render *r, size_t capacity) {
    struct seq *s = jj_alloc(r, sizeof *s);
    struct value *items = s && capacity ? jj_array(r, capacity, sizeof *items) : NULL;
    if (r->failed) {
        r->spare_seq = (struct seq){0};
        return &r->spare_seq;
    }
    *s = (struct seq){.items = items, .cap = capacity};
    return s;
}

void jj_seq_push(struct render *r, struct seq *s, struct value v) {
    if (r->failed) {
        return;
    }
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap + s->cap / 2 + 1 : 4;
        struct value *items = jj_grow(r, s->items, s->cap * sizeof *items, cap * sizeof *items);
        if (!items) {
            return;
        }
        s->items = items;
        s->cap = cap;
    }
    s->items[s->n++] = v;
}

/* --- hashes --- */

uint64_t jj_hash_bytes(const char *bytes, size_t len) {
    uint64_t h = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
    for (size_t i = 0; i < len; i++) {
        h = (h ^ (unsigned char)bytes[i]) * UINT64_C(0x100000001b3);
    }
    return h ^ h >> 29;
}

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static uint64_t hash_double(double d) {
    if (d == floor(d) && fabs(d) < 9e18) {
        return mix((uint64_t)(int64_t)d); /* as the integer that it equals */
    }
    uint64_t bits;
    memcpy(&bits, &d, sizeof bits);
    return mix(bits);
}

uint64_t jj_hash(struct render *r, struct value v) {
    switch (v.type) {
    case V_STR:
        jj_steps_bytes(r, v.u.s->len);
        return jj_hash_bytes(v.u.s->bytes, v.u.s->len);
    case V_BOOL:
    case V_INT: {
        int64_t i = 0;
        jj_as_int64(v, &i);
        return mix((uint64_t)i);
    }
    case V_BIG:
        return hash_double(jj_as_double(v));
    case V_FLOAT:
        return hash_double(v.u.f);
    case V_NONE:
        return 1;
    case V_UNDEFINED:
        return 2;
    case V_TUPLE: {
        uint64_t h = 3;
        if (jj_enter(r)) {
            for (size_t i = 0; i < v.u.seq->n && !r->failed; i++) {
                h = mix(h ^ jj_hash(r, v.u.seq->items[i]));
            }
            jj_leave(r);
        }
        return h;
    }
    case V_LIST:
    case V_DICT:
    case V_VIEW:
        jj_fail(r, "unhashable type: '%s'", jj_type_name(v));
        return 0;
    default:
        return mix((uint64_t)(uintptr_t)v.u.p);
    }
}

/* --- dicts --- */

struct dict *jj_dict_new(struct render *r, size_t capacity) {
    struct dict *d = jj_alloc(r, sizeof *d);
    struct dict_entry *entries = d && capacity ? jj_array(r, capacity, sizeof *entries) : NULL;
    if (r->failed) {
        r->spare_dict = (struct dict){0};
        return &r->spare_dict;
    }
    *d = (struct dict){.entries = entries, .cap = capacity};
    return d;
}

static bool same_key(struct render *r, const struct dict_entry *e, uint64_t hash, struct value key) {
    if (e->hash != hash) {
        return false;
    }
    if (e->key.type == V_STR && key.type == V_STR) {
        return jj_str_same(e->key.u.s, key.u.s);
    }
    return jj_equal(r, e->key, key);
}

/* The entry with this key, or SIZE_MAX. */
static size_t find(struct render *r, const struct dict *d, uint64_t hash, struct value key) {
    if (!d->index) {
        for (size_t i = 0; i < d->n; i++) {
            if (same_key(r, &d->entries[i], hash, key)) {
                return i;
            }
        }
        return SIZE_MAX;
    }
    /* each probe is a step: keys made to collide exhaust the budget instead of the patience */
    for (size_t i = hash & d->mask; d->index[i] && jj_steps(r, 1); i = (i + 1) & d->mask) {
        if (same_key(r, &d->entries[d->index[i] - 1], hash, key)) {
            return d->index[i] - 1;
        }
    }
    return SIZE_MAX;
}

static void index_entry(struct render *r, struct dict *d, size_t entry) {
    size_t i = d->entries[entry].hash & d->mask;
    while (d->index[i] && jj_steps(r, 1)) {
        i = (i + 1) & d->mask;
    }
    d->index[i] = (uint32_t)entry + 1;
}

/* Make (or make anew) the index for twice the capacity. */
static void build_index(struct render *r, struct dict *d) {
    size_t size = 4 * SMALL_DICT;
    while (size < 2 * d->cap) {
        size *= 2;
    }
    uint32_t *index = jj_array(r, size, sizeof *index);
    if (!index) {
        return;
    }
    memset(index, 0, size * sizeof *index);
    d->index = index;
    d->mask = size - 1;
    for (size_t i = 0; i < d->n; i++) {
        index_entry(r, d, i);
    }
}

static void append_entry(struct render *r, struct dict *d, struct dict_entry e) {
    if (d->n == d->cap) {
        size_t cap = d->cap ? 2 * d->cap : 4;
        struct dict_entry *entries = jj_grow(r, d->entries, d->cap * sizeof *entries, cap * sizeof *entries);
        if (!entries || cap > UINT32_MAX / 4) {
            return;
        }
        d->entries = entries;
        d->cap = cap;
        d->index = NULL;
    }
    d->entries[d->n++] = e;
    if (d->index) {
        index_entry(r, d, d->n - 1);
    } else if (d->n > SMALL_DICT) {
        build_index(r, d);
    }
}

void jj_dict_set(struct render *r, struct dict *d, struct value key, struct value v) {
    uint64_t hash = jj_hash(r, key);
    if (r->failed) {
        return;
    }
    size_t at = find(r, d, hash, key);
    if (at != SIZE_MAX) {
        d->entries[at].value = v;
    } else if (!r->failed) {
        append_entry(r, d, (struct dict_entry){.key = key, .value = v, .hash = hash});
    }
}

struct value jj_dict_get(struct render *r, const struct dict *d, struct value key) {
    uint64_t hash = jj_hash(r, key);
    size_t at = r->failed ? SIZE_MAX : find(r, d, hash, key);
    return at == SIZE_MAX ? MISSING : d->entries[at].value;
}

struct value jj_dict_get_str(struct render *r, const struct dict *d, const struct str *key) {
    return jj_dict_get(r, d, value_str(key));
}

struct dict *jj_dict_copy(struct render *r, const struct dict *d) {
    struct dict *copy = jj_dict_new(r, d->n);
    for (size_t i = 0; i < d->n && jj_steps(r, 1); i++) {
        append_entry(r, copy, d->entries[i]);
    }
    return copy;
}

/* --- comparison --- */

static bool equal_seqs(struct render *r, const struct seq *a, const struct seq *b) {
    if (a == b) {
        return true;
    }
    if (a->n != b->n || !jj_enter(r)) {
        return false;
    }
    bool same = true;
    for (size_t i = 0; i < a->n && same && !r->failed; i++) {
        same = jj_equal(r, a->items[i], b->items[i]);
    }
    jj_leave(r);
    return same;
}

static bool equal_dicts(struct render *r, const struct dict *a, const struct dict *b) {
    if (a->n != b->n || !jj_enter(r)) {
        return false;
    }
    bool same = true;
    for (size_t i = 0; i < a->n && same && !r->failed; i++) {
        size_t at = find(r, b, a->entries[i].hash, a->entries[i].key);
        same = at != SIZE_MAX && jj_equal(r, a->entries[i].value, b->entries[at].value);
    }
    jj_leave(r);
    return same;
}

static bool equal_ranges(const struct range *a, const struct range *b) {
    return a->n == b->n && (a->n == 0 || (a->start == b->start && (a->n == 1 || a->step == b->step)));
}

/* keys() and items() compare as sets, values() only with itself. */
static bool equal_views(struct render *r, struct value a, struct value b) {
    if (a.u.seq == b.u.seq || a.sub == VIEW_VALUES || b.sub == VIEW_VALUES || a.u.seq->n != b.u.seq->n) {
        return a.u.seq == b.u.seq && a.sub == b.sub;
    }
    if (!jj_enter(r)) {
        return false;
    }
    bool same = true;
    for (size_t i = 0; i < a.u.seq->n && same && !r->failed; i++) {
        bool found = false;
        for (size_t k = 0; k < b.u.seq->n && !found && !r->failed; k++) {
            found = jj_equal(r, a.u.seq->items[i], b.u.seq->items[k]);
        }
        same = found;
    }
    jj_leave(r);
    return same;
}

bool jj_equal(struct render *r, struct value a, struct value b) {
    if (!jj_steps(r, 1)) {
        return false;
    }
    if (value_is_number(a) && value_is_number(b)) {
        return jj_number_order(a, b) == 0;
    }
    if (a.type != b.type) {
        return false;
    }
    switch (a.type) {
    case V_MISSING:
    case V_UNDEFINED:
    case V_NONE:
        return true;
    case V_STR:
        return a.u.s->len == b.u.s->len && jj_steps_bytes(r, a.u.s->len) && jj_str_same(a.u.s, b.u.s);
    case V_LIST:
    case V_TUPLE:
        return equal_seqs(r, a.u.seq, b.u.seq);
    case V_DICT:
        return a.u.dict == b.u.dict || equal_dicts(r, a.u.dict, b.u.dict);
    case V_VIEW:
        return equal_views(r, a, b);
    case V_RANGE:
        return equal_ranges(a.u.range, b.u.range);
    case V_FUNCTION:
        return a.aux == b.aux;
    default:
        return a.u.p == b.u.p;
    }
}

static int order_seqs(struct render *r, const struct seq *a, const struct seq *b, const char *op) {
    int c = 0;
    if (!jj_enter(r)) {
        return 0;
    }
    size_t i = 0;
    while (i < a->n && i < b->n && !r->failed && jj_equal(r, a->items[i], b->items[i])) {
        i++;
    }
    if (i < a->n && i < b->n) {
        c = r->failed ? 0 : jj_order(r, a->items[i], b->items[i], op);
    } else {
        c = a->n < b->n ? -1 : a->n > b->n;
    }
    jj_leave(r);
    return c;
}

int jj_order(struct render *r, struct value a, struct value b, const char *op) {
    if (!jj_steps(r, 1)) {
        return 0;
    }
    if (value_is_number(a) && value_is_number(b)) {
        return jj_number_order(a, b);
    }
    if (a.type == V_STR && b.type == V_STR) {
        jj_steps_bytes(r, a.u.s->len < b.u.s->len ? a.u.s->len : b.u.s->len);
        return jj_str_order(a.u.s, b.u.s);
    }
    if ((a.type == V_LIST || a.type == V_TUPLE) && a.type == b.type) {
        return order_seqs(r, a.u.seq, b.u.seq, op);
    }
    if (a.type == V_UNDEFINED || b.type == V_UNDEFINED) {
        jj_fail_undefined(r, a.type == V_UNDEFINED ? a : b);
        return 0;
    }
    jj_fail(r, "'%s' not supported between instances of '%s' and '%s'", op, jj_type_name(a), jj_type_name(b));
    return 0;
}

/* --- iteration --- */

struct value jj_iter_new(struct render *r, const struct seq *seq, const char *type_name) {
    struct iter *it = jj_alloc(r, sizeof *it);
    if (!it) {
        return NONE;
    }
    *it = (struct iter){.seq = seq, .type_name = type_name};
    return (struct value){.type = V_ITER, .u.iter = it};
}

static const struct seq *characters_of(struct render *r, const struct str *s) {
    struct seq *seq = jj_seq_new(r, s->ascii ? s->len : jj_str_length(s));
    for (size_t at = 0, n; at < s->len && jj_steps(r, 1); at += n) {
        jj_str_char(s, at, &n);
        const struct str *one = jj_str_cut(r, s, at, at + n);
        jj_seq_push(r, seq, value_str(jj_str_as_markup(r, one, false)));
    }
    return seq;
}

static const struct seq *keys_of(struct render *r, const struct dict *d) {
    struct seq *seq = jj_seq_new(r, d->n);
    for (size_t i = 0; i < d->n && jj_steps(r, 1); i++) {
        jj_seq_push(r, seq, d->entries[i].key);
    }
    return seq;
}

static const struct seq *numbers_of(struct render *r, const struct range *range) {
    struct seq *seq = jj_seq_new(r, range->n);
    for (size_t i = 0; i < range->n && jj_steps(r, 1); i++) {
        jj_seq_push(r, seq, value_int(range->start + (int64_t)i * range->step));
    }
    return seq;
}

/* What the iterator has not given out yet; it is used up then. */
static const struct seq *rest_of(struct render *r, struct iter *it) {
    if (it->at == 0) {
        it->at = it->seq->n;
        return it->seq;
    }
    struct seq *rest = jj_seq_new(r, 0);
    for (; it->at < it->seq->n && !r->failed; it->at++) {
        jj_seq_push(r, rest, it->seq->items[it->at]);
    }
    return rest;
}

const struct seq *jj_items_of(struct render *r, struct value v) {
    static const struct seq empty = {0};
    switch (v.type) {
    case V_UNDEFINED:
        return &empty;
    case V_LIST:
    case V_TUPLE:
    case V_VIEW:
        return v.u.seq;
    case V_STR:
        return characters_of(r, v.u.s);
    case V_DICT:
        return keys_of(r, v.u.dict);
    case V_RANGE:
        return numbers_of(r, v.u.range);
    case V_ITER:
        return rest_of(r, v.u.iter);
    default:
        jj_fail(r, "'%s' object is not iterable", jj_type_name(v));
        return &empty;
    }
}

bool jj_is_iterable(struct value v) {
    switch (v.type) {
    case V_UNDEFINED:
    case V_LIST:
    case V_TUPLE:
    case V_VIEW:
    case V_STR:
    case V_DICT:
    case V_RANGE:
    case V_ITER:
        return true;
    default:
        return false;
    }
}

bool jj_has_length(struct value v) {
    return jj_is_iterable(v) && v.type != V_ITER;
}

size_t jj_length(struct render *r, struct value v) {
    switch (v.type) {
    case V_UNDEFINED:
        return 0;
    case V_STR:
        jj_steps_bytes(r, v.u.s->ascii ? 0 : v.u.s->len);
        return jj_str_length(v.u.s);
    case V_LIST:
    case V_TUPLE:
    case V_VIEW:
        return v.u.seq->n;
    case V_DICT:
        return v.u.dict->n;
    case V_RANGE:
        return v.u.range->n;
    default:
        jj_fail(r, "object of type '%s' has no len()", jj_type_name(v));
        return 0;
    }
}

bool jj_contains(struct render *r, struct value haystack, struct value needle) {
    if (haystack.type == V_STR) {
        if (needle.type == V_UNDEFINED) {
            jj_fail(r, "'in <string>' requires string as left operand, not Undefined");
            return false;
        }
        if (needle.type != V_STR) {
            jj_fail(r, "'in <string>' requires string as left operand, not %s", jj_type_name(needle));
            return false;
        }
        return jj_str_find(r, haystack.u.s, needle.u.s, 0) != SIZE_MAX;
    }
    if (haystack.type == V_DICT) {
        return jj_dict_get(r, haystack.u.dict, needle).type != V_MISSING;
    }
    if (haystack.type == V_RANGE) {
        const struct range *range = haystack.u.range;
        int64_t i;
        if (jj_as_int64(needle, &i) && range->n) {
            __int128 offset = (__int128)i - range->start;
            return offset % range->step == 0 && offset / range->step >= 0 && offset / range->step < (__int128)range->n;
        }
    }
    if (!jj_is_iterable(haystack)) {
        jj_fail(r, "argument of type '%s' is not iterable", jj_type_name(haystack));
        return false;
    }
    if (haystack.type == V_VIEW && haystack.sub == VIEW_KEYS) {
        jj_hash(r, needle); /* for what cannot be a key */
    }
    const struct seq *items = jj_items_of(r, haystack);
    for (size_t i = 0; i < items->n && !r->failed; i++) {
        if (jj_equal(r, items->items[i], needle)) {
            return true;
        }
    }
    return false;
}

/* --- undefined --- */

struct value jj_undefined_sentence(struct render *r, const char *sentence) {
    return (struct value){.type = V_UNDEFINED, .sub = UNDEFINED_SENTENCE, .u.undefined = jj_str_literal(r, sentence)};
}

struct value jj_undefined_member(struct value object, struct value key, enum undefined_kind kind) {
    return (struct value){
        .type = V_UNDEFINED,
        .sub = (uint8_t)kind,
        .of = object.type,
        .u.undefined = key.type == V_STR ? key.u.s : NULL,
    };
}

void jj_fail_undefined(struct render *r, struct value v) {
    /* a name that came from the input is not repeated */
    const struct str *s = v.u.undefined;
    bool shown = s && !s->marks && s->trusted;
    int n = shown ? (int)(s->len < 200 ? s->len : 200) : 3;
    const char *name = shown ? s->bytes : "...";
    const char *of = v.of == V_NONE ? "None" : jj_type_name_of((enum value_type)v.of);
    switch (v.sub) {
    case UNDEFINED_NAME:
        jj_fail(r, "'%.*s' is undefined", n, name);
        break;
    case UNDEFINED_MEMBER:
        if (s) {
            jj_fail(r, "'%s%s' has no attribute '%.*s'", of, v.of == V_NONE ? "" : " object", n, name);
        } else {
            jj_fail(r, "%s%s has no such element", of, v.of == V_NONE ? "" : " object");
        }
        break;
    case UNDEFINED_UNSAFE:
        jj_fail(r, "access to attribute '%.*s' of '%s' object is unsafe", n, name, of);
        break;
    default:
        jj_fail(r, "%.*s", n, name);
        break;
    }
}
