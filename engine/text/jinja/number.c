#include "text/jinja/number.h"

#include "text/jinja/ast.h"
#include "text/jinja/big.h"
#include "text/jinja/render.h"
#include "text/jinja/unicode.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An integer value as sign and magnitude; small ones lie in `room`. */
struct integer {
    bool negative;
    size_t n;
    const uint32_t *limbs;
    uint32_t room[2];
};

static void integer_of(struct value v, struct integer *out) {
    if (v.type == V_BIG) {
        *out = (struct integer){.negative = v.u.big->negative, .n = v.u.big->n, .limbs = v.u.big->limbs};
        return;
    }
    int64_t i = v.type == V_BOOL ? v.u.b : v.u.i;
    uint64_t magnitude = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    out->negative = i < 0;
    out->room[0] = (uint32_t)magnitude;
    out->room[1] = (uint32_t)(magnitude >> 32);
    out->n = out->room[1] ? 2 : out->room[0] ? 1 : 0;
    out->limbs = out->room;
}

/* The value of a magnitude in the arena; V_INT when it fits. False when too large or out of memory. */
static bool integer_value(struct arena *arena, bool negative, const uint32_t *limbs, size_t n, struct value *out) {
    if (n <= 2) {
        uint64_t m = (uint64_t)(n > 1 ? limbs[1] : 0) << 32 | (n ? limbs[0] : 0);
        if (m <= (uint64_t)INT64_MAX || (negative && m == (uint64_t)INT64_MAX + 1)) {
            *out = value_int(negative ? (int64_t)(0 - m) : (int64_t)m);
            return true;
        }
    }
    if (n > JJ_MAX_BIG_LIMBS) {
        return false;
    }
    struct big *big = jj_arena_alloc(arena, sizeof *big);
    uint32_t *copy = jj_arena_array(arena, n, sizeof *copy);
    if (!big || !copy) {
        return false;
    }
    memcpy(copy, limbs, n * sizeof *copy);
    *big = (struct big){.negative = negative, .n = n, .limbs = copy};
    *out = (struct value){.type = V_BIG, .u.big = big};
    return true;
}

static struct value make_integer(struct render *r, bool negative, const uint32_t *limbs, size_t n) {
    struct value v = value_int(0);
    if (!integer_value(&r->arena, negative, limbs, n, &v)) {
        jj_fail(r, "an integer of the template is too large");
    }
    return v;
}

/* --- text to number --- */

static int digit_value(char c) {
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'z' ? c - 'a' + 10 : 99;
}

/* Digits with single underscores between: false unless all of it is that. */
static bool parse_magnitude(const char *s, size_t len, int base, uint32_t *limbs, size_t *n) {
    bool digit_before = false;
    *n = 0;
    for (size_t i = 0; i < len; i++) {
        if (s[i] == '_' && digit_before) {
            digit_before = false;
            continue;
        }
        int d = digit_value(s[i]);
        if (d >= base || *n == JJ_MAX_BIG_LIMBS) {
            return false;
        }
        *n = jj_mag_mul_small(limbs, *n, (uint32_t)base, (uint32_t)d);
        digit_before = true;
    }
    return digit_before;
}

static int prefix_base(const char *s, size_t len) {
    if (len < 2 || s[0] != '0') {
        return 0;
    }
    char c = (char)(s[1] | 0x20);
    return c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 0;
}

bool jj_number_literal(struct arena *arena, const char *text, size_t len, bool is_float, struct value *out) {
    if (is_float) {
        double d;
        if (!jj_parse_float(text, len, &d)) {
            return false;
        }
        *out = value_float(d);
        return true;
    }
    uint32_t limbs[JJ_MAX_BIG_LIMBS + 1];
    size_t n;
    int base = prefix_base(text, len);
    size_t skip = base ? 2 + (size_t)(len > 2 && text[2] == '_') : 0;
    return parse_magnitude(text + skip, len - skip, base ? base : 10, limbs, &n) &&
           integer_value(arena, false, limbs, n, out);
}

/* The text without white space around, other digits of Unicode turned into ASCII. Into out[cap]; false when too long.
 */
