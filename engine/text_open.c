/*
 * A struct text from a model's files: the vocabulary and template in a GGUF's metadata, or tokenizer.json and the
 * files beside it. Here the text code, which knows no files, meets the file readers.
 */
#include "text_open.h"

#include "base/file_map.h"
#include "text/chat_families.h"
#include "text/text_impl.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <inferd/json.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- GGUF ---- */

void gguf_vocab_free(struct gguf_vocab *v) {
    free(v->tokens);
    free(v->merges);
    free(v->scores);
    free(v->types);
    free(v->model);
    free(v->pre);
    free(v->name);
    *v = (struct gguf_vocab){0};
}

/* A copy of a string value, NULL if it is not there (*out stays) or holds a NUL. */
static int copy_string(const struct model_file *f, const char *key, char **out, struct error *err) {
    struct meta_string s;
    if (!model_file_get_string(f, key, &s)) {
        return 0;
    }
    if (memchr(s.data, '\0', s.len)) {
        return error_set(err, ERROR_MODEL, "%s holds a NUL character", key);
    }
    *out = strndup(s.data, s.len);
    return *out ? 0 : error_memory(err);
}

static int read_strings(const struct model_file *f, const char *key, size_t most, struct span **out, size_t *n,
                        struct error *err) {
    enum meta_type type;
    if (!model_file_get_array(f, key, &type, n)) {
        *n = 0;
        return 0;
    }
    if (type != META_STRING || *n > most) {
        return error_set(err, ERROR_MODEL, "%s must be an array of at most %zu strings", key, most);
    }
    *out = calloc(*n ? *n : 1, sizeof **out);
    if (!*out) {
        return error_memory(err);
    }
    for (size_t i = 0; i < *n; i++) {
        struct meta_string s;
        if (!model_file_array_string(f, key, i, &s)) {
            return error_set(err, ERROR_MODEL, "%s: element %zu cannot be read", key, i);
        }
        (*out)[i] = (struct span){s.data, s.len};
    }
    return 0;
}

/* Types and scores: one a token, or not there at all. */
static int read_numbers(const struct model_file *f, struct gguf_vocab *v, struct error *err) {
    size_t n = v->source.n_tokens, count;
    enum meta_type type;
    if (model_file_get_array(f, "tokenizer.ggml.token_type", &type, &count)) {
        v->types = calloc(n ? n : 1, 1);
        if (!v->types) {
            return error_memory(err);
        }
        for (size_t i = 0; i < n; i++) {
            int64_t value;
            if (!model_file_array_int(f, "tokenizer.ggml.token_type", i, &value)) {
                return error_set(err, ERROR_MODEL,
                                 "tokenizer.ggml.token_type must hold an integer for each of %zu tokens", n);
            }
            v->types[i] = value >= VOCAB_NORMAL && value <= VOCAB_BYTE ? (uint8_t)value : VOCAB_UNUSED;
        }
        v->source.types = v->types;
    }
    if (model_file_get_array(f, "tokenizer.ggml.scores", &type, &count)) {
        v->scores = calloc(n ? n : 1, sizeof *v->scores);
        if (!v->scores) {
            return error_memory(err);
        }
        for (size_t i = 0; i < n; i++) {
            double value;
            if (!model_file_array_double(f, "tokenizer.ggml.scores", i, &value)) {
                return error_set(err, ERROR_MODEL, "tokenizer.ggml.scores must hold a number for each of %zu tokens",
                                 n);
            }
            v->scores[i] = (float)value;
        }
        v->source.scores = v->scores;
    }
    return 0;
}

/* An id among the tokens; -1 where the key is missing. One outside the vocabulary is the file's mistake. */
static int read_id(const struct model_file *f, const char *key, size_t n_tokens, int32_t *out, struct error *err) {
    int64_t id;
    if (!model_file_get_int(f, key, &id)) {
        return 0;
    }
    if (id < 0 || (uint64_t)id >= n_tokens) {
        return error_set(err, ERROR_MODEL, "%s is %lld, and the vocabulary has %zu tokens", key, (long long)id,
                         n_tokens);
    }
    *out = (int32_t)id;
    return 0;
}

static void read_flag(const struct model_file *f, const char *key, int *out) {
    bool value;
    *out = model_file_get_bool(f, key, &value) ? value : -1;
}

