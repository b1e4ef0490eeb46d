#include "data/model_files.h"
#include "gguf_build.h"
#include "shared_data.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>
#include <sys/resource.h>

#include "model_file/internal.h"

static struct error err;

/* The bytes in an allocation of exactly their size, where ASan sees a read past the end. */
static struct model_file *open_bytes(const void *data, size_t size) {
    static void *kept[64];
    static size_t turn;
    void **slot = &kept[turn++ % 64]; /* a model's bytes must outlive it: no test holds 64 models */
    free(*slot);
    *slot = malloc(size ? size : 1);
    memcpy(*slot, data, size);
    struct model_file *f = NULL;
    err = (struct error){0};
    if (model_file_open_memory(MODEL_FORMAT_GGUF, *slot, size, &f, &err) < 0) {
        cr_assert_null(f);
        cr_assert_eq(err.code, ERROR_MODEL, "%s", err.message);
        cr_assert(!strncmp(err.message, "memory: offset ", 15), "%s", err.message);
    }
    return f;
}

static struct model_file *open_buf(struct buf *b) {
    struct model_file *f = open_bytes(b->data, b->len);
    buf_free(b);
    return f;
}

/* ---- files of another implementation ---- */

static bool string_is(struct meta_string s, const char *expect) {
    return s.len == strlen(expect) && !memcmp(s.data, expect, s.len);
}

static void check_py(const struct model_file *f) {
    struct meta_string s;
    int64_t i = 0;
    double d = 0;
    bool flag = false;
    enum meta_type type;
    size_t n;
    cr_expect(model_file_get_string(f, "general.name", &s) && string_is(s, "Tiny"));
    cr_expect(model_file_get_int(f, "llama.context_length", &i) && i == 64);
    cr_expect(model_file_get_double(f, "llama.rope.freq_base", &d) && d == 10000.5);
    cr_expect(model_file_get_int(f, "t.int8", &i) && i == -5);
    cr_expect(model_file_get_int(f, "t.uint16", &i) && i == 65535);
    cr_expect(model_file_get_int(f, "t.int64", &i) && i == INT64_MIN);
    cr_expect(!model_file_get_int(f, "t.uint64", &i)); /* does not fit */
    cr_expect(model_file_get_double(f, "t.uint64", &d) && d == 0x1p64);
    cr_expect(model_file_get_double(f, "t.float64", &d) && d == 0.1);
    cr_expect(model_file_get_double(f, "t.int8", &d) && d == -5);
    cr_expect(model_file_get_bool(f, "t.bool", &flag) && flag);
    cr_expect(model_file_get_array(f, "t.ints", &type, &n) && type == META_INT32 && n == 3);
    cr_expect(model_file_array_int(f, "t.ints", 1, &i) && i == -2);
    cr_expect(model_file_array_double(f, "t.floats", 1, &d) && d == -1.25);
    cr_expect(model_file_get_array(f, "tokenizer.ggml.tokens", &type, &n) && type == META_STRING && n == 3);
    cr_expect(model_file_array_string(f, "tokenizer.ggml.tokens", 0, &s) && string_is(s, "<s>"));
    cr_expect(model_file_array_string(f, "tokenizer.ggml.tokens", 2, &s) && string_is(s, "\xc3\xa9"));

    /* absent, of another type, past the end */
    i = 42;
    cr_expect(!model_file_has(f, "t.int") && !model_file_has(f, "t.int88") && model_file_has(f, "t.int8"));
    cr_expect(!model_file_get_int(f, "none", &i) && !model_file_get_int(f, "general.name", &i) &&
              !model_file_get_int(f, "t.float64", &i) && !model_file_get_int(f, "t.bool", &i) &&
              !model_file_get_int(f, "t.ints", &i));
    cr_expect(!model_file_array_int(f, "t.ints", 3, &i) && !model_file_array_int(f, "t.floats", 0, &i) &&
              !model_file_array_int(f, "t.int8", 0, &i) && !model_file_array_int(f, "tokenizer.ggml.tokens", 0, &i));
    cr_expect(!model_file_array_string(f, "tokenizer.ggml.tokens", 3, &s) &&
              !model_file_array_string(f, "t.ints", 0, &s));
    cr_expect(!model_file_get_string(f, "t.int8", &s) && !model_file_get_bool(f, "t.int8", &flag) &&
              !model_file_get_double(f, "general.name", &d) && !model_file_get_double(f, "t.floats", &d));
    cr_expect_eq(i, 42);

    cr_assert_eq(model_file_n_tensors(f), 2);
    const struct tensor *a = model_file_find(f, "a.weight"), *b = model_file_find(f, "b.weight");
    cr_assert(a && b && !model_file_find(f, "c.weight") && !model_file_find(f, ""));
    const float expect[6] = {0, 1, 2, 3, 4, 5};
    cr_expect(a->dtype == DTYPE_F32 && a->n_dims == 2 && a->shape[0] == 2 && a->shape[1] == 3 && a->size == 24);
    cr_expect(!memcmp(a->data, expect, 24));
    cr_expect(b->dtype == DTYPE_Q8_0 && !strcmp(b->type, "Q8_0") && b->shape[0] == 2 && b->shape[1] == 32 &&
              b->size == 68);
    cr_expect_eq(((const signed char *)b->data)[2], -127); /* the first of linspace(-1, 1), behind its half scale */
    cr_expect_null(model_file_config(f));
}

