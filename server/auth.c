#include "auth.h"

#include "config.h"

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

int auth_init(struct auth *a, const struct api_keys *keys, struct error *err) {
    unsigned char(*digests)[AUTH_DIGEST] = calloc(keys->n ? keys->n : 1, sizeof *digests);
    if (!digests) {
        return error_memory(err);
    }
    for (size_t i = 0; i < keys->n; i++) {
        if (gnutls_hash_fast(GNUTLS_DIG_SHA256, keys->keys[i], strlen(keys->keys[i]), digests[i])) {
            free(digests);
            return error_set(err, ERROR_INTERNAL, "SHA-256 is not available");
        }
    }
    *a = (struct auth){digests, keys->n};
    return 0;
}

void auth_free(struct auth *a) {
    free(a->digests);
    *a = (struct auth){0};
}

/* The key in an Authorization header, NULL if it has none. */
static const char *bearer(const char *authorization) {
    static const char scheme[] = "Bearer";
    if (!authorization || strncasecmp(authorization, scheme, sizeof scheme - 1) != 0) {
        return NULL;
    }
    const char *key = authorization + sizeof scheme - 1;
    return *key == ' ' ? key + strspn(key, " ") : NULL;
}

/* A number from the key's digest; its first bytes are told to nobody, but stay apart from the digest all the same. */
static bool identify(struct auth_identity *who) {
    unsigned char named[sizeof "inferd tenant 1" + AUTH_DIGEST], digest[AUTH_DIGEST];
    memcpy(named, "inferd tenant 1", sizeof "inferd tenant 1");
    memcpy(named + sizeof "inferd tenant 1", who->digest, AUTH_DIGEST);
    if (gnutls_hash_fast(GNUTLS_DIG_SHA256, named, sizeof named, digest)) {
        return false;
    }
    memcpy(&who->tenant, digest, sizeof who->tenant);
    who->tenant += who->tenant == 0;
    return true;
}

bool auth_check(const struct auth *a, const char *authorization, struct auth_identity *who) {
    struct auth_identity found = {0};
    if (a->n == 0) {
        if (who) {
            *who = found;
        }
        return true;
    }
    const char *key = bearer(authorization);
    if (!key || gnutls_hash_fast(GNUTLS_DIG_SHA256, key, strlen(key), found.digest)) {
        return false;
    }
    int known = 0;
    for (size_t i = 0; i < a->n; i++) { /* all of them, whichever fits */
        known |= gnutls_memcmp(found.digest, a->digests[i], AUTH_DIGEST) == 0;
    }
    if (!known || !identify(&found)) {
        return false;
    }
    if (who) {
        *who = found;
    }
    return true;
}

int auth_cache_salt(const struct auth_identity *who, const char *cache_salt, unsigned char out[AUTH_DIGEST],
                    struct error *err) {
    static const char tag[] = "inferd prefix cache 1";
    uint64_t len = cache_salt ? strlen(cache_salt) : 0;
    gnutls_hash_hd_t hash;
    if (gnutls_hash_init(&hash, GNUTLS_DIG_SHA256)) {
        return error_set(err, ERROR_INTERNAL, "SHA-256 is not available");
    }
    bool ok = gnutls_hash(hash, tag, sizeof tag) == 0 && gnutls_hash(hash, who->digest, AUTH_DIGEST) == 0 &&
              gnutls_hash(hash, &len, sizeof len) == 0 && (len == 0 || gnutls_hash(hash, cache_salt, len) == 0);
    gnutls_hash_deinit(hash, out);
    return ok ? 0 : error_set(err, ERROR_INTERNAL, "SHA-256 is not available");
}
