/* `inferd version` */
#include "version.h"
#include "cmd/cmd.h"

#include <stdio.h>

struct version_options {
    bool json;
};

static const struct setting rows[] = {
    {"json", SETTING_BOOL, offsetof(struct version_options, json), .initial = "false", .group = "Options",
     .help = "print JSON"},
};

int cmd_version(int argc, char **argv) {
    struct version_options o;
    const struct command_line line = {
        .help = {.usage = "inferd version [options]",
                 .about =
                     "Print the version of inferd, of the libraries it runs with, and the processor's instructions\n"
                     "that it computes with."},
        .own = {rows, sizeof rows / sizeof rows[0]},
        .own_values = &o,
        .config_only = SETTING_NONE,
    };
    struct command_state state;
    int code;
    if (!cmd_begin(&line, argc, argv, &state, &code)) {
        return code;
    }
    struct buf text = BUF_INIT;
    version_describe(o.json, NULL, &text);
    if (text.failed) {
        struct error err;
        error_memory(&err);
        code = cmd_fail(&err);
    } else {
        code = 0;
        fputs(text.data, stdout);
    }
    buf_free(&text);
    cmd_end(&line, &state);
    return code;
}
