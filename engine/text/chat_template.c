/* The chat template of a model: compiled at open, rendered for each chat. */
#include "text/chat_json.h"
#include "text/jinja/jinja.h"
#include "text/text_impl.h"
#include "text/unicode_class.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what forms of input a template takes ---- */

#define PART_ONE "inferd-part-one"
#define PART_TWO "inferd-part-two"

/* Render the template on one conversation; "" when it refuses. The caller frees *out. */
static const char *try_template(const struct text *t, const struct chat_template *c, const char *messages,
                                struct buf *out) {
    struct buf trusted = BUF_INIT;
    struct error ignored;
    const struct jinja_input in = {
        .messages_json = messages,
        .messages_len = strlen(messages),
        .bos_token = t->bos_text,
        .eos_token = t->eos_text,
        .add_generation_prompt = true,
    };
    bool ok = jinja_render(c->jinja, &in, out, &trusted, &ignored) == 0 && out->len > 0;
    buf_free(&trusted);
    return ok ? out->data : "";
}

/* Does a chat with this user content render, with both needles in it and nothing of the list's own spelling? */
static bool takes_content(const struct text *t, const struct chat_template *c, const char *content, bool two) {
    struct buf messages = BUF_INIT, out = BUF_INIT;
    buf_printf(&messages, "[{\"role\":\"user\",\"content\":%s}]", content);
    const char *text = messages.failed ? "" : try_template(t, c, messages.data, &out);
    bool ok = strstr(text, PART_ONE) && (!two || strstr(text, PART_TWO)) && !strstr(text, "'type'") &&
              !strstr(text, "\"type\"");
    buf_free(&messages);
    buf_free(&out);
    return ok;
}

/* Does a tool call with these arguments come out with them in it as JSON, not as a string within JSON? */
static bool takes_arguments(const struct text *t, const struct chat_template *c, const char *arguments) {
    struct buf messages = BUF_INIT, out = BUF_INIT;
    buf_printf(
        &messages,
        "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":"
        "\"abcdef123\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":%s}}]},{\"role\":"
        "\"tool\",\"tool_call_id\":\"abcdef123\",\"name\":\"f\",\"content\":\"b\"}]",
        arguments);
    const char *text = messages.failed ? "" : try_template(t, c, messages.data, &out);
    bool ok = strstr(text, PART_ONE) && !strstr(text, "\\\"");
    buf_free(&messages);
    buf_free(&out);
    return ok;
}

static void find_forms(const struct text *t, struct chat_template *c) {
    /* Templates of models that take images walk over the parts of a message; others would print the list. */
    c->takes_parts = takes_content(
        t, c, "[{\"type\":\"text\",\"text\":\"" PART_ONE "\"},{\"type\":\"text\",\"text\":\"" PART_TWO "\"}]", true);
    c->takes_strings = !c->takes_parts || takes_content(t, c, "\"" PART_ONE "\"", false);
    c->decode_arguments =
        !takes_arguments(t, c, "\"{\\\"" PART_ONE "\\\": 1}\"") && takes_arguments(t, c, "{\"" PART_ONE "\": 1}");
}

/* ---- the templates of a model ---- */

static void free_template(struct chat_template *c) {
    free(c->name);
    free(c->source);
    jinja_free(c->jinja);
}

void text_drop_chat_templates(struct text *t) {
    for (size_t i = 0; i < t->n_templates; i++) {
        free_template(&t->templates[i]);
    }
    free(t->templates);
    t->templates = NULL;
    t->n_templates = 0;
}

const struct chat_template *text_find_chat_template(const struct text *t, const char *name) {
    for (size_t i = 0; i < t->n_templates; i++) {
        if (strcmp(t->templates[i].name, name) == 0) {
            return &t->templates[i];
        }
    }
    return NULL;
}

static int compile(const struct text *t, const char *name, const char *source, size_t len, struct chat_template *out,
                   struct error *err) {
    if (memchr(source, '\0', len)) {
        return error_set(err, ERROR_MODEL, "the chat template holds a NUL character");
    }
    struct chat_template c = {.name = strdup(name), .source = strndup(source, len)};
    if (!c.name || !c.source) {
        free_template(&c);
        return error_memory(err);
    }
    if (jinja_compile(source, len, &c.jinja, err) < 0) {
        free_template(&c);
        return strcmp(name, "default") == 0 ? -1 : error_prefix(err, "chat template '%s'", name);
    }
    find_forms(t, &c);
    *out = c;
    return 0;
}

