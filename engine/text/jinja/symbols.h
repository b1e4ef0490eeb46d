/*
 * Which names a block hides from the template's variables. Jinja2 resolves names when it compiles: a name whose first
 * use in a block is an assignment belongs to that block (unless a block around it knows the name), and is undefined
 * there until it is assigned, whatever variable of that name was passed in. Chat templates can show the difference, so
 * it is kept.
 */
#ifndef INFERD_JINJA_SYMBOLS_H
#define INFERD_JINJA_SYMBOLS_H

#include "text/jinja/parser.h"

/* Fill in the `hidden` lists of the tree. */
void jj_find_hidden(struct parser *p);

#endif
