#include "reload.h"

#include "config.h"
#include "doors.h"
#include "http.h"
#include "keys.h"
#include "loop.h"
#include "notify.h"
#include "server_state.h"

#include <errno.h>
#include <inferd/clock.h>
#include <inferd/log.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

/* ---- the signal ---------------------------------------------------------------------------------------------- */

static void hangup_set(sigset_t *set) {
    sigemptyset(set);
    sigaddset(set, SIGHUP);
}

void reload_block_hangup(void) {
    sigset_t set;
    hangup_set(&set);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
}

static void on_hangup(void *arg) {
    struct server *s = arg;
    struct signalfd_siginfo info;
    bool told = false;
    while (read(s->hangup_fd, &info, sizeof info) == sizeof info) {
        told = true;
    }
    if (told) {
        server_reload(s);
    }
}

int reload_open(struct server *s, struct error *err) {
    sigset_t set;
    hangup_set(&set);
    reload_block_hangup();
    s->hangup_fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    if (s->hangup_fd < 0) {
        return error_set(err, ERROR_IO, "signals cannot be received: %s", strerror(errno));
    }
    if (loop_poll_new(s->loop, s->hangup_fd, on_hangup, s, &s->hangup, err)) {
        close(s->hangup_fd);
        return -1;
    }
    return 0;
}

void reload_close(struct server *s) {
    if (s->hangup) {
        loop_poll_free(s->hangup);
        s->hangup = NULL;
        close(s->hangup_fd);
    }
}

/* ---- what is read -------------------------------------------------------------------------------------------- */

/* Everything that a reload needs before the first thing changes. */
struct reload {
    struct config given;    /* as the files and the rest say now */
    struct policy *policy;  /* the same, but as before where it cannot change */
    struct keys keys;
    struct key_change change;
    struct buf warnings;           /* lines */
    struct buf changed, unchanged; /* names of settings, parted by ", ": taken over; only after a restart */
};

static void reload_free(struct reload *r) {
    config_free(&r->given);
    policy_release(r->policy);
    keys_free(&r->keys);
    key_change_free(&r->change);
    buf_free(&r->warnings);
    buf_free(&r->changed);
    buf_free(&r->unchanged);
}

static void add_name(struct buf *list, const char *name) {
    buf_printf(list, "%s%s", list->len ? ", " : "", name);
}

/* TLS is spoken or not: a certificate can be changed for another, and no more. */
static bool switches_tls(const struct setting *s, const struct config *old, const struct config *given) {
    return (strcmp(s->name, "tls_certificate") == 0 || strcmp(s->name, "tls_key") == 0) &&
           (old->tls_certificate[0] != 0) != (given->tls_certificate[0] != 0);
}

/* What can change while serving, as given; the rest as it is. */
static int merge(const struct config *old, struct reload *r, struct error *err) {
    struct settings t = config_settings();
    struct config merged;
    if (config_init(&merged, err)) {
        return -1;
    }
    int rc = 0;
    for (size_t i = 0; i < t.n && rc == 0; i++) {
        const struct setting *s = &t.rows[i];
        bool same = setting_equal(s, old, &r->given);
        bool can = (s->flags & SETTING_RELOAD) && !switches_tls(s, old, &r->given);
        if (!same) {
            add_name(can ? &r->changed : &r->unchanged, s->name);
        }
        rc = setting_copy(s, can ? &r->given : old, &merged, err);
    }
    if (rc == 0 && (r->changed.failed || r->unchanged.failed)) {
        rc = error_memory(err);
    }
    /* both: what is in force now, and what would be after a restart */
    if (rc == 0 && (config_check(&r->given, err) || (r->unchanged.len && config_check(&merged, err)) ||
                    policy_new(&merged, &r->policy, err))) {
        rc = -1;
    }
    config_free(&merged);
    return rc;
}

static int read_again(struct server *s, struct reload *r, struct error *err) {
    if (config_init(&r->given, err)) {
        return -1;
    }
    if (s->reread(s->reread_arg, &r->given, &r->warnings, err) || merge(s->config, r, err) ||
        keys_load(&r->policy->config, &r->keys, &r->warnings, err) ||
        doors_check_keys(s, &r->policy->config, r->keys.n > 0, err) || key_change_make(&s->keys, &r->keys, &r->change, err)) {
        return -1;
    }
    /* the last that can fail, and it changes nothing when it does */
    const struct config *c = &r->policy->config;
    return c->tls_certificate[0] ? http_reload_certificate(s->http, c->tls_certificate, c->tls_key, err) : 0;
}

/* ---- taking it over ------------------------------------------------------------------------------------------ */

static void log_lines(const struct buf *lines) {
    for (const char *w = lines->data; w && *w; w += strcspn(w, "\n") + 1) {
        log_warn("%.*s", (int)strcspn(w, "\n"), w);
    }
}

static void take_over(struct server *s, struct reload *r) {
    struct policy *old = s->policy;
    size_t n_keys = r->keys.n;
    server_use_policy(s, r->policy);
    r->policy = NULL;
    key_change_apply(&s->keys, &r->change, clock_now_ns());
    admission_set_limits(&s->admission, s->config);
    doors_set_limits(s);
    log_set_level(config_log_level(s->config));
    policy_release(old);
    log_lines(&r->warnings);
    log_info("settings read again, with %zu keys; %s%s%s%s", n_keys, r->changed.len ? "changed: " : "no setting has changed",
             r->changed.len ? r->changed.data : "", r->unchanged.len ? "; as before until a restart: " : "",
             r->unchanged.len ? r->unchanged.data : "");
    if (s->config->tls_certificate[0]) {
        doors_tell_certificate(s);
    }
}

void server_reload(struct server *s) {
    struct reload r = {0};
    struct error err;
    bool ready = s->phase == SERVER_READY; /* before, and after, the manager waits for something else */
    if (s->phase == SERVER_DRAINING) {
        log_info("the settings are not read again: the server is shutting down");
        return;
    }
    if (ready) {
        notify_reloading();
    }
    if (read_again(s, &r, &err)) {
        log_error("nothing was reloaded, and all settings and keys stay as they were: %s", err.message);
    } else {
        take_over(s, &r);
    }
    if (ready) {
        notify_ready();
    }
    reload_free(&r);
}
