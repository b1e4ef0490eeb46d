/*
 * Chat templates of real models and small templates, against what Jinja2 3.1.6 makes of them in the environment that
 * transformers sets up. Cases with flags (Python's way to print) are held to the same text, and counted apart.
 */
#include "shared_data.h"
#include "text/jinja/jinja.h"

#include <cjson/cJSON.h>
#include <criterion/criterion.h>
#include <dirent.h>
#include <inferd/json.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

struct counts {
    int exact, flagged, refused, runtime; /* cases met: rendered without and with flags, raise_exception, type errors */
    int failed;
};

/* The raw JSON of a member of the line: cJSON would turn 1.0 into 1. NULL for null or absent. */
static const char *raw(const char *line, size_t len, const char *key, size_t *n) {
    const char *start;
    if (!json_member(line, len, key, &start, n) || strncmp(start, "null", 4) == 0) {
        return NULL;
    }
    return start;
}

static const char *string(const cJSON *object, const char *key) {
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
}

static int64_t unix_time(const char *iso) {
    struct tm tm = {0};
    return iso && strptime(iso, "%Y-%m-%dT%H:%M:%S", &tm) ? (int64_t)timegm(&tm) : 0;
}

static void show(const char *file, const char *name, const char *want, const char *got) {
    size_t at = 0;
    while (want[at] && want[at] == got[at]) {
        at++;
    }
    size_t from = at > 60 ? at - 60 : 0;
    fprintf(stderr, "%s %s: at byte %zu\n  want: %.200s\n  got:  %.200s\n", file, name, at, want + from, got + from);
}

/* The template on the input must give what the line says. */
static void check(const char *file, const char *name, const struct jinja *t, const struct jinja_input *in,
                  const cJSON *line, struct counts *c) {
    struct buf out = BUF_INIT, trusted = BUF_INIT;
    struct error err;
    const cJSON *error = cJSON_GetObjectItemCaseSensitive(line, "error");
    const char *want = string(line, "rendered"), *kind = error ? string(error, "kind") : NULL;
    bool flagged = cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(line, "flags")) > 0;
    int rc = jinja_render(t, in, &out, &trusted, &err);
    if (want) {
        const char *got = rc ? err.message : out.data ? out.data : "";
        bool right = rc == 0 && strcmp(got, want) == 0 && trusted.len == out.len;
        *(flagged ? &c->flagged : &c->exact) += 1;
        c->failed += !right;
        if (!right) {
            show(file, name, want, got);
        }
    } else if (strcmp(kind, "raise_exception") == 0) {
        const char *message = string(error, "message"), *got = rc ? err.message : "no error";
        c->refused++;
        if (rc != -1 || err.code != ERROR_INVALID || strcmp(got, message) != 0) {
            c->failed++;
            show(file, name, message, got);
        }
    } else {
        c->runtime++;
        if (rc != -1) { /* such cases may be taken more mildly, but so far none is */
            c->failed++;
            show(file, name, string(error, "message"), out.data ? out.data : "");
        }
    }
    buf_free(&out);
    buf_free(&trusted);
}

static void check_rendered_line(const char *file, const struct jinja *t, char *text, size_t len, struct counts *c) {
    cJSON *line = cJSON_ParseWithLength(text, len);
    cr_assert_not_null(line, "%s", file);
    struct jinja_input in = {
        .bos_token = string(line, "bos_token"),
        .eos_token = string(line, "eos_token"),
        .add_generation_prompt = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(line, "add_generation_prompt")),
        .now = unix_time(string(line, "now")),
    };
    in.messages_json = raw(text, len, "messages", &in.messages_len);
    in.tools_json = raw(text, len, "tools", &in.tools_len);
    in.documents_json = raw(text, len, "documents", &in.documents_len);
    in.kwargs_json = raw(text, len, "kwargs", &in.kwargs_len);
    check(file, string(line, "case"), t, &in, line, c);
    cJSON_Delete(line);
}

