/*
 * What can be wrong with a machine before a server is started on it: checks that each leave a line, and with a fault what to
 * do about it. Nothing is changed. `root` stands before /proc, /sys and /dev: "" but in tests.
 */
#ifndef INFERD_DOCTOR_H
#define INFERD_DOCTOR_H

#include "config.h"

#include <inferd/buf.h>
#include <stdbool.h>
#include <stddef.h>
#include <time.h>

/* NOTE: it works, less well than it could, or with an "if". */
enum doctor_status { DOCTOR_OK, DOCTOR_NOTE, DOCTOR_FAULT };

#define DOCTOR_MAX 64
struct doctor_finding {
    enum doctor_status status;
    char check[24];
    char finding[640];
    char remedy[512]; /* "" = nothing to do */
};
struct doctor {
    const char *root;
    struct doctor_finding found[DOCTOR_MAX];
    size_t n; /* beyond DOCTOR_MAX nothing is kept */
};

/* remedy: a sentence or command, NULL = none. */
void doctor_add(struct doctor *d, enum doctor_status status, const char *check, const char *remedy, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
size_t doctor_count(const struct doctor *d, enum doctor_status status);
/* As a table for people, or {"ok": bool, "faults": n, "notes": n, "checks": [...]}. */
void doctor_print(const struct doctor *d, bool json, struct buf *out);

/* The first line of a file under root, without its end; false if it cannot be read. */
bool doctor_read_line(const struct doctor *d, const char *path, char *out, size_t size);

/* ---- the system (doctor_system.c) ---- */

void doctor_check_cpu(struct doctor *d, const struct config *c);
void doctor_check_memory(struct doctor *d, size_t model_bytes); /* 0: none, or it lies elsewhere */
void doctor_check_huge_pages(struct doctor *d);
void doctor_check_shm(struct doctor *d);
void doctor_check_cgroup(struct doctor *d, size_t model_bytes); /* version 2 */
/* `descriptors`: how many the server wants; limits as getrlimit tells them. */
void doctor_check_limits(struct doctor *d, size_t descriptors, unsigned long long nofile, unsigned long long memlock, bool gpu);
/* synchronised: 1, 0, or -1 where the system does not tell */
void doctor_check_clock(struct doctor *d, time_t now, int synchronised);
void doctor_check_libmicrohttpd(struct doctor *d, const char *version);

/* ---- what will be served (doctor_serve.c) ---- */

void doctor_check_settings(struct doctor *d, const struct config *c);
/* Readable part by part, and its headers are sound. Returns its bytes, 0 if there is none. */
size_t doctor_check_model(struct doctor *d, const struct config *c);
void doctor_check_addresses(struct doctor *d, const struct config *c);

/* ---- the GPU (doctor_gpu.c) ---- */

/* How much it is wanted: device = cpu or null, auto, cuda. */
enum doctor_gpu { DOCTOR_GPU_UNUSED, DOCTOR_GPU_WELCOME, DOCTOR_GPU_WANTED };
enum doctor_gpu doctor_gpu_wish(const struct config *c);
void doctor_check_nodes(struct doctor *d, enum doctor_gpu wish);
/* `library`: GPU_LIBRARY. Its version, devices, and whether they reach one another. */
void doctor_check_driver(struct doctor *d, const char *library, enum doctor_gpu wish);
/* The module: found, loaded, made for this inferd; and the device opened once. */
void doctor_check_cuda(struct doctor *d, const struct config *c, enum doctor_gpu wish);
/* All of these in a child that is given up after `seconds`: a driver may hang for good. */
void doctor_check_gpu(struct doctor *d, const struct config *c, const char *library, int seconds);

#endif
