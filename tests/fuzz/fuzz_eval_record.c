/* A recorded reference of `inferd eval`, opened and read to its end. */
#include <inferd/eval.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char path[64];
    struct eval_reader *r;
    const struct eval_top *top;
    struct error err;
    int fd = memfd_create("reference", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) {
        abort();
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (eval_reader_open(path, &r, &err) == 0) {
        const struct eval_record_header *h = eval_reader_header(r);
        for (uint64_t i = 0; i < h->n && eval_reader_next(r, &top, &err) == 0; i++) {
            for (size_t k = 0; k < top->n; k++) {
                if (top->ids[k] < 0 || (uint32_t)top->ids[k] >= h->vocab_size) {
                    abort();
                }
            }
        }
        eval_reader_close(r);
    }
    close(fd);
    return 0;
}
