/* `inferd serve`: settings, checks, then the server until it has drained. */
#include "cmd/cmd.h"
#include "cmd/plan.h"
#include "reload.h"
#include "server.h"

#include <inferd/engine.h>
#include <inferd/log.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct serve_options {
    bool check_config, print_config;
};

static const struct setting rows[] = {
    {"check_config", SETTING_BOOL, offsetof(struct serve_options, check_config), .initial = "false",
     .group = "Instead of serving", .help = "check all settings, keys and paths without loading the model, and exit"},
    {"print_config", SETTING_BOOL, offsetof(struct serve_options, print_config), .initial = "false",
     .group = "Instead of serving", .help = "print the settings in force as a settings file, and exit"},
};

static int print_config(const struct config *c, struct error *err) {
    struct buf text = BUF_INIT;
    config_print(c, &text);
    int r = text.failed ? error_memory(err) : 0;
    if (r == 0) {
        fputs(text.data, stdout);
    }
    buf_free(&text);
    return r;
}

/* Does it compile? Whether a word names a template is only known beside the model's texts: they are read, no weights. */
static int check_chat_template(const struct config *c, struct error *err) {
    struct text *text = NULL;
    int r = c->chat_template[0] ? text_open_with(c->model, c->chat_template, &text, err) : 0;
    text_free(text);
    return r;
}

/* The memory was not enough: the table that `inferd plan` gives for these settings, with what would help. */
static void print_plan(const struct config *c) {
    struct plan_question q = {.model = c->model,
                              .tensor_parallel = c->tensor_parallel,
                              .weights = c->weights,
                              .kv_dtype = c->kv_dtype,
                              .max_model_len = c->max_model_len,
                              .max_sequences = 1, /* more are no reason to end */
                              .kv_tokens = c->kv_tokens,
                              .max_batched_tokens = c->max_batched_tokens,
                              .kv_block_size = c->kv_block_size,
                              .memory_utilization = c->memory_utilization};
    struct plan_answer *a = malloc(sizeof *a);
    struct buf text = BUF_INIT;
    struct error err;
    size_t n;
    bool gpu = strncmp(c->device, "cuda", 4) == 0 || strcmp(c->device, "auto") == 0;
    if (a && ((gpu && plan_gpu_find("local", c->cuda_module, &q.gpu, &n, &err) == 0) || plan_gpu_find("cpu", NULL, &q.gpu, &n, &err) == 0) &&
        plan_ask(&q, a, &err) == 0) {
        plan_print(&q, a, &text);
        if (!text.failed) {
            fputs(text.data, stderr);
        }
    }
    buf_free(&text);
    free(a);
}

struct again {
    const struct command_line *line;
    const struct options *flags;
};

static int reread(void *arg, struct config *out, struct buf *warnings, struct error *err) {
    const struct again *a = arg;
    return cmd_config_again(a->line, a->flags, out, warnings, err);
}

/* Whoever stops a job tells all its processes. A follower goes with its leader, who ends what it has begun; told again, or while
 * it loads, at once. */
static volatile sig_atomic_t may_leave = 1;

static void on_stop(int signal) {
    (void)signal;
    if (may_leave) {
        _exit(0);
    }
    may_leave = 1;
}

struct follower {
    size_t node, n_nodes;
};

static void say_following(void *arg) {
    const struct follower *f = arg;
    may_leave = 0;
    log_info("node %zu of %zu follows the leader, which alone listens", f->node, f->n_nodes);
}

/* A node that is not the leader: a stage of the model, and no address. */
static int follow(const struct config *c, size_t node, struct error *err) {
    struct follower f = {node, c->pipeline_parallel};
    struct engine_config e;
    struct sigaction action = {.sa_handler = on_stop, .sa_flags = SA_RESTART};
    config_engine(c, &e);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    log_info("loading stage %zu of %zu of %s", f.node + 1, f.n_nodes, c->model);
    if (engine_follow(&e, say_following, &f, err) != 0) {
        config_engine_refused(err);
        return -1;
    }
    log_info("stopped, as the leader did");
    return 0;
}

static int serve(const struct serve_options *o, const struct config *c, struct again *arg, struct error *err) {
    if (o->print_config) {
        return print_config(c, err);
    }
    if (config_check(c, err) != 0) {
        return -1;
    }
    if (o->check_config) {
        return check_chat_template(c, err) != 0 || puts("The settings are good.") < 0 ? -1 : 0;
    }
    char address[LISTEN_NAME_MAX];
    size_t node;
    if (engine_node(c->pipeline_parallel, &node, err) != 0) {
        config_engine_refused(err);
        return -1;
    }
    if (config_public_address(c, address) && !c->api_key[0] && !c->api_keys_file[0]) {
        log_warn("anybody who can reach %s can use this server: there are no keys", address);
    }
    if (config_null_warning(c)) {
        log_warn("%s", config_null_warning(c));
    }
    return node > 0 ? follow(c, node, err) : server_run(c, reread, arg, err);
}

/* Why it ended, as a line of the log where that is for programs to read. */
static int fail(const struct error *err) {
    if (log_get_format() == LOG_FORMAT_TEXT) {
        return cmd_fail(err);
    }
    log_error("%s", err->message);
    return exit_code(err->code);
}

int cmd_serve(int argc, char **argv) {
    struct serve_options o;
    const struct command_line line = {
        .help = {.usage = "inferd serve [MODEL] [options]",
                 .about =
                     "Load a model and answer requests over HTTP as the OpenAI API does, until SIGTERM or Ctrl-C.\n"
                     "A model is a .gguf file, or a folder with safetensors and tokenizer.json.",
                 .examples = "  inferd serve model.gguf\n"
                             "  inferd serve model.gguf --port 9000 --ctx 8192 --threads 8\n"
                             "  INFERD_API_KEY=secret inferd serve model.gguf --host 0.0.0.0\n"
                             "  inferd serve --config /etc/inferd/inferd.conf --check-config\n"},
        .own = {rows, sizeof rows / sizeof rows[0]},
        .own_values = &o,
        .max_operands = 1,
        .model_operand = true,
    };
    struct command_state state;
    struct again again = {&line, &state.flags};
    struct error err;
    int code;
    reload_block_hangup(); /* first of all: it must not end a daemon that is starting */
    if (!cmd_begin(&line, argc, argv, &state, &code)) {
        return code;
    }
    code = serve(&o, &state.config, &again, &err) == 0 ? 0 : fail(&err);
    if (code == exit_code(ERROR_DOES_NOT_FIT)) {
        print_plan(&state.config);
    }
    cmd_end(&line, &state);
    return code;
}
