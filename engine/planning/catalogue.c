#include <inferd/plan.h>

#include "memory.h"
#include "planning/shape_internal.h"

#include <catalogue_data.h> /* made by meson */

#include <inferd/backend.h>
#include <inferd/json.h>

#include <cjson/cJSON.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GIB 1073741824.0
#define MOST_GPUS 64
#define MOST_MODELS 256
#define MOST_ALIASES 4
#define MOST_CARDS 1024

static struct plan_gpu gpus[MOST_GPUS];
static char aliases[MOST_GPUS][MOST_ALIASES][32];
static char driver_names[MOST_GPUS][24]; /* a word of what the driver calls it */
static size_t n_gpus;
static cJSON *models;

static int damaged(struct error *err, const char *what) {
    return error_set(err, ERROR_INTERNAL, "the built-in catalogue of %s is damaged", what);
}

static void copy_string(const cJSON *json, const char *key, char *out, size_t size) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);
    snprintf(out, size, "%s", cJSON_IsString(item) ? item->valuestring : "");
}

static double number(const cJSON *json, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);
    return cJSON_IsNumber(item) ? item->valuedouble : 0;
}

static void read_gpu(const cJSON *json, size_t i) {
    struct plan_gpu *g = &gpus[i];
    copy_string(json, "name", g->name, sizeof g->name);
    copy_string(json, "full_name", g->full_name, sizeof g->full_name);
    copy_string(json, "link", g->link, sizeof g->link);
    copy_string(json, "driver_name", driver_names[i], sizeof driver_names[i]);
    copy_string(json, "why_not", g->why_not, sizeof g->why_not);
    g->memory = (size_t)(number(json, "memory_gib") * GIB);
    g->bandwidth = number(json, "bandwidth_gbs") * 1e9;
    g->int8 = number(json, "int8_tops") * 1e12;
    g->bf16 = number(json, "bf16_tflops") * 1e12;
    g->fp8 = number(json, "fp8_tflops") * 1e12;
    g->link_bandwidth = number(json, "link_gbs") * 1e9;
    g->watts = number(json, "watts");
    g->price_hour = number(json, "price_hour");
    g->price_buy = number(json, "price_buy");
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(json, "aliases"), *alias;
    size_t n = 0;
    cJSON_ArrayForEach(alias, list) {
        if (cJSON_IsString(alias) && n < MOST_ALIASES) {
            snprintf(aliases[i][n++], sizeof aliases[i][0], "%s", alias->valuestring);
        }
    }
}

int plan_gpus(const struct plan_gpu **out, size_t *n, struct error *err) {
    if (n_gpus == 0) {
        cJSON *list;
        const cJSON *item;
        size_t i = 0;
        if (json_parse(catalogue_gpus, sizeof catalogue_gpus - 1, NULL, &list, err) < 0) {
            return damaged(err, "cards");
        }
        cJSON_ArrayForEach(item, list) {
            if (i < MOST_GPUS) {
                read_gpu(item, i++);
            }
        }
        cJSON_Delete(list);
        n_gpus = i;
        if (i == 0) {
            return damaged(err, "cards");
        }
    }
    *out = gpus;
    *n = n_gpus;
    return 0;
}

static struct plan_gpu *gpu_by_name(const char *name, size_t len) {
    for (size_t i = 0; i < n_gpus; i++) {
        bool same = strlen(gpus[i].name) == len && strncasecmp(gpus[i].name, name, len) == 0;
        for (size_t a = 0; a < MOST_ALIASES; a++) {
            same = same || (len > 0 && strlen(aliases[i][a]) == len && strncasecmp(aliases[i][a], name, len) == 0);
        }
        if (same) {
            return &gpus[i];
        }
    }
    return NULL;
}

/* ---- this machine ---- */

static int this_cpu(struct plan_gpu *out, struct error *err) {
    struct plan_gpu g = {.name = "cpu", .full_name = "this machine's processor and memory", .link = "none"};
    if (memory_available(&g.memory, err) < 0) {
        return -1;
    }
    *out = g;
    return 0;
}

static bool has_word(const char *text, const char *word) {
    size_t len = strlen(word);
    for (const char *p = strstr(text, word); p && len > 0; p = strstr(p + 1, word)) {
        if ((p == text || !isalnum((unsigned char)p[-1])) && !isalnum((unsigned char)p[len])) {
            return true;
        }
    }
    return false;
}

