/* What the files of filters share. */
#ifndef INFERD_JINJA_FILTERS_H
#define INFERD_JINJA_FILTERS_H

#include "text/jinja/functions.h"
#include "text/jinja/render.h"
#include "text/jinja/str.h"

#define FILTER(name)                                                                                                   \
    static struct value name(struct render *r, struct value self, const struct value *a, const struct call *call)
#define UNUSED ((void)r, (void)self, (void)a, (void)call)

/* An argument that was not given or is None. */
static inline bool absent(struct value v) {
    return v.type == V_MISSING || v.type == V_NONE;
}

/* "a.b.0" from an item, each part by item[part]; an undefined part becomes `otherwise` unless that is V_MISSING. */
struct value jj_attribute_path(struct render *r, struct value item, struct value path, struct value otherwise);
/* Strings in lower case, everything else as it is: the key of case-insensitive sorting. */
struct value jj_ignore_case(struct render *r, struct value v, bool case_sensitive);

#endif
