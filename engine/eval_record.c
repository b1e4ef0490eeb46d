/*
 * A recorded reference. Little endian, no padding:
 *
 *   head      magic[8] "INFERDEV", u32 version, top, vocab_size, context, stride, bos, u64 n, tokens_hash[32],
 *             model_hash[32], description[128]
 *   n times   i32 target, f32 target_logprob, i32 ids[top], f32 logprobs[top]
 *
 * The size of the file follows from the head.
 */
#include <inferd/eval.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char magic[8] = {'I', 'N', 'F', 'E', 'R', 'D', 'E', 'V'};

enum {
    VERSION = 1,
    HEAD_BYTES = 8 + 6 * 4 + 8 + 2 * EVAL_HASH_BYTES + EVAL_DESCRIPTION,
    MAX_PATH = 4096,
};

/* Bounds of what a head may say. */
#define MAX_VOCAB ((uint32_t)1 << 24)
#define MAX_CONTEXT ((uint32_t)1 << 27)
#define MAX_RECORDS ((uint64_t)1 << 40)

static size_t record_bytes(uint32_t top) {
    return 8 + (size_t)top * 8;
}

static void put(unsigned char **p, uint64_t v, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        *(*p)++ = (unsigned char)(v >> 8 * i);
    }
}

static uint64_t take(const unsigned char **p, size_t bytes) {
    uint64_t v = 0;
    for (size_t i = 0; i < bytes; i++) {
        v |= (uint64_t)*(*p)++ << 8 * i;
    }
    return v;
}

static void put_float(unsigned char **p, float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    put(p, bits, 4);
}

static float take_float(const unsigned char **p) {
    uint32_t bits = (uint32_t)take(p, 4);
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* ---- writing ---- */

struct eval_writer {
    FILE *file;
    char path[MAX_PATH], partial[MAX_PATH];
    uint32_t top;
    uint64_t n, written;
    unsigned char *record; /* [record_bytes(top)], owned */
};

static int fail_write(const struct eval_writer *w, struct error *err) {
    return error_set(err, ERROR_IO, "%.300s cannot be written: %s", w->partial, strerror(errno));
}

static int write_head(struct eval_writer *w, const struct eval_record_header *h, struct error *err) {
    unsigned char head[HEAD_BYTES], *p = head;
    memcpy(p, magic, sizeof magic);
    p += sizeof magic;
    const uint32_t numbers[] = {VERSION, h->top, h->vocab_size, h->context, h->stride, h->bos};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        put(&p, numbers[i], 4);
    }
    put(&p, h->n, 8);
    memcpy(p, h->tokens_hash, EVAL_HASH_BYTES);
    memcpy(p + EVAL_HASH_BYTES, h->model_hash, EVAL_HASH_BYTES);
    memcpy(p + 2 * EVAL_HASH_BYTES, h->description, EVAL_DESCRIPTION);
    return fwrite(head, 1, sizeof head, w->file) == sizeof head ? 0 : fail_write(w, err);
}

int eval_writer_open(const char *path, const struct eval_record_header *header, struct eval_writer **out,
                     struct error *err) {
    if (header->top < 1 || header->top > EVAL_MAX_TOP || header->top > header->vocab_size) {
        return error_set(err, ERROR_INVALID, "a reference keeps 1 to %d ids of each distribution, no more than there are",
                         EVAL_MAX_TOP);
    }
    struct eval_writer *w = calloc(1, sizeof *w);
    if (!w || !(w->record = malloc(record_bytes(header->top)))) {
        free(w);
        return error_memory(err);
    }
    w->top = header->top;
    w->n = header->n;
    int rc = 0;
    if (snprintf(w->path, sizeof w->path, "%s", path) >= (int)sizeof w->path ||
        snprintf(w->partial, sizeof w->partial, "%s.partial", path) >= (int)sizeof w->partial) {
        rc = error_set(err, ERROR_INVALID, "the path of the reference is too long");
    } else if (!(w->file = fopen(w->partial, "wbe"))) {
        rc = fail_write(w, err);
    } else {
        rc = write_head(w, header, err);
    }
    if (rc < 0) {
        eval_writer_abandon(w);
        return -1;
    }
    *out = w;
    return 0;
}

