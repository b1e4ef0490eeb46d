#include "text/chat_json.h"

#include <inferd/json.h>
#include <string.h>

/* ---- a cursor over checked JSON text ---- */

static size_t skip_space(struct span s, size_t i) {
    while (i < s.len && (s.data[i] == ' ' || s.data[i] == '\t' || s.data[i] == '\n' || s.data[i] == '\r')) {
        i++;
    }
    return i;
}

/* Behind the string that begins at i. */
static size_t skip_string(struct span s, size_t i) {
    for (i++; i < s.len && s.data[i] != '"'; i++) {
        i += s.data[i] == '\\';
    }
    return i < s.len ? i + 1 : s.len;
}

/* Behind the value that begins at i. */
static size_t skip_value(struct span s, size_t i) {
    size_t depth = 0;
    do {
        char c = i < s.len ? s.data[i] : '\0';
        if (c == '"') {
            i = skip_string(s, i);
        } else if (c == '[' || c == '{') {
            depth++;
            i++;
        } else if (c == ']' || c == '}') {
            depth--;
            i++;
        } else if (depth > 0) {
            i++;
        } else {
            while (i < s.len && !strchr(",]} \t\n\r", s.data[i])) {
                i++;
            }
        }
    } while (depth > 0 && i < s.len);
    return i;
}

static struct span part_of(struct span s, size_t start, size_t end) {
    return (struct span){s.data + start, end - start};
}

/* The next element of an array or member of an object; *at is 0 before the first. key: NULL for arrays. */
static bool next(struct span container, size_t *at, struct span *key, struct span *value) {
    size_t i = *at ? *at : skip_space(container, 0) + 1;
    i = skip_space(container, i);
    if (i < container.len && container.data[i] == ',') {
        i = skip_space(container, i + 1);
    }
    if (i >= container.len || container.data[i] == ']' || container.data[i] == '}') {
        return false;
    }
    if (key) {
        size_t end = skip_string(container, i);
        *key = part_of(container, i, end);
        i = skip_space(container, end) + 1; /* the colon */
        i = skip_space(container, i);
    }
    *at = skip_value(container, i);
    *value = part_of(container, i, *at);
    return *at > i;
}

static bool begins_with(struct span value, char c) {
    return value.len > 0 && value.data[0] == c;
}

/* The member of an object whose key reads exactly so (with its quotes). */
static bool member(struct span object, const char *quoted_key, struct span *value) {
    struct span key;
    for (size_t at = 0; begins_with(object, '{') && next(object, &at, &key, value);) {
        if (span_is(key, quoted_key)) {
            return true;
        }
    }
    return false;
}

/* ---- edits ---- */

static void copy_until(struct buf *out, struct span whole, size_t *copied, const char *end) {
    size_t n = (size_t)(end - whole.data);
    buf_append(out, whole.data + *copied, n - *copied);
    *copied = n;
}

static void copy_rest(struct buf *out, struct span whole, size_t copied) {
    buf_append(out, whole.data + copied, whole.len - copied);
}

/* The string of a text part, with its quotes. */
static int text_of_part(struct span part, struct span *text, struct error *err) {
    struct span type;
    if (begins_with(part, '"')) {
        *text = part;
        return 0;
    }
    if (member(part, "\"type\"", &type) && span_is(type, "\"text\"") && member(part, "\"text\"", text) &&
        begins_with(*text, '"')) {
        return 0;
    }
    return error_set_param(err, ERROR_UNSUPPORTED, "messages", "message content may hold parts of type 'text' only");
}

static int write_joined(struct span parts, struct buf *out, struct error *err) {
    struct span part, text;
    bool first = true;
    buf_putc(out, '"');
    for (size_t at = 0; next(parts, &at, NULL, &part); first = false) {
        if (text_of_part(part, &text, err) < 0) {
            return -1;
        }
        buf_puts(out, first ? "" : "\\n");
        buf_append(out, text.data + 1, text.len - 2);
    }
    buf_putc(out, '"');
    return 0;
}

