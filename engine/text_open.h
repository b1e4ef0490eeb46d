/* The vocabulary in a GGUF's metadata, for whoever opens a text from it and whoever writes it anew. */
#ifndef INFERD_TEXT_OPEN_H
#define INFERD_TEXT_OPEN_H

#include "model_file/model_file.h"
#include "text/tokenizer.h"

struct gguf_vocab {
    struct vocab_source source; /* what it points to lies below, or in the file */
    struct span *tokens, *merges;
    float *scores;
    uint8_t *types;
    char *model, *pre, *name;
};

/* *v is zeroed before; freed by the caller whatever is returned. */
int gguf_vocab_read(const struct model_file *f, struct gguf_vocab *v, struct error *err);
void gguf_vocab_free(struct gguf_vocab *v);

#endif
