#include "cmd/manual.h"

#include "cmd/cmd.h"
#include "version.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* ---- roff ---------------------------------------------------------------------------------------------------- */

/* Text that roff shall print as it is: control characters at the begin of a line, backslashes, and hyphens that
 * somebody may copy into a shell. */
static void roff(const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        char c = text[i], before = i ? text[i - 1] : '\n', behind = i + 1 < n ? text[i + 1] : ' ';
        if (before == '\n' && (c == '.' || c == '\'')) {
            fputs("\\&", stdout);
        }
        if (c == '\\') {
            fputs("\\e", stdout);
        } else if (c == '-' && !(isalpha((unsigned char)before) && isalpha((unsigned char)behind))) {
            fputs("\\-", stdout);
        } else {
            putchar(c);
        }
    }
}

static void roff_line(const char *text) {
    roff(text, strlen(text));
    putchar('\n');
}

/* Every hyphen as such: commands, flags. */
static void roff_literal(const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '-' || text[i] == '\\') {
            fputs(text[i] == '-' ? "\\-" : "\\e", stdout);
        } else {
            putchar(text[i]);
        }
    }
}

/* Lines as they are. */
static void roff_verbatim(const char *text) {
    puts(".PP\n.nf");
    while (*text) {
        size_t n = strcspn(text, "\n");
        if (*text == '.' || *text == '\'') {
            fputs("\\&", stdout);
        }
        roff_literal(text, n);
        putchar('\n');
        text += n + (text[n] == '\n');
    }
    puts(".fi");
}

static void title(const char *name, const char *section, const char *of) {
    printf(".\\\" Written by inferd itself: change its tables, not this.\n.TH %s %s \"\" \"inferd %s\" \"%s\"\n", name,
           section, version_number(), of);
}

/* ---- options ------------------------------------------------------------------------------------------------- */

/* What --help says behind the name: help, range, default. */
static void roff_help(const struct setting *s, bool with_range) {
    struct buf text = BUF_INIT, range = BUF_INIT;
    buf_puts(&text, s->help);
    setting_range(s, &range);
    if (range.len > 0 && (with_range || s->type == SETTING_CHOICE)) {
        buf_printf(&text, " (%s)", range.failed ? "" : range.data);
    }
    if (s->initial[0] && s->type != SETTING_BOOL) {
        buf_printf(&text, "; default %s", s->initial);
    } else if (s->type == SETTING_BOOL && with_range) {
        buf_printf(&text, "; true or false, default %s", s->initial);
    }
    buf_puts(&text, s->flags & SETTING_RELOAD ? "; read again on SIGHUP." : ".");
    if (!text.failed && !range.failed) {
        roff_line(text.data);
    }
    buf_free(&text);
    buf_free(&range);
}

static const char *value_name(const struct setting *s) {
    static const char *const names[] = {
        [SETTING_STRING] = "TEXT", [SETTING_CHOICE] = "WORD",     [SETTING_BOOL] = NULL,       [SETTING_INT] = "N",
        [SETTING_SIZE] = "SIZE",   [SETTING_SECONDS] = "SECONDS", [SETTING_NUMBER] = "NUMBER",
    };
    return s->value ? s->value : names[s->type];
}

/* --name, or --no-name where that is what does something. */
static void flag_name(const struct setting *s, char *out, size_t size) {
    bool on = s->type == SETTING_BOOL && strcmp(s->initial, "true") == 0;
    snprintf(out, size, "%s%s", on ? "--no-" : "--", s->name);
    for (char *c = out; *c; c++) {
        *c = *c == '_' ? '-' : *c;
    }
}

/* The next alias in *at as a flag, its length; 0 = none is left. */
static size_t alias_flag(const char **at, char *out, size_t size) {
    const char *p = *at + strspn(*at, " ");
    size_t n = strcspn(p, " ");
    *at = p + n;
    return n == 0 ? 0 : (size_t)snprintf(out, size, "%s%.*s", n == 1 ? "-" : "--", (int)n, p);
}

static void roff_flags(const struct setting *s) {
    char flag[80];
    puts(".TP");
    fputs(".B ", stdout);
    const char *at = s->alias ? s->alias : "";
    while (alias_flag(&at, flag, sizeof flag)) {
        roff_literal(flag, strlen(flag));
        fputs(", ", stdout);
    }
    flag_name(s, flag, sizeof flag);
    roff_literal(flag, strlen(flag));
    if (value_name(s)) {
        printf(" \\fI%s\\fR", value_name(s));
    }
    putchar('\n');
}

static void roff_options(struct settings t, unsigned only) {
    for (size_t i = 0; i < t.n; i++) {
        if ((t.rows[i].flags & only) == only) {
            roff_flags(&t.rows[i]);
            roff_help(&t.rows[i], false);
        }
    }
}

