/*
 * Any text through tokenizers of each family: byte 0 chooses one, byte 1 the flags, the rest is the text. Whatever
 * comes, ids are in the vocabulary, a stream gives what decoding whole gives, and a byte-level vocabulary loses
 * nothing.
 */
#include "base/utf8.h"
#include "text/text_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(bool ok) {
    if (!ok) {
        abort();
    }
}

static struct text *byte_level(const char *kind) {
    enum { MERGES = 8, N = 256 + MERGES + 3 };
    static char texts[256][4];
    static const char *const merges[MERGES] = {"a b", "ab c", "\xc4\xa0 t", "\xc4\xa0t he",
                                               "h e", "e r",  "1 2",        "\xc4\xa0 \xc4\xa0"};
    static const char *const products[MERGES + 3] = {
        "ab", "abc", "\xc4\xa0t", "\xc4\xa0the", "he", "er", "12", "\xc4\xa0\xc4\xa0", "<s>", "  ", "<x>"};
    struct span tokens[N], merge[MERGES];
    uint8_t types[N];
    for (size_t i = 0; i < N; i++) {
        types[i] = i < 256 + MERGES ? VOCAB_NORMAL : i == 256 + MERGES ? VOCAB_CONTROL : VOCAB_USER_DEFINED;
        tokens[i] = i < 256 ? (struct span){texts[i], utf8_encode(byte_level_char((unsigned char)i), texts[i])}
                            : (struct span){products[i - 256], strlen(products[i - 256])};
    }
    for (size_t i = 0; i < MERGES; i++) {
        merge[i] = (struct span){merges[i], strlen(merges[i])};
    }
    struct vocab_source source = {.model = "gpt2",
                                  .pre = kind,
                                  .n_tokens = N,
                                  .tokens = tokens,
                                  .types = types,
                                  .n_merges = MERGES,
                                  .merges = merge,
                                  .bos_id = 256 + MERGES,
                                  .eos_id = -1,
                                  .unknown_id = -1,
                                  .add_bos = -1,
                                  .add_eos = -1};
    struct text *t = calloc(1, sizeof *t);
    struct error err;
    t->bos_id = source.bos_id;
    check(t && tokenizer_from_vocab(&source, &t->tokenizer, &err) == 0);
    return t;
}

static struct text *sentencepiece(void) {
    enum { PIECES = 10, N = 3 + 256 + PIECES };
    static const char *const pieces[PIECES] = {
        "\xe2\x96\x81", "\xe2\x96\x81\xe2\x96\x81", "\xe2\x96\x81t", "he", "\xe2\x96\x81the", "t", "h", "e", "a", "aa"};
    struct span tokens[N] = {{"<unk>", 5}, {"<s>", 3}, {"</s>", 4}};
    uint8_t types[N] = {VOCAB_UNKNOWN, VOCAB_CONTROL, VOCAB_CONTROL};
    float scores[N] = {0};
    static char bytes[256][8];
    for (size_t i = 0; i < 256; i++) {
        snprintf(bytes[i], sizeof bytes[i], "<0x%02X>", (unsigned)i);
        tokens[3 + i] = (struct span){bytes[i], 6};
        types[3 + i] = VOCAB_BYTE;
    }
    for (size_t i = 0; i < PIECES; i++) {
        tokens[259 + i] = (struct span){pieces[i], strlen(pieces[i])};
        types[259 + i] = VOCAB_NORMAL;
        scores[259 + i] = -(float)(i % 4);
    }
    struct vocab_source source = {.model = "llama",
                                  .n_tokens = N,
                                  .tokens = tokens,
                                  .types = types,
                                  .scores = scores,
                                  .bos_id = 1,
                                  .eos_id = 2,
                                  .add_bos = -1,
                                  .add_eos = -1,
                                  .add_space_prefix = -1};
    struct text *t = calloc(1, sizeof *t);
    struct error err;
    t->bos_id = 1;
    check(t && tokenizer_from_vocab(&source, &t->tokenizer, &err) == 0);
    return t;
}

