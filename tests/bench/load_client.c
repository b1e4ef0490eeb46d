/*
 * The clients: each has one connection and one request at a time, all in one epoll set, edge-triggered. A client whose
 * request has ended begins the next at once, so that their number stays what it is.
 */
#include "load.h"

#include "cmd/answer.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define NOBODY ((size_t)-1)

struct client {
    int fd; /* -1 = none */
    bool connecting;
    bool idle; /* nothing is asked; in the list of idle ones */
    size_t next_idle;
    /* the request */
    char *out; /* owned */
    size_t out_len, out_pos;
    bool stream, malformed;
    bool may_hang_up; /* malformed in a way that ends in a closed connection, or is never answered */
    size_t abort_at;  /* events with text after which it is left; NOBODY = never */
    uint64_t sent_ns, last_ns;
    size_t tokens;
    bool open; /* counted in streaming */
    bool done, by_length;
    struct answer answer;
};

struct load {
    const struct load_options *o;
    struct load_counts *c;
    int epoll_fd;
    struct client *clients; /* [connections] */
    size_t first_idle;
    size_t n_connecting;
    bool counting, stopping;
    uint64_t now, random;
    struct client *current; /* whose bytes are being read */
};

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* xorshift64* (Vigna 2016), in [0, 1) */
static double chance(struct load *l) {
    l->random ^= l->random >> 12;
    l->random ^= l->random << 25;
    l->random ^= l->random >> 27;
    return (double)((l->random * 0x2545f4914f6cdd1du) >> 11) / 9007199254740992.0;
}

/* ---- what is asked ------------------------------------------------------------------------------------------- */

static char *http_request(const struct load_options *o, const char *path, const char *body, size_t *len) {
    char *text = NULL;
    int n = asprintf(
        &text,
        "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n%s%s%s%sContent-Length: %zu\r\n\r\n%s", path,
        o->host, o->key ? "Authorization: Bearer " : "", o->key ? o->key : "", o->key ? "\r\n" : "",
        o->reconnect ? "Connection: close\r\n" : "", strlen(body), body);
    *len = n > 0 ? (size_t)n : 0;
    return n > 0 ? text : NULL;
}

static const char *path_of(const struct load_options *o) {
    return o->chat ? "/v1/chat/completions" : "/v1/completions";
}

static void ask_well(struct load *l, struct client *k) {
    const struct load_options *o = l->o;
    char *body = NULL;
    k->stream = chance(l) >= o->plain;
    k->abort_at = chance(l) < o->aborts ? (size_t)(chance(l) * (double)o->max_tokens) : NOBODY;
    int n = asprintf(
        &body, "{\"model\":\"%s\",%s%s%s,\"max_tokens\":%zu,\"seed\":%u,\"ignore_eos\":true,\"stream\":%s}", o->model,
        o->chat ? "\"messages\":[{\"role\":\"user\",\"content\":\"" : "\"prompt\":\"", o->prompt,
        o->chat ? "\"}]" : "\"", o->max_tokens, (unsigned)(l->random & 0x7fffffff), k->stream ? "true" : "false");
    k->out = n > 0 ? http_request(o, path_of(o), body, &k->out_len) : NULL;
    free(body);
}

