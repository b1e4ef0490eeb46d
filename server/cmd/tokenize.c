/* `inferd tokenize`: text to tokens and back, chats to prompts, one by one or by the line for scripts. */
#include "cmd/cmd.h"

#include <cjson/cJSON.h>
#include <inferd/clock.h>
#include <inferd/json.h>
#include <inferd/text.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_INPUT ((size_t)256 << 20)

struct tokenize_options {
    bool ids, count, json, jsonl, chat;
    bool add_special, parse_special, skip_special;
    char *decode;
};

#define AT(field) .offset = offsetof(struct tokenize_options, field), .name = #field

static const struct setting rows[] = {
    {AT(ids), SETTING_BOOL, .initial = "false", .group = "Output", .help = "print the ids alone, on one line"},
    {AT(count), SETTING_BOOL, .initial = "false", .group = "Output", .help = "print the number of tokens alone"},
    {AT(json), SETTING_BOOL, .initial = "false", .group = "Output", .help = "print JSON"},
    {AT(add_special), SETTING_BOOL, .initial = "false", .group = "Encoding",
     .help = "add the tokens that the model puts around a text (beginning, end)"},
    {AT(parse_special), SETTING_BOOL, .initial = "true", .group = "Encoding",
     .help = "take special tokens that are written in the text for plain text"},
    {AT(decode), SETTING_STRING, .initial = "", .value = "IDS", .group = "Other ways",
     .help = "print the text of these ids, parted by commas or spaces"},
    {AT(skip_special), SETTING_BOOL, .initial = "false", .group = "Other ways",
     .help = "with --decode: leave special tokens out of the text"},
    {AT(chat), SETTING_BOOL, .initial = "false", .group = "Other ways",
     .help = "the input is a JSON array of chat messages, or an object with messages, tools, chat_template_kwargs, "
             "add_generation_prompt; print the prompt that the model gets and its ids"},
    {AT(jsonl), SETTING_BOOL, .initial = "false", .group = "Other ways",
     .help = "for scripts: each line of input is an object with text, with ids, or with messages, each line of output "
             "the object with ids, with text, or with prompt and ids"},
};

/* --- answers as JSON ----------------------------------------------------------------------------------------- */

static void put_ids(struct buf *out, const struct tokens *ids, const char *between) {
    for (size_t i = 0; i < ids->n; i++) {
        buf_printf(out, "%s%d", i ? between : "", (int)ids->ids[i]);
    }
}

static void put_token_texts(struct buf *out, const struct text *t, const struct tokens *ids) {
    for (size_t i = 0; i < ids->n; i++) {
        size_t len;
        const char *bytes = text_token_bytes(t, ids->ids[i], &len);
        buf_puts(out, i ? ", " : "");
        buf_json_string(out, bytes, len);
    }
}

static void put_json(struct buf *out, const struct text *t, const struct buf *prompt, const struct tokens *ids) {
    buf_puts(out, "{");
    if (prompt) {
        buf_puts(out, "\"prompt\": ");
        buf_json_string(out, prompt->data ? prompt->data : "", prompt->len);
        buf_puts(out, ", ");
    }
    buf_printf(out, "\"count\": %zu, \"ids\": [", ids->n);
    put_ids(out, ids, ", ");
    buf_puts(out, "], \"tokens\": [");
    put_token_texts(out, t, ids);
    buf_puts(out, "]}\n");
}

static void put_table(struct buf *out, const struct text *t, const struct tokens *ids) {
    for (size_t i = 0; i < ids->n; i++) {
        size_t len;
        const char *bytes = text_token_bytes(t, ids->ids[i], &len);
        buf_printf(out, "%8d  ", (int)ids->ids[i]);
        buf_json_string(out, bytes, len);
        buf_puts(out, text_token_is_special(t, ids->ids[i]) ? "  special\n" : "\n");
    }
    buf_printf(out, "%zu token%s\n", ids->n, ids->n == 1 ? "" : "s");
}

