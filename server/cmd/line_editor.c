#include "cmd/line_editor.h"

#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef HAVE_LIBEDIT
#include <histedit.h>
#endif

struct line_editor {
    const char *prompt;
    bool terminal;
    char *line; /* owned */
    size_t cap;
#ifdef HAVE_LIBEDIT
    EditLine *edit; /* NULL: plain lines */
    History *history;
#endif
};

#ifdef HAVE_LIBEDIT
static const char *edit_prompt(EditLine *edit) {
    struct line_editor *e;
    return el_get(edit, EL_CLIENTDATA, &e) == 0 ? e->prompt : "";
}

static void edit_open(struct line_editor *e) {
    HistEvent event;
    /* libedit counts columns by the locale; character types only, so that numbers keep their decimal point */
    if (!setlocale(LC_CTYPE, "") || strcmp(nl_langinfo(CODESET), "UTF-8") != 0) {
        setlocale(LC_CTYPE, "C.UTF-8");
    }
    e->edit = el_init("inferd", stdin, stdout, stderr);
    e->history = history_init();
    if (!e->edit || !e->history) {
        return;
    }
    history(e->history, &event, H_SETSIZE, 1000);
    history(e->history, &event, H_SETUNIQUE, 1);
    el_set(e->edit, EL_CLIENTDATA, e);
    el_set(e->edit, EL_PROMPT, edit_prompt);
    el_set(e->edit, EL_EDITOR, "emacs");
    el_set(e->edit, EL_SIGNAL, 0); /* SIGINT is the caller's */
    el_set(e->edit, EL_HIST, history, e->history);
    el_source(e->edit, NULL); /* ~/.editrc */
}

static void edit_close(struct line_editor *e) {
    if (e->edit) {
        el_end(e->edit);
    }
    if (e->history) {
        history_end(e->history);
    }
}

static enum line_result edit_read(struct line_editor *e, const char **line) {
    int n = 0;
    errno = 0;
    const char *text = el_gets(e->edit, &n);
    if (!text || n <= 0) {
        bool interrupted = n < 0 && errno == EINTR;
        if (interrupted) {
            el_set(e->edit, EL_UNBUFFERED, 0); /* forgets the half line */
        }
        return interrupted ? LINE_INTERRUPTED : LINE_END;
    }
    char *copy = strdup(text);
    if (!copy) {
        return LINE_END;
    }
    free(e->line);
    e->line = copy;
    e->line[strcspn(e->line, "\r\n")] = '\0';
    if (e->line[strspn(e->line, " \t")]) {
        HistEvent event;
        history(e->history, &event, H_ENTER, e->line);
    }
    *line = e->line;
    return LINE_OK;
}
#endif

struct line_editor *line_editor_open(const char *prompt, bool terminal) {
    struct line_editor *e = calloc(1, sizeof *e);
    if (!e) {
        return NULL;
    }
    e->prompt = prompt;
    e->terminal = terminal;
#ifdef HAVE_LIBEDIT
    if (terminal) {
        edit_open(e);
    }
#endif
    return e;
}

void line_editor_close(struct line_editor *e) {
    if (!e) {
        return;
    }
#ifdef HAVE_LIBEDIT
    edit_close(e);
#endif
    free(e->line);
    free(e);
}

enum line_result line_editor_read(struct line_editor *e, const char **line) {
#ifdef HAVE_LIBEDIT
    if (e->edit) {
        return edit_read(e, line);
    }
#endif
    if (e->terminal) {
        fputs(e->prompt, stdout);
        fflush(stdout);
    }
    errno = 0;
    ssize_t n = getline(&e->line, &e->cap, stdin);
    if (n < 0) {
        bool interrupted = ferror(stdin) && errno == EINTR;
        clearerr(stdin);
        return interrupted ? LINE_INTERRUPTED : LINE_END;
    }
    e->line[strcspn(e->line, "\r\n")] = '\0';
    *line = e->line;
    return LINE_OK;
}
