/*
 * The forms that families of models were tuned on, as their authors published them. A system message where a family has
 * no place for one goes in front of the first user message, as the newer templates of those families do it. What a form
 * cannot say is refused.
 */
#include "text/chat_families.h"

#include <inferd/text.h>
#include <string.h>

/* `system` is the text of a leading system message (or undefined) and `turns` the messages behind it. */
#define SPLIT_SYSTEM                                                                                                   \
    "{%- if messages and messages[0].role in ['system', 'developer'] -%}"                                              \
    "{%- set system = messages[0].content -%}{%- set turns = messages[1:] -%}"                                         \
    "{%- else -%}{%- set turns = messages -%}{%- endif -%}"

#define NO_CALLS(family)                                                                                               \
    "{%- for m in messages if m.tool_calls -%}"                                                                        \
    "{{- raise_exception('the chat form " family " has no place for tool calls') -}}{%- endfor -%}"

#define ONLY_CHATTERS(family)                                                                                          \
    NO_CALLS(family)                                                                                                   \
    "{%- for m in messages if m.role not in ['system', 'developer', 'user', 'assistant'] -%}"                          \
    "{{- raise_exception('the chat form " family " has no role ' ~ m.role) -}}{%- endfor -%}"

/* Turns of user and assistant take turns, the user's first. */
#define ALTERNATE(family)                                                                                              \
    NO_CALLS(family)                                                                                                   \
    "{%- for m in turns -%}"                                                                                           \
    "{%- if m.role != ('user' if loop.index0 is even else 'assistant') -%}"                                            \
    "{{- raise_exception('the chat form " family " wants user and assistant by turns, the user first') -}}"            \
    "{%- endif -%}{%- endfor -%}"

