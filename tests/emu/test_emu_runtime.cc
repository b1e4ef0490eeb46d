/*
 * The emulated runtime keeps its promises: every fault that it is to find is planted here, and found. A plain program.
 *
 *   test_emu_runtime                  all of it
 *   test_emu_runtime --child NAME     what a test starts again, with an environment
 */
#include "test_emu_runtime.h"

#include "machine.h"

#include <atomic>
#include <stdio.h>
#include <string.h>

extern "C" int emu_from_c(void);
int child_of_test_errors(const char *name);

static std::atomic<size_t> checks, failures;

bool check(bool ok, const char *file, int line, const char *what) {
    checks++;
    if (!ok) {
        char report[600];
        emu_get_report(report, sizeof report);
        failures++;
        fprintf(stderr, "%s:%d: %s\n    last report: %s\n", file, line, what, report);
    }
    return ok;
}

static bool is_sticky_code(cudaError_t code) {
    return code >= cudaErrorIllegalAddress && code <= cudaErrorLaunchFailure && code != cudaErrorLaunchOutOfResources;
}

void check_refused(cudaError_t got, cudaError_t expected, const char *file, int line, const char *what) {
    char text[300];
    snprintf(text, sizeof text, "%s gives %s, not %s", what, cudaGetErrorName(got), cudaGetErrorName(expected));
    check(got == expected, file, line, text);
    if (got == expected && got != cudaErrorNotReady) {
        cudaError_t last = cudaGetLastError();
        snprintf(text, sizeof text, "%s leaves %s for cudaGetLastError", what, cudaGetErrorName(last));
        bool launch = strstr(what, "LAUNCH") || strstr(what, "kernel"); /* which asks for it itself */
        check(last == (launch && !is_sticky_code(expected) ? cudaSuccess : expected), file, line, text);
    }
}

void begin(uint64_t seed, emu_order order, int devices) {
    struct emu_options o;
    emu_default_options(&o);
    o.seed = seed;
    o.order = order;
    o.devices = devices;
    OK(emu_configure(&o));
}

bool report_has(const char *words) {
    char report[1024];
    emu_get_report(report, sizeof report);
    return strstr(report, words) != nullptr;
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--child") == 0) {
        return child_of_test_errors(argv[2]);
    }
    emu_set_fault_output(false);
    CHECK(emu_from_c() == 0);
    test_memory();
    test_streams();
    test_capture();
    test_errors();
    test_cublaslt();
    test_nccl();
    printf("%zu checks, %zu failed\n", checks.load(), failures.load());
    return failures > 0;
}
