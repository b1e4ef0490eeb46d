#include "cmd/chat_history.h"

#include <criterion/criterion.h>
#include <string.h>

static struct chat_history h;
static struct error err;

static void add(const char *role, const char *text) {
    cr_assert_eq(chat_history_add(&h, role, text, strlen(text), &err), 0);
}

static void expect(const char *json) {
    struct buf b = BUF_INIT;
    chat_history_json(&h, &b);
    cr_expect_str_eq(b.data, json);
    buf_free(&b);
}

Test(chat_history, json_holds_any_text) {
    expect("[]");
    add("system", "");
    add("user", "say \"hi\"\n\xff");
    expect("[{\"role\": \"system\", \"content\": \"\"}, "
           "{\"role\": \"user\", \"content\": \"say \\\"hi\\\"\\n\xef\xbf\xbd\"}]");
    chat_history_free(&h);
    expect("[]");
}

Test(chat_history, the_oldest_turn_goes_and_the_system_message_stays) {
    add("system", "s");
    add("user", "1");
    add("assistant", "one");
    add("user", "2");
    add("assistant", "two");
    add("user", "3");
    cr_expect(chat_history_drop_turn(&h));
    expect("[{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": \"2\"}, "
           "{\"role\": \"assistant\", \"content\": \"two\"}, {\"role\": \"user\", \"content\": \"3\"}]");
    cr_expect(chat_history_drop_turn(&h));
    expect("[{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": \"3\"}]");
    cr_expect_not(chat_history_drop_turn(&h)); /* the question itself must stay */
    expect("[{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": \"3\"}]");
    chat_history_free(&h);
}

Test(chat_history, without_a_system_message) {
    add("user", "1");
    add("assistant", "one");
    add("user", "2");
    cr_expect(chat_history_drop_turn(&h));
    expect("[{\"role\": \"user\", \"content\": \"2\"}]");
    cr_expect_not(chat_history_drop_turn(&h));
    chat_history_forget_last(&h);
    expect("[]");
    chat_history_forget_last(&h);
    cr_expect_not(chat_history_drop_turn(&h));
    chat_history_free(&h);
}

Test(chat_history, grows) {
    for (int i = 0; i < 1000; i++) {
        add(i % 2 ? "assistant" : "user", "x");
    }
    cr_expect_eq(h.n, 1000);
    for (int i = 0; i < 499; i++) {
        cr_expect(chat_history_drop_turn(&h));
    }
    cr_expect_eq(h.n, 2);
    chat_history_free(&h);
}