int eval_writer_add(struct eval_writer *w, const struct eval_top *top, struct error *err) {
    unsigned char *p = w->record;
    if (top->n != w->top || w->written == w->n) {
        return error_set(err, ERROR_INTERNAL, "a record does not fit the head of its file");
    }
    put(&p, (uint32_t)top->target, 4);
    put_float(&p, top->target_logprob);
    for (size_t i = 0; i < top->n; i++) {
        put(&p, (uint32_t)top->ids[i], 4);
    }
    for (size_t i = 0; i < top->n; i++) {
        put_float(&p, top->logprobs[i]);
    }
    w->written++;
    size_t bytes = record_bytes(w->top);
    return fwrite(w->record, 1, bytes, w->file) == bytes ? 0 : fail_write(w, err);
}

static void free_writer(struct eval_writer *w) {
    if (w->file) {
        fclose(w->file);
    }
    free(w->record);
    free(w);
}

int eval_writer_finish(struct eval_writer *w, struct error *err) {
    int rc = 0;
    if (w->written != w->n) {
        rc = error_set(err, ERROR_INTERNAL, "%llu of %llu records were written", (unsigned long long)w->written,
                       (unsigned long long)w->n);
    } else if (fflush(w->file) != 0 || fsync(fileno(w->file)) != 0 || rename(w->partial, w->path) != 0) {
        rc = fail_write(w, err);
    }
    if (rc < 0) {
        eval_writer_abandon(w);
        return -1;
    }
    free_writer(w);
    return 0;
}

void eval_writer_abandon(struct eval_writer *w) {
    if (w) {
        if (w->file) {
            unlink(w->partial);
        }
        free_writer(w);
    }
}

/* ---- reading ---- */

struct eval_reader {
    FILE *file;
    char path[MAX_PATH];
    struct eval_record_header header;
    uint64_t at;           /* records read */
    unsigned char *record; /* [record_bytes(top)], owned */
    struct eval_top top;   /* its arrays are owned */
    uint64_t *seen;        /* [vocab_size] the last record that had this id, from 1; owned */
};

static int fail_read(const struct eval_reader *r, uint64_t offset, struct error *err, const char *reason) {
    size_t len = strlen(r->path), shown = 200;
    return error_set(err, ERROR_MODEL, "%s: offset %llu: %s", r->path + (len > shown ? len - shown : 0),
                     (unsigned long long)offset, reason);
}

static int read_head(struct eval_reader *r, struct error *err) {
    unsigned char head[HEAD_BYTES];
    const unsigned char *p = head;
    struct eval_record_header *h = &r->header;
    if (fread(head, 1, sizeof head, r->file) != sizeof head) {
        return fail_read(r, 0, err, "too short for a reference of inferd eval");
    }
    if (memcmp(p, magic, sizeof magic) != 0) {
        return fail_read(r, 0, err, "this is no reference of inferd eval");
    }
    p += sizeof magic;
    if (take(&p, 4) != VERSION) {
        return fail_read(r, 8, err, "written by another version of inferd eval");
    }
    h->top = (uint32_t)take(&p, 4);
    h->vocab_size = (uint32_t)take(&p, 4);
    h->context = (uint32_t)take(&p, 4);
    h->stride = (uint32_t)take(&p, 4);
    uint32_t bos = (uint32_t)take(&p, 4);
    h->n = take(&p, 8);
    if (h->vocab_size < 1 || h->vocab_size > MAX_VOCAB) {
        return fail_read(r, 16, err, "the size of the vocabulary is out of range");
    }
    if (h->top < 1 || h->top > EVAL_MAX_TOP || h->top > h->vocab_size) {
        return fail_read(r, 12, err, "the number of ids kept is out of range");
    }
    if (h->context < 2 || h->context > MAX_CONTEXT || h->stride < 1 || h->stride > h->context || bos > 1) {
        return fail_read(r, 20, err, "context, stride or BOS is out of range");
    }
    if (h->n < 1 || h->n > MAX_RECORDS) {
        return fail_read(r, 32, err, "the number of tokens is out of range");
    }
    h->bos = bos != 0;
    memcpy(h->tokens_hash, p, EVAL_HASH_BYTES);
    memcpy(h->model_hash, p + EVAL_HASH_BYTES, EVAL_HASH_BYTES);
    memcpy(h->description, p + 2 * EVAL_HASH_BYTES, EVAL_DESCRIPTION);
    size_t len = strnlen(h->description, EVAL_DESCRIPTION);
    for (size_t i = 0; i < len; i++) {
        if (h->description[i] < 0x20 || h->description[i] > 0x7e) {
            return fail_read(r, HEAD_BYTES - EVAL_DESCRIPTION, err, "the description is not printable");
        }
    }
    if (len == EVAL_DESCRIPTION) {
        return fail_read(r, HEAD_BYTES - EVAL_DESCRIPTION, err, "the description does not end");
    }
    return 0;
}

