/*
 * A tiny GGUF model with random weights and a byte vocabulary, written by the test itself: 259 tokens (256 bytes, then
 * <|bos|>, <|eos|>, ab), 260 rows of embedding and head of which the last would always win, a few layers.
 */
#ifndef TEST_TINY_MODEL_H
#define TEST_TINY_MODEL_H

#include <stdbool.h>
#include <stdint.h>

struct tiny_model {
    const char *architecture; /* "llama", "qwen2", "qwen3", "gemma3" */
    uint32_t context_length;
    uint64_t seed;
    int nan_token; /* the embedding row of this id is made of NaN: sequences that meet it compute nonsense; < 0 none */
    /* Faults, by tensor name; NULL = none. */
    const char *missing;    /* is not there */
    const char *swapped;    /* a matrix whose two dimensions are exchanged */
    const char *not_finite; /* a vector that begins with NaN */
    const char *extra;      /* a vector of 64 besides */

    const char *chat_template; /* NULL none */
    uint32_t rows;   /* of embedding and head; 0: 260 */
    uint32_t layers; /* 0: 3; of gemma3 the last one is without a window */
};

#define TINY_BOS 256
#define TINY_EOS 257

/* False with a message on stderr when the file cannot be written. */
bool tiny_model_write(const char *path, const struct tiny_model *model);

#endif
