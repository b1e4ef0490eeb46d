#include "tls.h"

#include <errno.h>
#include <fcntl.h>
#include <gnutls/x509.h>
#include <inferd/buf.h>
#include <inferd/clock.h>
#include <inferd/list.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHAIN_MAX 16
#define FILE_MAX_BYTES ((size_t)1 << 20)
/* A replaced pair is kept for handshakes that began with it: the longest header_timeout, which bounds these, too. */
#define RETIRED_NS (3600u * (uint64_t)1000000000u)

struct pair {
    struct list node; /* among the retired */
    gnutls_pcert_st chain[CHAIN_MAX];
    unsigned n;
    gnutls_privkey_t key;
    time_t not_after;
    uint64_t retired_ns;
};

struct tls {
    struct pair *pair;
    struct list retired;
    const char *priorities;
};

static struct tls *in_use; /* for tls_retrieve */

static void pair_free(struct pair *p) {
    for (unsigned i = 0; p && i < p->n; i++) {
        gnutls_pcert_deinit(&p->chain[i]);
    }
    if (p && p->key) {
        gnutls_privkey_deinit(p->key);
    }
    free(p);
}

/* ---- reading ------------------------------------------------------------------------------------------------- */

static int refuse(struct error *err, const char *setting, const char *path, const char *why) {
    return error_set_param(err, ERROR_MODEL, setting, "%s: %.300s: %s", setting, path, why);
}

static int read_all(int fd, const char *setting, const char *path, struct buf *out, struct error *err) {
    char piece[4096];
    ssize_t n;
    out->limit = FILE_MAX_BYTES;
    while ((n = read(fd, piece, sizeof piece)) > 0) {
        buf_append(out, piece, (size_t)n);
    }
    explicit_bzero(piece, sizeof piece);
    if (n < 0) {
        return refuse(err, setting, path, strerror(errno));
    }
    return out->failed ? refuse(err, setting, path, "it is too large to be one") : 0;
}

static int read_file(const char *setting, const char *path, bool secret, struct buf *out, struct error *err) {
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st)) {
        int reason = errno;
        if (fd >= 0) {
            close(fd);
        }
        return refuse(err, setting, path, strerror(reason));
    }
    int rc = 0;
    if (!S_ISREG(st.st_mode)) {
        rc = refuse(err, setting, path, "it is no regular file");
    } else if (secret && (st.st_mode & 0007)) {
        rc = error_set_param(err, ERROR_MODEL, setting,
                             "%s: %.300s: others may read or change it (mode %04o); a private key wants chmod 0600 or 0640",
                             setting, path, (unsigned)st.st_mode & 07777);
    } else {
        rc = read_all(fd, setting, path, out, err);
    }
    close(fd);
    return rc;
}

static gnutls_datum_t datum(const struct buf *b) {
    return (gnutls_datum_t){(unsigned char *)b->data, (unsigned)b->len};
}

static int load_chain(const char *path, struct pair *p, struct error *err) {
    struct buf text = BUF_INIT;
    gnutls_x509_crt_t first = NULL;
    unsigned n = CHAIN_MAX;
    int rc = read_file("tls_certificate", path, false, &text, err);
    if (rc == 0) {
        gnutls_datum_t pem = datum(&text);
        int got = text.len ? gnutls_pcert_list_import_x509_raw(p->chain, &n, &pem, GNUTLS_X509_FMT_PEM,
                                                               GNUTLS_X509_CRT_LIST_IMPORT_FAIL_IF_EXCEED)
                           : GNUTLS_E_NO_CERTIFICATE_FOUND;
        p->n = got < 0 ? 0 : n;
        if (got == GNUTLS_E_SHORT_MEMORY_BUFFER) {
            rc = refuse(err, "tls_certificate", path, "there are too many certificates in it");
        } else if (got < 0 || n == 0) {
            rc = refuse(err, "tls_certificate", path, "there is no certificate in it (PEM is wanted)");
        } else if (gnutls_pcert_export_x509(&p->chain[0], &first) < 0) {
            rc = error_memory(err);
        } else {
            p->not_after = gnutls_x509_crt_get_expiration_time(first);
            gnutls_x509_crt_deinit(first);
        }
    }
    buf_free(&text);
    return rc;
}

static int load_key(const char *path, struct pair *p, struct error *err) {
    struct buf text = BUF_INIT;
    int rc = read_file("tls_key", path, true, &text, err);
    if (rc == 0 && gnutls_privkey_init(&p->key) < 0) {
        p->key = NULL;
        rc = error_memory(err);
    }
    if (rc == 0) {
        gnutls_datum_t pem = datum(&text);
        int got = text.len ? gnutls_privkey_import_x509_raw(p->key, &pem, GNUTLS_X509_FMT_PEM, NULL, 0)
                           : GNUTLS_E_NO_CERTIFICATE_FOUND;
        if (got < 0 && text.data && strstr(text.data, "ENCRYPTED")) {
            rc = refuse(err, "tls_key", path, "the key is encrypted; inferd has no password for it");
        } else if (got < 0) {
            rc = refuse(err, "tls_key", path, "there is no private key in it (PEM is wanted)");
        }
    }
    if (text.data) {
        explicit_bzero(text.data, text.len);
    }
    buf_free(&text);
    return rc;
}

