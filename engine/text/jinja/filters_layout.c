/* wordwrap and pprint: text laid out in lines. */
#include "text/jinja/filters.h"
#include "text/jinja/text.h"
#include "text/jinja/unicode.h"

#include <string.h>

const struct function_info jj_layout_filters[] = {
    {0},
};