Test(gguf, reads_what_gguf_py_writes) {
    struct model_file *f = open_bytes(gguf_py, sizeof gguf_py);
    cr_assert_not_null(f, "%s", err.message);
    check_py(f);
    model_file_close(f);
    model_file_close(NULL);
}

Test(gguf, truncated_at_every_byte) {
    size_t whole = sizeof gguf_py;
    /* the writer pads behind the last tensor; what is cut from the padding is not missed */
    struct model_file *f = open_bytes(gguf_py, whole);
    const struct tensor *last = model_file_find(f, "b.weight");
    size_t needed = (size_t)((const unsigned char *)last->data - f->parts[0].map.data) + last->size;
    model_file_close(f);
    for (size_t n = 0; n <= whole; n++) {
        f = open_bytes(gguf_py, n);
        cr_expect_eq(f != NULL, n >= needed, "%zu of %zu bytes", n, whole);
        model_file_close(f);
    }
}

/* Nothing can be said of the outcome but that it is one: a model that describes itself, or a sentence. */
Test(gguf, every_byte_changed) {
    static const unsigned char masks[] = {0x01, 0x80, 0xff};
    unsigned char copy[sizeof gguf_py];
    for (size_t i = 0; i < sizeof copy; i++) {
        for (size_t k = 0; k < sizeof masks; k++) {
            memcpy(copy, gguf_py, sizeof copy);
            copy[i] ^= masks[k];
            struct model_file *f = open_bytes(copy, sizeof copy);
            if (f) {
                struct buf text = BUF_INIT;
                cr_expect_eq(model_file_describe(f, i % 2, NULL, &text, &err), 0);
                buf_free(&text);
            }
            model_file_close(f);
        }
    }
}

/* ---- our own, good ---- */

static void one_tensor(struct buf *b, uint32_t version, uint32_t type, uint64_t columns, uint64_t rows, size_t bytes) {
    gguf_head(b, version, 1, 0);
    gguf_tensor(b, "w", 2, (uint64_t[]){columns, rows}, type, 0);
    gguf_pad(b, 32);
    put_zeros(b, bytes);
}