static bool clean(const char *text, size_t len, char *out, size_t cap, size_t *n) {
    struct str s = {.bytes = text, .len = len};
    size_t last = 0; /* the end of what is not white space */
    *n = 0;
    for (size_t at = 0, step; at < len; at += step) {
        uint32_t c = jj_str_char(&s, at, &step);
        bool space = jj_is_space(c);
        if (space && *n == 0) {
            continue;
        }
        int digit = jj_decimal_value(c);
        if (*n == cap) {
            if (space) {
                continue;
            }
            return false;
        }
        out[(*n)++] = digit >= 0 ? (char)('0' + digit) : c < 0x80 ? (char)c : '\x01';
        last = space ? last : *n;
    }
    *n = last;
    return true;
}

bool jj_parse_integer(struct render *r, const char *text, size_t len, int base, struct value *out) {
    char s[JJ_MAX_BIG_LIMBS * 10];
    size_t n, at = 0;
    if ((base != 0 && (base < 2 || base > 36)) || !clean(text, len, s, sizeof s, &n)) {
        return false;
    }
    bool negative = n > 0 && s[0] == '-';
    at += n > 0 && (s[0] == '-' || s[0] == '+');
    int prefix = prefix_base(s + at, n - at);
    if (prefix && (base == 0 || base == prefix)) {
        base = prefix;
        at += 2;
        at += at < n && s[at] == '_';
    } else if (base == 0) {
        base = 10;
        if (n > at + 1 && s[at] == '0' && strspn(s + at, "0_") < n - at) {
            return false;
        }
    }
    uint32_t limbs[JJ_MAX_BIG_LIMBS + 1];
    size_t limbs_n;
    if (!parse_magnitude(s + at, n - at, base, limbs, &limbs_n)) {
        return false;
    }
    *out = make_integer(r, negative, limbs, limbs_n);
    return !r->failed;
}

static bool is_word(const char *s, const char *word) {
    for (; *s && *word; s++, word++) {
        if ((*s | 0x20) != *word) {
            return false;
        }
    }
    return *s == *word;
}

bool jj_parse_float(const char *text, size_t len, double *out) {
    char s[512];
    size_t n, kept = 0;
    if (!clean(text, len, s, sizeof s - 1, &n) || n == 0) {
        return false;
    }
    /* strtod takes hexadecimal numbers and more words, Python does not; Python takes single underscores between digits
     */
    for (size_t i = 0; i < n; i++) {
        bool between = s[i] == '_' && i > 0 && i + 1 < n && s[i - 1] >= '0' && s[i - 1] <= '9' && s[i + 1] >= '0' &&
                       s[i + 1] <= '9';
        if (!between) {
            s[kept++] = s[i];
        }
    }
    s[kept] = '\0';
    const char *digits = s + (s[0] == '-' || s[0] == '+');
    if (is_word(digits, "inf") || is_word(digits, "infinity") || is_word(digits, "nan")) {
        double special = (digits[0] | 0x20) == 'i' ? (double)INFINITY : (double)NAN;
        *out = s[0] == '-' ? -special : special;
        return true;
    }
    if (strspn(digits, "0123456789.eE+-") != strlen(digits) || digits[0] == '-' || digits[0] == '+') {
        return false;
    }
    char *end;
    *out = strtod(s, &end);
    return *end == '\0' && end != s;
}

/* --- number to text --- */

