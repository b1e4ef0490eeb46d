#include "auth.h"
#include "config.h"

#include <criterion/criterion.h>
#include <string.h>

static struct error err;

static struct auth with_keys(char **keys, size_t n) {
    struct auth a;
    cr_assert_eq(auth_init(&a, &(struct api_keys){keys, n}, &err), 0);
    return a;
}

static struct auth_identity who(const struct auth *a, const char *authorization) {
    struct auth_identity id;
    cr_assert(auth_check(a, authorization, &id), "%s", authorization ? authorization : "(none)");
    return id;
}

Test(auth, headers) {
    char alpha[] = "alpha", beta[] = "beta", *keys[] = {alpha, beta};
    struct auth a = with_keys(keys, 2);
    static const char *const good[] = {"Bearer alpha", "bearer beta", "Bearer   beta"};
    static const char *const bad[] = {
        "", "alpha", "Bearer", "Bearer ", "Beareralpha", "Basic alpha", "Bearer alph", "Bearer alpha ", "Bearer Alpha"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        cr_expect(auth_check(&a, good[i], NULL), "%s", good[i]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_expect_not(auth_check(&a, bad[i], NULL), "%s", bad[i]);
    }
    cr_expect_not(auth_check(&a, NULL, NULL));
    auth_free(&a);
}

Test(auth, a_key_is_the_same_tenant_whatever_stands_beside_it) {
    char first[] = "alpha", second[] = "beta", third[] = "gamma";
    char *one[] = {first, second}, *other[] = {third, second, first};
    struct auth a = with_keys(one, 2), b = with_keys(other, 3);
    struct auth_identity alpha = who(&a, "Bearer alpha"), beta = who(&a, "Bearer beta");
    struct auth_identity again = who(&b, "bearer  alpha");
    cr_assert(alpha.tenant == again.tenant && memcmp(alpha.digest, again.digest, AUTH_DIGEST) == 0);
    cr_assert(alpha.tenant != beta.tenant && alpha.tenant != 0 && beta.tenant != 0);
    auth_free(&a);
    auth_free(&b);
}

Test(auth, without_keys_everybody_is_nobody) {
    struct auth a = with_keys(NULL, 0);
    struct auth_identity some = who(&a, "Bearer x"), none = who(&a, NULL);
    cr_assert(some.tenant == 0 && none.tenant == 0 && memcmp(some.digest, none.digest, AUTH_DIGEST) == 0);
    auth_free(&a);
}

/* Equal for the same key and salt alone; a salt cannot be chosen to meet another's. */
Test(auth, salts) {
    char alpha[] = "alpha", beta[] = "beta", *keys[] = {alpha, beta};
    struct auth a = with_keys(keys, 2), open = with_keys(NULL, 0);
    const struct auth_identity ids[] = {who(&a, "Bearer alpha"), who(&a, "Bearer beta"), who(&open, NULL)};
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
    auth_free(&a);
    auth_free(&open);
}
