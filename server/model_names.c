/* The names of the model: those of the setting, or one made of its path. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#define NAMES_MAX 16
#define NAME_MAX_BYTES 200

/* The model's file or folder name without ".gguf": known before anything is loaded. */
static char *path_name(const char *path) {
    size_t end = strlen(path), begin;
    while (end > 1 && path[end - 1] == '/') {
        end--;
    }
    for (begin = end; begin > 0 && path[begin - 1] != '/';) {
        begin--;
    }
    if (end - begin > 5 && strncmp(path + end - 5, ".gguf", 5) == 0) {
        end -= 5;
    }
    return end > begin ? strndup(path + begin, end - begin) : strdup("model");
}

static const char *add_name(struct model_names *names, const char *name) {
    if (names->n == NAMES_MAX) {
        return "there may be 16 names at most";
    }
    if (!*name || strlen(name) > NAME_MAX_BYTES) {
        return "a name has 1 to 200 bytes, and a comma stands between two";
    }
    for (size_t i = 0; i < names->n; i++) {
        if (strcmp(names->list[i], name) == 0) {
            return "the same name stands there twice";
        }
    }
    names->list[names->n++] = name;
    return NULL;
}

/* Cut names->text at commas, without the blanks around them. */
static const char *split(struct model_names *names) {
    const char *fault = NULL;
    for (char *p = names->text, *next; p && !fault; p = next) {
        char *end = p + strcspn(p, ",");
        next = *end ? end + 1 : NULL;
        while (p < end && strchr(" \t", *p)) {
            p++;
        }
        while (end > p && strchr(" \t", end[-1])) {
            end--;
        }
        *end = '\0';
        fault = add_name(names, p);
    }
    return fault;
}

int config_model_names(const struct config *c, struct model_names *out, struct error *err) {
    bool given = c->served_model_name[0];
    struct model_names names = {.text = given ? strdup(c->served_model_name) : path_name(c->model),
                                .list = calloc(NAMES_MAX, sizeof *names.list)};
    const char *fault = NULL;
    if (!names.text || !names.list) {
        model_names_free(&names);
        return error_memory(err);
    }
    if (given) {
        fault = split(&names);
    } else {
        names.list[names.n++] = names.text;
    }
    if (fault) {
        model_names_free(&names);
        return error_set_param(err, ERROR_MODEL, "served_model_name", "served_model_name: %s", fault);
    }
    *out = names;
    return 0;
}

void model_names_free(struct model_names *names) {
    free(names->text);
    free(names->list);
    *names = (struct model_names){0};
}
