#include "shared_data.h"
#include "text/text_impl.h"
#include "text_cases.h"

#include <time.h>

static struct error err;

/* One-byte tokens, <s> (special) and <think> (ordinary), and this chat template. */
static struct text *open_with(const char *template) {
    struct buf json = BUF_INIT;
    buf_puts(&json, "{\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"vocab\":{\"<0x00>\":0");
    for (size_t i = 1; i < 256; i++) {
        buf_printf(&json, ",\"<0x%02X>\":%zu", (unsigned)i, i);
    }
    buf_puts(
        &json,
        "},\"merges\":[]},\"added_tokens\":[{\"id\":256,\"content\":\"<s>\",\"special\":true},"
        "{\"id\":257,\"content\":\"<think>\",\"special\":false},{\"id\":258,\"content\":\"</s>\",\"special\":true}],"
        "\"decoder\":{\"type\":\"ByteFallback\"},\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":"
        "[{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],"
        "\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[256],\"tokens\":[\"<s>\"]}}}}");
    struct text *t = calloc(1, sizeof *t);
    cr_assert_eq(tokenizer_from_json(json.data, json.len, &t->tokenizer, &err), 0, "%s", err.message);
    t->bos_id = 256;
    t->bos_text = strdup("<s>");
    t->eos_text = strdup("</s>");
    cr_assert_eq(text_set_chat_template(t, template, strlen(template), &err), 0, "%s", err.message);
    buf_free(&json);
    return t;
}

static int render(const struct text *t, const char *messages, struct chat_request r, struct marked_text *out) {
    r.messages_json = messages;
    r.messages_len = strlen(messages);
    return text_render_chat(t, &r, out, &err);
}

static void expect(const char *template, const char *messages, struct chat_request r, const char *want) {
    struct text *t = open_with(template);
    struct marked_text out = {0};
    cr_assert_eq(render(t, messages, r, &out), 0, "%s", err.message);
    cr_expect_str_eq(out.bytes.data ? out.bytes.data : "", want);
    cr_expect_eq(out.bytes.len, out.trusted.len);
    marked_text_free(&out);
    text_free(t);
}

static void expect_error(const char *template, const char *messages, struct chat_request r, enum error_code code,
                         const char *what) {
    struct text *t = open_with(template);
    struct marked_text out = {0};
    buf_puts(&out.bytes, "before");
    buf_append(&out.trusted, "\1\1\1\1\1\1", 6);
    cr_expect_eq(render(t, messages, r, &out), -1, "%s", messages);
    cr_expect_eq(err.code, code);
    cr_expect(strstr(err.message, what), "%s", err.message);
    cr_expect_str_eq(out.bytes.data, "before");
    cr_expect_eq(out.trusted.len, 6);
    marked_text_free(&out);
    text_free(t);
}

#define PLAIN                                                                                                          \
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}{% if add_generation_prompt "      \
    "%}[assistant]{% endif %}"
#define TRIMMED "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}</s>{% endfor %}"
#define PARTS                                                                                                          \
    "{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content " \
    "%}{% if p.type == 'text' %}({{ p.text }}){% endif %}{% endfor %}{% endif %}{% endfor %}"
#define ONLY_PARTS                                                                                                     \
    "{% for m in messages %}[{{ m.role }}]{% for p in m.content %}{% if p.type == 'text' %}({{ p.text }}){% endif "    \
    "%}{% endfor %}{% endfor %}"
#define NONE ((struct chat_request){0})
#define GENERATE ((struct chat_request){.add_generation_prompt = true})
#define CONTINUE ((struct chat_request){.continue_final_message = true})
#define USER_PARTS                                                                                                     \
    "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\\\"\\u00e9\"},{\"text\":\"b]\",\"type\":"        \
    "\"text\"}]}]"

Test(chat_template, variables_reach_it) {
    expect(PLAIN, "[{\"role\":\"user\",\"content\":\"hi\"}]", GENERATE, "[user]hi</s>[assistant]");
    expect(PLAIN, "[]", NONE, "");
    struct chat_request r = {.tools_json = "[1,2]",
                             .tools_len = 5,
                             .documents_json = "[\"d\"]",
                             .documents_len = 5,
                             .kwargs_json = "{\"x\":7}",
                             .kwargs_len = 7,
                             .now = 86400};
    expect("{{ bos_token }}{{ tools | length }}{{ documents[0] }}{{ x }} {{ strftime_now('%Y-%m-%d') }}", "[]", r,
           "<s>2d7 1970-01-02");
    expect("{{ messages[0].n }}", "[ { \"n\" : 12345678901234567890 , \"content\":[ ] } ]", NONE,
           "12345678901234567890");
}

