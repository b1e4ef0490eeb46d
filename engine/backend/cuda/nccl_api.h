/*
 * What inferd uses of NCCL. The library is loaded when the first group is opened, so that who has one GPU needs none; its names,
 * numbers and signatures are declared here and, where <nccl.h> is at hand, compared with it by the compiler (nccl_check.c).
 */
#ifndef INFERD_CUDA_NCCL_API_H
#define INFERD_CUDA_NCCL_API_H

#include <cuda_runtime.h>
#include <inferd/error.h>
#include <stddef.h>

#ifndef NCCL_MAJOR /* <nccl.h> was not included */
#define NCCL_UNIQUE_ID_BYTES 128
typedef struct ncclComm *ncclComm_t;
typedef struct {
    char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;
typedef enum { ncclSuccess = 0, ncclInProgress = 7 } ncclResult_t;
typedef enum { ncclSum = 0 } ncclRedOp_t;
typedef enum { ncclInt8 = 0, ncclFloat16 = 6, ncclFloat32 = 7, ncclBfloat16 = 9 } ncclDataType_t;
#endif

/* X(result, name, parameters). */
#define NCCL_FUNCTIONS(X)                                                                                              \
    X(ncclResult_t, ncclGetVersion, (int *version))                                                                    \
    X(ncclResult_t, ncclGetUniqueId, (ncclUniqueId * id))                                                              \
    X(ncclResult_t, ncclCommInitRank, (ncclComm_t * comm, int size, ncclUniqueId id, int rank))                        \
    X(ncclResult_t, ncclCommDestroy, (ncclComm_t comm))                                                                \
    X(ncclResult_t, ncclCommAbort, (ncclComm_t comm))                                                                  \
    X(ncclResult_t, ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t *error))                                     \
    X(const char *, ncclGetErrorString, (ncclResult_t result))                                                         \
    X(const char *, ncclGetLastError, (ncclComm_t comm))                                                               \
    X(ncclResult_t, ncclGroupStart, (void))                                                                            \
    X(ncclResult_t, ncclGroupEnd, (void))                                                                              \
    X(ncclResult_t, ncclAllReduce,                                                                                     \
      (const void *from, void *to, size_t n, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)) \
    X(ncclResult_t, ncclAllGather,                                                                                     \
      (const void *from, void *to, size_t n, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream))               \
    X(ncclResult_t, ncclBroadcast,                                                                                     \
      (const void *from, void *to, size_t n, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream))     \
    X(ncclResult_t, ncclSend,                                                                                          \
      (const void *from, size_t n, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream))               \
    X(ncclResult_t, ncclRecv, (void *to, size_t n, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream))

struct nccl_api {
#define NCCL_FIELD(result, name, parameters) result(*name) parameters;
    NCCL_FUNCTIONS(NCCL_FIELD)
#undef NCCL_FIELD
};

/* Any thread. The library stays loaded. ERROR_DEVICE: it is not there, or lacks a function. */
int nccl_load(const struct nccl_api **out, struct error *err);

#endif
