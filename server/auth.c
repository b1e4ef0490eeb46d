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

bool auth_check(const struct auth *a, const char *authorization) {
    static const char scheme[] = "Bearer";
    if (a->n == 0) {
        return true;
    }
    if (!authorization || strncasecmp(authorization, scheme, sizeof scheme - 1) != 0) {
        return false;
    }
    const char *key = authorization + sizeof scheme - 1;
    if (*key != ' ') {
        return false;
    }
    key += strspn(key, " ");
    unsigned char digest[AUTH_DIGEST];
    if (gnutls_hash_fast(GNUTLS_DIG_SHA256, key, strlen(key), digest)) {
        return false;
    }
    int found = 0;
    for (size_t i = 0; i < a->n; i++) { /* all of them, whichever fits */
        found |= gnutls_memcmp(digest, a->digests[i], AUTH_DIGEST) == 0;
    }
    return found;
}
