/*
 * The line of log that each HTTP request leaves at its end: who, what, how long, how it ended. Never what was asked or
 * answered, no path but the names of our routes, no key but its name. One line, written once. Loop thread.
 *
 * A request for an answer of the model ends when the engine has, too; until then it keeps what HTTP knew of it.
 */
#ifndef INFERD_ACCESS_LOG_H
#define INFERD_ACCESS_LOG_H

#include <inferd/log.h>
#include <stdbool.h>
#include <stdint.h>

struct exchange;
struct request;

#define ACCESS_ID_MAX 129  /* exchange_id_valid, and its end */
#define ACCESS_KEY_MAX 64  /* a key's name, and its end */
#define ACCESS_PEER_MAX 64 /* exchange_peer */

/* What HTTP knows. */
struct access {
    const char *route, *method; /* static */
    int status;                 /* 499: the client left before there was one, as nginx has it */
    uint64_t received, sent;    /* bytes of the bodies */
    uint64_t arrived_ns, ended_ns;
    char id[ACCESS_ID_MAX], key[ACCESS_KEY_MAX], peer[ACCESS_PEER_MAX];
};

/* Would a line of this level be written? */
bool access_wanted(enum log_level level);
/* At the end of the exchange. */
void access_take(const struct exchange *x, const char *route, struct access *out);
void access_write(enum log_level level, const struct access *a);
/* How a request ended, in a word or, for a whole answer, the reasons of its choices: "stop,length". */
#define ACCESS_ENDING_MAX 64
const char *access_ending(const struct request *r, char out[ACCESS_ENDING_MAX]);
/* When nothing of the request is left but what is counted; r->access was taken. */
void access_write_request(const struct request *r);

#endif
