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
    cr_expect(strstr(err.message, "chatml"), "%s", err.message);
}

/* ---- tools, documents, templates by name ---- */

#define TOOLS ((struct chat_request){.tools_json = "[{\"n\":1}]", .tools_len = 9})

Test(chat_template, what_has_no_place_is_refused) {
    expect("{{ tools[0].n }}", "[]", TOOLS, "1");
    expect("{% if tools %}x{% endif %}", "[]", TOOLS, "x");
    expect_error(PLAIN, "[]", TOOLS, ERROR_UNSUPPORTED, "no place for tools");
    cr_expect_str_eq(err.param, "tools");
    struct chat_request r = {.documents_json = "[]", .documents_len = 2};
    expect("{{ documents }}", "[]", r, "[]");
    expect_error("{{ tools }}", "[]", r, ERROR_UNSUPPORTED, "no place for documents");
    r.verbatim = true;
    expect("{{ tools }}", "[]", r, "None");
}

Test(chat_template, by_name) {
    struct text *t = open_with("usual{{ documents }}");
    struct marked_text out = {0};
    cr_assert_eq(text_add_chat_template(t, "tool_use", "T{{ tools[0].n }}", 17, &err), 0);
    cr_assert_eq(text_add_chat_template(t, "rag", "old", 3, &err), 0);
    cr_assert_eq(text_add_chat_template(t, "rag", "R", 1, &err), 0);
    cr_expect_eq(text_add_chat_template(t, "bad", "{% if %}", 8, &err), -1);
    cr_expect(strstr(err.message, "chat template 'bad'"), "%s", err.message);
    cr_expect_str_eq(text_chat_template(t), "usual{{ documents }}");
    cr_assert_eq(render(t, "[]", NONE, &out), 0);
    cr_assert_eq(render(t, "[]", TOOLS, &out), 0);
    cr_expect_str_eq(out.bytes.data, "usualNoneT1");
    cr_assert_eq(text_choose_chat_template(t, "rag", &err), 0);
    cr_assert_eq(render(t, "[]", NONE, &out), 0);
    cr_expect_str_eq(out.bytes.data, "usualNoneT1R");
    text_drop_chat_templates(t);
    cr_assert_eq(text_add_chat_template(t, "rag", "R", 1, &err), 0);
    cr_expect_eq(render(t, "[]", NONE, &out), -1);
    cr_expect(strstr(err.message, "'rag'"), "%s", err.message);
    for (int i = 1; i < TEXT_MAX_CHAT_TEMPLATES; i++) {
        char name[16];
        snprintf(name, sizeof name, "n%d", i);
        cr_assert_eq(text_add_chat_template(t, name, "x", 1, &err), 0);
    }
    cr_expect_eq(text_add_chat_template(t, "more", "x", 1, &err), -1);
    cr_expect_eq(text_choose_chat_template(t, "/nowhere", &err), -1);
    cr_expect_str_eq(err.param, "chat_template");
    marked_text_free(&out);
    text_free(t);
}

/* Arguments of calls are JSON text in the API: templates that want objects get objects, others get the text. */
Test(chat_template, arguments_of_tool_calls) {
#define CALLS(tail)                                                                                                    \
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{% set a = c.function.arguments %}" tail                  \
    "{% endfor %}{% endfor %}"
    static const char call[] =
        "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"arguments\":\" "
        "{\\\"k\\\":1.0,\\\"s\\\":\\\"\\\\u00e9<s>\\\"}\"}},{\"function\":{\"arguments\":\"no\"}}]}]";
    expect(CALLS("{{ a if a is string else a | tojson }};"), call, NONE, " {\"k\":1.0,\"s\":\"\\u00e9<s>\"};no;");
    expect(CALLS("{{ a | tojson }};"), call, NONE, "{\"k\": 1.0, \"s\": \"\xc3\xa9<s>\"};\"no\";");
    struct chat_request r = {.verbatim = true};
    expect(CALLS("{{ a | tojson }};"), call, r, "\" {\\\"k\\\":1.0,\\\"s\\\":\\\"\\\\u00e9<s>\\\"}\";\"no\";");
    expect(CALLS("{{ '{' + a }};"), call, NONE, "{ {\"k\":1.0,\"s\":\"\\u00e9<s>\"};{no;");
    static const char one[] =
        "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"arguments\":\"{\\\"k\\\":1}\"}}]}]";
    expect(CALLS("{% for k, v in a.items() %}{{ k }}={{ v }}{% endfor %}"), one, NONE, "k=1");
    expect(PARTS, "[{\"role\":\"user\",\"content\":[\"x\"]}]", r, "[user]");
}

/* ---- built-in families ---- */

#define TALK                                                                                                           \
    "[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":\"U\"},{\"role\":\"assistant\","          \
    "\"content\":"                                                                                                     \
    "\"A\"},{\"role\":\"user\",\"content\":\"V\"}]"