static void describe_for_manual(const struct command_line *line) {
    const char *about = line->help.about;
    puts(".PP");
    fputs(".B ", stdout);
    roff_literal(line->help.usage, strlen(line->help.usage));
    puts("\n.PP");
    for (const char *p = about; *p;) { /* an empty line begins a paragraph */
        size_t n = strcspn(p, "\n");
        if (n == 0) {
            puts(".PP");
        } else {
            const char *text = p + strspn(p, " ");
            roff(text, n - (size_t)(text - p));
            putchar('\n');
        }
        p += n + (p[n] == '\n');
    }
    roff_options(line->own, 0);
    if (line->config_only == 0) {
        puts(".PP\nAnd every setting of\n.BR inferd.conf (5)\nas a flag: its name with dashes, as in\n.BR "
             "\\-\\-max\\-waiting \" 64\";\nfor one that is true or false\n.B \\-\\-name\nor\n.BR \\-\\-no\\-name .");
    } else if (line->config_only != SETTING_NONE) {
        puts(".PP\nAnd of the settings of\n.BR inferd.conf (5):");
        roff_options(config_settings(), line->config_only);
    }
    if (line->help.examples) {
        roff_verbatim(line->help.examples);
    }
}

int manual_print(const struct manual_command *commands, size_t n) {
    char ask[] = MANUAL_ASK, *args[] = {ask, NULL};
    title("INFERD", "1", "User Commands");
    puts(".SH NAME\ninferd \\- a server for language models\n.SH SYNOPSIS\n.B inferd\n.I COMMAND\n.RI [ options ]\n.SH "
         "DESCRIPTION\n.B inferd\nserves a language model of the Llama family over HTTP, as the OpenAI API does, on a CPU or "
         "a GPU.\nOne program with commands; each has\n.BR \\-\\-help .\n.SH COMMANDS");
    for (size_t i = 0; i < n; i++) {
        printf(".SS inferd %s\n", commands[i].name);
        fputs("To ", stdout);
        roff(commands[i].about, strlen(commands[i].about));
        puts(".");
        fflush(stdout);
        int code = commands[i].run(1, args);
        if (code != 0) {
            return code;
        }
    }
    puts(".SH SIGNALS\n.TP\n.BR SIGTERM \", \" SIGINT\nThe drain: new requests are answered 503, running ones go on for at "
         "most\n.B drain_timeout\nand then end with an error. A second one ends at once.\n.TP\n.B SIGHUP\nWhat can be changed "
         "while serving is read again; the model stays in memory.\n"
         ".SH ENVIRONMENT\nEach setting of\n.BR inferd.conf (5)\nis a variable:\n.B INFERD_MAX_WAITING=64\nis "
         "\\-\\-max\\-waiting 64. Flags come before the environment, and both before the file.\n.PP\n"
         ".BR NOTIFY_SOCKET \", \" WATCHDOG_USEC \", \" WATCHDOG_PID\nof\n.BR sd_notify (3)\nand\n.BR LISTEN_FDS \", \" "
         "LISTEN_PID \", \" LISTEN_FDNAMES\nof\n.BR sd_listen_fds (3)\nare honoured by\n.BR \"inferd serve\" .\n"
         ".SH EXIT STATUS\n.TP\n.B 0\nAll went well.\n.TP\n.B 1\nA failure at run time.\n.TP\n.B 2\nThe command line is "
         "wrong.\n.TP\n.B 3\nThe model does not fit into memory.\n.TP\n.B 4\nThe device is missing or lost; worth a "
         "restart.\n.TP\n.B 78\nConfiguration or model cannot be used.\n"
         ".SH SEE ALSO\n.BR inferd.conf (5),\n.BR systemd.service (5)");
    return 0;
}

/* ---- inferd.conf(5) ------------------------------------------------------------------------------------------ */

int manual_print_conf(void) {
    struct settings t = config_settings();
    const char *group = "";
    title("INFERD.CONF", "5", "File Formats");
    puts(".SH NAME\ninferd.conf \\- settings of inferd\n.SH DESCRIPTION\nThe file that\n.B inferd serve \\-\\-config\n.I "
         "FILE\nreads; the service reads\n.IR /etc/inferd/inferd.conf ,\nand the service\n.BI inferd@ NAME\nreads\n.IR "
         "/etc/inferd/NAME.conf .\nA line is\n.BR \"name = value\" ;\n.B #\nand\n.B ;\nbegin comments. A name that is no "
         "setting, a setting that comes twice and a value out of range are errors that name file and line.\n.PP\nTimes are "
         "seconds, or have a unit: 250ms, 30s, 5m, 1h. Sizes are bytes, or have a unit: 64K, 8M, 1G (powers of 1024).\n.PP\n"
         "Flags and variables of the environment come before this file (see\n.BR inferd (1)).\n.B inferd serve \\-\\-config\n.I "
         "FILE\n.B \\-\\-check\\-config\ntells what is wrong with one,\n.B \\-\\-print\\-config\nprints the settings in "
         "force.\n.SH SETTINGS");
    for (size_t i = 0; i < t.n; i++) {
        const struct setting *s = &t.rows[i];
        if (s->flags & SETTING_NOT_IN_FILE) {
            continue;
        }
        if (strcmp(group, s->group) != 0) {
            group = s->group;
            printf(".SS %s\n", group);
        }
        printf(".TP\n.B %s\n", s->name);
        roff_help(s, true);
    }
    puts(".SH SEE ALSO\n.BR inferd (1)");
    return 0;
}

