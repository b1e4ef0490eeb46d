/* The certificate that TLS handshakes show, and what a handshake may agree on. Loop thread. */
#ifndef INFERD_TLS_H
#define INFERD_TLS_H

#include <gnutls/abstract.h>
#include <gnutls/gnutls.h>
#include <inferd/error.h>
#include <stdbool.h>
#include <time.h>

struct tls;

/*
 * Read a certificate chain (PEM, the server's own first) and its private key (PEM, not encrypted). The key's file may
 * not be open to others, and must fit the certificate. min_version: "1.2" or "1.3". ERROR_MODEL with err->param =
 * tls_certificate or tls_key; ERROR_MEMORY. Only one at a time: see tls_retrieve.
 */
int tls_open(const char *certificate, const char *key, const char *min_version, struct tls **out, struct error *err);
/* The same files or others again, for handshakes that begin from now on. On failure the pair in use stays. */
int tls_reload(struct tls *t, const char *certificate, const char *key, struct error *err);
void tls_free(struct tls *t); /* after the last session; NULL is fine */

/* A pair is fit for use: what tls_open checks. */
int tls_check(const char *certificate, const char *key, struct error *err);

const char *tls_priorities(const struct tls *t); /* a GnuTLS priority string */
time_t tls_not_after(const struct tls *t);       /* when the server's certificate ends */

/* Is the handshake over, and well? */
bool tls_established(gnutls_session_t session);

/* The callback of a handshake: the pair that is open. It gets no argument of ours, hence one pair a process. */
int tls_retrieve(gnutls_session_t session, const gnutls_datum_t *ca_names, int n_ca_names,
                 const gnutls_pk_algorithm_t *algorithms, int n_algorithms, gnutls_pcert_st **certificates,
                 unsigned *n_certificates, gnutls_privkey_t *key);

#endif
