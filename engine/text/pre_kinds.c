/*
 * The pre-tokenizer kinds that GGUF files name (tokenizer.ggml.pre), as steps. The names and what they stand for are
 * llama.cpp's; where its regexes only approximate the model's own (its engine knows no \p{Lu}), the model's own is
 * taken.
 */
#include "text/pre_tokenizer.h"

#include "text/unicode_class.h"

#include <string.h>

enum step_tag { END, PATTERN, REGEX, RUN, TRAILING_SPACE };

struct kind_step {
    enum step_tag tag;
    struct pattern pattern;
    const char *regex;
    const struct char_set *set;
    bool space_before, single;
};

// clang-format off
#define GPT2_WORDS {PATTERN, {PATTERN_GPT2}}
#define LLAMA3_WORDS(n) {PATTERN, {PATTERN_LLAMA3, .contractions = true, .digits = (n)}}
#define QWEN_MARKS {PATTERN, {PATTERN_LLAMA3, .contractions = true, .marks = true, .digits = 1}}
#define TEKKEN_WORDS {PATTERN, {PATTERN_CASED, .slash = true, .digits = 1}}
#define O200K_WORDS {PATTERN, {PATTERN_CASED, .contractions = true, .slash = true, .digits = 3}}
#define RE(r) {REGEX, .regex = (r)}
#define EACH(s) {RUN, .set = &(s), .single = true} /* [s] */
#define RUN_OF(s) {RUN, .set = &(s)} /* [s]+ */
#define SPACE_AND_RUN_OF(s) {RUN, .set = &(s), .space_before = true} /* \s?[s]+ */
// clang-format on

static const struct char_set numbers = {.classes = CLASS_NUMBER}, letters = {.classes = CLASS_LETTER},
                             punctuation = {.classes = CLASS_PUNCT};
static const struct char_range line_end_ranges[] = {{'\n', '\n'}, {'\r', '\r'}};
static const struct char_set line_ends = {.n = 2, .ranges = line_end_ranges};

/* Cased letters of the scripts that have case, as DeepSeek's file lists them. */
static const struct char_range deepseek_letter_ranges[] = {
    {0x41, 0x5a},       {0x61, 0x7a},       {0xb5, 0xb5},       {0xc0, 0xd6},       {0xd8, 0xf6},
    {0xf8, 0x1ba},      {0x1bc, 0x1bf},     {0x1c4, 0x293},     {0x295, 0x2af},     {0x370, 0x373},
    {0x376, 0x377},     {0x37b, 0x37d},     {0x37f, 0x37f},     {0x386, 0x386},     {0x388, 0x38a},
    {0x38c, 0x38c},     {0x38e, 0x3a1},     {0x3a3, 0x3f5},     {0x3f7, 0x481},     {0x48a, 0x52f},
    {0x531, 0x556},     {0x10a0, 0x10c5},   {0x13a0, 0x13f5},   {0x13f8, 0x13fd},   {0x1c90, 0x1cba},
    {0x1cbd, 0x1cbf},   {0x1d00, 0x1d2b},   {0x1d6b, 0x1d77},   {0x1d79, 0x1d9a},   {0x1e00, 0x1f15},
    {0x1f18, 0x1f1d},   {0x1f20, 0x1f45},   {0x1f48, 0x1f4d},   {0x1f50, 0x1f57},   {0x1f59, 0x1f59},
    {0x1f5b, 0x1f5b},   {0x1f5d, 0x1f5d},   {0x1f5f, 0x1f7d},   {0x1f80, 0x1fb4},   {0x1fb6, 0x1fbc},
    {0x1fbe, 0x1fbe},   {0x1fc2, 0x1fc4},   {0x1fc6, 0x1fcc},   {0x1fd0, 0x1fd3},   {0x1fd6, 0x1fdb},
    {0x1fe0, 0x1fec},   {0x1ff2, 0x1ff4},   {0x1ff6, 0x1ffc},   {0x2102, 0x2102},   {0x2107, 0x2107},
    {0x210a, 0x2113},   {0x2115, 0x2115},   {0x2119, 0x211d},   {0x2124, 0x2124},   {0x2126, 0x2126},
    {0x2128, 0x2128},   {0x212a, 0x212d},   {0x212f, 0x2134},   {0x2139, 0x2139},   {0x213c, 0x213f},
    {0x2145, 0x2149},   {0x214e, 0x214e},   {0x2183, 0x2184},   {0x2c00, 0x2c7b},   {0x2c7e, 0x2ce4},
    {0x2ceb, 0x2cee},   {0x2cf2, 0x2cf3},   {0xa640, 0xa66d},   {0xa680, 0xa69b},   {0xa722, 0xa76f},
    {0xa771, 0xa787},   {0xa78b, 0xa78e},   {0xab70, 0xabbf},   {0xfb00, 0xfb06},   {0xfb13, 0xfb17},
    {0xff21, 0xff3a},   {0xff41, 0xff5a},   {0x10400, 0x1044f}, {0x104b0, 0x104d3}, {0x104d8, 0x104fb},
    {0x10c80, 0x10cb2}, {0x10cc0, 0x10cf2}, {0x118a0, 0x118df}, {0x1e900, 0x1e943},
};
static const struct char_set deepseek_letters = {.n = sizeof deepseek_letter_ranges / sizeof deepseek_letter_ranges[0],
                                                 .ranges = deepseek_letter_ranges};
