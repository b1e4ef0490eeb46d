/* Writes GGUF and safetensors bytes piece by piece, right or wrong as a test wants them. */
#ifndef TEST_GGUF_BUILD_H
#define TEST_GGUF_BUILD_H

#include <inferd/buf.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static inline void put_le(struct buf *b, uint64_t v, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        buf_putc(b, (char)(v >> (8 * i) & 255));
    }
}

static inline void put_u32(struct buf *b, uint32_t v) {
    put_le(b, v, 4);
}

static inline void put_u64(struct buf *b, uint64_t v) {
    put_le(b, v, 8);
}

static inline void put_f32(struct buf *b, float v) {
    buf_append(b, &v, sizeof v);
}

/* u64 length, bytes */
static inline void put_string(struct buf *b, const char *s) {
    put_u64(b, strlen(s));
    buf_puts(b, s);
}

static inline void gguf_head(struct buf *b, uint32_t version, uint64_t n_tensors, uint64_t n_keys) {
    buf_puts(b, "GGUF");
    put_u32(b, version);
    put_u64(b, n_tensors);
    put_u64(b, n_keys);
}

/* The key and the type; the value follows by put_*. Types by the format's numbers: 0 u8 ... 8 string, 9 array. */
static inline void gguf_key(struct buf *b, const char *key, uint32_t type) {
    put_string(b, key);
    put_u32(b, type);
}

static inline void gguf_key_u32(struct buf *b, const char *key, uint32_t v) {
    gguf_key(b, key, 4);
    put_u32(b, v);
}

static inline void gguf_key_string(struct buf *b, const char *key, const char *v) {
    gguf_key(b, key, 8);
    put_string(b, v);
}

static inline void gguf_key_array(struct buf *b, const char *key, uint32_t element, uint64_t count) {
    gguf_key(b, key, 9);
    put_u32(b, element);
    put_u64(b, count);
}

/* dims innermost first, as in the file */
static inline void gguf_tensor(struct buf *b, const char *name, uint32_t n_dims, const uint64_t *dims, uint32_t type,
                               uint64_t offset) {
    put_string(b, name);
    put_u32(b, n_dims);
    for (uint32_t i = 0; i < n_dims; i++) {
        put_u64(b, dims[i]);
    }
    put_u32(b, type);
    put_u64(b, offset);
}

static inline void gguf_pad(struct buf *b, size_t alignment) {
    while (b->len % alignment != 0) {
        buf_putc(b, '\0');
    }
}

static inline void put_zeros(struct buf *b, size_t n) {
    while (n-- > 0) {
        buf_putc(b, '\0');
    }
}

/* Header and `data` zero bytes. */
static inline void safetensors_file(struct buf *b, const char *json, size_t data) {
    put_u64(b, strlen(json));
    buf_puts(b, json);
    put_zeros(b, data);
}

/* Writes FOLDER/NAME; false when it cannot. */
static inline bool write_file(const char *folder, const char *name, const void *data, size_t size) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    if (!f) {
        return false;
    }
    bool ok = fwrite(data, 1, size, f) == size;
    return fclose(f) == 0 && ok;
}

#endif
