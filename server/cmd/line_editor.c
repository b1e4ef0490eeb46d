#include "cmd/line_editor.h"

#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#ifdef HAVE_LIBEDIT
#include <histedit.h>
#endif

struct line_editor {
    const char *prompt;
    bool terminal;
    const volatile sig_atomic_t *interrupted;
    char *line; /* owned */
    size_t cap;
#ifdef HAVE_LIBEDIT
    EditLine *edit; /* NULL: plain lines */
    History *history;
#endif
};

/*
 * Wait for input: 0, or -1 when interrupted. SIGINT is let through in ppoll alone, so that one that comes between the
 * look at the flag and the waiting is not slept through.
 */
static int wait_for_input(const struct line_editor *e) {
    sigset_t sigint, before;
    sigemptyset(&sigint);
    sigaddset(&sigint, SIGINT);
    pthread_sigmask(SIG_BLOCK, &sigint, &before);
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    while (!*e->interrupted && ppoll(&input, 1, NULL, &before) < 0 && errno == EINTR) {
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return *e->interrupted ? -1 : 0;
}

#ifdef HAVE_LIBEDIT
/* libedit's source of characters: 1, 0 at the end, -1. */
static int edit_getc(EditLine *edit, wchar_t *out) {
    struct line_editor *e;
    mbstate_t state = {0};
    if (el_get(edit, EL_CLIENTDATA, &e) != 0) {
        return -1;
    }
    for (;;) {
        char byte;
        if (wait_for_input(e) != 0) {
            errno = EINTR;
            return -1;
        }
        ssize_t n = read(STDIN_FILENO, &byte, 1);
        if (n <= 0) {
            return n == 0 ? 0 : -1;
        }
        if (byte == '\0') { /* what is left of a Ctrl-D typed before the terminal changed its mode; libedit would insert it */
            continue;
        }
        size_t r = mbrtowc(out, &byte, 1, &state);
        if (r == (size_t)-2) { /* the character goes on */
            continue;
        }
        if (r == (size_t)-1) {
            *out = L'?';
        }
        return 1;
    }
}

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
    el_set(e->edit, EL_GETCFN, edit_getc);
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
    el_resize(e->edit); /* the window may have changed meanwhile */
    const char *text = el_gets(e->edit, &n);
    if (!text || n <= 0) {
        return *e->interrupted ? LINE_INTERRUPTED : LINE_END;
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

struct line_editor *line_editor_open(const char *prompt, bool terminal, const volatile sig_atomic_t *interrupted) {
    struct line_editor *e = calloc(1, sizeof *e);
    if (!e) {
        return NULL;
    }
    e->prompt = prompt;
    e->terminal = terminal;
    e->interrupted = interrupted;
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
        if (wait_for_input(e) != 0) { /* the terminal hands over whole lines */
            return LINE_INTERRUPTED;
        }
    }
    if (getline(&e->line, &e->cap, stdin) < 0) {
        return LINE_END;
    }
    e->line[strcspn(e->line, "\r\n")] = '\0';
    *line = e->line;
    return LINE_OK;
}
