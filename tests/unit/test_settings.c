/* Tables of settings and command lines, on a table of the test's own. */
#include "options.h"
#include "settings.h"

#include <criterion/criterion.h>
#include <string.h>

struct values {
    char *name, *mode;
    bool quiet, colour;
    size_t count, size;
    double share, wait;
};

#define AT(field) .offset = offsetof(struct values, field), .name = #field

static const struct setting rows[] = {
    {AT(name), SETTING_STRING, .initial = "nobody", .alias = "n nick", .group = "Who", .help = "the name"},
    {AT(mode), SETTING_CHOICE, .initial = "slow", .choices = "slow fast gear:N", .group = "Who", .help = "the mode"},
    {AT(quiet), SETTING_BOOL, .initial = "false", .alias = "q", .group = "How", .help = "say nothing"},
    {AT(colour), SETTING_BOOL, .initial = "true", .group = "How", .help = "print without colours"},
    {AT(count), SETTING_INT, .initial = "3", .min = 1, .max = 9007199254740992.0, .group = "How", .help = "how many"},
    {AT(size), SETTING_SIZE, .initial = "1M", .min = 0, .max = 4294967296.0, .group = "How", .flags = SETTING_ENGINE,
     .help = "how large"},
    {AT(share), SETTING_NUMBER, .initial = "0.5", .min = -1, .max = 1, .group = "How", .help = "which part"},
    {AT(wait), SETTING_SECONDS, .initial = "1.5", .min = 0, .max = 60, .group = "How", .help = "how long"},
};
static const struct settings table = {rows, sizeof rows / sizeof rows[0]};
static struct error err;

static int parse(struct options *o, size_t operands, const char *const *args) {
    const struct option_group group = {table, 0};
    char *argv[16];
    int argc = 0;
    for (; args[argc]; argc++) {
        argv[argc] = (char *)args[argc];
    }
    return options_parse(argc, argv, &group, 1, operands, o, &err);
}

#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})

Test(settings, defaults) {
    struct values v;
    memset(&v, 0xaa, sizeof v); /* whatever was there is neither read nor freed */
    cr_assert_eq(settings_init(table, &v, &err), 0);
    cr_expect_str_eq(v.name, "nobody");
    cr_expect_str_eq(v.mode, "slow");
    cr_expect_not(v.quiet);
    cr_expect(v.colour);
    cr_expect_eq(v.count, 3);
    cr_expect_eq(v.size, 1048576);
    cr_expect_float_eq(v.share, 0.5, 0);
    cr_expect_float_eq(v.wait, 1.5, 0);
    for (size_t i = 0; i < table.n; i++) {
        cr_expect(setting_is_default(&rows[i], &v), "%s", rows[i].name);
    }
    settings_free(table, &v);
    cr_expect_null(v.name);
    settings_free(table, &v);
    settings_free(table, NULL);
}

Test(settings, a_command_line) {
    struct values v;
    struct options o;
    cr_assert_eq(settings_init(table, &v, &err), 0);
    cr_assert_eq(
        parse(&o, 3,
              ARGS("a", "-n", "x", "--no-colour", "-q", "-", "--share", "-0.25", "--wait=90ms", "--", "--count")),
        0, "%s", err.message);
    cr_assert_eq(options_apply(&o, table, &v, &err), 0, "%s", err.message);
    cr_expect_str_eq(v.name, "x");
    cr_expect(v.quiet);
    cr_expect_not(v.colour);
    cr_expect_float_eq(v.share, -0.25, 0);
    cr_expect_float_eq(v.wait, 0.09, 1e-15);
    cr_assert_eq(o.n_operands, 3);
    cr_expect_str_eq(o.operands[0], "a");
    cr_expect_str_eq(o.operands[1], "-");
    cr_expect_str_eq(o.operands[2], "--count");
    cr_expect_str_eq(options_value(&o, &rows[0]), "x");
    cr_expect_null(options_value(&o, &rows[1]));
    options_free(&o);
    settings_free(table, &v);
}

Test(settings, help_comes_before_faults_but_not_behind_the_end_of_options) {
    struct options o;
    cr_assert_eq(parse(&o, 0, ARGS("--bogus", "-h")), 0);
    cr_expect(o.help);
    options_free(&o);
    cr_assert_eq(parse(&o, 1, ARGS("--", "--help")), 0);
    cr_expect_not(o.help);
    options_free(&o);
    options_free(&o);
    options_free(NULL);
}

Test(settings, some_rows_only) {
    const struct option_group group = {table, SETTING_ENGINE};
    struct options o;
    char size[] = "--size=2K", count[] = "--count=2";
    char *good[] = {size}, *bad[] = {count};
    cr_assert_eq(options_parse(1, good, &group, 1, 0, &o, &err), 0);
    options_free(&o);
    cr_assert_eq(options_parse(1, bad, &group, 1, 0, &o, &err), -1);
    cr_expect_str_eq(err.message, "there is no option --count"); /* one that is no option here is not proposed either */
}

