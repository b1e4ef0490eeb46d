/* Settings: values, their ranges and spellings; file, environment, flags and who wins; what may not go together. */
#include "config.h"

#include <criterion/criterion.h>
#include <inferd/engine.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A file with this text; the name is unlinked by the caller. */
static char *temp_file(const char *text, size_t len) {
    char *path = strdup("/tmp/inferd-config-XXXXXX");
    int fd = mkstemp(path);
    cr_assert(fd >= 0);
    cr_assert_eq(write(fd, text, len), (ssize_t)len);
    close(fd);
    return path;
}

static struct error err;

/* Load with this file text (NULL = none), this environment and these flags (NULL-terminated). */
static int load(struct config *c, const char *file, const char *const *env, const char *const *flags,
                struct buf *warnings) {
    char *argv[16];
    int argc = 0;
    struct options o = {0};
    const struct option_group group = {config_settings(), 0};
    char *path = file ? temp_file(file, strlen(file)) : NULL;
    for (; flags && flags[argc]; argc++) {
        argv[argc] = (char *)flags[argc];
    }
    if (path) {
        argv[argc++] = (char *)"--config";
        argv[argc++] = path;
    }
    cr_assert_eq(config_init(c, &err), 0);
    int r = options_parse(argc, argv, &group, 1, 0, &o, &err);
    if (r == 0) {
        r = config_load(c, &o, (char *const *)env, warnings, &err);
    }
    options_free(&o);
    if (path) {
        /* what the sentence says must not depend on the name of the temporary file */
        char *at = r != 0 ? strstr(err.message, path) : NULL;
        if (at) {
            memmove(at + 4, at + strlen(path), strlen(at + strlen(path)) + 1);
            memcpy(at, "FILE", 4);
        }
        unlink(path);
        free(path);
    }
    return r;
}

static void expect_file_error(const char *text, const char *message) {
    struct config c;
    cr_assert_eq(load(&c, text, NULL, NULL, NULL), -1, "%s", text);
    cr_expect_eq(err.code, ERROR_MODEL);
    cr_expect_str_eq(err.message, message);
    config_free(&c);
}

static void expect_flag_error(const char *a, const char *b, const char *message) {
    struct config c;
    const char *flags[] = {a, b, NULL};
    cr_assert_eq(load(&c, NULL, NULL, flags, NULL), -1, "%s %s", a, b ? b : "");
    cr_expect_eq(err.code, ERROR_INVALID);
    cr_expect_str_eq(err.message, message);
    config_free(&c);
}

Test(config, defaults_are_those_of_the_engine) {
    struct config c;
    struct engine_config mine, engine;
    cr_assert_eq(load(&c, NULL, NULL, NULL, NULL), 0);
    config_engine(&c, &mine);
    engine_config_default(&engine);
    cr_expect_str_eq(mine.model, "");
    cr_expect_str_eq(mine.device, engine.device);
    cr_expect_null(mine.cpu_variant);
    cr_expect_str_eq(mine.weights, engine.weights);
    cr_expect_str_eq(mine.kv_dtype, engine.kv_dtype);
    cr_expect_eq(mine.threads, engine.threads);
    cr_expect_eq(mine.max_model_len, engine.max_model_len);
    cr_expect_eq(mine.max_sequences, engine.max_sequences);
    cr_expect_eq(mine.max_batched_tokens, engine.max_batched_tokens);
    cr_expect_eq(mine.max_waiting, engine.max_waiting);
    cr_expect_eq(mine.kv_block_size, engine.kv_block_size);
    cr_expect_float_eq(mine.memory_utilization, engine.memory_utilization, 1e-12);
    cr_expect_eq(mine.kv_tokens, engine.kv_tokens);
    cr_expect_eq(mine.prefix_cache, engine.prefix_cache);
    cr_expect_eq(mine.speculative_tokens, engine.speculative_tokens);
    cr_expect_eq(mine.max_waiting_tokens, engine.max_waiting_tokens);
    cr_expect_str_eq(mine.scheduling, engine.scheduling);
    cr_expect_float_eq(mine.priority_ageing, engine.priority_ageing, 1e-12);
    config_free(&c);
}