Test(gguf, every_type_has_its_size) {
    static const struct {
        uint32_t type;
        const char *name;
        enum dtype dtype;
        size_t columns, bytes; /* of one row; sizes as in the PyPI package gguf, GGML_QUANT_SIZES */
    } types[] = {
        {0, "F32", DTYPE_F32, 3, 12},
        {1, "F16", DTYPE_F16, 3, 6},
        {30, "BF16", DTYPE_BF16, 3, 6},
        {24, "I8", DTYPE_I8, 3, 3},
        {26, "I32", DTYPE_I32, 3, 12},
        {2, "Q4_0", DTYPE_Q4_0, 32, 18},
        {3, "Q4_1", DTYPE_Q4_1, 32, 20},
        {6, "Q5_0", DTYPE_Q5_0, 32, 22},
        {7, "Q5_1", DTYPE_Q5_1, 32, 24},
        {8, "Q8_0", DTYPE_Q8_0, 32, 34},
        {12, "Q4_K", DTYPE_Q4_K, 256, 144},
        {13, "Q5_K", DTYPE_Q5_K, 256, 176},
        {14, "Q6_K", DTYPE_Q6_K, 256, 210},
        {10, "Q2_K", DTYPE_UNSUPPORTED, 256, 84},
        {11, "Q3_K", DTYPE_UNSUPPORTED, 256, 110},
        {16, "IQ2_XXS", DTYPE_UNSUPPORTED, 256, 66},
        {17, "IQ2_XS", DTYPE_UNSUPPORTED, 256, 74},
        {18, "IQ3_XXS", DTYPE_UNSUPPORTED, 256, 98},
        {19, "IQ1_S", DTYPE_UNSUPPORTED, 256, 50},
        {20, "IQ4_NL", DTYPE_UNSUPPORTED, 32, 18},
        {21, "IQ3_S", DTYPE_UNSUPPORTED, 256, 110},
        {22, "IQ2_S", DTYPE_UNSUPPORTED, 256, 82},
        {23, "IQ4_XS", DTYPE_UNSUPPORTED, 256, 136},
        {29, "IQ1_M", DTYPE_UNSUPPORTED, 256, 56},
        {34, "TQ1_0", DTYPE_UNSUPPORTED, 256, 54},
        {35, "TQ2_0", DTYPE_UNSUPPORTED, 256, 66},
        {39, "MXFP4", DTYPE_UNSUPPORTED, 32, 17},
        {28, "F64", DTYPE_UNSUPPORTED, 3, 24},
    };
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        struct buf b = BUF_INIT;
        one_tensor(&b, 3, types[i].type, types[i].columns, 2, 2 * types[i].bytes);
        struct model_file *f = open_bytes(b.data, b.len);
        cr_assert_not_null(f, "%s", err.message);
        const struct tensor *t = model_file_find(f, "w");
        cr_expect(t->dtype == types[i].dtype && t->size == 2 * types[i].bytes && !strcmp(t->type, types[i].name), "%s",
                  types[i].name);
        model_file_close(f);
        b.len--; /* one byte short */
        cr_expect_null(open_bytes(b.data, b.len));
        buf_free(&b);
    }
}

Test(gguf, version_2_alignment_and_scattered_tensors) {
    struct buf b = BUF_INIT;
    gguf_head(&b, 2, 3, 2);
    gguf_key_u32(&b, "general.alignment", 8);
    gguf_key_string(&b, "empty", "");
    gguf_tensor(&b, "z", 1, (uint64_t[]){2}, 0, 24);
    gguf_tensor(&b, "y", 4, (uint64_t[]){2, 1, 1, 1}, 0, 0);
    gguf_tensor(&b, "x", 3, (uint64_t[]){1, 1, 1}, 1, 16);
    gguf_pad(&b, 8);
    for (int i = 0; i < 8; i++) {
        put_f32(&b, (float)i);
    }
    struct model_file *f = open_buf(&b);
    cr_assert_not_null(f, "%s", err.message);
    struct meta_string s;
    cr_expect(model_file_get_string(f, "empty", &s) && s.len == 0);
    cr_expect_eq(*(const float *)model_file_find(f, "z")->data, 6);
    cr_expect_eq(*(const float *)model_file_find(f, "y")->data, 0);
    cr_expect_eq(model_file_find(f, "y")->n_dims, 4);
    cr_expect_eq(model_file_tensor(f, 0), model_file_find(f, "z"));
    cr_expect_null(model_file_tensor(f, 3));
    model_file_close(f);
}

Test(gguf, no_tensors_no_keys) {
    struct buf b = BUF_INIT;
    gguf_head(&b, 3, 0, 0);
    struct model_file *f = open_buf(&b);
    cr_assert_not_null(f, "%s", err.message);
    cr_expect_eq(model_file_n_tensors(f), 0);
    cr_expect_null(model_file_find(f, "x"));
    model_file_close(f);
}

