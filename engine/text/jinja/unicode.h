/* Characters as Python's str sees them. */
#ifndef INFERD_JINJA_UNICODE_H
#define INFERD_JINJA_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool jj_is_space(uint32_t c);     /* str.isspace, what strip() and split() take off */
bool jj_is_line_end(uint32_t c);  /* where splitlines() cuts */
bool jj_is_alpha(uint32_t c);     /* str.isalpha */
bool jj_is_decimal(uint32_t c);   /* str.isdecimal */
bool jj_is_digit(uint32_t c);     /* str.isdigit */
bool jj_is_numeric(uint32_t c);   /* str.isnumeric */
bool jj_is_word(uint32_t c);      /* str.isalnum; \w of regular expressions but the underscore */
bool jj_is_printable(uint32_t c); /* str.isprintable: repr() shows it as it is */
bool jj_is_lower(uint32_t c);     /* str.islower of the one character */
bool jj_is_upper(uint32_t c);
bool jj_is_title(uint32_t c); /* category Lt */
bool jj_is_cased(uint32_t c);
bool jj_is_case_ignorable(uint32_t c); /* does not end a word for the final sigma */

int jj_decimal_value(uint32_t c); /* 0..9 of category Nd, else -1 */

enum case_kind { CASE_LOWER, CASE_UPPER, CASE_TITLE, CASE_FOLD };
/* Full case mapping of one character (the final sigma is the caller's): 1 to 4 code points. */
size_t jj_map_case(uint32_t c, enum case_kind kind, uint32_t out[4]);

#endif
