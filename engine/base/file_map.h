/* A file mapped read-only. */
#ifndef INFERD_FILE_MAP_H
#define INFERD_FILE_MAP_H

#include <inferd/error.h>
#include <stddef.h>

struct file_map {
    const unsigned char *data; /* [size]; NULL for an empty file */
    size_t size;
};

/* ERROR_MODEL with the path and the reason; a folder or a device is refused. */
int file_map_open(const char *path, struct file_map *out, struct error *err);
void file_map_close(struct file_map *m); /* zeroes it; a zeroed one is fine */

/* Give back the memory of the whole pages in [offset, offset + size); they are read from the file again when needed. */
void file_map_release(const struct file_map *m, size_t offset, size_t size);

#endif
