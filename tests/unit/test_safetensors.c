#include "data/model_files.h"
#include "gguf_build.h"

#include <cjson/cJSON.h>
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "model_file/internal.h"

static struct error err;

static struct model_file *open_bytes(const void *data, size_t size) {
    static void *kept;
    free(kept);
    kept = malloc(size ? size : 1);
    memcpy(kept, data, size);
    struct model_file *f = NULL;
    if (model_file_open_memory(MODEL_FORMAT_SAFETENSORS, kept, size, &f, &err) < 0) {
        cr_assert_null(f);
        cr_assert_eq(err.code, ERROR_MODEL, "%s", err.message);
        cr_assert(!strncmp(err.message, "memory: offset ", 15), "%s", err.message);
    }
    return f;
}

Test(safetensors, reads_what_the_package_writes) {
    struct model_file *f = open_bytes(safetensors_py, sizeof safetensors_py);
    cr_assert_not_null(f, "%s", err.message);
    cr_assert_eq(model_file_n_tensors(f), 4);
    cr_expect_eq(model_file_format(f), MODEL_FORMAT_SAFETENSORS);
    const struct tensor *a = model_file_find(f, "a.weight"), *b = model_file_find(f, "b.weight"),
                        *c = model_file_find(f, "c"), *d = model_file_find(f, "d");
    cr_assert(a && b && c && d && !model_file_find(f, "__metadata__"));
    const float expect[6] = {0, 1, 2, 3, 4, 5};
    cr_expect(a->dtype == DTYPE_F32 && a->n_dims == 2 && a->shape[0] == 2 && a->shape[1] == 3 && a->size == 24);
    cr_expect(!memcmp(a->data, expect, 24));
    cr_expect(b->dtype == DTYPE_F16 && b->n_dims == 3 && b->shape[2] == 2 && b->size == 8);
    cr_expect(!memcmp(b->data, "\x00\x00\x00\x3c\x00\x40\x00\x42", 8)); /* 0 1 2 3 */
    cr_expect(c->dtype == DTYPE_UNSUPPORTED && !strcmp(c->type, "I64") && c->n_dims == 1 && c->shape[0] == 1 &&
              c->size == 8);
    cr_expect(d->dtype == DTYPE_I8 && d->size == 4 && !memcmp(d->data, "\xfe\xff\x00\x01", 4));
    int64_t i;
    cr_expect(!model_file_has(f, "format") && !model_file_get_int(f, "format", &i)); /* GGUF only */
    model_file_close(f);
}

Test(safetensors, truncated_at_every_byte) {
    for (size_t n = 0; n < sizeof safetensors_py; n++) {
        cr_expect_null(open_bytes(safetensors_py, n), "%zu bytes", n);
    }
}

Test(safetensors, every_byte_changed) {
    unsigned char copy[sizeof safetensors_py];
    for (size_t i = 0; i < sizeof copy; i++) {
        for (int bit = 0; bit < 8; bit++) {
            memcpy(copy, safetensors_py, sizeof copy);
            copy[i] ^= (unsigned char)(1 << bit);
            struct model_file *f = open_bytes(copy, sizeof copy);
            struct buf text = BUF_INIT;
            cr_expect(!f || model_file_describe(f, bit % 2, NULL, &text, &err) == 0);
            buf_free(&text);
            model_file_close(f);
        }
    }
}

Test(safetensors, accepted) {
    static const struct {
        const char *json;
        size_t data;
    } cases[] = {
        {"{}", 0},
        {"{}        ", 0}, /* padded with spaces */
        {"{\"__metadata__\":{\"format\":\"pt\"}}", 5},
        {"{\"a\":{\"dtype\":\"BF16\",\"shape\":[0,4],\"data_offsets\":[0,0]}}", 0},
        {"{\"a\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[0,2]}}", 2},
        {"{\"a\":{\"dtype\":\"F4\",\"shape\":[2,3],\"data_offsets\":[1,4]}}", 4},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,3],\"data_offsets\":[0,3]}}", 3},
        {"{\"b\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[2,4]},\"a\":{\"dtype\":\"I8\",\"shape\":[2],\"data_"
         "offsets\":[0,2]}}",
         4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct buf b = BUF_INIT;
        safetensors_file(&b, cases[i].json, cases[i].data);
        struct model_file *f = open_bytes(b.data, b.len);
        cr_expect_not_null(f, "%s: %s", cases[i].json, err.message);
        model_file_close(f);
        buf_free(&b);
    }
}

