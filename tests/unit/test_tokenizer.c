#include "shared_data.h"
#include "text/text_impl.h"
#include "text_cases.h"

#include <math.h>

static struct error err;

/* ---- small tokenizers of every component, against the library they are written for ---- */

static struct text *text_of(struct tokenizer *t) {
    struct text *text = calloc(1, sizeof *text);
    text->tokenizer = t;
    text->bos_id = -1;
    return text;
}

static const char byte_level_decoder[] =
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true}";

/* A whole tokenizer.json from an entry of the case file. */
static struct text *build(const cJSON *models, const cJSON *entry) {
    cJSON *whole = cJSON_CreateObject(), *item;
    cJSON *model = cJSON_Duplicate(cJSON_GetObjectItem(models, cJSON_GetObjectItem(entry, "model")->valuestring), true);
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(entry, "changes")) {
        cJSON_DeleteItemFromObject(model, item->string);
        cJSON_AddItemToObject(model, item->string, cJSON_Duplicate(item, true));
    }
    cJSON_AddItemToObject(whole, "model", model);
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(entry, "parts")) {
        cJSON_AddItemToObject(whole, item->string, cJSON_Duplicate(item, true));
    }
    if (!cJSON_GetObjectItem(whole, "decoder")) {
        cJSON_AddItemToObject(whole, "decoder", cJSON_Parse(byte_level_decoder));
    }
    char *json = cJSON_PrintUnformatted(whole);
    struct tokenizer *t = NULL;
    const char *name = cJSON_GetObjectItem(entry, "name")->valuestring;
    cr_assert_eq(tokenizer_from_json(json, strlen(json), &t, &err), 0, "%s: %s", name, err.message);
    free(json);
    cJSON_Delete(whole);
    return text_of(t);
}

/* What text_bytes_per_token promises. */
static bool enough_tokens(const struct text *t, size_t len, const struct tokens *got) {
    size_t most = text_bytes_per_token(t);
    return most == 0 || got->n >= len / most;
}

static void check_ids(const struct text *t, const char *name, const cJSON *c, const char *key, unsigned flags) {
    const char *text = cJSON_GetObjectItem(c, "text")->valuestring;
    struct tokens want = {0}, got = {0};
    const cJSON *ids = cJSON_GetObjectItem(c, key);
    ids_of(ids ? ids : cJSON_GetObjectItem(c, "ids"), &want);
    cr_assert_eq(text_encode(t, text, strlen(text), flags, &got, &err), 0, "%s: %s", name, err.message);
    cr_expect(same_ids(&got, &want), "%s: %s of '%s'", name, key, text);
    cr_expect(enough_tokens(t, strlen(text), &got), "%s: %zu tokens of '%s'", name, got.n, text);
    tokens_free(&want);
    tokens_free(&got);
}

static void check_decoded(const struct text *t, const char *name, const cJSON *c, bool skip_special) {
    struct tokens ids = {0};
    struct buf whole = BUF_INIT, streamed = BUF_INIT;
    ids_of(cJSON_GetObjectItem(c, "ids"), &ids);
    const cJSON *want = skip_special ? cJSON_GetObjectItem(c, "decoded_skip_special") : NULL;
    want = want ? want : cJSON_GetObjectItem(c, "decoded");
    cr_assert_eq(text_decode(t, ids.ids, ids.n, skip_special, &whole, &err), 0);
    cr_expect_str_eq(whole.data ? whole.data : "", want->valuestring, "%s: decoding '%s'", name,
                     cJSON_GetObjectItem(c, "text")->valuestring);
    stream(t, &ids, skip_special, &streamed);
    cr_expect(same_bytes(&whole, &streamed), "%s: streaming '%s'", name, want->valuestring);
    tokens_free(&ids);
    buf_free(&whole);
    buf_free(&streamed);
}

Test(tokenizer, components_are_as_in_the_reference) {
    size_t len, n = 0;
    const char *path = getenv("INFERD_TOKENIZER_CASES"); /* set by meson */
    char *json = read_whole(path ? path : "tests/unit/data/tokenizer_cases.json", &len);
    cJSON *file = cJSON_ParseWithLength(json, len), *entry, *c;
    cr_assert_not_null(file);
    cJSON_ArrayForEach(entry, cJSON_GetObjectItem(file, "tokenizers")) {
        const char *name = cJSON_GetObjectItem(entry, "name")->valuestring;
        struct text *t = build(cJSON_GetObjectItem(file, "models"), entry);
        cJSON_ArrayForEach(c, cJSON_GetObjectItem(entry, "cases")) {
            check_ids(t, name, c, "ids", TEXT_PARSE_SPECIAL);
            check_ids(t, name, c, "ids_special", TEXT_PARSE_SPECIAL | TEXT_ADD_SPECIAL_ALWAYS);
            check_decoded(t, name, c, false);
            check_decoded(t, name, c, true);
            n++;
        }
        text_free(t);
    }
    printf("%zu cases of %d small tokenizers\n", n, cJSON_GetArraySize(cJSON_GetObjectItem(file, "tokenizers")));
    cr_assert_gt(n, 5000);
    cJSON_Delete(file);
    free(json);
}

/* ---- the tokenizers of real models, where their files are at hand ---- */

struct counts {
    size_t cases, encoded, special, decoded, streamed;
};

