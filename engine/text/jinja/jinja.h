/*
 * Chat templates: Jinja as Jinja2 3.1 runs it in the environment that Hugging Face chat templates are written for
 * (immutable sandbox, trim_blocks, lstrip_blocks, loop controls, `generation` blocks, tojson = json.dumps,
 * raise_exception, strftime_now), interpreted here without any of Python.
 *
 * A template is not trusted: it comes with a model file. It can reach nothing but the variables given to it, and a
 * budget of steps, memory, output and time ends what would not end by itself.
 *
 * Left out of Jinja2, and refused by name when the template is compiled: the tags include, import, from, extends, block
 * (there is one template only) and autoescape, and the filters urlize and random. lipsum() fails when called. Other
 * than in Jinja2, filters run at once (an error in a generator that nothing reads is an error), there are no complex
 * numbers, an integer has at most 4,900 digits, and addresses of objects are not printed. tests/golden/compare_jinja.py
 * shows it.
 *
 * TRUST MARK. Each byte of a string carries a mark: 1 when the template itself wrote it (its literals, the bos and eos
 * tokens, what it computed from these alone), 0 when it came from the input JSON. Every operation on strings hands the
 * marks on, so the caller can tell for each byte of the result whether a special token may be recognised there.
 * Comparisons do not look at marks. One part of the input is trusted: a message's role when it is "system",
 * "developer", "user", "assistant", "tool" or "function", for templates make special tokens of it ('<|' + message.role
 * + '|>').
 */
#ifndef INFERD_TEXT_JINJA_H
#define INFERD_TEXT_JINJA_H

#include <inferd/buf.h>
#include <inferd/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct jinja; /* a compiled template; immutable, any number of threads may render it at once */

/* 0 = the default, which grows with the size of the input. */
struct jinja_budget {
    uint64_t steps;   /* nodes evaluated, items visited, and one for every 32 bytes of strings made or searched */
    size_t output;    /* bytes of the result */
    size_t memory;    /* bytes of everything a render allocates */
    uint64_t time_ns; /* wall time; a backstop behind the steps */
};

/* All texts are UTF-8 and borrowed for the call. */
struct jinja_input {
    const char *messages_json; /* array; NULL: no chat, the variables down to add_generation_prompt are not passed */
    size_t messages_len;
    const char *tools_json; /* array; NULL: None */
    size_t tools_len;
    const char *documents_json; /* array; NULL: None */
    size_t documents_len;
    bool add_generation_prompt;
    const char *kwargs_json; /* object: further variables, which win over the ones here; NULL: none */
    size_t kwargs_len;
    const char *bos_token; /* NUL-terminated; NULL: the variable is not passed */
    const char *eos_token;
    int64_t now; /* Unix time, for strftime_now; shown in UTC */
    struct jinja_budget budget;
};

/*
 * Compile source[0..len). Syntax errors, unknown tags, filters and tests, nesting that is too deep: ERROR_MODEL with
 * the line.
 */
int jinja_compile(const char *source, size_t len, struct jinja **out, struct error *err);
void jinja_free(struct jinja *t);

/* Does the template name this variable anywhere? */
bool jinja_reads(const struct jinja *t, const char *name);

/*
 * Append the rendered text to *out and one byte (1 trusted, 0 not) for each of its bytes to *trusted. Nothing is
 * appended on failure. raise_exception: ERROR_INVALID with exactly the template's message. A type or name error in the
 * template, an exhausted budget, malformed input JSON: ERROR_INVALID with a sentence (and the line, for what the
 * template did).
 */
int jinja_render(const struct jinja *t, const struct jinja_input *in, struct buf *out, struct buf *trusted,
                 struct error *err);

#endif
