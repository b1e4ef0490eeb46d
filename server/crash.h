/*
 * The last words of a process that a fault ends (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT), on standard error: version
 * and build id, signal and address, the stack as offsets in the modules, the ids of the requests that lived. Nothing of
 * what was asked or answered. Then the signal's own action: a core dump where they are kept, and the exit status that
 * whoever watches the process expects. Any thread; nothing is done but what a handler may do.
 *
 *     addr2line -e build/inferd -fip 0x1234     for each "inferd+0x1234", of the build with the same id
 */
#ifndef INFERD_CRASH_H
#define INFERD_CRASH_H

struct server;

/* From now on. In builds with a sanitizer nothing: it has its own report. */
void crash_install(void);
/* Modules may have been loaded: the engine's. */
void crash_note_modules(void);
/* Whose requests are meant; NULL: nobody's any more. */
void crash_watch(const struct server *s);
/* The linker's id of this program in hex; "" if it has none. */
const char *crash_build_id(void);

#endif
