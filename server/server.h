/* `inferd serve` as one call: listen, load, serve, drain. */
#ifndef INFERD_SERVER_H
#define INFERD_SERVER_H

#include <inferd/error.h>

struct buf;
struct config;

/* The settings once more, as they are now, into an initialised *out; a sentence of `warnings` a line. */
typedef int settings_reader(void *arg, struct config *out, struct buf *warnings, struct error *err);

/*
 * Listen at once (probes answer, everything else is 503 while the model loads), open the engine beside the loop,
 * serve until SIGTERM or SIGINT, then drain: new requests get 503, running ones finish within drain_timeout and
 * get an error after it. SIGHUP reads settings, keys and certificates again (reload.h),
 * the settings by reread(arg, ...). A second SIGTERM ends the process at once.
 *
 * Returns 0 after a drain; -1 with *err (ERROR_IO: the address; ERROR_MODEL, ERROR_DOES_NOT_FIT, ERROR_DEVICE: the
 * engine). *config must have passed config_check and outlive the call. Call once, from the main thread, before it
 * has made any other: signal masks and SIGPIPE are set here. Logs one line each at listen, ready, drain and stop.
 */
int server_run(const struct config *config, settings_reader *reread, void *arg, struct error *err);

#endif