static const struct char_range deepseek_punctuation_ranges[] = {
    {'!', '/'}, {':', '~'}, {0x2018, 0x201f}, {0x3001, 0x3002}, {0xff01, 0xff0f}, {0xff1a, 0xff5e},
};
static const struct char_set deepseek_punctuation = {.n = 6, .ranges = deepseek_punctuation_ranges};
/* White space in between (U+1680, U+2000..200A, U+3000 and others) is in no set. */
static const struct char_range deepseek_cjk_ranges[] = {{0x800, 0x9fa5}, {0xac00, 0xd7ff}};
static const struct char_set deepseek_cjk = {.n = 2, .ranges = deepseek_cjk_ranges};

// clang-format off
#define DEEPSEEK3_STEPS {RE("\\p{N}{1,3}"), RE("[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+"), \
     RE("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")}

static const struct {
    const char *names; /* space-separated */
    struct pre_kind_info info;
    struct kind_step steps[6];
} kinds[] = {
    {"llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2", {.ignore_merges = true, .add_bos = true}, {LLAMA3_WORDS(3)}},
    {"dbrx smaug-bpe glm4 chatglm-bpe", {0}, {LLAMA3_WORDS(3)}},
    {"qwen2 deepseek-r1-qwen stablelm2 hunyuan megrez grok-2 kormo solar-open", {0}, {LLAMA3_WORDS(1)}},
    {"qwen35", {0}, {QWEN_MARKS}},
    {"minicpm5", {.ignore_merges = true}, {RE("\\p{N}{1,3}"), LLAMA3_WORDS(0)}},
    {"gpt-2 phi-2 mpt olmo jais trillion granite-docling gigachat a.x-4.0 mellum exaone4", {0}, {GPT2_WORDS}},
    {"starcoder refact command-r smollm codeshell exaone minerva-7b mellum2", {0}, {EACH(numbers), GPT2_WORDS}},
    {"default", {0}, {RE("[\\p{P}\\$\\+<=>\\^~\\|]+"), GPT2_WORDS, RUN_OF(numbers), RE("[0-9][0-9][0-9]")}},
    {"falcon", {0}, {RE("[\\p{P}\\$\\+<=>\\^~\\|`]+"), GPT2_WORDS, RE("[0-9][0-9][0-9]")}},
    {"tekken", {.ignore_merges = true, .add_bos = true}, {TEKKEN_WORDS}},
    {"gpt-4o llama4 kanana2 minimax-m2", {0}, {O200K_WORDS}},
    {"deepseek-llm", {0},
     {EACH(line_ends), SPACE_AND_RUN_OF(deepseek_letters), SPACE_AND_RUN_OF(deepseek_punctuation), {TRAILING_SPACE},
      RUN_OF(deepseek_cjk), RUN_OF(numbers)}},
    {"deepseek-coder", {0},
     {EACH(line_ends), SPACE_AND_RUN_OF(letters), SPACE_AND_RUN_OF(punctuation), RUN_OF(deepseek_cjk), EACH(numbers)}},
    {"deepseek-v3 hunyuan-dense joyai-llm", {0}, DEEPSEEK3_STEPS},
    {"bailingmoe bailingmoe2 llada-moe", {0},
     {RE("'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+")}},
    {"seed-coder", {0},
     {RE("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")}},
    {"poro-chat bloom gpt3-finnish", {0}, {RE(" ?[^(\\s|.,!?\\x{2026}\\x{3002}\\x{ff0c}\\x{3001}\\x{964}\\x{6d4}\\x{60c})]+")}},
    {"viking", {0}, {RE(" ?[^(\\s|.,!?\\x{2026}\\x{3002}\\x{ff0c}\\x{3001}\\x{964}\\x{6d4}\\x{60c})]+"), EACH(numbers)}},
};
// clang-format on

