/*
 * What the load generator is told, and what it counts. load.c reads the one from the command line and prints the other;
 * load_client.c does the work between.
 */
#ifndef BENCH_LOAD_H
#define BENCH_LOAD_H

#include "cmd/histogram.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct load_options {
    const char *host; /* IPv4 address */
    unsigned port;
    const char *model;  /* name for requests */
    const char *prompt; /* text */
    const char *key;    /* NULL = none */
    bool chat;          /* else completions */
    size_t connections; /* streams at a time */
    size_t connecting;  /* connections that may be under way at a time */
    size_t max_tokens;
    double warmup, duration; /* s before counting; s of counting */
    double aborts;           /* share of requests that are left at a random point, 0 to 1 */
    double malformed;        /* share of requests that are wrong */
    double plain;            /* share of requests without stream */
    bool reconnect;          /* a connection for each request */
    bool spin;               /* never sleep: waking the generator up is work of the sender's processor */
    uint64_t nap_ns;         /* sleep so long before each look at what has come: nobody then has to wake it up */
    bool exact;              /* a stream must have max_tokens events of text and finish by length */
    uint64_t seed;
    uint64_t step_ns; /* steps of the server end at multiples of it; 0 = not known */
    pid_t pid;        /* the server's, for its memory and processor time; 0 = not known */
};

struct load_counts {
    uint64_t connected, started, finished, aborted; /* requests */
    uint64_t malformed_refused, malformed_closed;   /* as they should be */
    uint64_t rejected;                              /* good requests answered 429 or 503 */
    uint64_t unexpected_4xx, unexpected_5xx;
    uint64_t broken; /* connections that ended, or answers that were wrong, in the middle */
    uint64_t inexact;
    uint64_t connect_errors;
    size_t streaming, streaming_most, streaming_least; /* streams whose 200 is in: now, and while counting */
    uint64_t tokens;                                   /* events with text while counting */
    struct times ttft, between, added;
    double seconds;                         /* counted */
    double server_cpu_seconds;              /* while counting */
    uint64_t server_rss_before, server_rss; /* bytes before the first connection, at the end of counting */
};

/* Run. -1 with a line on stderr if it cannot begin. */
int load_run(const struct load_options *o, struct load_counts *c);

#endif
