/* The messages of a chat, through templates of each content form and with the final message left open. */
#include "text/jinja/jinja.h"
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct error err;
    const char *messages = (const char *)data;
    if (json_check(messages, size, NULL, &err) < 0) {
        return 0;
    }
    static const char plain[] = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";
    static const char parts[] =
        "{% for m in messages %}[{{ m.role }}]{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}";
    for (int continued = 0; continued < 2; continued++) {
        render(plain, messages, size, continued);
        render(parts, messages, size, continued);
    }
    return 0;
}