static void put_tokens(struct buf *out, const struct tokenize_options *o, const struct text *t,
                       const struct buf *prompt, const struct tokens *ids) {
    if (o->json) {
        put_json(out, t, prompt, ids);
    } else if (o->count) {
        buf_printf(out, "%zu\n", ids->n);
    } else if (o->ids) {
        put_ids(out, ids, " ");
        buf_putc(out, '\n');
    } else {
        if (prompt) {
            buf_append(out, prompt->data, prompt->len);
            buf_puts(out, "\n");
        }
        put_table(out, t, ids);
    }
}

/* --- the work ------------------------------------------------------------------------------------------------ */

static unsigned encode_flags(const struct tokenize_options *o) {
    return (o->add_special ? TEXT_ADD_SPECIAL : 0u) | (o->parse_special ? TEXT_PARSE_SPECIAL : 0u);
}

/* An optional member of the object, whose value must begin with one of `first`; null counts as absent. */
static int get_raw(const char *json, size_t len, const char *key, const char *first, const char **raw, size_t *raw_len,
                   struct error *err) {
    const char *value;
    size_t value_len;
    if (!json_member(json, len, key, &value, &value_len) || value[0] == 'n') {
        return 0;
    }
    if (!strchr(first, value[0])) {
        return error_set_param(err, ERROR_INVALID, key, "%s has the wrong type", key);
    }
    *raw = value;
    *raw_len = value_len;
    return 0;
}

/* Render a chat: json[0..len) passed json_check and is the array of messages or an object around it. */
static int render_chat(const struct text *t, const char *json, size_t len, struct marked_text *prompt,
                       struct error *err) {
    struct chat_request r = {.messages_json = json, .messages_len = len};
    const char *generate = "t", *proceed = "f", *now = NULL;
    size_t n;
    r.now = clock_unix_time();
    if (json[strspn(json, " \t\r\n")] == '{') {
        r.messages_json = NULL;
        if (get_raw(json, len, "messages", "[", &r.messages_json, &r.messages_len, err) != 0 ||
            get_raw(json, len, "tools", "[", &r.tools_json, &r.tools_len, err) != 0 ||
            get_raw(json, len, "chat_template_kwargs", "{", &r.kwargs_json, &r.kwargs_len, err) != 0 ||
            get_raw(json, len, "add_generation_prompt", "tf", &generate, &n, err) != 0 ||
            get_raw(json, len, "continue_final_message", "tf", &proceed, &n, err) != 0 ||
            get_raw(json, len, "now", "-0123456789", &now, &n, err) != 0) {
            return -1;
        }
        if (!r.messages_json) {
            return error_set_param(err, ERROR_INVALID, "messages", "the object has no messages");
        }
        if (now && !json_raw_int(now, n, &r.now)) {
            return error_set_param(err, ERROR_INVALID, "now", "now must be a Unix time in seconds");
        }
    }
    r.add_generation_prompt = generate[0] == 't';
    r.continue_final_message = proceed[0] == 't';
    return text_render_chat(t, &r, prompt, err);
}

static int answer_chat(const struct tokenize_options *o, const struct text *t, const char *json, size_t len,
                       struct buf *out, struct error *err) {
    struct marked_text prompt = {0};
    struct tokens ids = {0};
    int r = render_chat(t, json, len, &prompt, err);
    if (r == 0) {
        r = text_encode_marked(t, &prompt, 0, &ids, err);
    }
    if (r == 0) {
        put_tokens(out, o, t, &prompt.bytes, &ids);
    }
    marked_text_free(&prompt);
    tokens_free(&ids);
    return r;
}

static int answer_text(const struct tokenize_options *o, const struct text *t, const char *bytes, size_t len,
                       struct buf *out, struct error *err) {
    struct tokens ids = {0};
    int r = text_encode(t, bytes, len, encode_flags(o), &ids, err);
    if (r == 0) {
        put_tokens(out, o, t, NULL, &ids);
    }
    tokens_free(&ids);
    return r;
}

