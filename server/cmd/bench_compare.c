/* `inferd bench --compare BEFORE AFTER`: two files that `inferd bench --json` wrote, row by row. */
#include "cmd/bench.h"

#include <inferd/json.h>

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_FILE = 16 << 20, MAX_ROWS = 4096, MAX_NAME = 200 };

/* What rows may tell, and whether more of it is better. */
static const struct {
    const char *name, *shown;
    bool more_is_better;
} metrics[] = {
    {"tokens_per_second", "tokens/s", true},
    {"goodput", "good requests/s", true},
    {"ttft_p50", "TTFT p50 s", false},
    {"ttft_p99", "TTFT p99 s", false},
    {"itl_p50", "ITL p50 s", false},
    {"itl_p99", "ITL p99 s", false},
    {"e2e_p50", "end to end p50 s", false},
    {"e2e_p99", "end to end p99 s", false},
};

static int load(const char *path, cJSON **out, struct error *err) {
    const struct json_limits limits = {.max_values = 1000000};
    struct buf text = BUF_INIT;
    cJSON *rows;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return error_set(err, ERROR_IO, "%.300s: %s", path, strerror(errno));
    }
    int rc = cmd_read_all(fd, MAX_FILE, &text, err);
    close(fd);
    rc = rc == 0 ? json_parse(text.data ? text.data : "", text.len, &limits, out, err) : rc;
    buf_free(&text);
    if (rc < 0) {
        return error_prefix(err, "%.200s", path);
    }
    rows = cJSON_GetObjectItemCaseSensitive(*out, "rows");
    if (!cJSON_GetObjectItemCaseSensitive(*out, "inferd_bench") || !cJSON_IsArray(rows) || cJSON_GetArraySize(rows) > MAX_ROWS) {
        cJSON_Delete(*out);
        *out = NULL;
        return error_set(err, ERROR_INVALID, "%.300s was not written by inferd bench --json", path);
    }
    return 0;
}

static const char *row_name(const cJSON *row) {
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(row, "name");
    return cJSON_IsString(name) && strlen(name->valuestring) < MAX_NAME ? name->valuestring : NULL;
}

static const cJSON *find_row(const cJSON *rows, const char *name) {
    const cJSON *row;
    cJSON_ArrayForEach(row, rows) {
        const char *its = row_name(row);
        if (its && strcmp(its, name) == 0) {
            return row;
        }
    }
    return NULL;
}

/* False if the row does not tell it. */
static bool get_spread(const cJSON *row, const char *name, struct bench_spread *out) {
    const cJSON *object = cJSON_GetObjectItemCaseSensitive(row, name);
    const cJSON *median = cJSON_GetObjectItemCaseSensitive(object, "median"), *min = cJSON_GetObjectItemCaseSensitive(object, "min"),
                *max = cJSON_GetObjectItemCaseSensitive(object, "max");
    if (!cJSON_IsNumber(median) || !cJSON_IsNumber(min) || !cJSON_IsNumber(max)) {
        return false;
    }
    struct bench_spread s = {median->valuedouble, min->valuedouble, max->valuedouble};
    if (!(s.min >= 0 && s.min <= s.median && s.median <= s.max && s.max < 1e18)) {
        return false;
    }
    *out = s;
    return true;
}

static const char *verdict(struct bench_ratio r, bool more_is_better) {
    return !r.apart ? "within the noise" : (r.ratio > 1) == more_is_better ? "better" : "worse";
}

static void put_row(struct buf *out, const char *name, size_t metric, struct bench_spread a, struct bench_spread b, bool json,
                    bool *first) {
    struct bench_ratio r = bench_ratio(a, b);
    const char *said = verdict(r, metrics[metric].more_is_better);
    if (json) {
        buf_puts(out, *first ? "\n " : ",\n ");
        buf_puts(out, "{\"name\": ");
        buf_json_string(out, name, strlen(name));
        buf_printf(out, ", \"metric\": \"%s\", ", metrics[metric].name);
        bench_put_spread(out, "before", a);
        buf_puts(out, ", ");
        bench_put_spread(out, "after", b);
        buf_printf(out, ", \"ratio\": %.5f, \"ratio_min\": %.5f, \"ratio_max\": %.5f, \"verdict\": \"%s\"}", r.ratio, r.min, r.max, said);
    } else {
        char before[64], after[64];
        snprintf(before, sizeof before, "%.4g (%.4g-%.4g)", a.median, a.min, a.max);
        snprintf(after, sizeof after, "%.4g (%.4g-%.4g)", b.median, b.min, b.max);
        buf_printf(out, "%-30.60s %-16s %-28s %-28s %6.3f (%.3f-%.3f)  %s\n", name, metrics[metric].shown, before, after, r.ratio,
                   r.min, r.max, said);
    }
    *first = false;
}

static void compare(const cJSON *before, const cJSON *after, bool json, struct buf *out) {
    const cJSON *rows = cJSON_GetObjectItemCaseSensitive(before, "rows"), *others = cJSON_GetObjectItemCaseSensitive(after, "rows"), *row;
    bool first = true;
    if (json) {
        buf_puts(out, "{\"rows\": [");
    } else {
        buf_printf(out, "%-30s %-16s %-28s %-28s %s\n", "case", "what", "before: median (min-max)", "after", "after / before");
    }
    cJSON_ArrayForEach(row, rows) {
        const char *name = row_name(row);
        const cJSON *other = name ? find_row(others, name) : NULL;
        for (size_t m = 0; other && m < sizeof metrics / sizeof metrics[0]; m++) {
            struct bench_spread a, b;
            if (get_spread(row, metrics[m].name, &a) && get_spread(other, metrics[m].name, &b)) {
                put_row(out, name, m, a, b, json, &first);
            }
        }
        if (name && !other && !json) {
            buf_printf(out, "%-30.60s only in the first file\n", name);
        }
    }
    cJSON_ArrayForEach(row, others) {
        const char *name = row_name(row);
        if (name && !json && !find_row(rows, name)) {
            buf_printf(out, "%-30.60s only in the second file\n", name);
        }
    }
    buf_puts(out, json ? "\n]}\n" : "\"within the noise\": the ranges from min to max overlap.\n");
}

int bench_compare(const char *before, const char *after, bool json, struct error *err) {
    cJSON *a = NULL, *b = NULL;
    struct buf out = BUF_INIT;
    int rc = load(before, &a, err);
    if (rc == 0 && (rc = load(after, &b, err)) == 0) {
        compare(a, b, json, &out);
        rc = out.failed ? error_memory(err) : 0;
        if (rc == 0) {
            fputs(out.data, stdout);
        }
        cJSON_Delete(b);
    }
    cJSON_Delete(a);
    buf_free(&out);
    return rc;
}
