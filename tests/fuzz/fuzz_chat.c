/* The messages of a chat, through templates of each content form and with the final message left open. */
#include "text/chat_json.h"
#include "text/text_impl.h"

#include <inferd/json.h>
#include <stdlib.h>
#include <string.h>

static void render(const char *template, const char *messages, size_t len, bool continued) {
    struct error err;
    struct text t = {.bos_id = -1};
    struct marked_text out = {0};
    if (text_set_chat_template(&t, template, strlen(template), &err) < 0) {
        abort();
    }
    struct chat_request r = {.messages_json = messages, .messages_len = len, .continue_final_message = continued};
    text_render_chat(&t, &r, &out, &err);
    if (out.bytes.len != out.trusted.len) {
        abort();
    }
    marked_text_free(&out);
    text_drop_chat_templates(&t);
}

/* An edit of valid JSON is valid JSON. */
static void edit(int (*e)(struct span, struct buf *, struct error *), const char *messages, size_t len) {
    struct error err;
    struct buf out = BUF_INIT;
    const struct json_limits limits = {.max_depth = JSON_DEPTH_CEILING, .allow_nul = true, .allow_duplicate = true};
    if (e((struct span){messages, len}, &out, &err) == 0 && json_check(out.data, out.len, &limits, &err) < 0) {
        abort();
    }
    buf_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct error err;
    const char *messages = (const char *)data;
    if (json_check(messages, size, NULL, &err) < 0) {
        return 0;
    }
    static const char plain[] = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";
    static const char parts[] =
        "{% for m in messages %}[{{ m.role }}]{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}";
    static const char calls[] =
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson "
        "}}{% endfor %}{{ m.content }}{% endfor %}";
    edit(chat_json_join_parts, messages, size);
    edit(chat_json_wrap_strings, messages, size);
    edit(chat_json_decode_arguments, messages, size);
    for (int continued = 0; continued < 2; continued++) {
        render(plain, messages, size, continued);
        render(parts, messages, size, continued);
        render(calls, messages, size, continued);
    }
    return 0;
}
