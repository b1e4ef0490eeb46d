/*
 * A growable byte buffer. Appends never fail one by one: the first failed allocation (or the passing of
 * `limit`) marks the buffer `failed`, later appends do nothing, and the caller looks once at the end.
 * Not thread-safe.
 */
#ifndef INFERD_BUF_H
#define INFERD_BUF_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf {
    char *data; /* [len], and a NUL behind it whenever data is not NULL; owned */
    size_t len;
    size_t cap;
    size_t limit; /* most bytes ever, 0 = SIZE_MAX / 2 */
    bool failed;
};

#define BUF_INIT ((struct buf){0})

void buf_free(struct buf *b);  /* frees and zeroes; NULL and a zeroed one are fine */
void buf_reset(struct buf *b); /* length 0, failed cleared, memory kept */
bool buf_reserve(struct buf *b, size_t more);
void buf_append(struct buf *b, const void *bytes, size_t len);
void buf_puts(struct buf *b, const char *s);
void buf_putc(struct buf *b, char c);
void buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void buf_vprintf(struct buf *b, const char *fmt, va_list ap);

/*
 * Append `len` bytes as a JSON string with its quotes. Any bytes are accepted: what is not valid UTF-8
 * becomes U+FFFD (one for each maximal ill-formed part, Unicode chapter 3.9), control characters are escaped.
 */
void buf_json_string(struct buf *b, const char *bytes, size_t len);

/* Hand the bytes to the caller (free() them) and leave the buffer empty; NULL when failed or never used. */
char *buf_steal(struct buf *b);

#endif