Test(settings, largest_integers_are_exact) {
    struct values v;
    cr_assert_eq(settings_init(table, &v, &err), 0);
    cr_assert_eq(setting_set(&rows[4], &v, "count", "9007199254740992", &err), 0);
    cr_expect_eq(v.count, 9007199254740992u);
    cr_assert_eq(setting_set(&rows[4], &v, "count", "9007199254740991", &err), 0);
    cr_expect_eq(v.count, 9007199254740991u);
    cr_expect_eq(setting_set(&rows[4], &v, "count", "9007199254740994", &err), -1);
    settings_free(table, &v);
}

Test(settings, numbered_choices) {
    static const char *const good[] = {"slow", "gear:0", "gear:12"};
    static const char *const bad[] = {"gear", "gear:", "gear:x", "gear:1x", "gear:-1", "gear:12345", "fast:1", "ear:1", ":1"};
    struct values v;
    cr_assert_eq(settings_init(table, &v, &err), 0);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        cr_expect_eq(setting_set(&rows[1], &v, "--mode", good[i], &err), 0, "%s", good[i]);
        cr_expect_str_eq(v.mode, good[i]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cr_expect_eq(setting_set(&rows[1], &v, "--mode", bad[i], &err), -1, "%s", bad[i]);
    }
    settings_free(table, &v);
}

Test(settings, numbers_that_are_none) {
    static const char *const bad[] = {"",   "-",  ".",   "-.",  "1.",  ".5", "1..2", "1.2.3", "+1",
                                      " 1", "1 ", "0x1", "1e0", "--1", "1-", "inf",  "0.5s"};
    struct values v;
    cr_assert_eq(settings_init(table, &v, &err), 0);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_expect_eq(setting_set(&rows[6], &v, "share", bad[i], &err), -1, "\"%s\"", bad[i]);
        cr_expect_eq(v.share, 0.5);
    }
    settings_free(table, &v);
}

Test(settings, long_values_are_quoted_in_part) {
    struct values v;
    cr_assert_eq(settings_init(table, &v, &err), 0);
    cr_expect_eq(setting_set(&rows[6], &v, "share", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\xc3\xa9zzzz", &err),
                 -1);
    cr_expect_str_eq(err.message,
                     "share must be a number from -1 to 1, not \"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa...\"");
    settings_free(table, &v);
}

Test(settings, what_was_meant) {
    cr_expect_str_eq(settings_nearest(table, "cuont", 5), "count");
    cr_expect_str_eq(settings_nearest(table, "colou", 5), "colour");
    cr_expect_str_eq(settings_nearest(table, "coulour", 7), "colour");
    cr_expect_str_eq(settings_nearest(table, "moed", 4), "mode");
    cr_expect_null(settings_nearest(table, "mud", 3));
    cr_expect_null(settings_nearest(table, "zzzzzzzz", 8));
    cr_expect_null(settings_nearest(table, "", 0));
    char longest[500];
    memset(longest, 'c', sizeof longest);
    cr_expect_null(settings_nearest(table, longest, sizeof longest));
}

Test(settings, help) {
    struct buf b = BUF_INIT;
    settings_help(table, 0, &b);
    cr_expect_str_eq(b.data, "\nWho:\n"
                             "  -n, --nick, --name TEXT      the name (default nobody)\n"
                             "  --mode WORD                  the mode: slow, fast or gear:N (default slow)\n"
                             "\nHow:\n"
                             "  -q, --quiet                  say nothing\n"
                             "  --no-colour                  print without colours\n"
                             "  --count N                    how many (default 3)\n"
                             "  --size SIZE                  how large (default 1M)\n"
                             "  --share NUMBER               which part (default 0.5)\n"
                             "  --wait SECONDS               how long (default 1.5)\n");
    buf_free(&b);
}

Test(settings, lines_are_broken_at_spaces) {
    struct buf b = BUF_INIT;
    wrap_text(&b, "one two  three aaaaaaaaaaaaaaaaaaaa four", 0, 2, 9);
    cr_expect_str_eq(b.data, "one two\n  three\n  aaaaaaaaaaaaaaaaaaaa\n  four");
    buf_free(&b);
}

Test(settings, copies) {
    static const char *const other[] = {"somebody", "gear:3", "true", "false", "4", "2M", "0.25", "2"};
    struct values a, b;
    cr_assert_eq(settings_init(table, &a, &err), 0);
    cr_assert_eq(settings_init(table, &b, &err), 0);
    for (size_t i = 0; i < table.n; i++) {
        cr_expect(setting_equal(&rows[i], &a, &b), "%s", rows[i].name);
        cr_assert_eq(setting_set(&rows[i], &b, rows[i].name, other[i], &err), 0, "%s", err.message);
        cr_expect_not(setting_equal(&rows[i], &a, &b), "%s", rows[i].name);
        cr_assert_eq(setting_copy(&rows[i], &b, &a, &err), 0);
        cr_expect(setting_equal(&rows[i], &a, &b), "%s", rows[i].name);
    }
    settings_free(table, &b); /* the copies are their own */
    cr_expect_str_eq(a.name, "somebody");
    cr_expect(a.count == 4 && a.quiet && !a.colour && a.size == 2097152);
    settings_free(table, &a);
}
