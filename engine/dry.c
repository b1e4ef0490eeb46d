#include "dry.h"

#include <string.h>

/* Does a breaker end behind byte `from` of bytes[0..len)? */
static bool ends_behind(const struct meta_stop *breakers, size_t n, const char *bytes, size_t len, size_t from) {
    for (size_t i = 0; i < n; i++) {
        size_t b = breakers[i].len, first = from + 1 > b ? from + 1 - b : 0;
        for (size_t at = first; at + b <= len; at++) {
            if (bytes[at] == breakers[i].bytes[0] && memcmp(bytes + at, breakers[i].bytes, b) == 0) {
                return true;
            }
        }
    }
    return false;
}

bool dry_is_breaker(const struct text *text, const struct meta_stop *breakers, size_t n_breakers, int32_t token) {
    size_t len;
    const char *bytes = text_token_bytes(text, token, &len);
    return ends_behind(breakers, n_breakers, bytes, len, 0);
}

size_t dry_reach(const struct text *text, const struct meta_stop *breakers, size_t n_breakers, const int32_t *tokens,
                 size_t n) {
    size_t before = 0; /* bytes in front of a token in which a breaker may begin that ends in it */
    for (size_t i = 0; i < n_breakers; i++) {
        before = breakers[i].len > before + 1 ? breakers[i].len - 1 : before;
    }
    for (size_t i = n; n_breakers > 0 && i-- > 0;) {
        size_t len;
        const char *own = text_token_bytes(text, tokens[i], &len);
        if (ends_behind(breakers, n_breakers, own, len, 0)) { /* whole inside the token */
            return n - 1 - i;
        }
        /* across its beginning: the end of what comes before, and at most `before` bytes of its own */
        char joined[2 * ENGINE_MAX_DRY_BREAKER_LEN];
        size_t have = 0;
        for (size_t k = i; k > 0 && have < before;) {
            size_t part;
            const char *bytes = text_token_bytes(text, tokens[--k], &part);
            size_t take = part < before - have ? part : before - have;
            memmove(joined + take, joined, have);
            memcpy(joined, bytes + part - take, take);
            have += take;
        }
        size_t take = len < before ? len : before;
        memcpy(joined + have, own, take);
        if (take > 0 && ends_behind(breakers, n_breakers, joined, have + take, have)) {
            return n - 1 - i;
        }
    }
    return n;
}

/*
 * The Z-algorithm (Gusfield 1997, section 1.4) over the tokens from the last to the first: z[k], the length of the
 * longest common prefix of the reversed sequence and its part from k on, is lengths[n - 1 - k].
 */
void dry_lengths(const int32_t *tokens, size_t n, size_t reach, int32_t *lengths) {
    if (n == 0) {
        return;
    }
    const int32_t *last = tokens + n - 1;
    int32_t *z = lengths + n - 1; /* z[-k] */
    size_t left = 0, right = 0;   /* the match [left, right) that ends last */
    z[0] = 0;
    for (size_t k = 1; k < n; k++) {
        size_t len = 0;
        if (k < right) {
            size_t inside = (size_t)z[-(ptrdiff_t)(k - left)];
            len = inside < right - k ? inside : right - k;
        }
        if (k + len >= right) {
            while (k + len < n && last[-(ptrdiff_t)len] == last[-(ptrdiff_t)(k + len)]) {
                len++;
            }
            left = k;
            right = k + len;
        }
        z[-(ptrdiff_t)k] = (int32_t)len;
    }
    for (size_t i = 0; i < n; i++) {
        lengths[i] = (size_t)lengths[i] < reach ? lengths[i] : (int32_t)reach;
    }
}
