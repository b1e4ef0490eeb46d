/* SHA-256 (FIPS 180-4) of one piece of memory. */
#ifndef INFERD_SHA256_H
#define INFERD_SHA256_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SHA256_BYTES 32

/* False, and out untouched, when the library refuses to hash (a policy of the machine may forbid it). */
bool sha256(const void *data, size_t len, uint8_t out[SHA256_BYTES]);

#endif
