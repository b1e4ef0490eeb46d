/* Compiled where <nccl.h> is: nccl_api.h says of NCCL what that says. */
#include <nccl.h>

#include "nccl_api.h"

#define NCCL_SAME(result, name, parameters) result name parameters;
NCCL_FUNCTIONS(NCCL_SAME)

_Static_assert(NCCL_UNIQUE_ID_BYTES == 128 && sizeof(ncclUniqueId) == 128, "");
_Static_assert(ncclSuccess == 0 && ncclInProgress == 7 && ncclSum == 0, "");
_Static_assert(ncclInt8 == 0 && ncclFloat16 == 6 && ncclFloat32 == 7 && ncclBfloat16 == 9, "");
_Static_assert(sizeof(ncclResult_t) == 4 && sizeof(ncclRedOp_t) == 4 && sizeof(ncclDataType_t) == 4, "");
