#include "gguf_build.h"
#include "shared_data.h"

#include <criterion/criterion.h>
#include <ftw.h>
#include <inferd/text.h>
#include <string.h>
#include <sys/stat.h>

static struct error err;
static char folder[64];

static void make_folder(void) {
    strcpy(folder, "/tmp/inferd-text-XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw) {
    (void)st, (void)kind, (void)ftw;
    return remove(path);
}

static void remove_folder(void) {
    nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

TestSuite(text_open, .init = make_folder, .fini = remove_folder);

static const char *save(const char *name, const void *data, size_t len) {
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    cr_assert_eq(fwrite(data, 1, len, f), len);
    fclose(f);
    return path;
}

static const char *save_text(const char *name, const char *text) {
    return save(name, text, strlen(text));
}

static void expect_ends(const struct text *t, const int32_t *want) {
    size_t n, i = 0;
    const int32_t *ids = text_eos_ids(t, &n);
    for (; want[i] >= 0; i++) {
        cr_expect(i < n && ids[i] == want[i], "end %zu is %d", i, i < n ? ids[i] : -1);
    }
    cr_expect_eq(n, i);
}
#define EXPECT_ENDS(t, ...) expect_ends(t, (const int32_t[]){__VA_ARGS__, -1})

static void expect_refused(const char *path, const char *what) {
    struct text *t = NULL;
    cr_expect_eq(text_open(path, &t, &err), -1, "%s was accepted", what);
    cr_expect_eq(err.code, ERROR_MODEL, "%s", err.message);
    cr_expect(strstr(err.message, what), "%s: %s", what, err.message);
    cr_expect(strstr(err.message, folder), "the file is not named: %s", err.message);
    text_free(t);
}

/* ---- a folder ---- */

#define TOKENIZER                                                                                                      \
    "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]},\"decoder\":{\"type\":\"Fuse\"},"         \
    "\"added_tokens\":[{\"id\":2,\"content\":\"<s>\",\"special\":true},{\"id\":3,\"content\":\"</s>\",\"special\":"    \
    "true},{\"id\":4,\"content\":\"<|im_end|>\",\"special\":true},{\"id\":5,\"content\":\"<|eot_id|>\","               \
    "\"special\":false},{\"id\":6,\"content\":\"<x>\",\"special\":true}]}"

static char *render(const struct text *t) {
    struct marked_text out = {0};
    struct chat_request r = {.messages_json = "[{\"content\":\"a\"}]", .messages_len = 17};
    cr_assert_eq(text_render_chat(t, &r, &out, &err), 0, "%s", err.message);
    char *s = buf_steal(&out.bytes);
    marked_text_free(&out);
    return s;
}

static struct text *open_folder(void) {
    struct text *t = NULL;
    cr_assert_eq(text_open(folder, &t, &err), 0, "%s", err.message);
    return t;
}

Test(text_open, files_beside_the_tokenizer) {
    save_text("tokenizer.json", TOKENIZER);
    struct text *t = open_folder();
    cr_expect_eq(text_vocab_size(t), 7);
    cr_expect_eq(text_bos_id(t), -1);
    cr_expect_not(text_has_chat_template(t));
    EXPECT_ENDS(t, 4); /* known by its name, and special; <|eot_id|> is ordinary here */
    text_free(t);
    save_text("tokenizer_config.json",
              "{\"bos_token\":\"<s>\",\"eos_token\":{\"content\":\"</s>\",\"lstrip\":false},\"chat_template\":["
              "{\"name\":\"tool_use\",\"template\":\"no\"},{\"name\":\"default\",\"template\":\"{{ bos_token }}"
              "{{ messages[0].content }}{{ eos_token }}\"}]}");
    save_text("generation_config.json", "{\"eos_token_id\":[6,3,900,-1,\"x\"],\"bos_token_id\":0}");
    t = open_folder();
    cr_expect_eq(text_bos_id(t), 2);
    cr_expect_not(text_adds_bos(t));
    EXPECT_ENDS(t, 3, 6, 4);
    char *prompt = render(t);
    cr_expect_str_eq(prompt, "<s>a</s>");
    free(prompt);
    text_free(t);
    save_text("chat_template.jinja", "[{{ messages[0].content }}]"); /* the file comes before the one in the config */
    t = open_folder();
    prompt = render(t);
    cr_expect_str_eq(prompt, "[a]");
    free(prompt);
    text_free(t);
    char path[128]; /* the same by the file's own name */
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    cr_assert_eq(text_open(path, &t, &err), 0);
    cr_expect_eq(text_bos_id(t), 2);
    text_free(t);
}

static char *render_tools(const struct text *t) {
    struct marked_text out = {0};
    struct chat_request r = {.messages_json = "[]", .messages_len = 2, .tools_json = "[{}]", .tools_len = 4};
    cr_assert_eq(text_render_chat(t, &r, &out, &err), 0, "%s", err.message);
    char *s = buf_steal(&out.bytes);
    marked_text_free(&out);
    return s;
}

static void expect_templates(struct text *t, const char *usual, const char *tools) {
    char *prompt = render(t), *with_tools = render_tools(t);
    cr_expect_str_eq(prompt, usual);
    cr_expect_str_eq(with_tools, tools);
    free(prompt);
    free(with_tools);
    text_free(t);
}

/* As transformers does it: tool_use for chats with tools, files before what the config says. */
Test(text_open, templates_by_name) {
    save_text("tokenizer.json", TOKENIZER);
    save_text("tokenizer_config.json",
              "{\"chat_template\":[{\"name\":\"default\",\"template\":\"D\"},{\"name\":\"tool_use\","
              "\"template\":\"T{{ tools }}\"}]}");
    expect_templates(open_folder(), "D", "T[{}]");
    save_text("tokenizer_config.json", "{\"chat_template\":{\"default\":\"E\",\"tool_use\":\"U{{ tools }}\"}}");
    expect_templates(open_folder(), "E", "U[{}]");
    save_text("chat_template.jinja", "F{{ tools is none }}");
    expect_templates(open_folder(), "FTrue", "FFalse"); /* the config's tool_use is gone with it */
    char path[128];
    snprintf(path, sizeof path, "%s/additional_chat_templates", folder);
    cr_assert_eq(mkdir(path, 0700), 0);
    save_text("additional_chat_templates/tool_use.jinja", "V{{ tools }}");
    save_text("additional_chat_templates/rag.jinja", "R{{ tools }}");
    save_text("additional_chat_templates/notes.txt", "{% if %}");
    expect_templates(open_folder(), "FTrue", "V[{}]");
    struct text *t = open_folder();
    cr_assert_eq(text_choose_chat_template(t, "rag", &err), 0, "%s", err.message);
    expect_templates(t, "RNone", "R[{}]");
    t = open_folder();
    cr_expect_eq(text_choose_chat_template(t, "no-such", &err), -1);
    cr_expect_str_eq(err.param, "chat_template");
    snprintf(path, sizeof path, "%s/additional_chat_templates/rag.jinja", folder);
    cr_assert_eq(text_choose_chat_template(t, path, &err), 0, "%s", err.message);
    expect_templates(t, "RNone", "R[{}]");
    save_text("additional_chat_templates/rag.jinja", "{% if %}");
    expect_refused(folder, "chat template 'rag'");
    /* with one of the operator's, the model's own may be as they are */
    cr_assert_eq(text_open_with(folder, "chatml", &t, &err), 0, "%s", err.message);
    char *prompt = render(t);
    cr_expect(strstr(prompt, "<|im_start|>"), "%s", prompt);
    free(prompt);
    text_free(t);
    cr_assert_eq(text_open_with(folder, "tool_use", &t, &err), 0, "%s", err.message);
    expect_templates(t, "VNone", "V[{}]");
    t = NULL;
    cr_expect_eq(text_open_with(folder, "rag", &t, &err), -1);
    cr_expect_eq(text_open_with(folder, NULL, &t, &err), -1);
    cr_expect_null(t);
}

Test(text_open, bad_files_are_named) {
    expect_refused(folder, "");
    save_text("tokenizer.json", "{\"model\":{\"type\":\"Odd\"},\"decoder\":{\"type\":\"Fuse\"}}");
    expect_refused(folder, "tokenizer.json: model: the type 'Odd'");
    save_text("tokenizer.json", TOKENIZER);
    save_text("tokenizer_config.json", "{\"chat_template\":\"{% for %}\"}");
    expect_refused(folder, "tokenizer_config.json: chat template");
    save_text("tokenizer_config.json", "{");
    expect_refused(folder, "tokenizer_config.json");
    save_text("tokenizer_config.json", "{}");
    save("chat_template.jinja", "a\0b", 3);
    expect_refused(folder, "chat_template.jinja");
}

/* ---- a GGUF ---- */

enum wrong {
    NOTHING,
    NO_MODEL,
    KIND,
    TOKENS_OF_INTEGERS,
    FEW_TYPES,
    FEW_SCORES,
    BOS_OUTSIDE,
    EOT_OUTSIDE,
    TEMPLATE,
    NUL_IN_PRE
};

/* <unk> <s> </s> a <|eot_id|> (control) <end_of_turn> (normal), SentencePiece */
static const char *write_gguf(enum wrong wrong) {
    static const char *const tokens[] = {"<unk>", "<s>", "</s>", "a", "<|eot_id|>", "<end_of_turn>"};
    static const uint32_t types[] = {2, 3, 3, 1, 3, 1};
    struct buf b = BUF_INIT;
    gguf_head(&b, 3, 0, 12);
    gguf_key_string(&b, "general.architecture", "llama");
    gguf_key_string(&b, wrong == NO_MODEL ? "x" : "tokenizer.ggml.model", wrong == KIND ? "t5" : "llama");
    gguf_key(&b, "tokenizer.ggml.pre", 8);
    put_u64(&b, 3);
    buf_append(&b, wrong == NUL_IN_PRE ? "a\0b" : "abc", 3);
    if (wrong == TOKENS_OF_INTEGERS) {
        gguf_key_array(&b, "tokenizer.ggml.tokens", 4, 1);
        put_u32(&b, 1);
    } else {
        gguf_key_array(&b, "tokenizer.ggml.tokens", 8, 6);
        for (size_t i = 0; i < 6; i++) {
            put_string(&b, tokens[i]);
        }
    }
    gguf_key_array(&b, "tokenizer.ggml.token_type", 5, wrong == FEW_TYPES ? 5 : 6);
    for (size_t i = 0; i < (wrong == FEW_TYPES ? 5u : 6u); i++) {
        put_u32(&b, types[i]);
    }
    gguf_key_array(&b, "tokenizer.ggml.scores", 6, wrong == FEW_SCORES ? 5 : 6);
    for (size_t i = 0; i < (wrong == FEW_SCORES ? 5u : 6u); i++) {
        put_f32(&b, -(float)i);
    }
    gguf_key_u32(&b, "tokenizer.ggml.bos_token_id", wrong == BOS_OUTSIDE ? 6 : 1);
    gguf_key_u32(&b, "tokenizer.ggml.eot_token_id", wrong == EOT_OUTSIDE ? 6 : 3);
    gguf_key_string(&b, "tokenizer.chat_template",
                    wrong == TEMPLATE ? "{% if %}" : "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}");
    gguf_key_string(&b, "tokenizer.chat_template.tool_use", "T{{ tools }}");
    gguf_key_string(&b, "tokenizer.chat_template.rag", "R{{ tools }}");
    gguf_key_array(&b, "tokenizer.chat_templates", 8, 2);
    put_string(&b, "tool_use");
    put_string(&b, "rag");
    gguf_pad(&b, 32);
    const char *path = save("model.gguf", b.data, b.len);
    buf_free(&b);
    return path;
}

Test(text_open, gguf) {
    struct text *t = NULL;
    cr_assert_eq(text_open(write_gguf(NOTHING), &t, &err), 0, "%s", err.message);
    cr_expect_eq(text_vocab_size(t), 6);
    cr_expect_eq(text_bos_id(t), 1);
    cr_expect(text_adds_bos(t));
    EXPECT_ENDS(t, 2, 3, 4); /* SentencePiece's own </s>, the one named, and <|eot_id|>, which is control */
    char *prompt = render(t);
    cr_expect_str_eq(prompt, "<s>a</s>");
    free(prompt);
    expect_templates(t, "<s>a</s>", "T[{}]");
    cr_assert_eq(text_open(write_gguf(NOTHING), &t, &err), 0);
    cr_assert_eq(text_choose_chat_template(t, "rag", &err), 0);
    expect_templates(t, "RNone", "R[{}]");
}

Test(text_open, a_gguf_with_an_unusable_template) {
    struct text *t = NULL;
    expect_refused(write_gguf(TEMPLATE), "chat template");
    cr_assert_eq(text_open_with(write_gguf(TEMPLATE), "rag", &t, &err), 0, "%s", err.message);
    expect_templates(t, "RNone", "R[{}]");
}

Test(text_open, bad_vocabularies_are_refused) {
    static const struct {
        enum wrong wrong;
        const char *what;
    } cases[] = {
        {NO_MODEL, "tokenizer.ggml.model"},
        {KIND, "'t5'"},
        {TOKENS_OF_INTEGERS, "tokenizer.ggml.tokens"},
        {FEW_TYPES, "tokenizer.ggml.token_type"},
        {FEW_SCORES, "tokenizer.ggml.scores"},
        {BOS_OUTSIDE, "tokenizer.ggml.bos_token_id is 6"},
        {EOT_OUTSIDE, "tokenizer.ggml.eot_token_id is 6"},
        {TEMPLATE, "chat template"},
        {NUL_IN_PRE, "tokenizer.ggml.pre"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        expect_refused(write_gguf(cases[i].wrong), cases[i].what);
    }
}

/* ---- models at hand ---- */

static struct text *open_shared(const char *name) {
    struct text *t = NULL;
    cr_assert_eq(text_open(shared_data(name), &t, &err), 0, "%s", err.message);
    return t;
}

Test(text_open, ends_of_real_models) {
    struct text *t = open_shared("tokenizers/llama-3.1");
    EXPECT_ENDS(t, 128009, 128008, 128001);
    cr_expect(text_adds_bos(t));
    text_free(t);
    t = open_shared("tokenizers/qwen3");
    EXPECT_ENDS(t, 151645, 151643);
    cr_expect_not(text_adds_bos(t));
    text_free(t);
    t = open_shared("tokenizers/phi-3-mini");
    EXPECT_ENDS(t, 32000, 32007);
    text_free(t);
    t = open_shared("gguf/qwen3.gguf"); /* </s> is a word there, not an end */
    EXPECT_ENDS(t, 151645, 151643);
    text_free(t);
}
