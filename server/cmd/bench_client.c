#include "cmd/bench_client.h"

#include "cmd/answer.h"

#include <inferd/buf.h>
#include <inferd/clock.h>

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

struct client {
    int fd; /* -1 = free */
    bool connecting, counts, done;
    struct buf out;
    size_t sent;
    uint64_t began_ns; /* when it was to begin */
    uint64_t first_ns, last_ns;
    uint64_t events, usage; /* with text; tokens as the server counts them, 0 = it does not say */
    uint64_t counted;       /* events while it counted */
    struct answer answer;
};

struct load {
    const struct bench_load *o;
    struct bench_counts *c;
    struct addrinfo *address; /* owned */
    struct client *clients;   /* [streams] */
    struct pollfd *fds;       /* [streams] */
    struct bench_random random, arrivals;
    uint64_t begin_ns, end_ns, now; /* what counts lies between these */
    uint64_t next_ns;               /* Poisson: when the next request is to begin */
    size_t begun, live;
    struct client *current; /* whose bytes are being read */
};

static uint64_t ns(double seconds) {
    return (uint64_t)(seconds * 1e9 + 0.5);
}

/* ---- addresses ----------------------------------------------------------------------------------------------- */

static int resolve(const struct bench_url *url, struct addrinfo **out, struct error *err) {
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    int rc = getaddrinfo(url->host, url->port, &hints, out);
    return rc == 0 ? 0 : error_set(err, ERROR_IO, "%.200s: %s", url->host, gai_strerror(rc));
}

static void put_head(struct buf *out, const char *method, const char *path, const struct bench_url *url, const char *key) {
    bool six = strchr(url->host, ':') != NULL;
    buf_printf(out, "%s %s%s HTTP/1.1\r\nHost: %s%s%s:%s\r\nConnection: close\r\n", method, url->path, path, six ? "[" : "", url->host,
               six ? "]" : "", url->port);
    if (key[0]) {
        buf_printf(out, "Authorization: Bearer %s\r\n", key);
    }
}

static int try_addresses(const struct addrinfo *list, struct error *err) {
    const struct timeval patience = {.tv_sec = 10};
    for (const struct addrinfo *a = list; a; a = a->ai_next) {
        int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        if (fd < 0) {
            continue;
        }
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
        if (connect(fd, a->ai_addr, a->ai_addrlen) == 0) {
            return fd;
        }
        close(fd);
    }
    return error_set(err, ERROR_IO, "there is no server that takes connections: %s", strerror(errno));
}

/* The id behind the first `"id":` of a text; false if there is none that a request could carry. */
static bool find_id(const char *text, char *out, size_t size) {
    const char *at = strstr(text, "\"id\"");
    at = at ? at + 4 + strspn(at + 4, " \t\r\n:") : NULL;
    size_t len = at && *at == '"' ? strcspn(at + 1, "\"\\") : 0;
    if (len == 0 || len >= size || at[1 + len] != '"') {
        return false;
    }
    for (size_t i = 0; i < len; i++) {
        if ((unsigned char)at[1 + i] < ' ') {
            return false;
        }
    }
    memcpy(out, at + 1, len);
    out[len] = '\0';
    return true;
}

int bench_first_model(const struct bench_url *url, const char *key, char *out, size_t size, struct error *err) {
    enum { MOST = 1 << 20 };
    struct addrinfo *list;
    struct buf request = BUF_INIT, answer = {.limit = MOST};
    if (resolve(url, &list, err) < 0) {
        return -1;
    }
    put_head(&request, "GET", "/v1/models", url, key);
    buf_puts(&request, "\r\n");
    int fd = request.failed ? error_memory(err) : try_addresses(list, err), rc = -1;
    freeaddrinfo(list);
    if (fd >= 0) {
        char block[4096];
        ssize_t n = send(fd, request.data, request.len, MSG_NOSIGNAL);
        while (n > 0 && !answer.failed && (n = recv(fd, block, sizeof block, 0)) > 0) {
            buf_append(&answer, block, (size_t)n);
        }
        close(fd);
        rc = answer.data && !answer.failed && find_id(answer.data, out, size)
                 ? 0
                 : error_set(err, ERROR_IO, "http://%.100s:%s%.200s/v1/models names no model", url->host, url->port, url->path);
    }
    buf_free(&request);
    buf_free(&answer);
    return rc;
}

/* ---- a request ----------------------------------------------------------------------------------------------- */