/* Phi-3's special tokens swallow the white space behind them. A GGUF has no field for it; its name tells. */
static bool is_phi3(const char *name) {
    return name && (strcasestr(name, "phi-3") || strcasestr(name, "phi3"));
}

int gguf_vocab_read(const struct model_file *f, struct gguf_vocab *v, struct error *err) {
    struct vocab_source *s = &v->source;
    if (copy_string(f, "tokenizer.ggml.model", &v->model, err) < 0 ||
        copy_string(f, "tokenizer.ggml.pre", &v->pre, err) < 0 || copy_string(f, "general.name", &v->name, err) < 0) {
        return -1;
    }
    if (!v->model) {
        return error_set(err, ERROR_MODEL, "the file has no vocabulary (tokenizer.ggml.model)");
    }
    if (read_strings(f, "tokenizer.ggml.tokens", VOCAB_MAX_TOKENS, &v->tokens, &s->n_tokens, err) < 0 ||
        read_strings(f, "tokenizer.ggml.merges", VOCAB_MAX_TOKENS, &v->merges, &s->n_merges, err) < 0 ||
        read_numbers(f, v, err) < 0) {
        return -1;
    }
    s->model = v->model;
    s->pre = v->pre;
    s->tokens = v->tokens;
    s->merges = v->merges;
    /* SentencePiece's own ids where the file names none. */
    bool sentencepiece = strcmp(v->model, "llama") == 0 && s->n_tokens > 2;
    s->bos_id = sentencepiece ? 1 : -1;
    s->eos_id = sentencepiece ? 2 : -1;
    s->unknown_id = sentencepiece ? 0 : -1;
    if (read_id(f, "tokenizer.ggml.bos_token_id", s->n_tokens, &s->bos_id, err) < 0 ||
        read_id(f, "tokenizer.ggml.eos_token_id", s->n_tokens, &s->eos_id, err) < 0 ||
        read_id(f, "tokenizer.ggml.unknown_token_id", s->n_tokens, &s->unknown_id, err) < 0) {
        return -1;
    }
    read_flag(f, "tokenizer.ggml.add_bos_token", &s->add_bos);
    read_flag(f, "tokenizer.ggml.add_eos_token", &s->add_eos);
    read_flag(f, "tokenizer.ggml.add_space_prefix", &s->add_space_prefix);
    s->rstrip_special = is_phi3(v->name);
    return 0;
}

static int copy_piece(const struct text *t, int32_t id, char **out, struct error *err) {
    if (id < 0) {
        return 0;
    }
    size_t len;
    const char *piece = text_token_bytes(t, id, &len);
    *out = strndup(piece, len);
    return *out ? 0 : error_memory(err);
}

/* One of the model's own. */
static int add_own(struct text *t, const char *name, const char *source, size_t len, struct error *err) {
    int rc = text_add_chat_template(t, name, source, len, err);
    return rc < 0 && err->code == ERROR_MODEL && t->skips_bad_templates ? 0 : rc;
}

static int read_template(const struct model_file *f, const char *key, const char *name, struct text *t,
                         struct error *err) {
    struct meta_string source;
    if (!model_file_get_string(f, key, &source) || source.len == 0) {
        return 0;
    }
    return add_own(t, name, source.data, source.len, err);
}

/* "tokenizer.chat_template", and under it the others, whose names are in "tokenizer.chat_templates". */
static int read_templates(const struct model_file *f, struct text *t, struct error *err) {
    enum meta_type type;
    struct meta_string name;
    size_t n = 0;
    char key[128], copy[64];
    if (read_template(f, "tokenizer.chat_template", "default", t, err) < 0 ||
        read_template(f, "tokenizer.chat_template.tool_use", "tool_use", t, err) < 0) {
        return -1;
    }
    if (!model_file_get_array(f, "tokenizer.chat_templates", &type, &n) || type != META_STRING) {
        return 0;
    }
    for (size_t i = 0; i < n; i++) {
        if (!model_file_array_string(f, "tokenizer.chat_templates", i, &name) || name.len >= sizeof copy ||
            memchr(name.data, '\0', name.len)) {
            return error_set(err, ERROR_MODEL, "tokenizer.chat_templates: element %zu is not a name", i);
        }
        snprintf(copy, sizeof copy, "%.*s", (int)name.len, name.data);
        snprintf(key, sizeof key, "tokenizer.chat_template.%s", copy);
        if (read_template(f, key, copy, t, err) < 0) {
            return -1;
        }
    }
    return 0;
}

