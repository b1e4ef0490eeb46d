/* Modules that are not the CUDA module: of another version; or, with NO_TABLE, of another program. */
#include <inferd/backend.h>

#ifdef NO_TABLE
int other_program(void);
int other_program(void) {
    return 1;
}
#else
static const struct backend_ops ops = {.abi = BACKEND_ABI + 1, .name = "cuda"};

const struct backend_ops *inferd_backend_cuda(void);
const struct backend_ops *inferd_backend_cuda(void) {
    return &ops;
}
#endif
