/* dump_logits MODEL OUT ID...: writes the logits after each of the ids to OUT, F32 [ids][vocab_size]. */
#include "runner.h"

#include <stdio.h>
#include <stdlib.h>

#define CHUNK 64

static void write_row(void *arg, size_t position, const float *logits) {
    (void)position;
    const struct runner *r = ((void **)arg)[0];
    FILE *f = ((void **)arg)[1];
    fwrite(logits, sizeof *logits, r->decoder->config.vocab_size, f);
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fputs("usage: dump_logits MODEL OUT ID...\n", stderr);
        return 2;
    }
    struct engine_config config;
    struct runner r;
    struct error err;
    engine_config_default(&config);
    config.model = argv[1];
    size_t n = (size_t)argc - 3;
    int32_t *ids = calloc(n, sizeof *ids);
    FILE *f = fopen(argv[2], "wb");
    if (!ids || !f || runner_open(&r, &config, CHUNK, &err) < 0) {
        fprintf(stderr, "%s\n", f && ids ? err.message : "no output file or memory");
        return 1;
    }
    for (size_t i = 0; i < n; i++) {
        ids[i] = atoi(argv[3 + i]);
    }
    int rc = runner_evaluate(&r, ids, n, CHUNK, write_row, (void *[]){&r, f}, &err);
    if (rc < 0) {
        fprintf(stderr, "%s\n", err.message);
    }
    rc |= fclose(f);
    runner_close(&r);
    free(ids);
    return rc ? 1 : 0;
}
