#include "text/jinja/str.h"

#include "base/utf8.h"
#include "text/jinja/render.h"

#include <string.h>

bool jj_is_ascii(const char *bytes, size_t len) {
    size_t i = 0;
    for (; i + 8 <= len; i += 8) {
        uint64_t w;
        memcpy(&w, bytes + i, 8);
        if (w & UINT64_C(0x8080808080808080)) {
            return false;
        }
    }
    for (; i < len; i++) {
        if ((unsigned char)bytes[i] >= 0x80) {
            return false;
        }
    }
    return true;
}

static struct str *alloc_str(struct render *r) {
    struct str *s = jj_alloc(r, sizeof *s);
    return s ? s : &r->spare_str;
}

const struct str *jj_str_empty(void) {
    static const struct str empty = {.bytes = "", .trusted = true, .ascii = true};
    return &empty;
}

const struct str *jj_str_new(struct render *r, const char *bytes, size_t len, bool trusted) {
    struct str *s = alloc_str(r);
    if (r->failed) {
        return jj_str_empty();
    }
    *s = (struct str){.bytes = bytes, .len = len, .trusted = trusted, .ascii = jj_is_ascii(bytes, len)};
    return s;
}

const struct str *jj_str_literal(struct render *r, const char *literal) {
    return jj_str_new(r, literal, strlen(literal), true);
}

const struct str *jj_str_cut(struct render *r, const struct str *s, size_t from, size_t to) {
    if (from == 0 && to == s->len) {
        return s;
    }
    struct str *cut = alloc_str(r);
    if (r->failed) {
        return jj_str_empty();
    }
    *cut = *s;
    cut->bytes = s->bytes + from;
    cut->marks = s->marks ? s->marks + from : NULL;
    cut->len = to - from;
    return cut;
}

const struct str *jj_str_as_markup(struct render *r, const struct str *s, bool markup) {
    if (s->markup == markup) {
        return s;
    }
    struct str *copy = alloc_str(r);
    if (r->failed) {
        return jj_str_empty();
    }
    *copy = *s;
    copy->markup = markup;
    return copy;
}

/* Give the store an array of marks for what it has. */
static bool store_add_marks(struct render *r, struct store *st) {
    st->marks = jj_alloc(r, st->cap);
    if (!st->marks) {
        return false;
    }
    memset(st->marks, st->trusted, st->used);
    return true;
}

/* Write b behind what the store has; there is room. */
static bool store_append(struct render *r, struct store *st, const struct str *b) {
    bool uniform = !st->marks && !b->marks && (st->used == 0 || st->trusted == b->trusted);
    if (uniform) {
        st->trusted = b->trusted;
    } else {
        if (!st->marks && !store_add_marks(r, st)) {
            return false;
        }
        if (b->marks) {
            memcpy(st->marks + st->used, b->marks, b->len);
        } else {
            memset(st->marks + st->used, b->trusted, b->len);
        }
    }
    memcpy(st->bytes + st->used, b->bytes, b->len);
    st->used += b->len;
    return true;
}

const struct str *jj_str_concat(struct render *r, const struct str *a, const struct str *b) {
    if (b->len == 0 && a->markup == b->markup) {
        return a;
    }
    if (a->len == 0 && a->markup == b->markup) {
        return b;
    }
    if (!jj_steps_bytes(r, b->len)) {
        return a;
    }
    struct store *st = a->store;
    bool at_end = st && a->bytes + a->len == st->bytes + st->used && b->len <= st->cap - st->used;
    size_t start; /* of the result in the store */
    if (at_end) {
        start = (size_t)(a->bytes - st->bytes);
    } else {
        size_t len = a->len + b->len;
        size_t cap = st ? 2 * len : len; /* a was concatenated before: likely again */
        if (!jj_steps_bytes(r, a->len)) {
            return a;
        }
        st = jj_alloc(r, sizeof *st);
        char *bytes = st ? jj_alloc(r, cap) : NULL;
        if (!bytes) {
            return a;
        }
        *st = (struct store){.bytes = bytes, .cap = cap};
        start = 0;
        if (!store_append(r, st, a)) {
            return a;
        }
    }
    struct str *s = alloc_str(r);
    if (r->failed || !store_append(r, st, b)) {
        return a;
    }
    *s = (struct str){
        .bytes = st->bytes + start,
        .marks = st->marks ? st->marks + start : NULL,
        .len = a->len + b->len,
        .store = st,
        .trusted = st->trusted,
        .markup = a->markup || b->markup,
        .ascii = a->ascii && b->ascii,
    };
    return s;
}

bool jj_str_equals(const struct str *s, const char *literal) {
    return jj_str_is(s, literal, strlen(literal));
}

bool jj_str_same(const struct str *a, const struct str *b) {
    return a->len == b->len && memcmp(a->bytes, b->bytes, a->len) == 0;
}

int jj_str_order(const struct str *a, const struct str *b) {
    size_t n = a->len < b->len ? a->len : b->len;
    int c = n ? memcmp(a->bytes, b->bytes, n) : 0;
    if (c == 0) {
        return a->len < b->len ? -1 : a->len > b->len;
    }
    return c < 0 ? -1 : 1;
}

static inline bool continues(char c) {
    return ((unsigned char)c & 0xc0) == 0x80;
}

size_t jj_str_length(const struct str *s) {
    return s->ascii ? s->len : jj_str_index(s, s->len);
}

size_t jj_str_index(const struct str *s, size_t offset) {
    if (s->ascii) {
        return offset;
    }
    size_t n = 0;
    for (size_t i = 0; i < offset; i++) {
        n += !continues(s->bytes[i]);
    }
    return n;
}

