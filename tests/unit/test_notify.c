/* What arrives at the service manager's socket, as sd_notify(3) describes it. */
#include "notify.h"

#include <criterion/criterion.h>
#include <inferd/clock.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int manager = -1;
static char socket_path[64], received[1024];

static void listen_at(const char *name) { /* '@...' is abstract */
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    size_t n = strlen(name);
    memcpy(a.sun_path, name, n);
    if (name[0] == '@') {
        a.sun_path[0] = 0;
    }
    manager = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    cr_assert_eq(bind(manager, (struct sockaddr *)&a, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)), 0);
    setenv("NOTIFY_SOCKET", name, 1);
}

static void by_path(void) {
    snprintf(socket_path, sizeof socket_path, "notify.%d", (int)getpid());
    char folder[4000], whole[4100];
    cr_assert(getcwd(folder, sizeof folder));
    snprintf(whole, sizeof whole, "%s/%s", folder, socket_path);
    if (strlen(whole) > 100) { /* a socket's path has 108 bytes */
        snprintf(whole, sizeof whole, "/tmp/%s", socket_path);
    }
    snprintf(socket_path, sizeof socket_path, "%.63s", whole);
    cr_assert_str_eq(socket_path, whole, "the build folder's path is too long for this test");
    listen_at(socket_path);
}

static void done(void) {
    close(manager);
    if (socket_path[0]) {
        unlink(socket_path);
    }
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
}

static const char *next(void) {
    ssize_t n = recv(manager, received, sizeof received - 1, 0);
    received[n > 0 ? n : 0] = 0;
    return n >= 0 ? received : NULL;
}

Test(notify, tells_by_path, .init = by_path, .fini = done) {
    cr_expect(notify_wanted());
    notify_ready();
    cr_expect_str_eq(next(), "READY=1\n");
    notify_stopping();
    cr_expect_str_eq(next(), "STOPPING=1\n");
    notify_watchdog();
    cr_expect_str_eq(next(), "WATCHDOG=1\n");
    notify_extend_timeout(30000);
    cr_expect_str_eq(next(), "EXTEND_TIMEOUT_USEC=30000000\n");
    cr_expect_null(next());
}

Test(notify, tells_an_abstract_socket, .fini = done) {
    char name[64];
    snprintf(name, sizeof name, "@inferd-notify-%d", (int)getpid());
    listen_at(name);
    notify_ready();
    cr_expect_str_eq(next(), "READY=1\n");
}

Test(notify, status_is_one_line, .init = by_path, .fini = done) {
    notify_status("loading %s: %d %%", "a\nREADY=1\x1b[31m", 40);
    cr_expect_str_eq(next(), "STATUS=loading a READY=1 [31m: 40 %");
    char longer[2000];
    memset(longer, 'x', sizeof longer);
    longer[sizeof longer - 1] = 0;
    notify_status("%s", longer);
    cr_expect_eq(strlen(next()), 511); /* cut, not lost */
}

Test(notify, reloading_has_the_time, .init = by_path, .fini = done) {
    unsigned long long before = clock_now_ns() / 1000, at = 0;
    notify_reloading();
    cr_expect_eq(sscanf(next(), "RELOADING=1\nMONOTONIC_USEC=%llu\n", &at), 1);
    cr_expect(at >= before && at <= clock_now_ns() / 1000);
}

Test(notify, nobody_to_tell, .fini = done) {
    static const char *const useless[] = {"", "@", "relative", "/nowhere/at/all", "vsock:2:1234"};
    unsetenv("NOTIFY_SOCKET");
    cr_expect_not(notify_wanted());
    notify_ready();
    for (size_t i = 0; i < sizeof useless / sizeof useless[0]; i++) {
        setenv("NOTIFY_SOCKET", useless[i], 1);
        cr_expect_eq(notify_wanted(), useless[i][0] == '/');
        notify_ready(); /* and nothing happens */
    }
    char longer[400];
    memset(longer, 'x', sizeof longer);
    longer[0] = '/';
    longer[sizeof longer - 1] = 0;
    setenv("NOTIFY_SOCKET", longer, 1);
    cr_expect_not(notify_wanted());
}

Test(notify, watchdog_is_for_this_process, .fini = done) {
    char pid[32];
    cr_expect_eq(notify_watchdog_ms(), 0);
    setenv("WATCHDOG_USEC", "30000000", 1);
    cr_expect_eq(notify_watchdog_ms(), 30000);
    setenv("WATCHDOG_PID", "1", 1);
    cr_expect_eq(notify_watchdog_ms(), 0);
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    setenv("WATCHDOG_PID", pid, 1);
    cr_expect_eq(notify_watchdog_ms(), 30000);
    static const char *const useless[] = {"", "-1", "30000000x", "99999999999999999999", "0"};
    for (size_t i = 0; i < sizeof useless / sizeof useless[0]; i++) {
        setenv("WATCHDOG_USEC", useless[i], 1);
        cr_expect_eq(notify_watchdog_ms(), 0, "%s", useless[i]);
    }
}
