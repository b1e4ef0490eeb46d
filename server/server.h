/* `inferd serve` as one call: listen, load, serve, drain. */
#ifndef INFERD_SERVER_H
#define INFERD_SERVER_H

#include <inferd/error.h>

struct config;

/*
 * Listen at once (probes answer, everything else is 503 while the model loads), open the engine beside the loop,
 * serve until SIGTERM or SIGINT, then drain: new requests get 503, running ones finish within drain_timeout and
 * get an error after it. SIGHUP reads the API keys again. A second SIGTERM ends the process at once.
 *
 * Returns 0 after a drain; -1 with *err (ERROR_IO: the address; ERROR_MODEL, ERROR_DOES_NOT_FIT, ERROR_DEVICE: the
 * engine). *config must have passed config_check and outlive the call. Call once, from the main thread, before it
 * has made any other: signal masks and SIGPIPE are set here. Logs one line each at listen, ready, drain and stop.
 */
int server_run(const struct config *config, struct error *err);

#endif