/* Wrong in one of many ways; the answer must be a 4xx, or the end of the connection where there is no telling. */
static void ask_badly(struct load *l, struct client *k) {
    static const struct {
        const char *raw;  /* the whole request, or */
        const char *path; /* NULL = the usual one */
        const char *body;
        bool may_hang_up;
    } ways[] = {
        {.body = "{"},
        {.body = ""},
        {.body = "[]"},
        {.body = "{\"model\":7}"},
        {.body = "{\"model\":\"no such model\",\"prompt\":\"x\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}"},
        {.body = "{\"prompt\":\"\\ud800\",\"messages\":\"\xff\"}"},
        {.body = "{\"max_tokens\":-1,\"max_tokens\":1}"},
        {.body = "{\"temperature\":1e999}"},
        {.path = "/v1/nothing", .body = "{}"},
        {.raw = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello"},
        {.raw = "DELETE /v1/completions HTTP/1.1\r\nHost: x\r\n\r\n"},
        {.raw = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n"},
        {.raw = "\x16\x03\x01\x02\x00\x01\x00 this is no HTTP\r\n\r\n", .may_hang_up = true},
        {.raw = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n", .may_hang_up = true},
    };
    size_t way = (size_t)(chance(l) * (double)(sizeof ways / sizeof ways[0]));
    k->malformed = true;
    k->may_hang_up = ways[way].may_hang_up;
    if (ways[way].raw) {
        k->out = strdup(ways[way].raw);
        k->out_len = k->out ? strlen(k->out) : 0;
    } else {
        k->out = http_request(l->o, ways[way].path ? ways[way].path : path_of(l->o), ways[way].body, &k->out_len);
    }
}

/* ---- life of a client ---------------------------------------------------------------------------------------- */

static void count_streaming(struct load *l, int by) {
    struct load_counts *c = l->c;
    c->streaming = (size_t)((long)c->streaming + by);
    if (l->counting) {
        c->streaming_most = c->streaming > c->streaming_most ? c->streaming : c->streaming_most;
        c->streaming_least = c->streaming < c->streaming_least ? c->streaming : c->streaming_least;
    }
}

static void rest(struct load *l, struct client *k) {
    free(k->out);
    k->out = NULL;
    if (k->open) {
        k->open = false;
        count_streaming(l, -1);
    }
    if (!k->idle) {
        k->idle = true;
        k->next_idle = l->first_idle;
        l->first_idle = (size_t)(k - l->clients);
    }
}

static void hang_up(struct load *l, struct client *k) {
    if (k->fd >= 0) {
        close(k->fd);
        k->fd = -1;
    }
    if (k->connecting) {
        k->connecting = false;
        l->n_connecting--;
    }
    rest(l, k);
}

static bool send_out(struct load *l, struct client *k) {
    while (k->out_pos < k->out_len) {
        ssize_t n = send(k->fd, k->out + k->out_pos, k->out_len - k->out_pos, MSG_NOSIGNAL);
        if (n < 0) {
            return errno == EAGAIN || errno == EWOULDBLOCK;
        }
        k->out_pos += (size_t)n;
    }
    if (k->sent_ns == 0) {
        k->sent_ns = l->now = now_ns();
    }
    return true;
}

static void leave(struct load *l, struct client *k) {
    l->c->aborted++;
    hang_up(l, k);
}

static void begin(struct load *l, struct client *k) {
    k->out_len = k->out_pos = 0;
    k->sent_ns = k->last_ns = 0;
    k->tokens = 0;
    k->malformed = k->may_hang_up = k->done = k->by_length = false;
    k->abort_at = NOBODY;
    answer_begin(&k->answer);
    if (chance(l) < l->o->malformed) {
        ask_badly(l, k);
    } else {
        ask_well(l, k);
    }
    l->c->started++;
}

static void connect_client(struct load *l, struct client *k) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)l->o->port)};
    inet_pton(AF_INET, l->o->host, &to.sin_addr);
    int on = 1;
    k->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (k->fd < 0 || (connect(k->fd, (struct sockaddr *)&to, sizeof to) < 0 && errno != EINPROGRESS)) {
        l->c->connect_errors++;
        hang_up(l, k);
        return;
    }
    setsockopt(k->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    struct epoll_event e = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = k};
    k->connecting = true;
    l->n_connecting++;
    epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, k->fd, &e);
}

static void start_idle_clients(struct load *l) {
    size_t tries = 256; /* then what has come in gets its turn */
    while (l->first_idle != NOBODY && l->n_connecting < l->o->connecting && tries-- > 0) {
        struct client *k = &l->clients[l->first_idle];
        l->first_idle = k->next_idle;
        k->idle = false;
        begin(l, k);
        if (k->fd < 0) {
            connect_client(l, k);
        } else if (!send_out(l, k)) {
            hang_up(l, k); /* the server closed a connection that was kept: no fault, and the next one is new */
            l->c->started--;
        } else if (k->abort_at == 0) {
            leave(l, k);
        }
    }
}

/* ---- what comes back ----------------------------------------------------------------------------------------- */

