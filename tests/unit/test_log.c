#include "base/log_line.h"
#include "base/log_sink.h"
#include "base/utf8.h"

#include <cjson/cJSON.h>
#include <criterion/criterion.h>
#include <fcntl.h>
#include <inferd/log.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static const struct log_field hostile[] = {
    {"request_id", LOG_TEXT, .text = "a b\"c=\\d\n\x1b[31m\x7f"},
    {"key", LOG_TEXT, .text = NULL},
    {"prompt_tokens", LOG_COUNT, .number = 18446744073709551615u},
    {"queue_ms", LOG_MILLISECONDS, .number = 12345678},
    {"model", LOG_TEXT, .text = "caf\xc3\xa9 \xc2\x85 \xff\xfe \xe2\x80\xa8"},
    {"empty", LOG_TEXT, .text = ""},
    {"plain", LOG_TEXT, .text = "x-1.2/3"},
};
#define N_HOSTILE (sizeof hostile / sizeof hostile[0])
static const struct log_entry event = {LOG_LEVEL_WARN, "a\nb \"c\" \x01\t\xc3", hostile, N_HOSTILE};

static void check_one_line(const struct log_line *l) {
    cr_assert_leq(l->len, (size_t)LOG_LINE_MAX);
    cr_assert_eq(l->bytes[l->len - 1], '\n');
    for (size_t i = 0; i + 1 < l->len; i++) {
        cr_assert((unsigned char)l->bytes[i] >= ' ' && l->bytes[i] != 0x7f, "byte %zu is %d", i, l->bytes[i]);
    }
    cr_assert(utf8_is_valid(l->bytes, l->len));
}

Test(log, text_is_one_line_of_words_and_quoted_values) {
    struct log_line l;
    log_line_text(&l, &event, false);
    check_one_line(&l);
    l.bytes[l.len] = '\0';
    cr_assert_str_eq(l.bytes, "inferd: warn: a\\nb \"c\" \\x01\\t\\xc3 request_id=\"a b\\\"c=\\\\d\\n\\x1b[31m\\x7f\" "
                              "prompt_tokens=18446744073709551615 queue_ms=12.345 "
                              "model=\"caf\xc3\xa9 \\x85 \\xff\\xfe \\u2028\" empty=\"\" plain=x-1.2/3\n");
    log_line_text(&l, &event, true);
    cr_assert_eq(memcmp(l.bytes, "<4>a\\nb", 7), 0);
}

static cJSON *parse_json(struct log_line *l) {
    check_one_line(l);
    cJSON *o = cJSON_ParseWithLength(l->bytes, l->len - 1);
    cr_assert_not_null(o, "%.*s", (int)l->len, l->bytes);
    return o;
}

static const char *member(const cJSON *o, const char *name) {
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(o, name));
}

Test(log, json_says_what_was_said) {
    struct log_line l;
    log_line_json(&l, &event);
    cJSON *o = parse_json(&l);
    cr_assert_str_eq(member(o, "level"), "warn");
    cr_assert_str_eq(member(o, "message"), "a\nb \"c\" \x01\t\xef\xbf\xbd");
    cr_assert_str_eq(member(o, "request_id"), hostile[0].text);
    cr_assert_str_eq(member(o, "model"), "caf\xc3\xa9 \xc2\x85 \xef\xbf\xbd\xef\xbf\xbd \xe2\x80\xa8");
    cr_assert_null(cJSON_GetObjectItem(o, "key"));
    cr_assert_eq(cJSON_GetObjectItem(o, "queue_ms")->valuedouble, 12.345);
    cr_assert_str_eq(member(o, "empty"), "");
    const char *time = member(o, "time");
    cr_assert(strlen(time) == 24 && time[10] == 'T' && time[19] == '.' && time[23] == 'Z', "%s", time);
    cJSON_Delete(o);
}

