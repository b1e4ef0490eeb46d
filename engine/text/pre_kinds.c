/*
 * The pre-tokenizer kinds that GGUF files name (tokenizer.ggml.pre), as steps. The names and what they stand for are
 * llama.cpp's; where its regexes only approximate the model's own (its engine knows no \p{Lu}), the model's own is
 * taken.
 */
#include "text/pre_tokenizer.h"

#include "text/unicode_class.h"

#include <string.h>

enum step_tag { END, GPT2, LLAMA3, CASED, REGEX, SPLIT_DIGITS };

struct kind_step {
    enum step_tag tag;
    struct pattern pattern;
    const char *regex;
};

#define ONE_DIGIT                                                                                                      \
    { SPLIT_DIGITS }
#define GPT2_WORDS                                                                                                     \
    {                                                                                                                  \
        GPT2, {                                                                                                        \
            PATTERN_GPT2                                                                                               \
        }                                                                                                              \
    }
#define LLAMA3_WORDS(n)                                                                                                \
    {                                                                                                                  \
        LLAMA3, {                                                                                                      \
            PATTERN_LLAMA3, .contractions = true, .digits = (n)                                                        \
        }                                                                                                              \
    }
#define QWEN_MARKS                                                                                                     \
    {                                                                                                                  \
        LLAMA3, {                                                                                                      \
            PATTERN_LLAMA3, .contractions = true, .marks = true, .digits = 1                                           \
        }                                                                                                              \
    }
#define TEKKEN_WORDS                                                                                                   \
    {                                                                                                                  \
        CASED, {                                                                                                       \
            PATTERN_CASED, .slash = true, .digits = 1                                                                  \
        }                                                                                                              \
    }
#define O200K_WORDS                                                                                                    \
    {                                                                                                                  \
        CASED, {                                                                                                       \
            PATTERN_CASED, .contractions = true, .slash = true, .digits = 3                                            \
        }                                                                                                              \
    }
#define RE(r)                                                                                                          \
    { REGEX, .regex = (r) }

/* Cased letters of the scripts that have case, as DeepSeek's file lists them. */
#define DEEPSEEK_LETTERS                                                                                               \
    "A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}\\x{1c4}-\\x{293}"                    \
    "\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}-\\x{377}\\x{37b}-\\x{37d}\\x{37f}\\x{386}"                             \
    "\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}"                    \
    "\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}\\x{13a0}-\\x{13f5}\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}"                    \
    "\\x{1cbd}-\\x{1cbf}\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}"                  \
    "\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{1f59}\\x{1f5b}"                   \
    "\\x{1f5d}\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}\\x{1fc2}-\\x{1fc4}"                   \
    "\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{1ff4}"                  \
    "\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}\\x{2124}"                    \
    "\\x{2126}\\x{2128}\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{213f}"                             \
    "\\x{2145}-\\x{2149}\\x{214e}\\x{2183}-\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}"                            \
    "\\x{2ceb}-\\x{2cee}\\x{2cf2}-\\x{2cf3}\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}"                  \
    "\\x{a771}-\\x{a787}\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}"                  \
    "\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}\\x{104b0}-\\x{104d3}"                                 \
    "\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}\\x{118a0}-\\x{118df}"                             \
    "\\x{1e900}-\\x{1e943}"
/* U+0800..U+4E00 holds spaces too; those are no part of the range, since white space is seen as such first. */
#define DEEPSEEK_CJK "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}&&[^\\s]]+"
#define DEEPSEEK3_STEPS(numbers)                                                                                       \
    {                                                                                                                  \
        RE(numbers), RE("[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+"),                               \
            RE("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "   \
               "?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")                                             \
    }

// clang-format off
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
    {"starcoder refact command-r smollm codeshell exaone minerva-7b mellum2", {0}, {ONE_DIGIT, GPT2_WORDS}},
    {"default", {0}, {RE("[\\p{P}\\$\\+<=>\\^~\\|]+"), GPT2_WORDS, RE("\\p{N}+"), RE("[0-9][0-9][0-9]")}},
    {"falcon", {0}, {RE("[\\p{P}\\$\\+<=>\\^~\\|`]+"), GPT2_WORDS, RE("[0-9][0-9][0-9]")}},
    {"tekken", {.ignore_merges = true, .add_bos = true}, {TEKKEN_WORDS}},
    {"gpt-4o llama4 kanana2 minimax-m2", {0}, {O200K_WORDS}},
    {"deepseek-llm", {0},
     {RE("[\\r\\n]"), RE("\\s?[" DEEPSEEK_LETTERS "]+"),
      RE("\\s?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3001}-\\x{3002}]+"), RE("\\s+\\z"),
      RE(DEEPSEEK_CJK), RE("\\p{N}+")}},
    {"deepseek-coder", {0},
     {RE("[\\r\\n]"), RE("\\s?\\p{L}+"), RE("\\s?\\p{P}+"), RE(DEEPSEEK_CJK), ONE_DIGIT}},
    {"deepseek-v3 hunyuan-dense joyai-llm", {0}, DEEPSEEK3_STEPS("\\p{N}{1,3}")},
    {"bailingmoe bailingmoe2 llada-moe", {0},
     {RE("'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+")}},
    {"seed-coder", {0},
     {RE("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")}},
    {"poro-chat bloom gpt3-finnish", {0}, {RE(" ?[^(\\s|.,!?\\x{2026}\\x{3002}\\x{ff0c}\\x{3001}\\x{964}\\x{6d4}\\x{60c})]+")}},
    {"viking", {0}, {RE(" ?[^(\\s|.,!?\\x{2026}\\x{3002}\\x{ff0c}\\x{3001}\\x{964}\\x{6d4}\\x{60c})]+"), ONE_DIGIT}},
};
// clang-format on

/* Kinds whose texts llama.cpp's detokenizer does not clean of spaces before punctuation. */
static const char not_cleaned[] =
    "deepseek-llm deepseek-coder deepseek-v3 command-r qwen2 deepseek-r1-qwen kormo qwen35 poro-chat viking tekken "
    "smollm "
    "gpt-4o llama4 kanana2 trillion granite-docling bailingmoe bailingmoe2 llada-moe seed-coder hunyuan hunyuan-dense "
    "joyai-llm grok-2 minimax-m2 solar-open";

static bool has_name(const char *names, const char *name) {
    size_t len = strlen(name);
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
    if (step->tag != SPLIT_DIGITS) {
        return pre_add_pattern(out, step->pattern, err);
    }
    struct pre_step *digit = pre_add(out, PRE_CLASS, err);
    if (!digit) {
        return -1;
    }
    digit->classes = CLASS_NUMBER;
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