static int open_gguf(const struct model_file *f, struct text *t, struct error *err) {
    struct gguf_vocab v = {0};
    int rc = gguf_vocab_read(f, &v, err);
    if (rc == 0) {
        rc = tokenizer_from_vocab(&v.source, &t->tokenizer, err);
    }
    t->bos_id = v.source.bos_id;
    int32_t eos_id = v.source.eos_id, eot_id = -1, eom_id = -1;
    size_t n_tokens = v.source.n_tokens;
    gguf_vocab_free(&v);
    if (rc < 0 || read_id(f, "tokenizer.ggml.eot_token_id", n_tokens, &eot_id, err) < 0 ||
        read_id(f, "tokenizer.ggml.eom_token_id", n_tokens, &eom_id, err) < 0) {
        return -1;
    }
    text_add_eos(t, eos_id);
    text_add_eos(t, eot_id);
    text_add_eos(t, eom_id);
    text_add_known_ends(t);
    if (copy_piece(t, t->bos_id, &t->bos_text, err) < 0 || copy_piece(t, eos_id, &t->eos_text, err) < 0) {
        return -1;
    }
    return read_templates(f, t, err);
}

/* ---- tokenizer.json and what lies beside it ---- */

/* A JSON file of the folder; *out stays NULL where there is none. */
static int read_json(const char *folder, const char *name, cJSON **out, struct error *err) {
    char path[PATH_MAX];
    struct file_map map;
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path) {
        return error_set(err, ERROR_MODEL, "the path is too long");
    }
    if (access(path, F_OK) != 0) {
        return 0;
    }
    if (file_map_open(path, &map, err) < 0) {
        return -1;
    }
    const struct json_limits limits = {.allow_duplicate = true};
    int rc = json_parse(map.data ? (const char *)map.data : "", map.size, &limits, out, err);
    file_map_close(&map);
    if (rc < 0) {
        err->code = err->code == ERROR_INVALID ? ERROR_MODEL : err->code;
        return error_prefix(err, "%s", path);
    }
    return 0;
}

static int copy_text(const char *from, char **to, struct error *err) {
    char *copy = strdup(from);
    if (!copy) {
        return error_memory(err);
    }
    free(*to);
    *to = copy;
    return 0;
}

/* A special token is named by its text, or by an object with it. */
static const char *token_name(const cJSON *config, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(config, key);
    if (cJSON_IsObject(item)) {
        item = cJSON_GetObjectItemCaseSensitive(item, "content");
    }
    return cJSON_IsString(item) ? item->valuestring : NULL;
}

static int32_t id_of_name(const struct text *t, const char *name) {
    return name ? tokenizer_find(t->tokenizer, name, strlen(name)) : -1;
}

static int add_template(struct text *t, const char *name, const cJSON *source, struct error *err) {
    return name && cJSON_IsString(source)
               ? add_own(t, name, source->valuestring, strlen(source->valuestring), err)
               : 0;
}

/* "chat_template": a text, a list of {"name", "template"}, or an object of them by name. */
static int use_templates(struct text *t, const cJSON *config, struct error *err) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(config, "chat_template"), *entry;
    if (!item || cJSON_IsNull(item)) {
        return 0;
    }
    text_drop_chat_templates(t);
    if (cJSON_IsString(item)) {
        return add_template(t, "default", item, err);
    }
    cJSON_ArrayForEach(entry, item) {
        bool named = cJSON_IsArray(item);
        const char *name =
            named ? cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(entry, "name")) : entry->string;
        if (add_template(t, name, named ? cJSON_GetObjectItemCaseSensitive(entry, "template") : entry, err) < 0) {
            return -1;
        }
    }
    return 0;
}

static int use_tokenizer_config(struct text *t, const cJSON *config, struct error *err) {
    const char *bos = token_name(config, "bos_token"), *eos = token_name(config, "eos_token");
    t->bos_id = id_of_name(t, bos);
    text_add_eos(t, id_of_name(t, eos));
    if ((bos && copy_text(bos, &t->bos_text, err) < 0) || (eos && copy_text(eos, &t->eos_text, err) < 0)) {
        return -1;
    }
    return use_templates(t, config, err);
}

