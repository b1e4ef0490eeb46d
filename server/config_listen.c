/* What the settings say of listening: addresses, the admin's, TLS, origins. */
#include "config.h"
#include "cors.h"
#include "tls.h"

#include <stdlib.h>
#include <string.h>

static int blame(const char *setting, struct error *err) {
    error_prefix(err, "%s", setting);
    strcpy(err->param, setting);
    return -1;
}

static int parse_hosts(const struct config *c, struct listen_plan *plan, struct error *err) {
    static const char parting[] = ", \t";
    const char *p = c->host + strspn(c->host, parting);
    do {
        size_t len = strcspn(p, parting);
        if (plan->n_open == LISTEN_MAX) {
            error_set(err, ERROR_MODEL, "there may be %d addresses at most", LISTEN_MAX);
            return blame("host", err);
        }
        struct listen_address *a = &plan->open[plan->n_open];
        if (listen_address_parse(p, len, false, c->port, a, err)) {
            return blame("host", err);
        }
        plan->n_open++;
        plan->v6_only |= a->at.any.sa_family == AF_INET;
        p += len;
        p += strspn(p, parting);
    } while (*p);
    return 0;
}

static int parse_mode(const char *text, unsigned *mode, struct error *err) {
    char *end;
    unsigned long value = strtoul(text, &end, 8);
    if (text[0] < '0' || text[0] > '7' || *end || value > 0777) {
        return error_set_param(err, ERROR_MODEL, "unix_socket_mode", "unix_socket_mode must be octal, as 0660, not \"%.20s\"",
                               text);
    }
    *mode = (unsigned)value;
    return 0;
}

int config_listen(const struct config *c, struct listen_plan *out, struct error *err) {
    struct listen_plan plan = {.has_admin = c->admin_listen[0]};
    if (parse_hosts(c, &plan, err) || parse_mode(c->unix_socket_mode, &plan.mode, err)) {
        return -1;
    }
    if (plan.has_admin && listen_address_parse(c->admin_listen, strlen(c->admin_listen), true, 0, &plan.admin, err)) {
        return blame("admin_listen", err);
    }
    *out = plan;
    return 0;
}

static bool find_public(const struct listen_plan *plan, char name[LISTEN_NAME_MAX]) {
    for (size_t i = 0; i < plan->n_open; i++) {
        if (!listen_address_is_local(&plan->open[i])) {
            listen_address_print(&plan->open[i], name);
            return true;
        }
    }
    if (plan->has_admin && !listen_address_is_local(&plan->admin)) {
        listen_address_print(&plan->admin, name);
        return true;
    }
    return false;
}

bool config_public_address(const struct config *c, char name[LISTEN_NAME_MAX]) {
    struct listen_plan plan;
    struct error err;
    return config_listen(c, &plan, &err) == 0 && find_public(&plan, name);
}

int config_refuse_public(const char *name, struct error *err) {
    return error_set_param(err, ERROR_MODEL, "host",
                           "anybody could use %s: set INFERD_API_KEY or api_keys_file, or allow it with --insecure", name);
}

static int check_tls(const struct config *c, struct error *err) {
    bool certificate = c->tls_certificate[0], key = c->tls_key[0];
    if (certificate != key) {
        return error_set_param(err, ERROR_MODEL, key ? "tls_certificate" : "tls_key",
                               "TLS wants both: tls_certificate and tls_key");
    }
    return certificate ? tls_check(c->tls_certificate, c->tls_key, err) : 0;
}

int config_check_listening(const struct config *c, bool has_keys, struct error *err) {
    struct listen_plan plan;
    char name[LISTEN_NAME_MAX];
    if (config_listen(c, &plan, err)) {
        return -1;
    }
    if (!has_keys && !c->insecure && find_public(&plan, name)) {
        return config_refuse_public(name, err);
    }
    if (check_tls(c, err)) {
        return -1;
    }
    return cors_check(c->cors_origins, err) ? blame("cors_origins", err) : 0;
}
