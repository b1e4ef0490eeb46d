/* Element types of tensors. Block types are GGUF's, kept at their own bits. */
#ifndef INFERD_DTYPE_H
#define INFERD_DTYPE_H

#include <inferd/backend.h>

#endif
