/* What strings can do, for the methods and the filters alike. Marks go with the characters; markup stays markup. */
#ifndef INFERD_JINJA_TEXT_OPERATIONS_H
#define INFERD_JINJA_TEXT_OPERATIONS_H

#include "text/jinja/str.h"

#include <stdint.h>

enum strip_side { STRIP_LEFT = 1, STRIP_RIGHT = 2 };

/* chars NULL: white space; else every character that occurs in it. */
const struct str *jj_strip(struct render *r, const struct str *s, const struct str *chars, unsigned sides);

/* At white space, or at a separator (not empty). most < 0: no limit. from_right: the last ones. */
struct seq *jj_split_space(struct render *r, const struct str *s, int64_t most, bool from_right);
struct seq *jj_split(struct render *r, const struct str *s, const struct str *separator, int64_t most, bool from_right);
struct seq *jj_split_lines(struct render *r, const struct str *s, bool keep_ends);

/* most < 0: all */
const struct str *jj_replace(struct render *r, const struct str *s, const struct str *old, const struct str *new,
                             int64_t most);

enum text_case { TEXT_LOWER, TEXT_UPPER, TEXT_TITLE, TEXT_CAPITALIZE, TEXT_SWAP, TEXT_FOLD };
const struct str *jj_change_case(struct render *r, const struct str *s, enum text_case to);

/* The strings of v, separated. strict: an item that is no string fails, else str() of it is taken. */
const struct str *jj_join(struct render *r, const struct str *separator, const struct seq *items, bool strict);

/* To `width` characters. align: < > ^ ; Python's center puts the odd one left or right by its own rule. */
const struct str *jj_pad(struct render *r, const struct str *s, int64_t width, const struct str *fill, char align);

#endif
