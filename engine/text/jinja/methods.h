/* The tables of methods, one a type; the last entry has no name. */
#ifndef INFERD_JINJA_METHODS_H
#define INFERD_JINJA_METHODS_H

#include "text/jinja/functions.h"

extern const struct function_info jj_str_methods[];       /* make strings */
extern const struct function_info jj_str_query_methods[]; /* answer about strings */

#endif