Test(chat_template, content_parts) {
    expect(PLAIN, USER_PARTS, NONE, "[user]a\"\xc3\xa9\nb]</s>"); /* joined for a template that expects strings */
    expect(PARTS, USER_PARTS, NONE, "[user](a\"\xc3\xa9)(b])");   /* as they are for one that walks over them */
    expect(PARTS, "[{\"role\":\"user\",\"content\":\"x\"}]", NONE, "[user]x");
    expect(ONLY_PARTS, "[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"a\",\"content\":[]}]", NONE, "[user](x)[a]");
    expect(PLAIN, "[ {\"role\":\"user\" , \"content\" : [ ] } , {\"role\":\"a\",\"content\":[\"p\",\"q\"],\"z\":[1]} ]",
           NONE, "[user]</s>[a]p\nq</s>");
    expect_error(PLAIN, "[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"x\"}}]}]",
                 NONE, ERROR_UNSUPPORTED, "'text'");
    cr_expect_str_eq(err.param, "messages");
}

Test(chat_template, final_message_continued) {
    expect(PLAIN, "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"It is \"}]", CONTINUE,
           "[user]q</s>[assistant]It is ");
    expect(TRIMMED, "[{\"role\":\"assistant\",\"content\":\" It is\\u00a0 \"}]", CONTINUE, "[assistant]It is");
    expect(PARTS,
           "[{\"role\":\"a\",\"content\":[{\"type\":\"text\",\"text\":\"x\"},{\"type\":\"text\",\"text\":\"y \"}]}]",
           CONTINUE, "[a](x)(y ");
    expect(PLAIN, "[{\"content\":\"CONTINUE_FINAL_MESSAGE_0_ a\",\"role\":\"a\"}]", CONTINUE,
           "[a]CONTINUE_FINAL_MESSAGE_0_ a");
    expect_error("{{ messages[0].content }}", "[{\"content\":\"a\"},{\"content\":\"b\"}]", CONTINUE, ERROR_INVALID,
                 "leaves the final message out");
    expect_error(PLAIN, "[]", CONTINUE, ERROR_INVALID, "no text");
    expect_error(PLAIN, "[{\"role\":\"a\",\"content\":null}]", CONTINUE, ERROR_INVALID, "no text");
    expect_error(PLAIN, "[{\"role\":\"a\",\"content\":\"x\"}]",
                 (struct chat_request){.continue_final_message = true, .add_generation_prompt = true}, ERROR_INVALID,
                 "cannot both");
    cr_expect_str_eq(err.param, "continue_final_message");
}

Test(chat_template, refusals) {
    expect_error("{{ raise_exception('No system here') }}", "[]", NONE, ERROR_INVALID, "No system here");
    struct text *t = open_with(PLAIN);
    cr_expect_eq(text_set_chat_template(t, "{% if %}", 8, &err), -1);
    cr_expect_eq(err.code, ERROR_MODEL);
    cr_expect(strstr(err.message, "chat template"), "%s", err.message);
    cr_expect_eq(text_set_chat_template(t, "a\0b", 3, &err), -1);
    cr_expect_str_eq(text_chat_template(t), PLAIN, "the one before stays");
    text_free(t);
    struct text none = {0};
    struct marked_text out = {0};
    cr_expect_not(text_has_chat_template(&none));
    cr_expect_eq(render(&none, "[]", NONE, &out), -1);
    cr_expect_eq(err.code, ERROR_UNSUPPORTED);
}

static void expect_tokens(const struct text *t, const char *messages, const int32_t *want) {
    struct marked_text out = {0};
    struct tokens ids = {0};
    size_t n = 0;
    while (want[n] >= 0) {
        n++;
    }
    cr_assert_eq(render(t, messages, NONE, &out), 0, "%s", err.message);
    cr_assert_eq(text_encode_marked(t, &out, TEXT_ADD_SPECIAL, &ids, &err), 0);
    cr_expect(ids.n == n && memcmp(ids.ids, want, n * sizeof *want) == 0, "%s", messages);
    marked_text_free(&out);
    tokens_free(&ids);
}
#define EXPECT_TOKENS(t, messages, ...) expect_tokens(t, messages, (const int32_t[]){__VA_ARGS__, -1})

/* Special tokens are what the template wrote, never what a message says; BOS comes once. */
Test(chat_template, what_messages_say_is_plain_text) {
    struct text *t = open_with("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}");
    EXPECT_TOKENS(t, "[{\"content\":\"x\"}]", 256, 'x', 258);
    EXPECT_TOKENS(t, "[{\"content\":\"</s>\"}]", 256, '<', '/', 's', '>', 258);
    EXPECT_TOKENS(t, "[{\"content\":\"<think>\"}]", 256, 257, 258);
    EXPECT_TOKENS(t, "[{\"content\":[{\"type\":\"text\",\"text\":\"<s>\"}]}]", 256, '<', 's', '>', 258);
    text_free(t);
    t = open_with("<s{{ messages[0].content }}");
    EXPECT_TOKENS(t, "[{\"content\":\">\"}]", 256, '<', 's',
                  '>'); /* half of it is not enough; this BOS is the tokenizer's */
    text_free(t);
}

/* ---- the chats of real models: the prompt and its tokens ---- */

