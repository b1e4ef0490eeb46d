/* Tests, and how filters and tests are found by name. */
#include "text/jinja/ast.h"
#include "text/jinja/filters.h"
#include "text/jinja/number.h"

#include <string.h>

#define TEST(name, expression)                                                                                         \
    static struct value name(struct render *r, struct value self, const struct value *a, const struct call *call) {    \
        UNUSED;                                                                                                        \
        return value_bool(expression);                                                                                 \
    }

/* v % divisor == remainder, for odd, even and divisibleby. */
static bool has_remainder(struct render *r, struct value v, struct value divisor, int64_t remainder) {
    struct value rest = jj_binary(r, OP_MOD, v, divisor);
    return !r->failed && jj_equal(r, rest, value_int(remainder));
}

static bool same(struct render *r, struct value x, struct value y) {
    if (x.type != y.type) {
        return false;
    }
    switch (x.type) {
    case V_NONE:
    case V_BOOL:
    case V_INT:
    case V_STR:
        return jj_equal(r, x, y);
    case V_FUNCTION:
        return x.aux == y.aux;
    default:
        return x.u.p == y.u.p;
    }
}

/* Is the order of x and y, as jj_order gives it, one of the two? (2 is neither: NaN) */
static bool ordered(struct render *r, struct value x, struct value y, const char *op, int one, int other) {
    int c = jj_order(r, x, y, op);
    return !r->failed && (c == one || c == other);
}

static bool is_sequence(struct value v) {
    switch (v.type) {
    case V_UNDEFINED:
    case V_STR:
    case V_LIST:
    case V_TUPLE:
    case V_DICT:
    case V_RANGE:
        return true;
    default:
        return false;
    }
}

TEST(is_defined, self.type != V_UNDEFINED)
TEST(is_undefined, self.type == V_UNDEFINED)
TEST(is_none, self.type == V_NONE)
TEST(is_true, self.type == V_BOOL && self.u.b)
TEST(is_false, self.type == V_BOOL && !self.u.b)
TEST(is_boolean, self.type == V_BOOL)
TEST(is_integer, self.type == V_INT || self.type == V_BIG)
TEST(is_float, self.type == V_FLOAT)
TEST(is_number, value_is_number(self))
TEST(is_string, self.type == V_STR)
TEST(is_mapping, self.type == V_DICT)
TEST(is_iterable, jj_is_iterable(self) || self.type == V_LOOP)
TEST(is_sequence_test, is_sequence(self))
TEST(is_callable_test, jj_is_callable(self))
TEST(is_escaped, self.type == V_STR && self.u.s->markup)
TEST(is_odd, has_remainder(r, self, value_int(2), 1))
TEST(is_even, has_remainder(r, self, value_int(2), 0))
TEST(is_divisible, has_remainder(r, self, a[0], 0))
TEST(is_lower, jj_str_is_lower(jj_to_str(r, self)))
TEST(is_upper, jj_str_is_upper(jj_to_str(r, self)))
TEST(is_same, same(r, self, a[0]))
TEST(is_in, jj_contains(r, a[0], self))
TEST(is_eq, jj_equal(r, self, a[0]))
TEST(is_ne, !jj_equal(r, self, a[0]))
TEST(is_lt, ordered(r, self, a[0], "<", -1, -1))
TEST(is_le, ordered(r, self, a[0], "<=", -1, 0))
TEST(is_gt, ordered(r, self, a[0], ">", 1, 1))
TEST(is_ge, ordered(r, self, a[0], ">=", 1, 0))
TEST(is_filter, (jj_hash(r, self), self.type == V_STR) && jj_find_filter(self.u.s->bytes, self.u.s->len) != NULL)
TEST(is_test, (jj_hash(r, self), self.type == V_STR) && jj_find_test(self.u.s->bytes, self.u.s->len) != NULL)

const struct function_info jj_tests[] = {
    {"defined", is_defined, {0}},
    {"undefined", is_undefined, {0}},
    {"none", is_none, {0}},
    {"true", is_true, {0}},
    {"false", is_false, {0}},
    {"boolean", is_boolean, {0}},
    {"integer", is_integer, {0}},
    {"float", is_float, {0}},
    {"number", is_number, {0}},
    {"string", is_string, {0}},
    {"mapping", is_mapping, {0}},
    {"iterable", is_iterable, {0}},
    {"sequence", is_sequence_test, {0}},
    {"callable", is_callable_test, {0}},
    {"escaped", is_escaped, {0}},
    {"odd", is_odd, {0}},
    {"even", is_even, {0}},
    {"divisibleby", is_divisible, {"num"}, 1},
    {"lower", is_lower, {0}},
    {"upper", is_upper, {0}},
    {"sameas", is_same, {"other"}, 1},
    {"in", is_in, {"seq"}, 1},
    {"eq", is_eq, {"other"}, 1},
    {"equalto", is_eq, {"other"}, 1},
    {"==", is_eq, {"other"}, 1},
    {"ne", is_ne, {"other"}, 1},
    {"!=", is_ne, {"other"}, 1},
    {"lt", is_lt, {"other"}, 1},
    {"lessthan", is_lt, {"other"}, 1},
    {"<", is_lt, {"other"}, 1},
    {"le", is_le, {"other"}, 1},
    {"<=", is_le, {"other"}, 1},
    {"gt", is_gt, {"other"}, 1},
    {"greaterthan", is_gt, {"other"}, 1},
    {">", is_gt, {"other"}, 1},
    {"ge", is_ge, {"other"}, 1},
    {">=", is_ge, {"other"}, 1},
    {"filter", is_filter, {0}},
    {"test", is_test, {0}},
    {0},
};

static const struct function_info *search(const struct function_info *table, const char *name, size_t len) {
    for (; table->name; table++) {
        if (strlen(table->name) == len && memcmp(table->name, name, len) == 0) {
            return table;
        }
    }
    return NULL;
}

const struct function_info *jj_find_filter(const char *name, size_t len) {
    const struct function_info *const tables[] = {jj_string_filters, jj_sequence_filters, jj_value_filters,
                                                  jj_layout_filters};
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        const struct function_info *f = search(tables[i], name, len);
        if (f) {
            return f;
        }
    }
    return NULL;
}

const struct function_info *jj_find_test(const char *name, size_t len) {
    return search(jj_tests, name, len);
}