static bool has(const char *data, size_t len, const char *what) {
    return memmem(data, len, what, strlen(what)) != NULL;
}

static void on_text(struct load *l, struct client *k) {
    k->tokens++;
    if (l->counting) {
        l->c->tokens++;
        if (k->last_ns) {
            times_add(&l->c->between, l->now - k->last_ns);
        } else {
            times_add(&l->c->ttft, l->now - k->sent_ns);
        }
        if (l->o->step_ns) {
            times_add(&l->c->added, l->now % l->o->step_ns);
        }
    }
    k->last_ns = l->now;
}

static void on_event(void *arg, const char *data, size_t len) {
    struct load *l = arg;
    struct client *k = l->current;
    if (len == 6 && memcmp(data, "[DONE]", 6) == 0) {
        k->done = true;
    } else if (has(data, len, "\"finish_reason\":null")) {
        if (!has(data, len, "\"role\":")) {
            on_text(l, k);
        }
    } else if (has(data, len, "\"finish_reason\":\"length\"")) {
        k->by_length = true;
    }
}

/* An answer is whole. */
static void judge(struct load *l, struct client *k) {
    struct load_counts *c = l->c;
    int status = k->answer.status;
    if (status >= 500 && status != 503) {
        c->unexpected_5xx++;
    } else if (k->malformed) {
        *(status >= 400 && status < 500 ? &c->malformed_refused : &c->broken) += 1;
    } else if (status == 429 || status == 503) {
        c->rejected++;
    } else if (status >= 400) {
        c->unexpected_4xx++;
    } else if (k->stream && !k->done) {
        c->broken++;
    } else {
        c->finished++;
        c->inexact += l->o->exact && k->stream && (k->tokens != l->o->max_tokens || !k->by_length);
    }
}

static void ended_early(struct load *l, struct client *k) {
    if (!k->idle) {
        if (k->may_hang_up) {
            l->c->malformed_closed++;
        } else if (k->connecting) {
            l->c->connect_errors++;
        } else if (k->answer.status == 0 && k->answer.line_len == 0 && k->tokens == 0 && !l->o->reconnect &&
                   !k->malformed) {
            l->c->started--; /* a kept connection that was closed when the request was on its way: asked again */
        } else {
            l->c->broken++;
        }
    }
    hang_up(l, k);
}

static void on_bytes(struct load *l, struct client *k, const char *bytes, size_t len) {
    l->current = k;
    size_t taken = answer_feed(&k->answer, bytes, len, on_event, l);
    if (!k->open && k->answer.status == 200 && k->answer.event_stream) {
        k->open = true;
        count_streaming(l, 1);
    }
    if (k->tokens >= k->abort_at) {
        leave(l, k);
    } else if (k->answer.state == ANSWER_BROKEN || (k->answer.state == ANSWER_DONE && taken < len && !k->malformed)) {
        l->c->broken++;
        hang_up(l, k);
    } else if (k->answer.state == ANSWER_DONE) {
        judge(l, k);
        if (k->malformed || k->answer.closes || l->o->reconnect) {
            hang_up(l, k);
        } else {
            rest(l, k);
        }
    }
}

static void on_ready(struct load *l, struct client *k, uint32_t events) {
    static char bytes[1 << 16];
    if (k->fd < 0) {
        return;
    }
    if (k->connecting && (events & EPOLLOUT)) {
        int fault = 0;
        socklen_t len = sizeof fault;
        getsockopt(k->fd, SOL_SOCKET, SO_ERROR, &fault, &len);
        if (fault) {
            ended_early(l, k);
            return;
        }
        k->connecting = false;
        l->n_connecting--;
        l->c->connected++;
    }
    if ((events & EPOLLOUT) && k->out && k->out_pos < k->out_len) {
        if (!send_out(l, k)) {
            ended_early(l, k);
            return;
        }
        if (k->abort_at == 0 && k->out_pos == k->out_len) {
            leave(l, k);
            return;
        }
    }
    if (!(events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))) {
        return;
    }
    for (;;) {
        ssize_t n = recv(k->fd, bytes, sizeof bytes, 0);
        l->now = now_ns();
        if (n <= 0) {
            if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) {
                ended_early(l, k);
            }
            return;
        }
        if (k->idle) { /* nothing was asked */
            l->c->broken++;
            hang_up(l, k);
            return;
        }
        on_bytes(l, k, bytes, (size_t)n);
        if (k->fd < 0 || (n < (ssize_t)sizeof bytes && !(events & (EPOLLRDHUP | EPOLLHUP)))) {
            return;
        }
    }
}

