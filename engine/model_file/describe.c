/* What `inferd inspect` prints. Everything in a model file may be hostile to a terminal: see print_safe(). */
#include "base/utf8.h"
#include "model_file/internal.h"

#include <cjson/cJSON.h>
#include <inferd/json.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SHOWN_CHARS = 72,            /* of a string as text */
    SHOWN_LINE_CHARS = 400,      /* of a sentence of our own */
    SHOWN_ELEMENT_CHARS = 20,    /* of a string in an array as text */
    SHOWN_ELEMENTS = 6,          /* of an array */
    JSON_STRING_BYTES = 1 << 20, /* of a string as JSON; chat templates are whole */
    MAX_COLUMNS = 4,
    MAX_COLUMN_WIDTH = 64,
};

/* ---- values ---- */

/* Would this code point move the cursor, vanish or turn the line around? */
static bool is_unprintable(uint32_t cp) {
    return cp < 0x20 || (cp >= 0x7f && cp <= 0x9f) || cp == 0xad || cp == 0x61c || (cp >= 0x200b && cp <= 0x200f) ||
           (cp >= 0x2028 && cp <= 0x202e) || (cp >= 0x2060 && cp <= 0x206f) || cp == 0xfeff ||
           (cp >= 0xe0000 && cp <= 0xe0fff);
}

/* Any bytes on one line, cut after max_chars characters; quoted ones can be read back. */
static void print_safe(struct buf *b, const char *s, size_t len, size_t max_chars, bool quoted) {
    size_t i = 0;
    buf_puts(b, quoted ? "\"" : "");
    for (size_t shown = 0; i < len && shown < max_chars; shown++) {
        uint32_t cp;
        bool valid;
        size_t n = utf8_decode(s + i, len - i, &cp, &valid);
        if (!valid) {
            for (size_t k = 0; k < n; k++) {
                buf_printf(b, "\\x%02x", (unsigned char)s[i + k]);
            }
        } else if (cp == '\n' || cp == '\t' || cp == '\r') {
            buf_puts(b, cp == '\n' ? "\\n" : cp == '\t' ? "\\t" : "\\r");
        } else if (quoted && (cp == '"' || cp == '\\')) {
            buf_printf(b, "\\%c", (int)cp);
        } else if (is_unprintable(cp)) {
            buf_printf(b, cp < 0x80 ? "\\x%02x" : "\\u{%x}", cp);
        } else {
            buf_append(b, s + i, n);
        }
        i += n;
    }
    buf_puts(b, quoted ? "\"" : "");
    buf_puts(b, i < len ? "..." : "");
}

static void print_quoted(struct buf *b, const char *s, size_t len, size_t max_chars) {
    print_safe(b, s, len, max_chars, true);
}

static void print_bare(struct buf *b, const char *s, size_t len, size_t max_chars) {
    print_safe(b, s, len, max_chars, false);
}

/* The shortest decimals that give the number back. */
static void print_double(struct buf *b, double v, bool single, bool json) {
    if (!isfinite(v)) {
        const char *name = isnan(v) ? "NaN" : v > 0 ? "Infinity" : "-Infinity";
        buf_printf(b, json ? "\"%s\"" : "%s", name);
        return;
    }
    char s[40];
    for (int digits = single ? 6 : 15; digits <= 17; digits++) {
        snprintf(s, sizeof s, "%.*g", digits, v);
        double back = strtod(s, NULL);
        if (single ? (float)back == (float)v : back == v) {
            break;
        }
    }
    buf_puts(b, s);
}