Test(config, engine_gets_what_was_set) {
    struct config c;
    struct engine_config e;
    const char *flags[] = {
        "--device=cpu",    "--cpu-variant=avx2",       "--kv=bf16", "--weights=int8",          "--threads=3", "--ctx=77", "--batch=5",
        "--kv-tokens=640", "--memory-utilization=0.5", "--kv-block-size=32", "--null-step-time=13.5ms",
        "--prefix-cache=off", "--speculative-tokens=16", "--scheduling=priority", "--priority-ageing=2.5",
        "--max-waiting-tokens=9000", NULL};
    const char *env[] = {"INFERD_MODEL=m.gguf", "INFERD_MAX_WAITING=6", "INFERD_MAX_BATCHED_TOKENS=99", NULL};
    cr_assert_eq(load(&c, NULL, env, flags, NULL), 0, "%s", err.message);
    config_engine(&c, &e);
    cr_expect_str_eq(e.model, "m.gguf");
    cr_expect_str_eq(e.device, "cpu");
    cr_expect_str_eq(e.cpu_variant, "avx2");
    cr_expect_str_eq(e.weights, "int8");
    cr_expect_str_eq(e.kv_dtype, "bf16");
    cr_expect_eq(e.threads, 3);
    cr_expect_eq(e.max_model_len, 77);
    cr_expect_eq(e.max_sequences, 5);
    cr_expect_eq(e.max_batched_tokens, 99);
    cr_expect_eq(e.max_waiting, 6);
    cr_expect_eq(e.kv_block_size, 32);
    cr_expect_eq(e.kv_tokens, 640);
    cr_expect_eq(e.prefix_cache, false);
    cr_expect_eq(e.speculative_tokens, 16);
    cr_expect_str_eq(e.scheduling, "priority");
    cr_expect_float_eq(e.priority_ageing, 2.5, 1e-12);
    cr_expect_eq(e.max_waiting_tokens, 9000);
    cr_expect_eq(e.null_step_ns, 13500000);
    cr_expect_float_eq(e.memory_utilization, 0.5, 1e-12);
    config_free(&c);
}

Test(config, flags_beat_environment_beats_file_beats_default) {
    struct config c;
    const char *file = "port = 1\nmax_waiting = 2\nmax_n = 3\n";
    const char *env[] = {"PATH=/bin", "INFERD_PORT=10", "INFERD_MAX_WAITING=20", NULL};
    const char *flags[] = {"--port", "100", NULL};
    cr_assert_eq(load(&c, file, env, flags, NULL), 0, "%s", err.message);
    cr_expect_eq(c.port, 100);
    cr_expect_eq(c.max_waiting, 20);
    cr_expect_eq(c.max_n, 3);
    cr_expect_eq(c.max_connections, 4096);
    config_free(&c);
}

Test(config, the_file_may_be_named_by_the_environment) {
    struct config c;
    const char *text = "port = 77\n";
    char *path = temp_file(text, strlen(text)), variable[128];
    snprintf(variable, sizeof variable, "INFERD_CONFIG=%s", path);
    const char *env[] = {variable, NULL};
    cr_assert_eq(load(&c, NULL, env, NULL, NULL), 0, "%s", err.message);
    cr_expect_eq(c.port, 77);
    cr_expect_str_eq(c.config, path);
    config_free(&c);
    unlink(path);
    free(path);
}

Test(config, spellings_of_flags) {
    static const struct {
        const char *flags[4];
        bool insecure;
        size_t max_model_len;
    } cases[] = {
        {{"--insecure", NULL}, true, 0},
        {{"--insecure=false", NULL}, false, 0},
        {{"--insecure", "--no-insecure", NULL}, false, 0}, /* the last one counts */
        {{"--insecure=ON", NULL}, true, 0},
        {{"--max-model-len=9", NULL}, false, 9},
        {{"--max_model_len", "9", NULL}, false, 9},
        {{"--ctx", "9", NULL}, false, 9},
        {{"--ctx=8", "--max-model-len=9", NULL}, false, 9},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct config c;
        cr_assert_eq(load(&c, NULL, NULL, cases[i].flags, NULL), 0, "%zu: %s", i, err.message);
        cr_expect_eq(c.insecure, cases[i].insecure, "%zu", i);
        cr_expect_eq(c.max_model_len, cases[i].max_model_len, "%zu", i);
        config_free(&c);
    }
}