static int put_template(struct text *t, struct chat_template *c, struct error *err) {
    for (size_t i = 0; i < t->n_templates; i++) {
        if (strcmp(t->templates[i].name, c->name) == 0) {
            free_template(&t->templates[i]);
            t->templates[i] = *c;
            return 0;
        }
    }
    struct chat_template *more = NULL;
    if (t->n_templates < TEXT_MAX_CHAT_TEMPLATES) {
        more = realloc(t->templates, (t->n_templates + 1) * sizeof *more);
    }
    if (!more) {
        free_template(c);
        return t->n_templates < TEXT_MAX_CHAT_TEMPLATES
                   ? error_memory(err)
                   : error_set(err, ERROR_MODEL, "the model has more than %d chat templates", TEXT_MAX_CHAT_TEMPLATES);
    }
    t->templates = more;
    t->templates[t->n_templates++] = *c;
    return 0;
}

int text_add_chat_template(struct text *t, const char *name, const char *source, size_t len, struct error *err) {
    struct chat_template c;
    return compile(t, name, source, len, &c, err) < 0 ? -1 : put_template(t, &c, err);
}

int text_set_chat_template(struct text *t, const char *source, size_t len, struct error *err) {
    struct chat_template c;
    if (compile(t, "default", source, len, &c, err) < 0) {
        return -1;
    }
    text_drop_chat_templates(t);
    return put_template(t, &c, err);
}

bool text_has_chat_template(const struct text *t) {
    return t->n_templates > 0;
}

const char *text_chat_template(const struct text *t) {
    const struct chat_template *c = text_find_chat_template(t, "default");
    return c ? c->source : t->n_templates ? t->templates[0].source : NULL;
}

/* The template for a chat, as transformers chooses it. */
static const struct chat_template *choose(const struct text *t, const struct chat_request *r, struct error *err) {
    const struct chat_template *c = r->tools_json ? text_find_chat_template(t, "tool_use") : NULL;
    c = c ? c : text_find_chat_template(t, "default");
    if (!c && t->n_templates == 0) {
        error_set(err, ERROR_UNSUPPORTED,
                  "the model has no chat template; the setting chat_template can give it one (a file, or one of: %s)",
                  text_chat_families());
    } else if (!c) {
        error_set(err, ERROR_UNSUPPORTED,
                  "the model has chat templates by name and no usual one; the setting chat_template can choose '%s'",
                  t->templates[0].name);
    }
    return c;
}

/* ---- rendering ---- */

static int render(const struct jinja *chat, const char *bos, const char *eos, const struct chat_request *r,
                  struct span messages, struct marked_text *out, struct error *err) {
    const struct jinja_input in = {
        .messages_json = messages.data,
        .messages_len = messages.len,
        .tools_json = r->tools_json,
        .tools_len = r->tools_len,
        .documents_json = r->documents_json,
        .documents_len = r->documents_len,
        .kwargs_json = r->kwargs_json,
        .kwargs_len = r->kwargs_len,
        .bos_token = bos,
        .eos_token = eos,
        .add_generation_prompt = r->add_generation_prompt,
        .now = r->now,
    };
    return jinja_render(chat, &in, &out->bytes, &out->trusted, err);
}

/* A word that no input holds, and a space: whether the space survives tells if the template trims the text. */
static void choose_tag(const struct chat_request *r, char tag[48]) {
    for (unsigned i = 0;; i++) {
        snprintf(tag, 48, "CONTINUE_FINAL_MESSAGE_%u", i);
        size_t n = strlen(tag);
        bool taken = memmem(r->messages_json, r->messages_len, tag, n) ||
                     (r->tools_json && memmem(r->tools_json, r->tools_len, tag, n)) ||
                     (r->kwargs_json && memmem(r->kwargs_json, r->kwargs_len, tag, n)) ||
                     (r->documents_json && memmem(r->documents_json, r->documents_len, tag, n));
        if (!taken) {
            memcpy(tag + n, "_ ", 3);
            return;
        }
    }
}

static void cut(struct marked_text *m, size_t len) {
    m->bytes.len = len;
    m->bytes.data[len] = '\0';
    m->trusted.len = len;
    m->trusted.data[len] = '\0';
}

