/* API keys: kept and compared as SHA-256 digests, over all keys in constant time. */
#ifndef INFERD_AUTH_H
#define INFERD_AUTH_H

#include <inferd/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct api_keys;

#define AUTH_DIGEST 32

struct auth {
    unsigned char (*digests)[AUTH_DIGEST]; /* [n], owned; n == 0: no key is needed */
    size_t n;
};

int auth_init(struct auth *a, const struct api_keys *keys, struct error *err);
void auth_free(struct auth *a); /* a zeroed one is fine */

/* Whose a request is, as the engine may know it: a number for fair shares, and what separates cached prompts. */
struct auth_identity {
    uint64_t tenant;                   /* of the key; 0: there are no keys */
    unsigned char digest[AUTH_DIGEST]; /* of the key; all zero: there are no keys */
};

/*
 * Does the value of an Authorization header (NULL if absent) carry one of the keys? True when there are none. *who (may
 * be NULL) is the same for the same key whatever other keys there are.
 */
bool auth_check(const struct auth *a, const char *authorization, struct auth_identity *who);

/*
 * The salt of the prefix cache: other keys never share a block, and of one key only requests with the same cache_salt
 * (NULL: none) do. SHA-256 over a tag, the key's digest, and the salt's length and bytes. ERROR_INTERNAL: no SHA-256.
 */
int auth_cache_salt(const struct auth_identity *who, const char *cache_salt, unsigned char out[AUTH_DIGEST],
                    struct error *err);

#endif