size_t jj_format_double(double d, char *out) {
    if (isnan(d)) {
        return (size_t)sprintf(out, "nan");
    }
    if (isinf(d)) {
        return (size_t)sprintf(out, d < 0 ? "-inf" : "inf");
    }
    char digits[40]; /* d.ddddde±xx, the shortest that reads back as d */
    /* up to 15 digits survive the way back and forth, but for numbers near zero, which have fewer bits */
    for (int precision = fabs(d) < 1e-290 ? 1 : 15; precision <= 17; precision++) {
        snprintf(digits, sizeof digits, "%.*e", precision - 1, d);
        if (strtod(digits, NULL) == d) {
            break;
        }
    }
    char *e = strchr(digits, 'e');
    int exponent = atoi(e + 1);
    char *from = digits;
    size_t n = 0;
    if (*from == '-') {
        out[n++] = *from++;
    }
    char mantissa[24];
    size_t m = 0;
    for (; from < e; from++) {
        if (*from != '.') {
            mantissa[m++] = *from;
        }
    }
    while (m > 1 && mantissa[m - 1] == '0') {
        m--;
    }
    if (exponent < -4 || exponent >= 16) {
        out[n++] = mantissa[0];
        if (m > 1) {
            out[n++] = '.';
            memcpy(out + n, mantissa + 1, m - 1);
            n += m - 1;
        }
        return n + (size_t)sprintf(out + n, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    }
    if (exponent < 0) {
        memcpy(out + n, "0.0000", (size_t)(1 - exponent));
        n += (size_t)(1 - exponent);
        memcpy(out + n, mantissa, m);
        return n + m;
    }
    size_t whole = (size_t)exponent + 1;
    for (size_t i = 0; i < whole || i < m; i++) {
        if (i == whole) {
            out[n++] = '.';
        }
        out[n++] = i < m ? mantissa[i] : '0';
    }
    if (m <= whole) {
        out[n++] = '.';
        out[n++] = '0';
    }
    return n;
}

void jj_write_magnitude(struct sb *out, struct value v, unsigned base, bool upper, bool trusted) {
    struct integer i;
    integer_of(v, &i);
    uint32_t limbs[JJ_MAX_BIG_LIMBS], chunk = base;
    memcpy(limbs, i.limbs, i.n * sizeof *limbs);
    char text[JJ_MAX_BIG_LIMBS * 32 + 32]; /* binary is the longest */
    size_t at = sizeof text, n = i.n;
    int digits = 1; /* as many as one division by `chunk` gives */
    while (chunk <= UINT32_MAX / base) {
        chunk *= base;
        digits++;
    }
    do {
        uint32_t rest = n ? jj_mag_divide_small(limbs, &n, chunk) : 0;
        for (int k = 0; k < digits && (n || rest || k == 0); k++, rest /= base) {
            text[--at] = (upper ? "0123456789ABCDEF" : "0123456789abcdef")[rest % base];
        }
    } while (n);
    jj_steps(out->r, i.n * i.n / 8);
    jj_sb_add(out, text + at, sizeof text - at, trusted);
}

void jj_write_number(struct sb *out, struct value v) {
    char text[40];
    if (v.type == V_FLOAT) {
        size_t n = jj_format_double(v.u.f, text);
        jj_sb_add(out, text, n, !v.untrusted);
    } else if (v.type == V_INT) {
        int n = snprintf(text, sizeof text, "%lld", (long long)v.u.i);
        jj_sb_add(out, text, (size_t)n, !v.untrusted);
    } else {
        if (v.type == V_BIG && v.u.big->negative) {
            jj_sb_add(out, "-", 1, !v.untrusted);
        }
        jj_write_magnitude(out, v, 10, false, !v.untrusted);
    }
}

/* --- conversions and order --- */

double jj_as_double(struct value v) {
    switch (v.type) {
    case V_FLOAT:
        return v.u.f;
    case V_INT:
        return (double)v.u.i;
    case V_BOOL:
        return v.u.b;
    default: {
        double d = jj_mag_to_double(v.u.big->limbs, v.u.big->n);
        return v.u.big->negative ? -d : d;
    }
    }
}

bool jj_as_int64(struct value v, int64_t *out) {
    if (v.type != V_INT && v.type != V_BOOL) {
        return false;
    }
    *out = v.type == V_BOOL ? v.u.b : v.u.i;
    return true;
}

struct value jj_integer_of_double(struct render *r, double d) {
    uint32_t limbs[34];
    size_t n = jj_mag_from_double(fabs(d), limbs);
    return make_integer(r, d < 0, limbs, n);
}

static int integer_order(struct value a, struct value b) {
    struct integer x, y;
    integer_of(a, &x);
    integer_of(b, &y);
    if (x.negative != y.negative) {
        return x.negative ? -1 : 1;
    }
    int c = jj_mag_compare(x.limbs, x.n, y.limbs, y.n);
    return x.negative ? -c : c;
}

/* An integer against a finite or infinite double, exactly. */
static int mixed_order(struct value a, double d) {
    if (isinf(d)) {
        return d > 0 ? -1 : 1;
    }
    struct integer x;
    integer_of(a, &x);
    bool negative = signbit(d) && d != 0;
    if (x.negative != negative) {
        return x.n == 0 && d == 0 ? 0 : x.negative ? -1 : 1;
    }
    uint32_t limbs[34];
    size_t n = jj_mag_from_double(fabs(d), limbs);
    int c = jj_mag_compare(x.limbs, x.n, limbs, n);
    if (c == 0 && fabs(d) != floor(fabs(d))) {
        c = -1; /* the double has a fraction above */
    }
    return x.negative ? -c : c;
}

int jj_number_order(struct value a, struct value b) {
    if (a.type == V_INT && b.type == V_INT) {
        return a.u.i < b.u.i ? -1 : a.u.i > b.u.i;
    }
    if (a.type != V_FLOAT && b.type != V_FLOAT) {
        return integer_order(a, b);
    }
    if ((a.type == V_FLOAT && isnan(a.u.f)) || (b.type == V_FLOAT && isnan(b.u.f))) {
        return 2;
    }
    if (a.type == V_FLOAT && b.type == V_FLOAT) {
        return a.u.f < b.u.f ? -1 : a.u.f > b.u.f;
    }
    return a.type == V_FLOAT ? -mixed_order(b, a.u.f) : mixed_order(a, b.u.f);
}

/* --- arithmetic --- */

static struct value add_integers(struct render *r, const struct integer *a, const struct integer *b, bool subtract) {
    uint32_t out[JJ_MAX_BIG_LIMBS + 1];
    bool b_negative = b->negative != subtract;
    if (a->negative == b_negative) {
        return make_integer(r, a->negative, out, jj_mag_add(a->limbs, a->n, b->limbs, b->n, out));
    }
    if (jj_mag_compare(a->limbs, a->n, b->limbs, b->n) >= 0) {
        return make_integer(r, a->negative, out, jj_mag_sub(a->limbs, a->n, b->limbs, b->n, out));
    }
    return make_integer(r, b_negative, out, jj_mag_sub(b->limbs, b->n, a->limbs, a->n, out));
}

static struct value multiply_integers(struct render *r, const struct integer *a, const struct integer *b) {
    uint32_t out[2 * JJ_MAX_BIG_LIMBS];
    jj_steps(r, a->n * b->n / 8);
    return make_integer(r, a->negative != b->negative, out, jj_mag_mul(a->limbs, a->n, b->limbs, b->n, out));
}

/* Python's // and %: the quotient is rounded down, the remainder has the sign of the divisor. */
static struct value divide_integers(struct render *r, const struct integer *a, const struct integer *b, bool modulo) {
    if (b->n == 0) {
        jj_fail(r, "integer division or modulo by zero");
        return value_int(0);
    }
    uint32_t quotient[JJ_MAX_BIG_LIMBS + 1], remainder[JJ_MAX_BIG_LIMBS + 1];
    size_t qn, rn;
    jj_steps(r, a->n * b->n / 8);
    jj_mag_divide(a->limbs, a->n, b->limbs, b->n, quotient, &qn, remainder, &rn);
    bool negative = a->negative != b->negative;
    if (negative && rn) {
        qn = jj_mag_add(quotient, qn, (const uint32_t[]){1}, 1, quotient);
        rn = jj_mag_sub(b->limbs, b->n, remainder, rn, remainder);
    }
    return modulo ? make_integer(r, b->negative, remainder, rn) : make_integer(r, negative && qn, quotient, qn);
}

static struct value integer_binary(struct render *r, int op, struct value a, struct value b) {
    int64_t x, y, z;
    if (jj_as_int64(a, &x) && jj_as_int64(b, &y)) {
        if (op == OP_ADD && !__builtin_add_overflow(x, y, &z)) {
            return value_int(z);
        }
        if (op == OP_SUB && !__builtin_sub_overflow(x, y, &z)) {
            return value_int(z);
        }
        if (op == OP_MUL && !__builtin_mul_overflow(x, y, &z)) {
            return value_int(z);
        }
    }
    struct integer m, n;
    integer_of(a, &m);
    integer_of(b, &n);
    switch (op) {
    case OP_ADD:
    case OP_SUB:
        return add_integers(r, &m, &n, op == OP_SUB);
    case OP_MUL:
        return multiply_integers(r, &m, &n);
    default:
        return divide_integers(r, &m, &n, op == OP_MOD);
    }
}

static struct value integer_power(struct render *r, struct value base, int64_t exponent) {
    struct value result = value_int(1);
    for (; exponent > 0 && !r->failed && jj_steps(r, 1); exponent >>= 1) {
        if (exponent & 1) {
            result = integer_binary(r, OP_MUL, result, base);
        }
        if (exponent > 1) {
            base = integer_binary(r, OP_MUL, base, base);
        }
    }
    return result;
}

static struct value power(struct render *r, struct value a, struct value b) {
    if (a.type != V_FLOAT && b.type != V_FLOAT && jj_number_order(b, value_int(0)) >= 0) {
        int64_t exponent = INT64_MAX;
        jj_as_int64(b, &exponent);
        return integer_power(r, a, exponent);
    }
    double x = jj_as_double(a), y = jj_as_double(b);
    if (x == 0 && y < 0) {
        jj_fail(r, "0.0 cannot be raised to a negative power");
        return value_float(0);
    }
    if (x < 0 && isfinite(x) && isfinite(y) && y != floor(y)) {
        jj_fail(r, "a negative number cannot be raised to a fraction: complex numbers are not supported");
        return value_float(0);
    }
    double z = pow(x, y);
    if (isinf(z) && isfinite(x) && isfinite(y)) {
        jj_fail(r, "numerical result out of range");
    }
    return value_float(z);
}

static double float_modulo(double x, double y) {
    double m = fmod(x, y);
    if (m != 0) {
        return (m < 0) != (y < 0) ? m + y : m;
    }
    return copysign(0, y);
}

static double float_floor_divide(double x, double y) {
    double m = fmod(x, y), q = (x - m) / y;
    if (m != 0 && (m < 0) != (y < 0)) {
        q -= 1;
    }
    if (q == 0) {
        return copysign(0, x / y);
    }
    double whole = floor(q);
    return q - whole > 0.5 ? whole + 1 : whole;
}

static struct value float_binary(struct render *r, int op, double x, double y) {
    if (y == 0 && (op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD)) {
        jj_fail(r, op == OP_DIV ? "division by zero" : "float floor division or modulo by zero");
        return value_float(0);
    }
    switch (op) {
    case OP_ADD:
        return value_float(x + y);
    case OP_SUB:
        return value_float(x - y);
    case OP_MUL:
        return value_float(x * y);
    case OP_DIV:
        return value_float(x / y);
    case OP_FLOORDIV:
        return value_float(float_floor_divide(x, y));
    default:
        return value_float(float_modulo(x, y));
    }
}

struct value jj_number_binary(struct render *r, int op, struct value a, struct value b) {
    struct value v;
    if (op == OP_POW) {
        v = power(r, a, b);
    } else if (op == OP_DIV || a.type == V_FLOAT || b.type == V_FLOAT) {
        double x = jj_as_double(a), y = jj_as_double(b);
        if ((isinf(x) && a.type != V_FLOAT) || (isinf(y) && b.type != V_FLOAT)) {
            jj_fail(r, "an integer is too large to convert to float");
        }
        v = float_binary(r, op, x, y);
    } else {
        v = integer_binary(r, op, a, b);
    }
    v.untrusted = a.untrusted || b.untrusted;
    return v;
}

struct value jj_number_negate(struct render *r, struct value v) {
    struct value result;
    if (v.type == V_FLOAT) {
        result = value_float(-v.u.f);
    } else {
        result = integer_binary(r, OP_SUB, value_int(0), v);
    }
    result.untrusted = v.untrusted;
    return result;
}
