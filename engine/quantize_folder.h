/*
 * The folder that a checkpoint grows in, OUT.partial, with the list of what is finished there (a manifest with SHA-256
 * digests), and its becoming OUT by one rename. One thread; a lock keeps a second process out.
 */
#ifndef INFERD_QUANTIZE_FOLDER_H
#define INFERD_QUANTIZE_FOLDER_H

#include "base/sha256.h"

#include <inferd/error.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct partial_folder {
    char out[PATH_MAX], path[PATH_MAX]; /* OUT and OUT.partial */
    int manifest;                       /* -1 not open; locked */
    uint8_t (*digests)[SHA256_BYTES];   /* [n] of the units that an earlier run finished, in order; owned */
    size_t n;
    bool resumed, began_anew;
};

/* May OUT be written? Checked before any work: it does not exist, is an empty folder, or is a model folder that may be replaced
 * (`force`) and is not the source. */
int partial_folder_check(const char *out, const char *source, bool force, struct error *err);

/* Make OUT.partial, or take over what an earlier run with the same fingerprint left; that of another one is emptied. A folder of
 * this name that is none of ours is refused. */
int partial_folder_open(struct partial_folder *f, const char *out, const uint8_t fingerprint[SHA256_BYTES],
                        struct error *err);
/* Forget all units from `n` on: their files did not stand the test. */
int partial_folder_keep(struct partial_folder *f, size_t n, struct error *err);
/* One more unit is finished, and on the disk. */
int partial_folder_add(struct partial_folder *f, const uint8_t digest[SHA256_BYTES], struct error *err);
/* OUT.partial becomes OUT. */
int partial_folder_commit(struct partial_folder *f, bool force, struct error *err);
void partial_folder_close(struct partial_folder *f);

/* Copy the tokenizer, the templates and the generation settings that lie beside a safetensors model. */
int copy_model_files(const char *model, const char *to, struct error *err);

#endif
