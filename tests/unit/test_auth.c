#include "auth.h"

#include <criterion/criterion.h>
#include <string.h>

static struct error err;

static struct auth_identity who(const char *key, const char *salt) {
    unsigned char digest[AUTH_DIGEST];
    struct auth_identity id;
    cr_assert_eq(auth_digest(key, strlen(key), digest, &err), 0);
    cr_assert_eq(auth_identify(digest, salt, &id, &err), 0);
    return id;
}

Test(auth, headers) {
    static const char *const good[] = {"Bearer alpha", "bearer alpha", "BEARER   alpha"};
    static const char *const bad[] = {"", "alpha", "Bearer", "Beareralpha", "Basic alpha", "Bearer\talpha"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        cr_expect_str_eq(auth_bearer(good[i]), "alpha");
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_expect_null(auth_bearer(bad[i]), "%s", bad[i]);
    }
    cr_expect_null(auth_bearer(NULL));
    cr_expect_str_eq(auth_bearer("Bearer "), "");
}

/* The value of SHA-256("abc") is FIPS 180-4's example. */
Test(auth, digest) {
    static const unsigned char abc[] = {0xba, 0x78, 0x16, 0xbf, 0x8f, 0x01, 0xcf, 0xea};
    unsigned char digest[AUTH_DIGEST];
    cr_assert_eq(auth_digest("abc", 3, digest, &err), 0);
    cr_assert_eq(memcmp(digest, abc, sizeof abc), 0);
}

Test(auth, identities) {
    struct auth_identity alpha = who("alpha", ""), again = who("alpha", ""), beta = who("beta", "");
    struct auth_identity shared = who("alpha", "team"), other = who("beta", "team"), third = who("beta", "teams");
    cr_assert(alpha.tenant == again.tenant && memcmp(alpha.digest, again.digest, AUTH_DIGEST) == 0);
    cr_assert(alpha.tenant != beta.tenant && alpha.tenant != 0 && memcmp(alpha.digest, beta.digest, AUTH_DIGEST) != 0);
    /* a shared salt shares prompts, not the tenant */
    cr_assert(memcmp(shared.digest, other.digest, AUTH_DIGEST) == 0 && shared.tenant == alpha.tenant);
    cr_assert(memcmp(shared.digest, alpha.digest, AUTH_DIGEST) != 0 && shared.tenant != other.tenant);
    cr_assert(memcmp(third.digest, other.digest, AUTH_DIGEST) != 0);
}

/* Equal for the same key and salt alone; a salt cannot be chosen to meet another's. */
Test(auth, salts) {
    const struct auth_identity ids[] = {who("alpha", ""), who("beta", ""), {0}};
    static const char *const salts[] = {NULL, "x", "y", "xy"};
    unsigned char out[12][AUTH_DIGEST], again[AUTH_DIGEST];
    for (size_t i = 0; i < 12; i++) {
        cr_assert_eq(auth_cache_salt(&ids[i / 4], salts[i % 4], out[i], &err), 0);
        cr_assert_eq(auth_cache_salt(&ids[i / 4], salts[i % 4], again, &err), 0);
        cr_assert_eq(memcmp(out[i], again, AUTH_DIGEST), 0);
        for (size_t j = 0; j < i; j++) {
            cr_assert_neq(memcmp(out[i], out[j], AUTH_DIGEST), 0, "%zu and %zu", i, j);
        }
    }
}