static bool encodes_to(const struct text *t, const struct buf *text, unsigned flags, const cJSON *ids) {
    struct tokens want = {0}, got = {0};
    ids_of(ids, &want);
    cr_assert_eq(text_encode(t, text->data ? text->data : "", text->len, flags, &got, &err), 0, "%s", err.message);
    bool same = same_ids(&want, &got);
    cr_expect(enough_tokens(t, text->len, &got), "%zu tokens of '%s'", got.n, text->data);
    tokens_free(&want);
    tokens_free(&got);
    return same;
}

typedef int decode_fn(const struct text *t, const int32_t *ids, size_t n, bool skip_special, struct buf *out,
                      struct error *err);

static bool decodes_to(const struct text *t, const cJSON *ids, bool skip_special, decode_fn *decode,
                       const struct buf *want) {
    struct tokens in = {0};
    struct buf got = BUF_INIT;
    ids_of(ids, &in);
    cr_assert_eq(decode(t, in.ids, in.n, skip_special, &got, &err), 0);
    bool same = same_bytes(&got, want);
    tokens_free(&in);
    buf_free(&got);
    return same;
}

static bool streams_as_whole(const struct text *t, const cJSON *ids) {
    struct tokens in = {0};
    struct buf whole = BUF_INIT, streamed = BUF_INIT;
    ids_of(ids, &in);
    cr_assert_eq(text_decode(t, in.ids, in.n, false, &whole, &err), 0);
    stream(t, &in, false, &streamed);
    bool same = same_bytes(&whole, &streamed);
    tokens_free(&in);
    buf_free(&whole);
    buf_free(&streamed);
    return same;
}

static void check_line(const struct text *t, const char *line, struct counts *failed, struct counts *done) {
    cJSON *row = cJSON_Parse(line);
    struct buf text = BUF_INIT, want = BUF_INIT;
    const cJSON *ids = cJSON_GetObjectItem(row, "ids"), *special = cJSON_GetObjectItem(row, "ids_special");
    done->cases++;
    if (string_member(line, "text", &text) || string_member(line, "rendered", &text)) {
        failed->encoded += !encodes_to(t, &text, TEXT_PARSE_SPECIAL, ids);
        done->encoded++;
    }
    if (special) {
        failed->special += !encodes_to(t, &text, TEXT_PARSE_SPECIAL | TEXT_ADD_SPECIAL_ALWAYS, special);
        done->special++;
    }
    if (string_member(line, "decoded", &want)) {
        failed->decoded += !decodes_to(t, ids, false, text_decode, &want);
        done->decoded++;
    }
    if (string_member(line, "decoded_skip_special", &want)) {
        failed->decoded += !decodes_to(t, ids, true, text_decode, &want);
    }
    /* A broken run of byte tokens is the one place where a stream differs (text.h). */
    if (ids && !(t->tokenizer->byte_runs && strstr(line, "\xef\xbf\xbd"))) {
        failed->streamed += !streams_as_whole(t, ids);
        done->streamed++;
    }
    buf_free(&text);
    buf_free(&want);
    cJSON_Delete(row);
}

static void check_tokenizer_json(const char *name, size_t cases) {
    static const char *const files[] = {"encode", "decode", "chat"};
    struct counts failed = {0}, done = {0};
    char path[256];
    struct text *t;
    snprintf(path, sizeof path, "tokenizers/%s", name);
    cr_assert_eq(text_open(shared_data(path), &t, &err), 0, "%s", err.message);
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "tokenizers/%s/%s.jsonl", name, files[i]);
        FILE *f = fopen(shared_data(path), "r");
        char *line = NULL;
        for (size_t cap = 0; getline(&line, &cap, f) > 0;) {
            check_line(t, line, &failed, &done);
        }
        free(line);
        fclose(f);
    }
    text_free(t);
    printf("%s: %zu cases: %zu encoded, %zu with special tokens, %zu decoded, %zu streamed\n", name, done.cases,
           done.encoded, done.special, done.decoded, done.streamed);
    cr_expect_geq(done.cases, cases);
    cr_expect_eq(failed.encoded, 0, "%s: %zu encoded otherwise", name, failed.encoded);
    cr_expect_eq(failed.special, 0, "%s: %zu encoded otherwise with special tokens", name, failed.special);
    cr_expect_eq(failed.decoded, 0, "%s: %zu decoded otherwise", name, failed.decoded);
    cr_expect_eq(failed.streamed, 0, "%s: %zu streamed otherwise", name, failed.streamed);
}

Test(tokenizer, llama_2) {
    check_tokenizer_json("llama-2", 870);
}
Test(tokenizer, phi_3) {
    check_tokenizer_json("phi-3-mini", 840);
}
Test(tokenizer, llama_3_1) {
    check_tokenizer_json("llama-3.1", 880);
}
Test(tokenizer, qwen3) {
    check_tokenizer_json("qwen3", 880);
}

