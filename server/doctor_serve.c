/* inferd doctor: settings, model, addresses. */
#include "doctor.h"
#include "listener.h"

#include <dirent.h>
#include <errno.h>
#include <inferd/engine.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

void doctor_check_settings(struct doctor *d, const struct config *c) {
    struct error err;
    if (config_check_others(c, &err) == 0) {
        doctor_add(d, DOCTOR_OK, "settings", NULL, "they go together%s%s", c->config[0] ? ", file " : "", c->config);
    } else {
        doctor_add(d, DOCTOR_FAULT, "settings", "inferd serve --check-config says the same", "%s", err.message);
    }
}

static bool is_weights(const char *name) {
    const char *dot = strrchr(name, '.');
    return dot && (strcmp(dot, ".safetensors") == 0 || strcmp(dot, ".gguf") == 0);
}

/* The file, or the weights in a folder. */
static size_t bytes_of(const char *path) {
    struct stat st;
    size_t sum = 0;
    if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode)) {
        return stat(path, &st) == 0 ? (size_t)st.st_size : 0;
    }
    DIR *dir = opendir(path);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        if (is_weights(e->d_name) && fstatat(dirfd(dir), e->d_name, &st, 0) == 0) {
            sum += (size_t)st.st_size;
        }
    }
    if (dir) {
        closedir(dir);
    }
    return sum;
}

size_t doctor_check_model(struct doctor *d, const struct config *c) {
    struct error err;
    struct buf text = BUF_INIT;
    if (!c->model[0]) {
        doctor_add(d, DOCTOR_NOTE, "model", "inferd doctor --model PATH", "none is named");
        return 0;
    }
    if (config_check_model(c, &err) != 0) {
        doctor_add(d, DOCTOR_FAULT, "model",
                   "chmod or chown what is named, or put the model under /var/lib/inferd; namei -l PATH shows all parts", "%s",
                   err.message);
        return 0;
    }
    if (engine_inspect(c->model, false, &text, &err) != 0) {
        doctor_add(d, DOCTOR_FAULT, "model", "bring the file again, and compare its size and checksum", "%s", err.message);
    } else {
        doctor_add(d, DOCTOR_OK, "model", NULL, "%.300s can be read, and its headers are sound", c->model);
    }
    buf_free(&text);
    return bytes_of(c->model);
}

/* Does an inferd, or another server with a /livez, answer there? */
static bool answers(const struct listen_address *a) {
    static const char question[] = "GET /livez HTTP/1.0\r\n\r\n";
    const struct timeval patience = {.tv_sec = 1};
    char answer[16] = "";
    int fd = socket(a->at.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool yes = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0 &&
               setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience) == 0 &&
               connect(fd, &a->at.any, a->len) == 0 &&
               send(fd, question, sizeof question - 1, MSG_NOSIGNAL) == (ssize_t)sizeof question - 1 &&
               recv(fd, answer, 12, MSG_WAITALL) == 12 && strncmp(answer, "HTTP/1.", 7) == 0 && strcmp(answer + 9, "200") == 0;
    if (fd >= 0) {
        close(fd);
    }
    return yes;
}

/* Without making or removing a file: can one be made where it belongs? */
static void check_unix_socket(struct doctor *d, const struct listen_address *a, const char *name) {
    char folder[sizeof a->at.local.sun_path + 1];
    snprintf(folder, sizeof folder, "%s", a->at.local.sun_path);
    char *slash = strrchr(folder, '/');
    if (slash) {
        slash[slash == folder] = '\0';
    }
    if (answers(a)) {
        doctor_add(d, DOCTOR_OK, "address", NULL, "%s is taken, by a server that answers /livez", name);
    } else if (access(slash ? folder : ".", W_OK | X_OK) != 0) {
        doctor_add(d, DOCTOR_FAULT, "address", "RuntimeDirectory=inferd in the unit makes /run/inferd for it",
                   "%s: no file can be made in %s: %s", name, slash ? folder : "this folder", strerror(errno));
    } else {
        doctor_add(d, DOCTOR_OK, "address", NULL, "%s can be made", name);
    }
}

static void check_address(struct doctor *d, const struct listen_address *a, const struct listen_plan *plan) {
    struct listener l;
    struct error err;
    char name[LISTEN_NAME_MAX];
    listen_address_print(a, name);
    if (a->at.any.sa_family == AF_UNIX) {
        check_unix_socket(d, a, name);
        return;
    }
    if (listener_open(a, plan->v6_only, plan->mode, &l, &err) == 0) {
        listener_close(&l);
        doctor_add(d, DOCTOR_OK, "address", NULL, "%s is free", name);
    } else if (answers(a)) {
        doctor_add(d, DOCTOR_OK, "address", NULL, "%s is taken, by a server that answers /livez", name);
    } else {
        doctor_add(d, DOCTOR_FAULT, "address",
                   "ss -ltnp shows who has it; ports below 1024 need AmbientCapabilities=CAP_NET_BIND_SERVICE or inferd.socket",
                   "%s", err.message);
    }
}

void doctor_check_addresses(struct doctor *d, const struct config *c) {
    struct listen_plan plan;
    struct error err;
    if (config_listen(c, &plan, &err) != 0) {
        return; /* a fault of the settings, which have a line */
    }
    for (size_t i = 0; i < plan.n_open; i++) {
        check_address(d, &plan.open[i], &plan);
    }
    if (plan.has_admin) {
        check_address(d, &plan.admin, &plan);
    }
}