/* Element i of a scalar or of an array. */
static void print_element(struct buf *b, const struct meta *m, size_t i, bool json) {
    enum meta_type t = m->type == META_ARRAY ? m->element : m->type;
    uint64_t u;
    int64_t s;
    double d;
    if (t == META_STRING) {
        struct meta_string str = m->type == META_ARRAY ? m->strings[i] : m->string;
        if (json) {
            buf_json_string(b, str.data, str.len < JSON_STRING_BYTES ? str.len : JSON_STRING_BYTES);
        } else {
            print_quoted(b, str.data, str.len, m->type == META_ARRAY ? SHOWN_ELEMENT_CHARS : SHOWN_CHARS);
            if (m->type != META_ARRAY && str.len > SHOWN_CHARS) {
                buf_printf(b, " (%zu bytes)", str.len);
            }
        }
    } else if (t == META_BOOL) {
        buf_puts(b, m->value[i] ? "true" : "false");
    } else if (meta_element_uint64(m, i, &u)) {
        buf_printf(b, "%llu", (unsigned long long)u);
    } else if (meta_element_int(m, i, &s)) {
        buf_printf(b, "%lld", (long long)s);
    } else if (meta_element_double(m, i, &d)) {
        print_double(b, d, t == META_FLOAT32, json);
    }
}

static void print_elements(struct buf *b, const struct meta *m, bool json) {
    size_t n = m->count < SHOWN_ELEMENTS ? m->count : SHOWN_ELEMENTS;
    buf_putc(b, '[');
    for (size_t i = 0; i < n; i++) {
        buf_puts(b, i ? ", " : "");
        print_element(b, m, i, json);
    }
    buf_puts(b, n < m->count && !json ? ", ...]" : "]");
}

static void print_bytes(struct buf *b, size_t bytes) {
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double v = (double)bytes;
    size_t unit = 0;
    while (v >= 1024 && unit < 4) {
        v /= 1024;
        unit++;
    }
    buf_printf(b, "%.*f %s", unit ? 1 : 0, v, units[unit]);
}

static void print_count(struct buf *b, double n) {
    if (n >= 1e9) {
        buf_printf(b, "%.2f billion", n / 1e9);
    } else if (n >= 1e6) {
        buf_printf(b, "%.1f million", n / 1e6);
    } else {
        buf_printf(b, "%.0f", n);
    }
}

/* ---- a table of aligned columns ---- */

struct table {
    struct buf cells; /* NUL-terminated one after the other */
    size_t n_columns, n_cells;
    size_t width[MAX_COLUMNS]; /* the widest cell so far, up to MAX_COLUMN_WIDTH */
    bool right[MAX_COLUMNS];   /* set flush right */
};

static size_t count_chars(const char *s, size_t len) {
    size_t n = 0;
    for (size_t i = 0; i < len; n++) {
        bool valid;
        i += utf8_sequence(s + i, len - i, &valid);
    }
    return n;
}

/* The next cell is what `cell` holds; empties it. */
static void table_add(struct table *t, struct buf *cell) {
    size_t column = t->n_cells++ % t->n_columns, chars = count_chars(cell->data, cell->len);
    if (chars > MAX_COLUMN_WIDTH) {
        chars = MAX_COLUMN_WIDTH;
    }
    if (chars > t->width[column]) {
        t->width[column] = chars;
    }
    buf_append(&t->cells, cell->data, cell->len);
    buf_putc(&t->cells, '\0');
    t->cells.failed |= cell->failed;
    buf_reset(cell);
}

static void table_add_text(struct table *t, struct buf *cell, const char *s) {
    buf_puts(cell, s);
    table_add(t, cell);
}

static void pad(struct buf *out, size_t chars, size_t width) {
    if (chars < width) {
        buf_printf(out, "%*s", (int)(width - chars), "");
    }
}

static void table_print(struct table *t, struct buf *out) {
    out->failed |= t->cells.failed;
    const char *cell = t->cells.data;
    for (size_t i = 0; i < t->n_cells && !out->failed; i++) {
        size_t column = i % t->n_columns, len = strlen(cell), chars = count_chars(cell, len);
        bool last = column + 1 == t->n_columns;
        buf_puts(out, "  ");
        if (t->right[column]) {
            pad(out, chars, t->width[column]);
        }
        buf_append(out, cell, len);
        if (last) {
            buf_putc(out, '\n');
        } else if (!t->right[column]) {
            pad(out, chars, t->width[column]);
        }
        cell += len + 1;
    }
    buf_free(&t->cells);
}

