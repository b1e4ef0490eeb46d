/*
 * The emulated runtime keeps its promises: every fault that it is to find is planted here, and found.
 */
#include "cublasLt.h"
#include "cuda_runtime.h"
#include "emu.h"

#include <stdio.h>

extern "C" int emu_from_c(void);

static size_t checks, failures;
#define CHECK(ok) check((ok), __LINE__, #ok)
static void check(bool ok, int line, const char *what) {
    checks++;
    if (!ok) {
        char report[512];
        emu_get_report(report, sizeof report);
        failures++;
        fprintf(stderr, "%s:%d: %s\n    last report: %s\n", __FILE__, line, what, report);
    }
}

int main() {
    CHECK(emu_from_c() == 0);
    printf("%zu checks, %zu failures\n", checks, failures);
    return failures > 0;
}