Test(config, flags_that_are_refused) {
    expect_flag_error("--prot", "80", "there is no option --prot; did you mean --port?");
    expect_flag_error("--max-wating=1", NULL, "there is no option --max-wating; did you mean --max-waiting?");
    expect_flag_error("--xyzzy", NULL, "there is no option --xyzzy");
    expect_flag_error("-x", NULL, "there is no option -x");
    expect_flag_error("-port", "1", "there is no option -port; did you mean --port?");
    expect_flag_error("--c", "x", "there is no option --c");
    expect_flag_error("--port", NULL, "--port needs a value");
    expect_flag_error("--model", "--insecure", "--model needs a value");
    expect_flag_error("--no-port", NULL, "there is no option --no-port");
    expect_flag_error("--port=", NULL, "--port must be an integer from 0 to 65535, not \"\"");
    expect_flag_error("--port", "65536", "--port must be an integer from 0 to 65535, not \"65536\"");
    expect_flag_error("--port", "-1", "--port must be an integer from 0 to 65535, not \"-1\"");
    expect_flag_error("--port", "8e3", "--port must be an integer from 0 to 65535, not \"8e3\"");
    expect_flag_error("--port", "99999999999999999999",
                      "--port must be an integer from 0 to 65535, not \"99999999999999999999\"");
    expect_flag_error("--max-sequences", "65536", "--max-sequences must be an integer from 1 to 65535, not \"65536\"");
    expect_flag_error("--ctx", "x\ny", "--ctx must be an integer from 0 to 16777216, not \"x?y\"");
    expect_flag_error("--kv", "f8", "--kv must be f16, bf16 or int8, not \"f8\"");
    expect_flag_error("--log-level", "inf", "--log-level must be error, warn, info or debug, not \"inf\"");
    expect_flag_error("--insecure=maybe", NULL, "--insecure must be true or false, not \"maybe\"");
    expect_flag_error("--memory-utilization", "1.01",
                      "--memory-utilization must be a number from 0.01 to 1, not \"1.01\"");
    expect_flag_error("--memory-utilization", "nan",
                      "--memory-utilization must be a number from 0.01 to 1, not \"nan\"");
    expect_flag_error("--max-body-size", "2T", "--max-body-size must be a size in bytes from 1K to 1G, not \"2T\"");
    expect_flag_error("--max-body-size", "2G", "--max-body-size must be a size in bytes from 1K to 1G, not \"2G\"");
    expect_flag_error("--header-timeout", "0",
                      "--header-timeout must be a time in seconds from 0.1 to 3600, not \"0\"");
    expect_flag_error("--header-timeout", "2d",
                      "--header-timeout must be a time in seconds from 0.1 to 3600, not \"2d\"");
    expect_flag_error("MODEL", NULL, "the argument \"MODEL\" is one too many");
}

Test(config, an_old_value_stays_when_a_new_one_is_refused) {
    struct config c;
    const struct setting *host = settings_find(config_settings(), "host", 4);
    const struct setting *port = settings_find(config_settings(), "port", 4);
    cr_assert_eq(load(&c, NULL, NULL, NULL, NULL), 0);
    cr_expect_eq(setting_set(host, &c, "host", "a\x1b[31m", &err), -1);
    cr_expect_str_eq(c.host, "127.0.0.1");
    cr_expect_eq(setting_set(port, &c, "port", "70000", &err), -1);
    cr_expect_eq(c.port, 8080);
    cr_expect_str_eq(err.param, "port");
    config_free(&c);
}

Test(config, sizes_and_times) {
    static const struct {
        const char *text;
        size_t bytes;
    } sizes[] = {{"1024", 1024}, {"64K", 65536}, {"64KiB", 65536}, {"8m", 8388608}, {"1G", 1073741824}, {"1.5K", 1536}};
    static const struct {
        const char *text;
        double seconds;
    } times[] = {{"30", 30}, {"0.5", 0.5}, {"250ms", 0.25}, {"2m", 120}, {"1h", 3600}, {"5S", 5}};
    struct config c;
    cr_assert_eq(load(&c, NULL, NULL, NULL, NULL), 0);
    const struct setting *body = settings_find(config_settings(), "max_body_size", 13);
    const struct setting *idle = settings_find(config_settings(), "idle_timeout", 12);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        cr_expect_eq(setting_set(body, &c, "x", sizes[i].text, &err), 0, "%s", sizes[i].text);
        cr_expect_eq(c.max_body_size, sizes[i].bytes, "%s: %zu", sizes[i].text, c.max_body_size);
    }
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
        cr_expect_eq(setting_set(idle, &c, "x", times[i].text, &err), 0, "%s", times[i].text);
        cr_expect_float_eq(c.idle_timeout, times[i].seconds, 1e-12, "%s", times[i].text);
    }
    cr_expect_eq(setting_set(body, &c, "x", "1024.5", &err), -1); /* no half bytes */
    config_free(&c);
}

