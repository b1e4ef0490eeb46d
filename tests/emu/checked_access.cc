/*
 * Kernels compiled with -fsanitize=thread call a function before each access to memory that others may see. Linked with
 * these functions in place of the sanitizer's, they tell the machine, which finds races and accesses out of bounds
 * (emu_checked_access). Never linked into a program that runs under the thread sanitizer itself.
 */
#include "machine_kernel.h"

#include <string.h>

#define EXPORT extern "C" __attribute__((visibility("hidden"), noinline)) void
#define ACCESS(p, size, access) emu_checked_access(p, size, access, __builtin_return_address(0))

#define PLAIN(size)                                                                                                    \
    EXPORT __tsan_read##size(void *p);                                                                                 \
    EXPORT __tsan_read##size(void *p) {                                                                                \
        ACCESS(p, size, EMU_READ);                                                                                     \
    }                                                                                                                  \
    EXPORT __tsan_write##size(void *p);                                                                                \
    EXPORT __tsan_write##size(void *p) {                                                                               \
        ACCESS(p, size, EMU_WRITE);                                                                                    \
    }                                                                                                                  \
    EXPORT __tsan_unaligned_read##size(void *p);                                                                       \
    EXPORT __tsan_unaligned_read##size(void *p) {                                                                      \
        ACCESS(p, size, EMU_READ);                                                                                     \
    }                                                                                                                  \
    EXPORT __tsan_unaligned_write##size(void *p);                                                                      \
    EXPORT __tsan_unaligned_write##size(void *p) {                                                                     \
        ACCESS(p, size, EMU_WRITE);                                                                                    \
    }
PLAIN(1)
PLAIN(2)
PLAIN(4)
PLAIN(8)
PLAIN(16)

EXPORT __tsan_read_range(void *p, unsigned long size);
EXPORT __tsan_read_range(void *p, unsigned long size) {
    ACCESS(p, size, EMU_READ);
}
EXPORT __tsan_write_range(void *p, unsigned long size);
EXPORT __tsan_write_range(void *p, unsigned long size) {
    ACCESS(p, size, EMU_WRITE);
}
extern "C" __attribute__((visibility("hidden"))) void *__tsan_memcpy(void *to, const void *from, size_t size);
void *__tsan_memcpy(void *to, const void *from, size_t size) {
    ACCESS(from, size, EMU_READ);
    ACCESS(to, size, EMU_WRITE);
    return memcpy(to, from, size);
}
extern "C" __attribute__((visibility("hidden"))) void *__tsan_memmove(void *to, const void *from, size_t size);
void *__tsan_memmove(void *to, const void *from, size_t size) {
    ACCESS(from, size, EMU_READ);
    ACCESS(to, size, EMU_WRITE);
    return memmove(to, from, size);
}
extern "C" __attribute__((visibility("hidden"))) void *__tsan_memset(void *to, int value, size_t size);
void *__tsan_memset(void *to, int value, size_t size) {
    ACCESS(to, size, EMU_WRITE);
    return memset(to, value, size);
}

/* What kernels use of atomic operations (intrinsics.h), as gcc and as clang have it. */
#define FUNCTION extern "C" __attribute__((visibility("hidden"), noinline))
#define ATOMIC(bits, T)                                                                                                \
    FUNCTION T __tsan_atomic##bits##_load(const volatile T *p, int);                                                   \
    T __tsan_atomic##bits##_load(const volatile T *p, int) {                                                           \
        return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                                                   \
    }                                                                                                                  \
    FUNCTION int __tsan_atomic##bits##_compare_exchange_strong(volatile T *p, T *expected, T desired, int, int);       \
    int __tsan_atomic##bits##_compare_exchange_strong(volatile T *p, T *expected, T desired, int, int) {               \
        ACCESS(const_cast<T *>(p), sizeof(T), EMU_ATOMIC_ACCESS);                                                      \
        return __atomic_compare_exchange_n(p, expected, desired, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);           \
    }                                                                                                                  \
    FUNCTION T __tsan_atomic##bits##_compare_exchange_val(volatile T *p, T expected, T desired, int, int);             \
    T __tsan_atomic##bits##_compare_exchange_val(volatile T *p, T expected, T desired, int, int) {                     \
        ACCESS(const_cast<T *>(p), sizeof(T), EMU_ATOMIC_ACCESS);                                                      \
        __atomic_compare_exchange_n(p, &expected, desired, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                 \
        return expected;                                                                                               \
    }
ATOMIC(32, uint32_t)
ATOMIC(64, uint64_t)

EXPORT __tsan_atomic_signal_fence(int);
EXPORT __tsan_atomic_signal_fence(int) {
}
EXPORT __tsan_func_entry(void *);
EXPORT __tsan_func_entry(void *) {
}
EXPORT __tsan_func_exit();
EXPORT __tsan_func_exit() {
}
EXPORT __tsan_vptr_update(void **, void *);
EXPORT __tsan_vptr_update(void **, void *) {
}
EXPORT __tsan_vptr_read(void **);
EXPORT __tsan_vptr_read(void **) {
}
/* Called as each file of instrumented code is loaded. */
EXPORT __tsan_init();
EXPORT __tsan_init() {
    emu_check_accesses();
}
