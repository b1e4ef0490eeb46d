/* Stands in for libFuzzer's main where there is none: feeds every file of the folders named to the entry once. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int feed(const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END) != 0) {
        fprintf(stderr, "%s cannot be read\n", path);
        if (f) fclose(f);
        return -1;
    }
    long size = ftell(f);
    rewind(f);
    uint8_t *data = malloc(size > 0 ? (size_t)size : 1); /* exactly as long: a read past the end is seen by ASan */
    int rc = data && fread(data, 1, (size_t)size, f) == (size_t)size ? 0 : -1;
    fclose(f);
    if (rc == 0) {
        printf("%s\n", path);
        fflush(stdout);
        LLVMFuzzerTestOneInput(data, (size_t)size);
    }
    free(data);
    return rc;
}

int main(int argc, char **argv) {
    size_t n = 0;
    for (int i = 1; i < argc; i++) {
        DIR *folder = opendir(argv[i]);
        if (!folder) {
            fprintf(stderr, "%s is not a folder of seeds\n", argv[i]);
            return 1;
        }
        for (struct dirent *entry; (entry = readdir(folder));) {
            if (entry->d_name[0] == '.') continue;
            char path[4096];
            snprintf(path, sizeof(path), "%s/%s", argv[i], entry->d_name);
            if (feed(path) != 0) return 1;
            n++;
        }
        closedir(folder);
    }
    printf("%zu seeds\n", n);
    return n > 0 ? 0 : 1;
}
