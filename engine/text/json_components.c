#include "text/json_components.h"

#include "text/unicode_class.h"

#include <cjson/cJSON.h>
#include <inferd/json.h>
#include <string.h>

#define MAX_NESTING 8 /* sequences in sequences; real files have one level */

/* ---- helpers ---- */

static const char *string_of(const cJSON *object, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsString(item) ? item->valuestring : NULL;
}

static bool bool_of(const cJSON *object, const char *key, bool otherwise) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsBool(item) ? cJSON_IsTrue(item) : otherwise;
}

static const char *type_of(const cJSON *json) {
    const char *type = string_of(json, "type");
    return type ? type : "";
}

static bool is(const cJSON *json, const char *type) {
    return strcmp(type_of(json), type) == 0;
}

static int not_supported(const cJSON *json, struct error *err) {
    return error_set(err, ERROR_MODEL, "the type '%.60s' is not supported", type_of(json));
}

static int incomplete(const cJSON *json, const char *key, struct error *err) {
    return error_set(err, ERROR_MODEL, "%.60s: '%s' is missing or malformed", type_of(json), key);
}

/* The members of a Sequence, under whatever name this component gives them; NULL if they are missing. */
static const cJSON *members(const cJSON *json, const char *key) {
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(json, key);
    return cJSON_IsArray(list) ? list : NULL;
}

static int copy_text(const cJSON *json, const char *key, const char *text, char out[64], size_t *len,
                     struct error *err) {
    if (!text) {
        return incomplete(json, key, err);
    }
    *len = strlen(text);
    if (*len >= 64) {
        return error_set(err, ERROR_MODEL, "%.60s: '%s' is longer than 63 bytes", type_of(json), key);
    }
    memcpy(out, text, *len + 1);
    return 0;
}

/* {"String": s} or {"Regex": s} */
static int pattern_of(const cJSON *json, const char **literal, const char **regex, struct error *err) {
    const cJSON *pattern = cJSON_GetObjectItemCaseSensitive(json, "pattern");
    *literal = string_of(pattern, "String");
    *regex = string_of(pattern, "Regex");
    return *literal || *regex ? 0 : incomplete(json, "pattern", err);
}

/* ---- normalizer ---- */

static int read_replace(const cJSON *json, struct normalizer_step *step, struct error *err) {
    const char *literal, *regex;
    if (pattern_of(json, &literal, &regex, err) < 0 ||
        copy_text(json, "content", string_of(json, "content"), step->content, &step->content_len, err) < 0) {
        return -1;
    }
    if (regex) {
        return regex_new(regex, strlen(regex), &step->regex, err);
    }
    if (copy_text(json, "pattern", literal, step->pattern, &step->pattern_len, err) < 0) {
        return -1;
    }
    return step->pattern_len > 0 ? 0 : incomplete(json, "pattern", err);
}

static int normalizer_step(const cJSON *json, struct normalizer *out, struct error *err) {
    static const struct {
        const char *type;
        enum normalizer_kind kind;
    } kinds[] = {
        {"NFC", NORMALIZE_NFC},
        {"NFD", NORMALIZE_NFD},
        {"NFKC", NORMALIZE_NFKC},
        {"NFKD", NORMALIZE_NFKD},
        {"Lowercase", NORMALIZE_LOWERCASE},
        {"Prepend", NORMALIZE_PREPEND},
        {"Replace", NORMALIZE_REPLACE},
        {"Strip", NORMALIZE_STRIP},
        {"Precompiled", NORMALIZE_PRECOMPILED},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (!is(json, kinds[i].type)) {
            continue;
        }
        struct normalizer_step *step = normalizer_add(out, kinds[i].kind, err);
        if (!step) {
            return -1;
        }
        step->left = bool_of(json, "strip_left", true);
        step->right = bool_of(json, "strip_right", true);
        if (kinds[i].kind == NORMALIZE_PREPEND) {
            return copy_text(json, "prepend", string_of(json, "prepend"), step->content, &step->content_len, err);
        }
        if (kinds[i].kind == NORMALIZE_PRECOMPILED) {
            const char *map = string_of(json, "precompiled_charsmap");
            return map ? charsmap_new(map, strlen(map), &step->charsmap, err)
                       : incomplete(json, "precompiled_charsmap", err);
        }
        return kinds[i].kind == NORMALIZE_REPLACE ? read_replace(json, step, err) : 0;
    }
    return not_supported(json, err);
}