static bool key_id(gnutls_pubkey_t key, unsigned char id[32]) {
    size_t len = 32;
    return gnutls_pubkey_get_key_id(key, GNUTLS_KEYID_USE_SHA256, id, &len) >= 0 && len == 32;
}

static bool belong_together(const struct pair *p) {
    unsigned char a[32], b[32];
    gnutls_pubkey_t public;
    if (gnutls_pubkey_init(&public) < 0) {
        return false;
    }
    bool same = gnutls_pubkey_import_privkey(public, p->key, 0, 0) >= 0 && key_id(public, a) &&
                key_id(p->chain[0].pubkey, b) && memcmp(a, b, sizeof a) == 0;
    gnutls_pubkey_deinit(public);
    return same;
}

static int pair_load(const char *certificate, const char *key, struct pair **out, struct error *err) {
    struct pair *p = calloc(1, sizeof *p);
    if (!p) {
        return error_memory(err);
    }
    int rc = load_chain(certificate, p, err) || load_key(key, p, err) ? -1 : 0;
    if (rc == 0 && !belong_together(p)) {
        rc = error_set_param(err, ERROR_MODEL, "tls_key", "tls_key: %.150s is not the key of the certificate %.150s", key,
                             certificate);
    }
    if (rc) {
        pair_free(p);
        return -1;
    }
    *out = p;
    return 0;
}

/* ---- in use -------------------------------------------------------------------------------------------------- */

static void free_retired(struct tls *t, uint64_t until_ns) {
    LIST_FOR_EACH_SAFE(node, next, &t->retired) {
        struct pair *p = LIST_ENTRY(node, struct pair, node);
        if (p->retired_ns <= until_ns) {
            list_remove(&p->node);
            pair_free(p);
        }
    }
}

int tls_open(const char *certificate, const char *key, const char *min_version, struct tls **out, struct error *err) {
    /* Ciphers with forward secrecy and authentication only. */
#define AGREE ":-RSA:-DHE-RSA:-CIPHER-ALL:+AES-256-GCM:+AES-128-GCM:+CHACHA20-POLY1305:%SERVER_PRECEDENCE"
    static const char from_1_3[] = "NORMAL:-VERS-ALL:+VERS-TLS1.3" AGREE;
    static const char from_1_2[] = "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2" AGREE;
    struct tls *t = calloc(1, sizeof *t);
    if (!t) {
        return error_memory(err);
    }
    list_init(&t->retired);
    t->priorities = strcmp(min_version, "1.3") == 0 ? from_1_3 : from_1_2;
    if (pair_load(certificate, key, &t->pair, err)) {
        free(t);
        return -1;
    }
    in_use = t;
    *out = t;
    return 0;
}

int tls_reload(struct tls *t, const char *certificate, const char *key, struct error *err) {
    struct pair *fresh;
    if (pair_load(certificate, key, &fresh, err)) {
        return -1;
    }
    uint64_t now = clock_now_ns();
    free_retired(t, now > RETIRED_NS ? now - RETIRED_NS : 0);
    t->pair->retired_ns = now;
    list_push_back(&t->retired, &t->pair->node);
    t->pair = fresh;
    return 0;
}

void tls_free(struct tls *t) {
    if (t) {
        in_use = NULL;
        free_retired(t, UINT64_MAX);
        pair_free(t->pair);
        free(t);
    }
}

int tls_check(const char *certificate, const char *key, struct error *err) {
    struct pair *p;
    if (pair_load(certificate, key, &p, err)) {
        return -1;
    }
    pair_free(p);
    return 0;
}

const char *tls_priorities(const struct tls *t) {
    return t->priorities;
}

time_t tls_not_after(const struct tls *t) {
    return t->pair->not_after;
}

bool tls_established(gnutls_session_t session) {
    gnutls_datum_t binding = {0}; /* which there is none of before the end of the handshake */
    int rc = gnutls_session_channel_binding(session, GNUTLS_CB_TLS_UNIQUE, &binding);
    if (rc == 0) {
        gnutls_free(binding.data);
    }
    return rc != GNUTLS_E_CHANNEL_BINDING_NOT_AVAILABLE;
}

int tls_retrieve(gnutls_session_t session, const gnutls_datum_t *ca_names, int n_ca_names,
                 const gnutls_pk_algorithm_t *algorithms, int n_algorithms, gnutls_pcert_st **certificates,
                 unsigned *n_certificates, gnutls_privkey_t *key) {
    (void)session;
    (void)ca_names;
    (void)n_ca_names;
    (void)algorithms;
    (void)n_algorithms;
    if (!in_use) {
        return -1;
    }
    *certificates = in_use->pair->chain;
    *n_certificates = in_use->pair->n;
    *key = in_use->pair->key;
    return 0;
}
