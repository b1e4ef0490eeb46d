#include "text_export.h"

#include "quant/writer.h"
#include "text/text_impl.h"
#include "text_open.h"

#include <string.h>

static int put_file(const char *folder, const char *name, struct buf *b, struct error *err) {
    int rc = b->failed ? error_memory(err) : writer_put_file(folder, name, b->data, b->len, err);
    buf_free(b);
    return rc;
}

static void put_token(struct buf *b, const char *key, const struct vocab_source *s, int32_t id) {
    if (id >= 0) {
        buf_printf(b, "  \"%s\": ", key);
        buf_json_string(b, s->tokens[id].data, s->tokens[id].len);
        buf_puts(b, ",\n");
    }
}

static int32_t padding(const struct model_file *f, size_t n_tokens) {
    int64_t id;
    return model_file_get_int(f, "tokenizer.ggml.padding_token_id", &id) && id >= 0 && (uint64_t)id < n_tokens ? (int32_t)id
                                                                                                              : -1;
}

/* One template as a string, several as a list with their names. */
static void put_templates(struct buf *b, const struct text *t) {
    if (t->n_templates == 0) {
        return;
    }
    buf_puts(b, "  \"chat_template\": ");
    if (t->n_templates == 1 && strcmp(t->templates[0].name, "default") == 0) {
        buf_json_string(b, t->templates[0].source, strlen(t->templates[0].source));
        buf_puts(b, ",\n");
        return;
    }
    for (size_t i = 0; i < t->n_templates; i++) {
        buf_puts(b, i ? ",\n    {\"name\": " : "[\n    {\"name\": ");
        buf_json_string(b, t->templates[i].name, strlen(t->templates[i].name));
        buf_puts(b, ", \"template\": ");
        buf_json_string(b, t->templates[i].source, strlen(t->templates[i].source));
        buf_puts(b, "}");
    }
    buf_puts(b, "\n  ],\n");
}

static int put_tokenizer_config(const struct model_file *f, const struct text *t, const struct vocab_source *s,
                                const char *folder, struct error *err) {
    struct buf b = BUF_INIT;
    buf_printf(&b, "{\n  \"add_bos_token\": %s,\n  \"add_eos_token\": %s,\n", text_adds_bos(t) ? "true" : "false",
               s->add_eos > 0 ? "true" : "false");
    put_token(&b, "bos_token", s, s->bos_id);
    put_token(&b, "eos_token", s, s->eos_id);
    put_token(&b, "pad_token", s, padding(f, s->n_tokens));
    put_token(&b, "unk_token", s, s->unknown_id);
    put_templates(&b, t);
    buf_puts(&b, "  \"clean_up_tokenization_spaces\": false,\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\"\n}\n");
    return put_file(folder, "tokenizer_config.json", &b, err);
}

static int put_generation_config(const struct text *t, const char *folder, struct error *err) {
    struct buf b = BUF_INIT;
    size_t n;
    const int32_t *eos = text_eos_ids(t, &n);
    buf_puts(&b, "{\n");
    if (text_bos_id(t) >= 0) {
        buf_printf(&b, "  \"bos_token_id\": %d,\n", (int)text_bos_id(t));
    }
    buf_puts(&b, "  \"eos_token_id\": [");
    for (size_t i = 0; i < n; i++) {
        buf_printf(&b, "%s%d", i ? ", " : "", (int)eos[i]);
    }
    buf_puts(&b, "]\n}\n");
    return put_file(folder, "generation_config.json", &b, err);
}

int text_export(const struct model_file *f, const struct text *t, const char *folder, struct error *err) {
    struct gguf_vocab v = {0};
    struct buf b = BUF_INIT;
    int rc = gguf_vocab_read(f, &v, err);
    rc = rc == 0 ? tokenizer_vocab_json(&v.source, &b, err) : rc;
    if (rc == 0) {
        rc = put_file(folder, "tokenizer.json", &b, err);
    } else {
        buf_free(&b);
    }
    rc = rc == 0 ? put_tokenizer_config(f, t, &v.source, folder, err) : rc;
    rc = rc == 0 ? put_generation_config(t, folder, err) : rc;
    gguf_vocab_free(&v);
    return rc;
}
