/* What the files of test_emu_device share. */
#ifndef TEST_EMU_H
#define TEST_EMU_H

#include "device.cuh"
#include "machine.h"

#include <stddef.h>
#include <stdint.h>

#define CHECK(ok, ...) check((ok), __FILE__, __LINE__, __VA_ARGS__)
void check(bool ok, const char *file, int line, const char *format, ...) __attribute__((format(printf, 4, 5)));

/* A kernel that must end with this error, and whose message must have `text` in it. */
#define CHECK_FAULT(launch, code, text) check_fault([&] { return launch; }, code, text, __FILE__, __LINE__)
void check_fault(const std::function<cudaError_t()> &launch, cudaError_t code, const char *text, const char *file,
                 int line);

struct random_bits {
    uint64_t state;
    uint32_t next() { /* splitmix64 */
        uint64_t z = state += 0x9e3779b97f4a7c15ULL;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ULL;
        z = (z ^ z >> 27) * 0x94d049bb133111ebULL;
        return (uint32_t)((z ^ z >> 31) >> 32);
    }
};

extern size_t shared_allowed; /* what the launches of this program may have: 48 KB */

void test_wrappers();
void test_planted_faults();

#endif
