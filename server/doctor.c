#include "doctor.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void doctor_add(struct doctor *d, enum doctor_status status, const char *check, const char *remedy, const char *fmt, ...) {
    if (d->n == DOCTOR_MAX) {
        return;
    }
    struct doctor_finding *f = &d->found[d->n++];
    f->status = status;
    snprintf(f->check, sizeof f->check, "%s", check);
    snprintf(f->remedy, sizeof f->remedy, "%s", remedy ? remedy : "");
    va_list args;
    va_start(args, fmt);
    vsnprintf(f->finding, sizeof f->finding, fmt, args);
    va_end(args);
}

size_t doctor_count(const struct doctor *d, enum doctor_status status) {
    size_t n = 0;
    for (size_t i = 0; i < d->n; i++) {
        n += d->found[i].status == status;
    }
    return n;
}

bool doctor_read_line(const struct doctor *d, const char *path, char *out, size_t size) {
    char full[4096];
    snprintf(full, sizeof full, "%s%s", d->root, path);
    FILE *f = fopen(full, "re");
    if (!f) {
        return false;
    }
    bool got = fgets(out, (int)size, f) != NULL;
    fclose(f);
    if (got) {
        out[strcspn(out, "\n")] = '\0';
    }
    return got;
}

static void print_text(const struct doctor *d, struct buf *out) {
    static const char *const words[] = {[DOCTOR_OK] = "ok", [DOCTOR_NOTE] = "note", [DOCTOR_FAULT] = "FAULT"};
    for (size_t i = 0; i < d->n; i++) {
        const struct doctor_finding *f = &d->found[i];
        buf_printf(out, "%-6s %-14s %s\n", words[f->status], f->check, f->finding);
        if (f->remedy[0]) {
            buf_printf(out, "%21s -> %s\n", "", f->remedy);
        }
    }
    size_t faults = doctor_count(d, DOCTOR_FAULT), notes = doctor_count(d, DOCTOR_NOTE);
    buf_printf(out, "\n%zu fault%s, %zu note%s\n", faults, faults == 1 ? "" : "s", notes, notes == 1 ? "" : "s");
}

static void print_json(const struct doctor *d, struct buf *out) {
    static const char *const words[] = {[DOCTOR_OK] = "ok", [DOCTOR_NOTE] = "note", [DOCTOR_FAULT] = "fault"};
    size_t faults = doctor_count(d, DOCTOR_FAULT);
    buf_printf(out, "{\"ok\": %s, \"faults\": %zu, \"notes\": %zu, \"checks\": [", faults ? "false" : "true", faults,
               doctor_count(d, DOCTOR_NOTE));
    for (size_t i = 0; i < d->n; i++) {
        const struct doctor_finding *f = &d->found[i];
        buf_printf(out, "%s\n  {\"check\": \"%s\", \"status\": \"%s\", \"finding\": ", i ? "," : "", f->check, words[f->status]);
        buf_json_string(out, f->finding, strlen(f->finding));
        buf_puts(out, ", \"remedy\": ");
        if (f->remedy[0]) {
            buf_json_string(out, f->remedy, strlen(f->remedy));
        } else {
            buf_puts(out, "null");
        }
        buf_putc(out, '}');
    }
    buf_puts(out, "\n]}\n");
}

void doctor_print(const struct doctor *d, bool json, struct buf *out) {
    json ? print_json(d, out) : print_text(d, out);
}
