/* What this program is: its version, the libraries it runs with, the processor it chose code for. */
#ifndef INFERD_VERSION_H
#define INFERD_VERSION_H

#include <inferd/buf.h>
#include <stdbool.h>

const char *version_number(void);   /* "0.1.0" */
const char *version_compiler(void); /* "gcc 12.2.0" */
/* The linker's build id of this executable in hexadecimal digits, "" if it has none: names the very binary in a report. Any
 * thread. */
const char *version_build_id(void);

/* For `inferd version` and GET /version: as lines of text or as a JSON object. */
/* `backend`: where a server computes, NULL if that is not known; JSON only. */
void version_describe(bool json, const char *backend, struct buf *out);

#endif
