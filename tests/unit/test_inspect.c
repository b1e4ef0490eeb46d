#include "data/model_files.h"
#include "gguf_build.h"

#include <cjson/cJSON.h>
#include <criterion/criterion.h>
#include <inferd/engine.h>
#include <inferd/json.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "model_file/internal.h"

static struct error err;

static char *describe(enum model_format format, const void *data, size_t size, bool json) {
    struct model_file *f = NULL;
    struct buf out = BUF_INIT;
    cr_assert_eq(model_file_open_memory(format, data, size, &f, &err), 0, "%s", err.message);
    cr_assert_eq(model_file_describe(f, json, NULL, &out, &err), 0);
    model_file_close(f);
    return buf_steal(&out);
}

/* A line of the text, its runs of spaces taken as one. */
static bool has_line(const char *text, const char *line) {
    struct buf squeezed = BUF_INIT;
    buf_putc(&squeezed, '\n');
    for (const char *p = text; *p; p++) {
        if (*p != ' ' || p == text || p[-1] != ' ') {
            buf_putc(&squeezed, *p);
        }
    }
    char wanted[300];
    snprintf(wanted, sizeof wanted, "\n %s\n", line);
    bool found = strstr(squeezed.data, wanted) != NULL;
    buf_free(&squeezed);
    return found;
}

Test(inspect, gguf_as_text) {
    static const char *const lines[] = {
        "file \"memory\"",
        "format GGUF version 3",
        "parameters 70",
        "types Q8_0: 68 bytes in 1 tensor",
        "F32: 24 bytes in 1 tensor",
        "general.architecture string \"llama\"",
        "llama.context_length uint32 64",
        "llama.rope.freq_base float32 10000.5",
        "t.int64 int64 -9223372036854775808",
        "t.uint64 uint64 18446744073709551615",
        "t.float64 float64 0.1",
        "t.bool bool true",
        "t.ints int32[3] [1, -2, 3]",
        "t.floats float32[2] [0.5, -1.25]",
        "tokenizer.ggml.tokens string[3] [\"<s>\", \"a\", \"\xc3\xa9\"]",
        "a.weight F32 2 x 3 24 bytes",
        "b.weight Q8_0 2 x 32 68 bytes",
    };
    char *text = describe(MODEL_FORMAT_GGUF, gguf_py, sizeof gguf_py, false);
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        cr_expect(has_line(text, lines[i]), "no line: %s\n%s", lines[i], text);
    }
    /* columns are aligned */
    const char *a = strstr(text, "  t.bool"), *b = strstr(text, "  llama.context_length");
    cr_expect(a && b && strstr(a, " bool  ") - a == strstr(b, " uint32  ") - b);
    free(text);
}

