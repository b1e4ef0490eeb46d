#include "content_log.h"

#include "api_common.h"
#include "loop.h"
#include "request.h"
#include "server_state.h"

#include <errno.h>
#include <fcntl.h>
#include <inferd/clock.h>
#include <inferd/log.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_PENDING ((size_t)64 << 20) /* bytes of records that wait for the disk */

struct content_log {
    pthread_mutex_t turn; /* fd, size, complained */
    int fd;               /* -1: there is none at the moment */
    size_t size, max;
    bool complained;
    _Atomic uint64_t lost;
    size_t pending; /* loop thread */
    char path[];
};

/* ---- the file ------------------------------------------------------------------------------------------------ */

static int refuse(const char *path, const char *why, struct error *err) {
    return error_set_param(err, ERROR_MODEL, "content_log", "content_log: %s: %s", path, why);
}

/* Its content is of no concern to others, whatever the umask and whoever made it. */
static int open_file(const char *path, size_t *size, struct error *err) {
    struct stat st;
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (fd < 0 || fstat(fd, &st) != 0) {
        refuse(path, strerror(errno), err);
    } else if (!S_ISREG(st.st_mode)) {
        refuse(path, "it is not a file", err);
    } else if (st.st_uid != geteuid()) {
        refuse(path, "it belongs to another user, who could read it", err);
    } else if ((st.st_mode & 0777) != 0600 && fchmod(fd, 0600) != 0) {
        refuse(path, strerror(errno), err);
    } else {
        *size = (size_t)st.st_size;
        return fd;
    }
    if (fd >= 0) {
        close(fd);
    }
    return -1;
}

int content_log_open(const char *path, size_t max, struct content_log **out, struct error *err) {
    size_t len = strlen(path) + 1, size = 0;
    struct content_log *c = calloc(1, sizeof *c + len);
    if (!c) {
        return error_memory(err);
    }
    int fd = open_file(path, &size, err);
    if (fd < 0) {
        free(c);
        return -1;
    }
    memcpy(c->path, path, len);
    c->fd = fd;
    c->size = size;
    c->max = max;
    pthread_mutex_init(&c->turn, NULL);
    *out = c;
    return 0;
}

void content_log_close(struct content_log *c) {
    if (c) {
        if (c->fd >= 0) {
            close(c->fd);
        }
        pthread_mutex_destroy(&c->turn);
        free(c);
    }
}

uint64_t content_log_lost(const struct content_log *c) {
    return c ? atomic_load(&c->lost) : 0;
}

static int rotate(struct content_log *c, struct error *err) {
    struct buf old = BUF_INIT;
    buf_printf(&old, "%s.1", c->path);
    int rc = old.failed ? error_memory(err) : rename(c->path, old.data) ? refuse(c->path, strerror(errno), err) : 0;
    buf_free(&old);
    if (rc == 0) {
        close(c->fd);
        c->fd = -1;
    }
    return rc;
}

static int put(struct content_log *c, const char *line, size_t len, struct error *err) {
    if (len > c->max) {
        return refuse(c->path, "a record is larger than content_log_max", err);
    }
    if (c->fd >= 0 && c->size > 0 && len > c->max - (c->size < c->max ? c->size : c->max) && rotate(c, err)) {
        return -1;
    }
    if (c->fd < 0) {
        size_t size = 0;
        int fd = open_file(c->path, &size, err);
        if (fd < 0) {
            return -1;
        }
        c->fd = fd;
        c->size = size;
    }
    for (size_t done = 0; done < len;) {
        ssize_t n = write(c->fd, line + done, len - done);
        if (n < 0 && errno != EINTR) {
            refuse(c->path, strerror(errno), err);
            if (done > 0 && ftruncate(c->fd, (off_t)c->size) != 0) { /* no half a record */
                c->size += done;
            }
            return -1;
        }
        done += n > 0 ? (size_t)n : 0;
    }
    c->size += len;
    return 0;
}

bool content_log_write(struct content_log *c, const char *line, size_t len) {
    struct error err;
    pthread_mutex_lock(&c->turn);
    bool written = put(c, line, len, &err) == 0, say = !written && !c->complained;
    c->complained = !written;
    pthread_mutex_unlock(&c->turn);
    if (!written) {
        atomic_fetch_add(&c->lost, 1);
    }
    if (say) {
        log_warn("a record is lost: %s", err.message);
    }
    return written;
}

/* ---- records ------------------------------------------------------------------------------------------------- */

struct record {
    struct server *server;
    struct buf line;
};

static void work(void *arg) {
    struct record *r = arg;
    content_log_write(r->server->content_log, r->line.data, r->line.len);
}

static void after(void *arg) {
    struct record *r = arg;
    struct server *s = r->server;
    s->content_log->pending -= r->line.len;
    s->n_jobs--;
    buf_free(&r->line);
    free(r);
    server_request_ended(s);
}

static void put_string(struct buf *out, const char *name, const char *value) {
    buf_printf(out, ",\"%s\":", name);
    buf_json_string(out, value, strlen(value));
}

/* The request's body is valid JSON, or it would not have got so far; line ends in it are white space. */
static void put_body(struct buf *out, const struct buf *body) {
    size_t from = out->len;
    buf_append(out, body->data, body->len);
    for (size_t i = from; !out->failed && i < out->len; i++) {
        if (out->data[i] == '\n' || out->data[i] == '\r') {
            out->data[i] = ' ';
        }
    }
}

static void write_record(const struct request *r, struct buf *out) {
    char ending[ACCESS_ENDING_MAX];
    buf_printf(out, "{\"time\":%lld", (long long)clock_unix_time());
    put_string(out, "request_id", r->access.id);
    put_string(out, "response_id", r->id);
    put_string(out, "key", r->access.key);
    put_string(out, "model", r->model);
    put_string(out, "route", r->access.route);
    put_string(out, "finish", access_ending(r, ending));
    buf_printf(out, ",\"status\":%d,\"request\":", r->access.status);
    put_body(out, &r->body);
    buf_puts(out, ",\"answers\":[");
    for (size_t i = 0; i < r->n_choices; i++) {
        const struct buf *text = &r->choices[i].content;
        buf_puts(out, i ? "," : "");
        buf_json_string(out, text->data ? text->data : "", text->len);
        out->failed = out->failed || text->failed;
    }
    buf_puts(out, "]}\n");
}

void content_log_request(struct request *r) {
    struct server *s = r->server;
    struct content_log *c = s->content_log;
    struct error err;
    if (r->n_choices == 0 || r->body.len == 0) {
        return;
    }
    struct record *record = calloc(1, sizeof *record);
    if (record) {
        record->server = s;
        write_record(r, &record->line);
        if (!record->line.failed && record->line.len <= MAX_PENDING - c->pending &&
            loop_work(s->loop, work, after, record, &err) == 0) {
            c->pending += record->line.len;
            s->n_jobs++;
            return;
        }
        buf_free(&record->line);
        free(record);
    }
    atomic_fetch_add(&c->lost, 1);
}
