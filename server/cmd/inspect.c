/* `inferd inspect`: what a model file holds, from its headers alone. */
#include "cmd/cmd.h"

#include <inferd/engine.h>
#include <stdio.h>

struct inspect_options {
    bool json;
};

static const struct setting rows[] = {
    {"json", SETTING_BOOL, offsetof(struct inspect_options, json), .initial = "false", .group = "Options",
     .help = "print JSON"},
};

int cmd_inspect(int argc, char **argv) {
    struct inspect_options o;
    const struct command_line line = {
        .help = {.usage = "inferd inspect MODEL [options]",
                 .about =
                     "Print the metadata and the tensors of a model (a .gguf file, a .safetensors file or a model\n"
                     "folder) without loading it. A damaged file gives one sentence with the place and the reason.",
                 .examples = "  inferd inspect model.gguf\n"
                             "  inferd inspect model.gguf --json | jq .metadata\n"},
        .own = {rows, sizeof rows / sizeof rows[0]},
        .own_values = &o,
        .config_only = SETTING_MODEL,
        .max_operands = 1,
        .model_operand = true,
    };
    struct command_state state;
    struct buf text = BUF_INIT;
    struct error err;
    int code;
    if (!cmd_begin(&line, argc, argv, &state, &code)) {
        return code;
    }
    if (config_check_model(&state.config, &err) != 0 ||
        engine_inspect(state.config.model, o.json, &text, &err) != 0) {
        code = cmd_fail(&err);
    } else {
        code = 0;
        fwrite(text.data, 1, text.len, stdout);
    }
    buf_free(&text);
    cmd_end(&line, &state);
    return code;
}
