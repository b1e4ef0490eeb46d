/* The fields of a request that go to the chat template, and what a chat's answer may be. */
#include "params_internal.h"

#include <inferd/json.h>
#include <stdio.h>
#include <string.h>

int params_response_format(struct parse *ps, const struct field *f, const cJSON *value, struct error *err) {
    (void)ps;
    const cJSON *type = cJSON_IsObject(value) ? cJSON_GetObjectItemCaseSensitive(value, "type") : NULL;
    if (!cJSON_IsObject(value)) {
        return params_bad(err, f->name, "must be an object");
    }
    if (!cJSON_IsString(type)) {
        return params_bad(err, "response_format.type", "must be a string");
    }
    if (strcmp(type->valuestring, "text") == 0) {
        return 0;
    }
    if (strcmp(type->valuestring, "json_object") == 0 || strcmp(type->valuestring, "json_schema") == 0) {
        return error_set_param(err, ERROR_UNSUPPORTED, "response_format.type",
                               "response_format.type must be text: structured output is not supported by this server");
    }
    return params_bad(err, "response_format.type", "must be text, json_object or json_schema");
}

/* The raw text of a field that the template gets as it stands. */
static int keep_raw(const struct parse *ps, const struct field *f, const char **raw, size_t *len, struct error *err) {
    return json_member(ps->body, ps->len, f->name, raw, len)
               ? 0
               : error_set(err, ERROR_INTERNAL, "The field %s could not be read", f->name);
}

/* {"type": "function", "function": {"name": …}} */
static int check_tool(const cJSON *tool, size_t index, struct error *err) {
    char param[64];
    const cJSON *type = cJSON_IsObject(tool) ? cJSON_GetObjectItemCaseSensitive(tool, "type") : NULL;
    snprintf(param, sizeof param, "tools[%zu]", index);
    if (!cJSON_IsObject(tool)) {
        return params_bad(err, param, "must be an object");
    }
    snprintf(param, sizeof param, "tools[%zu].type", index);
    if (!cJSON_IsString(type)) {
        return params_bad(err, param, "must be a string");
    }
    if (strcmp(type->valuestring, "function") != 0) {
        return params_unsupported(err, param);
    }
    const cJSON *function = cJSON_GetObjectItemCaseSensitive(tool, "function");
    const cJSON *name = cJSON_IsObject(function) ? cJSON_GetObjectItemCaseSensitive(function, "name") : NULL;
    snprintf(param, sizeof param, "tools[%zu].function.name", index);
    if (!cJSON_IsString(name) || !name->valuestring[0]) {
        return params_bad(err, param, "must be a string that is not empty");
    }
    const cJSON *parameters = cJSON_GetObjectItemCaseSensitive(function, "parameters");
    snprintf(param, sizeof param, "tools[%zu].function.parameters", index);
    return !parameters || cJSON_IsNull(parameters) || cJSON_IsObject(parameters)
               ? 0
               : params_bad(err, param, "must be an object");
}

/* Tools reach the template. What the model makes of them comes as text: there is no parser for calls. */
int params_tools(struct parse *ps, const struct field *f, const cJSON *value, struct error *err) {
    if (!cJSON_IsArray(value) || !value->child) {
        return params_bad(err, f->name, "must be a list that is not empty");
    }
    size_t i = 0;
    const cJSON *tool;
    cJSON_ArrayForEach(tool, value) {
        if (check_tool(tool, i++, err)) {
            return -1;
        }
    }
    return keep_raw(ps, f, &ps->p->tools, &ps->p->tools_len, err);
}

int params_documents(struct parse *ps, const struct field *f, const cJSON *value, struct error *err) {
    if (!cJSON_IsArray(value)) {
        return params_bad(err, f->name, "must be a list");
    }
    const cJSON *document;
    cJSON_ArrayForEach(document, value) {
        if (!cJSON_IsObject(document)) {
            return params_bad(err, f->name, "must be a list of objects");
        }
    }
    return keep_raw(ps, f, &ps->p->documents, &ps->p->documents_len, err);
}

/* "auto" leaves the model free, and "none" is heeded by leaving the tools out; a forced call needs a grammar. */
int params_tool_choice(struct parse *ps, const struct field *f, const cJSON *value, struct error *err) {
    if (cJSON_IsString(value)) {
        const char *s = value->valuestring;
        ps->p->tools_hidden = strcmp(s, "none") == 0;
        if (ps->p->tools_hidden || strcmp(s, "auto") == 0) {
            return 0;
        }
        return strcmp(s, "required") == 0 ? params_unsupported(err, f->name)
                                          : params_bad(err, f->name, "must be none, auto, required or a function");
    }
    return cJSON_IsObject(value) ? params_unsupported(err, f->name)
                                 : params_bad(err, f->name, "must be a string or an object");
}

