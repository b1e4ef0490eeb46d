#include "cmd/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GIB 1073741824.0
#define WIDTH 960
#define BAR_LEFT 90
#define BAR_WIDTH 700
#define MOST_BARS 16
#define CONTEXTS 8
#define BATCHES 8
#define LONGEST 16777216 /* that max_model_len may be */

static const struct {
    const char *name, *color;
    size_t offset;
} pieces[] = {
    {"weights", "#3b6ea5", offsetof(struct plan_rank, weights)},   {"KV", "#e09f3e", offsetof(struct plan_rank, kv)},
    {"workspace", "#8a9a5b", offsetof(struct plan_rank, workspace)}, {"graphs", "#9d6b9b", offsetof(struct plan_rank, graphs)},
    {"communication", "#5aa6a6", offsetof(struct plan_rank, communication)}, {"context", "#888888", offsetof(struct plan_rank, context)},
};
#define N_PIECES (sizeof pieces / sizeof pieces[0])

static size_t bytes_of(const struct plan_rank *r, size_t piece) {
    return *(const size_t *)(const void *)((const char *)r + pieces[piece].offset);
}

static void escaped(struct buf *out, const char *s) {
    for (; *s; s++) {
        switch (*s) {
        case '<':
            buf_puts(out, "&lt;");
            break;
        case '>':
            buf_puts(out, "&gt;");
            break;
        case '&':
            buf_puts(out, "&amp;");
            break;
        case '"':
            buf_puts(out, "&quot;");
            break;
        default:
            buf_putc(out, (unsigned char)*s < ' ' ? '?' : *s);
        }
    }
}

static void rect(struct buf *out, double x, double y, double w, double h, const char *fill) {
    buf_printf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>\n", x, y, w > 0 ? w : 0, h, fill);
}

static void label(struct buf *out, double x, double y, const char *anchor, const char *s) {
    buf_printf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    escaped(out, s);
    buf_puts(out, "</text>\n");
}

/* One bar for each stage's first rank: those beside it are alike. */
static double bars(const struct plan_question *q, const struct plan_answer *a, double y, struct buf *out) {
    double scale = (double)q->gpu.memory;
    for (size_t i = 0; i < a->n_ranks; i++) {
        scale = (double)a->ranks[i].total > scale ? (double)a->ranks[i].total : scale;
    }
    size_t shown = 0;
    for (size_t i = 0; i < a->n_ranks && shown < MOST_BARS; i++, shown++, y += 30) {
        char name[80];
        double x = BAR_LEFT;
        snprintf(name, sizeof name, "rank %zu", i);
        label(out, BAR_LEFT - 8, y + 16, "end", name);
        for (size_t p = 0; p < N_PIECES; p++) {
            double w = (double)bytes_of(&a->ranks[i], p) / scale * BAR_WIDTH;
            rect(out, x, y, w, 22, pieces[p].color);
            x += w;
        }
        snprintf(name, sizeof name, "%.1f of %.1f GiB", (double)a->ranks[i].total / GIB, (double)a->ranks[i].usable / GIB);
        label(out, BAR_LEFT + BAR_WIDTH + 8, y + 16, "start", name);
        double usable = BAR_LEFT + (double)a->ranks[i].usable / scale * BAR_WIDTH, whole = BAR_LEFT + (double)q->gpu.memory / scale * BAR_WIDTH;
        buf_printf(out, "<path d=\"M%.1f %.1fv26\" stroke=\"#c00\" stroke-width=\"2\"/><path d=\"M%.1f %.1fv26\" stroke=\"#000\" stroke-width=\"2\"/>\n", usable,
                   y - 2, whole, y - 2);
    }
    if (shown < a->n_ranks) {
        char more[48];
        snprintf(more, sizeof more, "and %zu ranks more", a->n_ranks - shown);
        label(out, BAR_LEFT, y + 14, "start", more);
        y += 24;
    }
    return y;
}

static double legend(double y, struct buf *out) {
    double x = BAR_LEFT;
    for (size_t p = 0; p < N_PIECES; p++) {
        rect(out, x, y, 12, 12, pieces[p].color);
        label(out, x + 16, y + 11, "start", pieces[p].name);
        x += 30 + 8.0 * (double)strlen(pieces[p].name);
    }
    label(out, x, y + 11, "start", "red line: what may be used; black: the card");
    return y + 30;
}

static double table(const struct plan_question *q, const struct plan_answer *a, struct plan_answer *other, double y, struct buf *out, int *rc, struct error *err) {
    size_t top = a->context_length ? a->context_length : a->asked_context, contexts[CONTEXTS], n = 0;
    top = top < LONGEST ? top : LONGEST;
    for (size_t c = top; (n == 0 || c >= 256) && n < CONTEXTS; c /= 2) {
        contexts[n++] = c;
    }
    label(out, BAR_LEFT, y + 12, "start", "which contexts (across) and batches (down) fit, and GiB on the fullest card");
    y += 22;
    for (size_t c = 0; c < n; c++) {
        char name[32];
        snprintf(name, sizeof name, "%zu", contexts[n - 1 - c]);
        label(out, BAR_LEFT + 45 + 90 * (double)c, y + 14, "middle", name);
    }
    y += 20;
    for (size_t b = 0; b < BATCHES; b++, y += 24) {
        struct plan_question cell = *q;
        cell.kv_tokens = 0;
        char name[32];
        cell.max_sequences = (size_t)1 << (b == BATCHES - 1 ? 8 : b);
        snprintf(name, sizeof name, "%zu", cell.max_sequences);
        label(out, BAR_LEFT - 8, y + 16, "end", name);
        for (size_t c = 0; c < n && *rc == 0; c++) {
            cell.max_model_len = contexts[n - 1 - c];
            *rc = plan_ask(&cell, other, err);
            if (*rc == 0) {
                snprintf(name, sizeof name, "%.1f", (double)other->ranks[other->fullest].total / GIB);
                rect(out, BAR_LEFT + 90 * (double)c, y, 88, 22, other->fits ? "#9fd39f" : "#e6a3a3");
                label(out, BAR_LEFT + 44 + 90 * (double)c, y + 16, "middle", name);
            }
        }
    }
    return y;
}

int plan_chart(const struct plan_question *q, const struct plan_answer *a, struct buf *out, struct error *err) {
    struct plan_answer *other = malloc(sizeof *other);
    struct buf body = BUF_INIT;
    char title[256];
    int rc = other ? 0 : error_memory(err);
    if (rc == 0) {
        snprintf(title, sizeof title, "%s on %zu x %s: %s", a->model, a->n_ranks * a->replicas, q->gpu.full_name, a->fits ? "fits" : "does not fit");
        label(&body, BAR_LEFT, 28, "start", title);
        double y = bars(q, a, 48, &body);
        y = legend(y + 8, &body);
        y = table(q, a, other, y + 8, &body, &rc, err);
        buf_printf(out, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%.0f\" font-family=\"sans-serif\" font-size=\"13\">\n"
                        "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
                   WIDTH, y + 20);
        buf_append(out, body.data, body.len);
        buf_puts(out, "</svg>\n");
    }
    if (rc == 0 && (out->failed || body.failed)) {
        rc = error_memory(err);
    }
    buf_free(&body);
    free(other);
    return rc;
}