static struct text *from_json(const char *json) {
    struct text *t = calloc(1, sizeof *t);
    struct error err;
    t->bos_id = -1;
    check(t && tokenizer_from_json(json, strlen(json), &t->tokenizer, &err) == 0);
    return t;
}

#define ADDED                                                                                                          \
    "\"added_tokens\":[{\"id\":9,\"content\":\"<s>\",\"special\":true,\"rstrip\":true},{\"id\":10,\"content\":"        \
    "\"word\",\"single_word\":true,"                                                                                   \
    "\"lstrip\":true,\"normalized\":true},{\"id\":11,\"content\":\"<x>\",\"normalized\":true,\"special\":true}]"
#define SMALL_BPE                                                                                                      \
    "\"model\":{\"type\":\"BPE\",\"unk_token\":\"?\",\"fuse_unk\":true,\"vocab\":{\"?\":0,\"a\":1,\"b\":2,\"ab\":3,"   \
    "\"\xe2\x96\x81\":4,\"\xe2\x96\x81"                                                                                \
    "a\":5,\"\xc3\xa9\":6},"                                                                                           \
    "\"merges\":[\"a b\",\"\xe2\x96\x81 a\"]}"
#define SMALL_UNIGRAM                                                                                                  \
    "\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"?\",0],[\"a\",-1],[\"ab\",-1.5],[\"b\",-2],["          \
    "\"\xe2\x96\x81\",-3],[\"\xc3\xa9\",-4]]}"
#define METASPACE                                                                                                      \
    "{\"type\":\"Metaspace\",\"replacement\":\"\xe2\x96\x81\",\"prepend_scheme\":\"first\",\"split\":true}"

#define BYTES_A_TO_C                                                                                                   \
    "\"<0x61>\":7,\"<0x62>\":8,\"<0x63>\":12,\"<0xC3>\":13,\"<0xA9>\":14,\"<0xE2>\":15,\"<0x96>\":16,\"<0x81>\":17"
#define PARTIAL_FALLBACK                                                                                               \
    "\"model\":{\"type\":\"BPE\",\"unk_token\":\"?\",\"fuse_unk\":true,\"byte_fallback\":true,\"vocab\":{\"?\":0,"     \
    "\"x\":1,"                                                                                                         \
    "\"y\":2,\"xy\":3," BYTES_A_TO_C "},\"merges\":[[\"x\",\"y\"]]}"
#define STRIPPING                                                                                                      \
    "\"added_tokens\":[{\"id\":20,\"content\":\"  \",\"special\":true,\"lstrip\":true,\"rstrip\":true},{\"id\":21,"    \
    "\"content\":\"xa\",\"single_word\":true,\"rstrip\":true},{\"id\":22,\"content\":\"a\\n\",\"lstrip\":true}]"
#define LETTERS_AND_DIGITS                                                                                             \
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"1\":2,\"\xc2\xb2\":3,\"\xc4\xa0\":4,\"ab\":5,\"11\":6}," \
    "\"merges\":[\"a b\",\"1 1\"]}"
