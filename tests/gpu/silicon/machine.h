/* As emu.h beside it: a GPU tells of a fault by its error alone. */
#ifndef EMU_MACHINE_H
#define EMU_MACHINE_H

static inline const char *emu_last_fault(void) {
    return "";
}

#endif
