#include "ops.h"
void bench(const struct backend_ops *ops, const char *const *variants, size_t n_variants) { (void)ops, (void)variants, (void)n_variants; }
