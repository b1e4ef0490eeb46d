/* Modules that are not what they should be. The modules are other_module.c, in the folder INFERD_MODULES. */
#include <inferd/backend.h>

#include <criterion/criterion.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *path_of(const char *name) {
    static char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", getenv("INFERD_MODULES"), name);
    return path;
}

static void refused(const char *module, const char *sentence) {
    const struct backend_ops *ops = NULL;
    struct error err;
    cr_assert_eq(backend_find("cuda", module, &ops, &err), -1);
    cr_assert_null(ops);
    cr_assert_eq(err.code, ERROR_DEVICE);
    cr_assert(strstr(err.message, sentence), "\"%s\" does not say \"%s\"", err.message, sentence);
}

Test(registry, a_module_of_another_version_is_refused) {
    char numbers[64];
    snprintf(numbers, sizeof numbers, "another version of inferd (interface %u, not %u)", BACKEND_ABI + 1, BACKEND_ABI);
    refused(path_of("test-other-abi.so"), numbers);
}

Test(registry, a_library_of_something_else_is_refused) {
    refused(path_of("test-no-table.so"), "test-no-table.so is not a CUDA module of inferd: it has no inferd_backend_cuda");
}

Test(registry, a_file_that_is_no_library_is_refused) {
    refused("/proc/self/status", "the CUDA module cannot be loaded: /proc/self/status: ");
    refused("/nowhere/inferd-cuda.so", "the CUDA module cannot be loaded: /nowhere/inferd-cuda.so: ");
}

Test(registry, a_bare_name_is_a_file_of_this_folder) {
    cr_assert_eq(chdir(getenv("INFERD_MODULES")), 0);
    refused("test-other-abi.so", "./test-other-abi.so was built for another version");
    refused("libm.so.6", "the CUDA module cannot be loaded: ./libm.so.6: "); /* which the library path has */
}

Test(registry, a_path_that_is_too_long_is_told) {
    static char longest[PATH_MAX + 10];
    memset(longest, 'x', sizeof longest - 1);
    refused(longest, "the path of the CUDA module is longer than");
}

Test(registry, there_is_no_such_device) {
    const struct backend_ops *ops;
    struct error err;
    static const char *const names[] = {"gpu", "cuda:", "cuda:x", "cuda:1x", "cuda:-1", "cuda:1024", "cud", ""};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        cr_assert_eq(backend_find(names[i], NULL, &ops, &err), -1, "%s", names[i]);
        cr_assert(strstr(err.message, "there is no such device"), "%s: %s", names[i], err.message);
    }
}
