/*
 * Memory of the emulated devices: every allocation ends at a page that nobody may touch, addresses are never used twice
 * (so that a late access always faults), and a protected device's pages are closed while its work does not run.
 */
#include "emu_launch.h"
#include "fiber.h"
#include "runtime.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

namespace emu {

static const size_t page = 4096;
static const unsigned char canary = 0xa5;
/* NaN as F32, BF16 and F16; as an index, 2147450879. */
static const uint32_t poison = 0x7fff7fff;

/* Address space for all allocations, taken once. */
static struct { char *begin, *next, *end; } arena;

static bool make_arena() {
    for (size_t size = size_t(1) << 40; !arena.begin && size >= size_t(1) << 32; size >>= 2) {
        void *p = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p != MAP_FAILED) {
            madvise(p, size, MADV_DONTDUMP);
            arena = {static_cast<char *>(p), static_cast<char *>(p) + page, static_cast<char *>(p) + size};
        }
    }
    return arena.begin != nullptr;
}

/* A file of poison in memory, mapped privately in many places: a page costs memory only once it is written to. */
static const size_t poison_file_size = size_t(16) << 20;
static int poison_file() {
    static int file = -1;
    if (file < 0) {
        file = memfd_create("poison", MFD_CLOEXEC);
        std::vector<uint32_t> words((size_t(1) << 20) / 4, poison);
        for (size_t at = 0; file >= 0 && at < poison_file_size;) {
            ssize_t n = write(file, words.data(), size_t(1) << 20);
            if (n <= 0) {
                close(file);
                file = -1;
            } else {
                at += size_t(n);
            }
        }
    }
    return file;
}

static bool map_pages(char *base, size_t size, bool poisoned) {
    int flags = MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE;
    int file = poisoned && size >= size_t(1) << 20 ? poison_file() : -1;
    for (size_t at = 0; file >= 0 && at < size; at += poison_file_size) {
        size_t n = std::min(poison_file_size, size - at);
        if (mmap(base + at, n, PROT_READ | PROT_WRITE, flags, file, 0) == MAP_FAILED) {
            return false;
        }
    }
    if (file < 0) {
        if (mmap(base, size, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0) == MAP_FAILED) {
            return false;
        }
        for (size_t i = 0; poisoned && i < size; i += 4) {
            memcpy(base + i, &poison, 4);
        }
    }
    return true;
}

