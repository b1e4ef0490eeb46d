/* inferd COMMAND [arguments]: the table of commands. */
#include "cmd/cmd.h"
#include "cmd/manual.h"
#include "version.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static int cmd_help(int argc, char **argv);

static const struct manual_command commands[] = {
    {"serve", "answer requests over HTTP, as the OpenAI API does", cmd_serve},
    {"chat", "talk to a model in the terminal", cmd_chat},
    {"tokenize", "show how a model cuts text into tokens", cmd_tokenize},
    {"plan", "tell whether a model fits, on which cards, and about how fast", cmd_plan},
    {"bench", "measure how fast a model, a shape or a server is", cmd_bench},
    {"eval", "tell how well a model predicts a text, and how far two configurations are apart", cmd_eval},
    {"inspect", "show what a model file holds", cmd_inspect},
    {"quantize", "write an INT8 checkpoint of a model", cmd_quantize},
    {"healthcheck", "ask a running server whether it is ready, for Docker and scripts", cmd_healthcheck},
    {"doctor", "look for what is wrong with this machine, and say what to do", cmd_doctor},
    {"key", "make an API key, and the lines of it for the keys file", cmd_key},
    {"version", "show the version, the libraries and the processor", cmd_version},
    {"help", "show this, or the help of a command", cmd_help},
};
#define N_COMMANDS (sizeof commands / sizeof commands[0])

static const char *command_name(const void *arg, size_t i) {
    (void)arg;
    return i < N_COMMANDS ? commands[i].name : NULL;
}

static void print_usage(FILE *f) {
    fprintf(f, "inferd %s, a server for language models\n\nUsage: inferd COMMAND [options]\n\n", version_number());
    for (size_t i = 0; i < N_COMMANDS; i++) {
        fprintf(f, "  %-11s %s\n", commands[i].name, commands[i].about);
    }
    fprintf(f, "\nExamples:\n"
               "  inferd serve model.gguf                serve on http://127.0.0.1:8080\n"
               "  inferd chat model.gguf                 chat in this terminal\n"
               "  inferd serve --help                    all settings of the server\n");
}

static int unknown_command(const char *name) {
    const char *near = nearest_word(name, strlen(name), command_name, NULL);
    if (near) {
        fprintf(stderr, "inferd: there is no command \"%.60s\"; did you mean %s?\n", name, near);
    } else {
        fprintf(stderr, "inferd: there is no command \"%.60s\" (see: inferd help)\n", name);
    }
    return 2;
}

static const struct manual_command *find_command(const char *name) {
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strcmp(name, commands[i].name) == 0) {
            return &commands[i];
        }
    }
    return NULL;
}

static int cmd_help(int argc, char **argv) {
    const size_t n = N_COMMANDS - 1; /* all but this one, which describes nothing of its own */
    if (argc == 1 && strcmp(argv[0], "--man") == 0) {
        return manual_print(commands, n);
    }
    if (argc == 1 && strcmp(argv[0], "--man-conf") == 0) {
        return manual_print_conf();
    }
    if (argc == 1 && strcmp(argv[0], "--bash-completion") == 0) {
        return manual_print_completion(commands, n);
    }
    if (argc == 0 || argv[0][0] == '-') {
        print_usage(stdout);
        return 0;
    }
    const struct manual_command *c = find_command(argv[0]);
    char flag[] = "--help", *args[] = {flag, NULL};
    return c ? c->run(c->run == cmd_help ? 0 : 1, args) : unknown_command(argv[0]);
}

static int run(int argc, char **argv) {
    if (argc < 2) {
        print_usage(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        return cmd_help(0, NULL);
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("inferd %s\n", version_number());
        return 0;
    }
    const struct manual_command *c = find_command(argv[1]);
    return c ? c->run(argc - 2, argv + 2) : unknown_command(argv[1]);
}

int main(int argc, char **argv) {
    int code = run(argc, argv);
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == 0) { /* a full disk must not look like success */
        fprintf(stderr, "inferd: the output cannot be written: %s\n", strerror(errno));
        code = 1;
    }
    return code;
}
