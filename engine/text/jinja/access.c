/* object.name, object[key], object[from:to:step] as the sandbox of Jinja2 finds them. */
#include "text/jinja/ast.h"
#include "text/jinja/functions.h"
#include "text/jinja/loop.h"
#include "text/jinja/number.h"
#include "text/jinja/render.h"
#include "text/jinja/str.h"

#include <string.h>

static struct value bind_method(struct render *r, struct value self, const struct function_info *function) {
    struct method *m = jj_alloc(r, sizeof *m);
    if (!m) {
        return NONE;
    }
    *m = (struct method){.self = self, .function = function};
    return (struct value){.type = V_METHOD, .u.method = m};
}

/* Attributes that are no methods. V_MISSING if there is none. */
static struct value plain_attribute(struct render *r, struct value object, const struct str *name) {
    switch (object.type) {
    case V_NAMESPACE:
        return jj_dict_get_str(r, object.u.ns, name);
    case V_LOOP:
        return jj_loop_attribute(r, object.u.loop, name);
    case V_TUPLE:
        if (object.u.seq->group && (jj_str_equals(name, "grouper") || jj_str_equals(name, "list"))) {
            return object.u.seq->items[jj_str_equals(name, "list")];
        }
        return MISSING;
    case V_CYCLER:
        return jj_str_equals(name, "current") ? object.u.cycler->items->items[object.u.cycler->at] : MISSING;
    case V_MACRO:
        if (jj_str_equals(name, "name")) {
            const struct str *text = object.u.macro->node->u.macro->text;
            return text ? value_str(text) : NONE;
        }
        return MISSING;
    case V_RANGE:
        if (jj_str_equals(name, "start") || jj_str_equals(name, "stop") || jj_str_equals(name, "step")) {
            return value_int(jj_str_equals(name, "start")  ? object.u.range->start
                             : jj_str_equals(name, "stop") ? object.u.range->stop
                                                           : object.u.range->step);
        }
        return MISSING;
    default:
        return MISSING;
    }
}

/* getattr() of Python with the sandbox's rules: V_MISSING when there is no such attribute. */
static struct value attribute(struct render *r, struct value object, const struct str *name) {
    if (name->len > 4 && memcmp(name->bytes, "__", 2) == 0 && memcmp(name->bytes + name->len - 2, "__", 2) == 0) {
        return jj_undefined_member(object, value_str(name), UNDEFINED_UNSAFE);
    }
    struct value v = plain_attribute(r, object, name);
    if (v.type != V_MISSING) {
        return v;
    }
    bool unsafe = false;
    const struct function_info *method = jj_find_method((enum value_type)object.type, name, &unsafe);
    if (unsafe) {
        return jj_undefined_member(object, value_str(name), UNDEFINED_UNSAFE);
    }
    return method ? bind_method(r, object, method) : MISSING;
}

static struct value item_at(struct render *r, struct value object, int64_t index) {
    int64_t n = (int64_t)jj_length(r, object);
    index += index < 0 ? n : 0;
    if (index < 0 || index >= n) {
        return MISSING;
    }
    if (object.type == V_RANGE) {
        return value_int(object.u.range->start + index * object.u.range->step);
    }
    if (object.type == V_STR) {
        const struct str *s = object.u.s;
        size_t at = jj_str_offset(s, (size_t)index), len;
        jj_str_char(s, at, &len);
        return value_str(jj_str_cut(r, s, at, at + len));
    }
    return object.u.seq->items[index];
}

/* object[key] of Python; V_MISSING for what raises TypeError or LookupError there. */
static struct value item(struct render *r, struct value object, struct value key) {
    int64_t index;
    switch (object.type) {
    case V_DICT:
        if (key.type == V_LIST || key.type == V_DICT || key.type == V_VIEW) {
            return MISSING;
        }
        return jj_dict_get(r, object.u.dict, key);
    case V_LIST:
    case V_TUPLE:
    case V_STR:
    case V_RANGE:
        return jj_as_int64(key, &index) ? item_at(r, object, index) : MISSING;
    default:
        return MISSING;
    }
}

struct value jj_getattr(struct render *r, struct value object, const struct str *name) {
    struct value v = attribute(r, object, name);
    if (object.type == V_UNDEFINED && v.type == V_MISSING) {
        jj_fail_undefined(r, object);
        return object;
    }
    if (v.type == V_MISSING) {
        v = item(r, object, value_str(name));
    }
    return v.type == V_MISSING ? jj_undefined_member(object, value_str(name), UNDEFINED_MEMBER) : v;
}

struct value jj_attribute(struct render *r, struct value object, const struct str *name) {
    struct value v = attribute(r, object, name);
    if (object.type == V_UNDEFINED && v.type == V_MISSING) {
        jj_fail_undefined(r, object);
        return object;
    }
    return v.type == V_MISSING ? jj_undefined_member(object, value_str(name), UNDEFINED_MEMBER) : v;
}

struct value jj_getitem(struct render *r, struct value object, struct value key) {
    if (object.type == V_UNDEFINED) {
        jj_fail_undefined(r, object);
        return object;
    }
    struct value v = item(r, object, key);
    if (v.type == V_MISSING && key.type == V_STR) {
        v = attribute(r, object, key.u.s);
    }
    return v.type == V_MISSING ? jj_undefined_member(object, key, UNDEFINED_MEMBER) : v;
}