static void unmap_pages(char *base, size_t size) {
    mmap(base, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
}

static void set_access(const Allocation &a, bool open) {
    mprotect(a.base, a.mapped, open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

void set_open(Runtime &r, int device, bool open) {
    Device &d = r.devices[size_t(device)];
    if (d.open == open) {
        return;
    }
    d.open = open;
    for (auto &a : r.allocations) {
        if (!a.second.host && a.second.device == device) {
            set_access(a.second, open);
        }
    }
}

/* The bytes around an allocation on its own pages. */
static bool canary_holds(const Allocation &a) {
    for (const char *p = a.base; p < a.user; p++) {
        if (static_cast<unsigned char>(*p) != canary) {
            return false;
        }
    }
    for (const char *p = a.user + a.size; p < a.base + a.mapped; p++) {
        if (static_cast<unsigned char>(*p) != canary) {
            return false;
        }
    }
    return true;
}

static bool check_canary(Runtime &r, const Allocation &a) {
    bool closed = !a.host && r.options.protect && !r.devices[size_t(a.device)].open;
    if (closed) {
        set_access(a, true);
    }
    bool ok = canary_holds(a);
    if (closed) {
        set_access(a, false);
    }
    if (!ok) {
        note(r, cudaErrorIllegalAddress, "bytes beside the allocation of %zu bytes at %p were written to", a.size,
             static_cast<void *>(a.user));
    }
    return ok;
}

size_t check_canaries(Runtime &r) {
    size_t bad = 0;
    for (auto &a : r.allocations) {
        bad += a.second.base && !check_canary(r, a.second);
    }
    return bad;
}

/* What cudaMalloc takes of the device: small ones share pieces of 2 MB, big ones take whole pieces. */
static size_t device_bytes_taken(Runtime &r, int device) {
    const size_t piece = size_t(2) << 20;
    size_t small = 0, big = 0;
    for (const auto &a : r.allocations) {
        if (!a.second.host && a.second.device == device) {
            if (a.second.size <= piece / 2) {
                small += (a.second.size + 511) / 512 * 512;
            } else {
                big += (a.second.size + piece - 1) / piece * piece;
            }
        }
    }
    return (small + piece - 1) / piece * piece + big + r.options.context_bytes;
}

static void *allocate(Runtime &r, size_t size, bool host, size_t alignment) {
    size_t mapped = (size + page - 1) / page * page;
    if (!make_arena() || mapped > size_t(arena.end - arena.next) - page ||
        !map_pages(arena.next, mapped, r.options.poison)) {
        return nullptr;
    }
    Allocation a;
    a.base = arena.next;
    a.mapped = mapped;
    a.size = size;
    a.user = a.base + mapped - (size + alignment - 1) / alignment * alignment;
    a.device = current_device();
    a.host = host;
    a.serial = r.serial++;
    memset(a.base, canary, size_t(a.user - a.base));
    memset(a.user + size, canary, size_t(a.base + mapped - (a.user + size)));
    arena.next += mapped + page;
    if (!host && r.options.protect && !here(r).open) {
        set_access(a, false);
    } else if (!host && !r.options.protect) {
        here(r).open = true;
    }
    r.allocations[uintptr_t(a.user)] = a;
    return a.user;
}

static void release(Runtime &r, std::map<uintptr_t, Allocation>::iterator i) {
    if (i->second.base) {
        unmap_pages(i->second.base, i->second.mapped);
        r.freed[i->first] = i->second;
        if (r.freed.size() > 4096) {
            r.freed.erase(r.freed.begin());
        }
    }
    r.allocations.erase(i);
}

void release_memory(Runtime &r, int device) {
    for (auto i = r.allocations.begin(); i != r.allocations.end();) {
        auto next = std::next(i);
        if (i->second.device == device) {
            release(r, i);
        }
        i = next;
    }
}

static Allocation *find_in(std::map<uintptr_t, Allocation> &map, const void *p) {
    auto i = map.upper_bound(uintptr_t(p));
    if (i == map.begin()) {
        return nullptr;
    }
    Allocation &a = std::prev(i)->second;
    return uintptr_t(p) < uintptr_t(a.user) + std::max<size_t>(a.size, 1) ? &a : nullptr;
}

Allocation *find_allocation(Runtime &r, const void *p) {
    return find_in(r.allocations, p);
}

static std::string describe(Runtime &r, const void *p) {
    char text[200] = "";
    uintptr_t at = uintptr_t(p);
    const Allocation *a = find_in(r.allocations, p), *dead = find_in(r.freed, p);
    if (a) {
        snprintf(text, sizeof text, "byte %zu of the %s allocation of %zu bytes of device %d",
                 size_t(at - uintptr_t(a->user)), a->host ? "pinned" : "device", a->size, a->device);
    } else if (dead) {
        snprintf(text, sizeof text, "byte %zu of an allocation of %zu bytes that was freed",
                 size_t(at - uintptr_t(dead->user)), dead->size);
    } else if (arena.begin && at >= uintptr_t(arena.begin) && at < uintptr_t(arena.end)) {
        auto i = r.allocations.upper_bound(at);
        const Allocation *after = i == r.allocations.end() ? nullptr : &i->second;
        const Allocation *before = i == r.allocations.begin() ? nullptr : &std::prev(i)->second;
        size_t behind = before ? at - (uintptr_t(before->user) + before->size) : SIZE_MAX;
        size_t ahead = after ? uintptr_t(after->user) - at : SIZE_MAX;
        if (before && behind <= ahead) {
            snprintf(text, sizeof text, "%zu bytes behind the end of the allocation of %zu bytes at %p", behind,
                     before->size, static_cast<void *>(before->user));
        } else if (after) {
            snprintf(text, sizeof text, "%zu bytes before the allocation of %zu bytes at %p", ahead, after->size,
                     static_cast<void *>(after->user));
        } else {
            snprintf(text, sizeof text, "device memory that was never allocated");
        }
    }
    return text;
}

bool inside_allocation(Runtime &r, const void *p, size_t size, const Allocation **found, std::string *why) {
    const Allocation *a = find_allocation(r, p);
    *found = a;
    if (a && size <= a->size - size_t(uintptr_t(p) - uintptr_t(a->user))) {
        return true;
    }
    char text[300];
    if (a) {
        snprintf(text, sizeof text, "%zu bytes from byte %zu on of an allocation of %zu bytes", size,
                 size_t(uintptr_t(p) - uintptr_t(a->user)), a->size);
    } else {
        std::string known = describe(r, p);
        snprintf(text, sizeof text, "%p is no device memory%s%s", p, known.empty() ? "" : ": ", known.c_str());
    }
    *why = text;
    return false;
}

/* ---- faults ---- */

/* In a signal handler, on a thread that holds no lock of ours unless the runtime itself is at fault. */
static void describe_address(const void *address, char *text, size_t size) {
    Runtime &r = runtime();
    if (r.mutex.try_lock()) {
        std::string known = describe(r, address);
        r.mutex.unlock();
        snprintf(text, size, "%s", known.c_str());
    }
}

static struct sigaction previous_action;

static void on_fault(int number, siginfo_t *info, void *context) {
    uintptr_t at = uintptr_t(info->si_addr);
    if (arena.begin && at >= uintptr_t(arena.begin) && at < uintptr_t(arena.end) && !emu_in_kernel()) {
        char known[240] = "", line[320];
        describe_address(info->si_addr, known, sizeof known);
        int n =
            snprintf(line, sizeof line, "emulator: host code touches device memory at %p: %s\n", info->si_addr, known);
        if (write(2, line, size_t(n)) < 0) {
            _exit(1);
        }
    }
    if (previous_action.sa_flags & SA_SIGINFO) {
        previous_action.sa_sigaction(number, info, context);
    } else if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN) {
        previous_action.sa_handler(number);
    } else {
        signal(number, SIG_DFL); /* the access is made again, and ends the program */
    }
}

void arm_handler() {
    emu_describe_address = describe_address;
    if (EMU_TSAN) { /* as in signals.cc */
        return;
    }
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigemptyset(&action.sa_mask);
    sigaction(SIGSEGV, &action, &previous_action);
}

/* ---- copies ---- */

/* Where a pointer of a copy lies. */
struct Place {
    bool known;  /* device or pinned memory */
    bool device; /* else: host */
    int ordinal;
};

/* what: "source" or "destination". Device memory must hold all of it. */
static cudaError_t place(Runtime &r, const char *call, const char *what, const void *p, size_t size,
                         bool must_be_device, bool must_be_host, Place *out) {
    const Allocation *a;
    std::string why;
    bool inside = inside_allocation(r, p, size, &a, &why);
    bool in_arena = arena.begin && uintptr_t(p) >= uintptr_t(arena.begin) && uintptr_t(p) < uintptr_t(arena.end);
    if (!p || (!inside && (must_be_device || in_arena || a))) {
        return fail(r, cudaErrorInvalidValue, "%s: %s: %s", call, what, p ? why.c_str() : "NULL");
    }
    *out = {inside, inside && !a->host, inside ? a->device : 0};
    /* pinned memory is also an address of the device */
    if ((must_be_host && out->device) || (must_be_device && !inside)) {
        return fail(r, cudaErrorInvalidValue, "%s: %s: %p is %s memory, unlike the kind of the copy", call, what, p,
                    out->device ? "device" : "host");
    }
    return cudaSuccess;
}

struct Copy {
    void *to;
    const void *from;
    size_t to_pitch, from_pitch, width, height;
    Place to_place, from_place;
};

static size_t span(size_t pitch, size_t width, size_t height) {
    return (height - 1) * pitch + width;
}

/* Check both ends; fills in the places. */
static cudaError_t check_copy(Runtime &r, const char *call, Copy *c, enum cudaMemcpyKind kind) {
    if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) {
        return fail(r, cudaErrorInvalidMemcpyDirection, "%s: kind %d", call, int(kind));
    }
    if (c->width > c->to_pitch || c->width > c->from_pitch) {
        return fail(r, cudaErrorInvalidPitchValue, "%s: rows of %zu bytes at pitches %zu and %zu", call, c->width,
                    c->to_pitch, c->from_pitch);
    }
    bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    bool free_choice = kind == cudaMemcpyDefault;
    cudaError_t error = place(r, call, "destination", c->to, span(c->to_pitch, c->width, c->height), to_device,
                              !to_device && !free_choice, &c->to_place);
    if (error == cudaSuccess) {
        error = place(r, call, "source", c->from, span(c->from_pitch, c->width, c->height), from_device,
                      !from_device && !free_choice, &c->from_place);
    }
    return error;
}

static void count_copy(Runtime &r, const Copy &c) {
    size_t bytes = c.width * c.height;
    if (c.to_place.device && !c.from_place.device) {
        r.counts.copies_to_device++;
        r.counts.bytes_to_device += bytes;
    } else if (!c.to_place.device && c.from_place.device) {
        r.counts.copies_to_host++;
        r.counts.bytes_to_host += bytes;
    } else {
        r.counts.copies_on_device++;
    }
}

static void copy_rows(const Copy &c) {
    for (size_t i = 0; i < c.height; i++) {
        memmove(static_cast<char *>(c.to) + i * c.to_pitch, static_cast<const char *>(c.from) + i * c.from_pitch,
                c.width);
    }
}

/* The work of a copy. A graph may run it long after the memory was freed. */
static Work copy_work(const Copy &c) {
    return [c](int) {
        Runtime &r = runtime();
        {
            Lock lock(r.mutex);
            const Allocation *a;
            std::string why;
            if ((c.to_place.known && !inside_allocation(r, c.to, span(c.to_pitch, c.width, c.height), &a, &why)) ||
                (c.from_place.known &&
                 !inside_allocation(r, c.from, span(c.from_pitch, c.width, c.height), &a, &why))) {
                return note(r, cudaErrorIllegalAddress, "a copy when it is done: %s", why.c_str());
            }
            count_copy(r, c);
        }
        copy_rows(c);
        return cudaSuccess;
    };
}

static uint32_t devices_of(const Copy &c) {
    return (c.to_place.device ? 1u << c.to_place.ordinal : 0) | (c.from_place.device ? 1u << c.from_place.ordinal : 0);
}

/* As cudaMemcpyAsync is from memory that is not pinned: the source is read before the call returns, a destination is
 * written before it returns. */
static cudaError_t queue_copy(Runtime &r, Lock &lock, const char *call, Stream &s, Copy c, cudaError_t asynchronous) {
    bool unpinned_from = !c.from_place.known, unpinned_to = !c.to_place.known;
    if (s.capture && (unpinned_from || unpinned_to)) {
        return invalidate(r, s.capture, cudaErrorStreamCaptureUnsupported, call);
    }
    Work work;
    if (asynchronous != cudaSuccess) {
        work = [asynchronous](int) { return asynchronous; };
    } else if (unpinned_from) {
        auto staged = std::make_shared<std::vector<char>>(c.width * c.height);
        Copy in = c;
        in.to = staged->data();
        in.to_pitch = c.width;
        copy_rows(in);
        c.from = staged->data();
        c.from_pitch = c.width;
        Work inner = copy_work(c);
        work = [staged, inner](int device) { return inner(device); };
    } else {
        work = copy_work(c);
    }
    OpPtr op;
    cudaError_t error = enqueue(r, lock, s, Kind::copy, call, devices_of(c), work, &op);
    if (error == cudaSuccess && unpinned_to && op) {
        error = wait_for(r, lock, op);
    }
    return remember(error);
}

static Copy flat(void *to, const void *from, size_t size) {
    return {to, from, size, size, size, 1, {}, {}};
}

static cudaError_t queued_copy(const char *name, Copy copy, enum cudaMemcpyKind kind, cudaStream_t stream) {
    Call c;
    if (c.error != cudaSuccess) {
        return c.error;
    }
    Stream *s = find_stream(c.r, stream);
    if (!s) {
        return fail(c.r, cudaErrorInvalidResourceHandle, "%s: no such stream", name);
    }
    if (copy.width == 0 || copy.height == 0) {
        return cudaSuccess;
    }
    cudaError_t asynchronous = cudaSuccess;
    cudaError_t error = check_copy(c.r, name, &copy, kind);
    if (error == cudaSuccess && !s->capture) {
        error = inject(c.r, c.lock, EMU_CALL_COPY, &asynchronous);
    }
    return error == cudaSuccess ? queue_copy(c.r, c.lock, name, *s, copy, asynchronous) : error;
}

} // namespace emu

