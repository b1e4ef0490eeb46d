/* The chat template of a model: compiled at open, rendered for each chat. */
#include "text/chat_json.h"
#include "text/jinja/jinja.h"
#include "text/text_impl.h"
#include "text/unicode_class.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what form of content a template wants ---- */

#define PART_ONE "inferd-part-one"
#define PART_TWO "inferd-part-two"

/* Does a chat with this user content render, with both needles in it and nothing of the list's own spelling? */
static bool renders(const struct text *t, const char *content, bool two) {
    struct buf messages = BUF_INIT, out = BUF_INIT, trusted = BUF_INIT;
    struct error ignored;
    buf_printf(&messages, "[{\"role\":\"user\",\"content\":%s}]", content);
    struct jinja_input in = {
        .messages_json = messages.data,
        .messages_len = messages.len,
        .bos_token = t->bos_text,
        .eos_token = t->eos_text,
        .add_generation_prompt = true,
    };
    bool ok = !messages.failed && jinja_render(t->chat, &in, &out, &trusted, &ignored) == 0 && out.len > 0;
    ok = ok && strstr(out.data, PART_ONE) && (!two || strstr(out.data, PART_TWO));
    ok = ok && !strstr(out.data, "'type'") && !strstr(out.data, "\"type\"");
    buf_free(&messages);
    buf_free(&out);
    buf_free(&trusted);
    return ok;
}

/* Templates of models that take images walk over the parts of a message; others would print the list. */
static void find_content_form(struct text *t) {
    t->chat_takes_parts = renders(
        t, "[{\"type\":\"text\",\"text\":\"" PART_ONE "\"},{\"type\":\"text\",\"text\":\"" PART_TWO "\"}]", true);
    t->chat_takes_strings = !t->chat_takes_parts || renders(t, "\"" PART_ONE "\"", false);
}

int text_set_chat_template(struct text *t, const char *source, size_t len, struct error *err) {
    struct jinja *chat = NULL;
    if (memchr(source, '\0', len)) {
        return error_set(err, ERROR_MODEL, "the chat template holds a NUL character");
    }
    char *copy = strndup(source, len);
    if (!copy) {
        return error_memory(err);
    }
    if (jinja_compile(copy, len, &chat, err) < 0) {
        free(copy);
        return error_prefix(err, "chat template");
    }
    free(t->chat_template);
    jinja_free(t->chat);
    t->chat_template = copy;
    t->chat = chat;
    find_content_form(t);
    return 0;
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

static int render_continued(const struct text *t, const struct chat_request *r, struct span messages,
                            struct marked_text *out, struct error *err) {
    char tag[48];
    struct buf tagged = BUF_INIT;
    size_t before = out->bytes.len;
    choose_tag(r, tag);
    int rc = chat_json_tag_final(messages, tag, &tagged, err);
    if (rc == 0) {
        rc = render(t->chat, t->bos_text, t->eos_text, r, (struct span){tagged.data, tagged.len}, out, err);
    }
    if (rc == 0 && (rc = leave_open(out, before, tag, err)) < 0) {
        cut(out, before);
    }
    buf_free(&tagged);
    return rc;
}

int text_render_chat(const struct text *t, const struct chat_request *r, struct marked_text *out, struct error *err) {
    if (!t->chat) {
        return error_set(err, ERROR_UNSUPPORTED, "the model has no chat template");
    }
    if (r->continue_final_message && r->add_generation_prompt) {
        return error_set_param(err, ERROR_INVALID, "continue_final_message",
                               "continue_final_message and add_generation_prompt cannot both be true");
    }
    struct span messages = {r->messages_json, r->messages_len};
    struct buf edited = BUF_INIT;
    int rc = 0;
    if (!t->chat_takes_parts || !t->chat_takes_strings) {
        rc = t->chat_takes_parts ? chat_json_wrap_strings(messages, &edited, err)
                                 : chat_json_join_parts(messages, &edited, err);
        messages = (struct span){edited.data, edited.len};
    }
    if (rc == 0) {
        rc = r->continue_final_message ? render_continued(t, r, messages, out, err)
                                       : render(t->chat, t->bos_text, t->eos_text, r, messages, out, err);
    }
    buf_free(&edited);
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
