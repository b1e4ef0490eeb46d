/*
 * `inferd healthcheck`: is the server of these settings, or of a URL, ready? 0 yes, 1 no or not known: what Docker's
 * HEALTHCHECK takes. It sends no key, since probes need none, and so looks at no certificate either.
 */
#include "cmd/bench_trace.h"
#include "cmd/cmd.h"

#include <errno.h>
#include <gnutls/gnutls.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#define ANSWER_MAX 8192

struct healthcheck_options {
    char *url;
    double timeout;
    bool live, json;
};

static const struct setting rows[] = {
    {"url", SETTING_STRING, offsetof(struct healthcheck_options, url), .initial = "", .value = "URL", .group = "Options",
     .help = "the server to ask, as http://127.0.0.1:8080, https://host or unix:/path; else the one that the settings describe"},
    {"timeout", SETTING_SECONDS, offsetof(struct healthcheck_options, timeout), .initial = "3", .min = 0.1, .max = 3600,
     .group = "Options", .help = "how long all of it may take"},
    {"live", SETTING_BOOL, offsetof(struct healthcheck_options, live), .initial = "false", .group = "Options",
     .help = "ask whether the process answers at all (/livez), not whether it is ready (/readyz)"},
    {"json", SETTING_BOOL, offsetof(struct healthcheck_options, json), .initial = "false", .group = "Options",
     .help = "print JSON"},
};

/* ---- whom to ask ---------------------------------------------------------------------------------------------- */

struct target {
    struct listen_address address;
    bool tls;
    char name[300]; /* of the host, for the request and for people */
};

static int from_url(const char *text, struct target *out, struct error *err) {
    static const char *const schemes[] = {"http://", "https://"}, *const ports[] = {"80", "443"};
    struct bench_url url;
    if (strncmp(text, "unix:", 5) == 0) {
        snprintf(out->name, sizeof out->name, "unix:%s", text + 5); /* with it whole, gcc under UBSan minds a NULL that cannot be */
        return listen_address_parse(text, strlen(text), false, 0, &out->address, err);
    }
    for (size_t i = 0; i < 2; i++) {
        if (strncmp(text, schemes[i], strlen(schemes[i])) != 0) {
            continue;
        }
        if (bench_url_of(text, schemes[i], ports[i], &url, err)) {
            return -1;
        }
        struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
        int rc = getaddrinfo(url.host, url.port, &hints, &found);
        if (rc != 0) {
            return error_set(err, ERROR_IO, "the host %s is not known: %s", url.host, gai_strerror(rc));
        }
        memcpy(&out->address.at, found->ai_addr, found->ai_addrlen);
        out->address.len = found->ai_addrlen;
        freeaddrinfo(found);
        out->tls = i == 1;
        snprintf(out->name, sizeof out->name, "%s%s:%s", schemes[i], url.host, url.port);
        return 0;
    }
    return error_set(err, ERROR_INVALID, "the URL must begin with http://, https:// or unix:");
}

/* All addresses are this machine, too. */
static void nearest(struct listen_address *a) {
    struct sockaddr_in *v4 = (void *)&a->at;
    struct sockaddr_in6 *v6 = (void *)&a->at;
    if (a->at.any.sa_family == AF_INET && v4->sin_addr.s_addr == htonl(INADDR_ANY)) {
        v4->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    } else if (a->at.any.sa_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&v6->sin6_addr)) {
        v6->sin6_addr = in6addr_loopback;
    }
}

/* The admin's listener, where there is one: it answers before the others of a socket unit do, and has room for us. */
static int from_settings(const struct config *c, struct target *out, struct error *err) {
    struct listen_plan plan;
    if (config_listen(c, &plan, err)) {
        return -1;
    }
    out->address = plan.has_admin ? plan.admin : plan.open[0];
    bool local = out->address.at.any.sa_family == AF_UNIX;
    if (!local && ((struct sockaddr_in *)(void *)&out->address.at)->sin_port == 0) {
        return error_set(err, ERROR_INVALID, "port is 0: which one was found is in the server's log; name it by --url");
    }
    nearest(&out->address);
    out->tls = c->tls_certificate[0] && !local;
    char address[LISTEN_NAME_MAX];
    listen_address_print(&out->address, address);
    snprintf(out->name, sizeof out->name, "%s%s", local ? "" : out->tls ? "https://" : "http://", address);
    return 0;
}

/* ---- to ask --------------------------------------------------------------------------------------------------- */

struct channel {
    int fd;
    gnutls_session_t tls; /* NULL without */
    gnutls_certificate_credentials_t credentials;
};

static ssize_t channel_send(struct channel *c, const char *bytes, size_t len) {
    return c->tls ? gnutls_record_send(c->tls, bytes, len) : send(c->fd, bytes, len, MSG_NOSIGNAL);
}

static ssize_t channel_receive(struct channel *c, char *bytes, size_t len) {
    ssize_t n;
    do {
        n = c->tls ? gnutls_record_recv(c->tls, bytes, len) : recv(c->fd, bytes, len, 0);
    } while (c->tls && (n == GNUTLS_E_INTERRUPTED || n == GNUTLS_E_AGAIN));
    return n;
}

static int begin_tls(struct channel *c, struct error *err) {
    int rc = gnutls_certificate_allocate_credentials(&c->credentials);
    if (rc == 0 && (rc = gnutls_init(&c->tls, GNUTLS_CLIENT)) == 0 && (rc = gnutls_set_default_priority(c->tls)) == 0 &&
        (rc = gnutls_credentials_set(c->tls, GNUTLS_CRD_CERTIFICATE, c->credentials)) == 0) {
        gnutls_transport_set_int(c->tls, c->fd);
        do {
            rc = gnutls_handshake(c->tls);
        } while (rc < 0 && !gnutls_error_is_fatal(rc));
    }
    return rc == 0 ? 0 : error_set(err, ERROR_IO, "TLS fails: %s", gnutls_strerror(rc));
}