/* ---- hostile ---- */

static void refused(struct buf *b, const char *message) {
    struct model_file *f = open_buf(b);
    cr_expect_null(f, "accepted: %s", message);
    cr_expect_str_eq(err.message, message);
    model_file_close(f);
}

Test(gguf, hostile_headers) {
    struct buf b = BUF_INIT;
    buf_puts(&b, "GGUG");
    put_zeros(&b, 20);
    refused(&b, "memory: offset 0: not a GGUF file");
    gguf_head(&b, 1, 0, 0);
    refused(&b, "memory: offset 4: GGUF version 1 is not supported, only 2 and 3");
    gguf_head(&b, 4, 0, 0);
    refused(&b, "memory: offset 4: GGUF version 4 is not supported, only 2 and 3");
    gguf_head(&b, 0x03000000, 0, 0);
    refused(&b, "memory: offset 4: a big-endian GGUF file is not supported");
    gguf_head(&b, 3, 0, (uint64_t)1 << 32); /* 24 bytes in all */
    refused(&b, "memory: offset 16: the header claims 4294967296 metadata keys, more than the file can hold");
    gguf_head(&b, 3, (uint64_t)1 << 63, 0);
    refused(&b, "memory: offset 8: the header claims 9223372036854775808 tensors, more than the file can hold");
    gguf_head(&b, 3, UINT64_MAX, UINT64_MAX);
    refused(&b, "memory: offset 8: the header claims 18446744073709551615 tensors, more than the file can hold");
    gguf_head(&b, 3, 0, 2);
    gguf_key_u32(&b, "a", 1);
    refused(&b, "memory: offset 16: the header claims 2 metadata keys, more than the file can hold");
}