/* ---- the server's process ------------------------------------------------------------------------------------ */

static uint64_t resident(pid_t pid) {
    char path[64], line[256];
    unsigned long long kib = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *f = pid ? fopen(path, "re") : NULL;
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "VmRSS: %llu", &kib) == 1) {
            break;
        }
    }
    if (f) {
        fclose(f);
    }
    return kib * 1024;
}

/* The scheduler's own count, in nanoseconds, of each thread: ticks would be too coarse for an idle server. */
static double cpu_seconds(pid_t pid) {
    char command[96];
    unsigned long long ns, total = 0;
    snprintf(command, sizeof command, "cat /proc/%d/task/*/schedstat 2>/dev/null", (int)pid);
    FILE *f = pid ? popen(command, "re") : NULL;
    while (f && fscanf(f, "%llu %*u %*u", &ns) == 1) {
        total += ns;
    }
    if (f) {
        pclose(f);
    }
    return (double)total / 1e9;
}

/* ---- all of it ----------------------------------------------------------------------------------------------- */

static void turn(struct load *l, int timeout_ms) {
    struct epoll_event events[512];
    if (l->o->nap_ns && timeout_ms > 0) {
        const struct timespec nap = {(time_t)(l->o->nap_ns / 1000000000u), (long)(l->o->nap_ns % 1000000000u)};
        nanosleep(&nap, NULL);
        timeout_ms = 0;
    }
    int n = epoll_wait(l->epoll_fd, events, 512, timeout_ms);
    l->now = now_ns();
    for (int i = 0; i < n; i++) {
        on_ready(l, events[i].data.ptr, events[i].events);
    }
}

static void run_for(struct load *l, double seconds) {
    uint64_t end = now_ns() + (uint64_t)(seconds * 1e9);
    do {
        start_idle_clients(l);
        bool more = l->first_idle != NOBODY && l->n_connecting < l->o->connecting;
        turn(l, more || l->o->spin ? 0 : 10);
    } while (now_ns() < end);
}

static void count(struct load *l) {
    struct load_counts *c = l->c;
    uint64_t begin_ns = now_ns();
    double cpu = cpu_seconds(l->o->pid);
    c->streaming_most = c->streaming_least = c->streaming;
    l->counting = true;
    run_for(l, l->o->duration);
    l->counting = false;
    c->seconds = (double)(now_ns() - begin_ns) / 1e9;
    c->server_cpu_seconds = cpu_seconds(l->o->pid) - cpu;
    c->server_rss = resident(l->o->pid);
}

static int raise_descriptor_limit(size_t connections) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur < connections + 16) {
        fprintf(stderr, "load: %zu connections, but at most %llu descriptors (ulimit -Hn)\n", connections,
                (unsigned long long)limit.rlim_cur);
        return -1;
    }
    return 0;
}

int load_run(const struct load_options *o, struct load_counts *c) {
    struct load l = {.o = o, .c = c, .first_idle = NOBODY, .random = o->seed * 2 + 1};
    l.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    l.clients = calloc(o->connections, sizeof *l.clients);
    if (l.epoll_fd < 0 || !l.clients || raise_descriptor_limit(o->connections) < 0) {
        free(l.clients);
        return -1;
    }
    for (size_t i = o->connections; i-- > 0;) {
        l.clients[i].fd = -1;
        rest(&l, &l.clients[i]);
    }
    c->server_rss_before = resident(o->pid);
    run_for(&l, o->warmup);
    count(&l);
    for (size_t i = 0; i < o->connections; i++) {
        hang_up(&l, &l.clients[i]);
        answer_free(&l.clients[i].answer);
    }
    close(l.epoll_fd);
    free(l.clients);
    return 0;
}
