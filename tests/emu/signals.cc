#include "signals.h"

#include "fiber.h"

#include <mutex>
#include <signal.h>
#include <stdlib.h>

static const int caught[] = {SIGSEGV, SIGBUS, SIGFPE};
enum { N_CAUGHT = sizeof caught / sizeof *caught, STACK_SIZE = 64 * 1024 };
static struct sigaction previous[N_CAUGHT];

static void on_signal(int number, siginfo_t *info, void *context) {
    /* A general protection fault (a misaligned vector instruction) has no address. */
    const void *address = info->si_code == SI_KERNEL ? nullptr : info->si_addr;
    emu_machine_signalled(number, address);
    for (int i = 0; i < N_CAUGHT; i++) {
        if (caught[i] != number) {
            continue;
        }
        if (previous[i].sa_flags & SA_SIGINFO) {
            previous[i].sa_sigaction(number, info, context);
        } else if (previous[i].sa_handler != SIG_DFL && previous[i].sa_handler != SIG_IGN) {
            previous[i].sa_handler(number);
        } else {
            signal(number, SIG_DFL); /* the instruction is tried again, and ends the program */
        }
    }
}

void emu_signals_arm(void) {
    if (EMU_TSAN) {
        return; /* it wants its own say in handlers, and these do not return */
    }
    static std::once_flag once;
    std::call_once(once, [] {
        struct sigaction action = {};
        action.sa_sigaction = on_signal;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER; /* the handler is left by a switch of fibers */
        sigemptyset(&action.sa_mask);
        for (int i = 0; i < N_CAUGHT; i++) {
            sigaction(caught[i], &action, &previous[i]);
        }
    });
}

void *emu_signals_stack(void) {
    stack_t stack = {};
    if (EMU_TSAN || sigaltstack(nullptr, &stack) != 0 || !(stack.ss_flags & SS_DISABLE)) {
        return nullptr;
    }
    stack = {};
    stack.ss_sp = malloc(STACK_SIZE);
    stack.ss_size = STACK_SIZE;
    if (stack.ss_sp != nullptr && sigaltstack(&stack, nullptr) != 0) {
        free(stack.ss_sp);
        return nullptr;
    }
    return stack.ss_sp;
}

void emu_signals_free_stack(void *memory) {
    if (memory != nullptr) {
        stack_t off = {};
        off.ss_flags = SS_DISABLE;
        sigaltstack(&off, nullptr);
        free(memory);
    }
}
