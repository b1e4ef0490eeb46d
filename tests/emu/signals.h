/* Illegal addresses inside of kernels become hard errors of the kernel, as on a GPU. */
#ifndef EMU_SIGNALS_H
#define EMU_SIGNALS_H

/* Once a process; what handlers there were go on to get everything that is not a kernel's. */
void emu_signals_arm(void);
/* A stack for handlers, if the calling thread has none: a kernel may have run out of its own. Freed with `memory`. */
void *emu_signals_stack(void);
void emu_signals_free_stack(void *memory);

/* machine.cc: the calling thread's kernel ends here, if it runs one; else returns. Address NULL: not known. */
void emu_machine_signalled(int number, const void *address);

#endif