static void cut_spaces(struct marked_text *m, size_t from) {
    size_t len = m->bytes.len, n;
    while (len > from) {
        size_t last = len - 1;
        while (last > from && ((unsigned char)m->bytes.data[last] & 0xc0) == 0x80) {
            last--;
        }
        if (!(unicode_class_at(m->bytes.data + last, &n) & CLASS_SPACE)) {
            break;
        }
        len = last;
    }
    cut(m, len);
}

/* Cut the text where the final message ends: at the last tag that was written behind it. */
static int leave_open(struct marked_text *m, size_t from, const char *tag, struct error *err) {
    size_t word = strlen(tag) - 1;
    for (size_t i = m->bytes.len; i >= from + word; i--) {
        size_t at = i - word;
        if (memcmp(m->bytes.data + at, tag, word) != 0) {
            continue;
        }
        bool space_kept = i < m->bytes.len && m->bytes.data[i] == ' ';
        cut(m, at);
        if (!space_kept) {
            cut_spaces(m, from);
        }
        return 0;
    }
    return error_set_param(err, ERROR_INVALID, "continue_final_message",
                           "the chat template leaves the final message out, so it cannot be continued");
}

static int render_continued(const struct text *t, const struct chat_template *c, const struct chat_request *r,
                            struct span messages, struct marked_text *out, struct error *err) {
    char tag[48];
    struct buf tagged = BUF_INIT;
    size_t before = out->bytes.len;
    choose_tag(r, tag);
    int rc = chat_json_tag_final(messages, tag, &tagged, err);
    if (rc == 0) {
        rc = render(c->jinja, t->bos_text, t->eos_text, r, (struct span){tagged.data, tagged.len}, out, err);
    }
    if (rc == 0 && (rc = leave_open(out, before, tag, err)) < 0) {
        cut(out, before);
    }
    buf_free(&tagged);
    return rc;
}

static int check_place(const struct chat_template *c, const char *name, const char *json, struct error *err) {
    if (!json || jinja_reads(c->jinja, name)) {
        return 0;
    }
    return error_set_param(err, ERROR_UNSUPPORTED, name, "the model's chat template has no place for %s", name);
}

typedef int edit(struct span messages, struct buf *out, struct error *err);

/* *messages, edited if `apply`; *spare keeps the bytes. */
static int apply_edit(bool apply, edit *e, struct span *messages, struct buf *spare, struct error *err) {
    if (!apply) {
        return 0;
    }
    if (e(*messages, spare, err) < 0) {
        return -1;
    }
    *messages = (struct span){spare->data ? spare->data : "", spare->len};
    return 0;
}

int text_render_chat(const struct text *t, const struct chat_request *r, struct marked_text *out, struct error *err) {
    const struct chat_template *c = choose(t, r, err);
    if (!c) {
        return -1;
    }
    if (r->continue_final_message && r->add_generation_prompt) {
        return error_set_param(err, ERROR_INVALID, "continue_final_message",
                               "continue_final_message and add_generation_prompt cannot both be true");
    }
    bool edits = !r->verbatim;
    if (edits &&
        (check_place(c, "tools", r->tools_json, err) < 0 || check_place(c, "documents", r->documents_json, err) < 0)) {
        return -1;
    }
    struct span messages = {r->messages_json, r->messages_len};
    struct buf content = BUF_INIT, calls = BUF_INIT;
    int rc = apply_edit(edits && !c->takes_parts, chat_json_join_parts, &messages, &content, err);
    if (rc == 0) {
        rc = apply_edit(edits && !c->takes_strings, chat_json_wrap_strings, &messages, &content, err);
    }
    if (rc == 0) {
        rc = apply_edit(edits && c->decode_arguments, chat_json_decode_arguments, &messages, &calls, err);
    }
    if (rc == 0) {
        rc = r->continue_final_message ? render_continued(t, c, r, messages, out, err)
                                       : render(c->jinja, t->bos_text, t->eos_text, r, messages, out, err);
    }
    buf_free(&content);
    buf_free(&calls);
    return rc;
}

int text_render_template(const char *source, size_t len, const char *bos_token, const char *eos_token,
                         const struct chat_request *r, struct marked_text *out, struct error *err) {
    struct jinja *chat;
    if (jinja_compile(source, len, &chat, err) < 0) {
        return -1;
    }
    int rc = render(chat, bos_token, eos_token, r, (struct span){r->messages_json, r->messages_len}, out, err);
    jinja_free(chat);
    return rc;
}
