#include <inferd/error.h>

#include <stdio.h>
#include <string.h>

static void set_v(struct error *err, enum error_code code, const char *param, const char *fmt, va_list ap) {
    err->code = code;
    snprintf(err->param, sizeof err->param, "%s", param);
    vsnprintf(err->message, sizeof err->message, fmt, ap);
}

int error_set(struct error *err, enum error_code code, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    set_v(err, code, "", fmt, ap);
    va_end(ap);
    return -1;
}

int error_set_param(struct error *err, enum error_code code, const char *param, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    set_v(err, code, param, fmt, ap);
    va_end(ap);
    return -1;
}

int error_prefix(struct error *err, const char *fmt, ...) {
    char prefix[sizeof err->message], rest[sizeof err->message];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(prefix, sizeof prefix, fmt, ap);
    va_end(ap);
    memcpy(rest, err->message, sizeof rest);
    /* A sentence too long for the field is cut at its end: the prefix names the culprit and must stay. */
    size_t n = (size_t)snprintf(err->message, sizeof err->message, "%s: ", prefix);
    if (n < sizeof err->message) {
        snprintf(err->message + n, sizeof err->message - n, "%s", rest);
    }
    return -1;
}

int error_memory(struct error *err) {
    return error_set(err, ERROR_MEMORY, "out of memory");
}