int chat_json_join_parts(struct span messages, struct buf *out, struct error *err) {
    struct span message, content;
    size_t copied = 0;
    for (size_t at = 0; next(messages, &at, NULL, &message);) {
        if (!member(message, "\"content\"", &content) || !begins_with(content, '[')) {
            continue;
        }
        copy_until(out, messages, &copied, content.data);
        if (write_joined(content, out, err) < 0) {
            return -1;
        }
        copied += content.len;
    }
    copy_rest(out, messages, copied);
    return out->failed ? error_memory(err) : 0;
}

int chat_json_wrap_strings(struct span messages, struct buf *out, struct error *err) {
    struct span message, content;
    size_t copied = 0;
    for (size_t at = 0; next(messages, &at, NULL, &message);) {
        if (!member(message, "\"content\"", &content) || !begins_with(content, '"')) {
            continue;
        }
        copy_until(out, messages, &copied, content.data);
        buf_puts(out, "[{\"type\":\"text\",\"text\":");
        buf_append(out, content.data, content.len);
        buf_puts(out, "}]");
        copied += content.len;
    }
    copy_rest(out, messages, copied);
    return out->failed ? error_memory(err) : 0;
}

/* The arguments of one tool call, when they are a string. */
static bool argument_text(struct span call, struct span *text) {
    struct span function;
    return member(call, "\"function\"", &function) && member(function, "\"arguments\"", text) &&
           begins_with(*text, '"');
}

int chat_json_decode_arguments(struct span messages, struct buf *out, struct error *err) {
    struct span message, calls, call, text;
    struct buf decoded = BUF_INIT;
    size_t copied = 0;
    for (size_t at = 0; next(messages, &at, NULL, &message);) {
        if (!member(message, "\"tool_calls\"", &calls)) {
            continue;
        }
        for (size_t in = 0; begins_with(calls, '[') && next(calls, &in, NULL, &call);) {
            struct error ignored;
            buf_reset(&decoded);
            if (!argument_text(call, &text) || !json_raw_string(text.data, text.len, &decoded) || decoded.len == 0 ||
                decoded.data[skip_space((struct span){decoded.data, decoded.len}, 0)] != '{' ||
                json_check(decoded.data, decoded.len, NULL, &ignored) < 0) {
                continue;
            }
            copy_until(out, messages, &copied, text.data);
            buf_append(out, decoded.data, decoded.len);
            copied += text.len;
        }
    }
    copy_rest(out, messages, copied);
    bool failed = out->failed || decoded.failed;
    buf_free(&decoded);
    return failed ? error_memory(err) : 0;
}

/* Where a message's text ends: the closing quote of its content, or of its last text part. */
static const char *end_of_text(struct span message) {
    struct span content, part, text;
    const char *end = NULL;
    if (!member(message, "\"content\"", &content)) {
        return NULL;
    }
    if (begins_with(content, '"')) {
        return content.data + content.len - 1;
    }
    for (size_t at = 0; begins_with(content, '[') && next(content, &at, NULL, &part);) {
        if (begins_with(part, '{') && member(part, "\"text\"", &text) && begins_with(text, '"')) {
            end = text.data + text.len - 1;
        }
    }
    return end;
}

int chat_json_tag_final(struct span messages, const char *tag, struct buf *out, struct error *err) {
    struct span message, last = {0};
    for (size_t at = 0; next(messages, &at, NULL, &message);) {
        last = message;
    }
    const char *end = last.data ? end_of_text(last) : NULL;
    if (!end) {
        return error_set_param(err, ERROR_INVALID, "continue_final_message",
                               "the final message has no text to continue");
    }
    size_t copied = 0;
    copy_until(out, messages, &copied, end);
    buf_puts(out, tag);
    copy_rest(out, messages, copied);
    return out->failed ? error_memory(err) : 0;
}
