/*
 * A matrix of a file made into what the backend computes with: as it is, or converted at load.
 *
 * weights = auto keeps what a kernel reads (GGUF types, floats, INT8 with a scale a row) and takes of the rest the type
 * that loses least:
 *   4 bits in groups of a multiple of 32 elements, in order   Q4_0 (all zero points 8: exact but for the scale, rounded
 *                                                             to F16) or Q4_1 (an offset of F16 besides)
 *   8 bits, one symmetric scale a row                         I8 with ACTIVATION_FLOAT, exact
 *   8 bits in such groups, symmetric                          Q8_0, exact but for the scale
 *   all else (FP8, groups out of order, odd group sizes)      BF16
 * int8: every matrix, embedding and head too, is I8 with a scale a row (absmax / 127). int8-weight-only: Q8_0, that is a
 * scale of F16 for each 32 elements of a row, or I8 where rows are no whole blocks or F16 does not hold the scales.
 * Codes of 8 bits that the file has stay as they are. bf16: every matrix is dequantised and rounded to BF16.
 */
#ifndef INFERD_CONVERT_H
#define INFERD_CONVERT_H

#include "quant/matrix.h"

#include <inferd/collective.h>

enum weights_format { WEIGHTS_AUTO, WEIGHTS_INT8, WEIGHTS_INT8_WEIGHT_ONLY, WEIGHTS_BF16 };
#define N_WEIGHTS_FORMATS 4

/* "auto" (also NULL), "int8", "int8-weight-only", "bf16"; ERROR_INVALID, param "weights". */
int weights_format_parse(const char *name, enum weights_format *out, struct error *err);

/* The type that the format makes of a matrix; scales and zero points are looked at, no codes. */
int matrix_converted_type(const struct matrix *m, enum weights_format format, enum dtype *out, struct error *err);

struct converted {
    struct weight w; /* ready for weight_load */
    void *data;      /* what w.data points to, to be freed; NULL: the file's mapping */
    float *scales;   /* what w.scales points to, to be freed; NULL: none */
    size_t size;     /* bytes of data and scales */
};

/*
 * The file's pages are given back where they were converted. Of a part of a matrix (matrix_cut) `host` are the ranks that have
 * the other parts and convert them at the same time: they take one type for all, and for INT8 the scale of a whole row. NULL:
 * there are none. Where a part begins or ends within a block of its type it becomes F32.
 */
int matrix_convert(const struct matrix *m, const struct model_file *file, enum weights_format format, size_t threads,
                   struct collective *host, struct converted *out, struct error *err);

#endif