/* The catalogue's figures of the card whose name the driver tells; its memory as the driver tells it. */
static int local_gpu(const char *module, struct plan_gpu *out, struct error *err) {
    const struct backend_ops *ops;
    struct backend *b;
    struct backend_info info;
    char why[BACKEND_WHY] = "";
    const struct backend_config config = {.max_rows = 1};
    if (backend_open("cuda", module && module[0] ? module : NULL, &config, &ops, &b, why, err) < 0) {
        return -1;
    }
    ops->info(b, &info);
    struct plan_gpu g = {.name = "local", .link = "none"};
    bool pcie = strcasestr(info.device, "pcie") != NULL, exact = false;
    for (size_t i = 0; i < n_gpus && !exact; i++) {
        double ratio = (double)gpus[i].memory / (double)info.memory_total;
        if (has_word(info.device, driver_names[i]) && ratio > 0.9 && ratio < 1.1) {
            g = gpus[i];
            exact = pcie == (strcmp(g.link, "pcie") == 0);
        }
    }
    g.memory = info.memory_total;
    snprintf(g.full_name, sizeof g.full_name, "%s", info.device);
    ops->close(b);
    *out = g;
    return 0;
}

int plan_gpu_find(const char *text, const char *module, struct plan_gpu *out, size_t *n, struct error *err) {
    const struct plan_gpu *all;
    size_t n_all, len = strlen(text), count = 1;
    if (plan_gpus(&all, &n_all, err) < 0) {
        return -1;
    }
    bool known = gpu_by_name(text, len) != NULL;
    const char *x = strrchr(text, 'x');
    if (!known && x && x > text && x[1] >= '1' && x[1] <= '9' && strspn(x + 1, "0123456789") == strlen(x + 1)) {
        count = strlen(x + 1) > 5 ? MOST_CARDS + 1 : (size_t)atoi(x + 1);
        len = (size_t)(x - text);
    }
    if (count > MOST_CARDS) {
        return error_set_param(err, ERROR_INVALID, "gpu", "--gpu names more than %d cards", MOST_CARDS);
    }
    struct plan_gpu g;
    const struct plan_gpu *found = gpu_by_name(text, len);
    if (len == 3 && strncmp(text, "cpu", len) == 0) {
        if (this_cpu(&g, err) < 0) {
            return -1;
        }
    } else if (len == 5 && strncmp(text, "local", len) == 0) {
        if (local_gpu(module, &g, err) < 0) {
            return -1;
        }
    } else if (found) {
        g = *found;
    } else {
        return error_set_param(err, ERROR_INVALID, "gpu",
                               "there is no card \"%.40s\" in the catalogue (inferd plan --gpus lists them)", text);
    }
    *out = g;
    *n = count;
    return 0;
}

int plan_set_price(const char *name, double hour, double buy, struct error *err) {
    const struct plan_gpu *all;
    size_t n;
    if (plan_gpus(&all, &n, err) < 0) {
        return -1;
    }
    struct plan_gpu *g = gpu_by_name(name, strlen(name));
    if (!g) {
        return error_set(err, ERROR_MODEL, "there is no card \"%.40s\" in the catalogue", name);
    }
    g->price_hour = hour;
    g->price_buy = buy;
    return 0;
}

/* ---- models ---- */

static int open_models(struct error *err) {
    const struct json_limits limits = {.max_depth = 8};
    if (!models && json_parse(catalogue_models, sizeof catalogue_models - 1, &limits, &models, err) < 0) {
        models = NULL;
        return damaged(err, "models");
    }
    return 0;
}

int catalogue_model(const char *name, const struct cJSON **out, struct error *err) {
    if (open_models(err) < 0) {
        return -1;
    }
    *out = NULL;
    for (const cJSON *m = models->child; m; m = m->next) {
        if (strcasecmp(m->string, name) == 0) {
            *out = m;
        }
    }
    return 0;
}

const char *plan_model_name(size_t i) {
    struct error err;
    if (open_models(&err) < 0 || i >= MOST_MODELS) {
        return NULL;
    }
    const cJSON *m = cJSON_GetArrayItem(models, (int)i);
    return m ? m->string : NULL;
}