Test(config, files) {
    struct config c;
    const char *text = "# comment\n; comment\n\n  port = 1\n\tmax_n=2 \r\nhost: ::1\n"
                       "served_model_name = a b ; rest\nmax_body_size = 64K\nstrict_requests = yes";
    cr_assert_eq(load(&c, text, NULL, NULL, NULL), 0, "%s", err.message);
    cr_expect_eq(c.port, 1);
    cr_expect_eq(c.max_n, 2);
    cr_expect_str_eq(c.host, "::1");
    cr_expect_str_eq(c.served_model_name, "a b");
    cr_expect_eq(c.max_body_size, 65536);
    cr_expect(c.strict_requests);
    config_free(&c);
}

Test(config, a_path_may_be_longer_than_the_buffer_of_inih) {
    struct config c;
    for (size_t len = 150; len < 4096; len += len < 250 ? 1 : 411) {
        char text[8192], path[4097];
        memset(path, 'p', len);
        path[len] = '\0';
        snprintf(text, sizeof text, "model = %s ; the model\nport = 5\n", path);
        cr_assert_eq(load(&c, text, NULL, NULL, NULL), 0, "%zu: %s", len, err.message);
        cr_expect_str_eq(c.model, path, "%zu", len);
        cr_expect_eq(c.port, 5);
        config_free(&c);
    }
}

Test(config, faults_of_files_name_the_line) {
    expect_file_error("port = 1\nprot = 2\n", "FILE:2: there is no setting prot; did you mean port?");
    expect_file_error("wibble = 2\n", "FILE:1: there is no setting wibble");
    expect_file_error("# x\n\nport = x\n", "FILE:3: port must be an integer from 0 to 65535, not \"x\"");
    expect_file_error("port = 1\nport = 2\n", "FILE:2: the setting was given before");
    expect_file_error("port = 1\n  port = 2\n", "FILE:2: the setting was given before");
    expect_file_error("ctx = 1\nmax_model_len = 2\n", "FILE:2: the setting was given before");
    expect_file_error("config = x\n", "FILE:1: a settings file cannot name another one");
    expect_file_error("[server]\nport = 1\n", "FILE:2: settings stand outside of [sections]");
    expect_file_error("port = 1\nport\nmax_n = 2\n", "FILE:2: the line is not \"name = value\"");
    expect_file_error("= 1\n", "FILE:1: there is no setting ");
    /* the first fault is the one that is named */
    expect_file_error("port = x\nmax_n = y\n", "FILE:1: port must be an integer from 0 to 65535, not \"x\"");
}

Test(config, files_that_are_no_text) {
    struct config c;
    char *path = temp_file("port = 1\nmax_n\0 = 3\n", 20);
    cr_assert_eq(config_init(&c, &err), 0);
    cr_expect_eq(config_load_file(&c, path, &err), -1);
    cr_expect_not_null(strstr(err.message, ":2: the line has a NUL byte"), "%s", err.message);
    unlink(path);
    free(path);

    size_t len = 100000;
    char *line = malloc(len);
    memset(line, 'a', len);
    path = temp_file(line, len);
    cr_expect_eq(config_load_file(&c, path, &err), -1);
    cr_expect_not_null(strstr(err.message, ":1: the line is too long"), "%s", err.message);
    unlink(path);
    free(path);
    free(line);

    cr_expect_eq(config_load_file(&c, "/nonexistent/inferd.conf", &err), -1);
    cr_expect_str_eq(err.message, "/nonexistent/inferd.conf: No such file or directory");
    cr_expect_eq(err.code, ERROR_MODEL);
    cr_expect_eq(config_load_file(&c, "/", &err), -1);
    cr_expect_str_eq(err.message, "/: Is a directory");
    config_free(&c);
}

