/*
 * Tokens of a template (Jinja2's lexer with trim_blocks and lstrip_blocks): text, and what stands between {{ }} and {%
 * %}. Comments are dropped, raw blocks become text, white space control is done here.
 */
#ifndef INFERD_JINJA_LEXER_H
#define INFERD_JINJA_LEXER_H

#include "text/jinja/arena.h"

#include <inferd/error.h>
#include <stddef.h>
#include <stdint.h>

enum token_kind {
    T_EOF,
    T_DATA,
    T_VARIABLE_BEGIN,
    T_VARIABLE_END,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_NAME,
    T_STRING,
    T_INTEGER,
    T_FLOAT,
    T_ADD,
    T_SUB,
    T_MUL,
    T_DIV,
    T_FLOORDIV,
    T_MOD,
    T_POW,
    T_TILDE,
    T_LBRACKET,
    T_RBRACKET,
    T_LPAREN,
    T_RPAREN,
    T_LBRACE,
    T_RBRACE,
    T_EQ,
    T_NE,
    T_GT,
    T_GE,
    T_LT,
    T_LE,
    T_ASSIGN,
    T_DOT,
    T_COLON,
    T_PIPE,
    T_COMMA,
    T_SEMICOLON,
};

struct token {
    enum token_kind kind;
    uint32_t line;
    const char *text; /* data, name, number as written; a string already unescaped */
    size_t len;
};

#define JJ_LEXER_MAX_BRACKETS 128 /* open at once inside one tag */

struct tokens_list {
    struct token *items; /* [n], the last one T_EOF */
    size_t n, cap;
};

/* The tokens of source[0..len), which is valid UTF-8; all memory from the arena. ERROR_MODEL with the line. */
int jj_lex(struct arena *arena, const char *source, size_t len, struct tokens_list *out, struct error *err);

/* A token for messages: "name", "','". */
const char *jj_token_name(enum token_kind kind);

#endif
