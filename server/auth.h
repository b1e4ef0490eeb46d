/* API keys: kept and compared as SHA-256 digests, over all keys in constant time. */
#ifndef INFERD_AUTH_H
#define INFERD_AUTH_H

#include <inferd/error.h>
#include <stdbool.h>
#include <stddef.h>

struct api_keys;

#define AUTH_DIGEST 32

struct auth {
    unsigned char (*digests)[AUTH_DIGEST]; /* [n], owned; n == 0: no key is needed */
    size_t n;
};

int auth_init(struct auth *a, const struct api_keys *keys, struct error *err);
void auth_free(struct auth *a); /* a zeroed one is fine */

/* Does the value of an Authorization header (NULL if absent) carry one of the keys? True when there are none. */
bool auth_check(const struct auth *a, const char *authorization);

#endif