/* --- slices --- */

/* One bound of a slice as Python adjusts it to a length. */
static int64_t adjust(int64_t bound, int64_t n, bool backward) {
    if (bound < 0) {
        bound += n;
        return bound < 0 ? (backward ? -1 : 0) : bound;
    }
    return bound >= n ? (backward ? n - 1 : n) : bound;
}

struct slice {
    int64_t from, to, step;
    size_t count;
};

static bool read_slice(struct render *r, struct value from, struct value to, struct value step, int64_t n,
                       struct slice *out) {
    int64_t a = 0, b = 0, s = 1;
    bool has_a = from.type != V_NONE, has_b = to.type != V_NONE, has_s = step.type != V_NONE;
    a = has_a ? jj_to_index(r, from, "slice") : 0;
    b = has_b ? jj_to_index(r, to, "slice") : 0;
    s = has_s ? jj_to_index(r, step, "slice") : 1;
    if (s == 0) {
        jj_fail(r, "slice step cannot be zero");
        return false;
    }
    s = s < -INT64_MAX ? -INT64_MAX : s;
    bool backward = s < 0;
    a = has_a ? adjust(a, n, backward) : backward ? n - 1 : 0;
    b = has_b ? adjust(b, n, backward) : backward ? -1 : n;
    int64_t distance = backward ? a - b : b - a;
    int64_t stride = backward ? -s : s;
    if (r->failed) {
        return false;
    }
    *out = (struct slice){
        .from = a, .to = b, .step = s, .count = distance > 0 ? (size_t)((distance - 1) / stride + 1) : 0};
    return true;
}

/* Byte offsets of all characters, for slices with a step. */
static const size_t *offsets_of(struct render *r, const struct str *s, size_t n) {
    size_t *offsets = jj_array(r, n + 1, sizeof *offsets);
    if (!offsets) {
        return NULL;
    }
    size_t i = 0;
    for (size_t at = 0, len; at < s->len && i < n; at += len) {
        jj_str_char(s, at, &len);
        offsets[i++] = at;
    }
    while (i <= n) {
        offsets[i++] = s->len;
    }
    return offsets;
}

static const struct str *slice_string(struct render *r, const struct str *s, size_t n, const struct slice *p) {
    if (p->count == 0) {
        return jj_str_cut(r, s, 0, 0);
    }
    jj_steps_bytes(r, s->ascii ? p->count : s->len);
    if (p->step == 1) {
        size_t from = jj_str_offset(s, (size_t)p->from);
        struct str rest = *s;
        rest.bytes += from;
        rest.len -= from;
        return jj_str_cut(r, s, from, from + jj_str_offset(&rest, p->count));
    }
    const size_t *offsets = s->ascii ? NULL : offsets_of(r, s, n);
    struct sb b;
    jj_sb_init(&b, r);
    for (size_t i = 0; i < p->count && !r->failed; i++) {
        size_t at = (size_t)(p->from + (int64_t)i * p->step);
        jj_sb_add_cut(&b, s, offsets ? offsets[at] : at, offsets ? offsets[at + 1] : at + 1);
        jj_steps(r, (i & 15) == 0);
    }
    return jj_str_as_markup(r, jj_sb_finish(&b), s->markup);
}

struct value jj_slice(struct render *r, struct value object, struct value from, struct value to, struct value step) {
    struct slice p;
    switch (object.type) {
    case V_UNDEFINED:
        jj_fail_undefined(r, object);
        return object;
    case V_STR:
    case V_LIST:
    case V_TUPLE:
    case V_RANGE:
        break;
    default:
        jj_fail(r, "'%s' object cannot be sliced", jj_type_name(object));
        return NONE;
    }
    size_t n = jj_length(r, object);
    if (!read_slice(r, from, to, step, (int64_t)n, &p)) {
        return NONE;
    }
    if (object.type == V_STR) {
        return value_str(slice_string(r, object.u.s, n, &p));
    }
    if (object.type == V_RANGE) {
        const struct range *whole = object.u.range;
        struct range *part = jj_alloc(r, sizeof *part);
        if (!part) {
            return NONE;
        }
        *part = (struct range){.n = p.count};
        if (__builtin_mul_overflow(whole->step, p.step, &part->step) ||
            __builtin_mul_overflow(whole->step, p.from, &part->start) ||
            __builtin_add_overflow(whole->start, part->start, &part->start) ||
            __builtin_mul_overflow(whole->step, p.to, &part->stop) ||
            __builtin_add_overflow(whole->start, part->stop, &part->stop)) {
            jj_fail(r, "a slice of a range is too large");
        }
        return (struct value){.type = V_RANGE, .u.range = part};
    }
    struct seq *seq = jj_seq_new(r, p.count);
    for (size_t i = 0; i < p.count && jj_steps(r, 1); i++) {
        jj_seq_push(r, seq, object.u.seq->items[p.from + (int64_t)i * p.step]);
    }
    return value_seq((enum value_type)object.type, seq);
}
