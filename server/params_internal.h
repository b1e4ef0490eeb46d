/* What the parts of the request table share: params.c, params_chat.c, params_sampling.c. */
#ifndef INFERD_PARAMS_INTERNAL_H
#define INFERD_PARAMS_INTERNAL_H

#include "params.h"

#include <cjson/cJSON.h>

struct field;

struct parse {
    const char *body;
    size_t len;
    enum params_where where;
    const struct params_limits *limits;
    struct request_params *p;
};

typedef int field_fn(struct parse *ps, const struct field *f, const cJSON *value, struct error *err);

enum kind {
    INTEGER,     /* int64_t at offset, [min, max] */
    INTEGER32,   /* int32_t at offset, [min, max] */
    NUMBER,      /* double at offset, [min, max] */
    ABOVE,       /* double at offset, (min, max] */
    FLOAT,       /* float at offset, [min, max] */
    FLOAT_ABOVE, /* float at offset, (min, max] */
    BOOLEAN,     /* bool at offset */
    STRING,      /* const char * at offset, borrowed from the tree */
    CUSTOM,      /* `parse` */
    UNSUPPORTED, /* refused unless null or false */
    NO_EFFECT,   /* known, and right to do nothing about */
};

struct field {
    const char *name;
    unsigned where;
    enum kind kind;
    size_t offset;
    double min, max;
    field_fn *parse;
    bool required;
};

/* "PARAM REASON" */
int params_bad(struct error *err, const char *param, const char *reason);
int params_unsupported(struct error *err, const char *param);

/* An array of ids. *ids is owned by the caller, NULL when there are none. */
int params_id_array(const struct parse *ps, const char *name, const cJSON *array, int32_t **ids, size_t *n,
                    struct error *err);

/* A field of an object that is unknown: refused in strict mode. */
int params_unknown_field(const struct parse *ps, const char *in, struct error *err);

/* params_chat.c */
field_fn params_messages, params_tools, params_documents, params_template_kwargs, params_response_format,
    params_tool_choice, params_modalities;
/* params_sampling.c */
field_fn params_stop, params_stop_ids, params_logit_bias, params_samplers, params_dry_breakers, params_bad_words,
    params_allowed_ids, params_repetition;

#endif
