/* `inferd tokenize`: text to tokens and back, chats to prompts, one by one or by the line for scripts. */
#include "cmd/tokenize.h"
#include "cmd/cmd.h"
#include "cmd/token_spans.h"

#include <errno.h>
#include <fcntl.h>
#include <inferd/json.h>
#include <inferd/text.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_INPUT ((size_t)256 << 20)

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
    {AT(chat), SETTING_STRING, .initial = "", .value = "FILE", .group = "Other ways",
     .help =
         "show the prompt that a conversation becomes, and its tokens; the file (- for standard input) holds a JSON "
         "array of messages, or an object with messages, tools, documents, chat_template_kwargs, "
         "add_generation_prompt, continue_final_message"},
    {AT(jsonl), SETTING_BOOL, .initial = "false", .group = "Other ways",
     .help = "for scripts: a JSON object a line, in and out: text gives ids and ids_special (with what --add-special "
             "adds), ids give text, messages (taken exactly as they are) give prompt and ids; a line that fails gives "
             "error, and the exit code is 1"},
    {AT(render_jsonl), SETTING_BOOL, .initial = "false", .group = "Other ways",
     .help =
         "the same with --chat-template FILE and no model: messages, tools, documents, add_generation_prompt, kwargs, "
         "bos_token, eos_token, now give rendered, or error where the template refuses"},
};

/* --- answers as JSON ----------------------------------------------------------------------------------------- */

void tokenize_put_ids(struct buf *out, const struct tokens *ids, const char *between) {
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

static void put_json(struct buf *out, const struct text *t, const struct buf *prompt, const struct tokens *ids,
                     const struct token_span *spans) {
    buf_puts(out, "{");
    if (prompt) {
        buf_puts(out, "\"prompt\": ");
        buf_json_string(out, prompt->data ? prompt->data : "", prompt->len);
        buf_puts(out, ", ");
    }
    buf_printf(out, "\"count\": %zu, \"ids\": [", ids->n);
    tokenize_put_ids(out, ids, ", ");
    buf_puts(out, "], \"tokens\": [");
    put_token_texts(out, t, ids);
    buf_puts(out, "], \"spans\": [");
    for (size_t i = 0; i < ids->n; i++) {
        buf_printf(out, "%s[%zu, %zu]", i ? ", " : "", spans[i].start, spans[i].end);
    }
    buf_puts(out, "]}\n");
}

/* id, the bytes of the text that it stands for (from, and to behind the last), the token's own bytes */
static void put_table(struct buf *out, const struct text *t, const struct tokens *ids, const struct token_span *spans) {
    for (size_t i = 0; i < ids->n; i++) {
        size_t len;
        const char *bytes = text_token_bytes(t, ids->ids[i], &len);
        buf_printf(out, "%8d %7zu..%-7zu ", (int)ids->ids[i], spans[i].start, spans[i].end);
        buf_json_string(out, bytes, len);
        buf_puts(out, text_token_is_special(t, ids->ids[i]) ? "  special\n" : "\n");
    }
    buf_printf(out, "%zu token%s\n", ids->n, ids->n == 1 ? "" : "s");
}

/* The tokens of bytes[0..len); prompt: those bytes, where the user did not write them himself. */
static int put_tokens(struct buf *out, const struct tokenize_options *o, const struct text *t, const char *bytes,
                      size_t len, const struct buf *prompt, const struct tokens *ids, struct error *err) {
    struct token_span *spans = NULL;
    if (!o->json && o->count) {
        buf_printf(out, "%zu\n", ids->n);
        return 0;
    }
    if (!o->json && o->ids) {
        tokenize_put_ids(out, ids, " ");
        buf_putc(out, '\n');
        return 0;
    }
    if (token_spans(t, bytes, len, ids, &spans, err) != 0) {
        return -1;
    }
    if (o->json) {
        put_json(out, t, prompt, ids, spans);
    } else {
        if (prompt) {
            buf_append(out, prompt->data, prompt->len);
            buf_puts(out, "\n");
        }
        put_table(out, t, ids, spans);
    }
    free(spans);
    return 0;
}

/* --- the work ------------------------------------------------------------------------------------------------ */

static unsigned encode_flags(const struct tokenize_options *o) {
    return (o->add_special ? TEXT_ADD_SPECIAL : 0u) | (o->parse_special ? TEXT_PARSE_SPECIAL : 0u);
}

static int answer_chat(const struct tokenize_options *o, const struct text *t, const char *json, size_t len,
                       struct buf *out, struct error *err) {
    struct marked_text prompt = {0};
    struct tokens ids = {0};
    struct chat_request request;
    int r = tokenize_read_chat(json, len, &request, err);
    if (r == 0 && !request.messages_json) {
        r = error_set_param(err, ERROR_INVALID, "messages", "the object has no messages");
    }
    r = r == 0 ? text_render_chat(t, &request, &prompt, err) : r;
    r = r == 0 ? text_encode_marked(t, &prompt, 0, &ids, err) : r;
    if (r == 0) {
        const struct buf *text = &prompt.bytes;
        r = put_tokens(out, o, t, text->data ? text->data : "", text->len, text, &ids, err);
    }
    marked_text_free(&prompt);
    tokens_free(&ids);
    return r;
}

static int answer_text(const struct tokenize_options *o, const struct text *t, const char *bytes, size_t len,
                       struct buf *out, struct error *err) {
    struct tokens ids = {0};
    int r = text_encode(t, bytes, len, encode_flags(o), &ids, err);
    r = r == 0 ? put_tokens(out, o, t, bytes, len, NULL, &ids, err) : r;
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

int tokenize_push_id(const struct text *t, double id, struct tokens *ids, struct error *err) {
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
        if (tokenize_push_id(t, len < 16 ? strtod(p, NULL) : -1, ids, err) != 0) {
            return -1;
        }
        p += len;
        p += strspn(p, " ,[]\n");
    }
    return 0;
}

/* --- the command --------------------------------------------------------------------------------------------- */

/* A whole file; "-" is standard input. */
static int read_file(const char *path, struct buf *input, struct error *err) {
    if (strcmp(path, "-") == 0) {
        return cmd_read_all(STDIN_FILENO, MAX_INPUT, input, err);
    }
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return error_set(err, ERROR_IO, "%.300s: %s", path, strerror(errno));
    }
    int r = cmd_read_all(fd, MAX_INPUT, input, err);
    close(fd);
    return r < 0 ? error_prefix(err, "%.300s", path) : 0;
}

