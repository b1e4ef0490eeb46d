/* What a key proves and to what it leads: digests, and the identity that the engine may know. keys.h has the keys. */
#ifndef INFERD_AUTH_H
#define INFERD_AUTH_H

#include <inferd/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define AUTH_DIGEST 32 /* bytes of SHA-256 */

/* Whose a request is, as the engine may know it: a number for fair shares, and what separates cached prompts. */
struct auth_identity {
    uint64_t tenant;                   /* of the key; 0: there are no keys */
    unsigned char digest[AUTH_DIGEST]; /* of the key, or of the salt that several share; all zero: there are no keys */
};

/* SHA-256 of bytes. ERROR_INTERNAL: there is none. */
int auth_digest(const void *bytes, size_t len, unsigned char out[AUTH_DIGEST], struct error *err);

/* The key in the value of an Authorization header (NULL if absent): NULL if it has none. */
const char *auth_bearer(const char *authorization);

/*
 * The identity of a key with this digest; the same whatever other keys there are. Keys with the same salt (not "")
 * find each other's cached prompts.
 */
int auth_identify(const unsigned char digest[AUTH_DIGEST], const char *salt, struct auth_identity *out, struct error *err);

/*
 * The salt of the prefix cache: other keys never share a block, and of one key only requests with the same cache_salt
 * (NULL: none) do. SHA-256 over a tag, the identity's digest, and the salt's length and bytes.
 */
int auth_cache_salt(const struct auth_identity *who, const char *cache_salt, unsigned char out[AUTH_DIGEST],
                    struct error *err);

#endif