static const struct {
    const char *name, *source;
} families[] = {
    {"alpaca", ONLY_CHATTERS("alpaca") SPLIT_SYSTEM
     "{%- if system is defined -%}{{- system ~ '\n\n' -}}{%- endif -%}"
     "{%- for m in turns -%}"
     "{%- if m.role == 'user' -%}{{- '### Instruction:\n' ~ m.content ~ '\n\n' -}}"
     "{%- else -%}{{- '### Response:\n' ~ m.content ~ eos_token ~ '\n\n' -}}{%- endif -%}"
     "{%- endfor -%}"
     "{%- if add_generation_prompt -%}{{- '### Response:\n' -}}{%- endif -%}"},
    {"chatml", NO_CALLS("chatml") "{%- for m in messages -%}{{- '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ "
                                  "'<|im_end|>\n' -}}{%- endfor -%}"
                                  "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"},
    {"command-r", ONLY_CHATTERS("command-r") "{{- bos_token -}}"
                                             "{%- for m in messages -%}"
                                             "{{- '<|START_OF_TURN_TOKEN|>' ~ {'user': '<|USER_TOKEN|>', 'assistant': "
                                             "'<|CHATBOT_TOKEN|>'}.get(m.role, "
                                             "'<|SYSTEM_TOKEN|>') ~ m.content | trim ~ '<|END_OF_TURN_TOKEN|>' -}}"
                                             "{%- endfor -%}"
                                             "{%- if add_generation_prompt -%}{{- "
                                             "'<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' -}}{%- endif -%}"},
    {"deepseek-llm",
     ONLY_CHATTERS("deepseek-llm") "{{- bos_token -}}"
                                   "{%- for m in messages -%}"
                                   "{%- if m.role == 'user' -%}{{- 'User: ' ~ m.content ~ '\n\n' -}}"
                                   "{%- elif m.role == 'assistant' -%}{{- 'Assistant: ' ~ m.content ~ eos_token -}}"
                                   "{%- else -%}{{- m.content ~ '\n\n' -}}{%- endif -%}"
                                   "{%- endfor -%}"
                                   "{%- if add_generation_prompt -%}{{- 'Assistant:' -}}{%- endif -%}"},
    {"gemma", SPLIT_SYSTEM ALTERNATE(
                  "gemma") "{{- bos_token -}}"
                           "{%- for m in turns -%}"
                           "{{- '<start_of_turn>' ~ ('model' if m.role == 'assistant' else 'user') ~ '\n' -}}"
                           "{%- if loop.first and system is defined -%}{{- system | trim ~ '\n\n' -}}{%- endif -%}"
                           "{{- m.content | trim ~ '<end_of_turn>\n' -}}"
                           "{%- endfor -%}"
                           "{%- if add_generation_prompt -%}{{- '<start_of_turn>model\n' -}}{%- endif -%}"},
    {"llama-2",
     SPLIT_SYSTEM ALTERNATE("llama-2") "{%- for m in turns -%}"
                                       "{%- if m.role == 'user' -%}"
                                       "{%- set text = '<<SYS>>\n' ~ system ~ '\n<</SYS>>\n\n' ~ m.content if "
                                       "loop.first and system is defined else "
                                       "m.content -%}"
                                       "{{- bos_token ~ '[INST] ' ~ text.strip() ~ ' [/INST]' -}}"
                                       "{%- else -%}{{- ' ' ~ m.content.strip() ~ ' ' ~ eos_token -}}{%- endif -%}"
                                       "{%- endfor -%}"},
    {"llama-3",
     NO_CALLS(
         "llama-3") "{{- bos_token -}}"
                    "{%- for m in messages -%}"
                    "{{- '<|start_header_id|>' ~ m.role ~ '<|end_header_id|>\n\n' ~ m.content | trim ~ '<|eot_id|>' -}}"
                    "{%- endfor -%}"
                    "{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}{%- "
                    "endif -%}"},
    {"mistral",
     SPLIT_SYSTEM ALTERNATE(
         "mistral") "{{- bos_token -}}"
                    "{%- for m in turns -%}"
                    "{%- if m.role == 'user' -%}"
                    "{{- '[INST] ' -}}{%- if loop.first and system is defined -%}{{- system ~ '\n\n' -}}{%- endif -%}"
                    "{{- m.content ~ ' [/INST]' -}}"
                    "{%- else -%}{{- m.content ~ eos_token ~ ' ' -}}{%- endif -%}"
                    "{%- endfor -%}"},
    {"phi-3",
     ONLY_CHATTERS(
         "phi-3") "{%- for m in messages -%}"
                  "{{- '<|' ~ ('system' if m.role == 'developer' else m.role) ~ '|>\n' ~ m.content ~ '<|end|>\n' -}}"
                  "{%- endfor -%}"
                  "{{- '<|assistant|>\n' if add_generation_prompt else eos_token -}}"},
    {"solar",
     ONLY_CHATTERS("solar") "{%- for m in messages -%}"
                            "{%- if m.role == 'user' -%}{{- '### User:\n' ~ m.content ~ '\n\n' -}}"
                            "{%- elif m.role == 'assistant' -%}{{- '### Assistant:\n' ~ m.content -}}"
                            "{%- elif m.content -%}{{- '### System:\n' ~ m.content ~ '\n\n' -}}{%- endif -%}"
                            "{%- endfor -%}"
                            "{%- if add_generation_prompt and messages -%}{{- '### Assistant:\n' -}}{%- endif -%}"},
    {"vicuna", ONLY_CHATTERS("vicuna") SPLIT_SYSTEM
     "{{- bos_token -}}{%- if system is defined -%}{{- system ~ ' ' -}}{%- endif -%}"
     "{%- for m in turns -%}"
     "{%- if m.role == 'user' -%}{{- 'USER: ' ~ m.content ~ ' ' -}}"
     "{%- else -%}{{- 'ASSISTANT: ' ~ m.content ~ eos_token -}}{%- endif -%}"
     "{%- endfor -%}"
     "{%- if add_generation_prompt -%}{{- 'ASSISTANT:' -}}{%- endif -%}"},
    {"zephyr",
     ONLY_CHATTERS("zephyr") "{%- for m in messages -%}"
                             "{{- '<|' ~ ('system' if m.role == 'developer' else m.role) ~ '|>\n' ~ m.content ~ "
                             "eos_token ~ '\n' -}}"
                             "{%- endfor -%}"
                             "{%- if add_generation_prompt and messages -%}{{- '<|assistant|>\n' -}}{%- endif -%}"},
};

const char *chat_family_template(const char *name) {
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        if (strcmp(families[i].name, name) == 0) {
            return families[i].source;
        }
    }
    return NULL;
}

bool text_is_chat_family(const char *name) {
    return chat_family_template(name) != NULL;
}

const char *text_chat_families(void) {
    return "alpaca chatml command-r deepseek-llm gemma llama-2 llama-3 mistral phi-3 solar vicuna zephyr";
}
