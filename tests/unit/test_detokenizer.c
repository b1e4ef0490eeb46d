#include "shared_data.h"
#include "text/text_impl.h"
#include "text_cases.h"

static struct error err;

/* Letters, byte tokens, and special ones; `decoder` is the tokenizer.json's. */
static struct text *open_with(const char *decoder) {
    struct buf json = BUF_INIT;
    buf_puts(&json, "{\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"vocab\":{\"a\":256,\"\xe2\x96\x81\":257,"
                    "\"\xe2\x96\x81hi\":258,"
                    "\"\xe2\x96\x81\xe2\x96\x81\":259,\"\xc3\xa9\":260,\"\xe4\xb8\xad\":261");
    for (size_t i = 0; i < 256; i++) {
        buf_printf(&json, ",\"<0x%02X>\":%zu", (unsigned)i, i);
    }
    buf_printf(&json,
               "},\"merges\":[]},\"added_tokens\":[{\"id\":262,\"content\":\"<s>\",\"special\":true},"
               "{\"id\":263,\"content\":\"<t>\",\"special\":false}],\"decoder\":%s}",
               decoder);
    struct text *t = calloc(1, sizeof *t);
    cr_assert_eq(tokenizer_from_json(json.data, json.len, &t->tokenizer, &err), 0, "%s", err.message);
    buf_free(&json);
    return t;
}

enum { A = 256, SPACE, SPACE_HI, SPACES, E_ACUTE, ZHONG, BOS, TAG };

#define REPLACE "{\"type\":\"Replace\",\"pattern\":{\"String\":\"\xe2\x96\x81\"},\"content\":\" \"}"
#define SEQUENCE(...) "{\"type\":\"Sequence\",\"decoders\":[" REPLACE __VA_ARGS__ "]}"
static const char llama[] = SEQUENCE(
    ",{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}");
static const char gemma[] = SEQUENCE(",{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}");
static const char metaspace[] =
    "{\"type\":\"Metaspace\",\"replacement\":\"\xe2\x96\x81\",\"prepend_scheme\":\"always\",\"split\":true}";

/* What each push and the finish give, with '|' between them. */
static void expect_pushes(const char *decoder, bool skip_special, bool continuing, const int32_t *ids,
                          const char *want) {
    struct text *t = open_with(decoder);
    struct detokenizer d;
    struct buf got = BUF_INIT;
    char out[DETOKENIZER_MAX_OUT];
    detokenizer_init(&d, t, skip_special, continuing);
    for (size_t i = 0; ids[i] >= 0; i++) {
        buf_append(&got, out, detokenizer_push(&d, ids[i], out));
        buf_putc(&got, '|');
    }
    buf_append(&got, out, detokenizer_finish(&d, out));
    cr_expect_str_eq(got.data, want);
    buf_free(&got);
    text_free(t);
}
#define IDS(...) ((const int32_t[]){__VA_ARGS__, -1})
#define FFFD "\xef\xbf\xbd"

Test(detokenizer, characters_come_whole) {
    expect_pushes(gemma, false, false, IDS(0xe4, 0xb8, 0xad, A, 0xc3, 0xa9), "||\xe4\xb8\xad|a||\xc3\xa9|");
    expect_pushes(gemma, false, false, IDS(0xf0, 0x9f, 0x98, 0x80, 0xf0, 0x9f, 0x98, 0x80),
                  "|||\xf0\x9f\x98\x80||||\xf0\x9f\x98\x80|");
    expect_pushes(gemma, false, false, IDS(ZHONG, SPACE, A, TAG), "\xe4\xb8\xad| |a|<t>|");
}

/* With ByteFallback a broken run is one U+FFFD a byte; what was whole before has been sent. */
Test(detokenizer, broken_runs) {
    expect_pushes(gemma, false, false, IDS(0xe4, 0xb8), "||" FFFD FFFD);
    expect_pushes(gemma, false, false, IDS(0xe4, 0xb8, A), "||" FFFD FFFD "a|");
    expect_pushes(gemma, false, false, IDS(0xff, 'x', A, 'x'), FFFD "|" FFFD "|a|x|");
    expect_pushes(gemma, false, false, IDS('x', 0xff, 'x'), "x|" FFFD "|" FFFD "|");
    expect_pushes(gemma, false, false, IDS(0xc3, 0xc3, 0xa9), "|" FFFD FFFD "|" FFFD "|");
    expect_pushes(gemma, false, false, IDS(0xed, 0xa0, 0x80), "|" FFFD FFFD "|" FFFD "|");
}

