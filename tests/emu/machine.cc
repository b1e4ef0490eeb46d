/*
 * The machine: runs the blocks of a grid one after another, the threads of a block as fibers.
 *
 * Between two rendezvous of a warp lies a phase, in which each of its lanes runs once, in a random order, until it
 * arrives at the next rendezvous, at the block's barrier or at its end. The fiber that stops picks the next one and
 * switches to it directly. When all lanes have arrived, the last one does the work of the operation for all. A warp
 * runs on so until all of its lanes are at the block's barrier or at their end; then comes the next warp: writers far
 * ahead of readers and the reverse, which is what shows that a barrier is missing.
 *
 * A thread has no fiber before it first runs, and a fiber whose thread has ended takes the next one: blocks without
 * rendezvous need a single stack.
 */
#include "machine.h"

#include "emu_launch.h"
#include "fiber.h"
#include "machine_kernel.h"
#include "signals.h"
#include "warp_math.h"

#include <atomic>
#include <dlfcn.h>
#include <memory>
#include <mutex>
#include <new>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#if EMU_ASAN
#include <sanitizer/asan_interface.h>
#define asan_poison(p, size) __asan_poison_memory_region(p, size)
#define asan_unpoison(p, size) __asan_unpoison_memory_region(p, size)
#else
#define asan_poison(p, size) ((void)(p), (void)(size))
#define asan_unpoison(p, size) ((void)(p), (void)(size))
#endif

enum {
    WARP = 32,
    MAX_THREADS = 1024,
    MAX_WARPS = MAX_THREADS / WARP,
    SHARED_DEFAULT = 48 * 1024,
    SHARED_AREA = 256 * 1024, /* what is mapped: more than any device has */
    SHARED_ALIGNMENT = 128,
    RED_ZONE_SLACK = 4 * 1024, /* of red zones, which a GPU does not have */
};

EMU_TLS struct emu_thread *emu_self;
EMU_TLS struct emu_block emu_here;
void (*emu_describe_address)(const void *, char *, size_t);

namespace {

/* ---- settings, faults, counters: of the process ---- */

uint64_t number_from_environment(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text != nullptr && *text != '\0' ? strtoull(text, nullptr, 10) : otherwise;
}
std::atomic<uint64_t> order_seed{number_from_environment("INFERD_EMU_SEED", 1)};
std::atomic<bool> poison_shared{number_from_environment("INFERD_EMU_POISON", 1) != 0};
std::atomic<bool> fault_output{true};
std::atomic<bool> check_accesses{false};
std::atomic<uint64_t> launches, fault_number;
std::atomic<uint64_t> total_blocks, total_threads, total_warp, total_block, total_switches, total_checked;
std::mutex fault_lock;
char fault_message[768];

/* ---- a block ---- */

enum class place : unsigned char { start, running, warp_operation, barrier, end };

struct copy_16 { /* of async_copy_16: not yet there */
    unsigned char *to;
    const void *from; /* NULL: zeros */
};

struct gpu_thread : emu_thread {
    struct gpu_warp *warp;
    emu_fiber *fiber; /* NULL before it first runs and after its end */
    unsigned what;    /* the operation it waits in */
    place at;
    std::vector<copy_16> copies;     /* in the order of their issue */
    std::vector<size_t> copy_groups; /* where in copies each committed group ends */
    size_t copies_done, groups_done;
};

struct gpu_warp {
    gpu_thread *threads; /* 32, or fewer in the last warp */
    unsigned number, n_threads;
    unsigned step, from, position; /* of the phase: lane (step * position + from) % 32 is next */
    unsigned ready;                /* lanes still to run in this phase */
    unsigned arrived, what;        /* at a rendezvous, and at which */
    bool mismatch;
    unsigned parity, syncs;
    unsigned votes[2];
    uint64_t slots[2][WARP];
    struct emu_mma_lane mma[WARP];
    uint32_t *matrix[WARP];
    const void *rows[WARP];
};

struct red_zone {
    const unsigned char *bytes;
    size_t size;
};

const uint64_t POISON = 0x7fff7fff7fff7fffULL; /* NaN as F16, BF16 and F32; a large number as an integer */
const unsigned char RED_ZONE_BYTE = 0xa5;

struct machine {
    const emu_kernel *kernel = nullptr;
    uint64_t random = 0, launch_number = 0;
    bool in_order = false;

