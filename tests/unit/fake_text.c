#include "fake_engine.h"

#include <cjson/cJSON.h>
#include <inferd/text.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct text {
    int unused;
};

static struct text the_text;
static const int32_t eos_ids[] = {FAKE_EOS};

int text_open(const char *path, struct text **out, struct error *err) {
    (void)path;
    (void)err;
    *out = &the_text;
    return 0;
}

int text_open_with(const char *path, const char *chat_template, struct text **out, struct error *err) {
    (void)chat_template;
    return text_open(path, out, err);
}

void text_free(struct text *t) {
    (void)t;
}

size_t text_vocab_size(const struct text *t) {
    (void)t;
    return FAKE_VOCAB;
}

int32_t text_bos_id(const struct text *t) {
    (void)t;
    return FAKE_BOS;
}

const int32_t *text_eos_ids(const struct text *t, size_t *n) {
    (void)t;
    *n = 1;
    return eos_ids;
}

size_t text_bytes_per_token(const struct text *t) {
    (void)t;
    return 1;
}

bool text_adds_bos(const struct text *t) {
    (void)t;
    return true;
}

bool text_has_chat_template(const struct text *t) {
    (void)t;
    return true;
}

const char *text_chat_template(const struct text *t) {
    (void)t;
    return "fake";
}

int text_choose_chat_template(struct text *t, const char *choice, struct error *err) {
    (void)t;
    return error_set_param(err, ERROR_MODEL, "chat_template", "%s is none", choice);
}

const char *text_chat_families(void) {
    return "fake";
}

bool text_is_chat_family(const char *name) {
    return strcmp(name, "fake") == 0;
}

void tokens_free(struct tokens *t) {
    free(t->ids);
    *t = (struct tokens){0};
}

int tokens_push(struct tokens *t, int32_t id, struct error *err) {
    if (t->n == t->cap) {
        size_t cap = t->cap ? t->cap * 2 : 64;
        int32_t *ids = realloc(t->ids, cap * sizeof *ids);
        if (!ids) {
            return error_memory(err);
        }
        t->ids = ids;
        t->cap = cap;
    }
    t->ids[t->n++] = id;
    return 0;
}

void marked_text_free(struct marked_text *m) {
    buf_free(&m->bytes);
    buf_free(&m->trusted);
}

int text_encode(const struct text *t, const char *bytes, size_t len, unsigned flags, struct tokens *out,
                struct error *err) {
    (void)t;
    const char *slow = memmem(bytes, len, "@tokenise=", 10);
    if (slow) {
        long ms = strtol(slow + 10, NULL, 10);
        nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
    }
    if ((flags & TEXT_ADD_SPECIAL) && tokens_push(out, FAKE_BOS, err)) {
        return -1;
    }
    for (size_t i = 0; i < len; i++) {
        if (tokens_push(out, (unsigned char)bytes[i], err)) {
            return -1;
        }
    }
    return 0;
}

int text_encode_marked(const struct text *t, const struct marked_text *m, unsigned flags, struct tokens *out,
                       struct error *err) {
    return tokens_push(out, FAKE_BOS, err) ||
                   text_encode(t, m->bytes.data, m->bytes.len, flags & ~(unsigned)TEXT_ADD_SPECIAL, out, err)
               ? -1
               : 0;
}

const char *text_token_bytes(const struct text *t, int32_t id, size_t *len) {
    static char bytes[256];
    (void)t;
    if (id >= 256) {
        *len = id == FAKE_BOS ? 3 : 4;
        return id == FAKE_BOS ? "<s>" : "</s>";
    }
    bytes[id] = (char)id; /* each id has its own byte, so two threads write the same value */
    *len = 1;
    return &bytes[id];
}

bool text_token_is_special(const struct text *t, int32_t id) {
    (void)t;
    return id >= 256;
}

int text_decode(const struct text *t, const int32_t *ids, size_t n, bool skip_special, struct buf *out,
                struct error *err) {
    for (size_t i = 0; i < n; i++) {
        size_t len;
        const char *bytes = text_token_bytes(t, ids[i], &len);
        if (!skip_special || ids[i] < 256) {
            buf_append(out, bytes, len);
        }
    }
    return out->failed ? error_memory(err) : 0;
}

int text_decode_cleaned(const struct text *t, const int32_t *ids, size_t n, bool skip_special, struct buf *out,
                        struct error *err) {
    return text_decode(t, ids, n, skip_special, out, err);
}

int text_render_template(const char *source, size_t len, const char *bos_token, const char *eos_token,
                         const struct chat_request *r, struct marked_text *out, struct error *err) {
    (void)source, (void)len, (void)bos_token, (void)eos_token, (void)r, (void)out;
    return error_set(err, ERROR_UNSUPPORTED, "not here");
}

static void add(struct marked_text *out, const char *s, bool trusted) {
    buf_puts(&out->bytes, s);
    for (size_t i = 0; s[i]; i++) {
        buf_putc(&out->trusted, trusted);
    }
}

static void add_content(struct marked_text *out, const cJSON *content) {
    if (cJSON_IsString(content)) {
        add(out, content->valuestring, false);
    }
    for (const cJSON *part = cJSON_IsArray(content) ? content->child : NULL; part; part = part->next) {
        add(out, cJSON_GetObjectItemCaseSensitive(part, "text")->valuestring, false);
    }
}

int text_render_chat(const struct text *t, const struct chat_request *r, struct marked_text *out, struct error *err) {
    (void)t;
    cJSON *messages = cJSON_ParseWithLength(r->messages_json, r->messages_len);
    const cJSON *m;
    cJSON_ArrayForEach(m, messages) {
        add(out, cJSON_GetObjectItemCaseSensitive(m, "role")->valuestring, true);
        add(out, ":", true);
        add_content(out, cJSON_GetObjectItemCaseSensitive(m, "content"));
        add(out, "\n", true);
    }
    cJSON_Delete(messages);
    if (r->add_generation_prompt) {
        add(out, "assistant:", true);
    }
    if (out->bytes.data && strstr(out->bytes.data, "@raise")) {
        return error_set(err, ERROR_INVALID, "the template does not like these messages");
    }
    return 0;
}

void detokenizer_init(struct detokenizer *d, const struct text *t, bool skip_special, bool continuing) {
    *d = (struct detokenizer){.text = t, .skip_special = skip_special, .started = continuing};
}

size_t detokenizer_push(struct detokenizer *d, int32_t id, char *out) {
    (void)d;
    out[0] = (char)id;
    return id < 256;
}

size_t detokenizer_finish(struct detokenizer *d, char *out) {
    (void)d;
    (void)out;
    return 0;
}