static cJSON *find_case(const char *template, const char *name, char **line) {
    char path[256];
    snprintf(path, sizeof path, "chat/rendered/%s.jsonl", template);
    FILE *f = fopen(shared_data(path), "r");
    cJSON *found = NULL;
    free(*line);
    *line = NULL;
    for (size_t cap = 0; !found && getline(line, &cap, f) > 0;) {
        found = cJSON_Parse(*line);
        if (strcmp(cJSON_GetObjectItem(found, "case")->valuestring, name) != 0) {
            cJSON_Delete(found);
            found = NULL;
        }
    }
    fclose(f);
    return found;
}

static void set_token_text(char **to, const cJSON *item) {
    free(*to);
    *to = cJSON_IsString(item) ? strdup(item->valuestring) : NULL;
}

/* JSON text of a member, NULL if it is missing or null. */
static char *printed(const cJSON *row, const char *key) {
    const cJSON *item = cJSON_GetObjectItem(row, key);
    return item && !cJSON_IsNull(item) ? cJSON_PrintUnformatted(item) : NULL;
}

static bool prompt_is(struct text *t, const cJSON *row, const cJSON *want) {
    char *messages = printed(row, "messages"), *tools = printed(row, "tools"), *documents = printed(row, "documents"),
         *kwargs = printed(row, "kwargs");
    struct chat_request r = {
        .messages_json = messages,
        .messages_len = strlen(messages),
        .tools_json = tools,
        .tools_len = tools ? strlen(tools) : 0,
        .documents_json = documents,
        .documents_len = documents ? strlen(documents) : 0,
        .kwargs_json = kwargs,
        .kwargs_len = kwargs ? strlen(kwargs) : 0,
        .add_generation_prompt = cJSON_IsTrue(cJSON_GetObjectItem(row, "add_generation_prompt")),
        .now = (int64_t)cJSON_GetNumberValue(cJSON_GetObjectItem(row, "now")),
    };
    struct marked_text out = {0};
    struct tokens ids = {0}, expected = {0};
    const cJSON *now = cJSON_GetObjectItem(row, "now");
    if (cJSON_IsString(now)) { /* 2024-01-02T03:04:05 */
        struct tm tm = {0};
        strptime(now->valuestring, "%Y-%m-%dT%H:%M:%S", &tm);
        r.now = timegm(&tm);
    }
    cr_assert_eq(text_render_chat(t, &r, &out, &err), 0, "%s", err.message);
    cr_assert_eq(text_encode_marked(t, &out, 0, &ids, &err), 0);
    ids_of(cJSON_GetObjectItem(want, "ids"), &expected);
    bool same = strcmp(out.bytes.data ? out.bytes.data : "", cJSON_GetObjectItem(want, "rendered")->valuestring) == 0 &&
                same_ids(&ids, &expected);
    marked_text_free(&out);
    tokens_free(&ids);
    tokens_free(&expected);
    free(messages);
    free(tools);
    free(documents);
    free(kwargs);
    return same;
}

static void check_model(const char *name, size_t at_least) {
    char path[256];
    struct text *t;
    size_t n = 0, len;
    snprintf(path, sizeof path, "tokenizers/%s", name);
    cr_assert_eq(text_open(shared_data(path), &t, &err), 0, "%s", err.message);
    snprintf(path, sizeof path, "tokenizers/%s/chat.jsonl", name);
    FILE *f = fopen(shared_data(path), "r");
    char *line = NULL, *row_line = NULL;
    for (size_t cap = 0; getline(&line, &cap, f) > 0;) {
        cJSON *want = cJSON_Parse(line);
        const char *template = cJSON_GetObjectItem(want, "template")->valuestring,
                   *name_of_case = cJSON_GetObjectItem(want, "case")->valuestring;
        /* Left out: special_lookalike, whose ids are those of the text as a whole, and parts given to templates that
         * expect strings, where the reference prints Python's form of the list. */
        if (strcmp(name_of_case, "special_lookalike") != 0 && strncmp(name_of_case, "parts_", 6) != 0) {
            cJSON *row = find_case(template, name_of_case, &row_line);
            snprintf(path, sizeof path, "chat/templates/%s.jinja", template);
            char *source = read_whole(shared_data(path), &len);
            set_token_text(&t->bos_text, cJSON_GetObjectItem(row, "bos_token"));
            set_token_text(&t->eos_text, cJSON_GetObjectItem(row, "eos_token"));
            cr_assert_eq(text_set_chat_template(t, source, len, &err), 0, "%s", err.message);
            cr_expect(prompt_is(t, row, want), "%s: %s", template, name_of_case);
            n++;
            free(source);
            cJSON_Delete(row);
        }
        cJSON_Delete(want);
    }
    printf("%s: %zu prompts\n", name, n);
    cr_expect_geq(n, at_least);
    free(line);
    free(row_line);
    fclose(f);
    text_free(t);
}

Test(chat_template, prompts_of_llama_2) {
    check_model("llama-2", 40);
}
Test(chat_template, prompts_of_phi_3) {
    check_model("phi-3-mini", 18);
}
Test(chat_template, prompts_of_llama_3_1) {
    check_model("llama-3.1", 55);
}
Test(chat_template, prompts_of_qwen3) {
    check_model("qwen3", 45);
}
