/*
 * Fibers: stacks of their own on one OS thread, and the switch from one to another, of which sanitizers are told.
 */
#ifndef EMU_FIBER_H
#define EMU_FIBER_H

#include <stddef.h>

#if defined(__has_feature)
#define EMU_HAS_FEATURE(x) __has_feature(x)
#else
#define EMU_HAS_FEATURE(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || EMU_HAS_FEATURE(address_sanitizer)
#define EMU_ASAN 1
#else
#define EMU_ASAN 0
#endif
#if defined(__SANITIZE_THREAD__) || EMU_HAS_FEATURE(thread_sanitizer)
#define EMU_TSAN 1
#else
#define EMU_TSAN 0
#endif

struct emu_fiber {
    void *sp; /* while it does not run */
    unsigned char *stack;
    size_t stack_size;
    void *fake_stack; /* of the address sanitizer */
    void *tsan;       /* of the thread sanitizer */
};

/* Usable bytes of a stack. Frames are larger under the address sanitizer. */
enum { EMU_STACK_SIZE = EMU_ASAN ? 256 * 1024 : 64 * 1024 };

/* A fiber whose stack has an unreadable page below; at its first switch it calls emu_fiber_main, which must begin with
 * emu_fiber_arrived. `index` spreads the tops of stacks over the sets of the caches. False: no memory. */
bool emu_fiber_make(struct emu_fiber *fiber, size_t index);
/* Let it begin anew, wherever it was. */
void emu_fiber_reset(struct emu_fiber *fiber, size_t index);
void emu_fiber_free(struct emu_fiber *fiber);
/* Whether an address lies in the guard page of its stack. */
bool emu_fiber_overflowed(const struct emu_fiber *fiber, const void *address);

/* The calling OS thread's own stack, as a place to come back to. */
void emu_fiber_adopt(struct emu_fiber *fiber);

extern "C" void emu_switch_stack(void **from, void *to);
#if EMU_ASAN || EMU_TSAN
void emu_fiber_switch(struct emu_fiber *from, struct emu_fiber *to);
#else
static inline void emu_fiber_switch(struct emu_fiber *from, struct emu_fiber *to) {
    emu_switch_stack(&from->sp, to->sp);
}
#endif
/* The same, never to come back (`from` is reset before it runs again). */
[[noreturn]] void emu_fiber_leave(struct emu_fiber *to);
void emu_fiber_arrived(void);

[[noreturn]] void emu_fiber_main(void); /* machine.cc */

#endif