static int normalizer_at(const cJSON *json, struct normalizer *out, size_t depth, struct error *err) {
    if (!is(json, "Sequence")) {
        return normalizer_step(json, out, err);
    }
    const cJSON *list = members(json, "normalizers"), *item;
    if (!list || depth == MAX_NESTING) {
        return incomplete(json, "normalizers", err);
    }
    cJSON_ArrayForEach(item, list) {
        if (normalizer_at(item, out, depth + 1, err) < 0) {
            return -1;
        }
    }
    return 0;
}

int read_normalizer(const cJSON *json, struct normalizer *out, struct error *err) {
    if (!json || cJSON_IsNull(json)) {
        return 0;
    }
    return normalizer_at(json, out, 0, err) < 0 ? error_prefix(err, "normalizer") : 0;
}

/* ---- pre-tokenizer ---- */

#define GPT2_REGEX "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

static int behavior_of(const cJSON *json, const char *otherwise, enum split_behavior *out, struct error *err) {
    static const char *const names[] = {"Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"};
    const char *name = string_of(json, "behavior");
    name = name ? name : otherwise;
    for (size_t i = 0; name && i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(name, names[i]) == 0) {
            *out = (enum split_behavior)i;
            return 0;
        }
    }
    return incomplete(json, "behavior", err);
}

static int pre_split(const cJSON *json, struct pre_tokenizer *out, struct error *err) {
    const char *literal, *regex;
    enum split_behavior behavior = SPLIT_ISOLATED;
    if (pattern_of(json, &literal, &regex, err) < 0 || behavior_of(json, NULL, &behavior, err) < 0) {
        return -1;
    }
    bool invert = bool_of(json, "invert", false);
    if (regex) {
        return pre_add_regex(out, regex, behavior, invert, err);
    }
    struct pre_step *step = pre_add(out, PRE_LITERAL, err);
    if (!step || copy_text(json, "pattern", literal, step->literal, &step->literal_len, err) < 0) {
        return -1;
    }
    step->behavior = behavior;
    step->invert = invert;
    return step->literal_len > 0 ? 0 : incomplete(json, "pattern", err);
}

static int pre_class(struct pre_tokenizer *out, unsigned classes, enum split_behavior behavior, bool ascii_symbols,
                     struct error *err) {
    struct pre_step *step = pre_add(out, PRE_CLASS, err);
    if (!step) {
        return -1;
    }
    step->classes = classes;
    step->behavior = behavior;
    step->ascii_symbols = ascii_symbols;
    return 0;
}

static int pre_metaspace(const cJSON *json, struct pre_tokenizer *out, struct error *err) {
    struct pre_step *step = pre_add(out, PRE_METASPACE, err);
    if (!step ||
        copy_text(json, "replacement", string_of(json, "replacement"), step->literal, &step->literal_len, err) < 0) {
        return -1;
    }
    const char *scheme = string_of(json, "prepend_scheme");
    if (!scheme) { /* the older field */
        scheme = bool_of(json, "add_prefix_space", true) ? "always" : "never";
    }
    step->scheme = strcmp(scheme, "always") == 0  ? PREPEND_ALWAYS
                   : strcmp(scheme, "first") == 0 ? PREPEND_FIRST
                                                  : PREPEND_NEVER;
    step->split = bool_of(json, "split", true);
    if (step->literal_len == 0 || (step->scheme == PREPEND_NEVER && strcmp(scheme, "never") != 0)) {
        return incomplete(json, step->literal_len ? "prepend_scheme" : "replacement", err);
    }
    return 0;
}