static const cJSON *get(const cJSON *object, const char *key) {
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

Test(inspect, gguf_as_json) {
    char *text = describe(MODEL_FORMAT_GGUF, gguf_py, sizeof gguf_py, true);
    cJSON *root = NULL;
    cr_assert_eq(json_parse(text, strlen(text), NULL, &root, &err), 0, "%s\n%s", err.message, text);
    cr_expect_str_eq(get(root, "format")->valuestring, "gguf");
    cr_expect_eq(get(root, "n_parameters")->valuedouble, 70);
    cr_expect_eq(get(root, "size")->valuedouble, sizeof gguf_py);
    const cJSON *meta = get(root, "metadata"), *tokens = get(meta, "tokenizer.ggml.tokens");
    cr_expect_eq(get(get(meta, "llama.rope.freq_base"), "value")->valuedouble, 10000.5);
    cr_expect(cJSON_IsTrue(get(get(meta, "t.bool"), "value")));
    cr_expect_str_eq(get(tokens, "element")->valuestring, "string");
    cr_expect_eq(get(tokens, "count")->valuedouble, 3);
    cr_expect_str_eq(cJSON_GetArrayItem(get(tokens, "value"), 0)->valuestring, "<s>");
    cr_expect(strstr(text, "\"value\": 18446744073709551615}")); /* digits, not a rounded double */
    const cJSON *b = cJSON_GetArrayItem(get(root, "tensors"), 1);
    cr_expect_str_eq(get(b, "name")->valuestring, "b.weight");
    cr_expect(cJSON_IsTrue(get(b, "supported")) && get(b, "size")->valuedouble == 68);
    cr_expect_eq(cJSON_GetArrayItem(get(b, "shape"), 1)->valuedouble, 32);
    cJSON_Delete(root);
    free(text);
}

Test(inspect, safetensors_and_config) {
    char *text = describe(MODEL_FORMAT_SAFETENSORS, safetensors_py, sizeof safetensors_py, false);
    cr_expect(has_line(text, "format safetensors") && has_line(text, "format \"np\"") &&
                  has_line(text, "c I64 1 8 bytes"),
              "%s", text);
    cr_expect(strstr(text, "I64: 8 bytes in 1 tensor (not supported)"));
    free(text);
    text = describe(MODEL_FORMAT_SAFETENSORS, safetensors_py, sizeof safetensors_py, true);
    cJSON *root = NULL;
    cr_assert_eq(json_parse(text, strlen(text), NULL, &root, &err), 0, "%s", err.message);
    cr_expect_str_eq(get(get(root, "annotations"), "format")->valuestring, "np");
    cJSON_Delete(root);
    free(text);

    char folder[] = "/tmp/inferd-test-XXXXXX", command[64];
    cr_assert_not_null(mkdtemp(folder));
    const char *config =
        "{\"hidden_size\":64,\"rope_scaling\":{\"factor\":8.5,\"type\":\"llama3\"},\"x\\u001b[2J\":\"\\u202e\\u009b\"}";
    write_file(folder, "config.json", config, strlen(config));
    write_file(folder, "model.safetensors", safetensors_py, sizeof safetensors_py);
    struct buf out = BUF_INIT;
    cr_expect_eq(engine_inspect(folder, false, &out, &err), 0, "%s", err.message);
    cr_expect(has_line(out.data, "hidden_size 64") &&
                  has_line(out.data, "rope_scaling {\"factor\":8.5,\"type\":\"llama3\"}") &&
                  has_line(out.data, "x\\x1b[2J \"\\u{202e}\\u{9b}\""),
              "%s", out.data);
    buf_reset(&out);
    cr_expect_eq(engine_inspect(folder, true, &out, &err), 0);
    cr_expect_eq(json_check(out.data, out.len, NULL, &err), 0, "%s", err.message);
    buf_free(&out);
    snprintf(command, sizeof command, "rm -r %s", folder);
    cr_assert_eq(system(command), 0);
    cr_expect_eq(engine_inspect(folder, true, &out, &err), -1);
}

Test(inspect, quantisation) {
    static const struct {
        const char *config, *line;
    } cases[] = {
        {"{\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":128}}",
         "gptq: 4-bit integers in groups of 128"},
        {"{\"quantization_config\":{\"quant_method\":\"h\\u001b[2Jqq\"}}",
         "not supported: the quantisation of the model: the quant_method h?[2Jqq is not supported"},
    };
    char folder[] = "/tmp/inferd-test-XXXXXX", command[64];
    cr_assert_not_null(mkdtemp(folder));
    write_file(folder, "model.safetensors", safetensors_py, sizeof safetensors_py);
    for (size_t i = 0; i < 2; i++) {
        struct buf out = BUF_INIT;
        cJSON *root = NULL;
        write_file(folder, "config.json", cases[i].config, strlen(cases[i].config));
        cr_expect_eq(engine_inspect(folder, false, &out, &err), 0, "%s", err.message);
        const char *line = strstr(out.data, "quantised");
        cr_expect(line && strstr(line, cases[i].line), "%s", out.data);
        buf_reset(&out);
        cr_expect_eq(engine_inspect(folder, true, &out, &err), 0);
        cr_assert_eq(json_parse(out.data, out.len, NULL, &root, &err), 0, "%s", err.message);
        cr_expect(strstr(get(root, "quantization")->valuestring, cases[i].line) == get(root, "quantization")->valuestring);
        cJSON_Delete(root);
        buf_free(&out);
    }
    snprintf(command, sizeof command, "rm -r %s", folder);
    cr_assert_eq(system(command), 0);
}