/* Kinds whose texts llama.cpp's detokenizer does not clean of spaces before punctuation. */
static const char not_cleaned[] =
    "deepseek-llm deepseek-coder deepseek-v3 command-r qwen2 deepseek-r1-qwen kormo qwen35 poro-chat viking tekken "
    "smollm gpt-4o llama4 kanana2 trillion granite-docling bailingmoe bailingmoe2 llada-moe seed-coder hunyuan "
    "hunyuan-dense "
    "joyai-llm grok-2 minimax-m2 solar-open";

static bool has_name(const char *names, const char *name) {
    size_t len = strchr(name, ' ') ? 0 : strlen(name);
    for (const char *p = names; len > 0 && (p = strstr(p, name)); p += len) {
        if ((p == names || p[-1] == ' ') && (p[len] == ' ' || p[len] == '\0')) {
            return true;
        }
    }
    return false;
}

static int add_step(struct pre_tokenizer *out, const struct kind_step *step, struct error *err) {
    if (step->tag == REGEX) {
        return pre_add_regex(out, step->regex, SPLIT_ISOLATED, false, err);
    }
    if (step->tag == PATTERN) {
        return pre_add_pattern(out, step->pattern, err);
    }
    struct pre_step *added = pre_add(out, step->tag == RUN ? PRE_RUN : PRE_TRAILING_SPACE, err);
    if (!added) {
        return -1;
    }
    added->set = step->set;
    added->space_before = step->space_before;
    added->single = step->single;
    return 0;
}

int pre_from_kind(const char *kind, struct pre_tokenizer *out, struct pre_kind_info *info, struct error *err) {
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (!has_name(kinds[i].names, kind)) {
            continue;
        }
        size_t n = sizeof kinds[i].steps / sizeof kinds[i].steps[0];
        for (size_t j = 0; j < n && kinds[i].steps[j].tag != END; j++) {
            if (add_step(out, &kinds[i].steps[j], err) < 0) {
                return -1;
            }
        }
        *info = kinds[i].info;
        info->clean_spaces = !has_name(not_cleaned, kind);
        return 0;
    }
    return error_set(err, ERROR_MODEL, "the pre-tokenizer kind '%.100s' is not supported", kind);
}

/* ---- as a tokenizer.json says it ---- */

/* The inside of a character class. */
static void put_set(const struct char_set *set, struct buf *out) {
    static const struct {
        unsigned bit;
        const char *name;
    } names[] = {{CLASS_LETTER, "\\p{L}"}, {CLASS_NUMBER, "\\p{N}"}, {CLASS_PUNCT, "\\p{P}"}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        buf_puts(out, set->classes & names[i].bit ? names[i].name : "");
    }
    for (size_t i = 0; i < set->n; i++) {
        buf_printf(out, "\\x{%x}-\\x{%x}", (unsigned)set->ranges[i].first, (unsigned)set->ranges[i].last);
    }
}

static int step_regex(const struct kind_step *step, struct buf *out, struct error *err) {
    const char *regex = step->tag == PATTERN ? pattern_regex(&step->pattern) : step->regex;
    if (step->tag == RUN) {
        buf_puts(out, step->space_before ? "\\s?[" : "[");
        put_set(step->set, out);
        buf_puts(out, step->single ? "]" : "]+");
        return 0;
    }
    if (step->tag == TRAILING_SPACE) {
        regex = "\\s+$";
    }
    if (!regex) {
        return error_set(err, ERROR_UNSUPPORTED, "the words of this kind of pre-tokenizer have no regex");
    }
    buf_puts(out, regex);
    return 0;
}

int pre_kind_json(const char *kind, struct pre_kind_info *info, struct buf *out, struct error *err) {
    struct buf regex = BUF_INIT;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (!has_name(kinds[i].names, kind)) {
            continue;
        }
        size_t n = sizeof kinds[i].steps / sizeof kinds[i].steps[0];
        int rc = 0;
        for (size_t j = 0; rc == 0 && j < n && kinds[i].steps[j].tag != END; j++) {
            buf_reset(&regex);
            rc = step_regex(&kinds[i].steps[j], &regex, err);
            buf_puts(out, "{\"type\":\"Split\",\"pattern\":{\"Regex\":");
            buf_json_string(out, regex.data ? regex.data : "", regex.len);
            buf_puts(out, "},\"behavior\":\"Isolated\",\"invert\":false},");
        }
        rc = rc == 0 && regex.failed ? error_memory(err) : rc;
        buf_free(&regex);
        *info = kinds[i].info;
        return rc;
    }
    return error_set(err, ERROR_MODEL, "the pre-tokenizer kind '%.100s' is not supported", kind);
}
