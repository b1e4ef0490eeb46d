#include "base/file_map.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int file_map_open(const char *path, struct file_map *out, struct error *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0) {
        return error_set(err, ERROR_MODEL, "%s: %s", path, strerror(errno));
    }
    struct stat st;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return error_set(err, ERROR_MODEL, "%s: not a regular file", path);
    }
    struct file_map m = {NULL, (size_t)st.st_size};
    if (m.size > 0) {
        void *p = mmap(NULL, m.size, PROT_READ, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED) {
            int saved = errno;
            close(fd);
            /* ENOMEM is the machine's fault, and may pass; a bad file does not */
            return error_set(err, saved == ENOMEM ? ERROR_MEMORY : ERROR_MODEL, "%s: cannot map %zu bytes: %s", path,
                             m.size, strerror(saved));
        }
        m.data = p;
    }
    close(fd);
    *out = m;
    return 0;
}

void file_map_close(struct file_map *m) {
    if (m->data) {
        munmap((void *)(uintptr_t)m->data, m->size);
    }
    *m = (struct file_map){0};
}

void file_map_release(const struct file_map *m, size_t offset, size_t size) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (!m->data || offset > m->size || size > m->size - offset) {
        return;
    }
    size_t begin = (offset + page - 1) / page * page, end = (offset + size) / page * page;
    if (begin < end) { /* the mapping begins at a page */
        (void)madvise((void *)(uintptr_t)(m->data + begin), end - begin, MADV_DONTNEED);
    }
}