#define ENTRY(dtype, shape, offsets)                                                                                   \
    "{\"a\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

Test(safetensors, refused) {
    static const struct {
        const char *json, *message;
    } cases[] = {
        {"", "offset 8: the header is not valid JSON: byte 0: the text ends too early"},
        {"[]", "offset 8: the header is not a JSON object"},
        {"{\"a\":01}", "offset 8: the header is not valid JSON: byte 6: a number has a leading zero"},
        {"{\"a\":1}", "offset 13: a tensor's entry is not an object"},
        {"{\"a\":{}}", "offset 13: a tensor's dtype is missing or unknown"},
        {ENTRY("Q7", "[1]", "[0,1]"), "offset 13: a tensor's dtype is missing or unknown"},
        {"{\"a\":{\"dtype\":1,\"shape\":[1],\"data_offsets\":[0,1]}}",
         "offset 13: a tensor's dtype is missing or unknown"},
        {"{\"a\":{\"dtype\":\"I8\",\"data_offsets\":[0,1]}}", "offset 13: a tensor's shape is not an array"},
        {ENTRY("I8", "{\"x\":1}", "[0,1]"), "offset 13: a tensor's shape is not an array"},
        {ENTRY("I8", "[-1]", "[0,1]"), "offset 13: a tensor's shape has something else than sizes"},
        {ENTRY("I8", "[1.5]", "[0,1]"), "offset 13: a tensor's shape has something else than sizes"},
        {ENTRY("I8", "[\"1\"]", "[0,1]"), "offset 13: a tensor's shape has something else than sizes"},
        {ENTRY("I8", "[1e300]", "[0,1]"), "offset 13: a tensor's shape has something else than sizes"},
        {ENTRY("I8", "[18446744073709551617]", "[0,1]"), "offset 13: a tensor's shape has something else than sizes"},
        {ENTRY("I8", "[1,1,1,1,1,1,1]", "[0,1]"), "offset 13: a tensor has too many dimensions"},
        {ENTRY("I8", "[1]", "[0]"), "offset 13: a tensor's data_offsets are not [begin, end]"},
        {ENTRY("I8", "[1]", "[0,1,2]"), "offset 13: a tensor's data_offsets are not [begin, end]"},
        {ENTRY("I8", "[1]", "[2,1]"), "offset 13: a tensor's data_offsets are not [begin, end]"},
        {ENTRY("I8", "[1]", "[-1,0]"), "offset 13: a tensor's data_offsets are not [begin, end]"},
        {ENTRY("I8", "[1]", "{\"a\":0,\"b\":1}"), "offset 13: a tensor's data_offsets are not [begin, end]"},
        {"{\"a\":{\"dtype\":\"I8\",\"shape\":[1]}}", "offset 13: a tensor's data_offsets are not [begin, end]"},
        {ENTRY("I8", "[2]", "[0,1]"), "offset 13: a tensor's data_offsets do not go with its dtype and shape"},
        {ENTRY("F32", "[2]", "[0,2]"), "offset 13: a tensor's data_offsets do not go with its dtype and shape"},
        {ENTRY("F4", "[3]", "[0,1]"), "offset 13: a tensor's data_offsets do not go with its dtype and shape"},
        {ENTRY("I8", "[4294967296,4294967296]", "[0,0]"),
         "offset 13: a tensor's data_offsets do not go with its dtype and shape"},
        {ENTRY("I8", "[281474976710656,281474976710656,65536,65536]", "[0,0]"),
         "offset 13: a tensor's data_offsets do not go with its dtype and shape"},
        {ENTRY("I8", "[9]", "[0,9]"), "offset 61: the 9 bytes of tensor a pass the end of the file (69 bytes)"},
        {ENTRY("I8", "[1]", "[8,9]"), "offset 69: the 1 bytes of tensor a pass the end of the file (69 bytes)"},
        {ENTRY("I8", "[1]", "[281474976710655,281474976710656]"),
         "offset 281474976710744: the 1 bytes of tensor a pass the end of the file (97 bytes)"},
        {"{\"a\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[0,2]},\"b\":{\"dtype\":\"I8\",\"shape\":[2],\"data_"
         "offsets\":[1,3]}}",
         "offset 114: the data of a and b overlap"},
        {"{\"a\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[0,2]},\"a\":{\"dtype\":\"I8\",\"shape\":[2],\"data_"
         "offsets\":[2,4]}}",
         "offset 8: the header is not valid JSON: byte 53: a key appears twice in one object"},
        {"{\"\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
         "offset 8: a tensor's name has 0 bytes; 1 to 127 are possible"},
        {"{\"a\\n\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
         "offset 8: a tensor's name has a control character"},
        {"{\"a\\u0000b\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
         "offset 8: the header is not valid JSON: byte 3: \\u0000 is not accepted"},
        {"{\"__metadata__\":[]}", "offset 24: __metadata__ is not an object"},
        {"{\"__metadata__\":{\"a\":1}}", "offset 24: __metadata__ has something else than strings"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct buf b = BUF_INIT;
        char message[300];
        safetensors_file(&b, cases[i].json, 8);
        struct model_file *f = open_bytes(b.data, b.len);
        cr_expect_null(f, "accepted %s", cases[i].json);
        snprintf(message, sizeof message, "memory: %s", cases[i].message);
        cr_expect_str_eq(err.message, message);
        model_file_close(f);
        buf_free(&b);
    }
}

Test(safetensors, header_length) {
    static const uint64_t lengths[] = {3, 100, (uint64_t)1 << 32, (uint64_t)1 << 63, UINT64_MAX, UINT64_MAX - 7};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        struct buf b = BUF_INIT;
        put_u64(&b, lengths[i]);
        buf_puts(&b, "{}");
        cr_expect_null(open_bytes(b.data, b.len));
        cr_expect(strstr(err.message, "offset 0: a header of "), "%s", err.message);
        buf_free(&b);
    }
    struct buf b = BUF_INIT; /* deep nesting is refused without recursion */
    put_u64(&b, 100000);
    for (int i = 0; i < 100000; i++) {
        buf_putc(&b, '[');
    }
    cr_expect_null(open_bytes(b.data, b.len));
    cr_expect_str_eq(err.message,
                     "memory: offset 8: the header is not valid JSON: byte 64: nested deeper than 64 levels");
    buf_free(&b);
}