Test(log, a_journal_entry_has_a_field_a_line) {
    struct log_line l;
    log_line_journal(&l, &event);
    l.bytes[l.len] = '\0';
    cr_assert_not_null(strstr(l.bytes, "PRIORITY=4\n"));
    cr_assert_not_null(strstr(l.bytes, "\nMESSAGE=a\\nb \"c\""));
    cr_assert_not_null(strstr(l.bytes, "\nREQUEST_ID=a b\"c=\\d\\n\\x1b[31m\\x7f\n"));
    cr_assert_not_null(strstr(l.bytes, "\nPROMPT_TOKENS=18446744073709551615\n"));
    cr_assert_not_null(strstr(l.bytes, "\nQUEUE_MS=12.345\n"));
    cr_assert_null(strstr(l.bytes, "\nKEY="));
    for (char *line = strtok(l.bytes, "\n"); line; line = strtok(NULL, "\n")) { /* nothing of a value became a field */
        size_t name = strspn(line, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_");
        cr_assert(name > 0 && line[name] == '=', "%s", line);
    }
}

/* At every length around the limit, with characters of every length: cut, and still what it is. */
Test(log, what_is_too_long_is_cut) {
    static char text[3 * LOG_LINE_MAX];
    struct log_line l;
    for (size_t n = LOG_LINE_MAX - 300; n < LOG_LINE_MAX + 100; n += 7) {
        for (int kind = 0; kind < 4; kind++) {
            static const char *const units[] = {"x", "\n", "\xc3\xa9", "\""};
            text[0] = '\0';
            size_t len = strlen(units[kind]), at = 0;
            for (; at + len <= n / (kind == 1 || kind == 3 ? 2 : 1); at += len) {
                memcpy(text + at, units[kind], len);
            }
            text[at] = '\0';
            const struct log_field fields[] = {{"a", LOG_TEXT, .text = text}, {"b", LOG_TEXT, .text = text}, {"c", LOG_COUNT, .number = 7}};
            const struct log_entry long_field = {LOG_LEVEL_INFO, "m", fields, 3}, long_message = {LOG_LEVEL_INFO, text, fields, 3};
            const struct log_entry *entries[] = {&long_field, &long_message};
            for (int i = 0; i < 2; i++) {
                log_line_text(&l, entries[i], false);
                check_one_line(&l);
                log_line_journal(&l, entries[i]);
                cr_assert(l.len <= LOG_LINE_MAX && l.bytes[l.len - 1] == '\n' && utf8_is_valid(l.bytes, l.len));
                log_line_json(&l, entries[i]);
                cJSON_Delete(parse_json(&l));
            }
        }
    }
}

/* ---- where it goes ---- */

static size_t read_back(const char *path, char *out, size_t size) {
    FILE *f = fopen(path, "r");
    size_t n = fread(out, 1, size - 1, f);
    fclose(f);
    out[n] = '\0';
    return n;
}

static void to_stderr(int fd) {
    dup2(fd, STDERR_FILENO);
}

Test(log, levels_and_formats) {
    char path[] = "/tmp/test_log_XXXXXX", text[4096];
    to_stderr(mkstemp(path));
    log_set_level(LOG_LEVEL_WARN);
    log_info("not this");
    log_warn("this %d", 1);
    log_set_format(LOG_FORMAT_JSON);
    log_error("that");
    read_back(path, text, sizeof text);
    unlink(path);
    cr_assert_eq(strncmp(text, "inferd: warn: this 1\n{\"time\":", 29), 0, "%s", text);
    cr_assert_null(strstr(text, "not this"));
    cr_assert_not_null(strstr(text, "\"level\":\"error\",\"message\":\"that\"}\n"));
}

static void *log_many(void *arg) {
    static char text[1500];
    memset(text, 'x', sizeof text - 1);
    for (int i = 0; i < 500; i++) {
        const struct log_field f[] = {{"thread", LOG_COUNT, .number = (uint64_t)(uintptr_t)arg}, {"text", LOG_TEXT, .text = text}};
        log_event(LOG_LEVEL_INFO, "m", f, 2);
    }
    return NULL;
}

/* Of a pipe that nobody reads: what fits is whole, the rest is counted, and nobody waits. */
Test(log, a_full_pipe_holds_nobody_up, .timeout = 20) {
    int fds[2];
    pthread_t threads[4];
    cr_assert_eq(pipe(fds), 0);
    to_stderr(fds[1]);
    for (uintptr_t i = 0; i < 4; i++) {
        pthread_create(&threads[i], NULL, log_many, (void *)i);
    }
    for (size_t i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
    }
    static char text[1 << 20];
    size_t n = (size_t)read(fds[0], text, sizeof text - 1), lines = 0;
    for (char *p = text; p < text + n; p = strchr(p, '\n') + 1) {
        cr_assert_eq(strncmp(p, "inferd: info: m thread=", 23), 0);
        lines++;
    }
    cr_assert(lines > 0 && lines + log_lost() == 2000, "%zu lines, %zu lost", lines, (size_t)log_lost());
    log_info("again");
    n = (size_t)read(fds[0], text, sizeof text - 1);
    text[n] = '\0';
    cr_assert_not_null(strstr(text, "inferd: info: again\ninferd: warn: lines of the log before this one could not be written lines="));
    char tail[64];
    snprintf(tail, sizeof tail, "lines=%zu\n", 2000 - lines);
    cr_assert_not_null(strstr(text, tail), "%s", text);
}

Test(log, a_closed_pipe_and_a_full_disk_are_counted) {
    int fds[2], saved = dup(STDERR_FILENO);
    cr_assert_eq(pipe(fds), 0);
    close(fds[0]);
    signal(SIGPIPE, SIG_IGN);
    to_stderr(fds[1]);
    log_info("nobody reads this");
    uint64_t closed = log_lost();
    to_stderr(open("/dev/full", O_WRONLY));
    log_info("nor this");
    uint64_t full = log_lost();
    to_stderr(saved);
    cr_assert_eq(closed, 1u);
    cr_assert_eq(full, 2u);
}

static int fake_journal(char path[108]) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(path, 108, "/tmp/test_log_journal_%d", (int)getpid());
    strcpy(a.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    unlink(path);
    cr_assert_eq(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static void say_stderr_is_the_journal(void) {
    struct stat st;
    char stream[64];
    fstat(STDERR_FILENO, &st);
    snprintf(stream, sizeof stream, "%llu:%llu", (unsigned long long)st.st_dev, (unsigned long long)st.st_ino);
    setenv("JOURNAL_STREAM", stream, 1);
}

Test(log, the_journal_is_taken_where_standard_error_leads_there, .timeout = 20) {
    char path[108], text[8192], file[] = "/tmp/test_log_XXXXXX";
    int journal = fake_journal(path);
    to_stderr(mkstemp(file));
    log_sink_journal_path(path);
    say_stderr_is_the_journal();
    log_set_format(LOG_FORMAT_AUTO);
    cr_assert_eq(log_get_format(), LOG_FORMAT_JOURNALD);
    log_event(LOG_LEVEL_ERROR, "an event", hostile, N_HOSTILE);
    ssize_t n = recv(journal, text, sizeof text - 1, MSG_DONTWAIT);
    cr_assert_gt(n, 0);
    text[n] = '\0';
    cr_assert_not_null(strstr(text, "PRIORITY=3\nMESSAGE=an event request_id="));
    cr_assert_eq(read_back(file, text, sizeof text), 0u);
    /* one that does not read holds nobody up: standard error is the journal as well and gets the line */
    for (int i = 0; i < 2000; i++) {
        log_info("more %d", i);
    }
    cr_assert_gt(read_back(file, text, sizeof text), 0u);
    cr_assert_eq(strncmp(text, "<6>more ", 8), 0);
    /* it restarts */
    close(journal);
    unlink(path);
    cr_assert_eq(truncate(file, 0), 0);
    lseek(STDERR_FILENO, 0, SEEK_SET);
    log_info("gone");
    read_back(file, text, sizeof text);
    cr_assert_str_eq(text, "<6>gone\n");
    journal = fake_journal(path);
    log_info("back");
    n = recv(journal, text, sizeof text - 1, MSG_DONTWAIT);
    text[n < 0 ? 0 : n] = '\0';
    cr_assert_not_null(strstr(text, "MESSAGE=back\n"));
    unlink(path);
    unlink(file);
}

/* JOURNAL_STREAM is inherited by what a unit starts, wherever that sends its standard error. */
Test(log, a_variable_that_means_another_stream_is_none) {
    char path[108], file[] = "/tmp/test_log_XXXXXX", text[256];
    int journal = fake_journal(path);
    say_stderr_is_the_journal();
    to_stderr(mkstemp(file));
    log_sink_journal_path(path);
    log_set_format(LOG_FORMAT_AUTO);
    cr_expect_eq(log_get_format(), LOG_FORMAT_TEXT);
    log_info("here");
    read_back(file, text, sizeof text);
    cr_expect_str_eq(text, "inferd: info: here\n");
    /* but who asks for the journal gets it, where there is one */
    log_set_format(LOG_FORMAT_JOURNALD);
    cr_expect_eq(log_get_format(), LOG_FORMAT_JOURNALD);
    unlink(path);
    log_set_format(LOG_FORMAT_JOURNALD);
    cr_expect_eq(log_get_format(), LOG_FORMAT_TEXT);
    close(journal);
    unlink(file);
}
