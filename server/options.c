#include "options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct parser {
    int argc;
    char **argv;
    int next;
    const struct option_group *groups;
    size_t n_groups, max_operands;
};

static const struct setting *find(const struct parser *p, const char *name, size_t len) {
    for (size_t i = 0; i < p->n_groups; i++) {
        const struct setting *s = settings_find(p->groups[i].settings, name, len);
        if (s && (s->flags & p->groups[i].only) == p->groups[i].only) {
            return s;
        }
    }
    return NULL;
}

static const char *candidate_name(const void *arg, size_t i) {
    const struct parser *p = arg;
    for (size_t g = 0; g < p->n_groups; g++) {
        for (size_t r = 0; r < p->groups[g].settings.n; r++) {
            const struct setting *s = &p->groups[g].settings.rows[r];
            if ((s->flags & p->groups[g].only) == p->groups[g].only && i-- == 0) {
                return s->name;
            }
        }
    }
    return NULL;
}

static void dashed(const char *name, char *out, size_t size) {
    snprintf(out, size, "%s", name);
    for (char *c = out; *c; c++) {
        *c = *c == '_' ? '-' : *c;
    }
}

static int refuse_unknown(const struct parser *p, const char *arg, size_t len, struct error *err) {
    size_t dashes = strspn(arg, "-");
    const char *near = len > dashes + 1 ? nearest_word(arg + dashes, len - dashes, candidate_name, p) : NULL;
    if (!near) {
        return error_set(err, ERROR_INVALID, "there is no option %.*s", (int)(len < 60 ? len : 60), arg);
    }
    char name[64];
    dashed(near, name, sizeof name);
    return error_set(err, ERROR_INVALID, "there is no option %.*s; did you mean --%s?", (int)len, arg, name);
}

/* argv[next - 1] is an option. */
static int parse_option(struct parser *p, struct options *o, struct error *err) {
    const char *arg = p->argv[p->next - 1];
    size_t len = strcspn(arg, "=");
    size_t dashes = arg[1] == '-' ? 2 : 1;
    const char *name = arg + dashes;
    size_t name_len = len - dashes;
    const char *text = arg[len] == '=' ? arg + len + 1 : NULL;

    /* one dash goes with one letter */
    const struct setting *s = (dashes == 1) == (name_len == 1) ? find(p, name, name_len) : NULL;
    if (!s && dashes == 2 && name_len > 3 && strncmp(name, "no-", 3) == 0 && !text) {
        s = find(p, name + 3, name_len - 3);
        if (s && s->type != SETTING_BOOL) {
            s = NULL;
        }
        text = "false";
    }
    if (!s) {
        return refuse_unknown(p, arg, len, err);
    }
    if (!text && s->type == SETTING_BOOL) {
        text = "true";
    }
    if (!text && (p->next >= p->argc || strncmp(p->argv[p->next], "--", 2) == 0)) {
        return error_set_param(err, ERROR_INVALID, s->name, "%.*s needs a value", (int)len, arg);
    }
    if (!text) {
        text = p->argv[p->next++];
    }
    o->values[o->n_values++] = (struct option_value){s, arg, len, text};
    return 0;
}

int options_parse(int argc, char **argv, const struct option_group *groups, size_t n_groups, size_t max_operands,
                  struct options *out, struct error *err) {
    struct parser p = {argc, argv, 0, groups, n_groups, max_operands};
    struct options o = {0};
    size_t most = argc > 0 ? (size_t)argc : 1;
    o.values = calloc(most, sizeof *o.values);
    o.operands = calloc(most, sizeof *o.operands);
    if (!o.values || !o.operands) {
        options_free(&o);
        return error_memory(err);
    }
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            o.help = true;
            *out = o;
            return 0;
        }
    }
    bool options_end = false;
    while (p.next < argc) {
        const char *arg = argv[p.next++];
        int r = 0;
        if (!options_end && strcmp(arg, "--") == 0) {
            options_end = true;
        } else if (!options_end && arg[0] == '-' && arg[1]) {
            r = parse_option(&p, &o, err);
        } else if (o.n_operands == max_operands) {
            r = error_set(err, ERROR_INVALID, "the argument \"%.60s\" is one too many", arg);
        } else {
            o.operands[o.n_operands++] = arg;
        }
        if (r != 0) {
            options_free(&o);
            return -1;
        }
    }
    *out = o;
    return 0;
}

void options_free(struct options *o) {
    if (o) {
        free(o->values);
        free(o->operands);
        *o = (struct options){0};
    }
}

const char *options_value(const struct options *o, const struct setting *s) {
    const char *text = NULL;
    for (size_t i = 0; i < o->n_values; i++) {
        if (o->values[i].setting == s) {
            text = o->values[i].text;
        }
    }
    return text;
}

int options_apply(const struct options *o, struct settings t, void *base, struct error *err) {
    for (size_t i = 0; i < o->n_values; i++) {
        const struct option_value *v = &o->values[i];
        if (v->setting < t.rows || v->setting >= t.rows + t.n) {
            continue;
        }
        char shown[64];
        snprintf(shown, sizeof shown, "%.*s", (int)v->shown_len, v->shown);
        if (setting_set(v->setting, base, shown, v->text, err) != 0) {
            return -1;
        }
    }
    return 0;
}
