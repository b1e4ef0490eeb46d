/*
 * Races in shared memory, found by what orders accesses and not by what order they happened to come in: of two accesses
 * to a byte by different threads, one of them a write, the first must lie before a block_sync that the second lies
 * behind, or, within a warp, before such a warp_sync. Shuffles order nothing, as on a GPU. Atomic operations do not
 * race with one another.
 */
#ifndef EMU_RACE_H
#define EMU_RACE_H

#include <stddef.h>
#include <stdint.h>

/* When: the number of barriers of the block passed so far (rising over all blocks), that of the warp's warp_syncs. */
struct emu_moment {
    uint32_t phase, sync;
    uint16_t thread;
};

enum emu_access { EMU_READ, EMU_WRITE, EMU_ATOMIC_ACCESS };

/* What is known of a byte. Readers of the last phase in which it was read: one thread, threads of one warp, or of
 * several. */
struct emu_byte {
    uint32_t write_phase, write_sync, read_phase, read_sync;
    uint16_t writer, reader;
    uint8_t read_warp;
    bool atomic;
};

struct emu_race {
    const char *kind; /* "written by thread %u after it was read by thread %u", the later one first */
    unsigned other;
};

/* Note an access; true if it races with an earlier one, which `race` then tells. */
bool emu_race_access(struct emu_byte *bytes, size_t size, struct emu_moment now, enum emu_access access,
                     struct emu_race *race);

#endif