int params_modalities(struct parse *ps, const struct field *f, const cJSON *value, struct error *err) {
    (void)ps;
    if (!cJSON_IsArray(value)) {
        return params_bad(err, f->name, "must be a list");
    }
    const cJSON *v;
    cJSON_ArrayForEach(v, value) {
        if (!cJSON_IsString(v) || strcmp(v->valuestring, "text") != 0) {
            return params_unsupported(err, f->name);
        }
    }
    return 0;
}

/*
 * Further variables of the template: values of any kind, whose bytes count as the client's like those of a message. The
 * names of what the server itself hands over stay its own, and a template is not a value.
 */
int params_template_kwargs(struct parse *ps, const struct field *f, const cJSON *value, struct error *err) {
    static const char *const own[] = {
        "messages",
        "tools",
        "documents",
        "add_generation_prompt",
        "continue_final_message",
        "bos_token",
        "eos_token",
        "chat_template",
        "tokenize",
        "raise_exception",
        "strftime_now",
        "namespace",
        "range",
        "dict",
        "loop",
        "caller",
        "varargs",
        "kwargs",
        "self",
        "cycler",
        "joiner",
        "lipsum",
    };
    if (!cJSON_IsObject(value)) {
        return params_bad(err, f->name, "must be an object");
    }
    const cJSON *v;
    cJSON_ArrayForEach(v, value) {
        for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
            if (strcmp(v->string, own[i]) == 0) {
                return error_set_param(err, ERROR_UNSUPPORTED, f->name, "chat_template_kwargs cannot set %s", own[i]);
            }
        }
    }
    return keep_raw(ps, f, &ps->p->template_kwargs, &ps->p->template_kwargs_len, err);
}

static int check_content_part(const cJSON *part, size_t message, size_t index, struct error *err) {
    char param[64];
    const cJSON *type = cJSON_IsObject(part) ? cJSON_GetObjectItemCaseSensitive(part, "type") : NULL;
    snprintf(param, sizeof param, "messages[%zu].content[%zu].type", message, index);
    if (!cJSON_IsString(type)) {
        return params_bad(err, param, "must be a string");
    }
    if (strcmp(type->valuestring, "text") != 0) {
        return error_set_param(err, ERROR_UNSUPPORTED, param, "%s must be text: media are not supported by this server",
                               param);
    }
    snprintf(param, sizeof param, "messages[%zu].content[%zu].text", message, index);
    return cJSON_IsString(cJSON_GetObjectItemCaseSensitive(part, "text")) ? 0
                                                                          : params_bad(err, param, "must be a string");
}

static int check_content(const cJSON *content, size_t message, bool may_lack, struct error *err) {
    char param[64];
    snprintf(param, sizeof param, "messages[%zu].content", message);
    if (cJSON_IsString(content) || (may_lack && (!content || cJSON_IsNull(content)))) {
        return 0;
    }
    if (!cJSON_IsArray(content)) {
        return params_bad(err, param, "must be a string or a list of text parts");
    }
    size_t i = 0;
    const cJSON *part;
    cJSON_ArrayForEach(part, content) {
        if (check_content_part(part, message, i++, err)) {
            return -1;
        }
    }
    return 0;
}

static int check_message(const cJSON *message, size_t index, struct error *err) {
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};
    char param[64];
    if (!cJSON_IsObject(message)) {
        snprintf(param, sizeof param, "messages[%zu]", index);
        return params_bad(err, param, "must be an object");
    }
    snprintf(param, sizeof param, "messages[%zu].role", index);
    const cJSON *role = cJSON_GetObjectItemCaseSensitive(message, "role");
    bool known = false;
    for (size_t i = 0; cJSON_IsString(role) && i < sizeof roles / sizeof roles[0]; i++) {
        known = known || strcmp(role->valuestring, roles[i]) == 0;
    }
    if (!known) {
        return params_bad(err, param, "must be system, developer, user, assistant or tool");
    }
    const cJSON *calls = cJSON_GetObjectItemCaseSensitive(message, "tool_calls");
    if (calls && !cJSON_IsNull(calls) && !cJSON_IsArray(calls)) {
        snprintf(param, sizeof param, "messages[%zu].tool_calls", index);
        return params_bad(err, param, "must be a list");
    }
    bool may_lack = cJSON_IsArray(calls) && strcmp(role->valuestring, "assistant") == 0;
    return check_content(cJSON_GetObjectItemCaseSensitive(message, "content"), index, may_lack, err);
}

int params_messages(struct parse *ps, const struct field *f, const cJSON *value, struct error *err) {
    if (!cJSON_IsArray(value) || !value->child) {
        return params_bad(err, f->name, "must be a list that is not empty");
    }
    size_t i = 0;
    const cJSON *message;
    cJSON_ArrayForEach(message, value) {
        if (check_message(message, i++, err)) {
            return -1;
        }
    }
    return json_member(ps->body, ps->len, f->name, &ps->p->messages, &ps->p->messages_len)
               ? 0
               : error_set(err, ERROR_INTERNAL, "The messages could not be read");
}
