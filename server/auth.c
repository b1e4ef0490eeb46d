#include "auth.h"

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <string.h>
#include <strings.h>

static int no_digest(struct error *err) {
    return error_set(err, ERROR_INTERNAL, "SHA-256 is not available");
}

int auth_digest(const void *bytes, size_t len, unsigned char out[AUTH_DIGEST], struct error *err) {
    return gnutls_hash_fast(GNUTLS_DIG_SHA256, bytes, len, out) ? no_digest(err) : 0;
}

const char *auth_bearer(const char *authorization) {
    static const char scheme[] = "Bearer";
    if (!authorization || strncasecmp(authorization, scheme, sizeof scheme - 1) != 0) {
        return NULL;
    }
    const char *key = authorization + sizeof scheme - 1;
    return *key == ' ' ? key + strspn(key, " ") : NULL;
}

/* SHA-256 over tag (with its NUL), digest, and text with its length before it: nothing can be chosen to meet another. */
static int tagged(const char *tag, const unsigned char digest[AUTH_DIGEST], const char *text,
                  unsigned char out[AUTH_DIGEST], struct error *err) {
    uint64_t len = text ? strlen(text) : 0;
    gnutls_hash_hd_t hash;
    if (gnutls_hash_init(&hash, GNUTLS_DIG_SHA256)) {
        return no_digest(err);
    }
    bool ok = gnutls_hash(hash, tag, strlen(tag) + 1) == 0 && gnutls_hash(hash, digest, AUTH_DIGEST) == 0 &&
              gnutls_hash(hash, &len, sizeof len) == 0 && (len == 0 || gnutls_hash(hash, text, len) == 0);
    gnutls_hash_deinit(hash, out);
    return ok ? 0 : no_digest(err);
}

int auth_identify(const unsigned char digest[AUTH_DIGEST], const char *salt, struct auth_identity *out, struct error *err) {
    static const unsigned char nobody[AUTH_DIGEST] = {0};
    struct auth_identity who;
    unsigned char named[AUTH_DIGEST];
    memcpy(who.digest, digest, AUTH_DIGEST);
    /* of the key's own digest, which stays apart from what is derived of it */
    if (tagged("inferd tenant 2", digest, NULL, named, err) ||
        (salt[0] && tagged("inferd shared salt 1", nobody, salt, who.digest, err))) {
        return -1;
    }
    memcpy(&who.tenant, named, sizeof who.tenant);
    who.tenant += who.tenant == 0;
    *out = who;
    return 0;
}

int auth_cache_salt(const struct auth_identity *who, const char *cache_salt, unsigned char out[AUTH_DIGEST],
                    struct error *err) {
    return tagged("inferd prefix cache 1", who->digest, cache_salt, out, err);
}
