/* The description of quant/scheme.h as its parsers fill it. Only scheme*.c include this. */
#ifndef INFERD_QUANT_SCHEME_INTERNAL_H
#define INFERD_QUANT_SCHEME_INTERNAL_H

#include "base/regex.h"
#include "quant/scheme.h"

#include <stdint.h>

/* Every count and number of such a file; bits, group and block sizes are bounded besides by what a layout can have. */
enum quant_limits {
    QUANT_MAX_GROUPS = 256,      /* of config_groups, and rules of GPTQ's "dynamic" */
    QUANT_MAX_PATTERNS = 65536,  /* names in all lists together */
    QUANT_MAX_REGEXES = 1024,    /* of these, as regexes */
    QUANT_MAX_PATTERN_LEN = 512, /* bytes of one */
    QUANT_MAX_BITS = 64,
    QUANT_MAX_GROUP = 1 << 20, /* elements */
    QUANT_MAX_BLOCK = 1 << 16,
};

/* How a name of the file is meant to meet those of modules. */
enum pattern_kind {
    PATTERN_NAME,  /* the whole name of a module, or its class */
    PATTERN_PART,  /* a run of whole components of the name, as between dots */
    PATTERN_GLOB,  /* the same, or the whole name with * for any run of characters */
    PATTERN_REGEX, /* matches at the beginning of the name, or of the class */
};

struct pattern {
    enum pattern_kind kind;
    char *text;          /* owned */
    struct regex *regex; /* owned, of PATTERN_REGEX */
};

struct pattern_list {
    struct pattern *items; /* [n], owned */
    size_t n;
};

/* The modules that a scheme is for. */
struct quant_rule {
    struct pattern_list targets;
    bool excluded; /* these are not quantised */
    struct quant_scheme scheme;
};

struct quant_config {
    char method[160]; /* for people: "gptq"; "" if nothing is quantised */
    struct pattern_list ignore;
    struct quant_rule *rules; /* [n_rules], owned; the first that matches counts, see quant_config_scheme */
    size_t n_rules;
    bool by_class;     /* targets may be classes, and exact names come before regexes before classes */
    bool lm_head;      /* !by_class: without a rule of its own the head is quantised as all other Linear modules are */
    bool has_fallback; /* !by_class: Linear modules without a rule have this scheme */
    struct quant_scheme fallback;
    size_t n_patterns, n_regexes;
    struct regex_run run;
};

/* ---- reading ---- */

/* A string of the file as a sentence may show it: cut, and without what is not plain ASCII. */
struct shown {
    char text[65];
};
struct shown quant_shown(const char *s);

/* inferd/json.h's getters with the file to blame. null and missing keys leave *out. */
int quant_get_int(const struct cJSON *json, const char *key, int64_t min, int64_t max, int64_t *out, struct error *err);
int quant_get_bool(const struct cJSON *json, const char *key, bool *out, struct error *err);
int quant_get_string(const struct cJSON *json, const char *key, const char **out, struct error *err);
/* A key that may be missing or null: NULL. */
const struct cJSON *quant_get(const struct cJSON *json, const char *key);

/* json[key], a list of strings or null or missing, added to *list. "re:..." is a regex when regexes is set. */
int quant_add_patterns(struct quant_config *q, struct pattern_list *list, const struct cJSON *json, const char *key,
                       enum pattern_kind kind, bool regexes, struct error *err);
int quant_add_pattern(struct quant_config *q, struct pattern_list *list, const char *text, enum pattern_kind kind,
                      struct error *err);
/* A new rule at the end, zeroed. */
int quant_add_rule(struct quant_config *q, struct quant_rule **out, struct error *err);

/* Does the list have a pattern of this kind (or, < 0, of any) that meets the name? 1, 0, or -1 with *err. */
int quant_list_matches(struct quant_config *q, const struct pattern_list *list, int kind, const char *name,
                       struct error *err);
void quant_list_free(struct pattern_list *list);

/* ---- the parsers, each of a zeroed *q ---- */

int quant_parse_compressed(const struct cJSON *json, struct quant_config *q, struct error *err);
int quant_parse_gptq(const struct cJSON *json, struct quant_config *q, struct error *err);
int quant_parse_awq(const struct cJSON *json, struct quant_config *q, struct error *err);

#endif