/* SentencePiece itself never recognises control tokens in a text. */
Test(tokenizer, llama_2_as_sentencepiece) {
    struct text *t;
    size_t n = 0, failed = 0;
    cr_assert_eq(text_open(shared_data("tokenizers/llama-2"), &t, &err), 0);
    FILE *f = fopen(shared_data("tokenizers/llama-2/sentencepiece.jsonl"), "r");
    struct buf text = BUF_INIT;
    char *line = NULL;
    for (size_t cap = 0; getline(&line, &cap, f) > 0; n++) {
        cJSON *row = cJSON_Parse(line);
        string_member(line, "text", &text);
        failed += !encodes_to(t, &text, 0, cJSON_GetObjectItem(row, "ids"));
        cJSON_Delete(row);
    }
    printf("llama-2 as SentencePiece: %zu cases encoded\n", n);
    cr_expect_gt(n, 600);
    cr_expect_eq(failed, 0, "%zu of %zu", failed, n);
    free(line);
    fclose(f);
    buf_free(&text);
    text_free(t);
}

/* llama.cpp's own ids, without and with special tokens, and its texts. */
static void check_gguf(const char *file, const char *cases) {
    struct counts failed = {0};
    size_t n = 0;
    char path[256];
    struct text *t;
    snprintf(path, sizeof path, "gguf/%s", file);
    cr_assert_eq(text_open(shared_data(path), &t, &err), 0, "%s", err.message);
    snprintf(path, sizeof path, "gguf/%s.jsonl", cases);
    FILE *f = fopen(shared_data(path), "r");
    struct buf text = BUF_INIT;
    char *line = NULL;
    for (size_t cap = 0; getline(&line, &cap, f) > 0; n++) {
        cJSON *row = cJSON_Parse(line);
        const cJSON *special = cJSON_GetObjectItem(row, "ids_parse_special");
        string_member(line, "text", &text);
        failed.encoded += !encodes_to(t, &text, 0, cJSON_GetObjectItem(row, "ids"));
        failed.special += !encodes_to(t, &text, TEXT_PARSE_SPECIAL, special);
        string_member(line, "decoded", &text);
        failed.decoded += !decodes_to(t, special, false, text_decode_cleaned, &text);
        failed.streamed += !streams_as_whole(t, special);
        cJSON_Delete(row);
    }
    printf("%s: %zu cases encoded without and with special tokens, decoded, streamed\n", file, n);
    cr_expect_geq(n, 664);
    cr_expect_eq(failed.encoded, 0, "%s: %zu encoded otherwise", file, failed.encoded);
    cr_expect_eq(failed.special, 0, "%s: %zu encoded otherwise with special tokens", file, failed.special);
    cr_expect_eq(failed.decoded, 0, "%s: %zu decoded otherwise", file, failed.decoded);
    cr_expect_eq(failed.streamed, 0, "%s: %zu streamed otherwise", file, failed.streamed);
    free(line);
    fclose(f);
    buf_free(&text);
    text_free(t);
}

/* llama.cpp's vectors: inputs between separator lines, a line of ids for each. */
static void check_vectors(const char *file, const char *vectors) {
    static const char separator[] = "\n__ggml_vocab_test__\n";
    char path[256];
    struct text *t;
    size_t len, n = 0;
    snprintf(path, sizeof path, "gguf/%s", file);
    cr_assert_eq(text_open(shared_data(path), &t, &err), 0, "%s", err.message);
    snprintf(path, sizeof path, "gguf/%s.inp", vectors);
    char *inputs = read_whole(shared_data(path), &len), *input = inputs, *line = NULL;
    snprintf(path, sizeof path, "gguf/%s.out", vectors);
    FILE *f = fopen(shared_data(path), "r");
    for (size_t cap = 0; getline(&line, &cap, f) > 0; n++) {
        char *end = strstr(input, separator);
        cr_assert_not_null(end);
        struct tokens want = {0}, got = {0};
        for (char *s = strtok(line, " \n"); s; s = strtok(NULL, " \n")) {
            cr_assert_eq(tokens_push(&want, atoi(s), &err), 0);
        }
        cr_assert_eq(text_encode(t, input, (size_t)(end - input), 0, &got, &err), 0);
        cr_expect(same_ids(&want, &got), "%s: input %zu", vectors, n);
        input = end + strlen(separator);
        tokens_free(&want);
        tokens_free(&got);
    }
    cr_expect_eq(n, 46);
    free(line);
    free(inputs);
    fclose(f);
    text_free(t);
}

Test(tokenizer, ggufs_as_llama_cpp) {
    static const char *const names[] = {"llama-spm", "phi-3", "gpt-2", "starcoder", "deepseek-llm"};
    char file[128];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(file, sizeof file, "ggml-vocab-%s.gguf", names[i]);
        check_gguf(file, names[i]);
        check_vectors(file, file);
    }
    check_gguf("llama-3.1.gguf", "llama-3.1");
    check_gguf("qwen3.gguf", "qwen3");
    check_vectors("llama-3.1.gguf", "ggml-vocab-llama-bpe.gguf");
    check_vectors("qwen3.gguf", "ggml-vocab-qwen2.gguf");
}

/* ---- small vocabularies as a GGUF has them ---- */

#define MAX_TOKENS 512
struct small {
    struct span tokens[MAX_TOKENS], merges[64];
    uint8_t types[MAX_TOKENS];
    float scores[MAX_TOKENS];
    char texts[MAX_TOKENS][8];
    struct vocab_source source;
};

static int32_t add(struct small *s, const char *text, unsigned type, float score) {
    size_t id = s->source.n_tokens++;
    s->tokens[id] = (struct span){text, strlen(text)};
    s->types[id] = (uint8_t)type;
    s->scores[id] = score;
    return (int32_t)id;
}

