#include "race.h"

enum { WARP = 32, SEVERAL_THREADS = 0xffff, SEVERAL_WARPS = 0xff };

/* Whether the barriers between order what `thread` did then before now. */
static bool before(uint32_t phase, uint32_t sync, unsigned thread, struct emu_moment now) {
    return phase != now.phase || thread == now.thread || (thread / WARP == now.thread / WARP && sync != now.sync);
}

/* Whether all reads of the byte come before now; else one of the threads that read it. */
static bool reads_before(const struct emu_byte *b, struct emu_moment now, unsigned *other) {
    if (b->read_phase != now.phase) {
        return true;
    }
    *other = b->reader;
    if (b->read_warp == SEVERAL_WARPS || b->read_warp != now.thread / WARP) {
        return false;
    }
    return b->read_sync != now.sync || b->reader == now.thread;
}

static void note_read(struct emu_byte *b, struct emu_moment now) {
    uint8_t warp = (uint8_t)(now.thread / WARP);
    if (b->read_phase != now.phase) {
        b->read_warp = warp;
        b->reader = now.thread;
    } else if (b->read_warp != warp) {
        b->read_warp = SEVERAL_WARPS;
    } else if (b->read_sync != now.sync) {
        b->reader = now.thread;
    } else if (b->reader != now.thread) {
        b->reader = SEVERAL_THREADS;
    }
    b->read_phase = now.phase;
    b->read_sync = now.sync;
}

bool emu_race_access(struct emu_byte *bytes, size_t size, struct emu_moment now, enum emu_access access,
                     struct emu_race *race) {
    for (size_t i = 0; i < size; i++) {
        struct emu_byte *b = &bytes[i];
        unsigned other = 0;
        bool both_atomic = access == EMU_ATOMIC_ACCESS && b->atomic;
        if (!both_atomic && !before(b->write_phase, b->write_sync, b->writer, now)) {
            *race = {access == EMU_READ ? "is read after it was written by" : "is written after it was written by",
                     b->writer};
            return true;
        }
        if (access == EMU_READ) {
            note_read(b, now);
            continue;
        }
        if (!reads_before(b, now, &other)) {
            *race = {"is written after it was read by", other};
            return true;
        }
        b->write_phase = now.phase;
        b->write_sync = now.sync;
        b->writer = now.thread;
        b->atomic = access == EMU_ATOMIC_ACCESS;
    }
    return false;
}
