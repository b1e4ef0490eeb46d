#include <inferd/buf.h>

#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void buf_free(struct buf *b) {
    if (b) {
        free(b->data);
        *b = BUF_INIT;
    }
}

void buf_reset(struct buf *b) {
    b->len = 0;
    b->failed = false;
    if (b->data) {
        b->data[0] = '\0';
    }
}

bool buf_reserve(struct buf *b, size_t more) {
    size_t limit = b->limit ? b->limit : SIZE_MAX / 2;
    if (b->failed || more > limit || b->len > limit - more) {
        b->failed = true;
        return false;
    }
    size_t need = b->len + more + 1; /* the NUL */
    if (need <= b->cap) {
        return true;
    }
    size_t cap = b->cap ? b->cap : 64;
    while (cap < need) {
        cap += cap / 2;
    }
    char *data = realloc(b->data, cap);
    if (!data) {
        b->failed = true;
        return false;
    }
    b->data = data;
    b->cap = cap;
    return true;
}

void buf_append(struct buf *b, const void *bytes, size_t len) {
    if (len == 0 || !buf_reserve(b, len)) {
        return;
    }
    memcpy(b->data + b->len, bytes, len);
    b->len += len;
    b->data[b->len] = '\0';
}

void buf_puts(struct buf *b, const char *s) {
    buf_append(b, s, strlen(s));
}

void buf_putc(struct buf *b, char c) {
    buf_append(b, &c, 1);
}

void buf_vprintf(struct buf *b, const char *fmt, va_list ap) {
    va_list again;
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, again);
    va_end(again);
    if (n < 0) {
        b->failed = true;
        return;
    }
    if (buf_reserve(b, (size_t)n)) {
        vsnprintf(b->data + b->len, (size_t)n + 1, fmt, ap);
        b->len += (size_t)n;
    }
}

void buf_printf(struct buf *b, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    buf_vprintf(b, fmt, ap);
    va_end(ap);
}

void buf_json_string(struct buf *b, const char *bytes, size_t len) {
    buf_putc(b, '"');
    size_t plain = 0; /* start of the run not yet written */
    for (size_t i = 0; i < len;) {
        unsigned char c = (unsigned char)bytes[i];
        if (c >= 0x20 && c < 0x7f && c != '"' && c != '\\') {
            i++;
            continue;
        }
        bool valid = true;
        size_t n = c < 0x80 ? 1 : utf8_sequence(bytes + i, len - i, &valid);
        if (c >= 0x80 && valid) {
            i += n;
            continue;
        }
        buf_append(b, bytes + plain, i - plain);
        if (!valid) {
            buf_puts(b, "\xef\xbf\xbd");
        } else if (c == '"' || c == '\\') {
            buf_putc(b, '\\');
            buf_putc(b, (char)c);
        } else if (c == '\n') {
            buf_puts(b, "\\n");
        } else if (c == '\r') {
            buf_puts(b, "\\r");
        } else if (c == '\t') {
            buf_puts(b, "\\t");
        } else {
            buf_printf(b, "\\u%04x", c);
        }
        i += n;
        plain = i;
    }
    buf_append(b, bytes + plain, len - plain);
    buf_putc(b, '"');
}

char *buf_steal(struct buf *b) {
    char *data = b->failed ? NULL : b->data;
    if (data) {
        *b = BUF_INIT;
    } else {
        buf_free(b);
    }
    return data;
}