Test(config, environment) {
    struct config c;
    struct buf warnings = BUF_INIT;
    const char *env[] = {"INFERD_HOST=::1", "INFERD_SHARED=/x", "INFERD_PROT=5",           "INFERD_", "INFERD",
                         "INFERD_MAX-N=3",  "INFERD_CTX=4",     "INFERD_DRAIN_TIMEOUT=1m", NULL};
    cr_assert_eq(load(&c, NULL, env, NULL, &warnings), 0, "%s", err.message);
    cr_expect_str_eq(c.host, "::1");
    cr_expect_float_eq(c.drain_timeout, 60, 1e-12);
    cr_expect_eq(c.max_n, 8);
    cr_expect_eq(c.max_model_len, 0); /* aliases are for the command line */
    cr_expect_not_null(strstr(warnings.data, "INFERD_PROT"));
    cr_expect_null(strstr(warnings.data, "INFERD_SHARED"));
    buf_free(&warnings);
    config_free(&c);

    const char *bad[] = {"INFERD_PORT=http", NULL};
    cr_assert_eq(load(&c, NULL, bad, NULL, NULL), -1);
    cr_expect_eq(err.code, ERROR_MODEL);
    cr_expect_str_eq(err.message, "INFERD_PORT must be an integer from 0 to 65535, not \"http\"");
    config_free(&c);
}

Test(config, service_links_of_kubernetes_are_no_settings) {
    struct config c;
    struct buf warnings = BUF_INIT;
    const char *env[] = {"INFERD_PORT=tcp://10.96.0.7:80",    "INFERD_PORT_80_TCP=tcp://10.96.0.7:80",
                         "INFERD_SERVICE_HOST=10.96.0.7",     "INFERD_SERVICE_PORT=80",
                         "INFERD_PORT_80_TCP_ADDR=10.96.0.7", NULL};
    cr_assert_eq(load(&c, NULL, env, NULL, &warnings), 0, "%s", err.message);
    cr_expect_eq(c.port, 8080);
    cr_expect_str_eq(c.host, "127.0.0.1");
    cr_expect_eq(warnings.len, 0);
    buf_free(&warnings);
    config_free(&c);
}

Test(config, secrets_are_never_printed) {
    struct config c;
    struct buf text = BUF_INIT;
    const char *env[] = {"INFERD_API_KEY=hunter2", NULL}, *bad[] = {"INFERD_API_KEY=hunter2\x01", NULL};
    cr_assert_eq(load(&c, NULL, env, NULL, NULL), 0);
    config_print(&c, &text);
    cr_expect_null(strstr(text.data, "hunter2"));
    cr_expect_not_null(strstr(text.data, "#api_key = (not shown)"));
    buf_free(&text);
    config_free(&c);
    cr_assert_eq(load(&c, NULL, bad, NULL, NULL), -1);
    cr_expect_null(strstr(err.message, "hunter2"));
    config_free(&c);
}

/* What is printed can be read again and means the same. */
Test(config, printed_settings_read_back) {
    struct config c, again;
    struct buf text = BUF_INIT, second = BUF_INIT;
    const char *flags[] = {"--port=9", "--max-body-size=3M", "--idle-timeout=1.5",        "--kv=bf16", "--insecure",
                           "-m",       "/m x.gguf",          "--memory-utilization=0.25", NULL};
    cr_assert_eq(load(&c, NULL, NULL, flags, NULL), 0, "%s", err.message);
    config_print(&c, &text);
    cr_expect_not_null(strstr(text.data, "\nmax_body_size = 3M\n"));
    cr_expect_not_null(strstr(text.data, "\n#max_header_size = 16K\n"));
    cr_assert_eq(load(&again, text.data, NULL, NULL, NULL), 0, "%s", err.message);
    config_print(&again, &second);
    cr_expect_str_eq(second.data, text.data);
    cr_expect_str_eq(again.model, "/m x.gguf");
    cr_expect_float_eq(again.idle_timeout, 1.5, 1e-12);
    buf_free(&text);
    buf_free(&second);
    config_free(&c);
    config_free(&again);
}

