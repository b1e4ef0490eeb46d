/* What is said when there is no GPU to use: each thing that can be missing has a sentence of its own. */
#include "../../engine/backend/cuda/cuda.h"

#include <stdio.h>
#include <string.h>

static int failures;

static void says(struct cuda_facts f, const char *sentence, int line) {
    struct error err;
    if (cuda_explain(&f, &err) != -1 || err.code != ERROR_DEVICE || !strstr(err.message, sentence)) {
        printf("FAIL line %d: \"%s\" does not say \"%s\"\n", line, err.message, sentence);
        failures++;
    }
}
#define SAYS(sentence, ...) says((struct cuda_facts){__VA_ARGS__}, sentence, __LINE__)
#define NODE .has_node = true, .may_open = true, .node = "/dev/nvidiactl"

static void checks(int ordinal, int n, int major, int minor, const char *sentence, int line) {
    struct error err = {0};
    int rc = cuda_check_device(ordinal, n, "Tesla", major, minor, &err);
    if (sentence ? rc != -1 || err.code != ERROR_DEVICE || !strstr(err.message, sentence) : rc != 0) {
        printf("FAIL line %d: %d, \"%s\"\n", line, rc, err.message);
        failures++;
    }
}

int main(void) {
    SAYS("libcuda.so.1 cannot be loaded, and there is no device node /dev/nvidiactl", .rc = cudaErrorInsufficientDriver,
         .runtime = 13000, .node = "/dev/nvidiactl");
    SAYS("libcuda.so.1 cannot be loaded", .rc = cudaErrorInsufficientDriver, .runtime = 13000, NODE);
    SAYS("too old: it is made for CUDA 12.2, and the CUDA module needs 13.0 at least", .rc = cudaErrorInsufficientDriver,
         .has_library = true, .driver = 12020, .runtime = 13000, NODE);
    SAYS("there is no device node /dev/nvidiactl", .rc = cudaErrorNoDevice, .has_library = true, .driver = 13000,
         .runtime = 13000, .node = "/dev/nvidiactl");
    SAYS("there is no device node /dev/nvidia-uvm", .rc = cudaErrorUnknown, .has_library = true, .driver = 13000,
         .runtime = 13000, .node = "/dev/nvidia-uvm");
    SAYS("the device node /dev/nvidia1 may not be opened by user", .rc = cudaErrorUnknown, .has_library = true,
         .driver = 13000, .runtime = 13000, .has_node = true, .node = "/dev/nvidia1");
    SAYS("knows no GPU", .rc = cudaErrorNoDevice, .has_library = true, .driver = 13000, .runtime = 13000, NODE);
    SAYS("CUDA_VISIBLE_DEVICES", .rc = cudaErrorNoDevice, .has_library = true, .driver = 13000, .runtime = 13000,
         .hidden = true, NODE);
    SAYS("knows no GPU", .rc = cudaSuccess, .n_devices = 0, .has_library = true, .driver = 12000, .runtime = 12000, NODE);
    SAYS("CUDA does not start: ", .rc = cudaErrorSystemNotReady, .has_library = true, .driver = 13000, .runtime = 13000, NODE);
    checks(0, 1, 8, 0, NULL, __LINE__);
    checks(3, 4, 12, 0, NULL, __LINE__);
    checks(4, 4, 9, 0, "there is no CUDA device 4: the driver knows 4", __LINE__);
    checks(0, 1, 7, 5, "compute capability 7.5", __LINE__);
    printf("%d failures\n", failures);
    return failures != 0;
}
