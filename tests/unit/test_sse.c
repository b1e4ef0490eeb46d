#include "api_common.h"
#include "sse.h"

#include <cjson/cJSON.h>
#include <criterion/criterion.h>
#include <string.h>

/* A reader after the standard: blocks end at an empty line, "data:" lines are joined, comments are skipped. */
static size_t read_events(const char *stream, char events[8][256]) {
    size_t n = 0, len = 0;
    bool any = false;
    while (*stream) {
        size_t line = strcspn(stream, "\n");
        cr_assert_eq(stream[line], '\n', "an unfinished line");
        if (line == 0 && any) {
            events[n++][len] = '\0';
            len = 0;
            any = false;
        } else if (line >= 5 && strncmp(stream, "data:", 5) == 0) {
            size_t skip = stream[5] == ' ' ? 6 : 5;
            memcpy(events[n] + len, stream + skip, line - skip);
            len += line - skip;
            any = true;
        } else {
            cr_assert(line == 0 || stream[0] == ':', "an unknown field");
        }
        stream += line + 1;
    }
    return n;
}

Test(sse, events_and_comments) {
    struct buf out = BUF_INIT;
    char events[8][256];
    sse_begin(&out);
    buf_puts(&out, "{\"text\":");
    buf_json_string(&out, "a\nb\r\n\xff", 6);
    buf_puts(&out, "}");
    sse_finish(&out);
    sse_ping(&out);
    sse_done(&out);
    cr_assert_eq(read_events(out.data, events), 2);
    cJSON *j = cJSON_Parse(events[0]);
    cr_assert_str_eq(cJSON_GetObjectItem(j, "text")->valuestring, "a\nb\r\n\xef\xbf\xbd");
    cJSON_Delete(j);
    cr_assert_str_eq(events[1], "[DONE]");
    buf_free(&out);
}

/* Four keys always; a string or null. */
Test(sse, error_bodies) {
    static const struct {
        enum error_code code;
        int status;
        const char *type, *name;
    } rows[] = {
        {ERROR_INVALID, 400, "invalid_request_error", NULL},
        {ERROR_UNSUPPORTED, 400, "invalid_request_error", "unsupported"},
        {ERROR_CONTEXT_LENGTH, 400, "invalid_request_error", "context_length_exceeded"},
        {ERROR_NOT_FOUND, 404, "invalid_request_error", "model_not_found"},
        {ERROR_QUEUE_FULL, 429, "rate_limit_error", "queue_full"},
        {ERROR_UNAVAILABLE, 503, "unavailable_error", NULL},
        {ERROR_MEMORY, 500, "server_error", NULL},
        {ERROR_INTERNAL, 500, "server_error", NULL},
        {ERROR_DEVICE, 503, "unavailable_error", NULL}, /* lost */
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct error err;
        struct buf out = BUF_INIT;
        error_set_param(&err, rows[i].code, i % 2 ? "a.b" : "", "a \"quoted\" sentence");
        struct api_error e = api_error_of(&err);
        cr_assert_eq(e.status, rows[i].status);
        api_error_write(&e, &out);
        cJSON *j = cJSON_Parse(out.data), *error = cJSON_GetObjectItem(j, "error");
        cr_assert_eq(cJSON_GetArraySize(error), 4);
        cr_assert_str_eq(cJSON_GetObjectItem(error, "message")->valuestring, "a \"quoted\" sentence");
        cr_assert_str_eq(cJSON_GetObjectItem(error, "type")->valuestring, rows[i].type);
        const cJSON *param = cJSON_GetObjectItem(error, "param"), *code = cJSON_GetObjectItem(error, "code");
        cr_assert(i % 2 ? cJSON_IsString(param) : cJSON_IsNull(param));
        cr_assert(rows[i].name ? strcmp(code->valuestring, rows[i].name) == 0 : cJSON_IsNull(code));
        cJSON_Delete(j);
        buf_free(&out);
    }
}