using namespace emu;

extern "C" {

cudaError_t cudaMalloc(void **devPtr, size_t size) {
    Call c;
    cudaError_t error = c.error != cudaSuccess ? c.error : refuse_while_capturing(c.r, "cudaMalloc");
    if (error == cudaSuccess && !devPtr) {
        error = fail(c.r, cudaErrorInvalidValue, "cudaMalloc: no place for the answer");
    }
    if (error == cudaSuccess) {
        error = inject(c.r, c.lock, EMU_CALL_MALLOC, nullptr);
    }
    if (error != cudaSuccess) {
        return error;
    }
    if (size == 0) {
        *devPtr = nullptr;
        return cudaSuccess;
    }
    size_t taken = device_bytes_taken(c.r, current_device());
    void *p = size <= c.r.options.memory_bytes ? allocate(c.r, size, false, c.r.options.alignment) : nullptr;
    if (p && device_bytes_taken(c.r, current_device()) > c.r.options.memory_bytes) {
        release(c.r, c.r.allocations.find(uintptr_t(p)));
        p = nullptr;
    }
    if (!p) {
        return fail(c.r, cudaErrorMemoryAllocation, "cudaMalloc: %zu bytes, %zu of %zu are taken", size, taken,
                    c.r.options.memory_bytes);
    }
    *devPtr = p;
    return cudaSuccess;
}

/* Of the start of an allocation of the right sort, after all work of the device. */
static cudaError_t free_memory(Call &c, void *p, bool host, const char *name) {
    Allocation *a = find_allocation(c.r, p);
    if (!a || a->user != p || a->host != host || !a->base) {
        return fail(c.r, cudaErrorInvalidValue, "%s: %p is not the start of an allocation%s%s", name, p,
                    describe(c.r, p).empty() ? "" : ": ", describe(c.r, p).c_str());
    }
    cudaError_t error = wait_for_device(c.r, c.lock, a->device);
    if (error != cudaSuccess) {
        return remember(error);
    }
    auto i = c.r.allocations.find(uintptr_t(p));
    if (i == c.r.allocations.end()) {
        return fail(c.r, cudaErrorInvalidValue, "%s: %p was freed by two threads at once", name, p);
    }
    error = check_canary(c.r, i->second) ? cudaSuccess : cudaErrorIllegalAddress;
    if (error != cudaSuccess) {
        c.r.devices[size_t(i->second.device)].sticky = error;
    }
    release(c.r, i);
    c.r.counts.frees++;
    return error;
}

cudaError_t cudaFree(void *devPtr) {
    Call c;
    cudaError_t error = c.error;
    if (error == cudaSuccess && devPtr) {
        error = refuse_while_capturing(c.r, "cudaFree");
    }
    return error == cudaSuccess && devPtr ? free_memory(c, devPtr, false, "cudaFree") : error;
}

cudaError_t cudaHostAlloc(void **pHost, size_t size, unsigned int flags) {
    Call c;
    cudaError_t error = c.error != cudaSuccess ? c.error : refuse_while_capturing(c.r, "cudaHostAlloc");
    if (error == cudaSuccess && (!pHost || (flags & ~7u))) {
        error = fail(c.r, cudaErrorInvalidValue, "cudaHostAlloc: flags %#x", flags);
    }
    if (error == cudaSuccess) {
        error = inject(c.r, c.lock, EMU_CALL_HOST_ALLOC, nullptr);
    }
    if (error != cudaSuccess) {
        return error;
    }
    if (size == 0) {
        *pHost = nullptr;
        return cudaSuccess;
    }
    void *p = size <= size_t(1) << 36 ? allocate(c.r, size, true, 64) : nullptr;
    if (!p) {
        return fail(c.r, cudaErrorMemoryAllocation, "cudaHostAlloc: %zu bytes", size);
    }
    *pHost = p;
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **ptr, size_t size) {
    return cudaHostAlloc(ptr, size, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void *ptr) {
    Call c;
    cudaError_t error = c.error;
    if (error == cudaSuccess && ptr) {
        error = refuse_while_capturing(c.r, "cudaFreeHost");
    }
    return error == cudaSuccess && ptr ? free_memory(c, ptr, true, "cudaFreeHost") : error;
}

cudaError_t cudaHostRegister(void *ptr, size_t size, unsigned int flags) {
    Call c;
    cudaError_t error = c.error != cudaSuccess ? c.error : refuse_while_capturing(c.r, "cudaHostRegister");
    if (error != cudaSuccess) {
        return error;
    }
    if (!ptr || size == 0 || (flags & ~11u)) {
        return fail(c.r, cudaErrorInvalidValue, "cudaHostRegister: %zu bytes at %p, flags %#x", size, ptr, flags);
    }
    auto i = c.r.allocations.lower_bound(uintptr_t(ptr));
    if (find_allocation(c.r, ptr) || (i != c.r.allocations.end() && i->first < uintptr_t(ptr) + size)) {
        return fail(c.r, cudaErrorHostMemoryAlreadyRegistered, "cudaHostRegister: %zu bytes at %p", size, ptr);
    }
    Allocation a;
    a.user = static_cast<char *>(ptr);
    a.size = size;
    a.device = current_device();
    a.host = true;
    a.serial = c.r.serial++;
    c.r.allocations[uintptr_t(ptr)] = a;
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *ptr) {
    Call c;
    cudaError_t error = c.error != cudaSuccess ? c.error : refuse_while_capturing(c.r, "cudaHostUnregister");
    if (error != cudaSuccess) {
        return error;
    }
    auto i = c.r.allocations.find(uintptr_t(ptr));
    if (i == c.r.allocations.end() || i->second.base) {
        return fail(c.r, cudaErrorHostMemoryNotRegistered, "cudaHostUnregister: %p", ptr);
    }
    error = wait_for_device(c.r, c.lock, i->second.device);
    c.r.allocations.erase(uintptr_t(ptr));
    return remember(error);
}

cudaError_t cudaHostGetDevicePointer(void **pDevice, void *pHost, unsigned int flags) {
    Call c;
    if (c.error != cudaSuccess) {
        return c.error;
    }
    Allocation *a = find_allocation(c.r, pHost);
    if (!a || !a->host || !pDevice || flags != 0) {
        return fail(c.r, cudaErrorInvalidValue, "cudaHostGetDevicePointer: %p is not pinned", pHost);
    }
    *pDevice = pHost;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
    Call c;
    if (c.error != cudaSuccess) {
        return c.error;
    }
    if (!free || !total) {
        return fail(c.r, cudaErrorInvalidValue, "cudaMemGetInfo: no place for the answer");
    }
    *total = c.r.options.memory_bytes;
    *free = c.r.options.memory_bytes - std::min(c.r.options.memory_bytes, device_bytes_taken(c.r, current_device()));
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *ptr) {
    Call c;
    if (c.error != cudaSuccess) {
        return c.error;
    }
    if (!attributes) {
        return fail(c.r, cudaErrorInvalidValue, "cudaPointerGetAttributes: no place for the answer");
    }
    const Allocation *a = find_allocation(c.r, ptr);
    void *p = const_cast<void *>(ptr);
    *attributes = {};
    attributes->type = !a ? cudaMemoryTypeUnregistered : a->host ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
    attributes->device = a ? a->device : -2;
    attributes->devicePointer = a ? p : nullptr;
    attributes->hostPointer = a && !a->host ? nullptr : p;
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind, cudaStream_t stream) {
    return queued_copy("cudaMemcpyAsync", flat(dst, src, count), kind, stream);
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height,
                              enum cudaMemcpyKind kind, cudaStream_t stream) {
    return queued_copy("cudaMemcpy2DAsync", Copy{dst, src, dpitch, spitch, width, height, {}, {}}, kind, stream);
}

cudaError_t cudaMemcpyPeerAsync(void *dst, int dstDevice, const void *src, int srcDevice, size_t count,
                                cudaStream_t stream) {
    bool lies = false;
    {
        Call c;
        if (c.error != cudaSuccess) {
            return c.error;
        }
        lies = c.r.options.peers == EMU_PEERS_LIE && dstDevice != srcDevice;
        const Allocation *to = find_allocation(c.r, dst), *from = find_allocation(c.r, src);
        if (count > 0 &&
            (!to || to->host || to->device != dstDevice || !from || from->host || from->device != srcDevice)) {
            return fail(c.r, cudaErrorInvalidValue, "cudaMemcpyPeerAsync: memory of other devices than %d and %d",
                        dstDevice, srcDevice);
        }
    }
    return lies ? cudaSuccess : queued_copy("cudaMemcpyPeerAsync", flat(dst, src, count), cudaMemcpyDeviceToDevice, stream);
}

/* On the default stream; waits for it. */
cudaError_t cudaMemcpy(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind) {
    Call c;
    cudaError_t error = c.error;
    if (error == cudaSuccess) {
        error = refuse_legacy(c.r, current_device(), "cudaMemcpy");
    }
    if (error == cudaSuccess) {
        error = refuse_while_capturing(c.r, "cudaMemcpy");
    }
    if (error != cudaSuccess || count == 0) {
        return error;
    }
    cudaError_t asynchronous = cudaSuccess;
    Copy copy = flat(dst, src, count);
    error = check_copy(c.r, "cudaMemcpy", &copy, kind);
    if (error == cudaSuccess) {
        error = inject(c.r, c.lock, EMU_CALL_COPY, &asynchronous);
    }
    if (error != cudaSuccess) {
        return error;
    }
    Work work = copy_work(copy);
    if (asynchronous != cudaSuccess) {
        work = [asynchronous](int) { return asynchronous; };
    }
    OpPtr op;
    error = enqueue(c.r, c.lock, here(c.r).legacy, Kind::copy, "cudaMemcpy", devices_of(copy), work, &op);
    /* Between two places of one device the real one does not wait either. */
    bool on_device = copy.to_place.device && copy.from_place.device;
    return remember(error == cudaSuccess && !on_device ? wait_for(c.r, c.lock, op) : error);
}

static cudaError_t queue_memset(Call &c, Stream &s, void *p, int value, size_t count, const char *name) {
    const Allocation *a;
    std::string why;
    if (!inside_allocation(c.r, p, count, &a, &why)) {
        return fail(c.r, cudaErrorInvalidValue, "%s: %s", name, why.c_str());
    }
    cudaError_t asynchronous = cudaSuccess, error = cudaSuccess;
    if (!s.capture) {
        error = inject(c.r, c.lock, EMU_CALL_COPY, &asynchronous);
    }
    if (error != cudaSuccess) {
        return error;
    }
    uint32_t touches = a->host ? 0 : 1u << a->device;
    return enqueue(c.r, c.lock, s, Kind::memset, name, touches, [p, value, count, asynchronous](int) {
        Runtime &r = runtime();
        {
            Lock lock(r.mutex);
            const Allocation *at;
            std::string gone;
            if (asynchronous != cudaSuccess || !inside_allocation(r, p, count, &at, &gone)) {
                return asynchronous != cudaSuccess
                           ? asynchronous
                           : note(r, cudaErrorIllegalAddress, "a memset when it is done: %s", gone.c_str());
            }
            r.counts.memsets++;
        }
        memset(p, value, count);
        return cudaSuccess;
    });
}

cudaError_t cudaMemsetAsync(void *devPtr, int value, size_t count, cudaStream_t stream) {
    Call c;
    if (c.error != cudaSuccess) {
        return c.error;
    }
    Stream *s = find_stream(c.r, stream);
    if (!s) {
        return fail(c.r, cudaErrorInvalidResourceHandle, "cudaMemsetAsync: no such stream");
    }
    return count == 0 ? cudaSuccess : remember(queue_memset(c, *s, devPtr, value, count, "cudaMemsetAsync"));
}

/* On the default stream; does not wait for it, as the real one on device memory. */
cudaError_t cudaMemset(void *devPtr, int value, size_t count) {
    Call c;
    cudaError_t error = c.error;
    if (error == cudaSuccess) {
        error = refuse_legacy(c.r, current_device(), "cudaMemset");
    }
    if (error == cudaSuccess) {
        error = refuse_while_capturing(c.r, "cudaMemset");
    }
    if (error != cudaSuccess || count == 0) {
        return error;
    }
    return remember(queue_memset(c, here(c.r).legacy, devPtr, value, count, "cudaMemset"));
}
}
