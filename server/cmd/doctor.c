/* `inferd doctor`: what is wrong with this machine, and what to do about it. */
#include "cmd/cmd.h"
#include "doctor.h"
#include "gpu_library.h"
#include "http.h"

#include <stdio.h>
#include <sys/resource.h>
#include <sys/timex.h>

#define GPU_SECONDS 30
#define DESCRIPTORS_BESIDES 64 /* connections apart: files, pipes, the loop */

struct doctor_options {
    bool json;
};

static const struct setting rows[] = {
    {"json", SETTING_BOOL, offsetof(struct doctor_options, json), .initial = "false", .group = "Options",
     .help = "print JSON"},
};

static int clock_is_kept(void) {
    struct timex t = {0};
    int state = adjtimex(&t);
    return state < 0 ? -1 : state != TIME_ERROR && !(t.status & STA_UNSYNC);
}

static void examine(struct doctor *d, const struct config *c) {
    struct rlimit nofile = {0}, memlock = {0};
    getrlimit(RLIMIT_NOFILE, &nofile);
    getrlimit(RLIMIT_MEMLOCK, &memlock);
    doctor_check_settings(d, c);
    bool gpu = doctor_gpu_wish(c) == DOCTOR_GPU_WANTED;
    size_t bytes = doctor_check_model(d, c);
    bytes = gpu ? 0 : bytes; /* that are to lie in this machine's memory */
    doctor_check_addresses(d, c);
    doctor_check_cpu(d, c);
    doctor_check_memory(d, bytes);
    doctor_check_cgroup(d, bytes);
    doctor_check_huge_pages(d);
    doctor_check_shm(d);
    doctor_check_limits(d, c->max_connections + DESCRIPTORS_BESIDES, nofile.rlim_max, memlock.rlim_cur, gpu);
    doctor_check_clock(d, time(NULL), clock_is_kept());
    doctor_check_libmicrohttpd(d, http_library_version());
    doctor_check_gpu(d, c, GPU_LIBRARY, GPU_SECONDS);
}

int cmd_doctor(int argc, char **argv) {
    struct doctor_options o;
    const struct command_line line = {
        .help = {.usage = "inferd doctor [MODEL] [options]",
                 .about =
                     "Look for what would keep a server from running well on this machine: with the settings that `inferd serve`\n"
                     "would have, as the user who would run it. A line for each thing, and below a fault what to do about it.\n"
                     "Nothing is changed. Exit code 0: no fault; 1: at least one.",
                 .examples = "  inferd doctor --model model.gguf\n"
                             "  sudo -u inferd inferd doctor --config /etc/inferd/inferd.conf\n"
                             "  inferd doctor --device cuda --json\n"},
        .own = {rows, sizeof rows / sizeof rows[0]},
        .own_values = &o,
        .max_operands = 1,
        .model_operand = true,
    };
    struct command_state state;
    int code;
    if (!cmd_begin(&line, argc, argv, &state, &code)) {
        return code != 0; /* 0 or 1 alone */
    }
    static struct doctor d = {.root = ""};
    struct buf text = BUF_INIT;
    examine(&d, &state.config);
    doctor_print(&d, o.json, &text);
    if (text.failed) {
        struct error err;
        error_memory(&err);
        cmd_fail(&err);
    } else {
        fputs(text.data, stdout);
    }
    code = text.failed || doctor_count(&d, DOCTOR_FAULT) > 0;
    buf_free(&text);
    cmd_end(&line, &state);
    return code;
}