    gpu_thread threads[MAX_THREADS] = {};
    gpu_warp warps[MAX_WARPS] = {};
    gpu_thread *current = nullptr;
    unsigned n_threads = 0, n_warps = 0, n_at_barrier = 0;
    /* of the block phase, between two barriers: warp (step * position + from) % ring is next */
    unsigned warp_step = 1, warp_from = 0, warp_position = 0, warp_ring = 1;
    gpu_warp *warp = nullptr; /* the one that runs */

    unsigned char *area = nullptr;   /* SHARED_AREA bytes between two unreadable pages */
    unsigned char *shared = nullptr; /* the block's; ends with the area, up to the alignment */
    size_t shared_bytes = 0, built_size = 0;
    void (*built_by)(void *) = nullptr;
    std::vector<red_zone> red_zones;
    std::unique_ptr<emu_byte[]> bytes; /* of the area, if accesses are checked */
    uint32_t phase = 0;                /* barriers so far, over all blocks */

    emu_fiber home = {}; /* the OS thread */
    void *signal_stack = nullptr;
    emu_fiber fibers[MAX_THREADS] = {};
    unsigned n_fibers = 0;
    emu_fiber *idle[MAX_THREADS] = {};
    unsigned n_idle = 0;
    emu_fiber *running = nullptr;

    cudaError_t error = cudaSuccess;
    uint64_t n_blocks = 0, n_warp_rendezvous = 0, n_block_rendezvous = 0, n_switches = 0, n_checked = 0;

