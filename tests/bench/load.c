/*
 * A load generator for the API: many streams at once from one thread, counting tokens, times and whatever is not as it
 * should be. `load --help` lists the options; the report is JSON on standard output, and the exit code is 1 if
 * anything unexpected happened.
 */
#include "load.h"

#include <arpa/inet.h>
#include <getopt.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const char usage[] =
    "load [options]\n"
    "  --host ADDRESS       IPv4 address of the server (127.0.0.1)\n"
    "  --port PORT          (8080)\n"
    "  --model NAME         (the first of /v1/models)\n"
    "  --key KEY            API key\n"
    "  --completions        /v1/completions instead of /v1/chat/completions\n"
    "  --prompt-words N     words of the prompt (8)\n"
    "  --connections N      streams at a time; each begins a new one when it ends (1)\n"
    "  --connecting N       connections that may be under way at a time (64)\n"
    "  --max-tokens N       of each request (128)\n"
    "  --warmup S           seconds before counting begins (1)\n"
    "  --duration S         seconds of counting (5)\n"
    "  --aborts SHARE       of the requests are left by the client at a random point (0)\n"
    "  --malformed SHARE    of the requests are wrong in one of many ways (0)\n"
    "  --plain SHARE        of the requests do not stream (0)\n"
    "  --reconnect          a new connection for each request\n"
    "  --spin               never sleep, so that the server's processor has nobody to wake: for a generator with a\n"
    "                       processor of its own\n"
    "  --nap S              sleep so long before each look at what has come in, so that the server's processor has\n"
    "                       nobody to wake, as when clients are on other machines; the wait counts in all times\n"
    "  --exact              each stream must have --max-tokens events of text, as the null device gives them\n"
    "  --step-time S        the server's null_step_time: added latency is how long behind the end of a step an event\n"
    "                       comes in (same machine)\n"
    "  --pid PID            of the server: report its memory and processor time\n"
    "  --seed N             (1)\n";

/* The first "id" of /v1/models. */
static bool first_model(const struct load_options *o, char *out, size_t size) {
    char answer[65536], request[512];
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)o->port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    size_t len = 0;
    ssize_t n;
    bool found = false;
    snprintf(request, sizeof request, "GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%s%s%s\r\n",
             o->key ? "Authorization: Bearer " : "", o->key ? o->key : "", o->key ? "\r\n" : "");
    if (inet_pton(AF_INET, o->host, &to.sin_addr) == 1 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0 &&
        send(fd, request, strlen(request), MSG_NOSIGNAL) > 0) {
        while (len < sizeof answer - 1 && (n = recv(fd, answer + len, sizeof answer - 1 - len, 0)) > 0) {
            len += (size_t)n;
        }
        answer[len] = '\0';
        const char *id = strstr(answer, "\"id\":\"");
        size_t id_len = id ? strcspn(id + 6, "\"") : 0;
        found = id_len > 0 && id_len < size;
        if (found) {
            memcpy(out, id + 6, id_len);
            out[id_len] = '\0';
        }
    }
    close(fd);
    return found;
}

static char *make_prompt(size_t words) {
    char *text = malloc(words * 6 + 1), *p = text;
    for (size_t i = 0; text && i < words; i++) {
        p += sprintf(p, "%s%04zu", i ? " " : "", i % 10000);
    }
    return text;
}

static void print_times(const char *name, const struct times *t) {
    printf("  \"%s\": {\"n\": %llu, \"mean\": %.6f, \"p50\": %.6f, \"p90\": %.6f, \"p99\": %.6f, \"p999\": %.6f, "
           "\"max\": %.6f},\n",
           name, (unsigned long long)t->n, t->n ? (double)t->sum / (double)t->n / 1e9 : 0.0, times_at(t, 0.5),
           times_at(t, 0.9), times_at(t, 0.99), times_at(t, 0.999), (double)t->max / 1e9);
}

static void report(const struct load_options *o, const struct load_counts *c) {
    const struct {
        const char *name;
        uint64_t n;
    } counts[] = {
        {"connected", c->connected},
        {"started", c->started},
        {"finished", c->finished},
        {"aborted", c->aborted},
        {"malformed_refused", c->malformed_refused},
        {"malformed_closed", c->malformed_closed},
        {"rejected", c->rejected},
        {"unexpected_4xx", c->unexpected_4xx},
        {"unexpected_5xx", c->unexpected_5xx},
        {"broken", c->broken},
        {"inexact", c->inexact},
        {"connect_errors", c->connect_errors},
        {"streams_least", c->streaming_least},
        {"streams_most", c->streaming_most},
        {"tokens", c->tokens},
    };
    puts("{");
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        printf("  \"%s\": %llu,\n", counts[i].name, (unsigned long long)counts[i].n);
    }
    print_times("ttft", &c->ttft);
    print_times("between_tokens", &c->between);
    if (o->step_ns) {
        print_times("added", &c->added);
    }
    if (o->pid) {
        uint64_t grown = c->server_rss > c->server_rss_before ? c->server_rss - c->server_rss_before : 0;
        printf("  \"server_cpu_share\": %.5f,\n", c->server_cpu_seconds / c->seconds);
        printf("  \"server_cpu_us_per_token\": %.3f,\n",
               c->tokens ? c->server_cpu_seconds * 1e6 / (double)c->tokens : 0.0);
        printf("  \"server_rss_before\": %llu,\n  \"server_rss\": %llu,\n", (unsigned long long)c->server_rss_before,
               (unsigned long long)c->server_rss);
        printf("  \"server_bytes_per_stream\": %llu,\n", (unsigned long long)(grown / o->connections));
    }
    printf("  \"seconds\": %.3f,\n  \"tokens_per_second\": %.0f\n}\n", c->seconds, (double)c->tokens / c->seconds);
}

