/* `inferd tokenize` for scripts: one JSON object a line in, one out. Strings are read raw, since they may hold U+0000.
 */
#include "cmd/tokenize.h"

#include <cjson/cJSON.h>
#include <inferd/clock.h>
#include <inferd/json.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct raw {
    const char *data; /* NULL: not there */
    size_t len;
};

/* An optional member of an object, whose value must begin with one of `first`; null counts as absent. */
static int get_raw(struct raw object, const char *key, const char *first, struct raw *out, struct error *err) {
    struct raw value;
    if (!json_member(object.data, object.len, key, &value.data, &value.len) || value.data[0] == 'n') {
        return 0;
    }
    if (!strchr(first, value.data[0])) {
        return error_set_param(err, ERROR_INVALID, key, "%s has the wrong type", key);
    }
    *out = value;
    return 0;
}

static int get_flag(struct raw object, const char *key, bool *out, struct error *err) {
    struct raw value = {0};
    if (get_raw(object, key, "tf", &value, err) != 0) {
        return -1;
    }
    *out = value.data ? value.data[0] == 't' : *out;
    return 0;
}

/* A member that is a string, decoded into *out; *found tells if it is there. */
static int get_text(struct raw object, const char *key, struct buf *out, bool *found, struct error *err) {
    struct raw value = {0};
    if (get_raw(object, key, "\"", &value, err) != 0) {
        return -1;
    }
    *found = value.data && json_raw_string(value.data, value.len, out);
    return out->failed ? error_memory(err) : 0;
}

/* --- conversations --- */

static int read_now(struct raw value, int64_t *out, struct error *err) {
    char text[32] = "";
    struct tm tm = {0};
    if (value.data[0] != '"' && json_raw_int(value.data, value.len, out)) {
        return 0;
    }
    if (value.data[0] == '"' && value.len - 2 < sizeof text) {
        memcpy(text, value.data + 1, value.len - 2);
    }
    const char *end = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);
    if (!end || *end) {
        return error_set_param(err, ERROR_INVALID, "now", "now must be a Unix time or like 2025-01-15T12:34:56");
    }
    *out = (int64_t)timegm(&tm);
    return 0;
}

int tokenize_read_chat(const char *json, size_t len, struct chat_request *out, struct error *err) {
    struct raw object = {json, len}, messages = object, tools = {0}, documents = {0}, kwargs = {0}, now = {0};
    struct chat_request r = {.add_generation_prompt = true, .now = clock_unix_time()};
    if (json[strspn(json, " \t\r\n")] == '{') {
        messages = (struct raw){0};
        if (get_raw(object, "messages", "[", &messages, err) != 0 || get_raw(object, "tools", "[", &tools, err) != 0 ||
            get_raw(object, "documents", "[", &documents, err) != 0 ||
            get_raw(object, "kwargs", "{", &kwargs, err) != 0 ||
            get_raw(object, "chat_template_kwargs", "{", &kwargs, err) != 0 ||
            get_raw(object, "now", "\"-0123456789", &now, err) != 0 ||
            get_flag(object, "continue_final_message", &r.continue_final_message, err) != 0) {
            return -1;
        }
        r.add_generation_prompt = !r.continue_final_message;
        if (get_flag(object, "add_generation_prompt", &r.add_generation_prompt, err) != 0 ||
            (now.data && read_now(now, &r.now, err) != 0)) {
            return -1;
        }
    }
    r.messages_json = messages.data;
    r.messages_len = messages.len;
    r.tools_json = tools.data;
    r.tools_len = tools.len;
    r.documents_json = documents.data;
    r.documents_len = documents.len;
    r.kwargs_json = kwargs.data;
    r.kwargs_len = kwargs.len;
    *out = r;
    return 0;
}

/* --- with a model --- */

