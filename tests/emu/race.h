/*
 * Races, found by what orders accesses and not by what order they happened to come in: of two accesses to a byte by
 * different threads, one of them a write, the first must lie before a block_sync that the second lies behind, or,
 * within a warp, before such a warp_sync. Shuffles order nothing, as on a GPU, and nothing orders the blocks of a grid.
 * Atomic operations do not race with one another.
 */
#ifndef EMU_RACE_H
#define EMU_RACE_H

#include <memory>
#include <stddef.h>
#include <stdint.h>
#include <unordered_map>

/*
 * When. Phases lie between barriers; they are counted on over all blocks and grids, one block after another. Phases
 * before `grid` are long past; those from there to before `block` are of blocks that run at the same time; in the
 * block's own, only the present one is not ordered by a barrier. For shared memory, grid = block.
 */
struct emu_moment {
    uint32_t grid, block, phase;
    uint32_t sync; /* warp_syncs of the thread's warp */
    uint16_t thread;
};

enum emu_access {
    EMU_READ,
    EMU_WRITE,
    EMU_ATOMIC_ACCESS,
    EMU_READ_CONSTANT, /* through the cache that sees no writes of the grid */
};

/* What is known of a byte: its last write, and the readers of the last phase in which it was read: one thread, threads
 * of one warp, or of several; and whether several blocks of a grid have read it. */
struct emu_byte {
    uint32_t write_phase, write_sync, read_phase, read_sync;
    uint16_t writer, reader;
    uint8_t read_warp;
    bool atomic, read_by_blocks;
};

struct emu_race {
    const char *kind; /* what the later access does, and what the earlier one did */
    unsigned other;   /* thread of the earlier one, or EMU_SEVERAL_THREADS */
    bool other_block;
};
enum { EMU_SEVERAL_THREADS = 0xffff };

/* Note an access; true if it races with an earlier one, which `race` then tells. */
bool emu_race_access(struct emu_byte *bytes, size_t size, const struct emu_moment *now, enum emu_access access,
                     struct emu_race *race);

/* What is known of all of memory, by need. */
class emu_memory_log {
  public:
    /* The bytes from an address on, as far as `*size` says, which gets less where a page ends. */
    struct emu_byte *at(uintptr_t address, size_t *size);

  private:
    enum { PAGE = 4096, MAX_PAGES = 4096 }; /* of knowledge: 400 MB; then it is forgotten */
    struct page {
        struct emu_byte bytes[PAGE];
    };
    std::unordered_map<uintptr_t, std::unique_ptr<page>> pages;
    uintptr_t last = 1;
    page *last_page = nullptr;
};

#endif
