#include "base/signal_stack.h"

#include <signal.h>
#include <stddef.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define SANITIZED
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED
#endif

#ifndef SANITIZED
/* The kernel puts the registers there, 11 KB of them with AMX; the rest is the report's. Untouched pages cost nothing. */
#define BYTES ((size_t)64 << 10)
static _Thread_local char stack[BYTES] __attribute__((aligned(64)));
#endif

void signal_stack_use(void) {
#ifndef SANITIZED
    const stack_t s = {.ss_sp = stack, .ss_size = BYTES};
    sigaltstack(&s, NULL);
#endif
}