Test(gguf, hostile_metadata) {
    static const struct {
        uint32_t type;      /* of the value */
        uint32_t element;   /* of an array */
        uint64_t number;    /* length or count */
        const char *reason; /* behind "memory: offset " */
    } cases[] = {
        {8, 0, UINT64_MAX, "37: a string claims 18446744073709551615 bytes, 20 are left in the file"},
        {8, 0, (uint64_t)1 << 63, "37: a string claims 9223372036854775808 bytes, 20 are left in the file"},
        {8, 0, 21, "37: a string claims 21 bytes, 20 are left in the file"},
        {9, 8, (uint64_t)1 << 61, "37: an array claims 2305843009213693952 elements, 20 bytes are left in the file"},
        {9, 8, 3, "37: an array claims 3 elements, 20 bytes are left in the file"},
        {9, 8, 2, "57: a string of an array claims 60 bytes, 4 are left in the file"},
        {9, 0, UINT64_MAX, "37: an array claims 18446744073709551615 elements, 20 bytes are left in the file"},
        {9, 10, ((uint64_t)1 << 61) + 1,
         "37: an array claims 2305843009213693953 elements, 20 bytes are left in the file"},
        {9, 10, 3, "37: an array claims 3 elements, 20 bytes are left in the file"},
        {9, 9, 1, "37: an array of arrays is not supported"},
        {9, 13, 1, "37: an array of unknown type 13"},
        {9, 0xffffffff, 1, "37: an array of unknown type 4294967295"},
        {13, 0, 0, "33: unknown metadata type 13"},
        {0xffffffff, 0, 0, "33: unknown metadata type 4294967295"},
        {9, 7, 20, "64: a bool is neither 0 nor 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct buf b = BUF_INIT;
        char message[200];
        gguf_head(&b, 3, 0, 1);
        gguf_key(&b, "k", cases[i].type);
        if (cases[i].type == 9) {
            put_u32(&b, cases[i].element);
        }
        put_u64(&b, cases[i].number);
        put_u64(&b, 0); /* 20 bytes: as strings, one of length 0 and one of length 60 */
        put_u64(&b, cases[i].element == 7 ? (uint64_t)2 << 56 : 60);
        put_u32(&b, 0);
        snprintf(message, sizeof message, "memory: offset %s", cases[i].reason);
        refused(&b, message);
    }
}

Test(gguf, hostile_keys) {
    struct buf b = BUF_INIT;
    gguf_head(&b, 3, 0, 2);
    gguf_key_u32(&b, "same", 1);
    gguf_key_u32(&b, "same", 2);
    refused(&b, "memory: offset 44: a metadata key appears twice");
    gguf_head(&b, 3, 0, 1);
    gguf_key_u32(&b, "", 1);
    put_u64(&b, 0);
    refused(&b, "memory: offset 24: a metadata key of 0 bytes; 1 to 65535 are possible");
    gguf_head(&b, 3, 0, 1);
    gguf_key_u32(&b, "a\x1b[2J", 1);
    refused(&b, "memory: offset 24: a metadata key has a control character");
    gguf_head(&b, 3, 0, 1);
    gguf_key_u32(&b, "a\xff", 1);
    refused(&b, "memory: offset 24: a metadata key is not valid UTF-8");
    gguf_head(&b, 3, 0, 1);
    put_u64(&b, UINT64_MAX - 3);
    put_u64(&b, 0);
    refused(&b, "memory: offset 24: a metadata key claims 18446744073709551612 bytes, 8 are left in the file");
    gguf_head(&b, 3, 0, 1);
    put_u64(&b, 65536);
    put_zeros(&b, 65536 + 8);
    refused(&b, "memory: offset 24: a metadata key of 65536 bytes; 1 to 65535 are possible");
    gguf_head(&b, 3, 0, 1);
    gguf_key(&b, "b", 7);
    buf_putc(&b, 2);
    refused(&b, "memory: offset 37: a bool is neither 0 nor 1");
    static const uint32_t alignments[] = {0, 3, 48, 1u << 21, 0xffffffff};
    for (size_t i = 0; i < sizeof alignments / sizeof alignments[0]; i++) {
        gguf_head(&b, 3, 0, 1);
        gguf_key_u32(&b, "general.alignment", alignments[i]);
        refused(&b, "memory: offset 53: general.alignment must be a power of two up to 1048576");
    }
    gguf_head(&b, 3, 0, 1);
    gguf_key_string(&b, "general.alignment", "32");
    refused(&b, "memory: offset 53: general.alignment must be a power of two up to 1048576");
}

Test(gguf, hostile_tensors) {
    static const struct {
        const char *name;
        uint32_t n_dims;
        uint64_t dims[5];
        uint32_t type;
        uint64_t offset;
        const char *reason;
    } cases[] = {
        {"w", 0, {0}, 0, 0, "33: a tensor of 0 dimensions; 1 to 4 are possible"},
        {"w", 5, {1, 1, 1, 1, 1}, 0, 0, "33: a tensor of 5 dimensions; 1 to 4 are possible"},
        {"w", 1, {0}, 0, 0, "37: a tensor's dimension is 0"},
        {"w", 1, {UINT64_MAX}, 0, 0, "37: a tensor's dimension is 18446744073709551615"},
        {"w", 2, {1, (uint64_t)1 << 63}, 0, 0, "45: a tensor's dimension is 9223372036854775808"},
        {"w",
         2,
         {(uint64_t)1 << 32, (uint64_t)1 << 32},
         0,
         0,
         "24: a tensor's shape does not go with its type F32 (blocks of 1) or is too large"},
        {"w",
         4,
         {65536, 65536, 65536, 65536},
         1,
         0,
         "24: a tensor's shape does not go with its type F16 (blocks of 1) or is too large"},
        {"w",
         2,
         {(uint64_t)1 << 47, 32},
         8,
         0,
         "24: a tensor's shape does not go with its type Q8_0 (blocks of 32) or is too large"},
        {"w", 2, {33, 32}, 8, 0, "24: a tensor's shape does not go with its type Q8_0 (blocks of 32) or is too large"},
        {"w",
         2,
         {32, 256},
         12,
         0,
         "24: a tensor's shape does not go with its type Q4_K (blocks of 256) or is too large"},
        {"w", 1, {4}, 4, 0, "45: unknown tensor type 4"},
        {"w", 1, {4}, 42, 0, "45: unknown tensor type 42"},
        {"w", 1, {4}, 0xffffffff, 0, "45: unknown tensor type 4294967295"},
        {"w", 1, {4}, 0, 33, "49: a tensor's data at 33 is not aligned to 32"},
        {"w", 1, {4}, 0, (uint64_t)1 << 63, "49: a tensor's data begins behind the end of the file"},
        {"w", 1, {4}, 0, UINT64_MAX - 31, "49: a tensor's data begins behind the end of the file"},
        {"w", 1, {17}, 0, 0, "64: the 68 bytes of tensor w pass the end of the file (128 bytes)"},
        {"w", 1, {9}, 0, 32, "96: the 36 bytes of tensor w pass the end of the file (128 bytes)"},
        {"w", 1, {1}, 0, 96, "160: the 4 bytes of tensor w pass the end of the file (128 bytes)"},
        {"", 1, {1}, 0, 0, "24: a tensor's name has 0 bytes; 1 to 127 are possible"},
        {"a\nb", 1, {1}, 0, 0, "24: a tensor's name has a control character"},
        {"a\xc3", 1, {1}, 0, 0, "24: a tensor's name is not valid UTF-8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct buf b = BUF_INIT;
        char message[200];
        gguf_head(&b, 3, 1, 0);
        gguf_tensor(&b, cases[i].name, cases[i].n_dims, cases[i].dims, cases[i].type, cases[i].offset);
        gguf_pad(&b, 64);
        put_zeros(&b, 128 - b.len);
        snprintf(message, sizeof message, "memory: offset %s", cases[i].reason);
        refused(&b, message);
    }
}

Test(gguf, hostile_pairs_of_tensors) {
    static const struct {
        const char *second;
        uint64_t offset;
        const char *message;
    } cases[] = {
        {"b", 32, "memory: offset 128: the data of a and b overlap"},
        {"b", 0, "memory: offset 96: the data of b and a overlap"},
        {"a", 64, "memory: offset 160: tensor a appears twice"},
        {"b", 64, NULL},
    };
    for (size_t i = 0; i < 4; i++) {
        struct buf b = BUF_INIT;
        gguf_head(&b, 3, 2, 0);
        gguf_tensor(&b, "a", 1, (uint64_t[]){16}, 0, 0);
        gguf_tensor(&b, cases[i].second, 1, (uint64_t[]){1}, 0, cases[i].offset);
        gguf_pad(&b, 128);
        put_zeros(&b, 128);
        if (cases[i].message) {
            refused(&b, cases[i].message);
        } else {
            struct model_file *f = open_buf(&b);
            cr_expect_not_null(f, "%s", err.message);
            model_file_close(f);
        }
    }
}

/* A name of 128 bytes is one too long; 127 is the most. */
Test(gguf, long_names) {
    for (size_t len = TENSOR_NAME_MAX - 1; len <= TENSOR_NAME_MAX; len++) {
        char name[TENSOR_NAME_MAX + 1] = "";
        memset(name, 'n', len);
        struct buf b = BUF_INIT;
        gguf_head(&b, 3, 1, 0);
        gguf_tensor(&b, name, 1, (uint64_t[]){1}, 0, 0);
        gguf_pad(&b, 32);
        put_zeros(&b, 4);
        struct model_file *f = open_buf(&b);
        cr_expect_eq(f != NULL, len < TENSOR_NAME_MAX, "%s", err.message);
        cr_expect(!f || model_file_find(f, name) != NULL);
        model_file_close(f);
    }
}

/* Refusals that must not cost memory first: the process stays small. */
Test(gguf, claims_take_no_memory) {
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    for (int i = 0; i < 100; i++) {
        struct buf b = BUF_INIT;
        gguf_head(&b, 3, 0, 1);
        gguf_key_array(&b, "k", 8, ((uint64_t)1 << 32) + (uint64_t)i);
        put_u64(&b, 0);
        cr_expect_null(open_buf(&b));
        gguf_head(&b, 3, (uint64_t)1 << 20, 0);
        put_zeros(&b, 64);
        cr_expect_null(open_buf(&b));
    }
    getrusage(RUSAGE_SELF, &after);
    cr_expect_lt(after.ru_maxrss - before.ru_maxrss, 50 * 1024); /* KiB */
}

/* ---- on disk: split files, and what is no GGUF ---- */

static char folder[64];

static void setup(void) {
    strcpy(folder, "/tmp/inferd-test-XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
}

static void teardown(void) {
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", folder);
    cr_assert_eq(system(command), 0);
}

static struct model_file *open_in_folder(const char *name) {
    char path[256];
    struct model_file *f = NULL;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (model_file_open(path, &f, &err) < 0) {
        cr_expect_null(f);
        cr_expect_eq(err.code, ERROR_MODEL);
        cr_expect(!strncmp(err.message, folder, strlen(folder)), "%s", err.message);
    }
    return f;
}

static void refused_in_folder(const char *name, const char *reason) {
    struct model_file *f = open_in_folder(name);
    cr_expect_null(f, "accepted: %s", reason);
    cr_expect(strstr(err.message, reason), "%s has not: %s", err.message, reason);
    model_file_close(f);
}

TestSuite(gguf_disk, .init = setup, .fini = teardown);

Test(gguf_disk, split_opens_from_any_part) {
    write_file(folder, "m-00001-of-00002.gguf", gguf_py_split_1, sizeof gguf_py_split_1);
    write_file(folder, "m-00002-of-00002.gguf", gguf_py_split_2, sizeof gguf_py_split_2);
    for (int i = 1; i <= 2; i++) {
        struct model_file *f = open_in_folder(i == 1 ? "m-00001-of-00002.gguf" : "m-00002-of-00002.gguf");
        cr_assert_not_null(f, "%s", err.message);
        check_py(f);
        cr_expect(model_file_find(f, "a.weight")->part == 0 && model_file_find(f, "b.weight")->part == 1);
        struct buf text = BUF_INIT;
        cr_expect_eq(model_file_describe(f, false, NULL, &text, &err), 0);
        cr_expect(strstr(text.data, "Files (2)\n") && strstr(text.data, "m-00002-of-00002.gguf"));
        buf_free(&text);
        model_file_close(f);
    }
}

Test(gguf_disk, split_parts_must_agree) {
    write_file(folder, "m-00001-of-00002.gguf", gguf_py_split_1, sizeof gguf_py_split_1);
    refused_in_folder("m-00001-of-00002.gguf", "m-00002-of-00002.gguf: No such file or directory");
    write_file(folder, "m-00002-of-00002.gguf", gguf_py_split_1, sizeof gguf_py_split_1);
    refused_in_folder("m-00001-of-00002.gguf",
                      "m-00002-of-00002.gguf: the file calls itself part 1 of 2, its name part 2 of 2");
    write_file(folder, "m-00002-of-00002.gguf", gguf_py, sizeof gguf_py);
    refused_in_folder("m-00002-of-00002.gguf",
                      "m-00002-of-00002.gguf: the file calls itself part 1 of 1, its name part 2 of 2");
    write_file(folder, "other.gguf", gguf_py_split_1, sizeof gguf_py_split_1);
    refused_in_folder("other.gguf", "one of 2 parts, but its name does not end in -00001-of-00002.gguf");
    write_file(folder, "m-00003-of-00002.gguf", gguf_py, sizeof gguf_py);
    refused_in_folder("m-00003-of-00002.gguf", "part 3 of 2; up to 1024 parts are possible");
    write_file(folder, "m-00001-of-02000.gguf", gguf_py, sizeof gguf_py);
    refused_in_folder("m-00001-of-02000.gguf", "part 1 of 2000; up to 1024 parts are possible");
    write_file(folder, "n-00001-of-00001.gguf", gguf_py, sizeof gguf_py);
    struct model_file *f = open_in_folder("n-00001-of-00001.gguf");
    cr_expect_not_null(f, "%s", err.message);
    model_file_close(f);
}

static void split_part(const char *name, uint16_t no, uint32_t total, const char *tensor) {
    struct buf b = BUF_INIT;
    gguf_head(&b, 3, 1, 3);
    gguf_key(&b, "split.no", 2);
    put_le(&b, no, 2);
    gguf_key(&b, "split.count", 2);
    put_le(&b, 2, 2);
    gguf_key(&b, "split.tensors.count", 5);
    put_u32(&b, total);
    gguf_tensor(&b, tensor, 1, (uint64_t[]){1}, 0, 0);
    gguf_pad(&b, 32);
    put_zeros(&b, 4);
    cr_assert(write_file(folder, name, b.data, b.len));
    buf_free(&b);
}

Test(gguf_disk, split_tensors) {
    split_part("m-00001-of-00002.gguf", 0, 3, "a");
    split_part("m-00002-of-00002.gguf", 1, 3, "b");
    refused_in_folder("m-00001-of-00002.gguf", "split.tensors.count is 3, the parts have 2 tensors");
    split_part("m-00001-of-00002.gguf", 0, 2, "a");
    split_part("m-00002-of-00002.gguf", 1, 2, "a");
    refused_in_folder("m-00001-of-00002.gguf", "m-00002-of-00002.gguf: offset 160: tensor a appears twice");
    split_part("m-00002-of-00002.gguf", 1, 2, "b");
    struct model_file *f = open_in_folder("m-00001-of-00002.gguf");
    cr_expect_not_null(f, "%s", err.message);
    model_file_close(f);
}

Test(gguf_disk, what_is_no_model) {
    write_file(folder, "empty", "", 0);
    refused_in_folder("empty", "empty: offset 0: neither a GGUF nor a safetensors file");
    write_file(folder, "empty.gguf", "", 0);
    refused_in_folder("empty.gguf", "empty.gguf: offset 0: not a GGUF file");
    write_file(folder, "pickle.bin", "PK\3\4..........", 14);
    refused_in_folder("pickle.bin", "offset 0: a pickled PyTorch file; only GGUF and safetensors are supported");
    write_file(folder, "old.bin", "tjgg..........", 14);
    refused_in_folder("old.bin", "offset 0: a GGML file from before GGUF is not supported");
    refused_in_folder("missing", "missing: No such file or directory");
    refused_in_folder(".", ".: a folder with neither model.safetensors.index.json nor model.safetensors in it");
    write_file(folder, "any.name", gguf_py, sizeof gguf_py); /* known by its bytes */
    struct model_file *f = open_in_folder("any.name");
    cr_expect_not_null(f, "%s", err.message);
    model_file_close(f);
}

Test(gguf, path_too_long) {
    char path[MODEL_MAX_PATH + 10];
    memset(path, 'x', sizeof path - 1);
    path[sizeof path - 1] = '\0';
    struct model_file *f = NULL;
    cr_expect_eq(model_file_open(path, &f, &err), -1);
    cr_expect(strstr(err.message, "xxx: the path is longer than 4095 bytes"), "%s", err.message);
}

/* ---- real vocabularies ---- */

Test(gguf, vocabularies) {
    static const struct {
        const char *name, *architecture, *model;
        size_t n_tokens;
    } files[] = {
        {"gguf/ggml-vocab-llama-spm.gguf", "llama", "llama", 32000},
        {"gguf/ggml-vocab-gpt-2.gguf", "gpt2", "gpt2", 50257},
        {"gguf/llama-3.1.gguf", "llama", "gpt2", 128256},
    };
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        struct model_file *f = NULL;
        struct meta_string s;
        enum meta_type type;
        size_t n = 0;
        cr_assert_eq(model_file_open(shared_data(files[i].name), &f, &err), 0, "%s", err.message);
        cr_expect(model_file_get_string(f, "general.architecture", &s) && string_is(s, files[i].architecture));
        cr_expect(model_file_get_string(f, "tokenizer.ggml.model", &s) && string_is(s, files[i].model));
        cr_expect(model_file_get_array(f, "tokenizer.ggml.tokens", &type, &n) && n == files[i].n_tokens, "%zu", n);
        cr_expect(model_file_array_string(f, "tokenizer.ggml.tokens", n - 1, &s) && s.len > 0);
        cr_expect_eq(model_file_n_tensors(f), 0);
        model_file_close(f);
    }
}
