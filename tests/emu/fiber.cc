#include "fiber.h"

#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if EMU_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if EMU_TSAN
#include <sanitizer/tsan_interface.h>
#endif

#if !defined(__x86_64__)
#error "the switch of fibers is written for x86-64"
#endif

/*
 * emu_switch_stack(void **from, void *to): push what a callee keeps, note the stack pointer in *from, go on at `to`.
 * The processor predicts the returns well: mostly both fibers came here by the same calls.
 */
__asm__(".text\n"
        ".p2align 4\n"
        ".hidden emu_switch_stack\n"
        ".globl emu_switch_stack\n"
        ".type emu_switch_stack, @function\n"
        "emu_switch_stack:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size emu_switch_stack, .-emu_switch_stack\n");

static size_t page_size() {
    static const size_t size = (size_t)sysconf(_SC_PAGESIZE);
    return size;
}

void emu_fiber_reset(struct emu_fiber *fiber, size_t index) {
#if EMU_ASAN
    __asan_unpoison_memory_region(fiber->stack, fiber->stack_size);
    fiber->fake_stack = nullptr;
#endif
#if EMU_TSAN
    if (fiber->tsan != nullptr) {
        __tsan_destroy_fiber(fiber->tsan);
    }
    fiber->tsan = __tsan_create_fiber(0);
#endif
    uintptr_t top = (uintptr_t)(fiber->stack + fiber->stack_size) - index % 32 * 128 - 64;
    void **sp = (void **)(top & ~(uintptr_t)15);
    *--sp = nullptr; /* where a return address would be: the end of any trace */
    *--sp = (void *)emu_fiber_main;
    sp -= 6;
    memset(sp, 0, 6 * sizeof *sp);
    fiber->sp = sp;
}

bool emu_fiber_make(struct emu_fiber *fiber, size_t index) {
    *fiber = {};
    size_t size = EMU_STACK_SIZE + page_size();
    void *memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        return false;
    }
    if (mprotect(memory, page_size(), PROT_NONE) != 0) {
        munmap(memory, size);
        return false;
    }
    fiber->stack = (unsigned char *)memory + page_size();
    fiber->stack_size = EMU_STACK_SIZE;
    emu_fiber_reset(fiber, index);
    return true;
}

void emu_fiber_free(struct emu_fiber *fiber) {
#if EMU_TSAN
    if (fiber->tsan != nullptr) {
        __tsan_destroy_fiber(fiber->tsan);
    }
#endif
#if EMU_ASAN
    __asan_unpoison_memory_region(fiber->stack, fiber->stack_size);
#endif
    munmap(fiber->stack - page_size(), fiber->stack_size + page_size());
    *fiber = {};
}

bool emu_fiber_overflowed(const struct emu_fiber *fiber, const void *address) {
    uintptr_t at = (uintptr_t)address, stack = (uintptr_t)fiber->stack;
    return at < stack && at >= stack - page_size();
}

void emu_fiber_adopt(struct emu_fiber *fiber) {
    *fiber = {};
    pthread_attr_t attributes;
    void *stack = nullptr;
    if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
        pthread_attr_getstack(&attributes, &stack, &fiber->stack_size);
        pthread_attr_destroy(&attributes);
    }
    fiber->stack = (unsigned char *)stack;
#if EMU_TSAN
    fiber->tsan = __tsan_get_current_fiber();
#endif
}

#if EMU_ASAN || EMU_TSAN
void emu_fiber_switch(struct emu_fiber *from, struct emu_fiber *to) {
#if EMU_ASAN
    __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->stack_size);
#endif
#if EMU_TSAN
    __tsan_switch_to_fiber(to->tsan, 0);
#endif
    emu_switch_stack(&from->sp, to->sp);
#if EMU_ASAN
    __sanitizer_finish_switch_fiber(from->fake_stack, nullptr, nullptr);
#endif
}
#endif

void emu_fiber_leave(struct emu_fiber *to) {
    void *nowhere;
#if EMU_ASAN
    __sanitizer_start_switch_fiber(nullptr, to->stack, to->stack_size);
#endif
#if EMU_TSAN
    __tsan_switch_to_fiber(to->tsan, 0);
#endif
    emu_switch_stack(&nowhere, to->sp);
    __builtin_unreachable();
}

void emu_fiber_arrived(void) {
#if EMU_ASAN
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
}
