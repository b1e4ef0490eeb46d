#include "cmd/chat_history.h"

#include <stdlib.h>
#include <string.h>

void chat_history_free(struct chat_history *h) {
    for (size_t i = 0; i < h->n; i++) {
        buf_free(&h->messages[i].content);
    }
    free(h->messages);
    *h = (struct chat_history){0};
}

int chat_history_add(struct chat_history *h, const char *role, const char *content, size_t len, struct error *err) {
    if (h->n == h->cap) {
        size_t cap = h->cap ? 2 * h->cap : 16;
        struct chat_message *grown = realloc(h->messages, cap * sizeof *grown);
        if (!grown) {
            return error_memory(err);
        }
        h->messages = grown;
        h->cap = cap;
    }
    struct chat_message m = {role, BUF_INIT};
    buf_append(&m.content, content, len);
    if (m.content.failed) {
        buf_free(&m.content);
        return error_memory(err);
    }
    h->messages[h->n++] = m;
    return 0;
}

bool chat_history_drop_turn(struct chat_history *h) {
    size_t first = h->n > 0 && strcmp(h->messages[0].role, "system") == 0 ? 1 : 0;
    if (h->n < first + 3) {
        return false;
    }
    for (size_t i = first; i < first + 2; i++) {
        buf_free(&h->messages[i].content);
    }
    memmove(h->messages + first, h->messages + first + 2, (h->n - first - 2) * sizeof *h->messages);
    h->n -= 2;
    return true;
}

void chat_history_forget_last(struct chat_history *h) {
    if (h->n > 0) {
        buf_free(&h->messages[--h->n].content);
    }
}

void chat_history_json(const struct chat_history *h, struct buf *out) {
    buf_putc(out, '[');
    for (size_t i = 0; i < h->n; i++) {
        const struct buf *content = &h->messages[i].content;
        buf_printf(out, "%s{\"role\": \"%s\", \"content\": ", i ? ", " : "", h->messages[i].role);
        buf_json_string(out, content->data ? content->data : "", content->len);
        buf_putc(out, '}');
    }
    buf_putc(out, ']');
}