#define N_TEXTS 12
static struct text **texts(void) {
    static struct text *all[N_TEXTS];
    if (!all[0]) {
        all[1] = byte_level("llama-bpe");
        all[2] = byte_level("tekken");
        all[3] = byte_level("deepseek-llm");
        all[4] = byte_level("default");
        all[5] = sentencepiece();
        all[6] = from_json(
            "{" SMALL_BPE "," ADDED
            ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFKC\"},{\"type\":\"Lowercase\"},"
            "{\"type\":\"Strip\"},{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"c*\"},\"content\":\"-\"}]},\"pre_"
            "tokenizer\":" METASPACE ",\"decoder\":" METASPACE "}");
        all[7] = from_json("{" SMALL_UNIGRAM "," ADDED ",\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":" METASPACE
                           ",\"decoder\":" METASPACE "}");
        all[8] = from_json("{" SMALL_BPE "," ADDED ",\"normalizer\":{\"type\":\"NFD\"},\"pre_tokenizer\":{\"type\":"
                           "\"Sequence\",\"pretokenizers\":[{\"type\":\"Punctuation\","
                           "\"behavior\":\"MergedWithNext\"},{\"type\":\"Whitespace\"},{\"type\":\"Digits\"}]},"
                           "\"decoder\":{\"type\":\"Fuse\"}}");
        all[9] = from_json(
            "{" PARTIAL_FALLBACK "," STRIPPING
            ",\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"zz\"},\"content\":\"x\"},"
            "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},"
            "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]}}");
        all[10] = from_json(
            "{" LETTERS_AND_DIGITS "," STRIPPING
            ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Punctuation\","
            "\"behavior\":\"Contiguous\"},{\"type\":\"ByteLevel\"},{\"type\":\"Digits\"},{\"type\":"
            "\"Split\",\"pattern\":{\"Regex\":\"[0-9]{3}|(?<=b)a*\"},\"behavior\":\"MergedWithPrevious\"}]}}");
        all[11] =
            from_json("{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"byte_fallback\":true,\"vocab\":[[\"<unk>\",0],"
                      "[\"a\",-1],[\"ab\",-2],[\"b\",-1],[\"<0x63>\",0],[\"<0xC3>\",0],[\"<0xA9>\",0]]},\"decoder\":"
                      "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}]}}");
        all[0] = byte_level("gpt-2");
    }
    return all;
}

static void check_ids(const struct text *t, const struct tokens *ids) {
    struct error err;
    struct detokenizer d;
    struct buf whole = BUF_INIT, streamed = BUF_INIT;
    char piece[DETOKENIZER_MAX_OUT];
    detokenizer_init(&d, t, false, false);
    for (size_t i = 0; i < ids->n; i++) {
        check(ids->ids[i] >= 0 && (size_t)ids->ids[i] < text_vocab_size(t));
        size_t n = detokenizer_push(&d, ids->ids[i], piece);
        check(n <= sizeof piece && utf8_is_valid(piece, n));
        buf_append(&streamed, piece, n);
    }
    buf_append(&streamed, piece, detokenizer_finish(&d, piece));
    check(text_decode(t, ids->ids, ids->n, false, &whole, &err) == 0);
    bool broken = t->tokenizer->byte_runs && whole.len > 0 && memmem(whole.data, whole.len, "\xef\xbf\xbd", 3);
    check(broken || /* the one place where a stream differs (text.h) */
          (whole.len == streamed.len && (whole.len == 0 || memcmp(whole.data, streamed.data, whole.len) == 0)));
    buf_free(&whole);
    buf_free(&streamed);
}

static void check_lossless(const struct text *t, const struct tokens *ids, const char *bytes, size_t len) {
    struct error err;
    struct buf back = BUF_INIT;
    check(text_decode(t, ids->ids, ids->n, false, &back, &err) == 0);
    check(back.len == len && (len == 0 || memcmp(back.data, bytes, len) == 0));
    buf_free(&back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2 || size > 100000) {
        return 0;
    }
    const struct text *t = texts()[data[0] % N_TEXTS];
    unsigned flags = data[1] & 7;
    const char *bytes = (const char *)data + 2;
    size_t len = size - 2;
    struct error err;
    struct tokens ids = {0}, plain = {0};
    if (text_encode(t, bytes, len, flags, &ids, &err) == 0) {
        check_ids(t, &ids);
    }
    if (text_encode(t, bytes, len, 0, &plain, &err) == 0 && data[0] % N_TEXTS < 5 && utf8_is_valid(bytes, len)) {
        check_lossless(t, &plain, bytes, len);
    }
    ids.n = 0;
    struct marked_text marked = {0};
    buf_append(&marked.bytes, bytes, len);
    for (size_t i = 0; i < len; i++) {
        buf_putc(&marked.trusted, (data[1] >> (3 + i % 5)) & 1);
    }
    if (text_encode_marked(t, &marked, flags, &ids, &err) == 0) {
        check_ids(t, &ids);
    }
    marked_text_free(&marked);
    tokens_free(&ids);
    tokens_free(&plain);
    return 0;
}