/* conf/inferd.conf is config_print of the defaults; `inferd serve --print-config` writes it. */
Test(config, the_shipped_file_is_the_table) {
    struct config c;
    struct buf text = BUF_INIT;
    char shipped[65536];
    cr_assert_eq(load(&c, NULL, NULL, NULL, NULL), 0);
    config_print(&c, &text);
    FILE *f = fopen(getenv("INFERD_CONF"), "r");
    cr_assert_not_null(f);
    shipped[fread(shipped, 1, sizeof shipped - 1, f)] = '\0';
    fclose(f);
    cr_expect(strcmp(shipped, text.data) == 0, "write it anew: inferd serve --print-config > conf/inferd.conf");
    buf_free(&text);
    config_free(&c);
}

Test(config, every_row_is_complete) {
    struct settings t = config_settings();
    for (size_t i = 0; i < t.n; i++) {
        const struct setting *s = &t.rows[i];
        cr_expect(s->help && s->group && s->initial, "%s", s->name);
        cr_expect_neq(s->help[strlen(s->help) - 1], '.', "%s", s->name);
        cr_expect_eq(settings_find(t, s->name, strlen(s->name)), s, "two rows named %s", s->name);
        if (s->type == SETTING_INT || s->type == SETTING_SIZE || s->type == SETTING_SECONDS ||
            s->type == SETTING_NUMBER) {
            cr_expect(s->min < s->max, "%s", s->name);
        }
    }
}

/* --- what settings mean together --- */

static void expect_check(const char *const *flags, const char *param, const char *message) {
    struct config c;
    cr_assert_eq(load(&c, NULL, NULL, flags, NULL), 0, "%s", err.message);
    int r = config_check(&c, &err);
    if (!param) {
        cr_expect_eq(r, 0, "%s", err.message);
    } else {
        cr_assert_eq(r, -1, "%s", param);
        cr_expect_eq(err.code, ERROR_MODEL);
        cr_expect_str_eq(err.param, param);
        cr_expect_not_null(strstr(err.message, message), "%s", err.message);
    }
    config_free(&c);
}

#define CHECK(param, message, ...) expect_check((const char *[]){__VA_ARGS__, NULL}, param, message)
#define M "--model=/dev/null"

Test(config, checks) {
    CHECK("model", "no model is named", "--port=1");
    CHECK("model", "/nonexistent: No such file", "--model=/nonexistent/a/b.gguf");
    CHECK(NULL, "", M);
    CHECK(NULL, "", M, "--host=localhost");
    CHECK(NULL, "", M, "--host=127.9.9.9");
    CHECK(NULL, "", M, "--host=::1");
    CHECK("host", "must be an IPv4 or IPv6 address", M, "--host=example.org");
    CHECK("host", "must be an IPv4 or IPv6 address", M, "--host=");
    CHECK("host", "anybody could use 0.0.0.0", M, "--host=0.0.0.0");
    CHECK("host", "anybody could use [::]:8080", M, "--host=::");
    CHECK("host", "anybody could use 192.168.1.2", M, "--host=192.168.1.2");
    CHECK("host", "anybody could use [::ffff:127.0.0.1]:8080", M, "--host=::ffff:127.0.0.1");
    CHECK(NULL, "", M, "--host=0.0.0.0", "--insecure");
    CHECK(NULL, "", M, "--host=[::1], 127.0.0.1,unix:/run/inferd/http.sock");
    CHECK("host", "anybody could use 10.0.0.1", M, "--host=127.0.0.1,10.0.0.1");
    CHECK("host", "must be an IPv4 or IPv6 address", M, "--host=127.0.0.1:80");
    CHECK("host", "must be an IPv4 or IPv6 address", M, "--host=[127.0.0.1]");
    CHECK("host", "whole path", M, "--host=unix:http.sock");
    CHECK("host", "107 bytes at most", M,
          "--host=unix:/0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
          "0123456");
    CHECK("host", "8 addresses at most", M, "--host=::1,::1,::1,::1,::1,::1,::1,::1,::1");
    CHECK(NULL, "", M, "--admin-listen=localhost:9090");
    CHECK(NULL, "", M, "--admin-listen=[::1]:0");
    CHECK(NULL, "", M, "--admin-listen=unix:/run/inferd/admin.sock");
    CHECK("admin_listen", "an address and a port", M, "--admin-listen=9090");
    CHECK("admin_listen", "an address and a port", M, "--admin-listen=::1:9090");
    CHECK("admin_listen", "an address and a port", M, "--admin-listen=127.0.0.1:65536");
    CHECK("admin_listen", "an address and a port", M, "--admin-listen=127.0.0.1:");
    CHECK("admin_listen", "must be an IPv4 or IPv6 address", M, "--admin-listen=example.org:9090");
    CHECK("host", "anybody could use 0.0.0.0:9090", M, "--admin-listen=0.0.0.0:9090"); /* it counts, too */
    CHECK(NULL, "", M, "--admin-listen=0.0.0.0:9090", "--api-key=k");
    CHECK("unix_socket_mode", "must be octal", M, "--unix-socket-mode=0890");
    CHECK("unix_socket_mode", "must be octal", M, "--unix-socket-mode=1777");
    CHECK("tls_key", "TLS wants both", M, "--tls-certificate=/dev/null");
    CHECK("tls_certificate", "TLS wants both", M, "--tls-key=/dev/null");
    CHECK("tls_certificate", "/nonexistent.pem: No such file", M, "--tls-certificate=/nonexistent.pem", "--tls-key=k");
    CHECK(NULL, "", M, "--cors-origins=*");
    CHECK(NULL, "", M, "--cors-origins=https://a.example, http://localhost:3000");
    CHECK("cors_origins", "origins as https", M, "--cors-origins=https://a.example/chat");
    CHECK("cors_origins", "origins as https", M, "--cors-origins=a.example");
    CHECK("cors_origins", "origins as https", M, "--cors-origins=https://a.example,*");
    CHECK(NULL, "", M, "--host=0.0.0.0", "--api-key=k");
    CHECK("api_key", "without blanks", M, "--api-key=a b");
    CHECK("kv_block_size", "power of two", M, "--kv-block-size=24");
    CHECK("kv_tokens", "one block", M, "--kv-tokens=8");
    CHECK("max_batched_tokens", "at least max_sequences", M, "--max-batched-tokens=4", "--max-sequences=5");
}