static int pre_byte_level(const cJSON *json, struct pre_tokenizer *out, struct error *err) {
    if (bool_of(json, "add_prefix_space", true) && !pre_add(out, PRE_PREFIX_SPACE, err)) {
        return -1;
    }
    return bool_of(json, "use_regex", true) ? pre_add_regex(out, GPT2_REGEX, SPLIT_ISOLATED, false, err) : 0;
}

static int pre_char_delimiter(const cJSON *json, struct pre_tokenizer *out, struct error *err) {
    struct pre_step *step = pre_add(out, PRE_LITERAL, err);
    if (!step ||
        copy_text(json, "delimiter", string_of(json, "delimiter"), step->literal, &step->literal_len, err) < 0) {
        return -1;
    }
    step->behavior = SPLIT_REMOVED;
    return step->literal_len > 0 ? 0 : incomplete(json, "delimiter", err);
}

/* What comes behind ByteLevel sees its alphabet; only steps that cut can stand there. */
static int begin_behind_byte_level(const cJSON *json, struct pre_tokenizer *out, struct error *err) {
    if (is(json, "ByteLevel") || is(json, "Metaspace")) {
        return error_set(err, ERROR_MODEL, "the type '%.60s' behind ByteLevel is not supported", type_of(json));
    }
    return pre_has(out, PRE_TO_ALPHABET) || pre_add(out, PRE_TO_ALPHABET, err) ? 0 : -1;
}

static int pre_step_of(const cJSON *json, struct pre_tokenizer *out, bool *byte_level, struct error *err) {
    enum split_behavior behavior = SPLIT_ISOLATED;
    if (*byte_level && begin_behind_byte_level(json, out, err) < 0) {
        return -1;
    }
    if (is(json, "ByteLevel")) {
        *byte_level = true;
        return pre_byte_level(json, out, err);
    }
    if (is(json, "Split")) {
        return pre_split(json, out, err);
    }
    if (is(json, "Digits")) {
        behavior = bool_of(json, "individual_digits", false) ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS;
        return pre_class(out, CLASS_NUMBER, behavior, false, err);
    }
    if (is(json, "Punctuation")) {
        return behavior_of(json, "Isolated", &behavior, err) < 0 ? -1
                                                                 : pre_class(out, CLASS_PUNCT, behavior, true, err);
    }
    if (is(json, "WhitespaceSplit")) {
        return pre_class(out, CLASS_SPACE, SPLIT_REMOVED, false, err);
    }
    if (is(json, "Whitespace")) { /* \w+|[^\w\s]+ with Rust's \w: joiners are in it, the numbers of Latin-1 are not */
        return pre_add_regex(out,
                             "[[\\w\\x{200c}\\x{200d}]&&[^\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}]]+|"
                             "[[^\\w\\s\\x{200c}\\x{200d}]\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}]+",
                             SPLIT_REMOVED, true, err);
    }
    if (is(json, "Metaspace")) {
        return pre_metaspace(json, out, err);
    }
    if (is(json, "CharDelimiterSplit")) {
        return pre_char_delimiter(json, out, err);
    }
    return not_supported(json, err);
}

static int pre_at(const cJSON *json, struct pre_tokenizer *out, bool *byte_level, size_t depth, struct error *err) {
    if (!is(json, "Sequence")) {
        return pre_step_of(json, out, byte_level, err);
    }
    const cJSON *list = members(json, "pretokenizers"), *item;
    if (!list || depth == MAX_NESTING) {
        return incomplete(json, "pretokenizers", err);
    }
    cJSON_ArrayForEach(item, list) {
        if (pre_at(item, out, byte_level, depth + 1, err) < 0) {
            return -1;
        }
    }
    return 0;
}