/* Call `each` with every line of a file. */
#define FOR_EACH_LINE(text, size, line, len)                                                                           \
    for (char *line = (text), *end_ = (text) + (size), *stop_ = NULL;                                                  \
         line < end_ && ((stop_ = memchr(line, '\n', (size_t)(end_ - line))) || (stop_ = end_)); line = stop_ + 1)     \
        for (size_t len = (size_t)(stop_ - line); len > 0; len = 0)

static struct jinja *compile(const char *name, const char *source, size_t len) {
    struct jinja *t = NULL;
    struct error err;
    if (jinja_compile(source, len, &t, &err)) {
        fprintf(stderr, "%s: %s\n", name, err.message);
    }
    return t;
}

static void report(const char *what, const struct counts *c) {
    fprintf(stderr, "%s: %d rendered, %d of them with Python's printing, %d refused, %d type errors; %d wrong\n", what,
            c->exact + c->flagged, c->flagged, c->refused, c->runtime, c->failed);
}

static void check_template(const char *root, const char *name, struct counts *c) {
    char path[8192];
    size_t source_len, cases_len;
    snprintf(path, sizeof path, "%s/rendered/%s.jsonl", root, name);
    char *cases = read_whole(path, &cases_len);
    snprintf(path, sizeof path, "%s/templates/%s.jinja", root, name);
    char *source = read_whole(path, &source_len);
    struct jinja *t = compile(name, source, source_len);
    c->failed += !t;
    if (t) {
        FOR_EACH_LINE(cases, cases_len, line, len) {
            check_rendered_line(name, t, line, len, c);
        }
    }
    jinja_free(t);
    free(source);
    free(cases);
}

Test(jinja_data, templates_of_models) {
    char root[4096];
    snprintf(root, sizeof root, "%s", shared_data("chat"));
    char folder[4200];
    snprintf(folder, sizeof folder, "%s/rendered", root);
    DIR *dir = opendir(folder);
    cr_assert_not_null(dir);
    struct counts c = {0};
    int templates = 0;
    for (struct dirent *e; (e = readdir(dir));) {
        char *dot = strstr(e->d_name, ".jsonl");
        if (dot) {
            *dot = '\0';
            check_template(root, e->d_name, &c);
            templates++;
        }
    }
    closedir(dir);
    report("templates", &c);
    cr_assert_geq(templates, 60);
    cr_assert_eq(c.failed, 0);
}

/* Lines with the template and its variables in them, under the keys given. */
static void check_lines(const char *name, const char *template_key, const char *context_key) {
    const char *path = shared_data(name);
    size_t size;
    char *text = read_whole(path, &size);
    struct counts c = {0};
    FOR_EACH_LINE(text, size, at, len) {
        cJSON *line = cJSON_ParseWithLength(at, len);
        cr_assert_not_null(line);
        const char *source = string(line, template_key), *case_name = string(line, "name");
        struct jinja *t = compile(case_name, source, strlen(source));
        struct jinja_input in = {.now = unix_time("2025-01-15T12:34:56")};
        in.kwargs_json = raw(at, len, context_key, &in.kwargs_len);
        if (t) {
            check(name, case_name, t, &in, line, &c);
        } else {
            c.failed += !cJSON_GetObjectItemCaseSensitive(line, "error");
        }
        jinja_free(t);
        cJSON_Delete(line);
    }
    report(name, &c);
    free(text);
    cr_assert_gt(c.exact, 20);
    cr_assert_eq(c.failed, 0);
}

Test(jinja_data, expressions) {
    check_lines("chat/jinja/expressions.jsonl", "template", "context");
}

Test(jinja_data, more_expressions) {
    check_lines("chat/jinja/more.jsonl", "template", "context");
}

Test(jinja_data, further_models) {
    check_lines("chat/e2e.jsonl", "chat_template", "data");
}