/* What a file holds must not reach the terminal as commands, nor break the JSON. */
Test(inspect, hostile_strings) {
    struct buf b = BUF_INIT;
    gguf_head(&b, 3, 1, 9);
    gguf_key_string(&b, "escape", "\x1b]0;owned\x07\x1b[2J\r\n\tend");
    gguf_key_string(&b, "broken", "ok\xff\xc3(\xed\xa0\x80 \xf0\x9f\x98");
    gguf_key_string(&b, "c1",
                    "\xc2\x9b"
                    "31m");
    gguf_key_string(&b, "bidi\xe2\x80\xae",
                    "\xe2\x80\xae"
                    "evil");
    gguf_key_string(&b, "quote", "say \"hi\" \\");
    struct buf text = BUF_INIT;
    for (int i = 0; i < 5000; i++) {
        buf_puts(&text, "\xe4\xb8\xad");
    }
    gguf_key_string(&b, "long", text.data);
    gguf_key_array(&b, "many", 4, 100);
    for (uint32_t i = 0; i < 100; i++) {
        put_u32(&b, i);
    }
    gguf_key_array(&b, "strings", 8, 2);
    put_string(&b, text.data);
    put_string(&b, "\x1b\xff");
    gguf_key_array(&b, "floats", 6, 3);
    put_u32(&b, 0x7f800000);
    put_u32(&b, 0x7fc00000);
    put_f32(&b, 1e-6f);
    gguf_tensor(&b, "t\xe2\x80\xae", 1, (uint64_t[]){256}, 16, 0);
    gguf_pad(&b, 32);
    put_zeros(&b, 66);

    char *out = describe(MODEL_FORMAT_GGUF, b.data, b.len, false);
    static const char *const lines[] = {
        "escape string \"\\x1b]0;owned\\x07\\x1b[2J\\r\\n\\tend\"",
        "broken string \"ok\\xff\\xc3(\\xed\\xa0\\x80 \\xf0\\x9f\\x98\"",
        "c1 string \"\\u{9b}31m\"",
        "bidi\\u{202e} string \"\\u{202e}evil\"",
        "quote string \"say \\\"hi\\\" \\\\\"",
        "many uint32[100] [0, 1, 2, 3, 4, 5, ...]",
        "floats float32[3] [Infinity, NaN, 1e-06]",
        "t\\u{202e} IQ2_XXS 256 66 bytes",
        "types IQ2_XXS: 66 bytes in 1 tensor (not supported)",
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        cr_expect(has_line(out, lines[i]), "no line: %s\n%s", lines[i], out);
    }
    cr_expect(strstr(out, "\"... (15000 bytes)\n"));
    for (const char *p = out; *p; p++) {
        cr_assert((unsigned char)*p >= 0x20 || *p == '\n');
    }
    cr_expect(utf8_is_valid(out, strlen(out)));
    free(out);

    out = describe(MODEL_FORMAT_GGUF, b.data, b.len, true);
    cJSON *root = NULL;
    cr_assert_eq(json_parse(out, strlen(out), NULL, &root, &err), 0, "%s\n%s", err.message, out);
    const cJSON *meta = get(root, "metadata");
    cr_expect_str_eq(get(get(meta, "long"), "value")->valuestring, text.data); /* whole */
    cr_expect_str_eq(get(get(meta, "escape"), "value")->valuestring, "\x1b]0;owned\x07\x1b[2J\r\n\tend");
    cr_expect_str_eq(cJSON_GetArrayItem(get(get(meta, "floats"), "value"), 1)->valuestring, "NaN");
    cr_expect_eq(cJSON_GetArraySize(get(get(meta, "many"), "value")), 6);
    cr_expect(cJSON_IsFalse(get(cJSON_GetArrayItem(get(root, "tensors"), 0), "supported")));
    cJSON_Delete(root);
    free(out);
    buf_free(&text);
    buf_free(&b);
}

Test(inspect, no_tensors) {
    struct buf b = BUF_INIT;
    gguf_head(&b, 3, 0, 0);
    char *out = describe(MODEL_FORMAT_GGUF, b.data, b.len, false);
    cr_expect(strstr(out, "\nNo tensors.\n"));
    free(out);
    out = describe(MODEL_FORMAT_GGUF, b.data, b.len, true);
    cr_expect_eq(json_check(out, strlen(out), NULL, &err), 0, "%s", err.message);
    free(out);
    buf_free(&b);
}