static void make_request(struct load *l, struct client *k) {
    const struct bench_load *o = l->o;
    struct buf body = BUF_INIT;
    size_t n = bench_draw_range(&l->random, o->prompt_tokens), most = bench_draw_range(&l->random, o->output_tokens);
    buf_puts(&body, "{\"model\": ");
    buf_json_string(&body, o->model, strlen(o->model));
    buf_puts(&body, ", \"prompt\": [");
    for (size_t i = 0; i < n; i++) {
        buf_printf(&body, "%s%zu", i ? "," : "", bench_draw_range(&l->random, o->prompt_ids));
    }
    buf_printf(&body, "], \"max_tokens\": %zu, \"temperature\": 0, \"ignore_eos\": true, \"stream\": true, "
                      "\"stream_options\": {\"include_usage\": true}}", most);
    buf_reset(&k->out);
    put_head(&k->out, "POST", "/v1/completions", &o->url, o->key);
    buf_printf(&k->out, "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n", body.len);
    buf_append(&k->out, body.data, body.len);
    k->out.failed = k->out.failed || body.failed;
    buf_free(&body);
}

static void end_client(struct load *l, struct client *k) {
    if (k->fd >= 0) {
        close(k->fd);
        l->live--;
    }
    k->fd = -1;
    k->connecting = false;
}

static void fail_client(struct load *l, struct client *k, uint64_t *count) {
    ++*count;
    end_client(l, k);
}

static void begin_request(struct load *l, struct client *k, uint64_t at) {
    const struct addrinfo *a = l->address;
    l->begun++;
    k->began_ns = at;
    k->first_ns = k->last_ns = k->events = k->usage = k->counted = 0;
    k->sent = 0;
    k->done = false;
    k->counts = at >= l->begin_ns && at < l->end_ns;
    answer_begin(&k->answer);
    make_request(l, k);
    l->c->started += k->counts;
    k->fd = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol);
    if (k->fd < 0 || k->out.failed) {
        l->live += k->fd >= 0;
        fail_client(l, k, &l->c->connect_errors);
        return;
    }
    l->live++;
    int on = 1;
    setsockopt(k->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    k->connecting = true;
    if (connect(k->fd, a->ai_addr, a->ai_addrlen) < 0 && errno != EINPROGRESS) {
        fail_client(l, k, &l->c->connect_errors);
    }
}

/* ---- what comes back ----------------------------------------------------------------------------------------- */

static const char *find(const char *data, size_t len, const char *what) {
    return memmem(data, len, what, strlen(what));
}

/* Is there text in the event: `"text":"x` or `"content":"x`? */
static bool has_text(const char *data, size_t len) {
    static const char *const keys[] = {"\"text\":", "\"content\":"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const char *at = find(data, len, keys[i]);
        if (at) {
            at += strlen(keys[i]);
            while (at < data + len && *at == ' ') {
                at++;
            }
            return at + 1 < data + len && at[0] == '"' && at[1] != '"';
        }
    }
    return false;
}

/* The usage's tokens; bounded, for the server may say anything. */
static uint64_t find_usage(const char *data, size_t len) {
    static const char key[] = "\"completion_tokens\":";
    const char *at = find(data, len, key), *end = data + len;
    uint64_t n = 0;
    for (at = at ? at + strlen(key) : end; at < end && *at == ' '; at++) {
    }
    for (; at < end && *at >= '0' && *at <= '9' && n < 1000000000; at++) {
        n = n * 10 + (uint64_t)(*at - '0');
    }
    return n;
}

static void keep_error(struct load *l, const char *data, size_t len) {
    struct bench_counts *c = l->c;
    if (c->first_error[0]) {
        return;
    }
    for (size_t i = 0; i < len && i + 1 < sizeof c->first_error; i++) {
        c->first_error[i] = data[i] >= ' ' && data[i] < 127 ? data[i] : '?';
        c->first_error[i + 1] = '\0';
    }
}

static void on_event(void *arg, const char *data, size_t len) {
    struct load *l = arg;
    struct client *k = l->current;
    if (len == 6 && memcmp(data, "[DONE]", 6) == 0) {
        k->done = true;
        return;
    }
    uint64_t usage = find_usage(data, len);
    k->usage = usage > 0 ? usage : k->usage;
    if (find(data, len, "\"error\":{") || find(data, len, "\"error\": {")) {
        keep_error(l, data, len);
    }
    if (!has_text(data, len)) {
        return;
    }
    bool now_counts = l->now >= l->begin_ns && l->now < l->end_ns;
    if (k->counts) {
        times_add(k->events == 0 ? &l->c->ttft : &l->c->itl, l->now - (k->events == 0 ? k->began_ns : k->last_ns));
    }
    k->first_ns = k->events == 0 ? l->now : k->first_ns;
    k->last_ns = l->now;
    k->events++;
    k->counted += now_counts;
    l->c->events += now_counts;
}