static int answer_text(const struct tokenize_options *o, const struct text *t, struct raw object,
                       const struct buf *text, struct buf *out, struct error *err) {
    struct tokens ids = {0}, special = {0};
    const char *bytes = text->data ? text->data : "";
    bool parse = o->parse_special;
    int r = get_flag(object, "parse_special", &parse, err);
    unsigned flags = parse ? TEXT_PARSE_SPECIAL : 0u;
    r = r == 0 ? text_encode(t, bytes, text->len, flags, &ids, err) : r;
    r = r == 0 ? text_encode(t, bytes, text->len, flags | TEXT_ADD_SPECIAL_ALWAYS, &special, err) : r;
    if (r == 0) {
        buf_puts(out, "{\"ids\": [");
        tokenize_put_ids(out, &ids, ", ");
        buf_puts(out, "], \"ids_special\": [");
        tokenize_put_ids(out, &special, ", ");
        buf_puts(out, "]}\n");
    }
    tokens_free(&ids);
    tokens_free(&special);
    return r;
}

static int read_ids(const struct text *t, struct raw list, struct tokens *ids, struct error *err) {
    cJSON *array = NULL;
    const cJSON *id;
    int r = json_parse(list.data, list.len, NULL, &array, err);
    cJSON_ArrayForEach(id, array) {
        r = r == 0 ? tokenize_push_id(t, cJSON_IsNumber(id) ? id->valuedouble : -1, ids, err) : r;
    }
    cJSON_Delete(array);
    return r;
}

static int answer_ids(const struct tokenize_options *o, const struct text *t, struct raw object, struct raw list,
                      struct buf *out, struct error *err) {
    struct tokens ids = {0};
    struct buf text = BUF_INIT;
    bool skip = o->skip_special;
    int r = get_flag(object, "skip_special", &skip, err);
    r = r == 0 ? read_ids(t, list, &ids, err) : r;
    /* what the reference of the file's kind shows, for comparing with it */
    r = r == 0 ? text_decode_cleaned(t, ids.ids, ids.n, skip, &text, err) : r;
    r = r == 0 && text.failed ? error_memory(err) : r;
    if (r == 0) {
        buf_puts(out, "{\"text\": ");
        buf_json_string(out, text.data ? text.data : "", text.len);
        buf_puts(out, "}\n");
    }
    buf_free(&text);
    tokens_free(&ids);
    return r;
}

static int answer_chat(const struct text *t, struct raw object, struct buf *out, struct error *err) {
    struct marked_text prompt = {0};
    struct tokens ids = {0};
    struct chat_request request;
    int r = tokenize_read_chat(object.data, object.len, &request, err);
    if (r == 0) {
        request.verbatim = true;
        r = text_render_chat(t, &request, &prompt, err);
    }
    r = r == 0 ? text_encode_marked(t, &prompt, 0, &ids, err) : r;
    if (r == 0) {
        buf_puts(out, "{\"prompt\": ");
        buf_json_string(out, prompt.bytes.data ? prompt.bytes.data : "", prompt.bytes.len);
        buf_puts(out, ", \"ids\": [");
        tokenize_put_ids(out, &ids, ", ");
        buf_puts(out, "]}\n");
    }
    marked_text_free(&prompt);
    tokens_free(&ids);
    return r;
}

static int answer_object(const struct tokenize_options *o, const struct text *t, struct raw object, struct buf *out,
                         struct error *err) {
    struct buf text = BUF_INIT;
    struct raw messages = {0}, list = {0};
    bool found = false;
    int r = get_text(object, "text", &text, &found, err);
    if (r == 0 && found) {
        r = answer_text(o, t, object, &text, out, err);
    } else if (r == 0) {
        r = get_raw(object, "messages", "[", &messages, err) != 0 || get_raw(object, "ids", "[", &list, err) != 0 ? -1
                                                                                                                  : 0;
        if (r == 0 && messages.data) {
            r = answer_chat(t, object, out, err);
        } else if (r == 0 && list.data) {
            r = answer_ids(o, t, object, list, out, err);
        } else if (r == 0) {
            r = error_set(err, ERROR_INVALID, "the line must be an object with text, ids or messages");
        }
    }
    buf_free(&text);
    return r;
}

