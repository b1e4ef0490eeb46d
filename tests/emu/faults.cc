/* Hard errors of kernels, and what a test may set and ask. */
#include "machine_state.h"

#include "signals.h"

#include <mutex>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

namespace emu {

/* ---- settings, faults, counters: of the process ---- */

static uint64_t number_from_environment(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text != nullptr && *text != '\0' ? strtoull(text, nullptr, 10) : otherwise;
}
std::atomic<uint64_t> order_seed{number_from_environment("INFERD_EMU_SEED", 1)};
std::atomic<bool> poison_shared{number_from_environment("INFERD_EMU_POISON", 1) != 0};
static std::atomic<bool> fault_output{true};
static std::atomic<uint64_t> launches, fault_number;
static std::atomic<uint64_t> total_blocks, total_threads, total_warp, total_block, total_switches, total_checked;
static std::mutex fault_lock;
static char fault_message[768];

void count(machine &m) {
    launches++;
    total_blocks += m.n_blocks;
    total_threads += m.n_blocks * m.n_threads;
    total_warp += m.n_warp_rendezvous;
    total_block += m.n_block_rendezvous;
    total_switches += m.n_switches;
    total_checked += m.n_checked;
    m.n_blocks = m.n_warp_rendezvous = m.n_block_rendezvous = m.n_switches = m.n_checked = 0;
}

/* ---- hard errors ---- */

void record_fault(machine &m, cudaError_t error, const char *text) {
    const gpu_thread *t = m.current;
    char message[sizeof fault_message];
    int n = snprintf(message, sizeof message, "kernel %s, block (%u, %u, %u)", m.kernel->name, emu_here.index.x,
                     emu_here.index.y, emu_here.index.z);
    if (t != nullptr && (size_t)n < sizeof message) {
        n += snprintf(message + n, sizeof message - (size_t)n, ", thread (%u, %u, %u)", t->index.x, t->index.y,
                      t->index.z);
    }
    if ((size_t)n < sizeof message) {
        snprintf(message + n, sizeof message - (size_t)n, ": %s", text);
    }
    {
        std::lock_guard<std::mutex> hold(fault_lock);
        memcpy(fault_message, message, sizeof message);
    }
    fault_number++;
    if (fault_output) {
        fprintf(stderr, "emulator: %s\n", message);
    }
    m.error = error;
}

[[noreturn]] static void end_with(machine &m, cudaError_t error, const char *text) {
    record_fault(m, error, text);
    if (m.running == nullptr) {
        abort(); /* not in a fiber: callers see to that */
    }
    m.running = nullptr;
    emu_fiber_leave(&m.home);
}

[[noreturn]] __attribute__((format(printf, 3, 4))) void fault(machine &m, cudaError_t error, const char *format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    end_with(m, error, text);
}

static void name_operation(unsigned what, char *text, size_t size) {
    static const char *const names[] = {"nothing",
                                        "warp_sync",
                                        "warp_shfl",
                                        "warp_shfl_xor",
                                        "warp_shfl_down",
                                        "warp_shfl_up",
                                        "warp_ballot",
                                        "load_matrix_x4",
                                        "load_matrix_x2",
                                        "load_matrix_x4_transposed",
                                        "load_matrix_x2_transposed",
                                        "mma_i8",
                                        "mma_f16",
                                        "mma_bf16"};
    unsigned operand = what >> 8 & 0xffu, bytes = what >> 16;
    if (bytes == 0) {
        snprintf(text, size, "%s", names[what & 0xffu]);
    } else {
        snprintf(text, size, "%s by %u of %u bytes", names[what & 0xffu], operand, bytes);
    }
}

/* Not all lanes of a warp came to the same operation: who waits where. */
[[noreturn]] void fault_warp(machine &m, const gpu_warp &w) {
    char text[400];
    int n = snprintf(text, sizeof text, "warp %u cannot go on:", w.number);
    unsigned told = 0;
    for (unsigned i = 0; i < w.n_threads && (size_t)n < sizeof text; i++) {
        const gpu_thread &t = w.threads[i];
        if (told >> i & 1u) {
            continue;
        }
        unsigned same = 0;
        for (unsigned j = i; j < w.n_threads; j++) {
            const gpu_thread &other = w.threads[j];
            if (other.at == t.at && (t.at != place::warp_operation || other.what == t.what)) {
                same |= 1u << j;
            }
        }
        char operation[64];
        name_operation(t.what, operation, sizeof operation);
        n += snprintf(text + n, sizeof text - (size_t)n, "%s lanes %08x %s%s", told ? ";" : "", same,
                      t.at == place::barrier ? "wait in block_sync"
                      : t.at == place::end   ? "have ended"
                                             : "wait in ",
                      t.at == place::warp_operation ? operation : "");
        told |= same;
    }
    if (w.n_threads < WARP && (size_t)n < sizeof text) {
        snprintf(text + n, sizeof text - (size_t)n, "; the block has only %u threads there", w.n_threads);
    }
    m.current = nullptr;
    end_with(m, cudaErrorLaunchFailure, text);
}

[[noreturn]] void fault_barrier(machine &m) {
    const gpu_thread *waits = nullptr, *ended = nullptr;
    for (unsigned i = 0; i < m.n_threads; i++) {
        const gpu_thread &t = m.threads[i];
        (t.at == place::end ? ended : waits) = &t;
    }
    m.current = nullptr;
    fault(
        m, cudaErrorLaunchFailure,
        "block_sync is not reached by all: thread (%u, %u, %u) and %u others wait there, thread (%u, %u, %u) has ended",
        waits->index.x, waits->index.y, waits->index.z, m.n_at_barrier - 1, ended->index.x, ended->index.y,
        ended->index.z);
}

} // namespace emu

