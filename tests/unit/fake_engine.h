/*
 * An engine and a tokenizer that compute nothing, behind inferd/engine.h and inferd/text.h: the server's behaviour
 * can be tested exactly, with any timing, without a model.
 *
 * A token is a byte (ids 0..255); 256 is <s>, 257 is </s>, both special. The chat template writes "<s>", then
 * "role:content\n" for each message, then "assistant:"; a content that has "@raise" makes it refuse.
 *
 * The answer is what follows "@say " in the prompt, up to "@end" or the prompt's end ("assistant:" and the newline
 * before it do not count), then </s>; without "@say" it is one fixed sentence. Further words in the prompt:
 *   @delay=N    N ms before each token            @prefill=N  N ms before the first
 *   @stall      starts and never gets further     @error=N    fails after N tokens
 *   @tokenise=N tokenising takes N ms             @repetition=N  ends after N tokens because it repeats itself
 * "@loop", or ignore_eos, repeats the answer until max_tokens. Words work anywhere in the prompt.
 * Environment: FAKE_TOKEN_MS is the default of @delay, FAKE_LOAD_MS delays engine_open, FAKE_LOAD_FAILS fails it.
 */
#ifndef INFERD_FAKE_ENGINE_H
#define INFERD_FAKE_ENGINE_H

#define FAKE_BOS 256
#define FAKE_EOS 257
#define FAKE_VOCAB 258
#define FAKE_DEFAULT_ANSWER "The quick brown fox jumps over the lazy dog."

#endif
