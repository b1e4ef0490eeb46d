/* SHA-256 (FIPS 180-4). */
#ifndef INFERD_SHA256_H
#define INFERD_SHA256_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SHA256_BYTES 32

/* False, and out untouched, when the library refuses to hash (a policy of the machine may forbid it). */
bool sha256(const void *data, size_t len, uint8_t out[SHA256_BYTES]);

/* The same piece by piece. NULL, and false, when the library refuses; _end frees the state. */
struct sha256_state;
struct sha256_state *sha256_begin(void);
bool sha256_add(struct sha256_state *s, const void *data, size_t len);
void sha256_end(struct sha256_state *s, uint8_t out[SHA256_BYTES]);

/* In lower-case hexadecimal digits, with a NUL. */
void sha256_hex(const uint8_t digest[SHA256_BYTES], char out[2 * SHA256_BYTES + 1]);

#endif