/* What a good answer is worth: the events that came while it counted are a part of its tokens. */
static void finish(struct load *l, struct client *k) {
    struct bench_counts *c = l->c;
    const struct bench_load *o = l->o;
    uint64_t tokens = k->usage > 0 ? k->usage : k->events;
    if (k->events > 0) {
        c->tokens += (uint64_t)((double)tokens * (double)k->counted / (double)k->events + 0.5);
    }
    if (k->counts) {
        double ttft = (double)(k->first_ns - k->began_ns) * 1e-9;
        double itl = k->events > 1 ? (double)(k->last_ns - k->first_ns) * 1e-9 / (double)(k->events - 1) : 0;
        c->finished++;
        c->good += (o->ttft_limit == 0 || ttft <= o->ttft_limit) && (o->itl_limit == 0 || itl <= o->itl_limit);
        times_add(&c->e2e, l->now - k->began_ns);
    }
    end_client(l, k);
}

static void judge(struct load *l, struct client *k) {
    struct bench_counts *c = l->c;
    int status = k->answer.status;
    if (k->answer.state == ANSWER_BROKEN) {
        fail_client(l, k, &c->broken);
    } else if (status == 429 || status == 503) {
        fail_client(l, k, &c->refused_busy);
    } else if (status >= 500) {
        fail_client(l, k, &c->failed_5xx);
    } else if (status != 200) {
        fail_client(l, k, &c->refused);
    } else if (!k->done || k->events == 0) {
        fail_client(l, k, &c->broken);
    } else {
        finish(l, k);
    }
}

static bool send_more(struct client *k) {
    while (k->sent < k->out.len) {
        ssize_t n = send(k->fd, k->out.data + k->sent, k->out.len - k->sent, MSG_NOSIGNAL);
        if (n < 0) {
            return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
        }
        k->sent += (size_t)n;
    }
    return true;
}

static void on_readable(struct load *l, struct client *k) {
    static char bytes[1 << 16];
    for (int turns = 0; turns < 16 && k->fd >= 0; turns++) {
        ssize_t n = recv(k->fd, bytes, sizeof bytes, 0);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
            return;
        }
        l->now = clock_now_ns();
        if (n <= 0) {
            answer_end(&k->answer);
            judge(l, k);
            return;
        }
        l->current = k;
        size_t taken = answer_feed(&k->answer, bytes, (size_t)n, on_event, l);
        if (k->answer.status >= 400 && !k->answer.event_stream && k->answer.state != ANSWER_HEADER) {
            const char *words = find(bytes, (size_t)n, "{");
            keep_error(l, words ? words : bytes, words ? (size_t)(bytes + n - words) : taken);
        }
        if (k->answer.state == ANSWER_DONE || k->answer.state == ANSWER_BROKEN) {
            judge(l, k);
        }
    }
}

static void on_ready(struct load *l, struct client *k, short events) {
    if (k->connecting && (events & (POLLOUT | POLLERR | POLLHUP))) {
        int fault = 0;
        socklen_t len = sizeof fault;
        getsockopt(k->fd, SOL_SOCKET, SO_ERROR, &fault, &len);
        if (fault) {
            fail_client(l, k, &l->c->connect_errors);
            return;
        }
        k->connecting = false;
    }
    if (!k->connecting && k->sent < k->out.len && !send_more(k)) {
        fail_client(l, k, &l->c->broken);
        return;
    }
    if (events & (POLLIN | POLLERR | POLLHUP)) {
        on_readable(l, k);
    }
}

/* ---- all of it ----------------------------------------------------------------------------------------------- */

static bool more_to_begin(const struct load *l) {
    return l->o->requests ? l->begun < l->o->requests : l->now < l->end_ns;
}

static void begin_due(struct load *l) {
    for (size_t i = 0; i < l->o->streams && more_to_begin(l); i++) {
        struct client *k = &l->clients[i];
        if (k->fd >= 0) {
            continue;
        }
        if (l->o->rate == 0) {
            begin_request(l, k, l->now);
        } else if (l->next_ns <= l->now) {
            l->c->late += l->now - l->next_ns > 100000000;
            begin_request(l, k, l->next_ns); /* measured from when it was to begin */
            l->next_ns += ns(bench_draw_gap(&l->arrivals, l->o->rate));
        } else {
            return;
        }
    }
}

