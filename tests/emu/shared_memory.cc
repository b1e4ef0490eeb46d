/*
 * The block's shared memory: where it lies, what lies around it, the pattern that fills it, asynchronous copies into
 * it, and accesses to it where they are checked one by one.
 */
#include "machine_state.h"

#include <dlfcn.h>
#include <new>
#include <stdio.h>
#include <string.h>

#if EMU_ASAN
#include <sanitizer/asan_interface.h>
#define asan_poison(p, size) __asan_poison_memory_region(p, size)
#define asan_unpoison(p, size) __asan_unpoison_memory_region(p, size)
#else
#define asan_poison(p, size) ((void)(p), (void)(size))
#define asan_unpoison(p, size) ((void)(p), (void)(size))
#endif

namespace emu {

static const uint64_t POISON = 0x7fff7fff7fff7fffULL; /* NaN as F16, BF16 and F32; a large number as an integer */
static const unsigned char RED_ZONE_BYTE = 0xa5;
static std::atomic<bool> check_accesses{false};

static void fill_pattern(unsigned char *p, size_t bytes) {
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        memcpy(p + i, &POISON, 8);
    }
    memcpy(p + bytes / 8 * 8, &POISON, bytes % 8);
}

void place_shared(machine &m, size_t bytes) {
    if (check_accesses && m.bytes == nullptr) {
        m.bytes.reset(new (std::nothrow) emu_byte[SHARED_AREA]());
        m.memory_log.reset(new (std::nothrow) emu_memory_log);
    }
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
static size_t first_written(const unsigned char *p, size_t size) {
    size_t i = 0;
    while (i < size && p[i] == RED_ZONE_BYTE) {
        i++;
    }
    return i;
}

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

void end_shared(machine &m) {
    asan_unpoison(m.area, SHARED_AREA);
    if (poison_shared) {
        fill_pattern(m.shared, m.shared_bytes);
    }
}

/* ---- checked accesses ---- */

/* " (FILE+0xOFFSET)" for addr2line, of the code that made an access. */
static const char *name_code(const void *code, char *text, size_t size) {
    Dl_info info;
    *text = '\0';
    if (code != nullptr && dladdr(code, &info) != 0 && info.dli_fname != nullptr) {
        const char *name = strrchr(info.dli_fname, '/');
        snprintf(text, size, " (%.80s+%#zx)", name != nullptr ? name + 1 : info.dli_fname,
                 (size_t)((const char *)code - (const char *)info.dli_fbase));
    }
    return text;
}

/* An access of the current thread that is not ordered behind earlier ones ends the grid. By code or by an operation. */
static void note_bytes(machine &m, struct emu_byte *bytes, const void *p, size_t size, bool shared,
                       enum emu_access access, const char *operation, const void *code) {
    const gpu_thread &t = *m.current;
    const struct emu_moment now = {shared ? m.block_phase : m.grid_phase, m.block_phase, m.phase, t.warp->syncs,
                                   (uint16_t)(&t - m.threads)};
    struct emu_race race;
    if (!emu_race_access(bytes, size, &now, access, &race)) {
        return;
    }
    char where[128], what[64], who[64];
    if (shared) {
        snprintf(what, sizeof what, "shared memory at offset %td", static_cast<const unsigned char *>(p) - m.shared);
    } else {
        snprintf(what, sizeof what, "memory at %p", p);
    }
    if (race.other < m.n_threads) {
        const uint3 other = m.threads[race.other].index;
        snprintf(who, sizeof who, "thread (%u, %u, %u)%s", other.x, other.y, other.z,
                 race.other_block ? " of another block" : "");
    } else {
        snprintf(who, sizeof who, "several threads");
    }
    fault(m, cudaErrorLaunchFailure, "a race: %s, %zu bytes, %s %s%s%s%s", what, size, race.kind, who,
          race.other_block ? "" : ", and no barrier lies between", operation, name_code(code, where, sizeof where));
}

static void note_access(machine &m, const void *p, size_t size, enum emu_access access, const char *operation,
                        const void *code) {
    if (m.bytes != nullptr) {
        struct emu_byte *bytes = &m.bytes[(size_t)(static_cast<const unsigned char *>(p) - m.area)];
        note_bytes(m, bytes, p, size, true, access, operation, code);
    }
}

/* Global memory, page by page. */
static void note_global(machine &m, const void *p, size_t size, enum emu_access access, const char *operation,
                        const void *code) {
    const unsigned char *at = static_cast<const unsigned char *>(p);
    while (m.memory_log != nullptr && size > 0) {
        size_t part = size;
        struct emu_byte *bytes = m.memory_log->at((uintptr_t)at, &part);
        note_bytes(m, bytes, at, part, false, access, operation, code);
        at += part;
        size -= part;
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

} // namespace emu

using namespace emu;

/* ---- asynchronous copies ---- */

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
                note_global(*here, copy.from, 16, EMU_READ, " (async_copy_16)", nullptr);
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

/* ---- the structure ---- */

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

/* ---- accesses of code that is compiled for it ---- */

void emu_check_accesses(void) {
    check_accesses = true;
}

void emu_constant_load(const void *p, size_t size) {
    if (here != nullptr && here->running != nullptr) {
        note_global(*here, p, size, EMU_READ_CONSTANT, " (load_16, __ldg)", __builtin_return_address(0));
    }
}

void emu_checked_access(const void *p, size_t size, enum emu_access access, const void *code) {
    if (here == nullptr || here->running == nullptr) {
        return;
    }
    machine &m = *here;
    const unsigned char *at = static_cast<const unsigned char *>(p), *stack = m.running->stack;
    if (at >= stack && at < stack + m.running->stack_size) {
        return;
    }
    m.n_checked++;
    if (at < m.area || at >= m.area + SHARED_AREA) {
        note_global(m, p, size, access, "", code);
        return;
    }
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