static int answer_ids(const struct tokenize_options *o, const struct text *t, const struct tokens *ids, struct buf *out,
                      struct error *err) {
    struct buf text = BUF_INIT;
    int r = text_decode(t, ids->ids, ids->n, o->skip_special, &text, err);
    if (r == 0 && text.failed) {
        r = error_memory(err);
    }
    if (r == 0 && o->json) {
        buf_puts(out, "{\"text\": ");
        buf_json_string(out, text.data ? text.data : "", text.len);
        buf_puts(out, "}\n");
    } else if (r == 0) {
        buf_append(out, text.data, text.len);
        buf_putc(out, '\n');
    }
    buf_free(&text);
    return r;
}

static int push_id(const struct text *t, double id, struct tokens *ids, struct error *err) {
    size_t n = text_vocab_size(t);
    if (!(id >= 0 && id < (double)n) || id != (double)(int32_t)id) {
        return error_set_param(err, ERROR_INVALID, "ids", "an id must be an integer from 0 to %zu", n - 1);
    }
    return tokens_push(ids, (int32_t)id, err);
}

static int parse_ids(const struct text *t, const char *list, struct tokens *ids, struct error *err) {
    const char *p = list + strspn(list, " ,[]\n");
    while (*p) {
        size_t len = strspn(p, "0123456789");
        if (len == 0) {
            return error_set_param(err, ERROR_INVALID, "ids", "ids must be integers parted by commas or spaces");
        }
        if (push_id(t, len < 16 ? strtod(p, NULL) : -1, ids, err) != 0) {
            return -1;
        }
        p += len;
        p += strspn(p, " ,[]\n");
    }
    return 0;
}

/* --- lines of JSON ------------------------------------------------------------------------------------------- */

static int answer_object(const struct tokenize_options *o, const struct text *t, const cJSON *object, const char *json,
                         size_t len, struct buf *out, struct error *err) {
    struct tokenize_options own = *o;
    const char *text = NULL;
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(object, "ids");
    own.json = true;
    if (json_get_bool(object, "add_special", &own.add_special, err) != 0 ||
        json_get_bool(object, "parse_special", &own.parse_special, err) != 0 ||
        json_get_bool(object, "skip_special", &own.skip_special, err) != 0 ||
        json_get_string(object, "text", &text, err) != 0) {
        return -1;
    }
    if (text) {
        return answer_text(&own, t, text, strlen(text), out, err);
    }
    if (cJSON_GetObjectItemCaseSensitive(object, "messages")) {
        return answer_chat(&own, t, json, len, out, err);
    }
    if (!cJSON_IsArray(list)) {
        return error_set(err, ERROR_INVALID, "the line must be an object with text, ids or messages");
    }
    struct tokens ids = {0};
    const cJSON *id;
    int r = 0;
    cJSON_ArrayForEach(id, list) {
        r = r == 0 ? push_id(t, cJSON_IsNumber(id) ? id->valuedouble : -1, &ids, err) : r;
    }
    r = r == 0 ? answer_ids(&own, t, &ids, out, err) : r;
    tokens_free(&ids);
    return r;
}

/* One line in, one line out: a line that fails gives {"error": ...}, and the exit code tells at the end. */
static int answer_lines(const struct tokenize_options *o, const struct text *t, FILE *in, struct error *err) {
    char *line = NULL;
    size_t cap = 0, failures = 0;
    ssize_t n;
    struct buf out = BUF_INIT;
    while ((n = getline(&line, &cap, in)) >= 0) {
        cJSON *object = NULL;
        struct error line_err;
        buf_reset(&out);
        if (json_parse(line, (size_t)n, NULL, &object, &line_err) != 0 ||
            answer_object(o, t, object, line, (size_t)n, &out, &line_err) != 0) {
            failures++;
            buf_reset(&out);
            buf_puts(&out, "{\"error\": ");
            buf_json_string(&out, line_err.message, strlen(line_err.message));
            buf_puts(&out, "}\n");
        }
        cJSON_Delete(object);
        if (out.failed) {
            break;
        }
        fwrite(out.data, 1, out.len, stdout);
        fflush(stdout); /* a script may wait for the answer before it sends the next line */
    }
    bool out_of_memory = out.failed;
    free(line);
    buf_free(&out);
    if (out_of_memory) {
        return error_memory(err);
    }
    return failures ? error_set(err, ERROR_IO, "%zu line%s failed", failures, failures == 1 ? "" : "s") : 0;
}

