/* write_tiny_model FILE: for tests that need a daemon and no sense in what it says. */
#include "tiny_model.h"

#include <stddef.h>

int main(int argc, char **argv) {
    const struct tiny_model model = {
        .architecture = "llama",
        .context_length = 2048,
        .seed = 11,
        .nan_token = -1,
        .chat_template = "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
                         "{% if add_generation_prompt %}<assistant>{% endif %}",
    };
    return argc == 2 && tiny_model_write(argv[1], &model) ? 0 : 1;
}