static void start(struct small *s, const char *model, const char *pre) {
    *s = (struct small){0};
    s->source = (struct vocab_source){.model = model,
                                      .pre = pre,
                                      .tokens = s->tokens,
                                      .merges = s->merges,
                                      .types = s->types,
                                      .scores = s->scores,
                                      .bos_id = -1,
                                      .eos_id = -1,
                                      .unknown_id = -1,
                                      .add_bos = -1,
                                      .add_eos = -1,
                                      .add_space_prefix = -1};
}

/* <unk> <s> </s>, the byte tokens, and pieces for "hello"; as SentencePiece orders them. */
static void sentencepiece(struct small *s) {
    start(s, "llama", NULL);
    s->source.unknown_id = add(s, "<unk>", VOCAB_UNKNOWN, 0);
    s->source.bos_id = add(s, "<s>", VOCAB_CONTROL, 0);
    s->source.eos_id = add(s, "</s>", VOCAB_CONTROL, 0);
    for (size_t byte = 0; byte < 256; byte++) {
        snprintf(s->texts[byte], sizeof s->texts[byte], "<0x%02X>", (unsigned)byte);
        add(s, s->texts[byte], VOCAB_BYTE, 0);
    }
}

static struct text *open_small(const struct small *s) {
    struct tokenizer *t = NULL;
    cr_assert_eq(tokenizer_from_vocab(&s->source, &t, &err), 0, "%s", err.message);
    struct text *text = text_of(t);
    text->bos_id = s->source.bos_id;
    return text;
}

/* Encode and compare with a list of ids that ends with -1. */
static void expect_ids(const struct text *t, const char *text, size_t len, unsigned flags, const int32_t *want) {
    struct tokens got = {0};
    size_t n = 0;
    while (want[n] >= 0) {
        n++;
    }
    cr_assert_eq(text_encode(t, text, len, flags, &got, &err), 0, "%s", err.message);
    bool same = got.n == n && (n == 0 || memcmp(got.ids, want, n * sizeof *want) == 0);
    cr_expect(same, "'%s' (flags %u) gave %zu ids, the first %d", text, flags, got.n, got.n ? got.ids[0] : -1);
    tokens_free(&got);
}
#define EXPECT_IDS(t, text, flags, ...) expect_ids(t, text, sizeof(text) - 1, flags, (const int32_t[]){__VA_ARGS__, -1})

Test(tokenizer, scores_decide_the_merges) {
    struct small s;
    sentencepiece(&s);
    int32_t space = add(&s, "\xe2\x96\x81", VOCAB_NORMAL, -10), h = add(&s, "h", VOCAB_NORMAL, -11),
            e = add(&s, "e", VOCAB_NORMAL, -11);
    int32_t l = add(&s, "l", VOCAB_NORMAL, -11), o = add(&s, "o", VOCAB_NORMAL, -11);
    int32_t he = add(&s, "he", VOCAB_NORMAL, -1), el = add(&s, "el", VOCAB_NORMAL, -2),
            lo = add(&s, "lo", VOCAB_NORMAL, -3);
    int32_t ll = add(&s, "ll", VOCAB_NORMAL, -3), hell = add(&s, "hell", VOCAB_NORMAL, -4);
    int32_t tag = add(&s, "<tag>", VOCAB_USER_DEFINED, 0);
    struct text *t = open_small(&s);
    EXPECT_IDS(t, "hello", 0, space, hell, o); /* he, then ll (left of lo, as good), then hell */
    EXPECT_IDS(t, "elo", 0, space, el, o);
    EXPECT_IDS(t, "helo", 0, space, he, lo);
    EXPECT_IDS(t, "lll", 0, space, ll, l);
    EXPECT_IDS(t, "h h", 0, space, h, space, h);
    EXPECT_IDS(t, "e\xc3\xa9", 0, space, e, 3 + 0xc3, 3 + 0xa9);
    EXPECT_IDS(t, "<s>", 0, space, 3 + '<', 3 + 's', 3 + '>');
    EXPECT_IDS(t, "<s>h</s>", TEXT_PARSE_SPECIAL, 1, space, h, 2);
    EXPECT_IDS(t, "h<tag>h", 0, space, h, tag, space, h);
    EXPECT_IDS(t, "h", TEXT_ADD_SPECIAL, 1, space, h);
    EXPECT_IDS(t, "<s>h", TEXT_ADD_SPECIAL | TEXT_PARSE_SPECIAL, 1, space, h); /* one BOS, whoever puts it */
    EXPECT_IDS(t, "<s>h", TEXT_ADD_SPECIAL_ALWAYS | TEXT_PARSE_SPECIAL, 1, 1, space, h);
    EXPECT_IDS(t, "<s>", TEXT_ADD_SPECIAL, 1, space, 3 + '<', 3 + 's', 3 + '>'); /* not the token: plain text */
    EXPECT_IDS(t, "", TEXT_ADD_SPECIAL, 1);
    text_free(t);
    s.source.add_space_prefix = 0;
    s.source.add_bos = 0;
    s.source.add_eos = 1;
    t = open_small(&s);
    EXPECT_IDS(t, "hello", TEXT_ADD_SPECIAL, hell, o, 2);
    text_free(t);
}

