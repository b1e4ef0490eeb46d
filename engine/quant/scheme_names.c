/* Names of modules: lists of them, and what they match. Also the getters that the parsers share. */
#include "quant/scheme_internal.h"

#include <cjson/cJSON.h>
#include <inferd/json.h>
#include <stdlib.h>
#include <string.h>

struct shown quant_shown(const char *s) {
    struct shown out = {""};
    for (size_t i = 0; s[i] != '\0' && i < sizeof out.text - 1; i++) {
        out.text[i] = s[i] >= ' ' && s[i] < 127 ? s[i] : '?';
    }
    return out;
}

/* The getters blame a client; here the file is to blame. */
static int blame_file(int rc, struct error *err) {
    if (rc < 0) {
        err->code = ERROR_MODEL;
        err->param[0] = '\0';
    }
    return rc;
}

int quant_get_int(const cJSON *json, const char *key, int64_t min, int64_t max, int64_t *out, struct error *err) {
    return blame_file(json_get_int(json, key, min, max, out, err), err);
}

int quant_get_bool(const cJSON *json, const char *key, bool *out, struct error *err) {
    return blame_file(json_get_bool(json, key, out, err), err);
}

int quant_get_string(const cJSON *json, const char *key, const char **out, struct error *err) {
    return blame_file(json_get_string(json, key, out, err), err);
}

const cJSON *quant_get(const cJSON *json, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);
    return cJSON_IsNull(item) ? NULL : item;
}

/* ---- lists ---- */

static int grow(void **items, size_t n, size_t size, struct error *err) {
    if (n > 0 && (n & (n - 1)) != 0) { /* room for the next power of two */
        return 0;
    }
    void *grown = realloc(*items, (n ? 2 * n : 1) * size); /* the counts are bounded */
    if (!grown) {
        return error_memory(err);
    }
    *items = grown;
    return 0;
}

int quant_add_pattern(struct quant_config *q, struct pattern_list *list, const char *text, enum pattern_kind kind,
                      struct error *err) {
    struct pattern p = {.kind = kind};
    size_t len = strlen(text);
    if (len == 0 || len > QUANT_MAX_PATTERN_LEN || q->n_patterns == QUANT_MAX_PATTERNS ||
        (kind == PATTERN_REGEX && q->n_regexes == QUANT_MAX_REGEXES)) {
        return error_set(err, ERROR_MODEL,
                         "the names of modules are more than %d, or %d as regexes, or one is not of 1 to %d bytes",
                         QUANT_MAX_PATTERNS, QUANT_MAX_REGEXES, QUANT_MAX_PATTERN_LEN);
    }
    if (grow((void **)&list->items, list->n, sizeof *list->items, err) < 0) {
        return -1;
    }
    if (kind == PATTERN_REGEX) {
        if (regex_new(text, len, &p.regex, err) < 0) {
            return err->code == ERROR_MEMORY
                       ? -1
                       : error_set(err, ERROR_MODEL, "a regex for names of modules, \"%s\", is not valid or not supported",
                                   quant_shown(text).text);
        }
        q->n_regexes++;
    }
    p.text = strdup(text);
    if (!p.text) {
        regex_free(p.regex);
        return error_memory(err);
    }
    list->items[list->n++] = p;
    q->n_patterns++;
    return 0;
}

int quant_add_patterns(struct quant_config *q, struct pattern_list *list, const cJSON *json, const char *key,
                       enum pattern_kind kind, bool regexes, struct error *err) {
    const cJSON *array = quant_get(json, key), *item;
    if (array && !cJSON_IsArray(array)) {
        return error_set(err, ERROR_MODEL, "%s is not a list of names", key);
    }
    cJSON_ArrayForEach(item, array) {
        if (!cJSON_IsString(item)) {
            return error_set(err, ERROR_MODEL, "%s is not a list of names", key);
        }
        bool regex = regexes && strncmp(item->valuestring, "re:", 3) == 0;
        if (quant_add_pattern(q, list, item->valuestring + (regex ? 3 : 0), regex ? PATTERN_REGEX : kind, err) < 0) {
            return error_prefix(err, "%s", key);
        }
    }
    return 0;
}

int quant_add_rule(struct quant_config *q, struct quant_rule **out, struct error *err) {
    if (q->n_rules == QUANT_MAX_GROUPS) {
        return error_set(err, ERROR_MODEL, "there are more than %d groups of modules", QUANT_MAX_GROUPS);
    }
    if (grow((void **)&q->rules, q->n_rules, sizeof *q->rules, err) < 0) {
        return -1;
    }
    q->rules[q->n_rules] = (struct quant_rule){0};
    *out = &q->rules[q->n_rules++];
    return 0;
}

void quant_list_free(struct pattern_list *list) {
    for (size_t i = 0; i < list->n; i++) {
        free(list->items[i].text);
        regex_free(list->items[i].regex);
    }
    free(list->items);
}

/* ---- matching ---- */

static bool has_part(const char *name, const char *part) {
    size_t len = strlen(part);
    for (const char *p = strstr(name, part); p; p = strstr(p + 1, part)) {
        if ((p == name || p[-1] == '.') && (p[len] == '\0' || p[len] == '.')) {
            return true;
        }
    }
    return false;
}

/* * stands for any run of characters; on a mismatch only the last one is tried longer. */
static bool glob_matches(const char *glob, const char *s) {
    const char *star = NULL, *from = s;
    while (*s) {
        if (*glob == '*') {
            star = ++glob;
            from = s;
        } else if (*glob == *s) {
            glob++;
            s++;
        } else if (star) {
            glob = star;
            s = ++from;
        } else {
            return false;
        }
    }
    while (*glob == '*') {
        glob++;
    }
    return *glob == '\0';
}

static int matches(struct quant_config *q, const struct pattern *p, const char *name, struct error *err) {
    switch (p->kind) {
    case PATTERN_NAME:
        return strcmp(p->text, name) == 0;
    case PATTERN_PART:
        return has_part(name, p->text);
    case PATTERN_GLOB:
        return has_part(name, p->text) || glob_matches(p->text, name);
    case PATTERN_REGEX: {
        size_t start, end;
        int found = regex_find(p->regex, &q->run, name, strlen(name), 0, &start, &end, err);
        if (found < 0) {
            return err->code == ERROR_MEMORY
                       ? -1
                       : error_set(err, ERROR_MODEL, "the regexes for names of modules take too long to match");
        }
        return found && start == 0; /* the first match is the leftmost one */
    }
    }
    return 0;
}

int quant_list_matches(struct quant_config *q, const struct pattern_list *list, int kind, const char *name,
                       struct error *err) {
    for (size_t i = 0; i < list->n; i++) {
        int found = kind < 0 || (int)list->items[i].kind == kind ? matches(q, &list->items[i], name, err) : 0;
        if (found != 0) {
            return found;
        }
    }
    return 0;
}
