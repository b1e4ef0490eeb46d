/*
 * Lines from the user: with editing and history (libedit, where it was built in) on a terminal, plain ones else.
 * SIGINT must have a handler without SA_RESTART: reading then ends with LINE_INTERRUPTED.
 */
#ifndef INFERD_LINE_EDITOR_H
#define INFERD_LINE_EDITOR_H

#include <stdbool.h>
#include <stddef.h>

struct line_editor;

enum line_result { LINE_OK, LINE_INTERRUPTED, LINE_END };

/* NULL: out of memory. `terminal`: show the prompt and edit. */
struct line_editor *line_editor_open(const char *prompt, bool terminal);
void line_editor_close(struct line_editor *e);

/* *line, NUL-terminated without its newline, is valid until the next call. It enters the history unless blank. */
enum line_result line_editor_read(struct line_editor *e, const char **line);

#endif