Test(detokenizer, beginning_of_the_text) {
    expect_pushes(llama, false, false, IDS(SPACE_HI, SPACE_HI), "hi| hi|");
    expect_pushes(llama, false, true, IDS(SPACE_HI, SPACE_HI), " hi| hi|"); /* what follows a prompt keeps its space */
    expect_pushes(llama, false, false, IDS(SPACES, A), " |a|");
    expect_pushes(llama, false, false, IDS(BOS, SPACE_HI), "<s>| hi|");
    expect_pushes(llama, true, false, IDS(BOS, SPACE_HI), "|hi|");
    expect_pushes(gemma, false, false, IDS(SPACE_HI), " hi|");
    expect_pushes(metaspace, false, false, IDS(SPACES, SPACE_HI), "| hi|"); /* all of the first token's */
    expect_pushes(metaspace, true, false, IDS(BOS, SPACE_HI, SPACE_HI), "|hi| hi|");
    expect_pushes(metaspace, false, true, IDS(SPACE_HI), " hi|");
}

Test(detokenizer, special_tokens) {
    expect_pushes(gemma, true, false, IDS(A, BOS, A, TAG, BOS), "a||a|<t>||");
    expect_pushes(gemma, true, false, IDS(0xc3, BOS, 0xa9), "||\xc3\xa9|"); /* left out before anything is decoded */
    expect_pushes(gemma, false, false, IDS(0xc3, BOS, 0xa9), "|" FFFD "<s>|" FFFD "|");
    expect_pushes(gemma, false, false, IDS(A, 5000, A), "a||a|");
}

/* Byte-level: one U+FFFD for each maximal ill-formed part, also across tokens. */
Test(detokenizer, byte_level) {
    struct buf json = BUF_INIT;
    buf_puts(
        &json,
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"\xc3\xa4\xc2\xbd\":0,\"\xc5\x82\":1,\"a\":2,\"\xc3\xbf\":3,"
        "\"\xc3\xb0\":4},\"merges\":[]},"
        "\"added_tokens\":[{\"id\":5,\"content\":\"<x y>\",\"special\":true}],\"decoder\":{\"type\":\"ByteLevel\"}}");
    struct text *t = calloc(1, sizeof *t);
    cr_assert_eq(tokenizer_from_json(json.data, json.len, &t->tokenizer, &err), 0, "%s", err.message);
    static const struct {
        int32_t ids[6];
        const char *want;
    } cases[] = {
        {{0, 1, 2, -1},
         "\xe4\xbd\xa0"
         "a"}, /* E4 BD | A0 */
        {{0, 2, -1}, FFFD "a"},
        {{0, -1}, FFFD},
        {{1, 1, -1}, FFFD FFFD},
        {{3, -1}, FFFD},
        {{4, 0, 1, -1}, FFFD "\xe4\xbd\xa0"},
        {{0, 5, 1, -1}, FFFD "<x y>" FFFD},
        {{0, 0, 1, -1}, FFFD "\xe4\xbd\xa0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tokens ids = {0};
        struct buf whole = BUF_INIT, streamed = BUF_INIT;
        for (size_t j = 0; cases[i].ids[j] >= 0; j++) {
            cr_assert_eq(tokens_push(&ids, cases[i].ids[j], &err), 0);
        }
        cr_assert_eq(text_decode(t, ids.ids, ids.n, false, &whole, &err), 0);
        cr_expect_str_eq(whole.data, cases[i].want, "case %zu", i);
        stream(t, &ids, false, &streamed);
        cr_expect_str_eq(streamed.data, cases[i].want, "case %zu, streamed", i);
        tokens_free(&ids);
        buf_free(&whole);
        buf_free(&streamed);
    }
    buf_free(&json);
    text_free(t);
}

/* The longest token there may be, all broken, behind an incomplete character: within DETOKENIZER_MAX_OUT. */
Test(detokenizer, output_is_bounded) {
    struct buf json = BUF_INIT;
    buf_puts(&json, "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"\xc3\xb0\xc5\x81\":0,\"");
    for (size_t i = 0; i < VOCAB_MAX_TOKEN_BYTES / 3; i++) {
        buf_puts(&json, "\xc3\xbf"); /* the byte FF */
    }
    buf_puts(&json, "\":1},\"merges\":[]},\"decoder\":{\"type\":\"ByteLevel\"}}");
    struct text *t = calloc(1, sizeof *t);
    cr_assert_eq(tokenizer_from_json(json.data, json.len, &t->tokenizer, &err), 0, "%s", err.message);
    struct detokenizer d;
    char out[DETOKENIZER_MAX_OUT];
    detokenizer_init(&d, t, false, false);
    cr_expect_eq(detokenizer_push(&d, 0, out), 0);
    cr_expect_eq(detokenizer_push(&d, 1, out), 3 + VOCAB_MAX_TOKEN_BYTES / 3 * 3);
    buf_free(&json);
    text_free(t);
}
