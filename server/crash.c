#include "crash.h"

#include "request.h"
#include "server_state.h"
#include "version.h"

#include <elf.h>
#include <errno.h>
#include <execinfo.h>
#include <inferd/log.h>
#include <link.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define SANITIZED
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED
#endif

#define MAX_FRAMES 64
#define MAX_MODULES 128
#define MAX_NAMED 64      /* requests */
#define MAX_WALKED 100000 /* that are looked at: the list may be broken */
#define STACK_BYTES ((size_t)64 << 10)
#define PATIENCE_S 10     /* for the whole report */
#define LINE_MS 1000      /* for a line of it, if nobody reads */

/* ---- what is known before ------------------------------------------------------------------------------------ */

static struct module {
    uintptr_t base, begin, end; /* base: what addresses in the file are added to */
    char name[48];              /* without folders */
} modules[MAX_MODULES];
static _Atomic size_t n_modules;
static char build_id[2 * 64 + 1];
static const struct server *_Atomic watched;
#ifndef SANITIZED
static char line_begin[32], line_end[8];
#endif

static void take_build_id(const char *note, size_t len) {
    while (len >= sizeof(ElfW(Nhdr))) {
        const ElfW(Nhdr) *n = (const void *)note;
        size_t name = (n->n_namesz + 3u) & ~(size_t)3, desc = (n->n_descsz + 3u) & ~(size_t)3, all = sizeof *n + name + desc;
        if (all > len) {
            return;
        }
        if (n->n_type == NT_GNU_BUILD_ID && n->n_namesz == 4 && n->n_descsz <= 64) {
            for (size_t i = 0; i < n->n_descsz; i++) {
                snprintf(build_id + 2 * i, 3, "%02x", (unsigned char)note[sizeof *n + name + i]);
            }
            return;
        }
        note += all;
        len -= all;
    }
}

static int add_module(struct dl_phdr_info *info, size_t size, void *count) {
    size_t *n = count;
    (void)size;
    if (*n == MAX_MODULES) {
        return 1;
    }
    struct module *m = &modules[*n];
    const char *slash = strrchr(info->dlpi_name, '/'), *name = slash ? slash + 1 : info->dlpi_name;
    *m = (struct module){.base = info->dlpi_addr, .begin = UINTPTR_MAX};
    snprintf(m->name, sizeof m->name, "%s", *n == 0 ? "inferd" : name);
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        uintptr_t at = info->dlpi_addr + p->p_vaddr;
        if (p->p_type == PT_LOAD) {
            m->begin = at < m->begin ? at : m->begin;
            m->end = at + p->p_memsz > m->end ? at + p->p_memsz : m->end;
        } else if (p->p_type == PT_NOTE && *n == 0 && !build_id[0]) {
            take_build_id((const char *)at, p->p_memsz);
        }
    }
    ++*n;
    return 0;
}

void crash_note_modules(void) {
    size_t n = 0;
    dl_iterate_phdr(add_module, &n);
    atomic_store(&n_modules, n);
}

const char *crash_build_id(void) {
    if (!build_id[0]) {
        crash_note_modules();
    }
    return build_id;
}

void crash_watch(const struct server *s) {
    atomic_store(&watched, s);
}

#ifdef SANITIZED

void crash_install(void) {
    crash_note_modules();
}

#else

/* ---- lines, without stdio ------------------------------------------------------------------------------------- */

struct line {
    char bytes[512];
    size_t len;
};

static void add(struct line *l, const char *s) {
    while (*s && l->len < sizeof l->bytes - sizeof line_end - 1) {
        l->bytes[l->len++] = *s++;
    }
}

static void add_number(struct line *l, uint64_t v, unsigned base) {
    char digits[24];
    size_t at = sizeof digits - 1;
    digits[at] = '\0';
    do {
        digits[--at] = "0123456789abcdef"[v % base];
        v /= base;
    } while (v);
    add(l, base == 16 ? "0x" : "");
    add(l, digits + at);
}

static void begin(struct line *l) {
    l->len = 0;
    add(l, line_begin);
}