Test(config, unreadable_paths_name_the_part_in_the_way) {
    char dir[] = "/tmp/inferd-config-XXXXXX", path[128], flag[160];
    cr_assert_not_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/inner", dir);
    cr_assert_eq(mkdir(path, 0), 0);
    cr_assert_eq(chmod(dir, 0755), 0);
    if (geteuid() == 0) { /* root may read everything */
        cr_assert_eq(seteuid(65534), 0);
    }
    snprintf(flag, sizeof flag, "--model=%s/model.gguf", path);
    CHECK("model", "inner: Permission denied (it belongs to user", flag);
    cr_assert_eq(seteuid(getuid()), 0);
    rmdir(path);
    rmdir(dir);
}

static int names_of(const char *setting, const char *model, struct model_names *names) {
    struct config c;
    cr_assert_eq(config_init(&c, &err), 0);
    free(c.served_model_name);
    free(c.model);
    c.served_model_name = strdup(setting);
    c.model = strdup(model);
    int rc = config_model_names(&c, names, &err);
    config_free(&c);
    return rc;
}

Test(config, model_names) {
    static const struct {
        const char *setting, *model, *names[4];
    } good[] = {
        {"", "/models/a.gguf", {"a"}},          {"", "a.b/", {"a.b"}},     {"", "/", {"model"}},       {"", ".gguf", {".gguf"}},
        {"x", "a.gguf", {"x"}},                 {"x, y\t,z", "a", {"x", "y", "z"}}, {"org/name", "a", {"org/name"}},
        {"two words , b", "a", {"two words", "b"}},
    };
    static const char *const bad[] = {",", "a,", ",a", "a,,b", "a,a", "a , a", "a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q"};
    struct model_names names;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        cr_assert_eq(names_of(good[i].setting, good[i].model, &names), 0, "%s", err.message);
        for (size_t k = 0; k < names.n; k++) {
            cr_expect_str_eq(names.list[k], good[i].names[k]);
        }
        cr_expect(names.n > 0 && good[i].names[names.n] == NULL);
        model_names_free(&names);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_assert_eq(names_of(bad[i], "a", &names), -1, "%s", bad[i]);
        cr_expect(err.code == ERROR_MODEL && strcmp(err.param, "served_model_name") == 0);
    }
    char longest[202];
    memset(longest, 'a', sizeof longest);
    longest[200] = '\0';
    cr_assert_eq(names_of(longest, "a", &names), 0);
    model_names_free(&names);
    longest[200] = 'a';
    longest[201] = '\0';
    cr_assert_eq(names_of(longest, "a", &names), -1);
}