/* ---- folders ---- */

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

static void put(const char *name, const char *text) {
    cr_assert(write_file(folder, name, text, strlen(text)));
}

/* One I8 tensor of two elements. */
static void put_shard(const char *file, const char *tensor) {
    char json[200];
    struct buf b = BUF_INIT;
    snprintf(json, sizeof json, "{\"%s\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[0,2]}}", tensor);
    safetensors_file(&b, json, 2);
    cr_assert(write_file(folder, file, b.data, b.len));
    buf_free(&b);
}

static struct model_file *open_in_folder(const char *name) {
    char path[256];
    struct model_file *f = NULL;
    snprintf(path, sizeof path, "%s%s", folder, name);
    if (model_file_open(path, &f, &err) < 0) {
        cr_expect_eq(err.code, ERROR_MODEL);
        cr_expect(!strncmp(err.message, folder, strlen(folder)), "%s", err.message);
    }
    return f;
}

static void refused(const char *name, const char *reason) {
    struct model_file *f = open_in_folder(name);
    cr_expect_null(f, "accepted: %s", reason);
    cr_expect(strstr(err.message, reason), "%s has not: %s", err.message, reason);
    model_file_close(f);
}

TestSuite(safetensors_disk, .init = setup, .fini = teardown);

Test(safetensors_disk, single_with_config) {
    cr_assert(write_file(folder, "model.safetensors", safetensors_py, sizeof safetensors_py));
    struct model_file *f = open_in_folder("");
    cr_assert_not_null(f, "%s", err.message);
    cr_expect_null(model_file_config(f));
    model_file_close(f);
    put("config.json", "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":64}");
    static const char *const names[] = {"", "/", "/model.safetensors"};
    for (size_t i = 0; i < 3; i++) {
        f = open_in_folder(names[i]);
        cr_assert_not_null(f, "%s", err.message);
        cr_expect_eq(model_file_n_tensors(f), 4);
        const cJSON *size = cJSON_GetObjectItemCaseSensitive(model_file_config(f), "hidden_size");
        cr_expect(size && size->valuedouble == 64);
        model_file_close(f);
    }
    put("config.json", "{\"a\":1,\"a\":2}");
    refused("", "config.json: not valid JSON: byte 7: a key appears twice in one object");
    put("config.json", "[]");
    refused("", "config.json: offset 0: not a JSON object");
    put("config.json", "");
    refused("", "config.json: not valid JSON: byte 0: the text ends too early");
}