static void end(struct line *l) {
    struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
    for (const char *s = line_end; *s; s++) {
        l->bytes[l->len++] = *s;
    }
    l->bytes[l->len++] = '\n';
    static int patience_ms = LINE_MS;
    if (poll(&p, 1, patience_ms) != 1) {
        patience_ms = 0; /* nobody reads: once is enough */
    } else {
        ssize_t n = write(STDERR_FILENO, l->bytes, l->len);
        (void)n;
    }
}

/* Memory that may not be there, or change meanwhile. */
static bool peek(const void *from, void *to, size_t len) {
    struct iovec local = {to, len}, remote = {(void *)(uintptr_t)from, len};
    return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == (ssize_t)len;
}

/* ---- the report ------------------------------------------------------------------------------------------------ */

static const struct {
    int number;
    const char *name;
} fatal[] = {{SIGSEGV, "SIGSEGV"}, {SIGBUS, "SIGBUS"}, {SIGFPE, "SIGFPE"}, {SIGILL, "SIGILL"}, {SIGABRT, "SIGABRT"}};
#define N_FATAL (sizeof fatal / sizeof fatal[0])

struct registers {
    uintptr_t pc, sp, fp;
};

static struct registers registers_of(const void *context) {
    const ucontext_t *c = context;
#if defined(__x86_64__)
    const greg_t *r = c->uc_mcontext.gregs;
    return (struct registers){(uintptr_t)r[REG_RIP], (uintptr_t)r[REG_RSP], (uintptr_t)r[REG_RBP]};
#elif defined(__aarch64__)
    return (struct registers){c->uc_mcontext.pc, c->uc_mcontext.sp, c->uc_mcontext.regs[29]};
#else
    (void)c;
    return (struct registers){0};
#endif
}

static void tell_what(int number, const siginfo_t *info) {
    struct line l;
    char thread[16] = "";
    prctl(PR_GET_NAME, thread);
    begin(&l);
    add(&l, "version ");
    add(&l, version_number());
    add(&l, ", build id ");
    add(&l, build_id[0] ? build_id : "unknown");
    add(&l, ", signal ");
    add_number(&l, (uint64_t)number, 10);
    for (size_t i = 0; i < N_FATAL; i++) {
        if (fatal[i].number == number) {
            add(&l, " (");
            add(&l, fatal[i].name);
            add(&l, ")");
        }
    }
    if (info->si_code > 0) {
        add(&l, " at address ");
        add_number(&l, (uint64_t)(uintptr_t)info->si_addr, 16);
    } else {
        add(&l, " sent by process ");
        add_number(&l, (uint64_t)info->si_pid, 10);
    }
    add(&l, ", thread ");
    for (char *p = thread; *p; p++) { /* whoever named it */
        *p = *p >= '!' && *p <= '~' && *p != '"' && *p != '\\' ? *p : '_';
    }
    add(&l, thread);
    end(&l);
}

static const struct module *module_of(uintptr_t at) {
    for (size_t i = 0; i < atomic_load(&n_modules); i++) {
        if (at >= modules[i].begin && at < modules[i].end) {
            return &modules[i];
        }
    }
    return NULL;
}

static void tell_frame(size_t number, uintptr_t at) {
    struct line l;
    begin(&l);
    add(&l, "#");
    add_number(&l, number, 10);
    add(&l, " ");
    const struct module *m = module_of(at);
    if (m) {
        add(&l, m->name);
        add(&l, "+");
        add_number(&l, at - m->base, 16);
        add(&l, " ");
    }
    add_number(&l, at, 16);
    end(&l);
}

/* By the frame pointers that all of ours has: when a jump went nowhere, so that there is nothing to unwind from. */
static void tell_frames_by_pointer(const struct registers *r) {
    uintptr_t frame[2], fp = r->fp;
    size_t n = 0;
    tell_frame(n++, r->pc);
#if defined(__x86_64__)
    if (peek((const void *)r->sp, frame, sizeof frame[0])) { /* whence it jumped */
        tell_frame(n++, frame[0]);
    }
#endif
    while (n < MAX_FRAMES && peek((const void *)fp, frame, sizeof frame) && frame[1]) {
        tell_frame(n++, frame[1]);
        if (frame[0] <= fp) {
            return;
        }
        fp = frame[0];
    }
}