static void channel_close(struct channel *c) {
    if (c->tls) {
        gnutls_deinit(c->tls);
    }
    if (c->credentials) {
        gnutls_certificate_free_credentials(c->credentials);
    }
    if (c->fd >= 0) {
        close(c->fd);
    }
}

/* Sets *status and the body of the answer, cut at ANSWER_MAX. */
static int converse(struct channel *c, const struct target *t, const char *path, int *status, char answer[ANSWER_MAX],
                    struct error *err) {
    char request[256];
    size_t len = 0;
    ssize_t n;
    c->fd = socket(t->address.at.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0 || connect(c->fd, &t->address.at.any, t->address.len) != 0) {
        return error_set(err, ERROR_IO, "%s", strerror(errno));
    }
    if (t->tls && begin_tls(c, err)) {
        return -1;
    }
    int sent = snprintf(request, sizeof request,
                        "GET %s HTTP/1.1\r\nHost: localhost\r\nUser-Agent: inferd-healthcheck\r\nConnection: close\r\n\r\n", path);
    if (channel_send(c, request, (size_t)sent) != sent) {
        return error_set(err, ERROR_IO, "it hung up");
    }
    while (len < ANSWER_MAX - 1 && (n = channel_receive(c, answer + len, ANSWER_MAX - 1 - len)) > 0) {
        len += (size_t)n;
    }
    answer[len] = '\0';
    char *body = strstr(answer, "\r\n\r\n");
    if (sscanf(answer, "HTTP/1.%*1[01] %3d ", status) != 1 || !body) {
        return error_set(err, ERROR_IO, "what answers there does not speak HTTP");
    }
    memmove(answer, body + 4, strlen(body + 4) + 1);
    return 0;
}

static int ask(const struct target *t, const char *path, int *status, char answer[ANSWER_MAX], struct error *err) {
    struct channel c = {.fd = -1};
    int rc = converse(&c, t, path, status, answer, err);
    if (rc) {
        error_prefix(err, "%s", t->name);
    }
    channel_close(&c);
    return rc;
}

/* ---- the command ---------------------------------------------------------------------------------------------- */

static void on_alarm(int number) {
    static const char words[] = "inferd: no answer in time\n";
    ssize_t n = write(STDERR_FILENO, words, sizeof words - 1);
    (void)number;
    (void)n;
    _exit(1);
}

/* Whatever it is that hangs: a name server, a connection, an answer that does not end. */
static void limit_time(double seconds) {
    struct itimerval t = {.it_value = {.tv_sec = (time_t)seconds, .tv_usec = (suseconds_t)((seconds - (double)(time_t)seconds) * 1e6)}};
    signal(SIGALRM, on_alarm);
    setitimer(ITIMER_REAL, &t, NULL);
}

static void print_answer(const struct healthcheck_options *o, const struct target *t, const char *path, int status, char *body) {
    struct buf b = BUF_INIT;
    bool ready = status == 200;
    body[strcspn(body, "\r\n")] = '\0';
    if (o->json) {
        buf_printf(&b, "{\"ok\": %s, \"status\": %d, \"server\": ", ready ? "true" : "false", status);
        buf_json_string(&b, t->name, strlen(t->name));
        buf_printf(&b, ", \"path\": \"%s\", \"answer\": ", path);
        buf_json_string(&b, body, strlen(body));
        buf_puts(&b, "}\n");
    } else {
        buf_printf(&b, "%s: %s: %d", ready ? "ok" : "not ready", t->name, status);
        if (!ready && body[0]) { /* somebody else's words, for a terminal */
            buf_puts(&b, " ");
            buf_json_string(&b, body, strlen(body));
        }
        buf_putc(&b, '\n');
    }
    if (!b.failed) {
        fputs(b.data, stdout);
    }
    buf_free(&b);
}

static int healthcheck(const struct healthcheck_options *o, const struct config *c, struct error *err) {
    const char *path = o->live ? "/livez" : "/readyz";
    struct target t = {.tls = false};
    char answer[ANSWER_MAX];
    int status;
    limit_time(o->timeout);
    if (o->url[0] ? from_url(o->url, &t, err) : from_settings(c, &t, err)) {
        return -1;
    }
    if (ask(&t, path, &status, answer, err)) {
        return -1;
    }
    print_answer(o, &t, path, status, answer);
    return status == 200 ? 0 : 1;
}

int cmd_healthcheck(int argc, char **argv) {
    struct healthcheck_options o;
    const struct command_line line = {
        .help = {.usage = "inferd healthcheck [options]",
                 .about = "Ask a running server whether it is ready for requests: exit code 0 if it is, 1 if it is not or does not\n"
                          "answer. Where to ask is read from the same settings as `inferd serve` reads: file, environment, flags.",
                 .examples = "  inferd healthcheck --config /etc/inferd/inferd.conf\n"
                             "  inferd healthcheck --url https://127.0.0.1:8443 --timeout 1\n"
                             "  HEALTHCHECK CMD [\"inferd\", \"healthcheck\"]\n"},
        .own = {rows, sizeof rows / sizeof rows[0]},
        .own_values = &o,
        .config_only = SETTING_PLACE,
    };
    struct command_state state;
    struct error err;
    int code;
    if (!cmd_begin(&line, argc, argv, &state, &code)) {
        return code != 0; /* 2 means something else to Docker */
    }
    int rc = healthcheck(&o, &state.config, &err);
    if (rc < 0) {
        cmd_fail(&err);
    }
    cmd_end(&line, &state);
    return rc != 0;
}
