#include "base/sha256.h"

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <string.h>

bool sha256(const void *data, size_t len, uint8_t out[SHA256_BYTES]) {
    uint8_t digest[SHA256_BYTES];
    if (gnutls_hash_fast(GNUTLS_DIG_SHA256, data, len, digest) < 0) {
        return false;
    }
    memcpy(out, digest, sizeof digest);
    return true;
}