/* --- without a model --- */

struct template_source {
    const char *source;
    size_t len;
};

/* *refused: it was the template that did not go through. */
static int render(const struct template_source *template, struct raw object, struct marked_text *out, bool *refused,
                  struct error *err) {
    struct buf bos = BUF_INIT, eos = BUF_INIT;
    bool has_bos, has_eos;
    struct chat_request request;
    int r = tokenize_read_chat(object.data, object.len, &request, err) != 0 ||
                    get_text(object, "bos_token", &bos, &has_bos, err) != 0 ||
                    get_text(object, "eos_token", &eos, &has_eos, err) != 0
                ? -1
                : 0;
    if (r == 0) {
        r = text_render_template(template->source, template->len, has_bos ? bos.data ? bos.data : "" : NULL,
                                 has_eos ? eos.data ? eos.data : "" : NULL, &request, out, err);
        *refused = r != 0;
    }
    buf_free(&bos);
    buf_free(&eos);
    return r;
}

static void put_error(struct buf *out, const struct error *err) {
    buf_reset(out);
    buf_puts(out, "{\"error\": ");
    buf_json_string(out, err->message, strlen(err->message));
    buf_puts(out, "}\n");
}

static int answer_render(const struct template_source *template, struct raw object, struct buf *out,
                         struct error *err) {
    struct marked_text text = {0};
    bool refused = false;
    int r = render(template, object, &text, &refused, err);
    if (r == 0) {
        buf_puts(out, "{\"rendered\": ");
        buf_json_string(out, text.bytes.data ? text.bytes.data : "", text.bytes.len);
        buf_puts(out, "}\n");
    } else if (refused) {
        put_error(out, err);
        r = 0;
    }
    marked_text_free(&text);
    return r;
}

/* --- the loop over lines --- */

/* One of the two ways to answer a line. */
struct answerer {
    const struct tokenize_options *options;
    const struct text *text;
    const struct template_source *template; /* NULL: by the model */
};

static int answer_line(const struct answerer *a, struct raw line, struct buf *out, struct error *err) {
    const struct json_limits limits = {.allow_nul = true};
    if (json_check(line.data, line.len, &limits, err) != 0) {
        return -1;
    }
    if (line.data[strspn(line.data, " \t\r")] != '{') {
        return error_set(err, ERROR_INVALID, "the line must be a JSON object");
    }
    return a->template ? answer_render(a->template, line, out, err)
                       : answer_object(a->options, a->text, line, out, err);
}

static int answer_lines(const struct answerer *a, FILE *in, struct error *err) {
    char *line = NULL;
    size_t cap = 0, failures = 0;
    ssize_t n;
    struct buf out = BUF_INIT;
    while (!out.failed && (n = getline(&line, &cap, in)) >= 0) {
        struct error line_err;
        buf_reset(&out);
        if (answer_line(a, (struct raw){line, (size_t)n}, &out, &line_err) != 0) {
            failures++;
            put_error(&out, &line_err);
        }
        if (!out.failed) {
            fwrite(out.data, 1, out.len, stdout);
            fflush(stdout); /* a script may wait for the answer before it sends the next line */
        }
    }
    bool out_of_memory = out.failed || (!feof(in) && !ferror(in));
    free(line);
    buf_free(&out);
    if (out_of_memory) {
        return error_memory(err);
    }
    return failures ? error_set(err, ERROR_IO, "%zu line%s failed", failures, failures == 1 ? "" : "s") : 0;
}

int tokenize_lines(const struct tokenize_options *o, const struct text *t, FILE *in, struct error *err) {
    return answer_lines(&(struct answerer){.options = o, .text = t}, in, err);
}

int tokenize_render_lines(const char *source, size_t len, FILE *in, struct error *err) {
    const struct template_source template = {source, len};
    return answer_lines(&(struct answerer){.template = &template}, in, err);
}