    bool open();
    ~machine();
};

EMU_TLS machine *here; /* the calling OS thread's, while it runs a kernel */

bool machine::open() {
    if (area != nullptr) {
        return true;
    }
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *memory = mmap(nullptr, SHARED_AREA + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        return false;
    }
    if (mprotect((char *)memory + page, SHARED_AREA, PROT_READ | PROT_WRITE) != 0) {
        munmap(memory, SHARED_AREA + 2 * page);
        return false;
    }
    area = (unsigned char *)memory + page;
    emu_fiber_adopt(&home);
    signal_stack = emu_signals_stack();
    emu_signals_arm();
    return true;
}

machine::~machine() {
    emu_signals_free_stack(signal_stack);
    for (unsigned i = 0; i < n_fibers; i++) {
        emu_fiber_free(&fibers[i]);
    }
    if (area != nullptr) {
        size_t page = (size_t)sysconf(_SC_PAGESIZE);
        asan_unpoison(area, SHARED_AREA);
        munmap(area - page, SHARED_AREA + 2 * page);
    }
}

uint64_t next_random(machine &m) { /* xorshift64* */
    m.random ^= m.random >> 12;
    m.random ^= m.random << 25;
    m.random ^= m.random >> 27;
    return m.random * 0x2545f4914f6cdd1dULL >> 16;
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

/* End the grid. The fibers that were under way are dropped. */
[[noreturn]] void end_with(machine &m, cudaError_t error, const char *text) {
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

void name_operation(unsigned what, char *text, size_t size) {
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

/* ---- which thread runs next ---- */

void begin_warp_phase(machine &m, gpu_warp &w, unsigned first) {
    w.position = 0;
    if (m.in_order) {
        w.step = 1;
        w.from = first;
    } else {
        uint64_t r = next_random(m);
        w.step = (unsigned)(r & 30u) | 1u;
        w.from = (unsigned)(r >> 5) & 31u;
    }
}

void begin_block_phase(machine &m) {
    m.phase++;
    m.warp_position = 0;
    m.warp_step = 1;
    m.warp_from = 0;
    if (!m.in_order) {
        uint64_t r = next_random(m);
        m.warp_step = (unsigned)r | 1u;
        m.warp_from = (unsigned)(r >> 32);
    }
    for (unsigned i = 0; i < m.n_warps; i++) {
        gpu_warp &w = m.warps[i];
        w.ready = w.n_threads == WARP ? ~0u : (1u << w.n_threads) - 1u;
        begin_warp_phase(m, w, 0);
    }
    m.n_at_barrier = 0;
    m.warp = nullptr;
}

bool next_warp(machine &m) {
    while (m.warp_position < m.warp_ring) {
        unsigned i = (m.warp_step * m.warp_position++ + m.warp_from) & (m.warp_ring - 1);
        if (i < m.n_warps) {
            m.warp = &m.warps[i];
            return true;
        }
    }
    return false;
}

/* " (FILE+0xOFFSET)" for addr2line, of the code that made an access. */
const char *name_code(const void *code, char *text, size_t size) {
    Dl_info info;
    *text = '\0';
    if (code != nullptr && dladdr(code, &info) != 0 && info.dli_fname != nullptr) {
        const char *name = strrchr(info.dli_fname, '/');
        snprintf(text, size, " (%.80s+%#zx)", name != nullptr ? name + 1 : info.dli_fname,
                 (size_t)((const char *)code - (const char *)info.dli_fbase));
    }
    return text;
}

/* An access of the current thread to shared memory, where accesses are checked; by code or by an operation. */
void note_access(machine &m, const void *p, size_t size, enum emu_access access, const char *operation,
                 const void *code) {
    if (m.bytes == nullptr) {
        return;
    }
    const gpu_thread &t = *m.current;
    struct emu_moment now = {m.phase, t.warp->syncs, (uint16_t)(&t - m.threads)};
    struct emu_race race;
    size_t offset = (size_t)(static_cast<const unsigned char *>(p) - m.area);
    if (emu_race_access(&m.bytes[offset], size, now, access, &race)) {
        const gpu_thread &other = m.threads[race.other < m.n_threads ? race.other : 0];
        char who[64], where[128];
        snprintf(who, sizeof who, race.other < m.n_threads ? "thread (%u, %u, %u)" : "several threads", other.index.x,
                 other.index.y, other.index.z);
        fault(m, cudaErrorLaunchFailure,
              "a race: shared memory at offset %zu, %zu bytes, %s %s, and no barrier lies between%s%s",
              (size_t)(static_cast<const unsigned char *>(p) - m.shared), size, race.kind, who, operation,
              name_code(code, where, sizeof where));
    }
}

void check_rows(machine &m, gpu_warp &w, unsigned matrices) {
    gpu_thread *last = m.current;
    for (unsigned i = 0; i < 8 * matrices; i++) {
        const unsigned char *p = static_cast<const unsigned char *>(w.rows[i]);
        m.current = &w.threads[i]; /* whom a fault is told of */
        if (p < m.shared || p + 16 > m.shared + m.shared_bytes) {
            fault(m, cudaErrorIllegalAddress,
                  "load_matrix at %p, which is not in the block's shared memory (%zu bytes at %p)", (const void *)p,
                  m.shared_bytes, (void *)m.shared);
        }
        if (((uintptr_t)p & 15u) != 0) {
            fault(m, cudaErrorMisalignedAddress, "load_matrix at %p, which is not aligned by 16", (const void *)p);
        }
        note_access(m, p, 16, EMU_READ, " (load_matrix)", nullptr);
    }
    m.current = last;
}

/* All lanes are at the same operation: do it. */
void complete(machine &m, gpu_warp &w) {
    m.n_warp_rendezvous++;
    switch (w.what & 0xffu) {
    case EMU_MMA_I8:
        emu_compute_mma_i8(w.mma);
        break;
    case EMU_MMA_F16:
        emu_compute_mma_f16(w.mma);
        break;
    case EMU_MMA_BF16:
        emu_compute_mma_bf16(w.mma);
        break;
    case EMU_LDMATRIX_X4:
    case EMU_LDMATRIX_X4_TRANSPOSED:
        check_rows(m, w, 4);
        emu_compute_ldmatrix(w.matrix, w.rows, 4, (w.what & 0xffu) == EMU_LDMATRIX_X4_TRANSPOSED);
        break;
    case EMU_LDMATRIX_X2:
    case EMU_LDMATRIX_X2_TRANSPOSED:
        check_rows(m, w, 2);
        emu_compute_ldmatrix(w.matrix, w.rows, 2, (w.what & 0xffu) == EMU_LDMATRIX_X2_TRANSPOSED);
        break;
    case EMU_WARP_SYNC:
        w.syncs++;
        break;
    default: /* exchanges: each lane reads what the others gave */
        break;
    }
    w.arrived = 0;
    w.parity ^= 1u;
    w.ready = ~0u;
    begin_warp_phase(m, w, (unsigned)(m.current - w.threads));
}

/* The next thread that can run; NULL: the block is over. Called by the fiber that has just stopped. */
gpu_thread *pick(machine &m) {
    for (;;) {
        gpu_warp *w = m.warp;
        if (w != nullptr) {
            while (w->position < WARP) {
                unsigned lane = (w->step * w->position++ + w->from) & (WARP - 1);
                if (w->ready >> lane & 1u) {
                    w->ready &= ~(1u << lane);
                    return &w->threads[lane];
                }
            }
            if (w->arrived != 0) {
                if (w->arrived != WARP || w->mismatch) {
                    fault_warp(m, *w);
                }
                complete(m, *w);
                continue;
            }
        }
        if (next_warp(m)) {
            continue;
        }
        if (m.n_at_barrier == 0) {
            return nullptr;
        }
        if (m.n_at_barrier != m.n_threads) {
            fault_barrier(m);
        }
        m.n_block_rendezvous++;
        begin_block_phase(m);
    }
}

/* ---- fibers and threads ---- */

void become(machine &m, gpu_thread *t) {
    t->at = place::running;
    m.current = t;
    emu_self = t;
}

emu_fiber *take_fiber(machine &m) {
    if (m.n_idle == 0) {
        if (m.n_fibers == MAX_THREADS || !emu_fiber_make(&m.fibers[m.n_fibers], m.n_fibers)) {
            fault(m, cudaErrorMemoryAllocation, "no memory for the stack of another thread");
        }
        m.idle[m.n_idle++] = &m.fibers[m.n_fibers++];
    }
    return m.idle[--m.n_idle];
}

/* The current thread waits (its place says where): run others until it can go on. */
void wait(machine &m) {
    gpu_thread *me = m.current, *next = pick(m);
    if (next != me) {
        if (next->fiber == nullptr) {
            next->fiber = take_fiber(m);
        }
        become(m, next);
        m.n_switches++;
        m.running = next->fiber;
        emu_fiber_switch(me->fiber, next->fiber);
    } else {
        me->at = place::running;
    }
}

/* Arrive at a rendezvous of the warp and wait for the others. */
inline void rendezvous(machine &m, gpu_warp &w, unsigned what) {
    gpu_thread &t = *m.current;
    if (w.arrived == 0) {
        w.what = what;
        w.mismatch = w.n_threads != WARP;
    } else if (w.what != what) {
        w.mismatch = true;
    }
    w.arrived++;
    t.what = what;
    t.at = place::warp_operation;
    wait(m);
}

/* ---- shared memory ---- */

void fill_pattern(unsigned char *p, size_t bytes) {
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        memcpy(p + i, &POISON, 8);
    }
    memcpy(p + bytes / 8 * 8, &POISON, bytes % 8);
}

/* Lay the block's shared memory at the end of the area; around it lies what nobody may write. */
void place_shared(machine &m, size_t bytes) {
    size_t room = (bytes + SHARED_ALIGNMENT - 1) / SHARED_ALIGNMENT * SHARED_ALIGNMENT;
    m.shared = m.area + SHARED_AREA - room;
    m.shared_bytes = bytes;
}

void begin_shared(machine &m) {
    asan_unpoison(m.area, SHARED_AREA);
    if (poison_shared) {
        fill_pattern(m.shared, m.shared_bytes);
    }
    memset(m.shared - SHARED_ALIGNMENT, RED_ZONE_BYTE, SHARED_ALIGNMENT);
    memset(m.shared + m.shared_bytes, RED_ZONE_BYTE, (size_t)(m.area + SHARED_AREA - m.shared) - m.shared_bytes);
    asan_poison(m.area, (size_t)(m.shared - m.area));
    asan_poison(m.shared + m.shared_bytes, (size_t)(m.area + SHARED_AREA - m.shared) - m.shared_bytes);
    m.red_zones.clear();
    m.built_by = nullptr;
}

/* The offset of the first byte that was written, or size. */
size_t first_written(const unsigned char *p, size_t size) {
    size_t i = 0;
    while (i < size && p[i] == RED_ZONE_BYTE) {
        i++;
    }
    return i;
}

/* What was written where nobody may: the message, or "". */
void check_shared(machine &m, char *text, size_t size) {
    *text = '\0';
    asan_unpoison(m.area, SHARED_AREA);
    for (const red_zone &zone : m.red_zones) {
        size_t at = first_written(zone.bytes, zone.size);
        if (at < zone.size) {
            snprintf(
                text, size,
                "a red zone of the shared memory was written, at offset %zu of the structure (byte %zu of the zone)",
                (size_t)(zone.bytes + at - m.shared), at);
            return;
        }
    }
    size_t behind = (size_t)(m.area + SHARED_AREA - m.shared) - m.shared_bytes;
    size_t at = first_written(m.shared + m.shared_bytes, behind);
    if (at < behind) {
        snprintf(text, size, "written %zu bytes behind the %zu bytes of shared memory", at + 1, m.shared_bytes);
    } else if (first_written(m.shared - SHARED_ALIGNMENT, SHARED_ALIGNMENT) < SHARED_ALIGNMENT) {
        snprintf(text, size, "written before the beginning of the shared memory");
    }
}

/* ---- blocks ---- */

void begin_block(machine &m) {
    const dim3 block = emu_here.block_dim;
    unsigned i = 0;
    for (unsigned z = 0; z < block.z; z++) {
        for (unsigned y = 0; y < block.y; y++) {
            for (unsigned x = 0; x < block.x; x++, i++) {
                gpu_thread &t = m.threads[i];
                t.index = {x, y, z};
                t.fiber = nullptr;
                t.at = place::start;
                t.copies.clear();
                t.copy_groups.clear();
                t.copies_done = t.groups_done = 0;
            }
        }
    }
    for (unsigned w = 0; w < m.n_warps; w++) {
        m.warps[w].arrived = m.warps[w].parity = 0;
    }
    begin_block_phase(m);
    begin_shared(m);
}

void prepare_threads(machine &m) {
    m.n_threads = emu_here.block_dim.x * emu_here.block_dim.y * emu_here.block_dim.z;
    m.n_warps = (m.n_threads + WARP - 1) / WARP;
    m.warp_ring = 1;
    while (m.warp_ring < m.n_warps) {
        m.warp_ring *= 2;
    }
    for (unsigned i = 0; i < m.n_threads; i++) {
        m.threads[i].lane = i % WARP;
        m.threads[i].warp = &m.warps[i / WARP];
    }
    for (unsigned w = 0; w < m.n_warps; w++) {
        m.warps[w].number = w;
        m.warps[w].threads = &m.threads[w * WARP];
        unsigned left = m.n_threads - w * WARP;
        m.warps[w].n_threads = left < WARP ? left : (unsigned)WARP;
    }
}

/* Fibers of a grid that was ended somewhere inside: all of them begin anew. */
void drop_fibers(machine &m) {
    for (unsigned i = 0; i < m.n_fibers; i++) {
        emu_fiber_reset(&m.fibers[i], i);
        m.idle[i] = &m.fibers[i];
    }
    m.n_idle = m.n_fibers;
}

/* A fiber that stays idle does so inside of emu_fiber_main. */
void run_block(machine &m) {
    begin_block(m);
    m.n_blocks++;
    gpu_thread *first = pick(m);
    first->fiber = take_fiber(m);
    become(m, first);
    m.running = first->fiber;
    emu_fiber_switch(&m.home, first->fiber);
    m.running = nullptr;
    m.current = nullptr;
    char text[256];
    if (m.error == cudaSuccess) {
        check_shared(m, text, sizeof text);
        if (*text != '\0') {
            record_fault(m, cudaErrorIllegalAddress, text);
        }
    }
}

uint64_t greatest_common_divisor(uint64_t a, uint64_t b) {
    return b == 0 ? a : greatest_common_divisor(b, a % b);
}

/* Blocks in rising order, or (step * i + from) % n with a random step that has no divisor in common with n. */
void run_blocks(machine &m) {
    const dim3 grid = emu_here.grid_dim;
    const uint64_t n = (uint64_t)grid.x * grid.y * grid.z;
    uint64_t step = 1, at = 0;
    if (!m.in_order && n > 1) {
        at = next_random(m) % n;
        do {
            step = 1 + next_random(m) % (n - 1);
        } while (greatest_common_divisor(step, n) != 1);
    }
    for (uint64_t i = 0; i < n && m.error == cudaSuccess; i++) {
        emu_here.index.x = (unsigned)(at % grid.x);
        emu_here.index.y = (unsigned)(at / grid.x % grid.y);
        emu_here.index.z = (unsigned)(at / grid.x / grid.y);
        run_block(m);
        at = (at + step) % n;
    }
}

machine *own_machine() {
    static thread_local std::unique_ptr<machine> own;
    if (own == nullptr) {
        own.reset(new (std::nothrow) machine);
    }
    return own != nullptr && own->open() ? own.get() : nullptr;
}

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

} // namespace

void emu_fiber_main(void) {
    emu_fiber_arrived();
    machine &m = *here;
    for (;;) {
        m.kernel->body();
        gpu_thread *me = m.current;
        me->at = place::end;
        gpu_thread *next = pick(m);
        emu_fiber *fiber = me->fiber;
        me->fiber = nullptr;
        if (next != nullptr && next->fiber == nullptr) {
            next->fiber = fiber;
            become(m, next);
            continue;
        }
        m.idle[m.n_idle++] = fiber;
        emu_fiber *to = &m.home;
        if (next != nullptr) {
            become(m, next);
            to = next->fiber;
        }
        m.n_switches++;
        m.running = to;
        emu_fiber_switch(fiber, to);
    }
}

/* ---- the border with the runtime ---- */

cudaError_t emu_check_launch(const struct emu_kernel *kernel, const struct emu_limits *limits) {
    const dim3 grid = kernel->grid, block = kernel->block;
    if (kernel->function == nullptr) {
        return cudaErrorInvalidDeviceFunction;
    }
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535) {
        return cudaErrorInvalidConfiguration;
    }
    if (block.x == 0 || block.y == 0 || block.z == 0 || block.x > MAX_THREADS || block.y > MAX_THREADS ||
        block.z > 64 || (uint64_t)block.x * block.y * block.z > MAX_THREADS) {
        return cudaErrorInvalidConfiguration;
    }
    /* What red zones take is known when the kernel names its structure: emu_shared looks again. */
    size_t allowed = kernel->shared_allowed < limits->shared_optin ? kernel->shared_allowed : limits->shared_optin;
    if (kernel->shared > allowed + RED_ZONE_SLACK || kernel->shared > SHARED_AREA - SHARED_ALIGNMENT) {
        return cudaErrorInvalidValue;
    }
    return cudaSuccess;
}

cudaError_t emu_run_kernel(const struct emu_kernel *kernel, int device) {
    (void)device;
    if (here != nullptr) {
        return cudaErrorNotPermitted; /* a kernel launches a kernel */
    }
    machine *m = own_machine();
    if (m == nullptr) {
        return cudaErrorMemoryAllocation;
    }
    here = m;
    m->kernel = kernel;
    m->error = cudaSuccess;
    uint64_t seed = order_seed;
    m->in_order = seed == 0;
    m->random = (seed + ++m->launch_number * 0x9e3779b97f4a7c15ULL) | 1u;
    emu_here.grid_dim = {kernel->grid.x, kernel->grid.y, kernel->grid.z};
    emu_here.block_dim = {kernel->block.x, kernel->block.y, kernel->block.z};
    if (check_accesses && m->bytes == nullptr) {
        m->bytes.reset(new (std::nothrow) emu_byte[SHARED_AREA]());
    }
    prepare_threads(*m);
    place_shared(*m, kernel->shared);
    run_blocks(*m);
    if (m->error != cudaSuccess) {
        drop_fibers(*m);
    }
    asan_unpoison(m->area, SHARED_AREA);
    if (poison_shared) {
        fill_pattern(m->shared, m->shared_bytes);
    }
    count(*m);
    emu_self = nullptr;
    here = nullptr;
    return m->error;
}

bool emu_in_kernel(void) {
    return here != nullptr;
}

/* ---- what kernels call ---- */

void emu_block_sync(void) {
    machine &m = *here;
    m.current->at = place::barrier;
    m.n_at_barrier++;
    wait(m);
}

void emu_warp_sync(void) {
    machine &m = *here;
    rendezvous(m, *m.current->warp, EMU_WARP_SYNC);
}

const uint64_t *emu_warp_exchange(unsigned what, uint64_t value) {
    machine &m = *here;
    gpu_warp &w = *m.current->warp;
    /* Two sets of slots: a lane that is already at the next operation does not touch what a slower one still reads. */
    uint64_t *slots = w.slots[w.parity];
    slots[m.current->lane] = value;
    rendezvous(m, w, what);
    return slots;
}

unsigned emu_warp_ballot(bool p) {
    machine &m = *here;
    gpu_warp &w = *m.current->warp;
    unsigned *votes = &w.votes[w.parity];
    if (w.arrived == 0) {
        *votes = 0;
    }
    *votes |= (unsigned)p << m.current->lane;
    rendezvous(m, w, EMU_BALLOT);
    return *votes;
}

void emu_load_matrix(enum emu_operation operation, uint32_t *r, const void *row) {
    machine &m = *here;
    gpu_warp &w = *m.current->warp;
    w.matrix[m.current->lane] = r;
    w.rows[m.current->lane] = row;
    rendezvous(m, w, operation);
}

void emu_mma(enum emu_operation operation, void *d, const uint32_t *a, const uint32_t *b) {
    machine &m = *here;
    gpu_warp &w = *m.current->warp;
    w.mma[m.current->lane] = {d, a, b};
    rendezvous(m, w, operation);
}

void emu_async_copy_16(void *shared, const void *p, bool valid) {
    machine &m = *here;
    unsigned char *to = static_cast<unsigned char *>(shared);
    if (to < m.shared || to + 16 > m.shared + m.shared_bytes) {
        fault(m, cudaErrorIllegalAddress,
              "async_copy_16 to %p, which is not in the block's shared memory (%zu bytes at %p)", shared,
              m.shared_bytes, (void *)m.shared);
    }
    if (static_cast<const unsigned char *>(p) >= m.area &&
        static_cast<const unsigned char *>(p) < m.area + SHARED_AREA) {
        fault(m, cudaErrorIllegalAddress, "async_copy_16 from %p, which is shared memory", p);
    }
    if ((((uintptr_t)shared | (uintptr_t)p) & 15u) != 0) {
        fault(m, cudaErrorMisalignedAddress, "async_copy_16 from %p to %p: not aligned by 16", p, shared);
    }
    note_access(m, to, 16, EMU_WRITE, " (async_copy_16)", nullptr);
    if (poison_shared) { /* neither the old bytes nor the new ones can be counted on until the wait */
        fill_pattern(to, 16);
    }
    m.current->copies.push_back({to, valid ? p : nullptr});
}

void emu_async_commit(void) {
    gpu_thread &t = *here->current;
    t.copy_groups.push_back(t.copies.size());
}

void emu_async_wait(unsigned groups) {
    gpu_thread &t = *here->current;
    while (t.copy_groups.size() - t.groups_done > groups) {
        for (size_t end = t.copy_groups[t.groups_done++]; t.copies_done < end; t.copies_done++) {
            const copy_16 &copy = t.copies[t.copies_done];
            note_access(*here, copy.to, 16, EMU_WRITE, " (async_copy_16, which lands at the wait)", nullptr);
            if (copy.from != nullptr) {
                memcpy(copy.to, copy.from, 16);
            } else {
                memset(copy.to, 0, 16);
            }
        }
    }
    if (t.groups_done == t.copy_groups.size()) { /* nothing is under way but what is not committed */
        t.copies.erase(t.copies.begin(), t.copies.begin() + (ptrdiff_t)t.copies_done);
        t.copy_groups.clear();
        t.copies_done = t.groups_done = 0;
    }
}

void *emu_shared(size_t size, size_t alignment, void (*build)(void *)) {
    machine &m = *here;
    if (m.built_by == build) {
        return m.shared;
    }
    if (m.built_by != nullptr) {
        fault(m, cudaErrorLaunchFailure, "SHARED names a second structure: a kernel has one");
    }
    if (size > m.shared_bytes) {
        fault(m, cudaErrorIllegalAddress, "its shared memory is a structure of %zu bytes, but the launch gave %zu",
              size, m.shared_bytes);
    }
    if (alignment > SHARED_ALIGNMENT) {
        fault(m, cudaErrorMisalignedAddress, "its shared memory asks for an alignment of %zu", alignment);
    }
    m.built_by = build;
    build(m.shared);
    size_t zones = 0;
    for (const red_zone &zone : m.red_zones) {
        zones += zone.size;
    }
    if (m.shared_bytes > m.kernel->shared_allowed + zones) {
        fault(m, cudaErrorInvalidValue, "%zu bytes of shared memory without red zones, of %zu that the launch may have",
              m.shared_bytes - zones, m.kernel->shared_allowed);
    }
    return m.shared;
}

void emu_red_zone(const void *p, size_t size) {
    machine &m = *here;
    m.red_zones.push_back({static_cast<const unsigned char *>(p), size});
    memset(const_cast<void *>(p), RED_ZONE_BYTE, size);
    asan_poison(p, size);
}

void emu_check_accesses(void) {
    check_accesses = true;
}

void emu_checked_access(const void *p, size_t size, enum emu_access access, const void *code) {
    if (here == nullptr || here->running == nullptr) {
        return;
    }
    machine &m = *here;
    const unsigned char *at = static_cast<const unsigned char *>(p);
    if (at < m.area || at >= m.area + SHARED_AREA) {
        return;
    }
    m.n_checked++;
    bool inside = at >= m.shared && at + size <= m.shared + m.shared_bytes;
    for (size_t i = 0; inside && i < m.red_zones.size(); i++) {
        inside = at + size <= m.red_zones[i].bytes || at >= m.red_zones[i].bytes + m.red_zones[i].size;
    }
    if (!inside) {
        char where[128];
        fault(m, cudaErrorIllegalAddress, "%zu bytes at offset %td of the shared memory are out of bounds%s", size,
              at - m.shared, name_code(code, where, sizeof where));
    }
    note_access(m, p, size, access, "", code);
}

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