/* ---- totals ---- */

/* Can a model be computed from tensors of this type? */
static bool is_computed(enum dtype t) {
    return t != DTYPE_UNSUPPORTED && t != DTYPE_I32;
}

static size_t tensor_elements(const struct tensor *t) {
    size_t n = 1;
    for (size_t i = 0; i < t->n_dims; i++) {
        n *= t->shape[i]; /* its bytes were checked; the smallest type has 4 bits, so this is at most 2^49 */
    }
    return n;
}

static double count_parameters(const struct model_file *f) {
    double n = 0;
    for (size_t i = 0; i < f->n_tensors; i++) {
        n += (double)tensor_elements(&f->tensors[i]);
    }
    return n;
}

static size_t file_bytes(const struct model_file *f) {
    size_t n = 0;
    for (size_t i = 0; i < f->n_parts; i++) {
        n += f->parts[i].map.size;
    }
    return n;
}

struct type_total {
    const char *type;
    bool computed;
    size_t n, bytes;
};

/* Types in the order of their bytes; type names are static, so a type is known by its pointer. */
static size_t total_types(const struct model_file *f, struct type_total *out, size_t max) {
    size_t n = 0;
    for (size_t i = 0; i < f->n_tensors; i++) {
        size_t k = 0;
        while (k < n && out[k].type != f->tensors[i].type) {
            k++;
        }
        if (k == n) {
            if (n == max) {
                continue;
            }
            out[n++] = (struct type_total){.type = f->tensors[i].type, .computed = is_computed(f->tensors[i].dtype)};
        }
        out[k].n++;
        out[k].bytes += f->tensors[i].size;
    }
    for (size_t i = 1; i < n; i++) {
        for (size_t k = i; k > 0 && out[k].bytes > out[k - 1].bytes; k--) {
            struct type_total swap = out[k];
            out[k] = out[k - 1];
            out[k - 1] = swap;
        }
    }
    return n;
}

/* ---- text ---- */

static void text_summary(const struct model_file *f, const char *quantization, struct buf *out, struct buf *cell) {
    struct table t = {.n_columns = 2};
    table_add_text(&t, cell, "file");
    print_quoted(cell, f->path, strlen(f->path), MODEL_MAX_PATH);
    table_add(&t, cell);
    table_add_text(&t, cell, "format");
    if (f->format == MODEL_FORMAT_GGUF) {
        buf_printf(cell, "GGUF version %u", f->version);
    } else {
        buf_puts(cell, "safetensors");
    }
    table_add(&t, cell);
    table_add_text(&t, cell, "size");
    print_bytes(cell, file_bytes(f));
    buf_printf(cell, " in %zu file%s", f->n_parts, f->n_parts == 1 ? "" : "s");
    table_add(&t, cell);
    table_add_text(&t, cell, "parameters");
    print_count(cell, count_parameters(f));
    table_add(&t, cell);
    struct type_total types[32];
    size_t n = total_types(f, types, sizeof types / sizeof types[0]);
    for (size_t i = 0; i < n; i++) {
        table_add_text(&t, cell, i == 0 ? "types" : "");
        buf_printf(cell, "%s: ", types[i].type);
        print_bytes(cell, types[i].bytes);
        buf_printf(cell, " in %zu tensor%s%s", types[i].n, types[i].n == 1 ? "" : "s",
                   types[i].computed || quantization ? "" : " (not supported)");
        table_add(&t, cell);
    }
    if (quantization) {
        table_add_text(&t, cell, "quantised");
        print_bare(cell, quantization, strlen(quantization), SHOWN_LINE_CHARS);
        table_add(&t, cell);
    }
    table_print(&t, out);
}

