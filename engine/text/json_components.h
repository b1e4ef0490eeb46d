/* The components of a tokenizer.json around the model. Each reader takes the component's JSON (may be null). */
#ifndef INFERD_TEXT_JSON_COMPONENTS_H
#define INFERD_TEXT_JSON_COMPONENTS_H

#include "text/tokenizer.h"

struct cJSON;

/* A text replaced by another in each token, when decoding. */
struct decode_replace {
    const char *pattern, *content; /* borrowed from the JSON */
};

#define DECODE_MAX_REPLACES 8
struct decode_rules {
    bool byte_level, byte_fallback;
    struct decode_replace replaces[DECODE_MAX_REPLACES];
    size_t n_replaces;
    enum decode_start start;
    bool fused; /* while reading: what follows sees one text, not tokens */
};

int read_normalizer(const struct cJSON *json, struct normalizer *out, struct error *err);
/* *byte_level: words are spelt in bytes from here on. */
int read_pre_tokenizer(const struct cJSON *json, struct pre_tokenizer *out, bool *byte_level, struct error *err);
int read_post_processor(const struct cJSON *json, struct tokenizer *out, struct error *err);
int read_decoder(const struct cJSON *json, struct decode_rules *out, struct error *err);

#endif
