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
#include "machine_state.h"

#include "signals.h"

#include <new>
#include <sys/mman.h>
#include <unistd.h>

EMU_TLS struct emu_thread *emu_self;
EMU_TLS struct emu_block emu_here;
void (*emu_describe_address)(const void *, char *, size_t);

namespace emu {

EMU_TLS machine *here;

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
        munmap(area - page, SHARED_AREA + 2 * page);
    }
}

static uint64_t next_random(machine &m) { /* xorshift64* */
    m.random ^= m.random >> 12;
    m.random ^= m.random << 25;
    m.random ^= m.random >> 27;
    return m.random * 0x2545f4914f6cdd1dULL >> 16;
}

/* ---- which thread runs next ---- */

static void begin_warp_phase(machine &m, gpu_warp &w, unsigned first) {
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

static void begin_block_phase(machine &m) {
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

static bool next_warp(machine &m) {
    while (m.warp_position < m.warp_ring) {
        unsigned i = (m.warp_step * m.warp_position++ + m.warp_from) & (m.warp_ring - 1);
        if (i < m.n_warps) {
            m.warp = &m.warps[i];
            return true;
        }
    }
    return false;
}

/* All lanes are at the same operation: do it. */
static void complete(machine &m, gpu_warp &w) {
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
static gpu_thread *pick(machine &m) {
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

static void become(machine &m, gpu_thread *t) {
    t->at = place::running;
    m.current = t;
    emu_self = t;
}

static emu_fiber *take_fiber(machine &m) {
    if (m.n_idle == 0) {
        if (m.n_fibers == MAX_THREADS || !emu_fiber_make(&m.fibers[m.n_fibers], m.n_fibers)) {
            fault(m, cudaErrorMemoryAllocation, "no memory for the stack of another thread");
        }
        m.idle[m.n_idle++] = &m.fibers[m.n_fibers++];
    }
    return m.idle[--m.n_idle];
}

/* The current thread waits (its place says where): run others until it can go on. */
static void wait(machine &m) {
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
static inline void rendezvous(machine &m, gpu_warp &w, unsigned what) {
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

/* ---- blocks ---- */

static void begin_block(machine &m) {
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
    m.block_phase = m.phase;
    begin_shared(m);
}

static void prepare_threads(machine &m) {
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

/* Fibers of a grid that was ended somewhere inside begin anew. */
static void drop_fibers(machine &m) {
    bool idle[MAX_THREADS] = {};
    for (unsigned i = 0; i < m.n_idle; i++) {
        idle[m.idle[i] - m.fibers] = true;
    }
    for (unsigned i = 0; i < m.n_fibers; i++) {
        if (!idle[i]) {
            emu_fiber_reset(&m.fibers[i], i);
            m.idle[m.n_idle++] = &m.fibers[i];
        }
    }
}

/* A fiber that stays idle does so inside of emu_fiber_main. */
static void run_block(machine &m) {
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

static uint64_t greatest_common_divisor(uint64_t a, uint64_t b) {
    return b == 0 ? a : greatest_common_divisor(b, a % b);
}

/* Blocks in rising order, or (step * i + from) % n with a random step that has no divisor in common with n. */
static void run_blocks(machine &m) {
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

static machine *own_machine() {
    static thread_local std::unique_ptr<machine> own;
    if (own == nullptr) {
        own.reset(new (std::nothrow) machine);
    }
    return own != nullptr && own->open() ? own.get() : nullptr;
}

} // namespace emu

using namespace emu;

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
    m->in_order = seed == 0 || kernel->in_order;
    m->random = (seed + ++m->launch_number * 0x9e3779b97f4a7c15ULL) | 1u;
    emu_here.grid_dim = {kernel->grid.x, kernel->grid.y, kernel->grid.z};
    emu_here.block_dim = {kernel->block.x, kernel->block.y, kernel->block.z};
    prepare_threads(*m);
    place_shared(*m, kernel->shared);
    m->grid_phase = m->phase + 1;
    run_blocks(*m);
    if (m->error != cudaSuccess) {
        drop_fibers(*m);
    }
    end_shared(*m);
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