size_t jj_str_offset(const struct str *s, size_t index) {
    if (s->ascii) {
        return index < s->len ? index : s->len;
    }
    size_t i = 0;
    for (; i < s->len && index > 0; index--) {
        do {
            i++;
        } while (i < s->len && continues(s->bytes[i]));
    }
    return i;
}

uint32_t jj_str_char(const struct str *s, size_t at, size_t *len) {
    unsigned char c = (unsigned char)s->bytes[at];
    if (c < 0x80) {
        *len = 1;
        return c;
    }
    uint32_t code_point;
    bool valid;
    *len = utf8_decode(s->bytes + at, s->len - at, &code_point, &valid);
    return code_point;
}

size_t jj_str_find(struct render *r, const struct str *s, const struct str *what, size_t from) {
    if (from > s->len || !jj_steps_bytes(r, s->len - from)) {
        return SIZE_MAX;
    }
    if (what->len == 0) {
        return from;
    }
    const char *found = memmem(s->bytes + from, s->len - from, what->bytes, what->len);
    return found ? (size_t)(found - s->bytes) : SIZE_MAX;
}

size_t jj_str_rfind(struct render *r, const struct str *s, const struct str *what, size_t from, size_t to) {
    if (to < from || what->len > to - from) {
        return SIZE_MAX;
    }
    if (what->len == 0) {
        return to;
    }
    for (size_t at = to - what->len + 1; at-- > from;) {
        const char *found = memrchr(s->bytes + from, what->bytes[0], at - from + 1);
        size_t start = at;
        at = found ? (size_t)(found - s->bytes) : from;
        if (!jj_steps_bytes(r, start - at + what->len) || !found) {
            return SIZE_MAX;
        }
        if (memcmp(s->bytes + at, what->bytes, what->len) == 0) {
            return at;
        }
    }
    return SIZE_MAX;
}

/* --- builder --- */

void jj_sb_init(struct sb *b, struct render *r) {
    *b = (struct sb){.r = r, .trusted = true, .ascii = true};
}

void jj_sb_reserve(struct sb *b, size_t more) {
    struct render *r = b->r;
    if (r->failed || more <= b->cap - b->len) {
        return;
    }
    if (more > SIZE_MAX / 4 - b->len) {
        jj_fail(r, "a string of the template is too long");
        return;
    }
    size_t need = b->len + more;
    size_t cap = b->cap + b->cap / 2;
    cap = cap < need ? need : cap;
    cap = cap < 32 ? 32 : cap;
    char *bytes = jj_grow(r, b->bytes, b->cap, cap);
    uint8_t *marks = bytes && b->marks ? jj_grow(r, b->marks, b->cap, cap) : NULL;
    if (r->failed) {
        return;
    }
    b->bytes = bytes;
    b->marks = marks;
    b->cap = cap;
}

/* Room for len bytes, budget taken, and marks in place when the mark of what comes differs. */
static bool sb_prepare(struct sb *b, size_t len, bool has_marks, bool trusted) {
    struct render *r = b->r;
    if (b->is_output && len > r->output_limit - b->len) {
        jj_fail(r, "the output of the template is too long (more than %zu bytes)", r->output_limit);
        return false;
    }
    if (len >= 32 && !jj_steps(r, len / 32)) {
        return false;
    }
    jj_sb_reserve(b, len);
    if (r->failed) {
        return false;
    }
    if (!b->marks && (has_marks || (b->len > 0 && b->trusted != trusted))) {
        uint8_t *marks = jj_alloc(r, b->cap);
        if (!marks) {
            return false;
        }
        memset(marks, b->trusted, b->len);
        b->marks = marks;
    } else if (b->len == 0) {
        b->trusted = trusted;
    }
    return true;
}

void jj_sb_add(struct sb *b, const char *bytes, size_t len, bool trusted) {
    if (len == 0 || !sb_prepare(b, len, false, trusted)) {
        return;
    }
    memcpy(b->bytes + b->len, bytes, len);
    if (b->marks) {
        memset(b->marks + b->len, trusted, len);
    }
    b->len += len;
    b->ascii = b->ascii && jj_is_ascii(bytes, len);
}

void jj_sb_add_cut(struct sb *b, const struct str *s, size_t from, size_t to) {
    size_t len = to - from;
    if (len == 0 || !sb_prepare(b, len, s->marks != NULL, s->trusted)) {
        return;
    }
    memcpy(b->bytes + b->len, s->bytes + from, len);
    if (s->marks) {
        memcpy(b->marks + b->len, s->marks + from, len);
    } else if (b->marks) {
        memset(b->marks + b->len, s->trusted, len);
    }
    b->len += len;
    b->ascii = b->ascii && (s->ascii || jj_is_ascii(s->bytes + from, len));
}

void jj_sb_add_char(struct sb *b, uint32_t code_point, bool trusted) {
    char bytes[4];
    jj_sb_add(b, bytes, utf8_encode(code_point, bytes), trusted);
}

void jj_sb_puts(struct sb *b, const char *literal) {
    jj_sb_add(b, literal, strlen(literal), true);
}

const struct str *jj_sb_finish(struct sb *b) {
    if (b->r->failed || b->len == 0) {
        return jj_str_empty();
    }
    struct str *s = alloc_str(b->r);
    *s = (struct str){.bytes = b->bytes, .marks = b->marks, .len = b->len, .trusted = b->trusted, .ascii = b->ascii};
    return b->r->failed ? jj_str_empty() : s;
}
