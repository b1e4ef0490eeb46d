#include "race.h"

enum { WARP = 32, SEVERAL_WARPS = 0xff };

static bool is_of_other_block(uint32_t phase, const struct emu_moment *now) {
    return phase >= now->grid && phase < now->block;
}

/* Whether the barriers between order what `thread` did then before now. */
static bool is_before(uint32_t phase, uint32_t sync, unsigned thread, const struct emu_moment *now) {
    if (phase != now->phase) {
        return !is_of_other_block(phase, now);
    }
    return thread == now->thread || (thread / WARP == now->thread / WARP && sync != now->sync);
}

/* Whether all reads of the byte come before now; else one of those that do not. */
static bool reads_are_before(const struct emu_byte *b, const struct emu_moment *now, struct emu_race *race) {
    race->other = b->reader;
    race->other_block = true;
    if (b->read_phase >= now->grid && b->read_by_blocks) {
        race->other = EMU_SEVERAL_THREADS;
        return false;
    }
    if (b->read_phase != now->phase) {
        return !is_of_other_block(b->read_phase, now);
    }
    race->other_block = false;
    if (b->read_warp == SEVERAL_WARPS || b->read_warp != now->thread / WARP) {
        return false;
    }
    return b->read_sync != now->sync || b->reader == now->thread;
}

static void note_read(struct emu_byte *b, const struct emu_moment *now) {
    uint8_t warp = (uint8_t)(now->thread / WARP);
    b->read_by_blocks = b->read_phase >= now->grid && (b->read_by_blocks || is_of_other_block(b->read_phase, now));
    if (b->read_phase != now->phase) {
        b->read_warp = warp;
        b->reader = now->thread;
    } else if (b->read_warp != warp) {
        b->read_warp = SEVERAL_WARPS;
    } else if (b->read_sync != now->sync) {
        b->reader = now->thread;
    } else if (b->reader != now->thread) {
        b->reader = EMU_SEVERAL_THREADS;
    }
    b->read_phase = now->phase;
    b->read_sync = now->sync;
}

bool emu_race_access(struct emu_byte *bytes, size_t size, const struct emu_moment *now, enum emu_access access,
                     struct emu_race *race) {
    for (size_t i = 0; i < size; i++) {
        struct emu_byte *b = &bytes[i];
        bool reads = access == EMU_READ || access == EMU_READ_CONSTANT;
        if (access == EMU_READ_CONSTANT && b->write_phase >= now->grid) {
            *race = {"is read as constant though it was written by", b->writer, is_of_other_block(b->write_phase, now)};
            return true;
        }
        if (!(access == EMU_ATOMIC_ACCESS && b->atomic) && !is_before(b->write_phase, b->write_sync, b->writer, now)) {
            *race = {reads ? "is read after it was written by" : "is written after it was written by", b->writer,
                     is_of_other_block(b->write_phase, now)};
            return true;
        }
        if (reads) {
            note_read(b, now);
            continue;
        }
        if (!reads_are_before(b, now, race)) {
            race->kind = "is written after it was read by";
            return true;
        }
        b->write_phase = now->phase;
        b->write_sync = now->sync;
        b->writer = now->thread;
        b->atomic = access == EMU_ATOMIC_ACCESS;
    }
    return false;
}

struct emu_byte *emu_memory_log::at(uintptr_t address, size_t *size) {
    uintptr_t number = address / PAGE, offset = address % PAGE;
    if (*size > PAGE - offset) {
        *size = PAGE - offset;
    }
    if (number != last) {
        if (pages.size() >= MAX_PAGES) {
            pages.clear();
        }
        std::unique_ptr<page> &found = pages[number];
        if (found == nullptr) {
            found.reset(new page());
        }
        last = number;
        last_page = found.get();
    }
    return &last_page->bytes[offset];
}