/* The operand, or all of standard input when it is "-" or when there is none. */
static int read_operand(const struct command_line *line, const struct options *flags, struct buf *input,
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

static int read_input(const struct command_line *line, const struct tokenize_options *o, const struct options *flags,
                      struct buf *input, struct error *err) {
    if (o->chat[0]) {
        return read_file(o->chat, input, err);
    }
    return o->decode[0] && strcmp(o->decode, "-") != 0 ? 0 : read_operand(line, flags, input, err);
}

static int answer(const struct tokenize_options *o, const struct text *t, const struct buf *input, struct buf *out,
                  struct error *err) {
    const struct json_limits limits = {.allow_nul = true};
    const char *bytes = input->data ? input->data : "";
    if (o->chat[0]) {
        return json_check(bytes, input->len, &limits, err) != 0 ? -1 : answer_chat(o, t, bytes, input->len, out, err);
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

static int open_text(const struct config *c, struct text **out, struct error *err) {
    return config_check_model(c, err) != 0
               ? -1
               : text_open_with(c->model, c->chat_template[0] ? c->chat_template : NULL, out, err);
}

static int render_lines(const struct config *c, struct error *err) {
    struct buf source = BUF_INIT;
    if (!c->chat_template[0]) {
        return error_set(err, ERROR_INVALID, "--render-jsonl wants --chat-template FILE");
    }
    int r = read_file(c->chat_template, &source, err);
    r = r == 0 ? tokenize_render_lines(source.data ? source.data : "", source.len, stdin, err) : r;
    buf_free(&source);
    return r;
}

static bool given(const struct options *flags, const char *name) {
    bool found = false;
    for (size_t i = 0; i < flags->n_values; i++) {
        found = found || strcmp(flags->values[i].setting->name, name) == 0;
    }
    return found;
}

static int tokenize(const struct command_line *line, const struct tokenize_options *o,
                    const struct command_state *state, struct error *err) {
    struct text *t = NULL;
    struct buf input = BUF_INIT, out = BUF_INIT;
    if (o->render_jsonl + o->jsonl + given(&state->flags, "chat") + given(&state->flags, "decode") > 1) {
        return error_set(err, ERROR_INVALID, "only one of --jsonl, --render-jsonl, --chat and --decode can be given");
    }
    if (given(&state->flags, "decode") && !o->decode[0]) {
        return error_set(err, ERROR_INVALID, "--decode wants token ids, as in --decode 1,2,3");
    }
    if (o->render_jsonl) {
        return render_lines(&state->config, err);
    }
    int r = open_text(&state->config, &t, err);
    if (r == 0 && o->jsonl) {
        r = tokenize_lines(o, t, stdin, err);
    } else if (r == 0) {
        r = read_input(line, o, &state->flags, &input, err);
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
        .help =
            {.usage = "inferd tokenize --model MODEL [TEXT | -] [options]",
             .about =
                 "Show how a model cuts a text into tokens: the text given, or standard input. A line for each\ntoken: "
                 "its id, which bytes of the text it stands for, its own bytes.",
             .examples =
                 "  inferd tokenize -m model.gguf \"Hello, world\"\n"
                 "  inferd tokenize -m model.gguf --count < book.txt\n"
                 "  inferd tokenize -m model.gguf --decode 1,2,3\n"
                 "  echo '[{\"role\": \"user\", \"content\": \"Hi\"}]' | inferd tokenize -m model.gguf --chat -\n"
                 "  inferd tokenize -m model.gguf --jsonl < lines.jsonl\n"
                 "  inferd tokenize --chat-template chat.jinja --render-jsonl < conversations.jsonl\n"},
        .own = {rows, sizeof rows / sizeof rows[0]},
        .own_values = &o,
        .config_only = SETTING_TEXT,
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