/* "bos_token_id", and "eos_token_id": a number or a list. */
static int use_ids(struct text *t, const cJSON *config, struct error *err) {
    const cJSON *eos = cJSON_GetObjectItemCaseSensitive(config, "eos_token_id"), *item;
    if (cJSON_IsNumber(eos)) {
        text_add_eos(t, eos->valueint);
    }
    if (cJSON_IsArray(eos)) {
        cJSON_ArrayForEach(item, eos) {
            text_add_eos(t, cJSON_IsNumber(item) ? item->valueint : -1);
        }
    }
    int64_t bos = -1;
    if (t->bos_id < 0 && json_get_int(config, "bos_token_id", 0, INT32_MAX, &bos, err) == 0 && bos >= 0 &&
        (size_t)bos < text_vocab_size(t)) {
        t->bos_id = (int32_t)bos;
    }
    return 0;
}

static int add_template_file(struct text *t, const char *name, const char *path, struct error *err) {
    struct file_map map;
    if (file_map_open(path, &map, err) < 0) {
        return -1;
    }
    int rc = add_own(t, name, map.data ? (const char *)map.data : "", map.size, err);
    file_map_close(&map);
    return rc < 0 ? error_prefix(err, "%s", path) : 0;
}

#define TEMPLATE_SUFFIX ".jinja"

/* The template's name when a file of additional_chat_templates/ is one. */
static bool template_name(const char *file, char name[NAME_MAX + 1]) {
    size_t len = strlen(file), suffix = strlen(TEMPLATE_SUFFIX);
    if (len <= suffix || strcmp(file + len - suffix, TEMPLATE_SUFFIX) != 0) {
        return false;
    }
    snprintf(name, NAME_MAX + 1, "%.*s", (int)(len - suffix), file);
    return true;
}

static int use_more_templates(struct text *t, const char *folder, bool *dropped, struct error *err) {
    char path[PATH_MAX], name[NAME_MAX + 1];
    int rc = snprintf(path, sizeof path, "%s/additional_chat_templates", folder) < (int)sizeof path ? 0 : -1;
    DIR *dir = rc == 0 ? opendir(path) : NULL;
    for (struct dirent *e; dir && rc == 0 && (e = readdir(dir));) {
        if (!template_name(e->d_name, name)) {
            continue;
        }
        if (snprintf(path, sizeof path, "%s/additional_chat_templates/%s", folder, e->d_name) >= (int)sizeof path) {
            rc = error_set(err, ERROR_MODEL, "the path is too long");
            break;
        }
        if (!*dropped) {
            text_drop_chat_templates(t);
            *dropped = true;
        }
        rc = add_template_file(t, name, path, err);
    }
    if (dir) {
        closedir(dir);
    }
    return dir ? rc : 0;
}

/* Files of their own take the place of what the JSON files say. */
static int use_template_files(struct text *t, const char *folder, struct error *err) {
    char path[PATH_MAX];
    bool dropped = false;
    if (snprintf(path, sizeof path, "%s/chat_template.jinja", folder) < (int)sizeof path && access(path, F_OK) == 0) {
        text_drop_chat_templates(t);
        dropped = true;
        if (add_template_file(t, "default", path, err) < 0) {
            return -1;
        }
    }
    return use_more_templates(t, folder, &dropped, err);
}

static int use_json_files(struct text *t, const char *folder, struct error *err) {
    static const struct {
        const char *name;
        int (*use)(struct text *t, const cJSON *json, struct error *err);
    } files[] = {
        {"tokenizer_config.json", use_tokenizer_config},
        {"chat_template.json", use_templates},
        {"generation_config.json", use_ids},
        {"config.json", use_ids},
    };
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        cJSON *json = NULL;
        if (read_json(folder, files[i].name, &json, err) < 0) {
            return -1;
        }
        int rc = json ? files[i].use(t, json, err) : 0;
        cJSON_Delete(json);
        if (rc < 0) {
            return error_prefix(err, "%s/%s", folder, files[i].name);
        }
    }
    return use_template_files(t, folder, err);
}

