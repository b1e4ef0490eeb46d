/* What the tests of the emulated runtime share. */
#ifndef TEST_EMU_RUNTIME_H
#define TEST_EMU_RUNTIME_H

#include "cuda_runtime.h"
#include "emu.h"
#include "fiber.h"

/* Not under the thread sanitizer, which wants its own say in signals: there, no kernel may fault. */
#define FAULTS_ARE_CAUGHT (!EMU_TSAN)

#define CHECK(ok) check((ok), __FILE__, __LINE__, #ok)
bool check(bool ok, const char *file, int line, const char *what);
/* The call gives this error, and leaves it for cudaGetLastError. */
#define REFUSED(code, call) check_refused((call), (code), __FILE__, __LINE__, #call)
void check_refused(cudaError_t got, cudaError_t expected, const char *file, int line, const char *what);
#define OK(call) REFUSED(cudaSuccess, call)

/* Devices as by default, but for the seed, the order and their number. */
void begin(uint64_t seed = 1, emu_order order = EMU_ORDER_RANDOM, int devices = 1);
bool report_has(const char *words);

void test_memory();
void test_streams();
void test_capture();
void test_errors();
void test_cublaslt();
void test_nccl();

#endif
