/* An HTTP answer from anybody, in pieces whose sizes the first byte tells, as the clients of `inferd bench --url` read it. */
#include "cmd/answer.h"

#include <stdlib.h>
#include <string.h>

static void on_event(void *arg, const char *data, size_t len) {
    size_t *bytes = arg;
    for (size_t i = 0; i < len; i++) {
        *bytes += (unsigned char)data[i];
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct answer a = {0};
    size_t sum = 0, piece = size > 0 ? 1 + data[0] : 1;
    answer_begin(&a);
    for (size_t at = 1; at < size; at += piece) {
        size_t n = size - at < piece ? size - at : piece;
        char *exact = malloc(n);
        if (!exact) {
            break;
        }
        memcpy(exact, data + at, n);
        size_t taken = answer_feed(&a, exact, n, on_event, &sum);
        free(exact);
        if (taken > n || a.line_cap > ANSWER_MAX_LINE) {
            abort();
        }
    }
    answer_end(&a);
    if (a.state != ANSWER_DONE && a.state != ANSWER_BROKEN) {
        abort();
    }
    answer_free(&a);
    return 0;
}