int read_pre_tokenizer(const cJSON *json, struct pre_tokenizer *out, bool *byte_level, struct error *err) {
    if (!json || cJSON_IsNull(json)) {
        return 0;
    }
    int rc = pre_at(json, out, byte_level, 0, err);
    if (rc == 0 && pre_has(out, PRE_TO_ALPHABET) && !pre_add(out, PRE_FROM_ALPHABET, err)) {
        rc = -1;
    }
    return rc < 0 ? error_prefix(err, "pre_tokenizer") : 0;
}

/* ---- post-processor ---- */

static int add_template_token(struct tokenizer *t, bool behind, const cJSON *id, struct error *err) {
    int32_t *list = behind ? t->suffix : t->prefix;
    size_t *n = behind ? &t->n_suffix : &t->n_prefix;
    if (!cJSON_IsNumber(id) || id->valuedouble < 0 || id->valuedouble >= VOCAB_MAX_TOKENS ||
        *n == TEMPLATE_MAX_TOKENS) {
        return error_set(err, ERROR_MODEL, "a special token has no valid id, or there are more than %d",
                         TEMPLATE_MAX_TOKENS);
    }
    list[(*n)++] = id->valueint;
    return 0;
}

static int post_template(const cJSON *json, struct tokenizer *t, struct error *err) {
    const cJSON *single = members(json, "single"), *item;
    const cJSON *special = cJSON_GetObjectItemCaseSensitive(json, "special_tokens");
    bool behind = false;
    if (!single) {
        return incomplete(json, "single", err);
    }
    cJSON_ArrayForEach(item, single) {
        const char *name = string_of(cJSON_GetObjectItemCaseSensitive(item, "SpecialToken"), "id");
        if (!name) { /* the text itself, once */
            const char *text = string_of(cJSON_GetObjectItemCaseSensitive(item, "Sequence"), "id");
            if (behind || !text || strcmp(text, "A") != 0) {
                return incomplete(json, "single", err);
            }
            behind = true;
            continue;
        }
        const cJSON *ids = members(cJSON_GetObjectItemCaseSensitive(special, name), "ids"), *id;
        if (!ids) {
            return incomplete(json, "special_tokens", err);
        }
        cJSON_ArrayForEach(id, ids) {
            if (add_template_token(t, behind, id, err) < 0) {
                return -1;
            }
        }
    }
    return behind ? 0 : incomplete(json, "single", err);
}

/* ["[CLS]", 0] and ["[SEP]", 2] */
static int post_pair(const cJSON *json, struct tokenizer *t, struct error *err) {
    const cJSON *cls = members(json, "cls"), *sep = members(json, "sep");
    if (!cls || !sep) {
        return incomplete(json, "cls", err);
    }
    return add_template_token(t, false, cJSON_GetArrayItem(cls, 1), err) < 0
               ? -1
               : add_template_token(t, true, cJSON_GetArrayItem(sep, 1), err);
}

static int post_at(const cJSON *json, struct tokenizer *t, size_t depth, struct error *err) {
    if (is(json, "ByteLevel")) { /* moves offsets only */
        return 0;
    }
    if (t->n_prefix + t->n_suffix > 0 && !is(json, "Sequence")) {
        return error_set(err, ERROR_MODEL, "the type '%.60s' behind another that adds tokens is not supported",
                         type_of(json));
    }
    if (is(json, "TemplateProcessing")) {
        return post_template(json, t, err);
    }
    if (is(json, "RobertaProcessing") || is(json, "BertProcessing")) {
        return post_pair(json, t, err);
    }
    if (!is(json, "Sequence")) {
        return not_supported(json, err);
    }
    const cJSON *list = members(json, "processors"), *item;
    if (!list || depth == MAX_NESTING) {
        return incomplete(json, "processors", err);
    }
    cJSON_ArrayForEach(item, list) {
        if (post_at(item, t, depth + 1, err) < 0) {
            return -1;
        }
    }
    return 0;
}