static int wait_ms(const struct load *l) {
    if (l->o->rate == 0 || !more_to_begin(l) || l->live == l->o->streams) {
        return 20;
    }
    uint64_t left = l->next_ns > l->now ? l->next_ns - l->now : 0;
    return left > 20000000 ? 20 : (int)(left / 1000000);
}

static int turn(struct load *l, struct error *err) {
    uint64_t limit = ns(l->o->request_limit);
    for (size_t i = 0; i < l->o->streams; i++) {
        struct client *k = &l->clients[i];
        bool writes = k->connecting || k->sent < k->out.len;
        l->fds[i] = (struct pollfd){.fd = k->fd, .events = (short)(writes ? POLLOUT | POLLIN : POLLIN)};
    }
    int n = poll(l->fds, (nfds_t)l->o->streams, wait_ms(l));
    if (n < 0 && errno != EINTR) {
        return error_set(err, ERROR_IO, "poll: %s", strerror(errno));
    }
    l->now = clock_now_ns();
    for (size_t i = 0; i < l->o->streams; i++) {
        struct client *k = &l->clients[i];
        if (k->fd >= 0 && n > 0 && l->fds[i].revents) {
            on_ready(l, k, l->fds[i].revents);
        }
        if (k->fd >= 0 && l->now > k->began_ns && l->now - k->began_ns > limit) {
            fail_client(l, k, &l->c->timed_out);
        }
    }
    return 0;
}

static int run(struct load *l, struct error *err) {
    const struct bench_load *o = l->o;
    uint64_t start = l->now = clock_now_ns();
    size_t fruitless = 0; /* turns in which connections could not be made: nobody is there */
    l->begin_ns = o->requests ? start : start + ns(o->warmup);
    l->end_ns = o->requests ? UINT64_MAX : l->begin_ns + ns(o->duration);
    l->next_ns = start;
    while (more_to_begin(l) || l->live > 0) {
        uint64_t failed = l->c->connect_errors;
        begin_due(l);
        if (turn(l, err) < 0) {
            return -1;
        }
        fruitless = l->c->connect_errors > failed && l->live == 0 ? fruitless + 1 : 0;
        if (fruitless > 0) {
            const struct timespec pause = {.tv_nsec = 10000000}; /* not as fast as the machine can fail */
            nanosleep(&pause, NULL);
        }
        if (fruitless == 100 && l->c->finished == 0) {
            return error_set(err, ERROR_IO, "no connection to http://%.100s:%s could be made", o->url.host, o->url.port);
        }
    }
    uint64_t end = o->requests ? l->now : l->end_ns;
    l->c->seconds = (double)(end - l->begin_ns) * 1e-9;
    return 0;
}

static int check_descriptors(size_t streams, struct error *err) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    return limit.rlim_cur >= streams + 16
               ? 0
               : error_set(err, ERROR_IO, "%zu streams want more descriptors than the process may have (ulimit -Hn)", streams);
}

/* The first address that takes a connection. */
static int choose_address(struct load *l, struct error *err) {
    struct addrinfo *list = l->address;
    for (struct addrinfo *a = list; a; a = a->ai_next) {
        int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        bool ok = fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) == 0;
        if (fd >= 0) {
            close(fd);
        }
        if (ok) {
            l->address = a;
            return 0;
        }
    }
    return error_set(err, ERROR_IO, "no connection to http://%.100s:%s could be made: %s", l->o->url.host, l->o->url.port, strerror(errno));
}

int bench_load_run(const struct bench_load *o, struct bench_counts *out, struct error *err) {
    struct load l = {.o = o, .c = out, .random = {o->seed}, .arrivals = {o->seed ^ 0x5851f42d4c957f2du}};
    *out = (struct bench_counts){0};
    if (check_descriptors(o->streams, err) < 0 || resolve(&o->url, &l.address, err) < 0) {
        return -1;
    }
    struct addrinfo *list = l.address;
    l.clients = calloc(o->streams, sizeof *l.clients);
    l.fds = calloc(o->streams, sizeof *l.fds);
    int rc = l.clients && l.fds ? choose_address(&l, err) : error_memory(err);
    for (size_t i = 0; l.clients && i < o->streams; i++) {
        l.clients[i].fd = -1;
    }
    rc = rc == 0 ? run(&l, err) : rc;
    for (size_t i = 0; l.clients && i < o->streams; i++) {
        end_client(&l, &l.clients[i]);
        buf_free(&l.clients[i].out);
        answer_free(&l.clients[i].answer);
    }
    freeaddrinfo(list);
    free(l.clients);
    free(l.fds);
    return rc;
}
