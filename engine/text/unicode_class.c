#include "text/unicode_class.h"

#include "base/utf8.h"

#include <utf8proc.h>

#define L CLASS_LETTER
#define U (CLASS_LETTER | CLASS_UPPER)
#define W (CLASS_LETTER | CLASS_LOWER)
#define N CLASS_NUMBER
#define S CLASS_SPACE
#define P CLASS_PUNCT
#define Y CLASS_SYMBOL
// clang-format off
const uint8_t unicode_class_ascii[128] = {
    0, 0, 0, 0, 0, 0, 0, 0, 0, S, S, S, S, S, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, /* controls */
    S, P, P, P, Y, P, P, P, P, P, P, Y, P, P, P, P, N, N, N, N, N, N, N, N, N, N, P, P, Y, Y, Y, P, /* space .. ? */
    P, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, P, P, P, Y, P, /* @ .. _ */
    Y, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, P, Y, P, Y, 0, /* ` .. DEL */
};
// clang-format on
#undef L
#undef U
#undef W
#undef N
#undef S
#undef P
#undef Y

static bool is_white_space(uint32_t cp) {
    return cp == 0x85 || cp == 0xa0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

unsigned unicode_class_of(uint32_t cp) {
    if (cp < 128) {
        return unicode_class_ascii[cp];
    }
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT:
        return CLASS_LETTER | CLASS_UPPER;
    case UTF8PROC_CATEGORY_LL:
        return CLASS_LETTER | CLASS_LOWER;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
        return CLASS_LETTER;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
        return CLASS_NUMBER;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
        return CLASS_MARK;
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
        return CLASS_PUNCT;
    case UTF8PROC_CATEGORY_SM:
    case UTF8PROC_CATEGORY_SC:
    case UTF8PROC_CATEGORY_SK:
    case UTF8PROC_CATEGORY_SO:
        return CLASS_SYMBOL;
    default:
        return is_white_space(cp) ? CLASS_SPACE : 0;
    }
}

bool unicode_is_word(uint32_t cp) {
    if ((cp >= 0x24b6 && cp <= 0x24e9) || (cp >= 0x1f130 && cp <= 0x1f149) || (cp >= 0x1f150 && cp <= 0x1f169) ||
        (cp >= 0x1f170 && cp <= 0x1f189) || cp == 0x200c || cp == 0x200d) {
        return true;
    }
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)cp);
    return (unicode_class_of(cp) & (CLASS_LETTER | CLASS_MARK)) || category == UTF8PROC_CATEGORY_ND ||
           category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_PC;
}

void utf8_sanitize(const char *bytes, size_t len, struct buf *out) {
    size_t plain = 0; /* start of the run not yet written */
    for (size_t i = 0; i < len;) {
        bool valid = true;
        size_t n = (unsigned char)bytes[i] < 0x80 ? 1 : utf8_sequence(bytes + i, len - i, &valid);
        if (!valid) {
            buf_append(out, bytes + plain, i - plain);
            buf_puts(out, "\xef\xbf\xbd");
            plain = i + n;
        }
        i += n;
    }
    buf_append(out, bytes + plain, len - plain);
}