Test(chat_template, families) {
    static const struct {
        const char *name, *want;
    } cases[] = {
        {"alpaca", "S\n\n### Instruction:\nU\n\n### Response:\nA</s>\n\n### Instruction:\nV\n\n### Response:\n"},
        {"chatml",
         "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n"
         "<|im_start|>user\nV<|im_end|>\n<|im_start|>assistant\n"},
        {"command-r",
         "<s><|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>S<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|USER_TOKEN|>U"
         "<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>A<|END_OF_TURN_TOKEN|>"
         "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>V<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"},
        {"deepseek-llm", "<s>S\n\nUser: U\n\nAssistant: A</s>User: V\n\nAssistant:"},
        {"gemma", "<s><start_of_turn>user\nS\n\nU<end_of_turn>\n<start_of_turn>model\nA<end_of_turn>\n"
                  "<start_of_turn>user\nV<end_of_turn>\n<start_of_turn>model\n"},
        {"llama-2", "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nU [/INST] A </s><s>[INST] V [/INST]"},
        {"llama-3",
         "<s><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
         "U<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nA<|eot_id|><|start_header_id|>user"
         "<|end_header_id|>\n\nV<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"},
        {"mistral", "<s>[INST] S\n\nU [/INST]A</s> [INST] V [/INST]"},
        {"phi-3",
         "<|system|>\nS<|end|>\n<|user|>\nU<|end|>\n<|assistant|>\nA<|end|>\n<|user|>\nV<|end|>\n<|assistant|>\n"},
        {"solar", "### System:\nS\n\n### User:\nU\n\n### Assistant:\nA### User:\nV\n\n### Assistant:\n"},
        {"vicuna", "<s>S USER: U ASSISTANT: A</s>USER: V ASSISTANT:"},
        {"zephyr", "<|system|>\nS</s>\n<|user|>\nU</s>\n<|assistant|>\nA</s>\n<|user|>\nV</s>\n<|assistant|>\n"},
    };
    struct buf names = BUF_INIT;
    struct text *t = open_with("");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct marked_text out = {0};
        cr_expect(text_is_chat_family(cases[i].name));
        cr_assert_eq(text_choose_chat_template(t, cases[i].name, &err), 0, "%s", err.message);
        cr_assert_eq(render(t, TALK, GENERATE, &out), 0, "%s: %s", cases[i].name, err.message);
        cr_expect_str_eq(out.bytes.data, cases[i].want, "%s: %s", cases[i].name, out.bytes.data);
        static const char call[] = "[{\"role\":\"user\",\"content\":\"U\"},{\"role\":\"assistant\",\"content\":\"\","
                                   "\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}]";
        cr_expect_eq(render(t, call, NONE, &out), -1, "%s", cases[i].name);
        cr_expect(strstr(err.message, cases[i].name), "%s", err.message);
        buf_printf(&names, "%s%s", i ? " " : "", cases[i].name);
        marked_text_free(&out);
    }
    cr_expect_str_eq(names.data, text_chat_families());
    buf_free(&names);
    text_free(t);
}

/* Where a model's own template is at hand, ours gives the same on whatever that one takes. */
Test(chat_template, families_as_the_models_own) {
    static const struct {
        const char *family, *own;
        bool without_system;
    } cases[] = {
        {"chatml", "chatml-dolphin-2.5", false},
        {"deepseek-llm", "deepseek-ai-deepseek-llm-7b-chat", false},
        {"gemma", "google-gemma-2-2b-it", true},
        {"llama-2", "meta-llama-Llama-2-chat-default", false},
        {"mistral", "mistralai-Mistral-7B-Instruct-v0.1", true},
        {"phi-3", "microsoft-Phi-3-mini-4k-instruct", false},
        {"solar", "upstage-SOLAR-10.7B-Instruct", false},
    };
    static const char *const talks[] = {
        "[{\"role\":\"user\",\"content\":\" U \\n\"}]",
        "[{\"role\":\"user\",\"content\":\"\"},{\"role\":\"assistant\",\"content\":\" A\"}]",
        "[{\"role\":\"user\",\"content\":\"U\"},{\"role\":\"assistant\",\"content\":\"A\"},{\"role\":\"user\","
        "\"content\":"
        "\"V\"}]",
        TALK,
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char path[256];
        size_t len;
        snprintf(path, sizeof path, "chat/templates/%s.jinja", cases[i].own);
        char *source = read_whole(shared_data(path), &len);
        struct text *ours = open_with(""), *own = open_with("");
        cr_assert_eq(text_choose_chat_template(ours, cases[i].family, &err), 0);
        cr_assert_eq(text_set_chat_template(own, source, len, &err), 0);
        for (size_t k = 0; k < 2 * (sizeof talks / sizeof talks[0] - cases[i].without_system); k++) {
            struct marked_text a = {0}, b = {0};
            struct chat_request r = {.add_generation_prompt = k % 2};
            cr_assert_eq(render(ours, talks[k / 2], r, &a), 0, "%s", err.message);
            cr_assert_eq(render(own, talks[k / 2], r, &b), 0, "%s", err.message);
            cr_expect_str_eq(a.bytes.data, b.bytes.data, "%s", cases[i].family);
            marked_text_free(&a);
            marked_text_free(&b);
        }
        text_free(ours);
        text_free(own);
        free(source);
    }
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
    t = open_with("{{ bos_token }}{{ bos_token }}<s>{{ messages[0].content }}{{ bos_token }}{{ bos_token }}");
    EXPECT_TOKENS(t, "[{\"content\":\"x\"}]", 256, 'x', 256, 256); /* elsewhere they are the template's own wish */
    EXPECT_TOKENS(t, "[{\"content\":\"<s>\"}]", 256, '<', 's', '>', 256, 256);
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
        .verbatim = true,
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
        /* Left out: special_lookalike, whose ids are those of the text as a whole. */
        if (strcmp(name_of_case, "special_lookalike") != 0) {
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