using namespace emu;

void emu_misaligned(const char *operation, const void *p, size_t alignment) {
    fault(*here, cudaErrorMisalignedAddress, "%s at %p, which is not aligned by %zu", operation, p, alignment);
}

void emu_machine_signalled(int number, const void *address) {
    if (here == nullptr || here->running == nullptr) {
        return;
    }
    machine &m = *here;
    const unsigned char *at = static_cast<const unsigned char *>(address);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (number == SIGFPE) {
        fault(m, cudaErrorLaunchFailure, "a division by zero, or of the smallest number by -1");
    }
    if (emu_fiber_overflowed(m.running, address)) {
        fault(m, cudaErrorLaunchFailure, "its stack of %d bytes is full", (int)EMU_STACK_SIZE);
    }
    if (address == nullptr) {
        fault(m, cudaErrorMisalignedAddress, "a misaligned vector access, or an address near zero or of no memory");
    }
    if (at >= m.area + SHARED_AREA && at < m.area + SHARED_AREA + page) {
        fault(m, cudaErrorIllegalAddress, "access %zu bytes behind the %zu bytes of shared memory",
              (size_t)(at - m.shared) - m.shared_bytes, m.shared_bytes);
    }
    if (at < m.area && at >= m.area - page) {
        fault(m, cudaErrorIllegalAddress, "access far before the beginning of the shared memory");
    }
    char known[256] = "";
    if (emu_describe_address != nullptr) {
        emu_describe_address(address, known, sizeof known);
    }
    fault(m, cudaErrorIllegalAddress, "access to the illegal address %p%s%s", address, *known != '\0' ? ": " : "",
          known);
}

/* ---- control ---- */

void emu_set_order_seed(uint64_t seed) {
    order_seed = seed;
}
void emu_set_poison(bool poison) {
    poison_shared = poison;
}
void emu_set_fault_output(bool output) {
    fault_output = output;
}
const char *emu_last_fault(void) {
    static thread_local char copy[sizeof fault_message];
    std::lock_guard<std::mutex> hold(fault_lock);
    memcpy(copy, fault_message, sizeof copy);
    return copy;
}
uint64_t emu_fault_count(void) {
    return fault_number;
}
void emu_machine_count(struct emu_machine_counters *counters) {
    *counters = {launches, total_blocks, total_threads, total_warp, total_block, total_switches, total_checked};
}