/* Of overlapping added tokens a GGUF's longest wins, wherever it begins. */
Test(tokenizer, longest_added_token_wins) {
    struct small s;
    sentencepiece(&s);
    s.source.add_space_prefix = 0;
    int32_t a = add(&s, "a", VOCAB_NORMAL, -1), ab = add(&s, "<ab", VOCAB_USER_DEFINED, 0),
            bcd = add(&s, "bcde", VOCAB_USER_DEFINED, 0);
    int32_t xx = add(&s, "xx", VOCAB_USER_DEFINED, 0), xxxx = add(&s, "xxxx", VOCAB_USER_DEFINED, 0);
    struct text *t = open_small(&s);
    EXPECT_IDS(t, "<abcde", 0, 3 + '<', a, bcd);
    EXPECT_IDS(t, "<ab<abcdea", 0, ab, 3 + '<', a, bcd, a);
    EXPECT_IDS(t, "xxxxxxx", 0, xxxx, xx, 3 + 'x');
    text_free(t);
}

/* The bytes as one-byte tokens and a few merges. */
static void bytes(struct small *s, const char *pre) {
    start(s, "gpt2", pre);
    for (size_t byte = 0; byte < 256; byte++) {
        size_t n = utf8_encode(byte_level_char((unsigned char)byte), s->texts[byte]);
        s->texts[byte][n] = '\0';
        add(s, s->texts[byte], VOCAB_NORMAL, 0);
    }
    static const char *const merges[] = {"a b", "ab c", "\xc4\xa0 a", "1 2", "12 3", "b c"};
    for (size_t i = 0; i < sizeof merges / sizeof merges[0]; i++) {
        s->merges[s->source.n_merges++] = (struct span){merges[i], strlen(merges[i])};
    }
    add(s, "ab", VOCAB_NORMAL, 0);  /* 256 */
    add(s, "abc", VOCAB_NORMAL, 0); /* 257 */
    add(s,
        "\xc4\xa0"
        "a",
        VOCAB_NORMAL, 0);                     /* 258 */
    add(s, "12", VOCAB_NORMAL, 0);            /* 259 */
    add(s, "123", VOCAB_NORMAL, 0);           /* 260 */
    add(s, "bc", VOCAB_NORMAL, 0);            /* 261 */
    add(s, "abcd", VOCAB_NORMAL, 0);          /* 262, in no merge */
    add(s, "<|end|>", VOCAB_CONTROL, 0);      /* 263 */
    add(s, "<think>", VOCAB_USER_DEFINED, 0); /* 264 */
}

Test(tokenizer, kinds_of_byte_level_vocabularies) {
    struct small s;
    bytes(&s, "gpt-2");
    struct text *t = open_small(&s);
    EXPECT_IDS(t, "abcd", 0, 257, 'd');
    EXPECT_IDS(t, "xabc 123", 0, 'x', 257, ' ', 260);
    EXPECT_IDS(t, " a a", 0, 258, 258);
    EXPECT_IDS(t, "a<|end|><think>", 0, 'a', '<', '|', 'e', 'n', 'd', '|', '>', 264);
    EXPECT_IDS(t, "a<|end|>", TEXT_PARSE_SPECIAL, 'a', 263);
    text_free(t);
    bytes(&s, "llama-bpe"); /* a word that is a token is that token; BOS is put first */
    s.source.bos_id = 263;
    t = open_small(&s);
    EXPECT_IDS(t, "abcd", TEXT_ADD_SPECIAL, 263, 262);
    EXPECT_IDS(t, "1231", 0, 260, '1');
    text_free(t);
    bytes(&s, "qwen2");
    t = open_small(&s);
    EXPECT_IDS(t, "123", 0, '1', '2', '3');
    text_free(t);
    bytes(&s, "starcoder");
    t = open_small(&s);
    EXPECT_IDS(t, "a 123", 0, 'a', ' ', '1', '2', '3');
    text_free(t);
}

static void expect_refused(const struct small *s, const char *what) {
    struct tokenizer *t = NULL;
    cr_expect_eq(tokenizer_from_vocab(&s->source, &t, &err), -1, "%s was accepted", what);
    cr_expect_eq(err.code, ERROR_MODEL);
    cr_expect(strstr(err.message, what), "%s: %s", what, err.message);
    cr_expect_null(t);
}

Test(tokenizer, vocabularies_that_are_refused) {
    struct small s;
    bytes(&s, "no-such-kind");
    expect_refused(&s, "no-such-kind");
    bytes(&s, "gpt-2");
    s.source.model = "wordpiece";
    expect_refused(&s, "wordpiece");
    bytes(&s, "gpt-2");
    s.source.n_merges = 0;
    expect_refused(&s, "merges");
    bytes(&s, "gpt-2");
    s.source.add_bos = 1;
    expect_refused(&s, "BOS");
    bytes(&s, "gpt-2");
    s.source.add_eos = 1;
    expect_refused(&s, "EOS");
    bytes(&s, "gpt-2");
    s.source.n_tokens = 0;
    expect_refused(&s, "empty");
    sentencepiece(&s);
    s.tokens[7].data = "<0xZZ>";
    expect_refused(&s, "token 7");
    sentencepiece(&s);
    s.scores[9] = NAN;
    expect_refused(&s, "token 9");
    sentencepiece(&s);
    char longest[VOCAB_MAX_TOKEN_BYTES + 2];
    memset(longest, 'x', sizeof longest);
    s.tokens[add(&s, "x", VOCAB_NORMAL, 0)] = (struct span){longest, VOCAB_MAX_TOKEN_BYTES + 1};
    expect_refused(&s, "longer");
}