static int check_size(struct eval_reader *r, struct error *err) {
    struct stat st;
    if (fstat(fileno(r->file), &st) != 0 || !S_ISREG(st.st_mode)) {
        return fail_read(r, 0, err, "not a regular file");
    }
    /* cannot overflow: 2^40 * (8 + 8 * 4096) */
    uint64_t want = HEAD_BYTES + r->header.n * record_bytes(r->header.top);
    return (uint64_t)st.st_size == want ? 0 : fail_read(r, (uint64_t)st.st_size, err, "the file has not the size that its head tells");
}

static int open_reader(struct eval_reader *r, const char *path, struct error *err) {
    if (snprintf(r->path, sizeof r->path, "%s", path) >= (int)sizeof r->path) {
        return error_set(err, ERROR_INVALID, "the path of the reference is too long");
    }
    r->file = fopen(path, "rbe");
    if (!r->file) {
        return error_set(err, ERROR_MODEL, "%.300s: %s", path, strerror(errno));
    }
    if (read_head(r, err) < 0 || check_size(r, err) < 0) {
        return -1;
    }
    size_t top = r->header.top;
    r->record = malloc(record_bytes(r->header.top));
    r->top.ids = malloc(top * sizeof *r->top.ids);
    r->top.logprobs = malloc(top * sizeof *r->top.logprobs);
    r->seen = calloc(r->header.vocab_size, sizeof *r->seen);
    return r->record && r->top.ids && r->top.logprobs && r->seen ? 0 : error_memory(err);
}

int eval_reader_open(const char *path, struct eval_reader **out, struct error *err) {
    struct eval_reader *r = calloc(1, sizeof *r);
    if (!r) {
        return error_memory(err);
    }
    if (open_reader(r, path, err) < 0) {
        eval_reader_close(r);
        return -1;
    }
    *out = r;
    return 0;
}

const struct eval_record_header *eval_reader_header(const struct eval_reader *r) {
    return &r->header;
}

static bool is_logprob(float x) {
    return isfinite(x) && x <= 1e-3f; /* rounding may pass 0 */
}

/* Why a record is none, or NULL. */
static const char *check_record(struct eval_reader *r) {
    const struct eval_top *t = &r->top;
    double sum = 0;
    if (t->target < 0 || (uint32_t)t->target >= r->header.vocab_size || !is_logprob(t->target_logprob)) {
        return "the token, or its log-probability, is out of range";
    }
    for (size_t i = 0; i < t->n; i++) {
        if (t->ids[i] < 0 || (uint32_t)t->ids[i] >= r->header.vocab_size) {
            return "an id is out of range";
        }
        if (r->seen[t->ids[i]] == r->at) {
            return "an id comes twice";
        }
        r->seen[t->ids[i]] = r->at;
        if (!is_logprob(t->logprobs[i]) || (i > 0 && t->logprobs[i] > t->logprobs[i - 1])) {
            return "log-probabilities are out of range or rise";
        }
        sum += exp((double)t->logprobs[i]);
    }
    return sum > 1.001 ? "the probabilities come to more than 1" : NULL;
}

int eval_reader_next(struct eval_reader *r, const struct eval_top **out, struct error *err) {
    size_t bytes = record_bytes(r->header.top);
    uint64_t offset = HEAD_BYTES + r->at * bytes;
    if (r->at == r->header.n) {
        return fail_read(r, offset, err, "there are no more tokens");
    }
    if (fread(r->record, 1, bytes, r->file) != bytes) {
        return fail_read(r, offset, err, "the file ends early");
    }
    const unsigned char *p = r->record;
    r->at++;
    r->top.n = r->header.top;
    r->top.target = (int32_t)(uint32_t)take(&p, 4);
    r->top.target_logprob = take_float(&p);
    for (size_t i = 0; i < r->top.n; i++) {
        r->top.ids[i] = (int32_t)(uint32_t)take(&p, 4);
    }
    for (size_t i = 0; i < r->top.n; i++) {
        r->top.logprobs[i] = take_float(&p);
    }
    const char *wrong = check_record(r);
    if (wrong) {
        return fail_read(r, offset, err, wrong);
    }
    *out = &r->top;
    return 0;
}

void eval_reader_close(struct eval_reader *r) {
    if (r) {
        if (r->file) {
            fclose(r->file);
        }
        free(r->record);
        free(r->top.ids);
        free(r->top.logprobs);
        free(r->seen);
        free(r);
    }
}