/* --- the command --------------------------------------------------------------------------------------------- */

/* The operand, or all of standard input when it is "-" or when there is none. */
static int read_input(const struct command_line *line, const struct options *flags, struct buf *input,
                      struct error *err) {
    if (flags->n_operands > 0 && strcmp(flags->operands[0], "-") != 0) {
        buf_puts(input, flags->operands[0]);
        return input->failed ? error_memory(err) : 0;
    }
    if (flags->n_operands == 0 && isatty(STDIN_FILENO)) {
        return error_set(err, ERROR_INVALID, "there is no text (usage: %s)", line->help.usage);
    }
    return cmd_read_all(STDIN_FILENO, MAX_INPUT, input, err);
}

static int answer(const struct tokenize_options *o, const struct text *t, const struct buf *input, struct buf *out,
                  struct error *err) {
    const char *bytes = input->data ? input->data : "";
    if (o->chat) {
        return json_check(bytes, input->len, NULL, err) != 0 ? -1 : answer_chat(o, t, bytes, input->len, out, err);
    }
    if (o->decode[0]) {
        struct tokens ids = {0};
        int r = parse_ids(t, strcmp(o->decode, "-") == 0 ? bytes : o->decode, &ids, err);
        r = r == 0 ? answer_ids(o, t, &ids, out, err) : r;
        tokens_free(&ids);
        return r;
    }
    return answer_text(o, t, bytes, input->len, out, err);
}

static int tokenize(const struct command_line *line, const struct tokenize_options *o,
                    const struct command_state *state, struct error *err) {
    struct text *t = NULL;
    struct buf input = BUF_INIT, out = BUF_INIT;
    int r = config_check_model(&state->config, err);
    r = r == 0 ? text_open(state->config.model, &t, err) : r;
    if (r == 0 && o->jsonl) {
        r = answer_lines(o, t, stdin, err);
    } else if (r == 0) {
        bool needs_input = !o->decode[0] || strcmp(o->decode, "-") == 0;
        r = needs_input ? read_input(line, &state->flags, &input, err) : 0;
        r = r == 0 ? answer(o, t, &input, &out, err) : r;
        r = r == 0 && out.failed ? error_memory(err) : r;
        if (r == 0 && out.len > 0) {
            fwrite(out.data, 1, out.len, stdout);
        }
    }
    buf_free(&input);
    buf_free(&out);
    text_free(t);
    return r;
}

int cmd_tokenize(int argc, char **argv) {
    struct tokenize_options o;
    const struct command_line line = {
        .help = {.usage = "inferd tokenize --model MODEL [TEXT | -] [options]",
                 .about = "Show how a model cuts a text into tokens: the text given, or standard input.",
                 .examples =
                     "  inferd tokenize -m model.gguf \"Hello, world\"\n"
                     "  inferd tokenize -m model.gguf --count < book.txt\n"
                     "  inferd tokenize -m model.gguf --decode 1,2,3\n"
                     "  echo '[{\"role\": \"user\", \"content\": \"Hi\"}]' | inferd tokenize -m model.gguf --chat\n"},
        .own = {rows, sizeof rows / sizeof rows[0]},
        .own_values = &o,
        .config_only = SETTING_MODEL,
        .max_operands = 1,
    };
    struct command_state state;
    struct error err;
    int code;
    if (!cmd_begin(&line, argc, argv, &state, &code)) {
        return code;
    }
    code = tokenize(&line, &o, &state, &err) == 0 ? 0 : cmd_fail(&err);
    cmd_end(&line, &state);
    return code;
}