/* Every kind of the table builds: its regexes are well-formed. */
Test(tokenizer, every_kind_builds) {
    static const char *const kinds[] = {
        "llama-bpe",  "llama3",     "llama-v3", "falcon3", "dbrx",         "smaug-bpe",      "glm4",
        "qwen2",      "qwen35",     "minicpm5", "gpt-2",   "smollm",       "starcoder",      "command-r",
        "default",    "falcon",     "tekken",   "gpt-4o",  "deepseek-llm", "deepseek-coder", "deepseek-v3",
        "bailingmoe", "seed-coder", "bloom",    "viking",
    };
    struct small s;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        bytes(&s, kinds[i]);
        s.source.bos_id = 263;
        struct text *t = open_small(&s);
        static const char text[] = "Don't  stop 1234 at \xc3\x89t\xc3\xa9s, \xe4\xb8\xad\xe6\x96\x87!\r\n\n\tx";
        struct tokens ids = {0};
        struct buf back = BUF_INIT;
        cr_assert_eq(text_encode(t, text, sizeof text - 1, 0, &ids, &err), 0);
        cr_assert_eq(text_decode(t, ids.ids, ids.n, false, &back, &err), 0);
        cr_expect_str_eq(back.data, text, "%s", kinds[i]); /* however it is cut, nothing is lost */
        tokens_free(&ids);
        buf_free(&back);
        text_free(t);
    }
}

/* ---- trust marks ---- */

static void expect_marked(const struct text *t, const char *bytes, const char *marks, const int32_t *want) {
    struct marked_text m = {0};
    struct tokens got = {0};
    size_t n = 0;
    buf_puts(&m.bytes, bytes);
    for (size_t i = 0; i < strlen(bytes); i++) {
        buf_putc(&m.trusted, marks[i] == '1');
    }
    while (want[n] >= 0) {
        n++;
    }
    cr_assert_eq(text_encode_marked(t, &m, 0, &got, &err), 0);
    cr_expect(got.n == n && memcmp(got.ids, want, n * sizeof *want) == 0, "%s %s", bytes, marks);
    marked_text_free(&m);
    tokens_free(&got);
}
#define EXPECT_MARKED(t, bytes, marks, ...) expect_marked(t, bytes, marks, (const int32_t[]){__VA_ARGS__, -1})

Test(tokenizer, special_tokens_need_trust) {
    struct small s;
    bytes(&s, "gpt-2");
    struct text *t = open_small(&s);
    EXPECT_MARKED(t, "a<|end|>b", "011111110", 'a', 263, 'b');
    EXPECT_MARKED(t, "a<|end|>b", "000000000", 'a', '<', '|', 'e', 'n', 'd', '|', '>', 'b');
    EXPECT_MARKED(t, "a<|end|>b", "111110111", 'a', '<', '|', 'e', 'n', 'd', '|', '>', 'b');
    EXPECT_MARKED(t, "<think>", "0000000", 264);         /* an ordinary added token: anywhere */
    EXPECT_MARKED(t, "abc 12", "101010", 257, ' ', 259); /* words and merges do not see the marks */
    text_free(t);
}

/* ---- texts ---- */

Test(tokenizer, broken_utf8_is_the_replacement_character) {
    struct small s;
    bytes(&s, "gpt-2");
    struct text *t = open_small(&s);
    EXPECT_IDS(t, "a\xff", 0, 'a', 0xef, 0xbf, 0xbd);
    EXPECT_IDS(t, "\xe4\xbd", 0, 0xef, 0xbf, 0xbd); /* one for a maximal ill-formed part */
    EXPECT_IDS(t, "\xed\xa0\x80", 0, 0xef, 0xbf, 0xbd, 0xef, 0xbf, 0xbd, 0xef, 0xbf, 0xbd);
    EXPECT_IDS(t, "a\0b", 0, 'a', 0, 'b');
    text_free(t);
}

static struct encode_cost cost_of_run(const struct text *t, const char *unit, size_t n) {
    size_t len = strlen(unit);
    char *text = malloc(n * len);
    struct tokens ids = {0};
    struct encode_cost cost;
    for (size_t i = 0; i < n; i++) {
        memcpy(text + i * len, unit, len);
    }
    cr_assert_eq(tokenizer_encode_counting(t->tokenizer, text, n * len, 0, &ids, &cost, &err), 0, "%s", err.message);
    cr_expect_gt(ids.n, 0);
    tokens_free(&ids);
    free(text);
    return cost;
}

/* Counted, not timed: a quadratic merge would take hours for a million equal characters. */
static void expect_linear(const struct text *t, const char *unit) {
    size_t n = 30000 / strlen(unit), bytes = n * strlen(unit);
    struct encode_cost once = cost_of_run(t, unit, n), twice = cost_of_run(t, unit, 2 * n);
    cr_expect_leq(once.steps, 12 * bytes, "'%s': %zu steps for %zu bytes", unit, once.steps, bytes);
    cr_expect_leq(twice.steps, once.steps * 2 + once.steps / 10 + 100, "'%s': %zu steps, %zu for twice the length",
                  unit, once.steps, twice.steps);
    cr_expect_leq(twice.bytes, 150 * 2 * bytes, "'%s': %zu bytes of memory for %zu", unit, twice.bytes, 2 * bytes);
}