/*
 * backtrace() is safe here after its first call, at the start, has loaded the unwinder: it then asks for no memory, and
 * finds modules without the loader's lock (glibc 2.35). If it hangs all the same, SIGALRM ends the process.
 */
static void tell_stack(const struct registers *r) {
    void *frames[MAX_FRAMES];
    if (!module_of(r->pc)) { /* the unwinder would look at what is there */
        tell_frames_by_pointer(r);
        return;
    }
    int n = backtrace(frames, MAX_FRAMES), first = 0;
    while (first < n && (uintptr_t)frames[first] != r->pc) { /* those of the handler */
        first++;
    }
    if (first == n) {
        tell_frames_by_pointer(r);
    }
    for (int i = first; i < n; i++) {
        tell_frame((size_t)(i - first), (uintptr_t)frames[i]);
    }
}

/* The loop thread goes on meanwhile: what it changes just then is left out. */
static void tell_requests(void) {
    const struct server *s = atomic_load(&watched);
    struct list node;
    struct line l;
    size_t named = 0, others = 0;
    if (!s || !peek(&s->requests, &node, sizeof node)) {
        return;
    }
    for (size_t i = 0; i < MAX_WALKED && node.next != &s->requests; i++) {
        const struct request *r = LIST_ENTRY(node.next, struct request, node);
        char id[sizeof r->id];
        if (!peek(&r->node, &node, sizeof node) || !peek(r->id, id, sizeof id)) {
            break;
        }
        size_t len = strspn(id, "abcdefghijklmnopqrstuvwxyz0123456789-");
        if (len == 0 || len >= sizeof id || id[len] || named == MAX_NAMED) {
            others++;
            continue;
        }
        named++;
        begin(&l);
        add(&l, "request ");
        add(&l, id);
        end(&l);
    }
    begin(&l);
    add(&l, "requests: ");
    add_number(&l, named + others, 10);
    end(&l);
}

/* ---- the handlers ---------------------------------------------------------------------------------------------- */

static _Atomic int reporter;      /* the thread that reports; 0: none yet */
static _Atomic int fatal_signal; /* its */

static void die_of(int number) {
    signal(number, SIG_DFL);
    kill(getpid(), number);
}

static void on_late(int number) {
    (void)number;
    die_of(atomic_load(&fatal_signal));
}

static void on_fatal(int number, siginfo_t *info, void *context) {
    int self = (int)syscall(SYS_gettid), none = 0, before = errno;
    if (atomic_compare_exchange_strong(&reporter, &none, self)) {
        const struct registers r = registers_of(context);
        atomic_store(&fatal_signal, number);
        signal(SIGALRM, on_late);
        alarm(PATIENCE_S);
        tell_what(number, info);
        tell_requests();
        tell_stack(&r);
    } else if (none != self) { /* another thread came first, and is about to end all of us */
        poll(NULL, 0, PATIENCE_S * 1000);
    }
    signal(number, SIG_DFL);
    if (info->si_code <= 0) { /* it was sent, and would not come again by itself */
        syscall(SYS_tgkill, getpid(), self, number);
    }
    errno = before;
}

/* The engine's thread sees to its own (base/signal_stack.h); this is the caller's. */
static void use_own_stack(void) {
    static char stack[STACK_BYTES] __attribute__((aligned(64)));
    const stack_t s = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&s, NULL);
}

void crash_install(void) {
    struct sigaction a = {.sa_sigaction = on_fatal, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    void *frame;
    bool json = log_get_format() == LOG_FORMAT_JSON;
    snprintf(line_begin, sizeof line_begin, "%s",
             json ? "{\"level\":\"crash\",\"message\":\"" : log_stderr_is_journal() ? "<2>crash: " : "inferd: crash: ");
    snprintf(line_end, sizeof line_end, "%s", json ? "\"}" : "");
    crash_note_modules();
    backtrace(&frame, 1);
    use_own_stack();
    sigfillset(&a.sa_mask);
    sigdelset(&a.sa_mask, SIGALRM);
    for (size_t i = 0; i < N_FATAL; i++) {
        sigaction(fatal[i].number, &a, NULL);
    }
}

#endif