enum {
    HOST = 256,
    PORT,
    MODEL,
    KEY,
    COMPLETIONS,
    WORDS,
    CONNECTIONS,
    CONNECTING,
    MAX_TOKENS,
    WARMUP,
    DURATION,
    ABORTS,
    MALFORMED,
    PLAIN,
    RECONNECT,
    SPIN,
    NAP,
    EXACT,
    STEP,
    PID,
    SEED,
    HELP
};

int main(int argc, char **argv) {
    static const struct option names[] = {
        {"host", 1, NULL, HOST},
        {"port", 1, NULL, PORT},
        {"model", 1, NULL, MODEL},
        {"key", 1, NULL, KEY},
        {"completions", 0, NULL, COMPLETIONS},
        {"prompt-words", 1, NULL, WORDS},
        {"connections", 1, NULL, CONNECTIONS},
        {"connecting", 1, NULL, CONNECTING},
        {"max-tokens", 1, NULL, MAX_TOKENS},
        {"warmup", 1, NULL, WARMUP},
        {"duration", 1, NULL, DURATION},
        {"aborts", 1, NULL, ABORTS},
        {"malformed", 1, NULL, MALFORMED},
        {"plain", 1, NULL, PLAIN},
        {"reconnect", 0, NULL, RECONNECT},
        {"spin", 0, NULL, SPIN},
        {"nap", 1, NULL, NAP},
        {"exact", 0, NULL, EXACT},
        {"step-time", 1, NULL, STEP},
        {"pid", 1, NULL, PID},
        {"seed", 1, NULL, SEED},
        {"help", 0, NULL, HELP},
        {0},
    };
    static struct load_counts c;
    struct load_options o = {.host = "127.0.0.1",
                             .port = 8080,
                             .chat = true,
                             .connections = 1,
                             .connecting = 64,
                             .max_tokens = 128,
                             .warmup = 1,
                             .duration = 5,
                             .seed = 1};
    char model[512];
    size_t words = 8;
    int opt;
    while ((opt = getopt_long(argc, argv, "", names, NULL)) != -1) {
        switch (opt) {
        case HOST:
            o.host = optarg;
            break;
        case PORT:
            o.port = (unsigned)atoi(optarg);
            break;
        case MODEL:
            o.model = optarg;
            break;
        case KEY:
            o.key = optarg;
            break;
        case COMPLETIONS:
            o.chat = false;
            break;
        case WORDS:
            words = strtoul(optarg, NULL, 10);
            break;
        case CONNECTIONS:
            o.connections = strtoul(optarg, NULL, 10);
            break;
        case CONNECTING:
            o.connecting = strtoul(optarg, NULL, 10);
            break;
        case MAX_TOKENS:
            o.max_tokens = strtoul(optarg, NULL, 10);
            break;
        case WARMUP:
            o.warmup = atof(optarg);
            break;
        case DURATION:
            o.duration = atof(optarg);
            break;
        case ABORTS:
            o.aborts = atof(optarg);
            break;
        case MALFORMED:
            o.malformed = atof(optarg);
            break;
        case PLAIN:
            o.plain = atof(optarg);
            break;
        case RECONNECT:
            o.reconnect = true;
            break;
        case SPIN:
            o.spin = true;
            break;
        case NAP:
            o.nap_ns = (uint64_t)(atof(optarg) * 1e9 + 0.5);
            break;
        case EXACT:
            o.exact = true;
            break;
        case STEP:
            o.step_ns = (uint64_t)(atof(optarg) * 1e9 + 0.5);
            break;
        case PID:
            o.pid = atoi(optarg);
            break;
        case SEED:
            o.seed = strtoull(optarg, NULL, 10);
            break;
        case HELP:
            fputs(usage, stdout);
            return 0;
        default:
            fputs(usage, stderr);
            return 2;
        }
    }
    if (optind < argc || o.connections == 0 || o.max_tokens == 0 || words == 0) {
        fputs(usage, stderr);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    char *prompt = make_prompt(words);
    if (!o.model && first_model(&o, model, sizeof model)) {
        o.model = model;
    }
    o.prompt = prompt;
    if (!o.model || !prompt) {
        fprintf(stderr, "load: no server at %s:%u tells the name of a model\n", o.host, o.port);
        free(prompt);
        return 1;
    }
    int rc = load_run(&o, &c);
    free(prompt);
    if (rc == 0) {
        report(&o, &c);
    }
    return rc < 0 || c.unexpected_4xx + c.unexpected_5xx + c.broken + c.inexact + c.connect_errors > 0;
}