static int open_tokenizer_json(const char *path, struct text *t, struct error *err) {
    struct file_map map;
    if (file_map_open(path, &map, err) < 0) {
        return -1;
    }
    int rc = tokenizer_from_json(map.data ? (const char *)map.data : "", map.size, &t->tokenizer, err);
    file_map_close(&map);
    if (rc < 0) {
        return error_prefix(err, "%s", path);
    }
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash) {
        slash[slash == folder] = '\0'; /* the root stays */
    }
    if (use_json_files(t, slash ? folder : ".", err) < 0) {
        return -1;
    }
    if (t->bos_id < 0 && t->tokenizer->n_prefix > 0) {
        t->bos_id = t->tokenizer->prefix[0];
    }
    text_add_known_ends(t);
    return 0;
}

/* ---- which of them a path means ---- */

/* The tokenizer.json that a path means: the path itself, or the one in the folder or beside the weights file. */
static bool find_tokenizer_json(const char *path, char out[PATH_MAX]) {
    struct stat st;
    size_t len = strlen(path);
    if (len >= 5 && strcmp(path + len - 5, ".json") == 0) {
        return snprintf(out, PATH_MAX, "%s", path) < PATH_MAX;
    }
    if (len >= 5 && strcmp(path + len - 5, ".gguf") == 0) {
        return false;
    }
    int n = -1;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
        n = snprintf(out, PATH_MAX, "%s/tokenizer.json", path);
    } else if (len >= 12 && strcmp(path + len - 12, ".safetensors") == 0) {
        const char *slash = strrchr(path, '/');
        n = snprintf(out, PATH_MAX, "%.*stokenizer.json", slash ? (int)(slash + 1 - path) : 0, path);
    }
    return n >= 0 && n < PATH_MAX && access(out, F_OK) == 0;
}

static int open_model_file(const char *path, struct text *t, struct error *err) {
    struct model_file *f;
    if (model_file_open(path, &f, err) < 0) {
        return -1;
    }
    int rc = model_file_format(f) == MODEL_FORMAT_GGUF
                 ? open_gguf(f, t, err)
                 : error_set(err, ERROR_MODEL, "there is no tokenizer.json beside the weights");
    model_file_close(f);
    return rc < 0 ? error_prefix(err, "%s", path) : 0;
}

static int open_any(const char *path, bool skips_bad_templates, struct text **out, struct error *err) {
    struct text *t = calloc(1, sizeof *t);
    if (!t) {
        return error_memory(err);
    }
    t->bos_id = -1;
    t->skips_bad_templates = skips_bad_templates;
    char json[PATH_MAX];
    int rc = find_tokenizer_json(path, json) ? open_tokenizer_json(json, t, err) : open_model_file(path, t, err);
    if (rc < 0) {
        text_free(t);
        return -1;
    }
    *out = t;
    return 0;
}

int text_open(const char *path, struct text **out, struct error *err) {
    return open_any(path, false, out, err);
}

int text_open_with(const char *path, const char *chat_template, struct text **out, struct error *err) {
    struct text *t;
    if (open_any(path, chat_template != NULL, &t, err) < 0) {
        return -1;
    }
    if (chat_template && text_choose_chat_template(t, chat_template, err) < 0) {
        text_free(t);
        return -1;
    }
    *out = t;
    return 0;
}

/* ---- the operator's choice ---- */

static int choose_own(struct text *t, const struct chat_template *own, struct error *err) {
    char *source = strdup(own->source);
    int rc = source ? text_set_chat_template(t, source, strlen(source), err) : error_memory(err);
    free(source);
    return rc;
}

int text_choose_chat_template(struct text *t, const char *choice, struct error *err) {
    const struct chat_template *own = text_find_chat_template(t, choice);
    const char *family = chat_family_template(choice);
    if (own) {
        return choose_own(t, own, err);
    }
    if (family) {
        return text_set_chat_template(t, family, strlen(family), err);
    }
    if (access(choice, F_OK) != 0) {
        return error_set_param(err, ERROR_MODEL, "chat_template",
                               "chat_template: %.200s is no file, no template of the model and no family (%s)", choice,
                               text_chat_families());
    }
    struct file_map map;
    if (file_map_open(choice, &map, err) < 0) {
        return -1;
    }
    int rc = text_set_chat_template(t, map.data ? (const char *)map.data : "", map.size, err);
    file_map_close(&map);
    return rc < 0 ? error_prefix(err, "%s", choice) : 0;
}