Test(safetensors_disk, sharded) {
    put_shard("one.safetensors", "a");
    put_shard("two.safetensors", "b");
    put("config.json", "{}");
    put("model.safetensors.index.json",
        "{\"metadata\":{\"total_size\":4},\"weight_map\":{\"b\":\"two.safetensors\",\"a\":\"one.safetensors\"}}");
    static const char *const names[] = {"", "/model.safetensors.index.json"};
    for (size_t i = 0; i < 2; i++) {
        struct model_file *f = open_in_folder(names[i]);
        cr_assert_not_null(f, "%s", err.message);
        cr_expect(model_file_n_tensors(f) == 2 && model_file_find(f, "a") && model_file_find(f, "b")->part == 1);
        cr_expect_not_null(model_file_config(f));
        model_file_close(f);
    }
}

Test(safetensors_disk, index_must_be_right) {
    static const struct {
        const char *index, *reason;
    } cases[] = {
        {"[]", "index.json: offset 0: not a JSON object"},
        {"{", "index.json: not valid JSON: byte 1: the text ends too early"},
        {"{}", "weight_map is missing or not an object"},
        {"{\"weight_map\":[]}", "weight_map is missing or not an object"},
        {"{\"weight_map\":{}}", "weight_map names 0 files; 1 to 4096 are possible"},
        {"{\"weight_map\":{\"a\":1}}", "weight_map names something else than a file beside it"},
        {"{\"weight_map\":{\"a\":\"../one.safetensors\"}}", "weight_map names something else than a file beside it"},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "weight_map names something else than a file beside it"},
        {"{\"weight_map\":{\"a\":\"sub/one.safetensors\"}}", "weight_map names something else than a file beside it"},
        {"{\"weight_map\":{\"a\":\"..\"}}", "weight_map names something else than a file beside it"},
        {"{\"weight_map\":{\"a\":\"\"}}", "weight_map names something else than a file beside it"},
        {"{\"weight_map\":{\"a\":\"one.safetensors\\u0000x\"}}", "\\u0000 is not accepted"},
        {"{\"weight_map\":{\"a\":\"missing.safetensors\"}}", "missing.safetensors: No such file or directory"},
        {"{\"weight_map\":{\"a\":\"one.safetensors\",\"c\":\"two.safetensors\"}}",
         "tensor c is not in the file that weight_map names"},
        {"{\"weight_map\":{\"a\":\"two.safetensors\",\"b\":\"one.safetensors\"}}",
         "is not in the file that weight_map names"},
        {"{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"copy.safetensors\"}}", "tensor a appears twice"},
        {"{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"short.safetensors\"}}",
         "short.safetensors: offset 0: the file ends inside the header's length"},
        {"{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"folder\"}}", "folder: not a regular file"},
    };
    char path[128];
    put_shard("one.safetensors", "a");
    put_shard("two.safetensors", "b");
    put_shard("copy.safetensors", "a");
    put("short.safetensors", "1234");
    snprintf(path, sizeof path, "%s/folder", folder);
    mkdir(path, 0700);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        put("model.safetensors.index.json", cases[i].index);
        refused("", cases[i].reason);
    }
}