static void text_files(const struct model_file *f, struct buf *out, struct buf *cell) {
    if (f->n_parts < 2) {
        return;
    }
    struct table t = {.n_columns = 2, .right = {true, false}};
    buf_printf(out, "\nFiles (%zu)\n", f->n_parts);
    for (size_t i = 0; i < f->n_parts; i++) {
        print_bytes(cell, f->parts[i].map.size);
        table_add(&t, cell);
        print_quoted(cell, f->parts[i].path, strlen(f->parts[i].path), MODEL_MAX_PATH);
        table_add(&t, cell);
    }
    table_print(&t, out);
}

static void text_metadata(const struct model_file *f, struct buf *out, struct buf *cell) {
    if (f->meta.n == 0) {
        return;
    }
    struct table t = {.n_columns = 3};
    buf_printf(out, "\nMetadata (%zu)\n", f->meta.n);
    for (size_t i = 0; i < f->meta.n; i++) {
        const struct meta *m = &f->meta.items[i];
        print_bare(cell, m->key.data, m->key.len, SHOWN_CHARS);
        table_add(&t, cell);
        if (m->type == META_ARRAY) {
            buf_printf(cell, "%s[%zu]", meta_type_name(m->element), m->count);
            table_add(&t, cell);
            print_elements(cell, m, false);
        } else {
            table_add_text(&t, cell, meta_type_name(m->type));
            print_element(cell, m, 0, false);
        }
        table_add(&t, cell);
    }
    table_print(&t, out);
}

/* The members of a JSON object, one a line; inner containers as JSON, shortened. */
static void text_object(const char *title, const cJSON *object, struct buf *out, struct buf *cell) {
    if (!object) {
        return;
    }
    struct table t = {.n_columns = 2};
    buf_printf(out, "\n%s (%d)\n", title, cJSON_GetArraySize(object));
    const cJSON *item;
    cJSON_ArrayForEach(item, object) {
        print_bare(cell, item->string, strlen(item->string), SHOWN_CHARS);
        table_add(&t, cell);
        if (cJSON_IsString(item)) {
            print_quoted(cell, item->valuestring, strlen(item->valuestring), SHOWN_CHARS);
        } else if (cJSON_IsNumber(item)) {
            print_double(cell, item->valuedouble, false, false);
        } else {
            char *json = cJSON_PrintUnformatted(item);
            print_bare(cell, json ? json : "", json ? strlen(json) : 0, SHOWN_CHARS);
            cell->failed |= !json;
            cJSON_free(json);
        }
        table_add(&t, cell);
    }
    table_print(&t, out);
}

static void text_tensors(const struct model_file *f, struct buf *out, struct buf *cell) {
    if (f->n_tensors == 0) {
        buf_puts(out, "\nNo tensors.\n");
        return;
    }
    struct table t = {.n_columns = 4, .right = {false, false, false, true}};
    buf_printf(out, "\nTensors (%zu)\n", f->n_tensors);
    for (size_t i = 0; i < f->n_tensors && !t.cells.failed; i++) {
        const struct tensor *tensor = &f->tensors[i];
        print_bare(cell, tensor->name, strlen(tensor->name), SHOWN_CHARS);
        table_add(&t, cell);
        table_add_text(&t, cell, tensor->type);
        for (size_t d = 0; d < tensor->n_dims; d++) {
            buf_printf(cell, "%s%zu", d ? " x " : "", tensor->shape[d]);
        }
        table_add(&t, cell);
        print_bytes(cell, tensor->size);
        table_add(&t, cell);
    }
    table_print(&t, out);
}

static void describe_text(const struct model_file *f, const char *quantization, struct buf *out, struct buf *cell) {
    text_summary(f, quantization, out, cell);
    text_files(f, out, cell);
    text_metadata(f, out, cell);
    text_object("Annotations", f->n_parts ? f->parts[0].annotation : NULL, out, cell);
    text_object("config.json", f->config, out, cell);
    text_tensors(f, out, cell);
}

/* ---- JSON ---- */

static void json_text(struct buf *b, const char *s) {
    buf_json_string(b, s, strlen(s));
}

