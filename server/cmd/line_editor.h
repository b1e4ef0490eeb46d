/*
 * Lines from the user: with editing and history (libedit, where it was built in) on a terminal, plain ones else.
 */
#ifndef INFERD_LINE_EDITOR_H
#define INFERD_LINE_EDITOR_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

struct line_editor;

enum line_result { LINE_OK, LINE_INTERRUPTED, LINE_END };

/*
 * `terminal`: show the prompt, edit, and end a read with LINE_INTERRUPTED once *interrupted is set, which a handler of
 * SIGINT does; only the calling thread may receive SIGINT. NULL: out of memory.
 */
struct line_editor *line_editor_open(const char *prompt, bool terminal, const volatile sig_atomic_t *interrupted);
void line_editor_close(struct line_editor *e);

/* *line, NUL-terminated without its newline, is valid until the next call. It enters the history unless blank. */
enum line_result line_editor_read(struct line_editor *e, const char **line);

#endif
