#include "base/sha256.h"

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool sha256(const void *data, size_t len, uint8_t out[SHA256_BYTES]) {
    uint8_t digest[SHA256_BYTES];
    if (gnutls_hash_fast(GNUTLS_DIG_SHA256, data, len, digest) < 0) {
        return false;
    }
    memcpy(out, digest, sizeof digest);
    return true;
}

struct sha256_state {
    gnutls_hash_hd_t hash;
};

struct sha256_state *sha256_begin(void) {
    struct sha256_state *s = calloc(1, sizeof *s);
    if (s && gnutls_hash_init(&s->hash, GNUTLS_DIG_SHA256) < 0) {
        free(s);
        s = NULL;
    }
    return s;
}

bool sha256_add(struct sha256_state *s, const void *data, size_t len) {
    return len == 0 || gnutls_hash(s->hash, data, len) == 0;
}

void sha256_end(struct sha256_state *s, uint8_t out[SHA256_BYTES]) {
    gnutls_hash_deinit(s->hash, out);
    free(s);
}

void sha256_hex(const uint8_t digest[SHA256_BYTES], char out[2 * SHA256_BYTES + 1]) {
    for (size_t i = 0; i < SHA256_BYTES; i++) {
        snprintf(out + 2 * i, 3, "%02x", digest[i]);
    }
}