Test(tokenizer, long_runs_take_no_more_than_text) {
    static const char *const units[] = {"a",  " ",    "1", "\n", "!", "ab", "\xc3\xa9", "\xe4\xb8\xad",
                                        "a ", "\r\n", "A", "'"};
    static const char *const kinds[] = {"gpt-2", "llama-bpe", "tekken", "deepseek-llm", "deepseek-v3", "default"};
    struct small s;
    sentencepiece(&s);
    add(&s, "\xe2\x96\x81", VOCAB_NORMAL, -5);
    add(&s, "\xe2\x96\x81\xe2\x96\x81", VOCAB_NORMAL, -4);
    add(&s, "a", VOCAB_NORMAL, -5);
    add(&s, "aa", VOCAB_NORMAL, -3);
    add(&s, "aaaa", VOCAB_NORMAL, -2);
    for (size_t k = 0; k <= sizeof kinds / sizeof kinds[0]; k++) {
        struct text *t = open_small(&s);
        for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
            expect_linear(t, units[i]);
        }
        text_free(t);
        if (k < sizeof kinds / sizeof kinds[0]) {
            bytes(&s, kinds[k]);
            s.source.bos_id = 263;
            s.merges[s.source.n_merges++] = (struct span){"a a", 3};
            add(&s, "aa", VOCAB_NORMAL, 0);
        }
    }
}

/* ---- the regex engine ---- */

static int find(const char *pattern, const char *text, size_t len, uint64_t time_limit_ns, size_t *start, size_t *end) {
    struct regex *r;
    struct regex_run run = {.time_limit_ns = time_limit_ns};
    cr_assert_eq(regex_new(pattern, strlen(pattern), &r, &err), 0, "%s", err.message);
    int found = regex_find(r, &run, text, len, 0, start, end, &err);
    regex_run_free(&run);
    regex_free(r);
    return found;
}

/* Long texts are searched otherwise than short ones. */
Test(tokenizer, regexes_find_matches_anywhere) {
    char text[6000];
    size_t start, end;
    for (size_t n = 1; n < 5500; n += n < 4000 ? 97 : 1) {
        memset(text, 'x', n);
        memcpy(text + n, "\xc3\xa9zzzzb", 7);
        cr_assert_eq(find("(?<=x)\xc3\xa9z+b", text, n + 7, 0, &start, &end), 1, "%zu", n);
        cr_assert(start == n && end == n + 7, "%zu", n);
        cr_assert_eq(find("y|\\z", text, n + 7, 0, &start, &end), 1);
        cr_assert(start == n + 7 && end == start, "%zu", n);
        cr_assert_eq(find("y", text, n + 7, 0, &start, &end), 0);
    }
}

Test(tokenizer, regexes_stop_at_their_limits) {
    size_t n = 500000, start, end;
    char *text = malloc(n);
    memset(text, 'a', n);
    cr_expect_eq(find("(a+)+$", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab", 42, 0, &start, &end), -1);
    cr_expect(err.code == ERROR_INVALID && strstr(err.message, "retry"), "%s", err.message);
    cr_expect_eq(find("(?:a|b)*c", text, n, 20000000, &start, &end), -1); /* none match, each looks at all the rest */
    cr_expect(err.code == ERROR_INVALID && strstr(err.message, "too long"), "%s", err.message);
    cr_expect_eq(find("a(?=.*b)", text, n, 20000000, &start, &end), -1);
    cr_expect(err.code == ERROR_INVALID && strstr(err.message, "too long"), "%s", err.message);
    struct regex *r;
    cr_expect_eq(regex_new("\\Ga", 3, &r, &err), -1);
    cr_expect(err.code == ERROR_MODEL && strstr(err.message, "\\G"), "%s", err.message);
    free(text);
}

/* ---- tokenizer.json: what is refused, and the odd parts ---- */

#define MODEL "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}"
#define BERT "{\"type\":\"BertProcessing\",\"cls\":[\"a\",0],\"sep\":[\"b\",1]}"
#define FUSE "\"decoder\":{\"type\":\"Fuse\"}"

static int from_json(const char *json, struct tokenizer **t) {
    return tokenizer_from_json(json, strlen(json), t, &err);
}

Test(tokenizer, unknown_components_are_named) {
    static const struct {
        const char *json, *named;
    } cases[] = {
        {"{" MODEL ",\"decoder\":{\"type\":\"CTC\"}}", "decoder: the type 'CTC'"},
        {"{" MODEL "}", "decoder"},
        {"{" MODEL "," FUSE ",\"normalizer\":{\"type\":\"Nmt\"}}", "normalizer: the type 'Nmt'"},
        {"{" MODEL "," FUSE
         ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"X\"}]}}",
         "'X'"},
        {"{" MODEL "," FUSE ",\"normalizer\":{\"type\":\"Replace\",\"content\":\"\"}}", "'pattern'"},
        {"{" MODEL "," FUSE ",\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"BAAAA*\"}}",
         "base64"},
        {"{" MODEL "," FUSE ",\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"BAAAAAAA\"}}",
         "trie"},
        {"{" MODEL "," FUSE ",\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"}}",
         "pre_tokenizer: the type 'UnicodeScripts'"},
        {"{" MODEL "," FUSE
         ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"},\"behavior\":\"Isolated\"}}",
         "regex"},
        {"{" MODEL "," FUSE
         ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"x\"},\"behavior\":\"Odd\"}}",
         "'behavior'"},
        {"{" MODEL "," FUSE ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\"},{"
         "\"type\":\"Metaspace\",\"replacement\":\"_\"}]}}",
         "'Metaspace' behind ByteLevel"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",0]]}," FUSE ",\"pre_tokenizer\":{\"type\":\"ByteLevel\"}}",
         "model: Unigram behind the pre-tokenizer ByteLevel"},
        {"{" MODEL "," FUSE ",\"post_processor\":{\"type\":\"Odd\"}}", "post_processor: the type 'Odd'"},
        {"{" MODEL "," FUSE ",\"post_processor\":{\"type\":\"BertProcessing\",\"cls\":[\"a\",9],\"sep\":[\"b\",1]}}",
         "id 9"},
        {"{" MODEL "," FUSE
         ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"A\"}},{"
         "\"Sequence\":{\"id\":\"A\"}}]}}",
         "'single'"},
        {"{" MODEL "," FUSE
         ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"B\"}}]}}",
         "'single'"},
        {"{" MODEL "," FUSE ",\"post_processor\":{\"type\":\"Sequence\",\"processors\":[" BERT "," BERT "]}}",
         "'BertProcessing' behind another"},
        {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{}}," FUSE "}", "model: the type 'WordPiece'"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}," FUSE "}", "merge 0"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"ab\"]}," FUSE "}", "merge 0"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}," FUSE "}", "merge 0"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}," FUSE "}", "id"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1.5},\"merges\":[]}," FUSE "}", "id"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1e18},\"merges\":[]}," FUSE "}", "id"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"dropout\":0.1}," FUSE "}", "'dropout'"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"end_of_word_suffix\":\"</w>\"}," FUSE "}",
         "'end_of_word_suffix'"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}," FUSE "}", "'vocab'"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\"]]}," FUSE "}", "token 0"},
        {"{" MODEL "," FUSE ",\"added_tokens\":[{\"id\":3}]}", "added_tokens"},
        {"[]", "object"},
        {"{", "byte 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tokenizer *t = NULL;
        cr_expect_eq(from_json(cases[i].json, &t), -1, "%s was accepted", cases[i].json);
        cr_expect_eq(err.code, ERROR_MODEL, "%s", cases[i].json);
        cr_expect(strstr(err.message, cases[i].named), "%s: %s", cases[i].json, err.message);
        tokenizer_free(t);
    }
}