int read_post_processor(const cJSON *json, struct tokenizer *out, struct error *err) {
    if (!json || cJSON_IsNull(json)) {
        return 0;
    }
    return post_at(json, out, 0, err) < 0 ? error_prefix(err, "post_processor") : 0;
}

/* ---- decoder ---- */

static int add_replace(const cJSON *json, const char *pattern, const char *content, struct decode_rules *out,
                       struct error *err) {
    if (!pattern || !pattern[0] || !content) {
        return incomplete(json, "pattern", err);
    }
    if (out->n_replaces == DECODE_MAX_REPLACES) {
        return error_set(err, ERROR_MODEL, "more than %d replacements", DECODE_MAX_REPLACES);
    }
    /* Behind Fuse a longer pattern could be met across tokens, which a stream could not take back. */
    if (out->fused && pattern[utf8_length(pattern[0])] != '\0') {
        return error_set(err, ERROR_MODEL, "Replace of more than one character behind Fuse is not supported");
    }
    out->replaces[out->n_replaces++] = (struct decode_replace){pattern, content};
    return 0;
}

/* Only the form in use: one space off the beginning of the whole text. */
static int decode_strip(const cJSON *json, struct decode_rules *out, struct error *err) {
    int64_t start = 0, stop = 0;
    if (json_get_int(json, "start", 0, 1000, &start, err) < 0 || json_get_int(json, "stop", 0, 1000, &stop, err) < 0) {
        return incomplete(json, "start", err);
    }
    const char *content = string_of(json, "content");
    if (start == 0 && stop == 0) {
        return 0;
    }
    if (!out->fused || start != 1 || stop != 0 || !content || strcmp(content, " ") != 0) {
        return error_set(err, ERROR_MODEL, "Strip is supported for one leading space behind Fuse only");
    }
    out->start = DECODE_START_STRIP;
    return 0;
}

static int decode_metaspace(const cJSON *json, struct decode_rules *out, struct error *err) {
    const char *scheme = string_of(json, "prepend_scheme");
    bool never = scheme ? strcmp(scheme, "never") == 0 : !bool_of(json, "add_prefix_space", true);
    if (!never) {
        out->start = DECODE_START_FIRST_TOKEN;
    }
    return add_replace(json, string_of(json, "replacement"), " ", out, err);
}

static int decoder_at(const cJSON *json, struct decode_rules *out, size_t depth, struct error *err) {
    const char *literal, *regex;
    if (is(json, "ByteLevel")) {
        out->byte_level = true;
        return 0;
    }
    if (is(json, "ByteFallback")) {
        out->byte_fallback = true;
        return 0;
    }
    if (is(json, "Fuse")) {
        out->fused = true;
        return 0;
    }
    if (is(json, "Strip")) {
        return decode_strip(json, out, err);
    }
    if (is(json, "Metaspace")) {
        return decode_metaspace(json, out, err);
    }
    if (is(json, "Replace")) {
        if (pattern_of(json, &literal, &regex, err) < 0) {
            return -1;
        }
        return regex ? error_set(err, ERROR_MODEL, "Replace by a regex is not supported")
                     : add_replace(json, literal, string_of(json, "content"), out, err);
    }
    if (!is(json, "Sequence")) {
        return not_supported(json, err);
    }
    const cJSON *list = members(json, "decoders"), *item;
    if (!list || depth == MAX_NESTING) {
        return incomplete(json, "decoders", err);
    }
    cJSON_ArrayForEach(item, list) {
        if (decoder_at(item, out, depth + 1, err) < 0) {
            return -1;
        }
    }
    return 0;
}

int read_decoder(const cJSON *json, struct decode_rules *out, struct error *err) {
    if (!json || cJSON_IsNull(json)) {
        return error_set(err, ERROR_MODEL, "decoder: a tokenizer without one is not supported");
    }
    return decoder_at(json, out, 0, err) < 0 ? error_prefix(err, "decoder") : 0;
}
