#include "text/jinja/unicode.h"

#include "text/jinja/unicode_tables.h"

#include <utf8proc.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static bool in_ranges(const struct code_point_range *ranges, size_t n, uint32_t c) {
    size_t low = 0, high = n;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (c > ranges[mid].last) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low < n && c >= ranges[low].first;
}

static utf8proc_category_t category(uint32_t c) {
    return utf8proc_category((utf8proc_int32_t)c);
}

bool jj_is_space(uint32_t c) {
    if (c < 0x80) {
        return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1c && c <= 0x1f);
    }
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

bool jj_is_line_end(uint32_t c) {
    return (c >= '\n' && c <= '\r') || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

bool jj_is_alpha(uint32_t c) {
    if (c < 0x80) {
        return (c | 0x20) >= 'a' && (c | 0x20) <= 'z';
    }
    utf8proc_category_t k = category(c);
    return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

bool jj_is_decimal(uint32_t c) {
    return c < 0x80 ? c >= '0' && c <= '9' : category(c) == UTF8PROC_CATEGORY_ND;
}

bool jj_is_digit(uint32_t c) {
    return jj_is_decimal(c) || in_ranges(digits_not_decimal, COUNT(digits_not_decimal), c);
}

bool jj_is_numeric(uint32_t c) {
    if (c < 0x80) {
        return c >= '0' && c <= '9';
    }
    utf8proc_category_t k = category(c);
    return (k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO) ||
           in_ranges(numeric_letters, COUNT(numeric_letters), c);
}

bool jj_is_word(uint32_t c) {
    return jj_is_alpha(c) || jj_is_numeric(c);
}

bool jj_is_printable(uint32_t c) {
    if (c < 0x80) {
        return c >= ' ' && c < 0x7f;
    }
    switch (category(c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    default:
        return true;
    }
}

bool jj_is_lower(uint32_t c) {
    if (c < 0x80) {
        return c >= 'a' && c <= 'z';
    }
    return category(c) == UTF8PROC_CATEGORY_LL || in_ranges(other_lowercase, COUNT(other_lowercase), c);
}

bool jj_is_upper(uint32_t c) {
    if (c < 0x80) {
        return c >= 'A' && c <= 'Z';
    }
    return category(c) == UTF8PROC_CATEGORY_LU || in_ranges(other_uppercase, COUNT(other_uppercase), c);
}

bool jj_is_title(uint32_t c) {
    return c >= 0x80 && category(c) == UTF8PROC_CATEGORY_LT;
}

bool jj_is_cased(uint32_t c) {
    return jj_is_lower(c) || jj_is_upper(c) || jj_is_title(c);
}

bool jj_is_case_ignorable(uint32_t c) {
    switch (c) { /* Word_Break MidLetter, MidNumLet, Single_Quote (Unicode chapter 3.13, definition D136) */
    case '\'':
    case '.':
    case ':':
    case 0xb7:
    case 0x387:
    case 0x55f:
    case 0x5f4:
    case 0x2018:
    case 0x2019:
    case 0x2024:
    case 0x2027:
    case 0xfe13:
    case 0xfe52:
    case 0xfe55:
    case 0xff07:
    case 0xff0e:
    case 0xff1a:
        return true;
    default:
        break;
    }
    switch (category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
        return true;
    default:
        return false;
    }
}

int jj_decimal_value(uint32_t c) {
    if (c < 0x80) {
        return c >= '0' && c <= '9' ? (int)c - '0' : -1;
    }
    if (category(c) != UTF8PROC_CATEGORY_ND) {
        return -1;
    }
    if (c >= 0x1d7ce && c <= 0x1d7ff) { /* mathematical digits: five sets of ten in one run */
        return (int)((c - 0x1d7ce) % 10);
    }
    int value = 0; /* every other set is a run of ten that begins where the category does */
    while (value < 9 && category(c - (uint32_t)value - 1) == UTF8PROC_CATEGORY_ND) {
        value++;
    }
    return value;
}

static const struct special_case *special(uint32_t c) {
    size_t low = 0, high = COUNT(special_cases);
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (special_cases[mid].from < c) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low < COUNT(special_cases) && special_cases[low].from == c ? &special_cases[low] : NULL;
}

size_t jj_map_case(uint32_t c, enum case_kind kind, uint32_t out[4]) {
    if (c < 0x80) {
        bool up = kind == CASE_UPPER || kind == CASE_TITLE;
        out[0] = up ? c - (c >= 'a' && c <= 'z' ? 32 : 0) : c + (c >= 'A' && c <= 'Z' ? 32 : 0);
        return 1;
    }
    if (kind == CASE_FOLD) {
        utf8proc_int32_t folded[8];
        int boundary = 0;
        utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)c, folded, 8, UTF8PROC_CASEFOLD, &boundary);
        if (n >= 1 && n <= 4) {
            for (utf8proc_ssize_t i = 0; i < n; i++) {
                out[i] = (uint32_t)folded[i];
            }
            return (size_t)n;
        }
        out[0] = c;
        return 1;
    }
    if (kind == CASE_LOWER) {
        if (c == 0x130) { /* the only one with a long lower case */
            out[0] = 'i';
            out[1] = 0x307;
            return 2;
        }
        out[0] = (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
        return 1;
    }
    const struct special_case *s = special(c);
    if (s) {
        const uint16_t *to = kind == CASE_UPPER ? s->upper : s->title;
        size_t n = 0;
        for (; n < 3 && to[n]; n++) {
            out[n] = to[n];
        }
        return n;
    }
    out[0] =
        (uint32_t)(kind == CASE_UPPER ? utf8proc_toupper((utf8proc_int32_t)c) : utf8proc_totitle((utf8proc_int32_t)c));
    return 1;
}