static void json_files(const struct model_file *f, struct buf *b) {
    buf_puts(b, ",\n \"files\": [");
    for (size_t i = 0; i < f->n_parts; i++) {
        buf_puts(b, i ? ",\n  {\"path\": " : "\n  {\"path\": ");
        json_text(b, f->parts[i].path);
        buf_printf(b, ", \"size\": %zu}", f->parts[i].map.size);
    }
    buf_puts(b, "]");
}

static void json_metadata(const struct model_file *f, struct buf *b) {
    buf_puts(b, ",\n \"metadata\": {");
    for (size_t i = 0; i < f->meta.n; i++) {
        const struct meta *m = &f->meta.items[i];
        buf_puts(b, i ? ",\n  " : "\n  ");
        buf_json_string(b, m->key.data, m->key.len);
        buf_printf(b, ": {\"type\": \"%s\", ", meta_type_name(m->type));
        if (m->type == META_ARRAY) {
            buf_printf(b, "\"element\": \"%s\", \"count\": %zu, \"value\": ", meta_type_name(m->element), m->count);
            print_elements(b, m, true);
        } else {
            buf_puts(b, "\"value\": ");
            print_element(b, m, 0, true);
        }
        buf_putc(b, '}');
    }
    buf_puts(b, "}");
}

static void json_object(const char *name, const cJSON *object, struct buf *b) {
    if (object) {
        char *json = cJSON_PrintUnformatted(object);
        buf_printf(b, ",\n \"%s\": ", name);
        buf_puts(b, json ? json : "");
        b->failed |= !json;
        cJSON_free(json);
    }
}

static void json_tensors(const struct model_file *f, struct buf *b) {
    buf_puts(b, ",\n \"tensors\": [");
    for (size_t i = 0; i < f->n_tensors && !b->failed; i++) {
        const struct tensor *t = &f->tensors[i];
        buf_puts(b, i ? ",\n  {\"name\": " : "\n  {\"name\": ");
        json_text(b, t->name);
        buf_printf(b, ", \"type\": \"%s\", \"supported\": %s, \"shape\": [", t->type,
                   is_computed(t->dtype) ? "true" : "false");
        for (size_t d = 0; d < t->n_dims; d++) {
            buf_printf(b, "%s%zu", d ? ", " : "", t->shape[d]);
        }
        buf_printf(b, "], \"size\": %zu, \"file\": %u, \"offset\": %zu}", t->size, t->part, f->origins[i].offset);
    }
    buf_puts(b, "]");
}

static void describe_json(const struct model_file *f, const char *quantization, struct buf *b) {
    buf_puts(b, "{\"path\": ");
    json_text(b, f->path);
    buf_printf(b, ",\n \"format\": \"%s\"", f->format == MODEL_FORMAT_GGUF ? "gguf" : "safetensors");
    if (f->format == MODEL_FORMAT_GGUF) {
        buf_printf(b, ",\n \"version\": %u", f->version);
    }
    buf_printf(b, ",\n \"size\": %zu,\n \"n_parameters\": %.0f,\n \"n_tensors\": %zu", file_bytes(f),
               count_parameters(f), f->n_tensors);
    if (quantization) {
        buf_puts(b, ",\n \"quantization\": ");
        json_text(b, quantization);
    }
    json_files(f, b);
    if (f->format == MODEL_FORMAT_GGUF) {
        json_metadata(f, b);
    }
    json_object("annotations", f->n_parts ? f->parts[0].annotation : NULL, b);
    json_object("config", f->config, b);
    json_tensors(f, b);
    buf_puts(b, "}\n");
}

int model_file_describe(const struct model_file *f, bool json, const char *quantization, struct buf *out,
                        struct error *err) {
    struct buf cell = BUF_INIT;
    if (json) {
        describe_json(f, quantization, out);
    } else {
        describe_text(f, quantization, out, &cell);
    }
    buf_free(&cell);
    return out->failed ? error_memory(err) : 0;
}