Test(tokenizer, nul_characters_in_the_vocabulary) {
    struct tokenizer *t = NULL;
    cr_assert_eq(from_json("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"\\u0000\":0,\"a\":1,\"a\\u0000\":2,\"\\\\u0000\":"
                           "3,\"\xef\xb7\x90\":4},"
                           "\"merges\":[[\"a\",\"\\u0000\"]]}," FUSE "}",
                           &t),
                 0, "%s", err.message);
    struct text *text = text_of(t);
    EXPECT_IDS(text, "a\0\0", 0, 2, 0);
    EXPECT_IDS(text, "\xef\xb7\x90", 0, 4); /* the noncharacter that could have stood for it */
    size_t len;
    cr_expect_eq(memcmp(text_token_bytes(text, 2, &len), "a\0", 2), 0);
    cr_expect_eq(len, 2);
    cr_expect_eq(memcmp(text_token_bytes(text, 3, &len), "\\u0000", 6), 0);
    cr_expect_eq(len, 6);
    text_free(text);
}

/* Added tokens that swallow the white space around them, and are white space. */
Test(tokenizer, long_runs_of_greedy_added_tokens) {
    static const char *const strips[] = {"\"lstrip\":true,\"rstrip\":true", "\"lstrip\":true,\"rstrip\":false",
                                         "\"lstrip\":false,\"rstrip\":true"};
    for (size_t i = 0; i < 3; i++) {
        char json[512];
        struct tokenizer *t = NULL;
        snprintf(json, sizeof json,
                 "{" MODEL "," FUSE ",\"added_tokens\":[{\"id\":3,\"content\":\" \",\"special\":false,\"normalized\":false,"
                 "\"single_word\":false,%s}]}",
                 strips[i]);
        cr_assert_eq(from_json(json, &t), 0, "%s", err.message);
        struct text *text = text_of(t);
        expect_linear(text, " ");
        expect_linear(text, "a ");
        text_free(text);
    }
}

/* Equal merges: the last counts, as in the library. Holes in the ids are no tokens. */
Test(tokenizer, holes_and_ids_outside) {
    struct tokenizer *t = NULL;
    cr_assert_eq(from_json("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":5},\"merges\":[]}," FUSE "}", &t), 0);
    struct text *text = text_of(t);
    cr_expect_eq(text_vocab_size(text), 6);
    struct buf out = BUF_INIT;
    const int32_t ids[] = {0, 3, 5, 6, -1, INT32_MAX, INT32_MIN, 0};
    cr_assert_eq(text_decode(text, ids, 8, false, &out, &err), 0);
    cr_expect_str_eq(out.data, "aba");
    size_t len = 1;
    text_token_bytes(text, 3, &len);
    cr_expect_eq(len, 0);
    text_token_bytes(text, -5, &len);
    cr_expect_eq(len, 0);
    cr_expect_not(text_token_is_special(text, 77));
    buf_free(&out);
    text_free(text);
}