/* ---- completion ---------------------------------------------------------------------------------------------- */

static bool takes_value(const struct setting *s) {
    return s->type != SETTING_BOOL;
}

/* What follows a flag: the words, files or folders; anything else completes to nothing. */
static void print_values(const struct setting *s, const char *command) {
    char flag[80];
    printf("        %s:", command);
    flag_name(s, flag, sizeof flag);
    fputs(flag, stdout);
    const char *at = s->alias ? s->alias : "";
    while (alias_flag(&at, flag, sizeof flag)) {
        printf(" | %s:%s", command, flag);
    }
    fputs(") ", stdout);
    if (s->type == SETTING_CHOICE) {
        fputs("words='", stdout);
        for (const char *p = s->choices; *p; p += strspn(p, " ")) {
            size_t n = strcspn(p, " ");
            if (!memchr(p, ':', n)) { /* what stands for numbers is not completed */
                printf("%.*s ", (int)n, p);
            }
            p += n;
        }
        puts("' ;;");
    } else if (s->value && (strstr(s->value, "PATH") || strstr(s->value, "FILE") || strstr(s->value, "MODEL") ||
                            strstr(s->value, "TEMPLATE"))) {
        puts("kind='file' ;;");
    } else if (s->value && (strstr(s->value, "FOLDER") || strstr(s->value, "DIR"))) {
        puts("kind='folder' ;;");
    } else {
        puts("kind='none' ;;");
    }
}

static void print_flags(struct settings t, unsigned only) {
    char flag[80];
    for (size_t i = 0; i < t.n; i++) {
        if ((t.rows[i].flags & only) == only) {
            flag_name(&t.rows[i], flag, sizeof flag);
            printf("%s ", flag);
        }
    }
}

static void describe_for_completion(const struct command_line *line) {
    const char *name = line->help.usage + strlen("inferd ");
    char command[32];
    snprintf(command, sizeof command, "%.*s", (int)strcspn(name, " "), name);
    struct settings tables[] = {line->own, config_settings()};
    const unsigned only[] = {0, line->config_only};
    for (size_t g = 0; g < 2; g++) {
        for (size_t i = 0; i < tables[g].n; i++) {
            if ((tables[g].rows[i].flags & only[g]) == only[g] && takes_value(&tables[g].rows[i])) {
                print_values(&tables[g].rows[i], command);
            }
        }
    }
    printf("        %s:*) words='--help ", command);
    print_flags(line->own, 0);
    print_flags(config_settings(), line->config_only);
    puts("' ;;");
}

int manual_print_completion(const struct manual_command *commands, size_t n) {
    char ask[] = COMPLETION_ASK, *args[] = {ask, NULL};
    puts("# Completion of inferd for bash. Written by inferd itself (inferd help --bash-completion).\n"
         "_inferd() {\n"
         "    local cur=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} kind='flag' words=\n"
         "    if [ \"$cur\" = = ]; then # --flag=: bash cuts words there\n"
         "        cur=\n"
         "    elif [ \"$before\" = = ]; then\n"
         "        before=${COMP_WORDS[COMP_CWORD - 2]}\n"
         "    fi\n"
         "    COMPREPLY=()\n"
         "    if [ \"$COMP_CWORD\" = 1 ]; then");
    fputs("        words='--help --version ", stdout);
    for (size_t i = 0; i < n; i++) {
        printf("%s ", commands[i].name);
    }
    puts("help'\n"
         "        mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n"
         "        return\n"
         "    fi\n"
         "    case ${COMP_WORDS[1]}:$before in");
    for (size_t i = 0; i < n; i++) {
        fflush(stdout);
        int code = commands[i].run(1, args);
        if (code != 0) {
            return code;
        }
    }
    fputs("        help:*) words='", stdout);
    for (size_t i = 0; i < n; i++) {
        printf("%s ", commands[i].name);
    }
    puts("' ;;\n"
         "    esac\n"
         "    if [ \"$kind\" = flag ] && [[ -z $words || ( $words == --help* && $cur != -* ) ]]; then\n"
         "        kind='file' # an operand: a model\n"
         "    fi\n"
         "    case $kind in\n"
         "        file)\n"
         "            compopt -o filenames 2>/dev/null\n"
         "            mapfile -t COMPREPLY < <(compgen -f -- \"$cur\")\n"
         "            ;;\n"
         "        folder)\n"
         "            compopt -o filenames 2>/dev/null\n"
         "            mapfile -t COMPREPLY < <(compgen -d -- \"$cur\")\n"
         "            ;;\n"
         "        flag) mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\") ;;\n"
         "    esac\n"
         "}\n"
         "complete -F _inferd inferd");
    return 0;
}

bool manual_answer(const struct command_line *line, int argc, char **argv, int *code) {
    if (argc != 1) {
        return false;
    }
    *code = 0;
    if (strcmp(argv[0], MANUAL_ASK) == 0) {
        describe_for_manual(line);
        return true;
    }
    if (strcmp(argv[0], COMPLETION_ASK) == 0) {
        describe_for_completion(line);
        return true;
    }
    return false;
}
